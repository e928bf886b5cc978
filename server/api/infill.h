/*
 * /infill as llama-server has it: what belongs between two pieces of a file, for the editors that
 * ask for it so. The gap is asked for as that of `suffix` is (fim.h); the answer has llama-server's
 * form, with what is true here: no slots, no settings.
 */
#pragma once

#include <stddef.h>

struct api_error;
struct choice;
struct ek_buf;
struct generation;

/* Answers: whole, and as events. */
void infill_reply(struct ek_buf *out, struct generation *g);
void infill_render(struct generation *g);
void infill_error(struct generation *g, const struct api_error *err);

/* Looks through what was added to the choice's text from `from` on: notes new lines, and ends the
 * answer where a line is indented less than asked for, which is cut off, or at the end of a line
 * when the time is up. */
void infill_look(struct choice *c, size_t from);

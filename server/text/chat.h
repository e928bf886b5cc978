/*
 * Messages to prompt text by the model's Jinja chat template. Immutable after loading; render() may
 * run in any thread. Fuel, output size and depth are bounded.
 *
 * Special tokens in user text stay text: render() marks every place in the *data* where the content
 * of a special token begins with a guard character (a noncharacter that the data does not contain,
 * inserted after the first character), which the template copies along like any other; the
 * tokenizer then takes only unmarked ones for special and removes the guard.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct chat;
struct ek_buf;
struct ek_bundle;
struct ek_fault;
struct ek_work;
struct tokenizer;

/* The template of a model directory (chat_template.jinja, else tokenizer_config.json), or of
 * `file` when not NULL. A model without one: *ret_chat = NULL and 0. Template errors give line
 * and column in the fault. */
int chat_load(const char *dir, const char *file, struct chat **ret_chat, struct ek_fault *fault);
/* The same of what is in a bundle (textfile.h), NULL = of the files. */
int chat_load_from(struct ek_bundle *b, const char *dir, const char *file, struct chat **ret_chat,
                   struct ek_fault *fault);
void chat_free(struct chat *c);
/* Its template's text, that of chats without tools. */
const char *chat_source(const struct chat *c);
/* One of its templates has these bytes in its source. */
bool chat_shows(const struct chat *c, const char *bytes);
/* The template has a case of its own for messages of the developer. */
bool chat_knows_developer(const struct chat *c);
/* The template shows the `thinking` of an assistant's message. */
bool chat_shows_thinking(const struct chat *c);

/* `context` is an object: messages, tools (array or absent), add_generation_prompt, and any further
 * variable. Appends the text to out and sets *ret_guard (0 when none was needed). tok may be NULL:
 * then nothing is guarded. -EBADMSG with the template's or raise_exception's message, also when
 * `work`, which pays for each step, has said stop. */
int chat_render(const struct chat *c, const struct tokenizer *tok, const json_t *context,
                struct ek_work *work, struct ek_buf *out, uint32_t *ret_guard,
                struct ek_fault *fault);

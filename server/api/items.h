/*
 * An answer as a row of items: thinking, text, calls. The forms of /v1/responses and /v1/messages
 * number them, open and close them. Texts and arguments are kept whole in the choice; an item is a
 * range of one of them.
 *
 * Owner: the choice.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct choice;
struct ek_buf;
struct items;

/* What becomes of items in a stream; each may be NULL. */
struct item_sink {
    void (*open)(struct choice *c, uint32_t index);
    void (*grow)(struct choice *c, uint32_t index, const char *bytes, size_t len);
    void (*close)(struct choice *c, uint32_t index);
};

/* Puts what is new of the choice into items; when it is over, all are closed. 0 or -ENOMEM. */
int items_update(struct choice *c, const struct item_sink *sink);
/* The inside of a list: what log probabilities a text has so far, or those that have come since it
 * grew last (for a sink's `grow`). */
void items_logprobs(const struct choice *c, uint32_t index, bool fresh, struct ek_buf *out);
/* The item's text so far. */
const char *items_text(const struct choice *c, uint32_t index, size_t *ret_len);
void items_done(struct items *l);

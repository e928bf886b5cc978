/*
 * Stored responses: what /v1/responses answered, kept in memory for GET, DELETE and for later
 * requests that go on from it (`previous_response_id`). Off unless the operator gives it bytes.
 *
 * A past is one answer: the response object as text, and the items that its request brought. It
 * holds the past that it went on from, so a conversation costs each of its items once, and one that
 * is deleted, too old or pushed out stays, unseen, while a later one goes on from it.
 *
 * The oldest go first: when they are older than `keep_us`, when a key has more than its share, when
 * the store is full. A key has at most half of the store where there are keys, and finds its own
 * alone. What does not fit when all else of its key is gone is not kept.
 *
 * Owner: struct stack; any thread may call. A past never changes once it is made: what holds a
 * reference reads it without the lock. Nothing here reads the clock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct past;
struct past_store;

#define PAST_MOST   16384u /* pasts, those that only later ones hold among them */
#define PAST_ID     176u   /* bytes of an id, with its end */
#define PAST_OWNERS 136u   /* that have some at once; further ones push out the oldest */
#define PAST_SHARE  2u     /* a key has at most one part of so many */

struct past_stat {
    uint64_t pasts, bytes, evicted; /* evicted: for room, not by age or wish */
    uint64_t bound_bytes;
};

/* What is kept of an answer, borrowed: the response object, where the inside of its list `output`
 * stands in it, and the inside of the list of items that the request brought. Each text is below
 * 4 GiB. */
struct past_text {
    const char *id; /* below PAST_ID bytes */
    const char *response;
    size_t response_len, output_at, output_len;
    const char *input;
    size_t input_len;
};

/* 0 or -ENOMEM. */
int past_store_new(uint64_t bytes, uint64_t keep_us, struct past_store **ret_store);
void past_store_free(struct past_store *s); /* nothing holds a past any more; NULL is fine */

/* A reference to the one of that id that is `owner`'s (0 = of requests without a key), or NULL. */
struct past *past_find(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us);
/* Gives a reference back. NULL is fine. */
void past_drop(struct past_store *s, struct past *p);
/* Keeps an answer, in place of one with the same id; `before` is what it went on from, or NULL: the
 * caller's reference stays its own. 0, -ENOMEM, or -E2BIG when it does not fit. */
int past_keep(struct past_store *s, uint64_t owner, const struct past_text *text,
              struct past *before, uint64_t now_us);
/* Whether it was there. */
bool past_delete(struct past_store *s, uint64_t owner, const char *id, uint64_t now_us);
void past_stat(struct past_store *s, struct past_stat *ret_stat);

/* Whether an answer with so many bytes of texts could be kept by `owner` if all else of its went;
 * what others hold at that time may still leave no room. */
bool past_fits(const struct past_store *s, uint64_t owner, const struct past *before, size_t bytes);

/* An item of a conversation: its JSON, and within it the value of its `id` with the quotes (length
 * 0: it has none that is a string). */
struct past_item {
    const char *text, *id;
    size_t len, id_len;
};
typedef bool (*past_item_fn)(void *ctx, const struct past_item *item);

/* Of a past that is held. The response object, as it was answered. */
const char *past_response(const struct past *p, size_t *ret_len);
/* Shows the items of the conversation one by one until `fn` says false: with the answer's own at
 * its end, or (`inputs`) without. Nothing is parsed. 0 or -ENOMEM. */
int past_walk(const struct past *p, bool inputs, bool newest_first, past_item_fn fn, void *ctx);
size_t past_count(const struct past *p, bool inputs); /* how many these are */
/* What all items, the answer's among them, are: bytes of text, and what their JSON takes when it is
 * parsed, as ek_json_measure() says. */
size_t past_items_bytes(const struct past *p);
uint64_t past_json_bytes(const struct past *p);

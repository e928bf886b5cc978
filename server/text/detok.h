/*
 * Tokens to text, incrementally: never emits half a UTF-8 character, holds back what may be the
 * beginning of a stop string, and finds stop strings across token borders. One per output sequence,
 * owned by its HTTP thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct tokenizer;

#define DETOK_STOPS 16u

struct detok {
    const struct tokenizer *tok;
    const char *stop[DETOK_STOPS]; /* borrowed */
    uint32_t stops;
    bool include_stop;  /* keep the stop string in the text */
    bool skip_specials; /* special tokens give no text */
    struct ek_buf held; /* not emitted yet: `text` bytes of whole characters, then what may be */
    size_t text;        /* the beginning of one */
    int32_t hit;        /* index of the stop string found, or -1 */
};

void detok_init(struct detok *d, const struct tokenizer *tok);
void detok_done(struct detok *d);
/* Adds one token; appends to out what can be emitted. Returns 1 when a stop string was found (the
 * text before it, or with it, is in out; no more may be pushed), 0, or -ENOMEM. */
int detok_push(struct detok *d, int32_t token, struct ek_buf *out);
/* At the end: emits what was held; bytes that are no whole character become U+FFFD. */
int detok_flush(struct detok *d, struct ek_buf *out);
/* The text of `count` tokens, whole. 0 or -ENOMEM. */
int detok_row(const struct tokenizer *tok, const int32_t *ids, size_t count, bool skip_specials,
              struct ek_buf *out);

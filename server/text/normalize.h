/*
 * What a tokenizer does to text before it is split: Unicode forms, case, replacements. A list of
 * steps read from the `normalizer` of tokenizer.json; immutable once filled.
 *
 * Unicode forms touch only the stretches that need it: characters known to be inert are copied, and
 * marks are put in order by counting, so that a megabyte of combining marks costs no more than one
 * of letters.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct rx;
struct rx_work;

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWER,
    NORM_STRIP,   /* white space at the ends, see left and right */
    NORM_ACCENTS, /* drops combining marks */
    NORM_REPLACE, /* matches of rx become text */
    NORM_PREPEND, /* text goes first, unless there is nothing to go before */
    NORM_BYTES,   /* each byte becomes its character of the byte alphabet */
    NORM_TABLE,   /* by SentencePiece's table, which is text (charsmap.h) */
};

struct norm_step {
    enum norm_kind kind;
    bool left, right; /* NORM_STRIP */
    struct rx *rx;    /* owned */
    char *text;       /* owned */
    size_t text_len;
};

#define NORM_STEPS 16u

struct normalizer {
    struct norm_step step[NORM_STEPS];
    uint32_t steps;
};

void normalizer_done(struct normalizer *n);

/* *ret_s is s itself when nothing changed, else in one of bufs, which the caller owns and may use
 * again. s is valid UTF-8, and so is the result. -ENOMEM, -E2BIG (step budget of a pattern,
 * or a text that grows beyond reason). */
int normalizer_run(const struct normalizer *n, struct rx_work *w, const char *s, size_t len,
                   struct ek_buf bufs[2], const char **ret_s, size_t *ret_len);

/*
 * One token's content to the bytes it stands for: the `decoder` of tokenizer.json as a list of
 * steps, run once for each token at loading. What a decoder does to the whole text only (dropping
 * the space that a prompt's first word was given) is not done: generated text continues a prompt.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

enum decode_kind {
    DECODE_BYTES,    /* characters of the byte alphabet; a token with any other is plain text */
    DECODE_FALLBACK, /* <0xNN> is that byte */
    DECODE_REPLACE,  /* text `from` becomes `to` */
};

struct decode_step {
    enum decode_kind kind;
    char from[16], to[16];
};

#define DECODE_STEPS 16u

struct decoder {
    struct decode_step step[DECODE_STEPS];
    uint32_t steps;
};

/* The byte that the token <0xNN> stands for, -1 when it is none. */
int decoder_fallback(const char *s, size_t len);
/* The result is appended to out; tmp is scratch. -ENOMEM. */
int decoder_run(const struct decoder *d, const char *s, size_t len, struct ek_buf *tmp,
                struct ek_buf *out);

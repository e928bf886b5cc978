/*
 * Splits text into the pieces that the model sees one by one: the `pre_tokenizer` of tokenizer.json
 * as a list of steps. Text streams through them piece by piece and ends in a sink, so that a long
 * text needs no list of its pieces. Immutable once filled; a pretok_run belongs to one call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct rx;
struct rx_work;

enum pretok_kind {
    PRETOK_SPLIT,     /* by rx, what becomes of the matches says `how` */
    PRETOK_SPACE,     /* a space goes first if there is none */
    PRETOK_BYTES,     /* each byte becomes its character of the byte alphabet */
    PRETOK_METASPACE, /* spaces become `mark`, and one goes first as `prepend` says */
};

enum split_how { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum meta_prepend { META_NEVER, META_FIRST, META_ALWAYS };

struct pretok_step {
    enum pretok_kind kind;
    struct rx *rx; /* owned */
    enum split_how how;
    bool invert; /* what does not match is the separator */
    enum meta_prepend prepend;
    char mark[8]; /* one character */
};

#define PRETOK_STEPS 24u

struct pretok {
    struct pretok_step step[PRETOK_STEPS];
    uint32_t steps;
    bool byte_mode; /* the last step would be PRETOK_BYTES: left out, the model takes bytes */
};

typedef int (*pretok_sink)(void *ctx, const char *s, size_t len);

struct pretok_run {
    const struct pretok *pretok;
    struct rx_work *work;
    pretok_sink sink;
    void *ctx;
    struct ek_buf scratch[PRETOK_STEPS];
};

void pretok_done(struct pretok *p);
/* Sends the pieces of s, which is valid UTF-8, to the sink; none is empty. first: s begins the
 * whole text. 0, what the sink returned, -ENOMEM, -E2BIG (step budget of a pattern). */
int pretok_run(struct pretok_run *run, const char *s, size_t len, bool first);
void pretok_run_done(struct pretok_run *run);

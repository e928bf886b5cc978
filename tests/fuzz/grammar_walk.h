/* What the targets of grammars share: compile, then walk along allowed tokens; where the shortest
 * text fits into the walk, the text must end within it. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/work.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"

#define WALK_VOCAB 258
#define WALK_STEPS 200u

/* Every byte, one pair, and an end. */
static const char *walk_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    static const char pair[] = "\",";
    char *bytes = ctx;
    if (token == WALK_VOCAB - 1)
        return NULL;
    *ret_len = token < 256 ? 1 : 2;
    if (token >= 256)
        return pair;
    bytes[token] = (char)token;
    return &bytes[token];
}

/* The token'th allowed one, in circles. */
static int32_t walk_pick(const uint32_t *bits, uint32_t count, uint32_t which)
{
    which %= count;
    for (int32_t t = 0; t < WALK_VOCAB; t++)
        if (bits[t / 32] >> (t % 32) & 1 && which-- == 0)
            return t;
    return -1;
}

static inline int grammar_walk(enum grammar_kind kind, const char *text, size_t len)
{
    static char bytes[256];
    const int32_t end = WALK_VOCAB - 1;
    struct lexicon *l = NULL;
    struct grammar *g = NULL;
    struct ek_fault f = {0};
    struct matcher m;
    struct grammar_stats stats = {0};
    bool must_end = false, ended = false;
    int32_t token[WALK_STEPS];
    uint32_t bits[(WALK_VOCAB + 31) / 32], turn = 1;

    if (lexicon_new(WALK_VOCAB, walk_bytes, bytes, &end, 1, &l) < 0)
        return 0;
    struct ek_work little = {.fuel = 16 * len}, work = {.fuel = GRAMMAR_FUEL};
    int r = grammar_compile(kind, len ? text : "", len, l, &little, &g, &f);
    if (ek_work_stopped(&little)) {
        if (r != -EBADMSG || !strstr(f.msg, "more work"))
            abort(); /* it says why */
        r = grammar_compile(kind, len ? text : "", len, l, &work, &g, &f);
    }
    if (r == -EBADMSG && !f.msg[0])
        abort(); /* refused without a message */
    if (r == 0)
        matcher_init(&m, g);
    for (uint32_t n = 0; r == 0 && n < WALK_STEPS; n++) {
        work = (struct ek_work){.fuel = 1000ull * n}; /* a first try, perhaps in vain */
        m.work = &work;
        if (matcher_follow(&m, token, sizeof(*token), n))
            (void)matcher_mask(&m, n % 2 == 0, WALK_STEPS - n, bits);
        m.work = NULL;
        if (!matcher_follow(&m, token, sizeof(*token), n))
            abort(); /* an allowed token did not fit */
        if (n == 0)
            must_end = matcher_left(&m) <= WALK_STEPS;
        uint32_t count = matcher_mask(&m, n % 2 == 0, WALK_STEPS - n, bits);
        if (count == 0)
            abort(); /* a dead end: every byte is a token here */
        turn = turn * 1103515245u + 12345u;
        token[n] = walk_pick(bits, count, turn >> 16);
        ended = token[n] == end;
        if (ended)
            break;
    }
    if (r == 0)
        grammar_stats(g, &stats);
    bool may = kind == GRAMMAR_TAGS || kind == GRAMMAR_STRUCTURE;
    if (r == 0 && may && !ended) /* free text need not end, a call in it must */
        ended = matcher_follow(&m, token, sizeof(*token), WALK_STEPS) && matcher_complete(&m);
    if (must_end && !ended && stats.left_out == 0)
        abort(); /* there was room to end */
    grammar_unref(g);
    lexicon_free(l);
    return 0;
}

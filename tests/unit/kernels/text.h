/*
 * For tests of operations whose state goes from token to token: a text on a graph of struct tiny,
 * divided into steps in many ways, against logits computed plainly; and graphs that are
 * text_refused.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 64, TOKENS = 23 };

/* The logits behind the last of TOKENS tokens, in double. */
typedef void (*text_reference_fn)(struct tiny *t, const int32_t *tokens, double *logits);

/* The first operation of the kind. */
static inline struct ek_op *text_op(struct tiny *t, enum ek_op_kind kind)
{
    uint32_t i = 0;

    while (i + 1 < t->g.op_count && t->op[i].kind != kind)
        i++;
    assert_int_equal(t->op[i].kind, kind);
    return &t->op[i];
}

static inline double text_silu(double x)
{
    return x / (1 + exp(-x));
}

static inline void text_tokens(uint64_t seed, int32_t *tokens)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

/* The text in slot 1 in chunks of so many rows, with another in slot 0 before it, or alone. */
static inline struct ek_result_seq text_run(struct tiny_device *x, const int32_t *tokens,
                                            uint32_t chunk, bool alone)
{
    static const uint32_t table[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    int32_t other[TOKENS];

    text_tokens(99, other);
    for (uint32_t i = 0; i < 2; i++) {
        const struct ek_slot_set set = {.slot = i, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
        tiny_set(x, &set);
    }
    for (uint32_t at = 0, rows; at < TOKENS; at += rows) {
        rows = TOKENS - at < chunk ? TOKENS - at : chunk;
        if (!alone)
            tiny_add(x, 0, other, at, rows, table[0], false);
        tiny_add(x, 1, tokens, at, rows, table[1], at + rows == TOKENS);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    return x->result->seq[alone ? 0 : 1];
}

/* All rows in one step and in small ones, alone and beside another text, by one member and by
 * three: near to the reference, and always the same bits. */
static inline void text_compare(struct tiny *t, const char *isa, text_reference_fn reference)
{
    const uint32_t chunks[] = {TOKENS, 1, 2, 7};
    double want[VOCAB], most = 0;
    struct ek_result_seq first = {0};
    int32_t tokens[TOKENS];
    struct tiny_device x;

    text_tokens(5, tokens);
    reference(t, tokens, want);
    for (uint32_t v = 0; v < VOCAB; v++)
        most = fabs(want[v]) > most ? fabs(want[v]) : most;
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(tiny_open(t, isa, i % 2 == 0 ? 1 : 3, 8, 10, &x), 0);
        const struct ek_result_seq r = text_run(&x, tokens, chunks[i / 2 % 4], i < 8);
        tiny_close(&x);
        assert_int_equal(r.top, EK_TOP_MOST);
        for (uint32_t k = 0; k < r.top; k++)
            if (fabs((double)r.top_logit[k] - want[r.top_id[k]]) > 2e-5 * most)
                fail_msg("%s, case %u: a logit is %g instead of %g", isa, i, (double)r.top_logit[k],
                         want[r.top_id[k]]);
        first = i == 0 ? r : first;
        assert_memory_equal(first.top_id, r.top_id, sizeof(r.top_id));
        assert_memory_equal(first.top_logit, r.top_logit, sizeof(r.top_logit));
        assert_true(first.lse == r.lse);
    }
}

/* On each tier of this machine. */
static inline void text_check(struct tiny *t, text_reference_fn reference)
{
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++)
        text_compare(t, tiers[i]->name, reference);
}

/* Frees the graph, which must be text_refused for that reason. */
static inline void text_refused(struct tiny *t, const char *why)
{
    struct ek_fault fault = {.msg = ""};

    assert_int_equal(ek_graph_check(&t->g, &fault), -EBADMSG);
    if (!strstr(fault.msg, why))
        fail_msg("\"%s\" instead of: %s", fault.msg, why);
    tiny_free(t);
}

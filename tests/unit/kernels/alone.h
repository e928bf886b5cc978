/*
 * One sequence on a device of tiny.h, in chunks, and all logits after its last token: with a
 * vocabulary of 20 the alternatives of the token that was sampled are all there are. For tests of
 * the CPU backend.
 */
#pragma once

#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 20 };

static inline void make_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

/* With a vocabulary of 20 the alternatives are all logits; by token here. */
static inline void logits_of(const struct ek_result_seq *s, float *logits)
{
    assert_int_equal(s->tokens, 1);
    assert_int_equal(s->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[s->top_id[i]] = s->top_logit[i];
}

static inline void spread_table(uint32_t *table, uint32_t count, uint32_t first, uint32_t step)
{
    for (uint32_t i = 0; i < count; i++)
        table[i] = first + i * step;
}

/* The prompt in chunks of `chunk` rows, alone; the logits after the last token. */
static inline void run_alone(struct tiny_device *x, const int32_t *tokens, uint32_t n,
                             uint32_t chunk, const uint32_t *table, float *logits)
{
    struct ek_slot_set set = {.slot = 3, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};

    tiny_set(x, &set);
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        tiny_add(x, 3, tokens, at, rows, table, at + rows == n);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    logits_of(&x->result->seq[0], logits);
}

/*
 * Shapes at the edges, on every tier: heads of 40 to 256 elements, hidden sizes that no vector
 * divides, more query heads to one of K and V than are walked together, one token, contexts of
 * 100,000. Long contexts are made of the same few blocks again and again. Attention in parts gives
 * the same bits whether a member does all parts or each does some, in chunks of any size.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/tier.h"
#include "tests/share.h"
#include "tests/unit/kernels/alone.h"
#include "tests/unit/kernels/tiles.h"
#include "tests/unit/kernels/tiny_plain.h"

/* dtype, hidden, heads of q and of k and v, their size, window; the rest is alike. */
static const struct shape {
    enum ek_dtype dtype;
    uint32_t hidden, q_heads, kv_heads, head_dim, window;
} g_shapes[] = {
    {EK_BF16, 33, 4, 2, 40, 0},   {EK_F32, 40, 7, 1, 72, 0},    {EK_F16, 48, 2, 2, 80, 9},
    {EK_BF16, 130, 33, 1, 96, 0}, {EK_F32, 50, 6, 3, 112, 0},   {EK_BF16, 71, 5, 5, 128, 0},
    {EK_F16, 64, 8, 1, 160, 0},   {EK_BF16, 60, 3, 1, 192, 33}, {EK_F32, 47, 2, 1, 256, 0},
    {EK_BF16, 130, 5, 1, 256, 0}, {EK_BF16, 31, 40, 1, 47, 0},
};

static struct tiny *new_shape(const struct shape *s)
{
    const struct tiny_params p = {.dtype = s->dtype,
                                  .layers = 1,
                                  .hidden = s->hidden,
                                  .q_heads = s->q_heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .rotary = s->head_dim / 4 * 2,
                                  .ffn = s->hidden + 3,
                                  .vocab = VOCAB,
                                  .window = s->window,
                                  .bias = s->q_heads % 2 == 0,
                                  .act = EK_ACT_SILU};
    return tiny_new(&p);
}

static void test_edges(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 35};
    const struct cpu_ops *tiers[CPU_TIERS];
    int32_t tokens[35];
    uint32_t table[8];

    cpu_tier_list(tiers);
    make_tokens(tokens, 35, 5);
    spread_table(table, 8, 1, 2);
    for (size_t m = 0; m < sizeof(g_shapes) / sizeof(g_shapes[0]); m++) {
        struct tiny *t = new_shape(&g_shapes[m]);
        double tolerance = t->p.dtype == EK_F32 ? 2e-4 : t->p.dtype == EK_F16 ? 1e-2 : 1e-1;
        for (size_t l = 0; l < 3; l++) {
            double want[VOCAB];
            if (!share_takes(m * 3 + l))
                continue;
            tiny_reference(t, tokens, lengths[l], want);
            for (uint32_t i = 0; tiers[i]; i++) {
                struct tiny_device x;
                float got[VOCAB];
                if (tiles_idle(tiers[i], t->p.dtype))
                    continue;
                assert_int_equal(tiny_open(t, tiers[i]->name, 2, 16, 20, &x), 0);
                run_alone(&x, tokens, lengths[l], 20, table, got);
                for (uint32_t v = 0; v < VOCAB; v++)
                    if (!(fabs((double)got[v] - want[v]) < tolerance * (1 + fabs(want[v]))))
                        fail_msg("shape %zu, %u tokens, %s: logit %u is %g instead of %g", m,
                                 lengths[l], tiers[i]->name, v, (double)got[v], want[v]);
                tiny_close(&x);
            }
        }
        tiny_free(t);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { END = 9000 }; /* slow enough */
#else
enum { END = 100000 };
#endif
enum { BLOCK = 128, FILLED = 512, LAST = 8 };

/* The last tokens of a context of `end`, after 512 tokens whose blocks stand for all before. */
static void run_long(struct tiny_device *x, const int32_t *tokens, uint32_t end, uint32_t chunk,
                     float *logits)
{
    static uint32_t table[END / BLOCK + 1];
    const uint32_t first = end - LAST;
    uint32_t filled[FILLED / BLOCK];

    spread_table(filled, FILLED / BLOCK, 1, 1);
    run_alone(x, tokens, FILLED, FILLED, filled, logits);
    for (uint32_t i = 0; i <= (end - 1) / BLOCK; i++)
        table[i] = 1 + i % (FILLED / BLOCK);
    for (uint32_t at = first; at < end; at++) /* written to a block of their own */
        table[at / BLOCK] = 8 + at / BLOCK - first / BLOCK;
    for (uint32_t at = first, rows; at < end; at += rows) {
        rows = end - at < chunk ? end - at : chunk;
        tiny_add(x, 3, tokens, at, rows, table, at + rows == end);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    logits_of(&x->result->seq[0], logits);
}

/* Alone in one thread and one chunk; then by other chunks and threads, which divide it. */
static void long_context(const struct tiny *t, const char *isa, const int32_t *tokens, uint32_t end,
                         float *logits)
{
    static const struct {
        uint32_t threads, chunk;
    } ways[] = {{1, LAST}, {1, 1}, {9, 1}, {3, 3}, {9, LAST}};

    const bool slow = strcmp(isa, "ref") == 0 && end > CPU_PART * 2;
    for (size_t i = 0; i < (slow ? 1 : sizeof(ways) / sizeof(ways[0])); i++) {
        struct tiny_device x;
        float got[VOCAB];
        assert_int_equal(tiny_open(t, isa, ways[i].threads, BLOCK, 12, &x), 0);
        run_long(&x, tokens, end, ways[i].chunk, i == 0 ? logits : got);
        if (i > 0)
            assert_memory_equal(got, logits, sizeof(got));
        tiny_close(&x);
    }
}

static void test_long(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {EK_BF16, 64, 4, 2, 40, 0}, {EK_F32, 40, 35, 1, 16, 0}, {EK_BF16, 40, 4, 1, 32, 5000}};
    static const uint32_t ends[] = {CPU_PART + 3, END};
    const struct cpu_ops *tiers[CPU_TIERS];
    int32_t *tokens = calloc(END, sizeof(*tokens));

    cpu_tier_list(tiers);
    make_tokens(tokens, END, 7);
    for (size_t m = share_next(0); m < 6; m = share_next(m + 1)) {
        struct tiny *t = new_shape(&shapes[m / 2]);
        float want[VOCAB], got[VOCAB];
        double tolerance = t->p.dtype == EK_F32 ? 1e-3 : 1e-1;
        long_context(t, "ref", tokens, ends[m % 2], want);
        for (uint32_t i = 0; tiers[i]; i++) {
            if (tiers[i] == &cpu_ops_ref || (tiers[i] == &cpu_ops_amx && tiles_emulated()))
                continue; /* attention is not in tiles */
            long_context(t, tiers[i]->name, tokens, ends[m % 2], got);
            for (uint32_t v = 0; v < VOCAB; v++)
                if (!(fabs((double)(got[v] - want[v])) < tolerance * (1 + fabs((double)want[v]))))
                    fail_msg("shape %zu, %u tokens, %s: logit %u is %g instead of %g", m / 2,
                             ends[m % 2], tiers[i]->name, v, (double)got[v], (double)want[v]);
        }
        tiny_free(t);
    }
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

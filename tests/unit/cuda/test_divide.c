/*
 * How a step is divided among a card's blocks: which decode steps are recorded, up to the largest
 * there can be; and in which parts contexts are read, by what they need and not by how many there
 * are. Answers are those of a plain computation, whatever the division.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/shape.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, SIZE = 16 };
#define CARD ((size_t)4 << 30)

#define MODEL(type, width, q, kv, dim, ...)                                                        \
    {                                                                                              \
        .dtype = (type), .layers = 1, .hidden = (width), .q_heads = (q), .kv_heads = (kv),         \
        .head_dim = (dim), .rotary = (dim) > 128 ? 100 : (dim), .ffn = 20, .vocab = VOCAB,         \
        __VA_ARGS__                                                                                \
    }

static const struct ek_slot_set g_greedy = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};

static void open_model(const struct tiny *t, struct ek_step_ceiling ceiling, uint32_t logit_rows,
                       uint32_t blocks, struct tiny_device *x)
{
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = ceiling, .logit_rows = logit_rows, .block_size = SIZE};
    const struct ek_open_params open = {.device = 0};

    g_fake.card(CARD, true);
    assert_int_equal(tiny_open_for(cuda_backend(), t, &open, &q, blocks, x), 0);
}

static void make_tokens(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

static void check_close(const struct tiny *t, const struct ek_result_seq *s, const int32_t *tokens,
                        uint32_t n)
{
    const double slack = t->p.dtype == EK_F32 ? 2e-4 : t->p.dtype == EK_F16 ? 2e-2 : 1.2e-1;
    double want[VOCAB];

    tiny_reference(t, tokens, n, want);
    assert_int_equal(s->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (!(fabs((double)s->top_logit[i] - want[s->top_id[i]]) < slack))
            fail_msg("slot %u, %u tokens: logit %d is %g instead of %g", s->slot, n, s->top_id[i],
                     (double)s->top_logit[i], want[s->top_id[i]]);
}

/* As many sequences as there may be, whatever bounds them, in steps that decode: the second one is
 * recorded and launched. */
static void test_most_rows_are_recorded(void **state)
{
    (void)state;
    enum { STEPS = 3, MOST = 600 };
    static const struct {
        uint32_t rows, seqs, logit_rows, run;
    } cases[] = {{512, 13, 24, 13}, {512, 13, 24, 5}, {64, 40, 24, 24},    {21, 40, 64, 21},
                 {64, 1, 1, 1},     {64, 16, 16, 16}, {700, 600, 600, 600}};
    const struct tiny_params p = MODEL(EK_F32, 24, 3, 3, 8, .act = EK_ACT_SILU);
    struct tiny *t = tiny_new(&p);
    int32_t tokens[MOST + STEPS];
    uint32_t table[MOST];

    make_tokens(tokens, MOST + STEPS, 7);
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        const struct ek_step_ceiling c = {cases[i].rows, cases[i].seqs, 1024, 8, 4096, 8};
        const uint32_t n = cases[i].run;
        struct tiny_device x;
        open_model(t, c, cases[i].logit_rows, n + 1, &x);
        for (uint32_t s = 0; s < n; s++) {
            struct ek_slot_set set = g_greedy;
            set.slot = s;
            set.top = n > 50 && s % 37 > 0 ? 0 : set.top; /* that one is not looked at */
            tiny_set(&x, &set);
            table[s] = 1 + s;
        }
        for (uint32_t at = 0; at < STEPS; at++) {
            for (uint32_t s = 0; s < n; s++)
                tiny_add(&x, s, tokens + s, at, 1, &table[s], true);
            assert_int_equal(tiny_run(&x, NULL), 0);
            for (uint32_t s = 0; s<n; s += n> 50 ? 37 : 1)
                check_close(t, &x.result->seq[s], tokens + s, at + 1);
        }
        if (!g_fake.real && g_fake.calls("cuGraphLaunch") != STEPS - 1)
            fail_msg("%u of %u, %u and %u rows: %u graphs launched", n, cases[i].rows,
                     cases[i].seqs, cases[i].logit_rows, g_fake.calls("cuGraphLaunch"));
        tiny_close(&x);
        assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
    }
    tiny_free(t);
}

/* Sizes rise, and the last is that of the largest step. */
static void test_sizes(void **state)
{
    (void)state;
    static const uint32_t most[] = {1, 2, 3, 8, 13, 200, 512, 513, 1024, 3072, 3073, 4096};

    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        struct ek_device *d = calloc(1, sizeof(*d));
        assert_non_null(d);
        d->plan.ceiling = (struct ek_step_ceiling){.rows = 8192, .seqs = most[i]};
        d->plan.logit_rows = most[i] + 7;
        uint32_t before = 0, b = 0;
        for (; cuda_bucket_rows(d, b) > 0; b++) {
            assert_true(b <= CUDA_BUCKETS && cuda_bucket_rows(d, b) > before);
            before = cuda_bucket_rows(d, b);
        }
        assert_int_equal(before, most[i]);
        free(d);
    }
}

/* Parts of a row's context: all of it, once, in order. The longest of all. */
static uint32_t check_items(const struct tiny_device *x, const uint32_t *context, uint32_t rows,
                            uint32_t *ret_items)
{
    const struct cu_step *s = (const struct cu_step *)(void *)x->d->flight[x->id & 1].up;
    const struct cu_item *item =
        (const struct cu_item *)(const void *)((const char *)s + s->item_at);
    uint32_t longest = 0, at = 0;

    for (uint32_t r = 0; r < rows; r++) {
        uint32_t seen = 0;
        for (uint32_t k = 0, parts = item[at].parts; k < parts; k++, at++) {
            assert_true(item[at].row == r && item[at].part == k && item[at].from == seen);
            seen = item[at].to;
            longest = seen - item[at].from > longest ? seen - item[at].from : longest;
        }
        assert_int_equal(seen, context[r]);
    }
    assert_int_equal(at, s->items);
    *ret_items = s->items;
    return longest;
}

/* One long context among many short ones is divided, though they fill the card; as many that are
 * alike are not. */
static void test_long_among_short(void **state)
{
    (void)state;
    enum { SEQS = 16, MOST = 640, BLOCKS = MOST / SIZE + 1 };
    static const struct {
        uint32_t first, others; /* contexts */
        uint32_t longest;       /* part, where three rows are attended to at once */
        uint32_t items;
    } cases[] = {{600, 20, 64, 25}, {20, 20, 20, 16}, {130, 130, 130, 16}};
    const struct tiny_params p = MODEL(EK_BF16, 40, 4, 2, 32, .act = EK_ACT_SILU);
    struct tiny *t = tiny_new(&p);
    const struct ek_step_ceiling c = {2048, SEQS, 4096, 8, 4096, 8};
    int32_t tokens[MOST + SEQS];
    uint32_t table[SEQS][BLOCKS], context[SEQS];

    make_tokens(tokens, MOST + SEQS, 3);
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            table[s][i] = 1 + i * SEQS + s;
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        struct tiny_device x;
        open_model(t, c, SEQS, 1 + SEQS * BLOCKS, &x);
        for (uint32_t s = 0; s < SEQS; s++) {
            struct ek_slot_set set = g_greedy;
            set.slot = s;
            tiny_set(&x, &set);
            context[s] = s == 0 ? cases[i].first : cases[i].others;
            if (s > 0 && cases[i].others > 100 && s % 4 == 0) /* as many rows as a step takes */
                assert_int_equal(tiny_run(&x, NULL), 0);
            tiny_add(&x, s, tokens + s, 0, context[s] - 1, table[s], false);
        }
        assert_int_equal(tiny_run(&x, NULL), 0);
        for (uint32_t s = 0; s < SEQS; s++)
            tiny_add(&x, s, tokens + s, context[s] - 1, 1, table[s], true);
        assert_int_equal(tiny_run(&x, NULL), 0);
        for (uint32_t s = 0; s < SEQS; s += 9)
            check_close(t, &x.result->seq[s], tokens + s, context[s]);
        if (!g_fake.real) {
            uint32_t items = 0, longest = check_items(&x, context, SEQS, &items);
            if (longest > cases[i].longest || items != cases[i].items)
                fail_msg("%u among %u: %u parts, the longest %u", cases[i].first, cases[i].others,
                         items, longest);
        }
        tiny_close(&x);
    }
    tiny_free(t);
}

/* Tiles and their parts: of each tile all of the context, once. How many; `ret_longest` positions.
 */
static uint32_t check_tiles(const struct tiny_device *x, uint32_t *ret_longest)
{
    const struct cu_step *s = (const struct cu_step *)(void *)x->d->flight[x->id & 1].up;
    const struct cu_tile *tile =
        (const struct cu_tile *)(const void *)((const char *)s + s->tile_at);
    uint32_t longest = 0;

    for (uint32_t at = 0; at < s->tiles;) {
        uint32_t seen = 0;
        for (uint32_t k = 0, parts = tile[at].parts; k < parts; k++, at++) {
            assert_true(tile[at].part == k && tile[at].from == seen);
            assert_int_equal(tile[at].from % CU_TILE_UNIT, 0);
            seen = tile[at].to;
            longest = seen - tile[at].from > longest ? seen - tile[at].from : longest;
            if (k + 1 == parts)
                assert_int_equal(seen, tile[at].position + tile[at].rows);
        }
    }
    *ret_longest = longest;
    return s->tiles;
}

/* Those of int8, of numbers up to 1. */
static void fill_scales(const struct tiny_device *x, const struct tiny *t, char *block,
                        uint64_t *random)
{
    for (uint32_t i = 0; t->g.kv_i8 && i < t->g.layers; i++) {
        const struct cuda_cells c = cuda_cells_of(&t->g, x->block_size, i);
        for (int v = 0; v < 2; v++) {
            char *plane = block + c.at + (v ? c.plane_bytes : 0);
            float *scale = (float *)(void *)(plane + c.scale_at);
            for (uint32_t k = 0; k < t->g.kv_heads * x->block_size; k++)
                scale[k] = (1.0f + tiny_float(random)) / 256.0f;
        }
    }
}

/* A cache of numbers of either sign up to 1. */
static void fill_cache(struct tiny_device *x, const struct tiny *t, uint32_t blocks)
{
    const size_t bytes = x->d->shape.block_bytes;
    char *block = malloc(bytes);
    uint64_t random = 21;

    assert_non_null(block);
    for (uint32_t b = 0; b < blocks; b++) {
        for (size_t i = 0; t->g.kv_f8 && i < bytes; i++)
            block[i] = (char)(tiny_next(&random) & 0xb7); /* E4M3 below 1 */
        for (size_t i = 0; t->g.kv_i8 && i < bytes; i++)
            block[i] = (char)tiny_next(&random);
        fill_scales(x, t, block, &random);
        for (size_t i = 0; !t->g.kv_f8 && !t->g.kv_i8 && i < bytes / 2; i++)
            cpu_store(t->p.dtype, block, i, tiny_float(&random));
        assert_int_equal(x->b->kv_write(x->d, EK_TIER_DEVICE, b, block), 0);
    }
    free(block);
}

/* A few new rows behind a long cached context, on a card that they would leave idle: in parts, as
 * if in one, with either kernel, windows that begin within a part, and parts that some or all rows
 * do not see. */
static void test_suffixes(void **state)
{
    (void)state;
    enum { MOST = 1700, BLOCKS = MOST / SIZE + 1 };
    static const struct {
        const char *wgmma;
        uint32_t cached, rows, parts;
        struct tiny_params p;
    } cases[] = {
        {"off", 1500, 9, 3, MODEL(EK_BF16, 40, 4, 2, 32, .act = EK_ACT_SILU)},
        {"on", 1500, 9, 3, MODEL(EK_BF16, 40, 4, 2, 64, .act = EK_ACT_SILU)},
        {"on", 1274, 16, 3, MODEL(EK_F16, 40, 7, 1, 128, .sinks = true)}, /* from 1280: 10 rows */
        {"off", 1274, 7, 3, MODEL(EK_F16, 40, 7, 1, 128, .sinks = true)},
        {"on", 1100, 20, 2, MODEL(EK_F16, 40, 2, 2, 256, .window = 700)},
        {"off", 1100, 20, 2, MODEL(EK_F16, 40, 2, 2, 256, .window = 700)},
        {"on", 1600, 3, 3, MODEL(EK_BF16, 40, 2, 1, 64, .window = 40, .softcap = 4.0f)},
        {"off", 1600, 3, 3, MODEL(EK_BF16, 40, 2, 1, 64, .window = 40, .softcap = 4.0f)},
        {"off", 1100, 5, 2, MODEL(EK_F16, 40, 4, 2, 64, .k_scale = 1.0f, .v_scale = 0.5f)},
        {"off", 1100, 5, 2, MODEL(EK_BF16, 40, 4, 2, 64, .kv_i8 = true)},
        {"off", 1100, 9, 2, MODEL(EK_F16, 40, 4, 2, 256, .kv_i8 = true, .window = 700)},
        {"off", 1100, 5, 2, MODEL(EK_BF16, 40, 4, 2, 512, .window = 700)},
        {"off", 1100, 20, 4, MODEL(EK_F16, 40, 4, 1, 272, .kv_i8 = true)}, /* two tiles of four */
        {"on", 1100, 70, 6, MODEL(EK_BF16, 40, 4, 1, 136, .act = EK_ACT_SILU)}, /* three tiles */
        {"on", 600, 9, 1, MODEL(EK_BF16, 40, 4, 2, 64, .act = EK_ACT_SILU)},
    };
    const struct ek_step_ceiling c = {128, 4, 1024, 8, 4096, 8};
    int32_t tokens[MOST];
    uint32_t table[BLOCKS];

    make_tokens(tokens, MOST, 13);
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = 1 + i * 29 % 131; /* no common factor: all different */
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        const uint32_t n = cases[i].cached, rows = cases[i].rows;
        const float slack = cases[i].p.dtype == EK_F16 ? 2e-3f : 2e-2f;
        struct tiny *t = tiny_new(&cases[i].p);
        float logit[3][VOCAB];
        struct tiny_device x;
        uint32_t longest = 0, tiles = 0;
        setenv("EVENKEEL_WGMMA", cases[i].wgmma, 1);
        open_model(t, c, 4, 133, &x);
        fill_cache(&x, t, 133);
        tiny_set(&x, &g_greedy);
        for (int turn = 0; turn < 3; turn++) {
            x.d->multiprocessors = turn == 0 ? 0 : 132;
            tiny_add(&x, 0, tokens, n, rows, table, true);
            assert_int_equal(tiny_run(&x, NULL), 0);
            const struct ek_result_seq *s = &x.result->seq[0];
            for (uint32_t k = 0; k < VOCAB; k++)
                logit[turn][s->top_id[k]] = s->top_logit[k];
            tiles = check_tiles(&x, &longest);
            if (tiles !=
                (turn == 0 ? (rows + x.d->tile_rows - 1) / x.d->tile_rows : cases[i].parts))
                fail_msg("case %zu, turn %d: %u tiles, the longest of %u", i, turn, tiles, longest);
        }
        for (uint32_t k = 0; k < VOCAB; k++)
            if (!(fabsf(logit[1][k] - logit[0][k]) < slack))
                fail_msg("case %zu: logit %u is %g in parts, %g in one", i, k, (double)logit[1][k],
                         (double)logit[0][k]);
        assert_memory_equal(logit[1], logit[2], sizeof(logit[1])); /* counters are as they were */
        tiny_close(&x);
        tiny_free(t);
    }
    setenv("EVENKEEL_WGMMA", "off", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_suffixes),
        cmocka_unit_test(test_most_rows_are_recorded),
        cmocka_unit_test(test_long_among_short),
    };
    return cmocka_run_group_tests_name("divide", tests, fake_setup, NULL);
}

/*
 * The race checker (tests/cuda/races.h): it reports each kernel that is wrong on purpose for what
 * is wrong with it and leaves its right twin alone, in whatever order threads and blocks take
 * turns. Then kernels of the backend run under it, twice in opposite orders, in models that
 * are just large enough for what they do; in none of them may it find anything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/races_run.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

static struct {
    int (*find)(const char *name, size_t *ret_bytes);
    void (*launch)(int index, const unsigned grid[3], unsigned threads, size_t dynamic_bytes,
                   const void *args);
    void (*expect)(bool expected);
    unsigned (*take)(enum races_kind kind);
    void (*repeat)(bool repeats);
} g_races;

static int races_setup(void **state)
{
    setenv("SHIM_RACES", "1", 1);
    (void)fake_setup(state);
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"shim_find", &g_races.find},
                  {"shim_launch", &g_races.launch},
                  {"races_expect", &g_races.expect},
                  {"races_take", &g_races.take},
                  {"races_repeat", &g_races.repeat}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *at = fake_symbol(g_fake.library, wanted[i].name);
        memcpy(wanted[i].to, &at, sizeof(at));
    }
    return 0;
}

static const char *const g_kinds[RACES_KINDS] = {
    [RACES_SHARED] = "shared", [RACES_GLOBAL] = "global",         [RACES_COPY] = "copy",
    [RACES_UNSET] = "unset",   [RACES_OUTSIDE] = "outside",       [RACES_UNALIGNED] = "unaligned",
    [RACES_LANES] = "lanes",   [RACES_UNREPEATED] = "unrepeated",
};

/* Where a wrong kernel is only wrong in one way, nothing else may be reported. */
static const struct {
    const char *name;
    enum races_kind kind; /* RACES_KINDS: none */
    unsigned blocks;
} g_wrong[] = {
    {"wrong_neighbour", RACES_SHARED, 1},    {"right_neighbour", RACES_KINDS, 2},
    {"wrong_lanes", RACES_SHARED, 1},        {"right_lanes", RACES_KINDS, 2},
    {"wrong_warp", RACES_SHARED, 1},         {"right_warp", RACES_KINDS, 1},
    {"wrong_last_release", RACES_GLOBAL, 3}, {"right_last", RACES_KINDS, 3},
    {"wrong_last_acquire", RACES_GLOBAL, 3}, {"wrong_last_count", RACES_GLOBAL, 3},
    {"wrong_one_fence", RACES_GLOBAL, 2},    {"right_one_fence", RACES_KINDS, 2},
    {"wrong_overlap", RACES_GLOBAL, 2},      {"right_overlap", RACES_KINDS, 2},
    {"wrong_read_early", RACES_COPY, 1},     {"right_stages", RACES_KINDS, 1},
    {"wrong_filled_early", RACES_SHARED, 1}, {"wrong_no_barrier", RACES_SHARED, 1},
    {"wrong_own_copy", RACES_COPY, 1},       {"right_own_copy", RACES_KINDS, 1},
    {"wrong_mixed", RACES_GLOBAL, 1},        {"right_mixed", RACES_KINDS, 2},
    {"wrong_unset", RACES_UNSET, 2},         {"right_unset", RACES_KINDS, 2},
    {"wrong_outside", RACES_OUTSIDE, 1},     {"right_outside", RACES_KINDS, 1},
    {"wrong_index", RACES_OUTSIDE, 1},       {"wrong_wide", RACES_UNALIGNED, 1},
    {"wrong_pair", RACES_UNALIGNED, 1},      {"wrong_matrix", RACES_UNALIGNED, 1},
    {"right_wide", RACES_KINDS, 1},          {"wrong_divergent", RACES_LANES, 1},
    {"wrong_unnamed", RACES_LANES, 1},       {"wrong_other", RACES_LANES, 1},
    {"wrong_left", RACES_LANES, 1},          {"right_divergent", RACES_KINDS, 1},
    {"wrong_order", RACES_UNREPEATED, 1},    {"right_order", RACES_KINDS, 1},
};

static void launch_wrong(const char *name, unsigned blocks, void *memory, size_t bytes)
{
    const struct {
        uint64_t at, counter;
        uint32_t n, pad;
    } args = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + bytes - 16, 64, 0};
    const unsigned grid[3] = {blocks, 1, 1};
    size_t size;
    const int kernel = g_races.find(name, &size);

    assert_true(kernel >= 0);
    assert_int_equal(size, sizeof(args));
    memset(memory, 0, bytes);
    g_races.launch(kernel, grid, 64, 2048, &args);
}

static void test_wrong(void **state)
{
    (void)state;
    enum { BYTES = 16384, TURNS = 4 };
    void *memory = aligned_alloc(4096, BYTES);

    g_races.repeat(true);
    for (size_t i = 0; i < sizeof(g_wrong) / sizeof(g_wrong[0]); i++)
        for (unsigned turn = 0; turn < TURNS; turn++) {
            const enum races_kind kind = g_wrong[i].kind;
            g_races.expect(kind != RACES_KINDS);
            launch_wrong(g_wrong[i].name, g_wrong[i].blocks, memory, BYTES);
            for (enum races_kind k = 0; k < RACES_KINDS; k++) {
                const unsigned count = g_races.take(k);
                if (k == kind && count == 0)
                    fail_msg("%s was not reported (%s)", g_wrong[i].name, g_kinds[k]);
                if (kind == RACES_KINDS && count > 0)
                    fail_msg("%s was reported (%s)", g_wrong[i].name, g_kinds[k]);
            }
        }
    g_races.expect(false);
    free(memory);
}

/* ---- the backend's kernels ---- */

enum { VOCAB = 20, BLOCK = 16, MOST_STEPS = 6, OTHERS = 9 };

#define MODEL(type, dim, form, inner, ...)                                                         \
    {                                                                                              \
        .dtype = (type), .layers = 1, .hidden = 40, .q_heads = 2, .kv_heads = 1,                   \
        .head_dim = (dim), .rotary = (dim) > 128 ? 128 : (dim), .ffn = (inner), .vocab = VOCAB,    \
        .kept = (form), __VA_ARGS__                                                                \
    }
#define NARROW  .k_scale = 0.02f, .v_scale = 0.25f
#define EXPERTS .experts = 3, .top = 2
/* Every kernel of one type of numbers: attention over a context that is cut, experts, few rows;
 * products in parts of k, in tiles of 64 and of 128 rows, and by way of panels. */
#define MODELS(type, wide, first, second, third)                                                   \
    {MODEL(type, 64, EK_F32, 33, EXPERTS), .chunk = {first, second, third}},                       \
        {MODEL(type, 64, EK_I8, 40, NARROW, EXPERTS), .chunk = {first, second, third}},            \
        {MODEL(type, 128, EK_F8_E4M3, 40, .window = 50, EXPERTS),                                  \
         .chunk = {first, second, third}},                                                         \
        {MODEL(type, 128, EK_I4, 40, NARROW, .group = 32, EXPERTS),                                \
         .chunk = {first, second, third}},                                                         \
        {MODEL(type, 256, EK_F32, 36, .softcap = 4.0f, .tied = true),                              \
         .chunk = {first, second, third}},                                                         \
        {MODEL(type, 256, EK_F32, 36, NARROW, .bias = true), .chunk = {first, second, third}},     \
        {MODEL(type, 64, EK_F32, 36, .kv_i8 = true), .chunk = {first, second, third}},             \
        {MODEL(type, 128, EK_F32, 36, .kv_i8 = true), .chunk = {first, second}},                   \
        {MODEL(type, 256, EK_F32, 36, .kv_i8 = true, .window = 50), .chunk = {first, second}},     \
        {MODEL(type, 512, EK_F32, 36), .chunk = {first, second}},                                  \
        {MODEL(type, 512, EK_F32, 36, NARROW), .chunk = {first}},                                  \
        {MODEL(type, 512, EK_F32, 36, .kv_i8 = true), .chunk = {first}},                           \
        {MODEL(type, 32, EK_I8, wide, .group = 64), .chunk = {33, 65}},                            \
        {MODEL(type, 32, EK_F8_E4M3, wide, .bias = true), .chunk = {33, 65}},                      \
        {MODEL(type, 32, EK_I4, 2 * wide, .group = 128), .chunk = {33, 65}},                       \
        {MODEL(type, 32, EK_I8, wide, .tied = true), .chunk = {33, 65}, .rounds = true},           \
        {MODEL(type, 32, EK_F8_E4M3, wide), .chunk = {33, 65}, .rounds = true},                    \
    {                                                                                              \
        MODEL(type, 32, EK_F8_E4M3, wide, .group = 128), .chunk = {33}, .rounds = true             \
    }

static const struct races_case {
    struct tiny_params p;
    uint32_t chunk[4]; /* rows of each step of a prompt, then 0 */
    bool rounds;       /* products round their inputs */
    bool samples;      /* all that can be asked of a sampler, else one token at the end */
    uint32_t ranks;
} g_cases[] = {
    {MODEL(EK_F32, 8, EK_F32, 33, EXPERTS, .normalise = true), .chunk = {17, 30}, .samples = true},
    {MODEL(EK_F32, 20, EK_I4, 40, NARROW, .qk_norm = true, .above = 20, .prompt = 33),
     .chunk = {17, 30}},
    MODELS(EK_BF16, 1030, 33, 66, 34),
    {.p = {.dtype = EK_BF16,
           .layers = 1,
           .hidden = 64,
           .q_heads = 4,
           .kv_heads = 2,
           .head_dim = 64,
           .rotary = 64,
           .ffn = 96,
           .vocab = VOCAB,
           .kept = EK_F32,
           .qk_norm = true},
     .chunk = {20},
     .ranks = 2},
};

/* Products round their inputs where that is said; ranks share a norm of all heads of Q. */
static void change(struct tiny *t, const struct races_case *c)
{
    for (uint32_t i = 0; c->rounds && i < t->g.weight_count; i++)
        t->weight[i].rounds_input = t->weight[i].dtype == EK_I8 || t->weight[i].dtype == EK_F8_E4M3;
    for (uint32_t i = 0; c->ranks > 1 && i < t->g.op_count; i++)
        if (t->op[i].kind == EK_OP_NORM && t->op[i].dst == 2) {
            t->op[i].u.norm.heads = 1;
            t->op[i].u.norm.group = t->p.q_heads * t->p.head_dim;
            t->op[i].weight = EK_NO_WEIGHT;
        }
}

static int open_case(const struct tiny *t, const struct races_case *c, struct tiny_device *x)
{
    const struct ek_open_params one = {.device = 0};
    const struct ek_open_params many = {.ranks = c->ranks, .each = cuda_backend()};
    int r;

    g_fake.card((size_t)1 << 30, true);
    g_fake.cards(c->ranks > 1 ? (int)c->ranks : 1);
    g_fake.capability(c->rounds ? 89 : 90); /* where inputs of E4M3 have tiles of 128 rows */
    setenv("EVENKEEL_FUSED_ROWS", "65", 1);
    r = c->ranks > 1 ? tiny_open_on(ek_ranks_backend(many.each), t, &many, BLOCK, 64, x)
                     : tiny_open_on(cuda_backend(), t, &one, BLOCK, 64, x);
    unsetenv("EVENKEEL_FUSED_ROWS");
    return r;
}

/* Two rows of a step's only sequence scored, its last hidden state wanted. */
static void add_wishes(struct tiny_device *x)
{
    struct ek_step_seq *q = ek_step_seqs(x->step);

    q->hidden = true;
    q->scores = 2;
    q->score_row = 1;
    q->target = x->step->words;
    ek_step_words(x->step)[x->step->words++] = 3;
    ek_step_words(x->step)[x->step->words++] = 5;
    x->step->logit_rows += 2;
}

/* A prompt in chunks, some of it scored; then a row of it beside others, twice as many as a tile of
 * products has; then some rows, recorded. */
static void run_case(struct tiny_device *x, const struct races_case *c)
{
    uint32_t table[32], other[OTHERS], at = 0;
    int32_t tokens[512];
    uint64_t random = 3;

    for (uint32_t i = 0; i < 512; i++)
        tokens[i] = (int32_t)(tiny_next(&random) % VOCAB);
    for (uint32_t i = 0; i < 32; i++)
        table[i] = 1 + i;
    for (uint32_t s = 0; s <= OTHERS; s++) {
        const struct ek_slot_set set = {.slot = s,
                                        .sampling.top_p = s % 2 ? 0.9f : 1.0f,
                                        .top = 3,
                                        .sampling.temperature = s > 2 ? 0.7f : 0.0f,
                                        .sampling.top_k = s > 6 ? 5 : 0,
                                        .sampling.typical_p = s > 7 ? 0.8f : 0.0f,
                                        .sampling.seed = s};
        tiny_set(x, &set);
    }
    for (uint32_t i = 0; c->chunk[i] > 0; at += c->chunk[i++]) {
        tiny_add(x, 0, tokens, at, c->chunk[i], table, c->samples);
        if (c->samples)
            add_wishes(x);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    for (uint32_t s = 0; s < OTHERS; s++)
        other[s] = 40 + s;
    tiny_add(x, 0, tokens, at++, 1, table, true);
    for (uint32_t s = 0; s < OTHERS; s++)
        tiny_add(x, s + 1, tokens, 0, 1, &other[s], c->samples);
    assert_int_equal(tiny_run(x, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        tiny_add(x, 0, tokens, at++, 1, table, true);
        tiny_add(x, 1, tokens, 1 + i, 1, &other[0], true);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
}

static void test_backend(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(g_cases) / sizeof(g_cases[0]); i++) {
        struct tiny *t = tiny_new(&g_cases[i].p);
        struct tiny_device x;

        g_races.repeat(true);
        change(t, &g_cases[i]);
        assert_int_equal(open_case(t, &g_cases[i], &x), 0);
        run_case(&x, &g_cases[i]);
        tiny_close(&x);
        tiny_free(t);
        for (enum races_kind k = 0; k < RACES_KINDS; k++)
            if (g_races.take(k) > 0)
                fail_msg("case %zu: %s", i, g_kinds[k]);
    }
    g_races.repeat(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_backend),
    };
    return cmocka_run_group_tests_name("races", tests, races_setup, NULL);
}

/*
 * Layers that differ in their heads of keys and values, and layers that read what others wrote, as
 * those of Gemma 4: on a card against the CPU's reference tier, in whatever steps the rows come,
 * alone and beside others; contexts in parts; blocks that are shared and copied; what is planned.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/shape.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 20, HIDDEN = 40, TOKENS = 61, SIZE = 8, WINDOW = 21, CARD = 1 << 30 };

/* Of layers with a window and of those without: heads of keys, elements of a head. */
struct kinds {
    enum ek_dtype dtype;
    uint32_t q_heads, kv[2], dim[2];
    bool kv_i8, kv_f8;
};

static const struct kinds g_kinds[] = {
    {EK_F32, 4, {4, 1}, {12, 20}, .kv_f8 = false},
    {EK_F32, 4, {4, 1}, {12, 20}, .kv_i8 = true},
    {EK_BF16, 8, {2, 1}, {64, 512}, .kv_f8 = false},
    {EK_F16, 4, {4, 2}, {256, 512}, .kv_f8 = false},
    {EK_F16, 4, {2, 4}, {32, 80}, .kv_f8 = false},  /* neither is wide */
    {EK_BF16, 4, {2, 1}, {16, 20}, .kv_f8 = false}, /* the plain kernel, for both */
    {EK_BF16, 4, {2, 1}, {128, 272}, .kv_i8 = true},
    {EK_F16, 4, {2, 1}, {64, 512}, .kv_f8 = true},
};
#define KINDS (sizeof(g_kinds) / sizeof(g_kinds[0]))

/* Values of the graph; [2] of those with and without a window. */
enum { X, NORMED, QKV, Q = QKV + 2, HEADS = Q + 2, SIDE = HEADS + 2, PICKED, VALUES };

static void add_rope(struct tiny *t, uint16_t value, uint32_t heads, uint32_t dim)
{
    struct ek_op *op = tiny_op(t, EK_OP_ROPE, value, value, EK_NO_WEIGHT);

    op->u.rope.heads = heads;
    op->u.rope.head_dim = dim;
    op->u.rope.rotary_dim = 8;
}

/* One that `reads` attends to the cells of the layer of its kind. */
static void add_layer(struct tiny *t, const struct kinds *k, uint32_t kind, bool reads)
{
    const uint32_t dim = k->dim[kind], kv = k->kv[kind];
    const uint16_t from = (uint16_t)((reads ? Q : QKV) + kind), heads = (uint16_t)(HEADS + kind);

    tiny_norm(t, NORMED, X, HIDDEN, 1);
    tiny_linear(t, from, NORMED);
    add_rope(t, from, k->q_heads + (reads ? 0 : kv), dim);
    struct ek_op *op = tiny_op(t, EK_OP_ATTENTION, heads, from, EK_NO_WEIGHT);
    op->layer = kind;
    op->u.attention.q_heads = k->q_heads;
    op->u.attention.kv_heads = kv;
    op->u.attention.head_dim = dim;
    op->u.attention.scale = 1.0f / sqrtf((float)dim);
    op->u.attention.window = kind == 0 ? WINDOW : 0;
    op->u.attention.reads = reads;
    tiny_linear(t, SIDE, heads);
    tiny_op(t, EK_OP_ADD, X, SIDE, EK_NO_WEIGHT)->u.add.scale = 1.0f;
}

static struct tiny *mixed(const struct kinds *k)
{
    const uint32_t q[2] = {k->q_heads * k->dim[0], k->q_heads * k->dim[1]};
    const uint32_t width[VALUES] = {HIDDEN,
                                    HIDDEN,
                                    q[0] + 2 * k->kv[0] * k->dim[0],
                                    q[1] + 2 * k->kv[1] * k->dim[1],
                                    q[0],
                                    q[1],
                                    q[0],
                                    q[1],
                                    HIDDEN,
                                    HIDDEN};
    struct tiny *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    t->p.dtype = k->dtype;
    t->room = 2u << 20;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    t->random = 11;
    for (uint32_t i = 0; i < 4; i++)
        t->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / 8.0f);
    t->rope = (struct ek_rope){.inv_freq = t->inv_freq, .count = 4, .factor = 1.0f};
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = t->width,
                             .value_count = VALUES,
                             .ropes = &t->rope,
                             .rope_count = 1,
                             .layers = 2,
                             .kv_heads = k->kv[0] > k->kv[1] ? k->kv[0] : k->kv[1],
                             .head_dim = k->dim[1],
                             .kv_mixed = true,
                             .hidden = HIDDEN,
                             .vocab = VOCAB,
                             .max_position = 4096,
                             .dtype = k->dtype,
                             .kv_i8 = k->kv_i8};
    memcpy(t->width, width, sizeof(width));
    tiny_op(t, EK_OP_EMBED, X, X, tiny_weight(t, VOCAB, HIDDEN, 1.0f, 0.0f))->u.embed.scale = 1.0f;
    for (uint32_t i = 0; i < 4; i++)
        add_layer(t, k, i % 2, i >= 2);
    (void)tiny_op(t, EK_OP_PICK, PICKED, X, EK_NO_WEIGHT);
    tiny_op(t, EK_OP_LOGITS, PICKED, PICKED, tiny_weight(t, VOCAB, HIDDEN, 0.5f, 0.0f))
        ->u.logits.scale = 1.0f;
    assert_true(t->floats < t->room && t->g.op_count <= TINY_OPS);
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

static int open_card(struct tiny *t, const struct kinds *k, uint32_t block_size, uint32_t blocks,
                     struct tiny_device *x)
{
    const struct ek_open_params open = {.device = 0};

    t->g.kv_f8 = k->kv_f8; /* the CPU has no such cache */
    g_fake.card(CARD, true);
    return tiny_open_on(cuda_backend(), t, &open, block_size, blocks, x);
}

static void make_tokens(uint64_t seed, int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

static void begin(struct tiny_device *x, uint32_t slot)
{
    const struct ek_slot_set set = {.slot = slot, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};

    tiny_set(x, &set);
}

/* Rows [from, to) of a text in slot 1, in steps of `chunk`, the last one sampled; another text
 * beside it in slot 0 if that is wanted. */
static struct ek_result_seq walk(struct tiny_device *x, const int32_t *tokens, uint32_t from,
                                 uint32_t to, uint32_t chunk, const uint32_t *table, bool company)
{
    static const uint32_t beside[] = {1, 2, 3, 4, 21, 22, 23, 24};
    int32_t other[TOKENS];

    make_tokens(99, other, TOKENS);
    begin(x, 1);
    if (company)
        begin(x, 0);
    for (uint32_t at = from, rows; at < to; at += rows) {
        rows = to - at < chunk ? to - at : chunk;
        if (company)
            tiny_add(x, 0, other, at, rows, beside, false);
        tiny_add(x, 1, tokens, at, rows, table, at + rows == to);
        assert_int_equal(tiny_run(x, NULL), 0);
    }
    return x->result->seq[company ? 1 : 0];
}

static void logits_of(const struct ek_result_seq *r, float *logits)
{
    assert_int_equal(r->top, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[r->top_id[i]] = r->top_logit[i];
}

static float worst_of(const float *is, const float *want)
{
    float worst = 0, most = 0;

    for (uint32_t v = 0; v < VOCAB; v++) {
        worst = fmaxf(worst, fabsf(is[v] - want[v]));
        most = fmaxf(most, fabsf(want[v]));
    }
    return worst / most;
}

static float slack_of(const struct kinds *k)
{
    const float slack = k->dtype == EK_F32 ? 2e-5f : k->dtype == EK_F16 ? 3e-3f : 2e-2f;

    /* a number half way between two of 8 bits may become either; E4M3 rounds to a sixteenth */
    return k->kv_f8 ? slack + 5e-2f : k->kv_i8 ? slack + 1e-2f : slack;
}

/* What the CPU says of a text. */
static void wanted(const struct tiny *t, const int32_t *tokens, uint32_t count, uint32_t blocks,
                   const uint32_t *table, float *want)
{
    struct tiny_device x;

    assert_int_equal(tiny_open(t, "ref", 1, SIZE, blocks, &x), 0);
    const struct ek_result_seq r = walk(&x, tokens, 0, count, 512, table, false);
    logits_of(&r, want);
    tiny_close(&x);
}

static void test_text(void **state)
{
    static const uint32_t table[] = {5, 9, 7, 8, 11, 14, 12, 13};
    static const struct {
        uint32_t chunk;
        bool company;
    } ways[] = {{TOKENS, false}, {TOKENS - 1, false}, {7, true}, {1, true}};
    int32_t tokens[TOKENS];

    (void)state;
    make_tokens(5, tokens, TOKENS);
    for (size_t i = share_next(0); i < KINDS; i = share_next(i + 1)) {
        struct tiny *t = mixed(&g_kinds[i]);
        float want[VOCAB], is[VOCAB], most = 0;
        struct tiny_device x;
        wanted(t, tokens, TOKENS, 40, table, want);
        assert_int_equal(open_card(t, &g_kinds[i], SIZE, 40, &x), 0);
        for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++) {
            const struct ek_result_seq r =
                walk(&x, tokens, 0, TOKENS, ways[k].chunk, table, ways[k].company);
            logits_of(&r, is);
            const float worst = worst_of(is, want);
            most = fmaxf(most, worst);
            if (!(worst < slack_of(&g_kinds[i])))
                fail_msg("kinds %zu in steps of %u: off by %g", i, ways[k].chunk, (double)worst);
        }
        print_message("kinds %zu: off by at most %.1e\n", i, (double)most);
        tiny_close(&x);
        assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
        tiny_free(t);
    }
}

/* A cache of numbers of either sign up to 1. */
static void fill_cache(struct tiny_device *x, const struct kinds *k, uint32_t blocks)
{
    const size_t bytes = x->d->shape.block_bytes;
    char *block = malloc(bytes);
    uint64_t random = 21;

    assert_non_null(block);
    for (uint32_t b = 0; b < blocks; b++) {
        for (size_t i = 0; k->kv_i8 && i < bytes; i++)
            block[i] = (char)tiny_next(&random);
        for (size_t i = 0; !k->kv_i8 && i < bytes / 2; i++)
            cpu_store(k->dtype, block, i, tiny_float(&random));
        for (uint32_t i = 0; k->kv_i8 && i < 4; i++) {
            const struct cuda_cells c = cuda_cells_of(x->d->graph, SIZE, i / 2);
            float *scale = (float *)(void *)(block + c.at + i % 2 * c.plane_bytes + c.scale_at);
            for (uint32_t n = 0; n < k->kv[i / 2] * SIZE; n++)
                scale[n] = (1.0f + tiny_float(&random)) / 256.0f;
        }
        assert_int_equal(x->b->kv_write(x->d, EK_TIER_DEVICE, b, block), 0);
    }
    free(block);
}

/* A long cached context, in one piece and in parts, as many as the card's blocks let there be: of
 * the row of a decode and of the few new rows of a prompt. */
static void test_parts(void **state)
{
    enum { MOST = 1100, BLOCKS = MOST / SIZE + 1 };
    static const struct {
        uint32_t kinds, rows;
    } cases[] = {{2, 1}, {2, 9}, {6, 1}, {6, 20}};
    int32_t tokens[MOST];
    uint32_t table[BLOCKS];

    (void)state;
    make_tokens(17, tokens, MOST);
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = 1 + i * 29 % 149; /* no common factor: all different */
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        const struct kinds *z = &g_kinds[cases[i].kinds];
        struct tiny *t = mixed(z);
        float is[3][VOCAB];
        struct tiny_device x;
        assert_int_equal(open_card(t, z, SIZE, 151, &x), 0);
        fill_cache(&x, z, 151);
        for (int turn = 0; turn < 3; turn++) {
            x.d->wide_blocks = x.d->row_blocks = turn == 0 ? 1 : 264;
            x.d->multiprocessors = turn == 0 ? 0 : 132;
            const struct ek_result_seq r =
                walk(&x, tokens, MOST - cases[i].rows, MOST, MOST, table, false);
            logits_of(&r, is[turn]);
            const struct cu_step *s = (const struct cu_step *)(void *)x.d->flight[x.id & 1].up;
            const uint32_t parts = cases[i].rows == 1 ? s->items : s->tiles;
            const uint32_t whole = (cases[i].rows + x.d->tile_rows - 1) / x.d->tile_rows;
            if ((turn == 0) != (parts == whole))
                fail_msg("case %zu, turn %d: %u parts", i, turn, parts);
            if (!(worst_of(is[turn], is[0]) < slack_of(z)))
                fail_msg("case %zu: off by %g in parts", i, (double)worst_of(is[turn], is[0]));
        }
        assert_memory_equal(is[1], is[2], sizeof(is[1])); /* counters are as they were */
        tiny_close(&x);
        tiny_free(t);
    }
}

static void copy(struct tiny_device *x, uint32_t from, uint8_t from_tier, uint32_t to,
                 uint8_t to_tier)
{
    ek_step_copies(x->step)[x->step->copies++] =
        (struct ek_block_copy){from, to, from_tier, to_tier, {0}};
}

/* A text goes on, bit for bit, upon blocks that were copied, went to the host and came back, or
 * were in a file: numbers and, of int8, their scales. */
static void test_blocks(void **state)
{
    enum { FIRST = 16, LAST = 29 };
    static const uint32_t own[] = {5, 6, 7, 8}, copied[] = {11, 12, 13, 14}, one[] = {5};
    static const uint32_t kinds[] = {2, 6};
    int32_t tokens[LAST];

    (void)state;
    make_tokens(5, tokens, LAST);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct tiny *t = mixed(&g_kinds[kinds[i]]);
        struct tiny_device x;
        assert_int_equal(open_card(t, &g_kinds[kinds[i]], SIZE, 20, &x), 0);
        (void)walk(&x, tokens, 0, FIRST, FIRST, own, false);
        const struct ek_result_seq want = walk(&x, tokens, FIRST, LAST, 9, own, false);
        assert_int_equal(want.top, VOCAB);
        const size_t bytes = x.b->kv_bytes(x.d, EK_TIER_DEVICE);
        char *content = malloc(bytes);
        assert_non_null(content);
        copy(&x, 5, EK_TIER_DEVICE, 2, EK_TIER_HOST);
        copy(&x, 2, EK_TIER_HOST, 11, EK_TIER_DEVICE);
        (void)walk(&x, tokens, 0, 1, 1, one, false); /* the copies come before it */
        assert_int_equal(x.b->kv_read(x.d, EK_TIER_DEVICE, 6, content), 0);
        assert_int_equal(x.b->kv_write(x.d, EK_TIER_DEVICE, 12, content), 0);
        const struct ek_result_seq r = walk(&x, tokens, FIRST, LAST, 9, copied, false);
        assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));
        free(content);
        tiny_close(&x);
        tiny_free(t);
    }
}

/* A block of the cache has each layer's own keys and values, with their scales, and no more. */
static void test_planned(void **state)
{
    static const struct {
        bool kv_i8, kv_f8;
        uint32_t token; /* bytes of one */
    } cases[] = {{false, false, 2 * 2 * (4 * 256 + 2 * 512)},
                 {false, true, 2 * (4 * 256 + 2 * 512)},
                 {true, false, 2 * (4 * (256 + 4) + 2 * (512 + 4))}};
    const struct ek_open_params open = {.device = 0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny *t = mixed(&g_kinds[3]);
        const struct ek_plan_request q = {.graph = &t->g,
                                          .ceiling = {512, 16, 1024, 8, 4096, 8},
                                          .logit_rows = 24,
                                          .block_size = 32};
        struct ek_fault fault = {.msg = ""};
        struct ek_plan plan;
        t->g.kv_i8 = cases[i].kv_i8;
        t->g.kv_f8 = cases[i].kv_f8;
        g_fake.card(CARD, true);
        if (cuda_backend()->plan(&open, &q, &plan, &fault) < 0)
            fail_msg("%s", fault.msg);
        assert_int_equal(plan.block_bytes, 32 * cases[i].token);
        tiny_free(t);
    }
}

static void test_refused(void **state)
{
    const struct kinds huge = {EK_BF16, 2, {2, 1}, {64, 520}, .kv_f8 = false};
    const struct ek_open_params open = {.device = 0};
    struct ek_fault fault = {.msg = ""};
    struct tiny *t = mixed(&huge);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8}, .logit_rows = 24, .block_size = 8};
    struct ek_plan plan;

    (void)state;
    assert_int_equal(cuda_backend()->plan(&open, &q, &plan, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "more than 512 elements"));
    assert_non_null(strstr(fault.msg, "--device cpu"));
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_parts), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_planned), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("mixed", tests, fake_setup, NULL);
}

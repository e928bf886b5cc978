/*
 * Latent attention on a card: sizes that are no multiples of anything and those of published models
 * against the CPU's reference tier, in whatever steps the rows come, alone and beside others;
 * contexts that are read in parts; blocks that are shared, copied and of any size; what is planned;
 * which graphs are refused.
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
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 20, HIDDEN = 24, TOKENS = 29, LAYERS = 2, SIZE = 8, CARD = 1 << 30 };

struct sizes {
    enum ek_dtype dtype;
    uint32_t heads, nope, rope, rank, value;
    bool neighbours;
    float softcap;
    uint32_t window, groups; /* of heads, 0 = the plain kernel attends */
};

static const struct sizes g_sizes[] = {
    {EK_F32, 3, 5, 4, 7, 3, true, 0, 0, 0},
    {EK_F32, 2, 6, 64, 512, 8, false, 0, 0, 0},     /* the widest; a block of the plain kernel */
    {EK_BF16, 4, 16, 8, 24, 8, true, 0, 0, 1},      /* 8 rows in a tile */
    {EK_BF16, 3, 5, 8, 24, 10, true, 0, 0, 1},      /* queries by the plain kernel */
    {EK_BF16, 3, 8, 4, 20, 10, true, 0, 0, 0},      /* and attention */
    {EK_BF16, 2, 8, 2, 15, 6, false, 0, 0, 0},      /* all by it, in 16 bits */
    {EK_BF16, 48, 8, 8, 40, 8, false, 3.0f, 11, 2}, /* 24 heads in a block; only some positions */
    {EK_F16, 33, 8, 8, 16, 8, false, 0, 0, 3},      /* 11 heads in each of three */
    {EK_F16, 16, 128, 64, 512, 128, true, 0, 0, 1}, /* DeepSeek-V2-Lite's */
};
#define SIZES (sizeof(g_sizes) / sizeof(g_sizes[0]))

/* Values of the graph. */
enum { X, NORMED, Q, KEYS, WIDE, LATENTS, HEADS, SIDE, PICKED, VALUES };

static void add_heads(struct tiny *t, uint16_t dst, uint16_t src, uint32_t heads, uint32_t n,
                      uint32_t k, uint32_t rest)
{
    const uint32_t first = t->g.weight_count;

    for (uint32_t h = 0; h < heads; h++)
        (void)tiny_weight(t, n, k, 1.7f / sqrtf((float)k), 0.0f);
    struct ek_op *op = tiny_op(t, EK_OP_HEADS, dst, src, first);
    op->u.heads.count = heads;
    op->u.heads.rest = rest;
}

static void add_rope(struct tiny *t, const struct sizes *z, uint16_t value, uint32_t first,
                     uint32_t heads, uint32_t head_dim)
{
    struct ek_op *op = tiny_op(t, EK_OP_ROPE, value, value, EK_NO_WEIGHT);

    op->u.rope.first_col = first;
    op->u.rope.heads = heads;
    op->u.rope.head_dim = head_dim;
    op->u.rope.rotary_dim = z->rope;
    op->u.rope.neighbours = z->neighbours;
}

static void add_layer(struct tiny *t, const struct sizes *z, uint32_t layer)
{
    const uint32_t key = z->rank + z->rope;

    tiny_norm(t, NORMED, X, HIDDEN, 1);
    tiny_linear(t, Q, NORMED);
    add_rope(t, z, Q, z->nope, z->heads, z->nope + z->rope);
    tiny_linear(t, KEYS, NORMED);
    tiny_norm(t, KEYS, KEYS, z->rank, 1);
    add_rope(t, z, KEYS, z->rank, 1, z->rope);
    add_heads(t, WIDE, Q, z->heads, z->rank, z->nope, z->rope);
    struct ek_op *op = tiny_op(t, EK_OP_ATTENTION, LATENTS, WIDE, EK_NO_WEIGHT);
    op->layer = layer;
    op->u.attention.q_heads = z->heads;
    op->u.attention.kv_heads = 1;
    op->u.attention.head_dim = key;
    op->u.attention.value_dim = z->rank;
    op->u.attention.keys = KEYS;
    op->u.attention.scale = 1.0f / sqrtf((float)key);
    op->u.attention.softcap = z->softcap;
    op->u.attention.window = z->window;
    add_heads(t, HEADS, LATENTS, z->heads, z->value, z->rank, 0);
    tiny_linear(t, SIDE, HEADS);
    tiny_op(t, EK_OP_ADD, X, SIDE, EK_NO_WEIGHT)->u.add.scale = 1.0f;
}

static struct tiny *latent(const struct sizes *z, uint32_t layers)
{
    const uint32_t key = z->rank + z->rope;
    const uint32_t width[VALUES] = {HIDDEN,
                                    HIDDEN,
                                    z->heads * (z->nope + z->rope),
                                    key,
                                    z->heads * key,
                                    z->heads * z->rank,
                                    z->heads * z->value,
                                    HIDDEN,
                                    HIDDEN};
    struct tiny *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    t->p.dtype = z->dtype;
    t->room = 5u << 20;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    t->random = 11;
    memcpy(t->width, width, sizeof(width));
    for (uint32_t i = 0; i < z->rope / 2; i++)
        t->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)z->rope);
    t->rope = (struct ek_rope){.inv_freq = t->inv_freq, .count = z->rope / 2, .factor = 1.0f};
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = t->width,
                             .value_count = VALUES,
                             .ropes = &t->rope,
                             .rope_count = 1,
                             .layers = layers,
                             .kv_heads = 1,
                             .head_dim = key,
                             .value_dim = z->rank,
                             .hidden = HIDDEN,
                             .vocab = VOCAB,
                             .max_position = 4096,
                             .dtype = z->dtype};
    tiny_op(t, EK_OP_EMBED, X, X, tiny_weight(t, VOCAB, HIDDEN, 1.0f, 0.0f))->u.embed.scale = 1.0f;
    for (uint32_t i = 0; i < layers; i++)
        add_layer(t, z, i);
    (void)tiny_op(t, EK_OP_PICK, PICKED, X, EK_NO_WEIGHT);
    tiny_op(t, EK_OP_LOGITS, PICKED, PICKED, tiny_weight(t, VOCAB, HIDDEN, 0.5f, 0.0f))
        ->u.logits.scale = 1.0f;
    assert_true(t->floats < t->room && t->g.op_count <= TINY_OPS &&
                t->g.weight_count <= TINY_WEIGHTS);
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

/* Weights of many heads are those of one layer. */
static uint32_t layers_of(const struct sizes *z)
{
    return z->heads > 4 ? 1 : LAYERS;
}

static int open_card(const struct tiny *t, uint32_t block_size, uint32_t blocks,
                     struct tiny_device *x)
{
    const struct ek_open_params open = {.device = 0};

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
    static const uint32_t beside[] = {1, 2, 3, 4};
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

static float slack_of(enum ek_dtype dtype)
{
    return dtype == EK_F32 ? 2e-5f : dtype == EK_F16 ? 3e-3f : 2e-2f;
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
    static const uint32_t chunks[] = {TOKENS, 1, 2, 7, 13}, table[] = {5, 9, 7, 8};
    int32_t tokens[TOKENS];

    (void)state;
    make_tokens(5, tokens, TOKENS);
    for (size_t i = share_next(0); i < SIZES; i = share_next(i + 1)) {
        struct tiny *t = latent(&g_sizes[i], layers_of(&g_sizes[i]));
        float want[VOCAB], is[VOCAB], most = 0;
        struct tiny_device x;
        wanted(t, tokens, TOKENS, 20, table, want);
        assert_int_equal(open_card(t, SIZE, 20, &x), 0);
        assert_int_equal(x.d->shape.latent_groups, g_sizes[i].groups);
        for (size_t k = 0; k < 2 * sizeof(chunks) / sizeof(chunks[0]); k++) {
            if (g_sizes[i].heads > 4 && k > 0 && k < 7) /* simulated cards are slow */
                continue;
            const struct ek_result_seq r = walk(&x, tokens, 0, TOKENS, chunks[k / 2], table, k % 2);
            logits_of(&r, is);
            const float worst = worst_of(is, want);
            most = fmaxf(most, worst);
            if (!(worst < slack_of(t->p.dtype)))
                fail_msg("sizes %zu in steps of %u: off by %g", i, chunks[k / 2], (double)worst);
        }
        print_message("sizes %zu: off by at most %.1e\n", i, (double)most);
        tiny_close(&x);
        assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
        tiny_free(t);
    }
}

/* Tiles of the last step, of each all of its context, once, in order. */
static uint32_t tiles_of(const struct tiny_device *x)
{
    const struct cu_step *s = (const struct cu_step *)(void *)x->d->flight[x->id & 1].up;
    const struct cu_tile *tile =
        (const struct cu_tile *)(const void *)((const char *)s + s->tile_at);

    for (uint32_t at = 0; at < s->tiles;) {
        uint32_t seen = 0;
        for (uint32_t k = 0, parts = tile[at].parts; k < parts; k++, at++) {
            assert_true(tile[at].part == k && tile[at].from == seen);
            seen = tile[at].to;
            if (k + 1 == parts)
                assert_int_equal(seen, tile[at].position + tile[at].rows);
        }
    }
    assert_int_equal(s->items, 0);
    return s->tiles;
}

/* A long context, in one piece and in parts, as many as the card's blocks let there be: of the row
 * of a decode and of the few new rows of a prompt. */
static void test_parts(void **state)
{
    enum { MOST = 710, BLOCKS = MOST / SIZE + 1 };
    static const struct {
        uint32_t size, rows, parts; /* which of the sizes */
    } cases[] = {{2, 1, 3}, {2, 9, 6}, {6, 1, 3}, {7, 3, 6}};
    int32_t tokens[MOST];
    uint32_t table[BLOCKS];

    (void)state;
    make_tokens(17, tokens, MOST);
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = 1 + i * 29 % 97; /* no common factor: all different */
    for (size_t i = share_next(0); i < sizeof(cases) / sizeof(cases[0]); i = share_next(i + 1)) {
        const struct sizes *z = &g_sizes[cases[i].size];
        const uint32_t from = MOST - cases[i].rows;
        struct tiny *t = latent(z, 1);
        float want[VOCAB], is[3][VOCAB];
        struct tiny_device x;
        wanted(t, tokens, MOST, 100, table, want);
        assert_int_equal(open_card(t, SIZE, 100, &x), 0);
        (void)walk(&x, tokens, 0, from, 512, table, false);
        for (int turn = 0; turn < 3; turn++) {
            x.d->row_blocks = turn == 0 ? 1 : 264;
            const struct ek_result_seq r = walk(&x, tokens, from, MOST, MOST, table, false);
            logits_of(&r, is[turn]);
            const uint32_t tiles = tiles_of(&x), each = x.d->tile_rows;
            const uint32_t parts = turn == 0 ? (cases[i].rows + each - 1) / each : cases[i].parts;
            if (tiles != parts)
                fail_msg("case %zu, turn %d: %u tiles instead of %u", i, turn, tiles, parts);
            if (!(worst_of(is[turn], want) < slack_of(z->dtype)))
                fail_msg("case %zu, turn %d: off by %g", i, turn, (double)worst_of(is[turn], want));
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

/* A text goes on, bit for bit, upon blocks that another shares, that were copied, went to the host
 * and came back, or were in a file; and in blocks of any size. */
static void test_blocks(void **state)
{
    enum { FIRST = 16 };
    static const uint32_t own[] = {5, 6, 7, 8}, shared[] = {5, 6, 9, 10},
                          copied[] = {11, 12, 13, 14}, one[] = {5};
    struct tiny *t = latent(&g_sizes[2], LAYERS);
    int32_t tokens[TOKENS];
    struct tiny_device x;

    (void)state;
    make_tokens(5, tokens, TOKENS);
    assert_int_equal(open_card(t, SIZE, 20, &x), 0);
    (void)walk(&x, tokens, 0, FIRST, FIRST, own, false);
    const struct ek_result_seq want = walk(&x, tokens, FIRST, TOKENS, 9, own, false);
    struct ek_result_seq r = walk(&x, tokens, FIRST, TOKENS, 9, shared, false);
    assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));

    const size_t bytes = x.b->kv_bytes(x.d, EK_TIER_DEVICE);
    char *content = malloc(bytes);
    assert_non_null(content);
    copy(&x, 5, EK_TIER_DEVICE, 2, EK_TIER_HOST);
    copy(&x, 2, EK_TIER_HOST, 11, EK_TIER_DEVICE);
    (void)walk(&x, tokens, 0, 1, 1, one + 0, false); /* the copies come before it */
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_DEVICE, 6, content), 0);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_DEVICE, 12, content), 0);
    r = walk(&x, tokens, FIRST, TOKENS, 9, copied, false);
    assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));
    free(content);
    tiny_close(&x);
    for (uint32_t size = 16; size <= 256; size *= 4) {
        assert_int_equal(open_card(t, size, 20, &x), 0);
        (void)walk(&x, tokens, 0, FIRST, FIRST, own, false);
        r = walk(&x, tokens, FIRST, TOKENS, 9, own, false);
        assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));
        tiny_close(&x);
    }
    tiny_free(t);
}

/* A block of the cache has the keys of each layer and nothing else. */
static void test_planned(void **state)
{
    const struct ek_open_params open = {.device = 0};
    const struct sizes z = {EK_BF16, 2, 8, 64, 512, 8, false, 0, 0, 1};
    struct tiny *t = latent(&z, LAYERS);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8, 4096, 8}, .logit_rows = 24, .block_size = 16};
    struct ek_fault fault = {.msg = ""};
    struct ek_plan plan;

    (void)state;
    g_fake.card(CARD, true);
    if (cuda_backend()->plan(&open, &q, &plan, &fault) < 0)
        fail_msg("%s", fault.msg);
    assert_int_equal(plan.block_bytes, LAYERS * 16 * 576 * 2);
    tiny_free(t);
}

static void test_refused(void **state)
{
    const struct sizes wide = {EK_BF16, 2, 8, 8, 520, 8, false, 0, 0, 0};
    const struct ek_open_params open = {.device = 0};
    struct ek_fault fault = {.msg = ""};
    struct ek_plan plan;

    (void)state;
    struct tiny *t = latent(&wide, 1);
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8}, .logit_rows = 24, .block_size = 8};
    assert_int_equal(cuda_backend()->plan(&open, &q, &plan, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "latents of more than 512 elements"));
    assert_non_null(strstr(fault.msg, "--device cpu"));
    tiny_free(t);

    t = latent(&g_sizes[2], 1);
    q.graph = &t->g;
    for (int i8 = 0; i8 < 2; i8++) {
        t->g.kv_f8 = !i8;
        t->g.kv_i8 = i8;
        fault.msg[0] = '\0';
        assert_int_equal(cuda_backend()->plan(&open, &q, &plan, &fault), -ENOTSUP);
        assert_non_null(strstr(fault.msg, "latent attention"));
        assert_non_null(strstr(fault.msg, "--kv-cache-dtype auto"));
    }
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_parts), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_planned), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("latent", tests, fake_setup, NULL);
}

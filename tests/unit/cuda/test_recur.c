/*
 * Recurrent states on a card: the delta rule, the scan and convolutions of sizes that are no
 * multiples of anything against the CPU's reference tier, in whatever steps the rows come, alone
 * and beside others; what slots and snapshots hold; what is planned; which graphs are refused.
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
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 20, HIDDEN = 24, TOKENS = 29, CARD = 1 << 30 };

struct sizes {
    enum ek_dtype dtype;
    uint32_t k_heads, v_heads, k_dim, v_dim;     /* of the delta rule, */
    uint32_t heads, groups, head_dim, state_dim; /* of the scan */
    uint32_t kernel;
    bool twice, bias;
};

static const struct sizes g_sizes[] = {
    {EK_F32, 2, 4, 70, 37, 3, 1, 33, 200, 4, false, true},  /* some warps, the last of few rows */
    {EK_F32, 1, 1, 1, 1, 2, 2, 1, 1, 2, true, false},       /* one of everything */
    {EK_F32, 1, 2, 256, 64, 1, 1, 64, 256, 8, true, true},  /* the most */
    {EK_BF16, 2, 2, 32, 32, 4, 2, 20, 64, 3, false, false}, /* whole warps, in 16 bits */
};
#define SIZES (sizeof(g_sizes) / sizeof(g_sizes[0]))

/* Values of the graph. */
enum { X, WIDE, GATES, QKV, OUT, NEXT, XBC, STEPS, SCANNED, PICKED, VALUES };

static uint32_t padded(uint32_t cols)
{
    return (cols + EK_STATE_COLS - 1) / EK_STATE_COLS * EK_STATE_COLS;
}

static void add_conv(struct tiny *t, const struct sizes *z, uint16_t dst, uint16_t src,
                     uint32_t first)
{
    struct ek_op *op = tiny_op(t, EK_OP_CONV, dst, src, EK_NO_WEIGHT);

    op->weight = tiny_biases(t, z->kernel, t->width[dst]);
    if (z->bias)
        op->bias = tiny_weight(t, t->width[dst], 1, 0.3f, 0.0f);
    op->u.conv.first = first;
    op->u.conv.kernel = z->kernel;
    op->u.conv.silu = true;
    op->u.conv.state_at = t->g.state_floats;
    t->g.state_floats += (z->kernel - 1) * t->width[dst];
}

static void add_delta(struct tiny *t, const struct sizes *z)
{
    struct ek_op *op = tiny_op(t, EK_OP_DELTA, OUT, QKV, EK_NO_WEIGHT);

    op->weight = tiny_weight(t, z->v_heads, 1, 1.0f, -2.0f);
    op->bias = tiny_weight(t, z->v_heads, 1, 0.5f, 0.0f);
    op->u.delta = (struct ek_delta){GATES,    z->k_heads,        z->v_heads, z->k_dim,
                                    z->v_dim, t->g.state_floats, z->twice};
    t->g.state_floats += z->v_heads * z->k_dim * padded(z->v_dim);
    tiny_norm(t, OUT, OUT, z->v_dim, z->v_heads);
}

static void add_scan(struct tiny *t, const struct sizes *z)
{
    struct ek_op *op = tiny_op(t, EK_OP_SCAN, SCANNED, XBC, EK_NO_WEIGHT);

    op->weight = tiny_weight(t, z->heads, 1, 1.0f, -1.0f);
    op->bias = tiny_weight(t, z->heads, 1, 0.5f, 0.0f);
    op->u.scan = (struct ek_scan){.steps = STEPS,
                                  .step_first = 1,
                                  .heads = z->heads,
                                  .groups = z->groups,
                                  .head_dim = z->head_dim,
                                  .state_dim = z->state_dim,
                                  .skip = tiny_weight(t, z->heads, 1, 0.5f, 0.5f),
                                  .state_at = t->g.state_floats,
                                  .least = 0.05f,
                                  .most = 1.5f};
    t->g.state_floats += z->heads * z->state_dim * padded(z->head_dim);
    op = tiny_op(t, EK_OP_NORM, SCANNED, SCANNED,
                 tiny_weight(t, 1, z->heads * z->head_dim, 0.2f, 1.0f));
    op->bias = tiny_weight(t, z->heads * z->head_dim, 1, 0.2f, 0.0f);
    op->u.norm.eps = 1e-5f;
    op->u.norm.group = z->head_dim;
    op->u.norm.heads = z->heads;
    op->u.norm.own = true;
    op->u.norm.centred = z->twice && z->head_dim > 1;
}

/* embedding -> [q | k | v | z] -> convolution -> delta rule -> norm -> gated by z and one number
 * -> [x B C] and steps -> convolution -> scan -> norm -> logits */
static struct tiny *recurrent(const struct sizes *z)
{
    const uint32_t keys = z->k_heads * z->k_dim, values = z->v_heads * z->v_dim;
    const uint32_t inner = z->heads * z->head_dim, xbc = inner + 2 * z->groups * z->state_dim;
    const uint32_t width[VALUES] = {HIDDEN,
                                    2 * keys + 2 * values,
                                    2 * z->v_heads,
                                    2 * keys + values,
                                    values,
                                    xbc,
                                    xbc,
                                    1 + z->heads,
                                    inner,
                                    inner};
    struct tiny *t = calloc(1, sizeof(*t));
    static uint32_t own[VALUES]; /* one graph at a time */

    t->p.dtype = z->dtype;
    t->room = 1u << 20;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    t->random = 7;
    memcpy(own, width, sizeof(width));
    memcpy(t->width, width, sizeof(t->width));
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = own,
                             .value_count = VALUES,
                             .layers = 1,
                             .kv_heads = 1,
                             .head_dim = 16,
                             .hidden = HIDDEN,
                             .vocab = VOCAB,
                             .max_position = 4096,
                             .dtype = z->dtype};
    tiny_op(t, EK_OP_EMBED, X, X, tiny_weight(t, VOCAB, HIDDEN, 1.0f, 0.0f))->u.embed.scale = 1.0f;
    tiny_linear(t, WIDE, X);
    tiny_linear(t, GATES, X);
    tiny_linear(t, STEPS, X);
    add_conv(t, z, QKV, WIDE, 0);
    add_delta(t, z);
    struct ek_op *op = tiny_op(t, EK_OP_GATE, OUT, WIDE, EK_NO_WEIGHT);
    op->u.gate.first = 2 * keys + values;
    op->u.gate.step = op->u.gate.group = z->v_dim;
    op->u.gate.act = EK_GATE_SILU;
    tiny_op(t, EK_OP_GATE, OUT, STEPS, EK_NO_WEIGHT)->u.gate.group = 1;
    tiny_linear(t, NEXT, OUT);
    add_conv(t, z, XBC, NEXT, 0);
    add_scan(t, z);
    (void)tiny_op(t, EK_OP_PICK, PICKED, SCANNED, EK_NO_WEIGHT);
    tiny_op(t, EK_OP_LOGITS, PICKED, PICKED, tiny_weight(t, VOCAB, inner, 0.5f, 0.0f))
        ->u.logits.scale = 1.0f;
    assert_true(t->floats < t->room && t->g.op_count <= TINY_OPS);
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

static int open_card(const struct tiny *t, struct tiny_device *x)
{
    const struct ek_open_params open = {.device = 0};

    g_fake.card(CARD, true);
    return tiny_open_on(cuda_backend(), t, &open, 8, 20, x);
}

static void make_tokens(uint64_t seed, int32_t *tokens)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

static void begin(struct tiny_device *x, uint32_t slot)
{
    const struct ek_slot_set set = {.slot = slot, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};

    tiny_set(x, &set);
}

/* Rows [from, to) of a text in a slot, in steps of `chunk`, the last one sampled; another text
 * beside it in slot 0 if that is wanted. */
static struct ek_result_seq walk(struct tiny_device *x, uint32_t slot, const int32_t *tokens,
                                 uint32_t from, uint32_t to, uint32_t chunk, bool company)
{
    static const uint32_t table[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    int32_t other[TOKENS];

    make_tokens(99, other);
    begin(x, slot);
    if (company)
        begin(x, 0);
    for (uint32_t at = from, rows; at < to; at += rows) {
        rows = to - at < chunk ? to - at : chunk;
        if (company)
            tiny_add(x, 0, other, at, rows == 1 ? 1 : rows, table[0], false);
        tiny_add(x, slot, tokens, at, rows, table[1], at + rows == to);
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

static void test_text(void **state)
{
    static const uint32_t chunks[] = {TOKENS, 1, 2, 7, 13};
    int32_t tokens[TOKENS];

    (void)state;
    make_tokens(5, tokens);
    for (size_t i = 0; i < SIZES; i++) {
        struct tiny *t = recurrent(&g_sizes[i]);
        float want[VOCAB], is[VOCAB];
        struct tiny_device x;
        assert_int_equal(tiny_open(t, "ref", 1, 8, 20, &x), 0);
        struct ek_result_seq r = walk(&x, 1, tokens, 0, TOKENS, TOKENS, false);
        if (r.top != VOCAB)
            fail_msg("sizes %zu on the CPU: %u tokens, lse %g", i, r.tokens, (double)r.lse);
        logits_of(&r, want);
        tiny_close(&x);
        assert_int_equal(open_card(t, &x), 0);
        for (size_t k = 0; k < 2 * sizeof(chunks) / sizeof(chunks[0]); k++) {
            r = walk(&x, 1, tokens, 0, TOKENS, chunks[k / 2], k % 2);
            if (r.top != VOCAB)
                fail_msg("sizes %zu, case %zu: %u tokens, lse %g", i, k, r.tokens, (double)r.lse);
            logits_of(&r, is);
            const float worst = worst_of(is, want);
            if (!(worst < (t->p.dtype == EK_F32 ? 2e-5f : 3e-2f)))
                fail_msg("sizes %zu in steps of %u: off by %g", i, chunks[k / 2], (double)worst);
        }
        tiny_close(&x);
        tiny_free(t);
    }
}

static void copy(struct tiny_device *x, uint32_t from, uint32_t to)
{
    ek_step_copies(x->step)[x->step->copies++] =
        (struct ek_block_copy){from, to, EK_TIER_STATE, EK_TIER_STATE, {0}};
}

/* A text goes on from a snapshot, also from one that was in a file, as if it had not stopped; the
 * slot that it left may serve another meanwhile. */
static void test_snapshots(void **state)
{
    enum { FIRST = 17, SNAPSHOT = TINY_STATES - 2 };
    struct tiny *t = recurrent(&g_sizes[0]);
    int32_t tokens[TOKENS], other[TOKENS];
    struct tiny_device x;

    (void)state;
    make_tokens(5, tokens);
    make_tokens(6, other);
    assert_int_equal(open_card(t, &x), 0);
    (void)walk(&x, 1, tokens, 0, FIRST, FIRST, false);
    const struct ek_result_seq want = walk(&x, 1, tokens, FIRST, TOKENS, 1, false);
    const size_t bytes = x.b->kv_bytes(x.d, EK_TIER_STATE);
    char *content = malloc(bytes);
    assert_true(content && bytes >= t->g.state_floats * sizeof(float));

    (void)walk(&x, 3, tokens, 0, FIRST, FIRST, false);
    copy(&x, 3, SNAPSHOT);
    (void)walk(&x, 3, other, 0, TOKENS, 9, false);
    copy(&x, SNAPSHOT, 5);
    struct ek_result_seq r = walk(&x, 5, tokens, FIRST, TOKENS, 1, false);
    assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));

    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, SNAPSHOT, content), 0);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_STATE, SNAPSHOT + 1, content), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, TINY_STATES, content), -EINVAL);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_STATE, TINY_STATES, content), -EINVAL);
    copy(&x, SNAPSHOT + 1, SNAPSHOT); /* one after the other */
    copy(&x, SNAPSHOT, 2);
    copy(&x, 2, 2);
    r = walk(&x, 2, tokens, FIRST, TOKENS, 1, false);
    assert_memory_equal(r.top_logit, want.top_logit, sizeof(r.top_logit));
    copy(&x, TINY_STATES, 0);
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG);
    free(content);
    tiny_close(&x);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
    tiny_free(t);
}

/* Two sequences upon one state are refused before anything is computed. */
static void test_twice(void **state)
{
    struct tiny *t = recurrent(&g_sizes[1]);
    const uint32_t table[2][1] = {{1}, {2}};
    int32_t tokens[TOKENS];
    struct tiny_device x;

    (void)state;
    make_tokens(5, tokens);
    assert_int_equal(open_card(t, &x), 0);
    for (uint32_t other = 4; other > 2; other--) {
        tiny_add(&x, 3, tokens, 0, 1, table[0], true);
        tiny_add(&x, other, tokens, 0, 1, table[1], true);
        assert_int_equal(tiny_run(&x, NULL), other == 3 ? -EBADMSG : 0);
    }
    tiny_close(&x);
    tiny_free(t);
}

/* What the plan says of a state is what its slots take; fewer than sequences are refused. */
static void test_planned(void **state)
{
    const struct ek_open_params open = {.device = 0};
    struct tiny *t = recurrent(&g_sizes[0]);
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8, 4096, 8}, .logit_rows = 24, .block_size = 8};
    const struct ek_kv_params few = {20, 0, 8, 15};
    struct ek_fault fault = {.msg = ""};
    struct ek_device_stats stats;
    struct ek_plan plan;
    struct tiny_device x;

    (void)state;
    assert_int_equal(open_card(t, &x), 0);
    assert_int_equal(x.b->plan(&open, &q, &plan, &fault), 0);
    assert_int_equal(plan.state_bytes, x.b->kv_bytes(x.d, EK_TIER_STATE));
    x.b->stats(x.d, &stats);
    assert_int_equal(stats.state_bytes, TINY_STATES * plan.state_bytes);
    tiny_close(&x);

    struct ek_device *d = NULL;
    assert_int_equal(cuda_backend()->open(&open, &d, &fault), 0);
    assert_int_equal(cuda_backend()->load(d, &q, &t->files, NULL, NULL, &fault), 0);
    assert_int_equal(cuda_backend()->kv_open(d, &few), -EINVAL);
    cuda_backend()->close(d);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
    tiny_free(t);
}

/* Heads with more rows of state than a block of a card keeps. */
static void test_refused(void **state)
{
    const struct sizes large = {EK_F32, 1, 1, 257, 1, 1, 1, 1, 1, 2, false, false};
    const struct ek_open_params open = {.device = 0};
    struct ek_fault fault = {.msg = ""};
    struct ek_plan plan;

    (void)state;
    struct tiny *t = recurrent(&large);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8}, .logit_rows = 24, .block_size = 8};
    assert_int_equal(cuda_backend()->plan(&open, &q, &plan, &fault), -ENOTSUP);
    assert_non_null(strstr(fault.msg, "recurrent state of more than 256 rows"));
    assert_non_null(strstr(fault.msg, "--device cpu"));
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_snapshots), cmocka_unit_test(test_twice),
        cmocka_unit_test(test_planned), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("recur", tests, fake_setup, NULL);
}

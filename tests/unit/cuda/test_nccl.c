/*
 * Several cards that compute one model, on the driver and the NCCL for tests: right against a plain
 * computation and the same tokens as ranks of the CPU choose; recorded steps with sums in them;
 * plans and refusals; and what can go wrong: no NCCL, one that is old, too few cards, unequal
 * ones, slow links, links that are broken, a rank that cannot start, an error that comes late, a
 * rank that stays away, one whose card is lost or full, one that cannot record.
 *
 * With EVENKEEL_GPU set only what one card can show runs: NCCL with one rank, and with two where
 * there are two cards.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/nccl.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, TOKENS = 24, BLOCKS = 24 };
/* Deadlines: of what stays away, at start (a case waits for it), of what does not stay away. */
enum { STALL_US = 150000, START_US = 2000000, PATIENT_US = 60000000 };
#define CARD ((size_t)1 << 30)

#define MODEL(type, n, width, q, kv, dim, inner, ...)                                              \
    {                                                                                              \
        .dtype = (type), .layers = (n), .hidden = (width), .q_heads = (q), .kv_heads = (kv),       \
        .head_dim = (dim), .rotary = (dim), .ffn = (inner), .vocab = VOCAB, __VA_ARGS__            \
    }

static const struct tiny_params g_models[] = {
    MODEL(EK_F32, 2, 40, 4, 2, 16, 66, .bias = true, .tied = true, .act = EK_ACT_SILU),
    MODEL(EK_F32, 1, 33, 8, 1, 12, 64, .window = 17, .qk_norm = true), /* K and V on all ranks */
    MODEL(EK_BF16, 2, 64, 4, 4, 64, 96, .act = EK_ACT_SILU),
    MODEL(EK_F16, 2, 64, 8, 2, 64, 72, .softcap = 5.0f, .tied = true),
    MODEL(EK_F32, 1, 24, 4, 4, 8, 36, .experts = 5, .top = 2, .normalise = true),
    MODEL(EK_F16, 1, 64, 4, 2, 64, 64, .experts = 4, .top = 3, .expert_bias = true),
    MODEL(EK_BF16, 1, 64, 4, 2, 64, 128, .kept = EK_I4, .group = 32, .act = EK_ACT_SILU),
};
#define MODELS (sizeof(g_models) / sizeof(g_models[0]))

static int open_ranks(const struct tiny *t, uint32_t ranks, uint64_t stall_us,
                      struct tiny_device *x)
{
    const struct ek_open_params open = {
        .ranks = ranks, .each = cuda_backend(), .stall_us = stall_us};

    return tiny_open_on(ek_ranks_backend(open.each), t, &open, 8, BLOCKS, x);
}

static void new_cards(int count)
{
    g_fake.card(CARD, true);
    if (!g_fake.real)
        g_fake.cards(count);
}

static void close_clean(struct tiny_device *x)
{
    tiny_close(x);
    if (!g_fake.real && (g_fake.objects() != 0 || g_fake.used() != 0))
        fail_msg("%u objects and %zu bytes are left", g_fake.objects(), g_fake.used());
}

static void make_tokens(int32_t *tokens, uint64_t seed)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
}

/* ---- what they compute ---- */

static double tolerance_of(enum ek_dtype t)
{
    return t == EK_F32 ? 2e-4 : t == EK_F16 ? 2e-2 : 1.5e-1;
}

/* Two sequences: prompts in chunks beside each other, then decodes, the later ones recorded; token
 * by token the logits are those of the plain computation, if `t` is given. */
static void run_two(const struct tiny *t, struct tiny_device *x, int32_t *ret_greedy)
{
    static const uint32_t table[2][6] = {{1, 3, 5, 7, 9, 11}, {2, 4, 6, 8, 10, 12}};
    enum { CHUNK = 9, PROMPT = 17 };
    int32_t tokens[2][TOKENS];
    uint32_t at[2] = {0, 0}, n = 0;

    for (uint32_t s = 0; s < 2; s++) {
        const struct ek_slot_set set = {.slot = s, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
        make_tokens(tokens[s], 5 + s);
        tiny_set(x, &set);
    }
    while (at[0] < TOKENS) {
        for (uint32_t s = 0; s < 2; s++) {
            uint32_t rows = at[s] < PROMPT ? PROMPT - at[s] : 1;
            rows = rows < CHUNK ? rows : CHUNK;
            tiny_add(x, s, tokens[s], at[s], rows, table[s], at[s] + rows >= PROMPT);
            at[s] += rows;
        }
        assert_int_equal(tiny_run(x, NULL), 0);
        for (uint32_t s = 0; s < 2 && at[0] >= PROMPT; s++) {
            const struct ek_result_seq *r = &x->result->seq[s];
            double want[VOCAB];
            assert_int_equal(r->top, VOCAB);
            ret_greedy[n++] = r->token[0];
            if (!t)
                continue;
            tiny_reference(t, tokens[s], at[s], want);
            for (uint32_t i = 0; i < VOCAB; i++)
                if (!(fabs((double)r->top_logit[i] - want[r->top_id[i]]) <
                      tolerance_of(t->p.dtype)))
                    fail_msg("dtype %d: sequence %u at %u: logit %d is %g instead of %g",
                             (int)t->p.dtype, s, at[s], r->top_id[i], (double)r->top_logit[i],
                             want[r->top_id[i]]);
        }
    }
}

static void test_models(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        for (uint32_t ranks = 2; ranks <= (m < 2 ? 4 : 2); ranks += 2) {
            if (!share_takes(2 * m + ranks / 4))
                continue;
            const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
            const struct ek_open_params open = {.ranks = ranks, .threads = 1, .each = cpu};
            int32_t mine[2 * TOKENS], theirs[2 * TOKENS];
            struct tiny_device x;
            memset(mine, 0, sizeof(mine));
            memset(theirs, 0, sizeof(theirs));
            new_cards((int)ranks);
            assert_int_equal(open_ranks(t, ranks, 20000000, &x), 0);
            run_two(t, &x, mine);
            assert_true(g_fake.calls("cuGraphLaunch") > ranks); /* with sums in them */
            close_clean(&x);
            assert_int_equal(tiny_open_on(ek_ranks_backend(cpu), t, &open, 8, BLOCKS, &x), 0);
            run_two(NULL, &x, theirs);
            tiny_close(&x);
            if (t->p.dtype == EK_F32)
                assert_memory_equal(mine, theirs, sizeof(mine));
        }
        tiny_free(t);
    }
}

/* Routers that like two experts alike, for every row: the lower one is taken. */
static void tie_experts(struct tiny *t)
{
    for (uint32_t i = 0; i < t->g.op_count; i++) {
        const struct ek_op *op = &t->op[i];
        if (op->kind != EK_OP_LINEAR || op->dst != 8)
            continue;
        const struct ek_weight *w = &t->weight[op->weight];
        const size_t at = w->part[0].offset_bytes / sizeof(float), row = w->cols;
        for (uint32_t e = 0; e + 1 < w->rows; e += 2) {
            memcpy(t->raw + at + (e + 1) * row, t->raw + at + e * row, row * sizeof(float));
            memcpy(t->data + at + (e + 1) * row, t->data + at + e * row, row * sizeof(float));
        }
    }
}

/* All ranks give each row to the same experts with the same shares, to the bit, or what they sum
 * would be parts of different experts: with weights of every kind, of 2 and 4 ranks, of which some
 * have fewer columns of an expert than others; right also where experts are liked alike. (Scales
 * are of groups: one of a whole row that is quantized while it is loaded is that of a rank's part.)
 */
static void test_experts(void **state)
{
    (void)state;
    static const struct {
        struct tiny_params p;
        bool ties;
    } cases[] = {
        {MODEL(EK_BF16, 2, 64, 4, 4, 64, 160, .experts = 5, .top = 2, .normalise = true,
               .kept = EK_I8, .group = 32),
         true},
        {MODEL(EK_F16, 2, 64, 4, 2, 64, 160, .experts = 6, .top = 3, .kept = EK_F8_E4M3,
               .group = 32),
         false},
        {MODEL(EK_BF16, 1, 96, 4, 4, 64, 160, .experts = 8, .top = 2, .normalise = true,
               .kept = EK_I4, .group = 32),
         true},
        {MODEL(EK_F16, 2, 64, 4, 4, 64, 136, .experts = 7, .top = 4, .normalise = true), true},
    };
    for (size_t m = 0; m < sizeof(cases) / sizeof(cases[0]); m++) {
        struct tiny *t = tiny_new(&cases[m].p);
        if (cases[m].ties)
            tie_experts(t);
        for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
            int32_t greedy[2 * TOKENS];
            struct tiny_device x;
            unsigned times[2];
            if (!share_takes(2 * m + ranks / 4))
                continue;
            new_cards((int)ranks);
            assert_int_equal(open_ranks(t, ranks, 20000000, &x), 0);
            run_two(t, &x, greedy);
            const unsigned long long routes = g_fake.routes(0, &times[0]);
            assert_true(routes != 0);
            assert_true(times[0] >= t->p.layers * (TOKENS - 15)); /* two chunks, then decodes */
            for (int card = 1; card < (int)ranks; card++) {
                assert_true(g_fake.routes(card, &times[1]) == routes);
                assert_int_equal(times[1], times[0]);
            }
            close_clean(&x);
        }
        tiny_free(t);
    }
}

/* One rank of one: everything but others. On a card this is NCCL itself. */
static void test_one_rank(void **state)
{
    (void)state;
    const struct ek_backend *b = cuda_backend();
    struct tiny *t = tiny_new(&g_models[2]);
    struct tiny part = *t;
    struct ek_open_params open = {.ranks = 1, .stall_us = 20000000};
    int32_t greedy[2 * TOKENS];
    struct tiny_device x;

    new_cards(1);
    assert_int_equal(ek_shard(&t->g, 0, 1, &part.g, NULL), 0);
    assert_int_equal(b->group_new(&open, &open.group, NULL), 0);
    assert_int_equal(tiny_open_on(b, &part, &open, 8, BLOCKS, &x), 0);
    run_two(t, &x, greedy);
    tiny_close(&x);
    b->group_free(open.group);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
    ek_graph_free(&part.g);
    tiny_free(t);
}

/* Where there are two. */
static void test_two_cards(void **state)
{
    (void)state;
    const struct ek_open_params open = {.ranks = 2, .each = cuda_backend()};
    struct ek_device_info info;
    struct ek_fault fault = {.msg = ""};

    if (ek_ranks_backend(open.each)->probe(&open, &info, &fault) < 0) {
        print_message("not with two cards: %s\n", fault.msg);
        skip();
    }
    print_message("%s %s\n", info.name, info.note);
    for (size_t m = 0; m < MODELS; m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        int32_t greedy[2 * TOKENS];
        struct tiny_device x;
        assert_int_equal(open_ranks(t, 2, 20000000, &x), 0);
        run_two(t, &x, greedy);
        tiny_close(&x);
        tiny_free(t);
    }
}

/* ---- plans and words ---- */

static void test_plan(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[2]);
    const struct ek_backend *cuda = cuda_backend();
    const struct ek_open_params open = {.ranks = 4, .each = cuda};
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {512, 16, 1024, 8}, .logit_rows = 16, .block_size = 8};
    struct ek_device_stats stats;
    struct tiny_device x;
    struct ek_plan one, each;

    new_cards(4);
    assert_int_equal(cuda->plan(&(struct ek_open_params){0}, &q, &one, NULL), 0);
    assert_int_equal(ek_ranks_backend(cuda)->plan(&open, &q, &each, NULL), 0);
    assert_int_equal(each.block_bytes * 4, one.block_bytes); /* 4 heads of keys and values */
    assert_true(each.weight_bytes < one.weight_bytes / 3);
    assert_int_equal(each.overhead_bytes, one.overhead_bytes + (512u << 20));
    /* what is taken is what was planned, on every card */
    assert_int_equal(open_ranks(t, 4, 0, &x), 0);
    x.b->stats(x.d, &stats);
    assert_true(stats.weight_bytes <= 4 * each.weight_bytes);
    assert_true(stats.weight_bytes > 3 * each.weight_bytes);
    assert_int_equal(stats.kv_bytes, 4ull * BLOCKS * each.block_bytes);
    struct ek_device_stats of[4];
    for (uint32_t c = 0; c < 4; c++)
        x.b->rank_stats(x.d, c, &of[c]);
    assert_int_equal(of[0].kv_bytes, BLOCKS * each.block_bytes);
    assert_int_equal(of[0].weight_bytes + of[1].weight_bytes + of[2].weight_bytes +
                         of[3].weight_bytes,
                     stats.weight_bytes);
    for (int c = 0; c < 4; c++)
        assert_true(g_fake.card_used(c) > 0 &&
                    g_fake.card_used(c) <=
                        each.weight_bytes + stats.activation_bytes / 4 + (64u << 20) + 4096);
    close_clean(&x);
    tiny_free(t);
}

static int probe(uint32_t ranks, struct ek_device_info *ret_info, struct ek_fault *fault)
{
    const struct ek_open_params open = {.ranks = ranks, .each = cuda_backend()};

    *fault = (struct ek_fault){.msg = ""};
    return ek_ranks_backend(open.each)->probe(&open, ret_info, fault);
}

static void test_command_line(void **state)
{
    (void)state;
    struct ek_device_info info;
    struct ek_fault fault;

    new_cards(3);
    assert_int_equal(probe(4, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "no card 3: the driver has 3"));
    assert_int_equal(probe(3, &info, &fault), 0);
    assert_string_equal(info.note, "");
    assert_string_equal(info.name, "3 x Fake card, sm_90");
    g_fake.card_bytes(1, CARD / 2);
    assert_int_equal(probe(3, &info, &fault), 0);
    assert_true(info.memory_bytes == CARD / 2 && info.free_bytes == CARD / 2);
    assert_non_null(strstr(info.note, "rank 1 has Fake card"));
    g_fake.links(true, false);
    assert_int_equal(probe(3, &info, &fault), 0);
    assert_non_null(strstr(info.note, "The cards differ"));
    assert_non_null(strstr(info.note, "Cards 0 and 1 (and other pairs) are linked by PCIe alone"));
    g_fake.links(false, false);
    assert_int_equal(probe(2, &info, &fault), 0);
    assert_non_null(strstr(info.note, "Cards 0 and 1 cannot reach each other's memory"));

    char *path = strdup(getenv("EVENKEEL_NCCL"));
    setenv("EVENKEEL_NCCL", "/nowhere/libnccl.so.2", 1);
    assert_int_equal(probe(2, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "libnccl2"));
    assert_non_null(strstr(fault.msg, "/nowhere"));
    setenv("EVENKEEL_NCCL", "libm.so.6", 1);
    assert_int_equal(probe(2, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "it has no nccl"));
    setenv("EVENKEEL_NCCL", path, 1);
    free(path);
    g_fake.nccl_version(21806);
    assert_int_equal(probe(2, &info, &fault), -ENODEV);
    assert_non_null(strstr(fault.msg, "version 2.18 is too old: 2.19 is needed"));
    g_fake.nccl_version(0);
}

/* Cards may be chosen. */
static void test_chosen(void **state)
{
    (void)state;
    static const uint32_t cards[2] = {3, 1};
    struct tiny *t = tiny_new(&g_models[0]);
    const struct ek_open_params open = {
        .ranks = 2, .each = cuda_backend(), .devices = cards, .stall_us = 20000000};
    int32_t greedy[2 * TOKENS];
    struct tiny_device x;

    new_cards(4);
    assert_int_equal(tiny_open_on(ek_ranks_backend(open.each), t, &open, 8, BLOCKS, &x), 0);
    run_two(t, &x, greedy);
    assert_true(g_fake.card_used(0) == 0 && g_fake.card_used(2) == 0);
    assert_true(g_fake.card_used(1) > 0 && g_fake.card_used(3) > 0);
    close_clean(&x);
    tiny_free(t);
}

/* ---- what goes wrong ---- */

static int load_with(const struct tiny *t, struct ek_fault *fault)
{
    const struct ek_open_params open = {.ranks = 2, .each = cuda_backend(), .stall_us = START_US};
    const struct ek_backend *b = ek_ranks_backend(open.each);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {64, 4, 64, 8}, .logit_rows = 8, .block_size = 8};
    struct ek_device *d = NULL;

    *fault = (struct ek_fault){.msg = ""};
    int r = b->open(&open, &d, fault);
    if (r == 0) {
        r = b->load(d, &q, &t->files, NULL, NULL, fault);
        b->close(d);
    }
    return r;
}

static void test_start(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        unsigned nth;
        int result, code;
        const char *says;
    } cases[] = {
        {"ncclGetUniqueId", 1, NCCL_SYSTEM_ERROR, EK_ECOMM, "NCCL_SOCKET_IFNAME"},
        {"ncclCommInitRankConfig", 1, NCCL_SYSTEM_ERROR, EK_ECOMM, "/dev/shm"},
        {"ncclCommInitRankConfig@1", 1, NCCL_INTERNAL_ERROR, EK_ECOMM, "rank 1 of 2"},
        {"ncclCommGetAsyncError", 2, NCCL_REMOTE_ERROR, EK_ECOMM, "NCCL cannot connect"},
        {"ncclAllGather@1", 1, NCCL_CUDA_ERROR, EK_ECOMM, ""},
        {"ncclAllReduce@0", 1, NCCL_CUDA_ERROR, EK_ECOMM, ""},
        {"cuMemAlloc_v2@1", 2, CU_OUT_OF_MEMORY, EK_EDEVMEM, "GiB free"},
        {"cuDevicePrimaryCtxRetain", 2, CU_OUT_OF_MEMORY, EK_EDEVMEM, ""},
    };
    struct tiny *t = tiny_new(&g_models[0]);
    struct ek_fault fault;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        new_cards(2);
        g_fake.plant(cases[i].symbol, cases[i].nth, cases[i].result);
        int r = load_with(t, &fault);
        if (r != cases[i].code || !strstr(fault.msg, cases[i].says))
            fail_msg("%s: %d, \"%s\"", cases[i].symbol, r, fault.msg);
        if (g_fake.objects() != 0 || g_fake.used() != 0)
            fail_msg("%s: %u objects are left", cases[i].symbol, g_fake.objects());
    }
    new_cards(2);
    g_fake.spoil(1);
    assert_int_equal(load_with(t, &fault), EK_ECOMM);
    assert_non_null(strstr(fault.msg, "Rank 1 of 2 got wrong numbers"));
    assert_non_null(strstr(fault.msg, "NCCL_P2P_DISABLE"));
    new_cards(2);
    g_fake.stall(0); /* the first sums never come */
    assert_int_equal(load_with(t, &fault), EK_ECOMM);
    assert_int_equal(g_fake.calls("ncclCommAbort"), 2);
    assert_int_equal(g_fake.objects(), 0);
    tiny_free(t);
}

static void test_host_memory(void **state)
{
    (void)state;
    const struct ek_open_params open = {.ranks = 2, .each = cuda_backend()};
    const struct ek_backend *b = ek_ranks_backend(open.each);
    struct ek_device *d = NULL;

    for (long n = 1;; n++) {
        new_cards(2);
        alloc_fail_at(n);
        int r = b->open(&open, &d, NULL);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_true(r == 0 && n > 3);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(d);
        assert_int_equal(g_fake.objects(), 0);
    }
    b->close(d);
    assert_int_equal(g_fake.objects(), 0);
}

static int run_prompt(struct tiny_device *x)
{
    static const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const uint32_t table[3] = {1, 2, 3};
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};

    tiny_set(x, &set);
    tiny_add(x, 0, tokens, 0, 9, table, true);
    return tiny_run(x, NULL);
}

static int run_decode(struct tiny_device *x, uint32_t at)
{
    static const uint32_t table[3] = {1, 2, 3};

    tiny_add(x, 0, NULL, at, 1, table, true);
    return tiny_run(x, NULL);
}

/* A deadline that nothing misses on this machine as busy as it is: many times what a prompt takes,
 * STALL_US at least. */
static uint64_t measured_stall_us(const struct tiny *t)
{
    struct tiny_device x;

    assert_int_equal(open_ranks(t, 2, PATIENT_US, &x), 0);
    const uint64_t begin = ek_now_us();
    assert_int_equal(run_prompt(&x), 0);
    const uint64_t stall_us = 20 * (ek_now_us() - begin);
    tiny_close(&x);
    return stall_us > STALL_US ? stall_us : STALL_US;
}

/* A rank that stays away: after the deadline, not before, the step and all later ones are EK_ECOMM;
 * communicators are aborted, and closing ends. */
static void test_stall(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;

    for (int rank = 0; rank < 2; rank++) {
        new_cards(2);
        const uint64_t stall_us = measured_stall_us(t);
        new_cards(2);
        assert_int_equal(open_ranks(t, 2, stall_us, &x), 0);
        assert_int_equal(run_prompt(&x), 0);
        assert_int_equal(g_fake.calls("ncclCommAbort"), 0);
        g_fake.stall(rank);
        uint64_t begin = ek_now_us();
        assert_int_equal(run_decode(&x, 9), EK_ECOMM);
        assert_true(ek_now_us() - begin >= stall_us);
        assert_int_equal(run_decode(&x, 9), EK_ECOMM);
        tiny_close(&x);
        assert_int_equal(g_fake.calls("ncclCommAbort"), 2);
        assert_int_equal(g_fake.calls("ncclCommDestroy"), 0);
        assert_int_equal(g_fake.objects(), 0);
    }
    tiny_free(t);
}

/* An error at any of the calls of some steps: its code, from then on too, and a clean end. */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *symbol;
        int result, code;
    } cases[] = {
        {"ncclCommGetAsyncError@0", NCCL_REMOTE_ERROR, EK_ECOMM},
        {"ncclCommGetAsyncError@1", NCCL_REMOTE_ERROR, EK_ECOMM},
        {"ncclAllReduce@0", NCCL_INTERNAL_ERROR, EK_ECOMM},
        {"ncclAllReduce@1", NCCL_CUDA_ERROR, EK_ECOMM},
        {"ncclAllGather@1", NCCL_SYSTEM_ERROR, EK_ECOMM},
        {"cuLaunchKernel@1", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventRecord@0", CU_OUT_OF_MEMORY, EK_EDEVMEM},
        {"cuEventQuery@1", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuEventQuery@0", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuLaunchKernel@1", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
        {"cuGraphLaunch@1", CU_ILLEGAL_ADDRESS, EK_EDEVICE},
    };
    struct tiny *t = tiny_new(&g_models[0]);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned nth = 1; nth < 40; nth += 13) {
            struct tiny_device x;
            if (!share_takes(4 * i + nth / 13))
                continue;
            new_cards(2);
            assert_int_equal(open_ranks(t, 2, 0, &x), 0);
            int r = run_prompt(&x);
            assert_int_equal(r, 0);
            g_fake.plant(cases[i].symbol, nth, cases[i].result);
            for (uint32_t k = 0; k < 12 && r == 0; k++)
                r = run_decode(&x, 9 + k);
            if (r != cases[i].code && (r != 0 || nth == 1))
                fail_msg("%s, call %u: %d instead of %d", cases[i].symbol, nth, r, cases[i].code);
            if (r != 0) {
                assert_int_equal(run_decode(&x, 9), cases[i].code);
                tiny_close(&x);
                assert_true(cases[i].code == EK_EDEVICE || g_fake.objects() == 0);
            } else {
                close_clean(&x);
            }
        }
    }
    tiny_free(t);
}

/* When one rank cannot record none does, and all go on launch by launch. */
static void test_no_graph(void **state)
{
    (void)state;
    static const char *const symbols[] = {"cuStreamBeginCapture_v2@1", "cuStreamEndCapture@0",
                                          "cuGraphInstantiateWithFlags@1"};
    struct tiny *t = tiny_new(&g_models[0]);
    int32_t want[12];

    for (size_t i = 0; i <= sizeof(symbols) / sizeof(symbols[0]); i++) {
        struct tiny_device x;
        new_cards(2);
        if (i > 0)
            g_fake.plant(symbols[i - 1], 1, CU_OUT_OF_MEMORY);
        assert_int_equal(open_ranks(t, 2, 20000000, &x), 0);
        assert_int_equal(run_prompt(&x), 0);
        for (uint32_t k = 0; k < 6; k++) {
            assert_int_equal(run_decode(&x, 9 + k), 0);
            if (i == 0)
                want[k] = x.result->seq[0].token[0];
            assert_int_equal(x.result->seq[0].token[0], want[k]);
        }
        assert_int_equal(g_fake.calls("cuGraphLaunch"), i == 0 ? 10 : 0);
        close_clean(&x);
    }
    tiny_free(t);
}

/* A pool that one card cannot hold is as it was on all. */
static void test_resize(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_models[0]);
    struct tiny_device x;

    new_cards(2);
    g_fake.card_bytes(1, (size_t)256 << 20);
    assert_int_equal(open_ranks(t, 2, 20000000, &x), 0);
    assert_int_equal(run_prompt(&x), 0);
    const size_t before[2] = {g_fake.card_used(0), g_fake.card_used(1)};
    assert_int_equal(x.b->kv_resize(x.d, (300u << 20) / 1024), EK_EDEVMEM); /* 1 KiB and more */
    assert_true(g_fake.card_used(0) == before[0] && g_fake.card_used(1) == before[1]);
    assert_int_equal(run_decode(&x, 9), 0);
    close_clean(&x);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),       cmocka_unit_test(test_experts),
        cmocka_unit_test(test_one_rank),     cmocka_unit_test(test_plan),
        cmocka_unit_test(test_command_line), cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_start),        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_stall),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_graph),     cmocka_unit_test(test_resize),
    };
    const struct CMUnitTest on_card[] = {cmocka_unit_test(test_one_rank),
                                         cmocka_unit_test(test_two_cards)};

    if (getenv("EVENKEEL_GPU"))
        return cmocka_run_group_tests(on_card, fake_setup, NULL);
    return cmocka_run_group_tests(tests, fake_setup, NULL);
}

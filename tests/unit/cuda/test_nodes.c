/*
 * Cards of two nodes, on the driver and the NCCL for tests, which has them all in this process: one
 * id for all ranks, the same numbers as a plain computation, a stage on each node bit for bit as in
 * one process, steps recorded by all or by none; and
 * a rank of another node that stays away, or cannot record. Messages between the nodes are in
 * memory.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cuda/driver.h"
#include "kernels/mpi/wire.h"
#include "tests/unit/alloc.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/flow.h"
#include "tests/unit/kernels/mailbox.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"
#include "tests/unit/kernels/tiny_plain.h"

enum { VOCAB = 20, TOKENS = 24, PROMPT = 17, BLOCKS = 24, RANKS = 4, NODES = 2 };
#define CARD     ((size_t)1 << 30)
#define STALL_US 20000000u

static const struct tiny_params g_models[] = {
    {.dtype = EK_F32,
     .layers = 2,
     .hidden = 40,
     .q_heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .rotary = 16,
     .ffn = 66,
     .vocab = VOCAB,
     .bias = true,
     .tied = true},
    {.dtype = EK_BF16,
     .layers = 1,
     .hidden = 64,
     .q_heads = 4,
     .kv_heads = 4,
     .head_dim = 64,
     .rotary = 64,
     .ffn = 128,
     .vocab = VOCAB},
};

struct node {
    const struct tiny *t;
    struct ek_open_params open;
    struct ek_backend backend; /* its open() gives the device that is there */
    struct ek_device *device;
    struct ek_wire wire;
    struct tiny_device x;
    int32_t greedy[TOKENS];
    float far; /* the most that a logit is off */
    struct flow_log log;
    int result;
    pthread_t thread;
};

struct both {
    struct mailbox box;
    struct node node[NODES];
    uint8_t meeting[EK_MEETING_BYTES];
};

/* The devices are made one after the other, as node 0's order to open comes when it is open; they
 * are loaded at the same time. */
static int open_given(const struct ek_open_params *p, struct ek_device **ret_device,
                      struct ek_fault *fault)
{
    const struct node *n = (const struct node *)(const void *)p->cluster;

    (void)fault;
    *ret_device = n->device;
    return 0;
}

static void open_stages(struct both *b, const struct tiny *t, uint32_t stages, uint64_t stall_us)
{
    static const uint32_t cards[NODES][RANKS / NODES] = {{0, 1}, {3, 2}};
    const struct ek_backend *ranks = ek_ranks_backend(cuda_backend());

    g_fake.card(CARD, true);
    g_fake.cards(RANKS);
    memset(b, 0xff, sizeof(*b));
    mail_open(&b->box, NODES);
    for (uint32_t k = 0; k < NODES; k++) {
        struct node *n = &b->node[k];
        *n = (struct node){.t = t, .backend = *ranks};
        n->wire = (struct ek_wire){.node = k,
                                   .nodes = NODES,
                                   .mpi = &g_mail,
                                   .self = &b->box.end[k],
                                   .stall_us = stall_us};
        n->backend.open = open_given;
        n->open = (struct ek_open_params){.ranks = RANKS,
                                          .stages = stages,
                                          .each = cuda_backend(),
                                          .devices = cards[k],
                                          .stall_us = stall_us,
                                          .first = k * RANKS / NODES,
                                          .local = RANKS / NODES,
                                          .cluster = (struct ek_cluster *)(void *)n,
                                          .wire = &n->wire,
                                          .meeting = b->meeting};
        assert_int_equal(ranks->open(&n->open, &n->device, NULL), 0);
    }
}

static void open_both(struct both *b, const struct tiny *t, uint64_t stall_us)
{
    open_stages(b, t, 1, stall_us);
}

static void check_left(void)
{
    if (g_fake.objects() != 0 || g_fake.used() != 0)
        fail_msg("%u objects and %zu bytes are left", g_fake.objects(), g_fake.used());
}

static void close_both(struct both *b)
{
    for (uint32_t k = 0; k < NODES; k++)
        if (b->node[k].x.b)
            tiny_close(&b->node[k].x);
    mail_close(&b->box);
    check_left();
}

/* A prompt, then decodes of tokens that are given; what is chosen is kept. */
static void *run_node(void *arg)
{
    static const uint32_t table[6] = {1, 3, 5, 7, 9, 11};
    const struct ek_slot_set set = {.sampling.top_p = 1.0f, .top = EK_TOP_MOST};
    struct node *n = arg;
    int32_t tokens[TOKENS];
    double want[VOCAB];
    uint64_t seed = 5;

    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(tiny_next(&seed) % VOCAB);
    n->result = tiny_open_on(&n->backend, n->t, &n->open, 8, BLOCKS, &n->x);
    if (n->result < 0)
        return NULL;
    tiny_set(&n->x, &set);
    for (uint32_t at = 0; n->result == 0 && at < TOKENS;) {
        const uint32_t rows = at < PROMPT ? PROMPT : 1;
        tiny_add(&n->x, 0, tokens, at, rows, table, true);
        n->result = tiny_run(&n->x, NULL);
        at += rows;
        const struct ek_result_seq *r = &n->x.result->seq[0];
        n->greedy[at - 1] = r->token[0];
        tiny_reference(n->t, tokens, at, want);
        for (uint32_t i = 0; n->result == 0 && i < r->top; i++)
            n->far = fmaxf(n->far, fabsf(r->top_logit[i] - (float)want[r->top_id[i]]));
    }
    return NULL;
}

static void run_both(struct both *b)
{
    for (uint32_t k = 0; k < NODES; k++)
        assert_int_equal(pthread_create(&b->node[k].thread, NULL, run_node, &b->node[k]), 0);
    for (uint32_t k = 0; k < NODES; k++)
        (void)pthread_join(b->node[k].thread, NULL);
}

static void test_same(void **state)
{
    struct both *b = calloc(1, sizeof(*b));
    (void)state;

    assert_non_null(b);
    for (size_t m = 0; m < sizeof(g_models) / sizeof(g_models[0]); m++) {
        struct tiny *t = tiny_new(&g_models[m]);
        open_both(b, t, STALL_US);
        run_both(b);
        assert_true(b->node[0].result == 0 && b->node[1].result == 0);
        assert_memory_equal(b->node[0].greedy, b->node[1].greedy, sizeof(b->node[0].greedy));
        assert_true(b->node[0].far < (t->p.dtype == EK_F32 ? 2e-4f : 1.5e-1f));
        assert_true(g_fake.calls("cuGraphLaunch") > RANKS);   /* with sums in them */
        assert_int_equal(g_fake.calls("ncclGetUniqueId"), 1); /* by the first node alone */
        for (int c = 0; c < RANKS; c++)
            assert_true(g_fake.card_used(c) > 0);
        close_both(b);
        tiny_free(t);
    }
    free(b);
}

static void *flow_node(void *arg)
{
    struct node *n = arg;

    flow_run(&n->backend, n->t, &n->open, &n->log);
    return NULL;
}

/* The log of one process with as many ranks and stages. */
static void flow_alone(const struct tiny *t, uint32_t stages, struct flow_log *log)
{
    const struct ek_open_params open = {
        .ranks = RANKS, .stages = stages, .each = cuda_backend(), .stall_us = STALL_US};

    g_fake.card(CARD, true);
    g_fake.cards(RANKS);
    flow_run(ek_ranks_backend(cuda_backend()), t, &open, log);
    check_left();
}

/* A stage on each node, also two of them: rows and what was sampled go from node to node, and what
 * the last stage answers is what it does in one process. */
static void test_stages(void **state)
{
    static const struct tiny_params model = {.dtype = EK_F32,
                                             .layers = 4,
                                             .hidden = 32,
                                             .q_heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 16,
                                             .rotary = 16,
                                             .ffn = 96,
                                             .vocab = 40,
                                             .bias = true,
                                             .tied = true};
    struct both *b = calloc(1, sizeof(*b));
    struct tiny *t = tiny_new(&model);
    (void)state;

    assert_non_null(b);
    for (uint32_t stages = 2; stages <= 4; stages += 2) {
        struct flow_log want = {0};
        flow_alone(t, stages, &want);
        open_stages(b, t, stages, STALL_US);
        for (uint32_t k = 0; k < NODES; k++)
            assert_int_equal(pthread_create(&b->node[k].thread, NULL, flow_node, &b->node[k]), 0);
        for (uint32_t k = 0; k < NODES; k++)
            (void)pthread_join(b->node[k].thread, NULL);
        assert_true(g_fake.calls("ncclSend") > 0 && g_fake.calls("cuGraphLaunch") > 0);
        assert_int_equal(b->node[1].log.bytes, want.bytes);
        assert_memory_equal(b->node[1].log.at, want.at, want.bytes);
        assert_true(b->node[0].log.bytes < want.bytes); /* it has no sequences to speak of */
        for (uint32_t k = 0; k < NODES; k++)
            flow_free(&b->node[k].log);

        mail_close(&b->box);
        flow_free(&want);
        check_left();
    }
    tiny_free(t);
    free(b);
}

/* Where one rank cannot record, no rank of any node does: their sums would not meet. */
static void test_no_graph(void **state)
{
    struct both *b = calloc(1, sizeof(*b));
    struct tiny *t = tiny_new(&g_models[0]);
    (void)state;

    assert_non_null(b);
    open_both(b, t, STALL_US);
    g_fake.plant("cuGraphInstantiateWithFlags@3", 1, CU_OUT_OF_MEMORY);
    run_both(b);
    assert_true(b->node[0].result == 0 && b->node[1].result == 0);
    assert_memory_equal(b->node[0].greedy, b->node[1].greedy, sizeof(b->node[0].greedy));
    assert_true(b->node[0].far < 2e-4f);
    assert_int_equal(g_fake.calls("cuGraphLaunch"), 0);
    close_both(b);
    tiny_free(t);
    free(b);
}

/* A rank of node 1 that does not come: both nodes give up after the deadline. */
static void test_stall(void **state)
{
    struct both *b = calloc(1, sizeof(*b));
    struct tiny *t = tiny_new(&g_models[0]);
    (void)state;

    assert_non_null(b);
    open_both(b, t, 100000);
    g_fake.stall(3);
    run_both(b);
    assert_true(b->node[0].result == EK_ECOMM && b->node[1].result == EK_ECOMM);
    assert_true(atomic_load(&b->node[0].wire.cut) && atomic_load(&b->node[1].wire.cut));
    mail_close(&b->box);
    assert_int_equal(g_fake.objects(), 0);
    tiny_free(t);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_no_graph),
        cmocka_unit_test(test_stall),
    };
    return cmocka_run_group_tests(tests, fake_setup, NULL);
}

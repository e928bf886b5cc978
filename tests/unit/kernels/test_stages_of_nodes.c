/*
 * Stages on several nodes, below the network: rows from node to node, whole and in pieces; a small
 * model on two and on four nodes against one process, bit by bit, with two steps in flight, tokens
 * in the making and many steps that nobody asks about; a node that leaves. Messages are in memory.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/mpi/wire.h"
#include "kernels/registry.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/flow.h"
#include "tests/unit/kernels/mailbox.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { MOST = 4 };

struct net {
    struct mailbox box;
    uint32_t nodes;
    struct ek_wire wire[MOST];
};

static void net_open(struct net *n, uint32_t nodes, uint64_t stall_us)
{
    *n = (struct net){.nodes = nodes};
    mail_open(&n->box, nodes);
    for (uint32_t i = 0; i < nodes; i++)
        n->wire[i] = (struct ek_wire){.node = i,
                                      .nodes = nodes,
                                      .mpi = &g_mail,
                                      .self = &n->box.end[i],
                                      .stall_us = stall_us};
}

static void net_close(struct net *n)
{
    for (uint32_t i = 0; i < n->nodes; i++)
        ek_wire_done(&n->wire[i]);
    mail_close(&n->box);
}

/* ---- rows ---- */

static int move_rows(struct ek_wire *w, uint32_t node, bool out, char *data, uint32_t rows,
                     size_t width, size_t stride)
{
    struct ek_mpi_message m = {.node = node,
                               .tag = EK_MPI_ROWS,
                               .out = out,
                               .data = data,
                               .rows = rows,
                               .width = width,
                               .stride = stride};
    return ek_wire_move(w, &m, 1, 0);
}

static bool rows_wait(struct ek_wire *w, uint32_t node)
{
    uint32_t tag = EK_MPI_ROWS;
    size_t bytes;
    return ek_wire_look(w, &node, &tag, &bytes) == 1;
}

static void test_rows(void **state)
{
    static const struct {
        uint32_t rows;
        size_t width, stride;
    } cases[] = {{1, 8, 8}, {3, 4, 12}, {700, 8, 16}, {0, 8, 8}, {257, 4, 4}};
    static char from[700 * 16], to[700 * 16];
    struct net n;
    (void)state;

    net_open(&n, 2, 300000);
    n.box.eager = sizeof(from);
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (char)(i * 7);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const size_t width = cases[c].width, stride = cases[c].stride;
        memset(to, 0, sizeof(to));
        const uint32_t rows = cases[c].rows;
        assert_false(rows_wait(&n.wire[1], 0));
        assert_int_equal(move_rows(&n.wire[0], 1, true, from, rows, width, stride), 0);
        assert_true(rows_wait(&n.wire[1], 0));
        assert_int_equal(move_rows(&n.wire[1], 0, false, to, rows, width, width), 0);
        for (size_t row = 0; row < cases[c].rows; row++)
            assert_memory_equal(to + row * width, from + row * stride, width);
    }
    /* who takes something else than was sent fails, and nobody goes on after that */
    assert_int_equal(move_rows(&n.wire[0], 1, true, from, 2, 8, 8), 0);
    assert_int_equal(move_rows(&n.wire[1], 0, false, to, 1, 8, 8), EK_ECOMM);
    assert_int_equal(move_rows(&n.wire[1], 0, true, from, 2, 8, 8), EK_ECOMM);
    assert_int_equal(move_rows(&n.wire[0], 1, false, to, 1, 8, 8), EK_ECOMM); /* late */
    net_close(&n);
}

/* ---- a model ---- */

static const struct tiny_params g_model = {.dtype = EK_BF16,
                                           .layers = 4,
                                           .hidden = 64,
                                           .q_heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 16,
                                           .rotary = 16,
                                           .ffn = 96,
                                           .vocab = 60,
                                           .bias = true,
                                           .tied = true};

struct stage_place { /* a node */
    struct ek_open_params open;
    const struct tiny *t;
    struct flow_log log;
    uint32_t steps;
    pthread_barrier_t *beside; /* as node 0 asks for a result of each step */
    int result;
    pthread_t thread;
};

static void set_places(struct stage_place *p, struct net *n, const struct tiny *t, uint32_t ranks,
                       uint32_t stages)
{
    for (uint32_t k = 0; k < n->nodes; k++)
        p[k] = (struct stage_place){.t = t,
                                    .open = {.each = ek_backend_find("cpu", NULL),
                                             .ranks = ranks,
                                             .stages = stages,
                                             .threads = ranks / n->nodes,
                                             .local = ranks / n->nodes,
                                             .first = k * ranks / n->nodes,
                                             .stall_us = n->wire[k].stall_us,
                                             .wire = &n->wire[k]}};
}

static void *run_flow(void *arg)
{
    struct stage_place *p = arg;

    flow_run(ek_ranks_backend(p->open.each), p->t, &p->open, &p->log);
    return NULL;
}

static void run_places(struct stage_place *p, uint32_t nodes, void *(*fn)(void *))
{
    for (uint32_t k = 0; k < nodes; k++)
        assert_int_equal(pthread_create(&p[k].thread, NULL, fn, &p[k]), 0);
    for (uint32_t k = 0; k < nodes; k++)
        (void)pthread_join(p[k].thread, NULL);
}

static void test_flow(void **state)
{
    static const struct {
        uint32_t nodes, ranks, stages;
    } cases[] = {{2, 2, 2}, {2, 4, 2}, {2, 4, 4}, {4, 4, 2}, {3, 3, 3}};
    struct tiny *t = tiny_new(&g_model);
    struct stage_place p[MOST];
    struct net n;
    (void)state;

    assert_non_null(t);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const uint32_t nodes = cases[c].nodes, ranks = cases[c].ranks, stages = cases[c].stages;
        struct flow_log want = {0};
        const struct ek_open_params one = {.each = ek_backend_find("cpu", NULL),
                                           .ranks = ranks,
                                           .stages = stages,
                                           .threads = ranks,
                                           .stall_us = 20000000};
        flow_run(ek_ranks_backend(one.each), t, &one, &want);
        net_open(&n, nodes, 20000000);
        set_places(p, &n, t, ranks, stages);
        run_places(p, nodes, run_flow);
        const struct flow_log *log = &p[nodes - 1].log;
        if (log->bytes != want.bytes || memcmp(log->at, want.at, want.bytes) != 0)
            fail_msg("%u nodes, %u ranks in %u stages: not as one process", nodes, ranks, stages);
        assert_true(p[0].log.bytes < want.bytes); /* it has no sequences to speak of */
        for (uint32_t k = 0; k < nodes; k++)
            flow_free(&p[k].log);
        flow_free(&want);
        net_close(&n);
    }
    tiny_free(t);
}

/* Prompts alone: what the last stage says of each is not asked for, and does not pile up. */
static void *run_prompts(void *arg)
{
    static const int32_t tokens[2] = {1, 2};
    static const uint32_t table[1] = {1};
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};
    struct stage_place *p = arg;
    struct tiny_device x;

    p->result = tiny_open_on(ek_ranks_backend(p->open.each), p->t, &p->open, 8, 4, &x);
    for (; p->result == 0 && p->steps > 0; p->steps--) {
        tiny_set(&x, &set);
        tiny_add(&x, 0, tokens, 0, 2, table, true);
        p->result = tiny_run(&x, NULL);
        if (p->beside)
            (void)pthread_barrier_wait(p->beside);
    }
    tiny_close(&x);
    return NULL;
}

static void test_prompts(void **state)
{
    struct tiny *t = tiny_new(&g_model);
    struct stage_place p[MOST];
    pthread_barrier_t beside;
    struct net n;
    (void)state;

    net_open(&n, 2, 3000000);
    n.box.eager = 0; /* what is told is done when it is taken, and not before */
    set_places(p, &n, t, 2, 2);
    assert_int_equal(pthread_barrier_init(&beside, NULL, 2), 0);
    p[0].beside = p[1].beside = &beside;
    p[0].steps = p[1].steps = 400;
    run_places(p, 2, run_prompts);
    assert_true(p[0].result == 0 && p[1].result == 0 && p[0].steps == 0);
    (void)pthread_barrier_destroy(&beside);
    net_close(&n);
    tiny_free(t);
}

/* A node that leaves in the middle of it fails the others, also those that it has nothing to do
 * with. */
static void test_leaves(void **state)
{
    struct tiny *t = tiny_new(&g_model);
    struct stage_place p[MOST];
    struct net n;
    (void)state;

    net_open(&n, 3, 20000000);
    set_places(p, &n, t, 3, 3);
    p[0].steps = p[2].steps = 100000;
    p[1].steps = 20;
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(pthread_create(&p[k].thread, NULL, run_prompts, &p[k]), 0);
    (void)pthread_join(p[1].thread, NULL);
    n.box.gone[1] = true;
    (void)pthread_join(p[0].thread, NULL);
    (void)pthread_join(p[2].thread, NULL);
    assert_true(p[0].result == EK_ECOMM && p[1].result == 0 && p[2].result == EK_ECOMM);
    net_close(&n);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

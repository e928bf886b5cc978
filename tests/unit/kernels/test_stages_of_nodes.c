/*
 * Stages on several nodes, below the network: rows from node to node, whole and in pieces; a small
 * model on two and on four nodes against one process, bit by bit, with two steps in flight, tokens
 * in the making and many steps that nobody asks about; a node that leaves. And who may join: the
 * secret that both sides of a connection prove. Connections are socket pairs.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/nodes/proof.h"
#include "kernels/nodes/wire.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/flow.h"
#include "tests/unit/kernels/tiny.h"

enum { MOST = 4 };

static void pair(struct ek_link *a, struct ek_link *b)
{
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    ek_link_init(a, fd[0], "10.0.0.2:1");
    ek_link_init(b, fd[1], "node 0 (a)");
}

/* Nodes with a connection between each two. */
struct net {
    uint32_t nodes;
    struct ek_link link[MOST][MOST];
    struct ek_wire wire[MOST];
};

static void net_open(struct net *n, uint32_t nodes, uint64_t stall_us)
{
    *n = (struct net){.nodes = nodes};
    for (uint32_t i = 0; i < nodes; i++) {
        n->wire[i] = (struct ek_wire){.node = i, .nodes = nodes, .stall_us = stall_us};
        for (uint32_t k = 0; k < i; k++) {
            pair(&n->link[i][k], &n->link[k][i]);
            n->wire[i].link[k] = &n->link[i][k];
            n->wire[k].link[i] = &n->link[k][i];
        }
    }
}

static void net_close(struct net *n)
{
    for (uint32_t i = 0; i < n->nodes; i++)
        for (uint32_t k = 0; k < n->nodes; k++)
            if (i != k)
                ek_link_done(&n->link[i][k]);
}

/* ---- rows ---- */

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
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (char)(i * 7);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const size_t width = cases[c].width, stride = cases[c].stride;
        memset(to, 0, sizeof(to));
        const struct ek_wire_rows out = {from, cases[c].rows, width, stride};
        const struct ek_wire_rows in = {to, cases[c].rows, width, width};
        assert_false(ek_wire_waiting(&n.wire[1], 0));
        assert_int_equal(ek_wire_send(&n.wire[0], 1, &out), 0);
        assert_true(ek_wire_waiting(&n.wire[1], 0));
        assert_int_equal(ek_wire_recv(&n.wire[1], 0, &in, 0), 0);
        for (size_t row = 0; row < cases[c].rows; row++)
            assert_memory_equal(to + row * width, from + row * stride, width);
    }
    /* who takes something else than was sent fails, and nobody goes on after that */
    const struct ek_wire_rows out = {from, 2, 8, 8}, in = {to, 1, 8, 8};
    assert_int_equal(ek_wire_send(&n.wire[0], 1, &out), 0);
    assert_int_equal(ek_wire_recv(&n.wire[1], 0, &in, 0), EK_ECOMM);
    assert_int_equal(ek_wire_send(&n.wire[1], 0, &out), EK_ECOMM);
    assert_int_equal(ek_wire_recv(&n.wire[0], 1, &in, 0), EK_ECOMM);
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

struct place { /* a node */
    struct ek_open_params open;
    const struct tiny *t;
    struct flow_log log;
    uint32_t steps;
    pthread_barrier_t *beside; /* as node 0 asks for a result of each step */
    int result;
    pthread_t thread;
};

static void set_places(struct place *p, struct net *n, const struct tiny *t, uint32_t ranks,
                       uint32_t stages)
{
    for (uint32_t k = 0; k < n->nodes; k++)
        p[k] = (struct place){.t = t,
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
    struct place *p = arg;

    flow_run(ek_ranks_backend(p->open.each), p->t, &p->open, &p->log);
    return NULL;
}

static void run_places(struct place *p, uint32_t nodes, void *(*fn)(void *))
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
    struct place p[MOST];
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
    const struct ek_slot_set set = {.top_p = 1.0f};
    struct place *p = arg;
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
    struct place p[MOST];
    const int small = 4096;
    pthread_barrier_t beside;
    struct net n;
    (void)state;

    net_open(&n, 2, 3000000);
    assert_int_equal(setsockopt(n.link[1][0].fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
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
    struct place p[MOST];
    struct net n;
    (void)state;

    net_open(&n, 3, 20000000);
    set_places(p, &n, t, 3, 3);
    p[0].steps = p[2].steps = 100000;
    p[1].steps = 20;
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(pthread_create(&p[k].thread, NULL, run_prompts, &p[k]), 0);
    (void)pthread_join(p[1].thread, NULL);
    ek_wire_cut(&n.wire[1]);
    (void)pthread_join(p[0].thread, NULL);
    (void)pthread_join(p[2].thread, NULL);
    assert_true(p[0].result == EK_ECOMM && p[1].result == 0 && p[2].result == EK_ECOMM);
    net_close(&n);
    tiny_free(t);
}

/* ---- the secret ---- */

struct door {
    struct ek_link link;
    struct ek_secret secret;
    struct ek_fault fault;
    int result;
    bool keen; /* says HELLO at once, whatever comes */
};

static void *knock(void *arg)
{
    struct door *d = arg;
    const struct ek_node_card card = {.host = "b", .stages = 1};

    d->result = d->keen ? 0 : ek_proof_call(&d->link, &d->secret, 3000000, &d->fault);
    if (d->result == 0)
        d->result = ek_link_send(&d->link, EK_FRAME_HELLO, &card, sizeof(card), 3000000);
    if (d->result < 0)
        ek_link_cut(&d->link);
    return NULL;
}

static void run_doors(struct door *called, struct door *caller)
{
    struct ek_inbox in = {.most = sizeof(struct ek_node_card)};
    struct ek_frame f;
    pthread_t thread;

    pair(&called->link, &caller->link);
    assert_int_equal(pthread_create(&thread, NULL, knock, caller), 0);
    called->result =
        ek_proof_answer(&called->link, &called->secret, &in, &f, 3000000, &called->fault);
    if (called->result == 0)
        assert_int_equal(f.kind, EK_FRAME_HELLO);
    if (called->result < 0) { /* as muster.c says it */
        struct ek_node_fault n = {.code = -EBADMSG};
        memcpy(n.msg, called->fault.msg,
               sizeof(n.msg) < sizeof(called->fault.msg) ? sizeof(n.msg) - 1
                                                         : sizeof(called->fault.msg) - 1);
        (void)ek_link_send(&called->link, EK_FRAME_REFUSE, &n, sizeof(n), 3000000);
        ek_link_cut(&called->link);
    }
    (void)pthread_join(thread, NULL);
    ek_inbox_done(&in);
    ek_link_done(&called->link);
    ek_link_done(&caller->link);
}

static void test_secret(void **state)
{
    static const char right[] = "a secret of all nodes", other[] = "b secret of all nodes";
    static const struct {
        const char *called, *caller;
        bool keen;
        int results[2];
        const char *say[2]; /* of who is called, of who calls */
    } cases[] = {
        {NULL, NULL, false, {0, 0}, {NULL, NULL}},
        {right, right, false, {0, 0}, {NULL, NULL}},
        {right, other, false, {-ECONNRESET, -EBADMSG}, {NULL, "does not have the key"}},
        {right, NULL, false, {-EBADMSG, 0}, {"b has no --master-key-file", NULL}},
        {NULL, right, false, {-EBADMSG, -EBADMSG}, {"has a --master-key", "has a --master-key"}},
        {right, right, true, {-EBADMSG, 0}, {"b has no --master-key-file", NULL}},
    };
    (void)state;

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct door d[2] = {{.secret = {cases[c].called, sizeof(right)}},
                            {.secret = {cases[c].caller, sizeof(right)}, .keen = cases[c].keen}};
        run_doors(&d[0], &d[1]);
        for (int i = 0; i < 2; i++) {
            const bool left = cases[c].results[i] == -ECONNRESET && d[i].result == -ETIMEDOUT;
            if (d[i].result != cases[c].results[i] && !left)
                fail_msg("case %zu, side %d: %d %s", c, i, d[i].result, d[i].fault.msg);
            if (cases[c].say[i] && !strstr(d[i].fault.msg, cases[c].say[i]))
                fail_msg("case %zu, side %d: %s", c, i, d[i].fault.msg);
        }
    }
}

static void *answer(void *arg)
{
    struct door *d = arg;
    struct ek_inbox in = {.most = sizeof(struct ek_node_card)};
    struct ek_frame f;

    d->result = ek_proof_answer(&d->link, &d->secret, &in, &f, 3000000, &d->fault);
    ek_inbox_done(&in);
    return NULL;
}

/* What the other side said of the two numbers proves nothing when it is said back to it. */
static void test_reflect(void **state)
{
    static const char key[] = "a secret of all nodes";
    struct door d = {.secret = {key, sizeof(key)}};
    struct ek_inbox in = {0};
    struct ek_link caller;
    struct ek_frame f;
    const struct ek_knock knocks = {{1, 2, 3}};
    struct ek_challenge told;
    pthread_t thread;
    (void)state;

    pair(&d.link, &caller);
    assert_int_equal(pthread_create(&thread, NULL, answer, &d), 0);
    assert_int_equal(ek_link_send(&caller, EK_FRAME_KNOCK, &knocks, sizeof(knocks), 0), 0);
    assert_int_equal(ek_link_recv(&caller, &in, &f, 3000000, NULL), 0);
    assert_int_equal(f.kind, EK_FRAME_CHALLENGE);
    memcpy(&told, in.data, sizeof(told));
    assert_int_equal(ek_link_send(&caller, EK_FRAME_PROOF, told.proof, EK_MAC_BYTES, 0), 0);
    (void)pthread_join(thread, NULL);
    assert_int_equal(d.result, -EBADMSG);
    assert_non_null(strstr(d.fault.msg, "10.0.0.2:1 does not know the key"));
    ek_inbox_done(&in);
    ek_link_done(&d.link);
    ek_link_done(&caller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_flow),
        cmocka_unit_test(test_prompts), cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_secret),  cmocka_unit_test(test_reflect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

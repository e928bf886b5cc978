/*
 * Nodes, below MPI: models that are told apart; floats shared by two and by three nodes; sums and
 * columns of ranks on two nodes against those of one process, bit by bit; a node that is gone or
 * silent in the middle. Messages are in memory.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/pool.h"
#include "kernels/fingerprint.h"
#include "kernels/mpi/wire.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/mailbox.h"
#include "tests/unit/kernels/tiny.h"

/* ---- models ---- */

/* A model is told from others: by its list, its constants, and its weights' bytes. */
static void test_sums(void **state)
{
    const struct tiny_params p = {.dtype = EK_F32,
                                  .layers = 2,
                                  .hidden = 32,
                                  .q_heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .rotary = 8,
                                  .ffn = 64,
                                  .vocab = 96};
    struct tiny *a = tiny_new(&p), *b = tiny_new(&p);
    (void)state;

    assert_true(a && b);
    uint64_t graph = ek_graph_sum(&a->g), weight = ek_weight_sum(&a->g, &a->files);
    assert_true(ek_graph_sum(&b->g) == graph && ek_weight_sum(&b->g, &b->files) == weight);
    b->op[1].u.norm.eps *= 2;
    assert_true(ek_graph_sum(&b->g) != graph);
    for (size_t i = 0; i < b->floats; i++) /* somewhere in each weight */
        b->raw[i] += 1.0f;
    assert_true(ek_weight_sum(&b->g, &b->files) != weight);
    b->files.count = 0; /* what lies in no file is not read */
    (void)ek_weight_sum(&b->g, &b->files);
    tiny_free(a);
    tiny_free(b);
}

/* ---- floats of nodes ---- */

enum { MOST_NODES = 3, EACH = 200000 }; /* more than a socket holds */

struct shared {
    struct mailbox box;
    struct ek_wire wire[MOST_NODES];
    uint32_t lost[MOST_NODES], nodes;
    int code[MOST_NODES];
};

struct sharer {
    struct shared *s;
    uint32_t node, rounds;
    int bad, result;
    pthread_t thread;
};

static void on_failed(void *ctx, uint32_t node, int code)
{
    struct shared *s = ((struct sharer *)ctx)->s;
    uint32_t me = ((struct sharer *)ctx)->node;

    s->lost[me] = node;
    s->code[me] = code;
}

static void open_wires(struct shared *s, struct sharer *n, uint32_t nodes, uint64_t stall_us)
{
    *s = (struct shared){.nodes = nodes};
    mail_open(&s->box, nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        n[i] = (struct sharer){.s = s, .node = i, .rounds = 3};
        s->lost[i] = UINT32_MAX;
        s->wire[i] = (struct ek_wire){.node = i,
                                      .nodes = nodes,
                                      .mpi = &g_mail,
                                      .self = &s->box.end[i],
                                      .stall_us = stall_us,
                                      .failed = on_failed,
                                      .ctx = &n[i]};
    }
}

static void close_wires(struct shared *s)
{
    mail_close(&s->box);
}

static void *share_main(void *arg)
{
    struct sharer *n = arg;
    float *block = calloc(MOST_NODES, EACH * sizeof(*block));

    for (uint32_t round = 0; block && round < n->rounds && n->result == 0; round++) {
        const size_t each = round == 1 ? 1 : EACH;
        for (size_t i = 0; i < each; i++)
            block[n->node * each + i] = (float)(n->node * 1000 + round + i % 7);
        n->result = ek_wire_share(&n->s->wire[n->node], block, each);
        for (uint32_t k = 0; n->result == 0 && k < n->s->nodes; k++)
            for (size_t i = 0; i < each; i++)
                n->bad += block[k * each + i] != (float)(k * 1000 + round + i % 7);
    }
    free(block);
    return NULL;
}

static void run_sharers(struct sharer *n, uint32_t nodes)
{
    for (uint32_t i = 0; i < nodes; i++)
        assert_int_equal(pthread_create(&n[i].thread, NULL, share_main, &n[i]), 0);
    for (uint32_t i = 0; i < nodes; i++)
        (void)pthread_join(n[i].thread, NULL);
}

static void test_share(void **state)
{
    struct sharer n[MOST_NODES];
    struct shared s;
    (void)state;

    for (uint32_t nodes = 2; nodes <= MOST_NODES; nodes++) {
        open_wires(&s, n, nodes, 0);
        run_sharers(n, nodes);
        for (uint32_t i = 0; i < nodes; i++)
            assert_true(n[i].result == 0 && n[i].bad == 0);
        close_wires(&s);
    }
}

/* One leaves after a round: who waits for it is told which it was, and nobody waits. */
static void test_share_leaves(void **state)
{
    struct sharer n[MOST_NODES];
    struct shared s;
    float block[MOST_NODES] = {0};
    (void)state;

    open_wires(&s, n, 3, 0);
    n[2].rounds = 1;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&n[i].thread, NULL, share_main, &n[i]), 0);
    (void)pthread_join(n[2].thread, NULL);
    s.box.gone[2] = true;
    (void)pthread_join(n[0].thread, NULL);
    (void)pthread_join(n[1].thread, NULL);
    assert_true(n[0].result == EK_ECOMM && n[1].result == EK_ECOMM);
    const uint32_t who = s.lost[0] == 2 ? 0 : 1; /* the other may have lost that one by then */
    assert_true(s.lost[who] == 2 && s.code[who] == -ECONNRESET);
    assert_int_equal(ek_wire_share(&s.wire[0], block, 1), EK_ECOMM); /* for good */
    close_wires(&s);
}

static void test_share_stalls(void **state)
{
    struct sharer n[MOST_NODES];
    struct shared s;
    (void)state;

    open_wires(&s, n, 2, 300000);
    n[1].rounds = 0; /* it is there and says nothing */
    run_sharers(n, 2);
    assert_true(n[0].result == EK_ECOMM && s.lost[0] == 1 && s.code[0] == -ETIMEDOUT);
    close_wires(&s);
}

/* Nodes that are not at the same place do not take each other's floats. */
static void test_share_confused(void **state)
{
    struct sharer n[MOST_NODES];
    struct shared s;
    (void)state;

    open_wires(&s, n, 2, 0);
    float block[2 * 8] = {0};
    s.wire[1].stall_us = 200000;
    n[0].rounds = 1;
    assert_int_equal(pthread_create(&n[0].thread, NULL, share_main, &n[0]), 0);
    assert_int_equal(ek_wire_share(&s.wire[1], block, 8), EK_ECOMM);
    s.box.gone[1] = true;
    (void)pthread_join(n[0].thread, NULL);
    assert_true(n[0].result == EK_ECOMM && s.code[1] == -EPROTO);
    close_wires(&s);
}

/* ---- ranks of several nodes ---- */

enum { RANKS = 4, TEAM = 2, ROWS = 3, WIDTH = 300001, STRIDE = 300004 };

struct crowd {
    struct shared s;
    struct sharer node[MOST_NODES];
    struct ek_group *group[2];
    uint32_t begin[RANKS + 1];
    struct one {
        struct crowd *c;
        uint32_t rank;
        struct cpu_pool *pool;
        struct ek_collective *end;
        float *data;
        int results;
        pthread_t thread;
    } one[RANKS];
};

static float at(uint32_t rank, uint32_t row, uint32_t col)
{
    uint64_t seed = rank * 1000003ull + row * 7919ull + col;
    return tiny_float(&seed) * (rank == 2 ? 1e4f : 1.0f); /* so that the order can be seen */
}

static int wrong(const struct one *o, bool gathered)
{
    int bad = 0;

    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t col = 0; col < WIDTH; col++) {
            float want = at(0, row, col);
            for (uint32_t r = 1; r < RANKS && !gathered; r++)
                want += at(r, row, col);
            for (uint32_t r = 0; r < RANKS && gathered; r++)
                if (col >= o->c->begin[r] && col < o->c->begin[r + 1])
                    want = at(r, row, col);
            bad += o->data[(size_t)row * STRIDE + col] != want;
        }
    return bad;
}

static void talk(void *ctx, uint32_t member)
{
    struct one *o = ctx;
    const struct ek_exchange x = {.data = o->data,
                                  .dtype = EK_F32,
                                  .rows = ROWS,
                                  .width = WIDTH,
                                  .stride = STRIDE,
                                  .begin = o->c->begin,
                                  .member = member};

    for (int round = 0; round < 2; round++) {
        if (member == 0)
            for (uint32_t row = 0; row < ROWS; row++)
                for (uint32_t col = 0; col < WIDTH; col++)
                    o->data[(size_t)row * STRIDE + col] = at(o->rank, row, col);
        int r = round ? o->end->ops->gather(o->end, &x) : o->end->ops->reduce(o->end, &x);
        r = r < 0 ? r : o->end->ops->barrier(o->end, member);
        if (member == 0)
            o->results += r < 0 ? 1 : wrong(o, round);
    }
}

static void *rank_main(void *arg)
{
    struct one *o = arg;

    cpu_pool_run(o->pool, talk, o);
    return NULL;
}

static void crowd_open(struct crowd *c)
{
    open_wires(&c->s, c->node, 2, 0);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(cpu_group_new(RANKS / 2, 1, 0, &c->group[k]), 0);
        assert_int_equal(cpu_group_span(c->group[k], k * RANKS / 2, RANKS, 1, &c->s.wire[k]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        struct one *o = &c->one[r];
        *o = (struct one){.c = c, .rank = r};
        c->begin[r + 1] = (r + 1) * WIDTH / RANKS;
        o->data = calloc(ROWS, STRIDE * sizeof(*o->data));
        assert_non_null(o->data);
        assert_int_equal(cpu_pool_new(TEAM, NULL, &o->pool), 0);
        assert_int_equal(cpu_group_join(c->group[r * 2 / RANKS], r, o->pool, &o->end), 0);
        assert_true(o->end->rank == r && o->end->ranks == RANKS);
    }
}

static void crowd_close(struct crowd *c)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        c->one[r].end->ops->leave(c->one[r].end);
        cpu_pool_free(c->one[r].pool);
        free(c->one[r].data);
    }
    cpu_group_free(c->group[0]);
    cpu_group_free(c->group[1]);
    close_wires(&c->s);
}

/* In more than one piece, both by rows and within a row. */
static void test_span(void **state)
{
    struct crowd *c = calloc(1, sizeof(*c));
    (void)state;

    assert_non_null(c);
    crowd_open(c);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&c->one[r].thread, NULL, rank_main, &c->one[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        (void)pthread_join(c->one[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(c->one[r].results, 0);
    crowd_close(c);
    free(c);
}

/* A group that fails on one node ends its process: the ranks of the other are in the middle of a
 * sum. */
static void test_span_fails(void **state)
{
    struct crowd *c = calloc(1, sizeof(*c));
    (void)state;

    assert_non_null(c);
    crowd_open(c);
    for (uint32_t r = 0; r < RANKS / 2; r++)
        assert_int_equal(pthread_create(&c->one[r].thread, NULL, rank_main, &c->one[r]), 0);
    (void)usleep(20000); /* they may be anywhere: it has to end the same way */
    cpu_group_abort(c->group[1]);
    c->s.box.gone[1] = true;
    for (uint32_t r = 0; r < RANKS / 2; r++)
        (void)pthread_join(c->one[r].thread, NULL);
    assert_true(c->one[0].results == 2 && c->one[1].results == 2);
    assert_int_equal(c->one[0].end->ops->state(c->one[0].end), EK_ECOMM);
    assert_int_equal(c->one[3].end->ops->state(c->one[3].end), EK_ECOMM);
    crowd_close(c);
    free(c);
}

static void test_span_memory(void **state)
{
    struct ek_group *g;
    struct ek_wire wire = {.nodes = 2};
    (void)state;

    assert_int_equal(cpu_group_new(1, 1, 0, &g), 0);
    for (int i = 1; i <= 2; i++) {
        alloc_fail_at(i);
        assert_int_equal(cpu_group_span(g, 0, 2, 1, &wire), -ENOMEM);
        alloc_fail_at(0);
    }
    assert_int_equal(cpu_group_span(g, 2, 2, 1, &wire), -EINVAL);
    assert_int_equal(cpu_group_span(g, 0, 65, 1, &wire), -EINVAL);
    cpu_group_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),           cmocka_unit_test(test_share),
        cmocka_unit_test(test_share_leaves),   cmocka_unit_test(test_share_stalls),
        cmocka_unit_test(test_share_confused), cmocka_unit_test(test_span),
        cmocka_unit_test(test_span_fails),     cmocka_unit_test(test_span_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

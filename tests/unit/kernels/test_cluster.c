/*
 * Nodes as threads, with messages in memory, on a backend that computes nothing and keeps what it
 * was asked: every call of backend.h comes to the other node as it was made; a load or a pool that
 * only the other node cannot have, tokens on which they do not agree, a step that fails there, a
 * node that is gone; nodes that do not fit, or are silent; what goes between them in a step.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/mpi/cluster.h"
#include "kernels/mpi/wire.h"
#include "tests/unit/kernels/mailbox.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { BLOCKS = 24, BLOCK_SIZE = 8, MOST = 4 };

/* ---- a backend that keeps what it is asked ---- */

struct fake { /* of a node; its ranks are the devices */
    uint32_t rank, opened;
    bool samples;                     /* a rank of the last stage */
    int load, resize, forward, error; /* codes of the calls, and of the result */
    int32_t more;                     /* added to tokens */
    struct ek_kv_params kv;
    struct ek_plan_request plan;
    uint32_t blocks, steps, masks, copies, rows;
    uint64_t sum; /* of all bytes of steps and masks */
    uint64_t room;
    _Atomic int aborted;
};

struct ek_group {
    struct fake *f;
};

struct ek_device {
    struct fake *f;
    const struct ek_step *step[2];
};

static struct fake g_fake[MOST]; /* of each node: the table has no other way to them */

static int fake_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                      struct ek_fault *fault)
{
    (void)p;
    (void)fault;
    *ret_info = (struct ek_device_info){.name = "fake", .memory_bytes = 1u << 30};
    return 0;
}

static int fake_group_new(const struct ek_open_params *p, struct ek_group **ret_group,
                          struct ek_fault *fault)
{
    struct ek_group *g = calloc(1, sizeof(*g));

    (void)fault;
    if (!g)
        return -ENOMEM;
    g->f = &g_fake[p->first];
    if (p->first == 0) /* what the first node writes the others read */
        memset(p->meeting, 0x5a, EK_MEETING_BYTES);
    assert_true(p->meeting[0] == 0x5a && p->meeting[EK_MEETING_BYTES - 1] == 0x5a);
    *ret_group = g;
    return 0;
}

static void fake_group_abort(struct ek_group *g)
{
    atomic_fetch_add(&g->f->aborted, 1);
}

static void fake_group_free(struct ek_group *g)
{
    free(g);
}

static int fake_open(const struct ek_open_params *p, struct ek_device **ret_device,
                     struct ek_fault *fault)
{
    struct ek_device *d = calloc(1, sizeof(*d));

    (void)fault;
    if (!d)
        return -ENOMEM;
    d->f = &g_fake[p->first];
    d->f->rank = p->rank;
    d->f->samples = p->rank >= p->ranks - ek_open_shares(p);
    d->f->opened++;
    *ret_device = d;
    return 0;
}

static void fake_close(struct ek_device *d)
{
    free(d);
}

static int fake_load(struct ek_device *d, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    assert_true(files->count == 1);
    if (progress)
        progress(ctx, 1, 1);
    d->f->plan = *q;
    if (d->f->load < 0)
        ek_fault_write(fault, "device", "No room for weights.");
    return d->f->load;
}

static int fake_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    d->f->kv = *p;
    d->f->blocks = p->blocks;
    return 0;
}

static int fake_kv_resize(struct ek_device *d, uint32_t blocks)
{
    if (d->f->resize < 0 && blocks > d->f->blocks)
        return d->f->resize;
    d->f->blocks = blocks;
    return 0;
}

static void add(struct fake *f, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        f->sum = f->sum * 1099511628211ull + ((const uint8_t *)data)[i];
}

static int fake_forward(struct ek_device *d, const struct ek_step *step)
{
    if (d->f->forward < 0)
        return d->f->forward;
    struct ek_step *packed = calloc(1, step->bytes); /* as it is sent */
    assert_non_null(packed);
    d->step[step->id & 1] = step;
    ek_step_pack(step, packed);
    add(d->f, packed, packed->bytes);
    free(packed);
    d->f->copies += step->copies;
    d->f->rows += step->rows;
    return 0;
}

static int fake_sample(struct ek_device *d, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    assert_ptr_equal(step, d->step[step->id & 1]);
    if (masks) {
        add(d->f, masks, sizeof(*masks) + masks->rows * masks->words * sizeof(uint32_t));
        d->f->masks++;
    }
    return 0;
}

static int fake_wait(struct ek_device *d, uint64_t id, struct ek_result *r, size_t bytes,
                     uint64_t timeout_us)
{
    const struct ek_step *s = d->step[id & 1];

    (void)timeout_us;
    assert_true(s && s->id == id && bytes >= ek_result_size(s->seqs));
    *r = (struct ek_result){.step = id, .error = d->f->error};
    r->seqs = d->f->samples ? s->seqs : 0;
    for (uint32_t i = 0; i < r->seqs; i++)
        r->seq[i] =
            (struct ek_result_seq){.slot = i, .tokens = 1, .token = {(int32_t)id + d->f->more}};
    d->f->steps++;
    return 0;
}

static void fake_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    *ret_stats = (struct ek_device_stats){.kv_bytes = d->f->blocks, .room_bytes = d->f->room};
}

static const struct ek_backend g_each = {.abi = EK_BACKEND_ABI,
                                         .size = sizeof(struct ek_backend),
                                         .name = "cpu",
                                         .in_host_memory = true,
                                         .probe = fake_probe,
                                         .open = fake_open,
                                         .close = fake_close,
                                         .load = fake_load,
                                         .kv_open = fake_kv_open,
                                         .kv_resize = fake_kv_resize,
                                         .forward = fake_forward,
                                         .sample = fake_sample,
                                         .wait = fake_wait,
                                         .stats = fake_stats,
                                         .group_new = fake_group_new,
                                         .group_abort = fake_group_abort,
                                         .group_free = fake_group_free};

/* ---- nodes ---- */

struct node {
    uint32_t node, nodes, stages; /* a rank on each node */
    struct mailbox *box;
    const struct tiny *t;
    struct ek_cluster *c;
    int code, result;
    uint32_t length, ready;
    char lost[480];
    _Atomic bool told; /* `lost` is written */
    struct ek_fault fault;
    pthread_t thread;
};

static void on_lost(void *ctx, const char *why)
{
    struct node *n = ctx;
    (void)snprintf(n->lost, sizeof(n->lost), "%s", why);
    atomic_store(&n->told, true);
}

static struct ek_cluster_params params(struct node *n)
{
    struct ek_cluster_params p = {
        .node = n->node,
        .nodes = n->nodes,
        .mpi = &g_mail,
        .self = &n->box->end[n->node],
        .wait_us = 20000000,
        .stall_us = 20000000,
        .card = {.ranks = n->nodes, .stages = n->stages, .lines = 1, .line = {{"is 7", "mend"}}},
        .lost = on_lost,
        .ctx = n};

    (void)snprintf(p.card.host, sizeof(p.card.host), "host%u", n->node);
    return p;
}

static void on_loading(void *ctx, uint32_t max_model_len)
{
    ((struct node *)ctx)->length = max_model_len;
}

static void on_ready(void *ctx, uint32_t blocks)
{
    assert_int_equal(blocks, BLOCKS);
    ((struct node *)ctx)->ready++;
}

static struct ek_open_params open_params(const struct node *n)
{
    return (struct ek_open_params){.ranks = n->nodes, .stages = n->stages, .each = &g_each};
}

static void *follower(void *arg)
{
    struct node *n = arg;
    const struct ek_cluster_params p = params(n);
    struct ek_follow_params f = {.backend = ek_ranks_backend(&g_each),
                                 .open = open_params(n),
                                 .graph = &n->t->g,
                                 .files = &n->t->files,
                                 .loading = on_loading,
                                 .ready = on_ready,
                                 .ctx = n};

    n->result = ek_cluster_new(&p, &n->c, &n->fault);
    if (n->result < 0)
        return NULL;
    n->result = ek_cluster_follow(n->c, &f, &n->code, &n->fault);
    n->box->gone[n->node] = n->result < 0; /* the process ends */
    ek_cluster_free(n->c);
    return NULL;
}

struct cluster_pair {
    struct mailbox box;
    struct tiny *t;
    struct node n[MOST];
    struct tiny_device x;
};

static struct ek_open_params lead_open_params(struct cluster_pair *p)
{
    struct ek_open_params open = open_params(&p->n[0]);

    ek_cluster_open(p->n[0].c, &open);
    return open;
}

static void meet_nodes(struct cluster_pair *p, uint32_t nodes, uint32_t stages)
{
    const struct tiny_params params_of = {.dtype = EK_F32,
                                          .layers = MOST,
                                          .hidden = 32,
                                          .q_heads = 12,
                                          .kv_heads = 12,
                                          .head_dim = 8,
                                          .rotary = 8,
                                          .ffn = 96,
                                          .vocab = 96};
    *p = (struct cluster_pair){.t = tiny_new(&params_of)};
    mail_open(&p->box, nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        p->n[i] =
            (struct node){.node = i, .nodes = nodes, .stages = stages, .box = &p->box, .t = p->t};
        if (i > 0)
            assert_int_equal(pthread_create(&p->n[i].thread, NULL, follower, &p->n[i]), 0);
    }
    const struct ek_cluster_params mine = params(&p->n[0]);
    assert_int_equal(ek_cluster_new(&mine, &p->n[0].c, &p->n[0].fault), 0);
}

static void meet(struct cluster_pair *p)
{
    meet_nodes(p, 2, 1);
}

static int begin_met(struct cluster_pair *p)
{
    const struct ek_open_params open = lead_open_params(p);
    const struct ek_plan_request q = {.graph = &p->t->g,
                                      .ceiling = {512, 16, 1024, 8, 4096, 8},
                                      .logit_rows = 24,
                                      .block_size = BLOCK_SIZE,
                                      .max_model_len = 321};
    return tiny_open_for(ek_ranks_backend(&g_each), p->t, &open, &q, BLOCKS, &p->x);
}

static int begin(struct cluster_pair *p)
{
    meet(p);
    return begin_met(p);
}

static void reset(void)
{
    memset(g_fake, 0, sizeof(g_fake));
}

static void end(struct cluster_pair *p)
{
    for (uint32_t i = 1; i < p->n[0].nodes; i++)
        (void)pthread_join(p->n[i].thread, NULL);
    if (p->x.b)
        tiny_close(&p->x);
    ek_cluster_free(p->n[0].c);
    mail_close(&p->box);
    tiny_free(p->t);
}

static int step(struct cluster_pair *p, const struct ek_masks *masks)
{
    static const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const uint32_t table[2] = {1, 2};
    const struct ek_slot_set set = {.sampling.top_p = 1.0f};

    tiny_set(&p->x, &set);
    tiny_add(&p->x, 0, tokens, 0, 9, table, true);
    ek_step_copies(p->x.step)[p->x.step->copies++] =
        (struct ek_block_copy){.from = 1, .to = 3, .to_tier = EK_TIER_HOST};
    return tiny_run(&p->x, masks);
}

/* The pool has to fit where the least room is, whichever node that is. */
static void test_least_room(void **state)
{
    (void)state;
    for (uint64_t other = 0; other < 3; other++) {
        struct ek_device_stats s;
        struct cluster_pair p;
        reset();
        g_fake[0].room = other > 0 ? 500 : 0;
        g_fake[1].room = other * 300;
        assert_int_equal(begin(&p), 0);
        p.x.b->stats(p.x.d, &s);
        assert_int_equal(s.room_bytes, other < 2 ? other * 300 : 500);
        ek_cluster_bye(p.n[0].c, 0);
        end(&p);
    }
}

static void test_whole_life(void **state)
{
    union {
        struct ek_masks m;
        uint32_t words[2 + 3];
    } masks = {.words = {1, 3, 0xff, 1, 2}};
    struct cluster_pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(step(&p, i % 3 == 0 ? &masks.m : NULL), 0);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 10), 0);
    assert_true(g_fake[0].blocks == 10 && g_fake[1].blocks == 10);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 30), 0);
    assert_int_equal(step(&p, NULL), 0);
    assert_int_equal(ek_cluster_leaver(p.n[0].c), 0);
    ek_cluster_leave(p.n[1].c);
    assert_int_equal(ek_cluster_leaver(p.n[0].c), 1);
    assert_int_equal(ek_cluster_leaver(p.n[0].c), 0);
    for (int of = 0; of < 2; of++) /* all have the cards of all */
        assert_string_equal(ek_cluster_cards(p.n[of].c)[1].host, "host1");
    ek_cluster_bye(p.n[0].c, 77);
    end(&p);
    assert_true(p.n[1].result == 0 && p.n[1].code == 77);
    assert_true(p.n[1].ready == 1 && p.n[1].length == 321);
    assert_string_equal(p.n[0].lost, "");
    const struct fake *a = &g_fake[0], *b = &g_fake[1];
    assert_true(a->sum == b->sum && a->steps == 21 && b->steps == 21 && b->masks == 7);
    assert_true(b->copies == 21 && b->rows == 21 * 9 && b->blocks == 30);
    assert_memory_equal(&a->kv, &b->kv, sizeof(a->kv));
    assert_memory_equal(&a->plan.ceiling, &b->plan.ceiling, sizeof(a->plan.ceiling));
    assert_true(a->plan.logit_rows == b->plan.logit_rows && a->rank == 0 && b->rank == 1);
}

static void test_load_fails_there(void **state)
{
    struct cluster_pair p;
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d = NULL;
    (void)state;

    reset();
    g_fake[1].load = EK_EDEVMEM;
    meet(&p);
    const struct ek_open_params open = lead_open_params(&p);
    const struct ek_backend *b = ek_ranks_backend(&g_each);
    const struct ek_plan_request q = {.graph = &p.t->g,
                                      .ceiling = {64, 4, 64, 8, 64, 8},
                                      .logit_rows = 8,
                                      .block_size = 8,
                                      .offload_bytes = 1 << 20,
                                      .share = 0.5};
    assert_int_equal(b->open(&open, &d, NULL), 0);
    assert_int_equal(b->load(d, &q, &p.t->files, NULL, NULL, &fault), EK_EDEVMEM);
    for (int i = 0; i < 2; i++) { /* all of it came to both */
        const struct ek_plan_request *got = &g_fake[i].plan;
        assert_memory_equal(&got->ceiling, &q.ceiling, sizeof(q.ceiling));
        assert_true(got->logit_rows == 8 && got->block_size == 8 && got->share == 0.5);
        assert_int_equal(got->offload_bytes, q.offload_bytes);
    }
    assert_string_equal(fault.msg, "node 1 (host1): No room for weights.");
    b->close(d);
    end(&p);
    assert_int_equal(p.n[1].result, EK_EDEVMEM);
    assert_string_equal(p.n[1].fault.msg, "No room for weights.");
}

static void test_load_fails_here(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    g_fake[0].load = -ENOMEM;
    assert_int_equal(begin(&p), -ENOMEM);
    ek_cluster_abort(p.n[0].c, 70);
    assert_int_equal(p.box.aborted, 1); /* which ends the other, whatever it does: */
    p.box.gone[0] = true;
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
}

/* A pool that one node cannot have is as it was on both, and work goes on. */
static void test_resize_fails_there(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    g_fake[1].resize = EK_EDEVMEM;
    assert_int_equal(begin(&p), 0);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 40), EK_EDEVMEM);
    assert_true(g_fake[0].blocks == BLOCKS && g_fake[1].blocks == BLOCKS);
    assert_int_equal(atomic_load(&g_fake[0].aborted), 0);
    assert_int_equal(step(&p, NULL), 0);
    ek_cluster_bye(p.n[0].c, 0);
    end(&p);
    assert_true(p.n[1].result == 0 && p.n[1].code == 0);
}

static void test_disagree(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    assert_int_equal(step(&p, NULL), 0);
    g_fake[1].more = 1;
    assert_int_equal(step(&p, NULL), EK_ECOMM);
    assert_non_null(
        strstr(p.n[0].lost, "node 1 (host1) sampled other tokens than node 0 in step 2"));
    p.box.gone[0] = true; /* as when this process ends */
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
}

static void test_step_fails_there(void **state)
{
    static const struct {
        int forward, error, code;
        const char *says;
    } cases[] = {
        {-ENOMEM, 0, EK_ECOMM, "cannot reach node 1"},
        {0, EK_EDEVICE, EK_EDEVICE, "device fault"},
        {0, EK_EDEVMEM, EK_EDEVMEM, "device out of memory"},
    };
    struct cluster_pair p;
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reset();
        assert_int_equal(begin(&p), 0);
        g_fake[1].forward = cases[i].forward;
        g_fake[1].error = cases[i].error;
        assert_int_equal(step(&p, NULL), cases[i].code);
        while (!atomic_load(&p.n[0].told)) /* the word comes behind the code */
            (void)usleep(1000);
        const char *why = p.n[0].lost;
        p.box.gone[0] = true;
        end(&p);
        assert_true(p.n[1].result < 0);
        if (!strstr(why, cases[i].says) && !strstr(why, "A rank of node 0"))
            fail_msg("case %zu: %s", i, why);
    }
}

/* Node 0 says in a step that the other one is gone, and the other one when it looks for orders. */
static void test_gone(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    p.box.gone[1] = true;
    assert_int_equal(step(&p, NULL), EK_ECOMM);
    assert_non_null(strstr(p.n[0].lost, "MPI cannot reach node 1 (host1) any more"));
    p.box.gone[0] = true;
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
    assert_non_null(strstr(p.n[1].fault.msg, "MPI cannot reach node 0 (host0) any more"));
}

/* ---- what goes between nodes in a step ---- */

static const union {
    struct ek_masks m;
    uint32_t words[2 + 3];
} g_masks = {.words = {1, 3, 0xff, 1, 2}};

/* A step of one sequence, in a group that has nothing else to say. */
static void traffic_of(uint32_t nodes, uint32_t stages, const struct ek_masks *masks,
                       uint64_t *ret_messages, uint64_t *ret_bytes)
{
    struct cluster_pair p;

    reset();
    meet_nodes(&p, nodes, stages);
    assert_int_equal(begin_met(&p), 0);
    assert_int_equal(step(&p, masks), 0);
    const uint64_t messages = p.box.messages, bytes = p.box.bytes;
    assert_int_equal(step(&p, masks), 0);
    *ret_messages = p.box.messages - messages;
    *ret_bytes = p.box.bytes - bytes;
    ek_cluster_bye(p.n[0].c, 0);
    end(&p);
    assert_string_equal(p.n[0].lost, "");
}

#define UP(bytes) (((bytes) + 7) / 8 * 8)

/* For each node: a step without what its ceilings leave unused, masks where something is sampled,
 * and one word of what was; whole results come from one node, where node 0 does not have them. */
static void test_traffic(void **state)
{
    enum {
        STEP = sizeof(struct ek_step) + 3 * UP(9 * 4) + UP(sizeof(struct ek_step_seq)) + UP(2 * 4) +
               UP(sizeof(struct ek_slot_set)) + UP(sizeof(struct ek_block_copy)),
        ANSWER = sizeof(struct ek_result),
        RESULT = sizeof(struct ek_result) + sizeof(struct ek_result_seq),
        MASKS = sizeof(g_masks),
    };
    uint64_t messages, bytes;
    (void)state;

    for (uint32_t nodes = 2; nodes <= MOST; nodes++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            const bool staged = kind & 1, masked = kind & 2;
            traffic_of(nodes, staged ? nodes : 1, masked ? &g_masks.m : NULL, &messages, &bytes);
            assert_int_equal(messages, 3 * (nodes - 1));
            const uint32_t others = nodes - 1, samplers = staged ? 1 : others;
            assert_int_equal(bytes,
                             others * STEP + (masked ? samplers * MASKS : 0) +
                                 (staged ? (others - 1) * ANSWER + RESULT : others * ANSWER));
        }
}

/* An order is begun for all nodes before one of them is waited for. */
static void test_sent_together(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    meet_nodes(&p, MOST, 1);
    assert_int_equal(begin_met(&p), 0);
    pthread_mutex_lock(&p.box.lock);
    p.box.eager = 0;
    p.box.most[0] = 0;
    p.box.together = MOST - 1;
    pthread_mutex_unlock(&p.box.lock);
    assert_int_equal(step(&p, &g_masks.m), 0);
    ek_cluster_bye(p.n[0].c, 0);
    end(&p);
    assert_string_equal(p.n[0].lost, "");
}

/* A pool that one of several nodes cannot have is as it was on all. */
static void test_resize_fails_on_one(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    g_fake[2].resize = EK_EDEVMEM;
    meet_nodes(&p, MOST, 1);
    assert_int_equal(begin_met(&p), 0);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 40), EK_EDEVMEM);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(g_fake[i].blocks, BLOCKS);
    assert_int_equal(step(&p, NULL), 0);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 9), 0);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(g_fake[i].blocks, 9);
    ek_cluster_bye(p.n[0].c, 0);
    end(&p);
    assert_string_equal(p.n[0].lost, "");
}

/* One node of four is named, also where it says no more than a sum. */
static void test_disagrees_among_several(void **state)
{
    struct cluster_pair p;
    (void)state;

    reset();
    meet_nodes(&p, MOST, 2); /* the last stage is on nodes 2 and 3 */
    assert_int_equal(begin_met(&p), 0);
    assert_int_equal(step(&p, NULL), 0);
    g_fake[3].more = 1;
    assert_int_equal(step(&p, NULL), EK_ECOMM);
    assert_non_null(
        strstr(p.n[0].lost, "node 3 (host3) sampled other tokens than node 2 in step 2"));
    p.box.gone[0] = true;
    end(&p);
}

/* A result that has begun to come is taken whole, however short the wait for it was to be: given up
 * in the middle it would be lost, and its node taken for one that hangs. */
static void test_taken_whole(void **state)
{
    static char from[100000];
    struct ek_wire_buffer to = {.data = NULL};
    struct ek_mpi_message m = ek_mpi_flat(0, EK_MPI_DONE, true, from, sizeof(from));
    struct mailbox box;
    struct ek_wire w = {.nodes = 2, .mpi = &g_mail, .self = &box.end[0], .stall_us = 20000000};
    (void)state;

    mail_open(&box, 2);
    box.late = 100;
    assert_int_equal(g_mail.begin(&box.end[1], &m), 0);
    assert_int_equal(ek_wire_take(&w, 1, EK_MPI_DONE, &to, 1), 0);
    assert_int_equal(to.bytes, sizeof(from));
    assert_int_equal(ek_wire_take(&w, 1, EK_MPI_DONE, &to, 1), -ETIMEDOUT);
    free(to.data);
    mail_close(&box);
}

/* ---- meeting ---- */

static void *other(void *arg)
{
    struct node *n = arg;
    struct ek_cluster_params p = params(n);

    p.card.line[0].says[3] = '8';
    n->result = ek_cluster_new(&p, &n->c, &n->fault);
    return NULL;
}

/* The one that does not fit says so and ends, and MPI all others with it. */
static void test_does_not_fit(void **state)
{
    struct mailbox box;
    struct node lead = {.node = 0, .nodes = 2, .stages = 1, .box = &box}, wrong = lead;
    const struct ek_cluster_params p = params(&lead);
    (void)state;

    wrong.node = 1;
    mail_open(&box, 2);
    assert_int_equal(pthread_create(&wrong.thread, NULL, other, &wrong), 0);
    assert_int_equal(ek_cluster_new(&p, &lead.c, &lead.fault), 0);
    (void)pthread_join(wrong.thread, NULL);
    assert_int_equal(wrong.result, -EBADMSG);
    assert_string_equal(wrong.fault.msg, "Node 1 (host1) is 8, node 0 (host0) is 7: mend");
    ek_cluster_free(lead.c);
    mail_close(&box);
}

static void test_silent(void **state)
{
    struct mailbox box;
    struct node lead = {.node = 0, .nodes = 2, .stages = 1, .box = &box};
    struct ek_cluster_params p = params(&lead);
    (void)state;

    mail_open(&box, 2);
    p.wait_us = 100000;
    assert_int_equal(ek_cluster_new(&p, &lead.c, &lead.fault), EK_ECOMM);
    assert_non_null(strstr(lead.fault.msg, "Node 1 of 2 did not say within"));
    p.nodes = 3;
    assert_int_equal(ek_cluster_new(&p, &lead.c, &lead.fault), -EBADMSG);
    assert_non_null(strstr(lead.fault.msg, "as node 0 of 3, and MPI says node 0 of 2"));
    mail_close(&box);
}

/* What it is has another size, which is said; `lost` is for a group that has met. */
static void test_another_version(void **state)
{
    static const char card[100];
    struct mailbox box;
    struct node lead = {.node = 0, .nodes = 2, .stages = 1, .box = &box};
    const struct ek_cluster_params p = params(&lead);
    struct ek_mpi_message m = ek_mpi_flat(0, EK_MPI_SHARE, true, card, sizeof(card));
    (void)state;

    mail_open(&box, 2);
    assert_int_equal(g_mail.begin(&box.end[1], &m), 0);
    assert_int_equal(ek_cluster_new(&p, &lead.c, &lead.fault), -EBADMSG);
    assert_non_null(strstr(lead.fault.msg, "Node 1 is another version of this program"));
    assert_string_equal(lead.lost, "");
    box.gone[1] = true;
    assert_int_equal(ek_cluster_new(&p, &lead.c, &lead.fault), EK_ECOMM);
    assert_non_null(strstr(lead.fault.msg, "MPI cannot reach node 1 (host unknown)"));
    mail_close(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_room),
        cmocka_unit_test(test_whole_life),
        cmocka_unit_test(test_load_fails_there),
        cmocka_unit_test(test_load_fails_here),
        cmocka_unit_test(test_resize_fails_there),
        cmocka_unit_test(test_disagree),
        cmocka_unit_test(test_step_fails_there),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_resize_fails_on_one),
        cmocka_unit_test(test_disagrees_among_several),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_sent_together),
        cmocka_unit_test(test_taken_whole),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_another_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

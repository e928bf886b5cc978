/*
 * Two nodes as two threads, over the loopback, on a backend that computes nothing and keeps what it
 * was asked: every call of backend.h comes to the other node as it was made; a load or a pool that
 * only the other node cannot have, tokens on which they do not agree, a step that fails there, an
 * end on either side; strangers and doubles at the door.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/nodes/cluster.h"
#include "kernels/nodes/link.h"
#include "tests/unit/kernels/tiny.h"

enum { BLOCKS = 24, BLOCK_SIZE = 8 };

/* ---- a backend that keeps what it is asked ---- */

struct fake { /* of a node; its ranks are the devices */
    uint32_t rank, opened;
    int load, resize, forward, error; /* codes of the calls, and of the result */
    int32_t more;                     /* added to tokens */
    struct ek_kv_params kv;
    struct ek_plan_request plan;
    uint32_t blocks, steps, masks, copies, rows;
    uint64_t sum; /* of all bytes of steps and masks */
    _Atomic int aborted;
};

struct ek_group {
    struct fake *f;
};

struct ek_device {
    struct fake *f;
    const struct ek_step *step[2];
};

static struct fake g_fake[2]; /* of node 0 and 1: the table has no other way to them */

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
    g->f = &g_fake[p->first > 0];
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
    d->f = &g_fake[p->first > 0];
    d->f->rank = p->rank;
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
    assert_true(files->count == 1 && q->graph->ranks == 2 && q->graph->rank == d->f->rank);
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
    d->step[step->id & 1] = step;
    add(d->f, step, step->bytes);
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
    *r = (struct ek_result){.step = id, .error = d->f->error, .seqs = s->seqs};
    for (uint32_t i = 0; i < s->seqs; i++)
        r->seq[i] =
            (struct ek_result_seq){.slot = i, .tokens = 1, .token = {(int32_t)id + d->f->more}};
    d->f->steps++;
    return 0;
}

static void fake_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    *ret_stats = (struct ek_device_stats){.kv_bytes = d->f->blocks};
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
    uint32_t node;
    uint16_t port;
    const struct tiny *t;
    struct ek_cluster *c;
    int code, result;
    uint32_t length, ready, closed;
    char lost[480];
    _Atomic int leaving;
    _Atomic int warnings;
    struct ek_fault fault;
    pthread_t thread;
};

static void on_say(void *ctx, bool warning, const char *text)
{
    struct node *n = ctx;

    (void)text;
    atomic_fetch_add(&n->warnings, warning);
}

static void on_lost(void *ctx, const char *why)
{
    struct node *n = ctx;
    (void)snprintf(n->lost, sizeof(n->lost), "%s", why);
}

static void on_leaving(void *ctx, uint32_t node, const char *host)
{
    struct node *n = ctx;

    assert_true(node == 1 && strcmp(host, "host1") == 0);
    atomic_fetch_add(&n->leaving, 1);
}

static struct ek_cluster_params params(struct node *n)
{
    struct ek_cluster_params p = {
        .node = n->node,
        .nodes = 2,
        .addr = "127.0.0.1",
        .port = n->port,
        .wait_us = 20000000,
        .stall_us = 20000000,
        .card = {.abi = EK_BACKEND_ABI, .ranks = 2, .stages = 1, .graph = 7},
        .say = on_say,
        .lost = on_lost,
        .leaving = on_leaving,
        .ctx = n};

    (void)snprintf(p.card.host, sizeof(p.card.host), "host%u", n->node);
    return p;
}

static void on_loading(void *ctx, const struct ek_load_order *order)
{
    ((struct node *)ctx)->length = order->max_model_len;
}

static void on_ready(void *ctx, struct ek_device *d, uint32_t blocks)
{
    assert_true(d && blocks == BLOCKS);
    ((struct node *)ctx)->ready++;
}

static void on_closing(void *ctx)
{
    ((struct node *)ctx)->closed++;
}

static void *follower(void *arg)
{
    struct node *n = arg;
    const struct ek_cluster_params p = params(n);
    struct ek_follow_params f = {.backend = ek_ranks_backend(&g_each),
                                 .open = {.ranks = 2, .each = &g_each},
                                 .graph = &n->t->g,
                                 .files = &n->t->files,
                                 .loading = on_loading,
                                 .ready = on_ready,
                                 .closing = on_closing,
                                 .ctx = n};

    n->result = ek_cluster_new(&p, &n->c, &n->fault);
    if (n->result < 0)
        return NULL;
    n->result = ek_cluster_follow(n->c, &f, &n->code, &n->fault);
    ek_cluster_free(n->c);
    return NULL;
}

static uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

struct pair {
    struct tiny *t;
    struct node n[2];
    struct tiny_device x;
};

static struct ek_open_params lead_open_params(struct pair *p)
{
    struct ek_open_params open = {.ranks = 2, .each = &g_each};

    ek_cluster_open(p->n[0].c, &open);
    ek_cluster_serve(p->n[0].c, 321);
    return open;
}

static void meet(struct pair *p)
{
    const struct tiny_params params_of = {.dtype = EK_F32,
                                          .layers = 1,
                                          .hidden = 32,
                                          .q_heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 8,
                                          .rotary = 8,
                                          .ffn = 64,
                                          .vocab = 96};
    *p = (struct pair){.t = tiny_new(&params_of)};
    const uint16_t port = free_port();
    for (uint32_t i = 0; i < 2; i++)
        p->n[i] = (struct node){.node = i, .port = port, .t = p->t};
    assert_int_equal(pthread_create(&p->n[1].thread, NULL, follower, &p->n[1]), 0);
    const struct ek_cluster_params mine = params(&p->n[0]);
    assert_int_equal(ek_cluster_new(&mine, &p->n[0].c, &p->n[0].fault), 0);
}

static int begin(struct pair *p)
{
    meet(p);
    const struct ek_open_params open = lead_open_params(p);
    return tiny_open_on(ek_cluster_backend(&g_each), p->t, &open, BLOCK_SIZE, BLOCKS, &p->x);
}

static void reset(void)
{
    memset(g_fake, 0, sizeof(g_fake));
}

static void end(struct pair *p)
{
    (void)pthread_join(p->n[1].thread, NULL);
    if (p->x.b)
        tiny_close(&p->x);
    ek_cluster_free(p->n[0].c);
    tiny_free(p->t);
}

static int step(struct pair *p, const struct ek_masks *masks)
{
    static const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const uint32_t table[2] = {1, 2};
    const struct ek_slot_set set = {.top_p = 1.0f};

    tiny_set(&p->x, &set);
    tiny_add(&p->x, 0, tokens, 0, 9, table, true);
    ek_step_copies(p->x.step)[p->x.step->copies++] =
        (struct ek_block_copy){.from = 1, .to = 3, .to_tier = EK_TIER_HOST};
    return tiny_run(&p->x, masks);
}

static void test_whole_life(void **state)
{
    union {
        struct ek_masks m;
        uint32_t words[2 + 3];
    } masks = {.words = {1, 3, 0xff, 1, 2}};
    struct pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(step(&p, i % 3 == 0 ? &masks.m : NULL), 0);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 10), 0);
    assert_true(g_fake[0].blocks == 10 && g_fake[1].blocks == 10);
    assert_int_equal(p.x.b->kv_resize(p.x.d, 30), 0);
    assert_int_equal(step(&p, NULL), 0);
    ek_cluster_leave(p.n[1].c);
    while (atomic_load(&p.n[0].leaving) == 0)
        (void)usleep(1000);
    ek_cluster_bye(p.n[0].c, 77);
    end(&p);
    assert_true(p.n[1].result == 0 && p.n[1].code == 77);
    assert_true(p.n[1].ready == 1 && p.n[1].closed == 1 && p.n[1].length == 321);
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
    struct pair p;
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d = NULL;
    (void)state;

    reset();
    g_fake[1].load = EK_EDEVMEM;
    meet(&p);
    const struct ek_open_params open = lead_open_params(&p);
    const struct ek_backend *b = ek_cluster_backend(&g_each);
    const struct ek_plan_request q = {
        .graph = &p.t->g, .ceiling = {64, 4, 64, 8, 64, 8}, .logit_rows = 8, .block_size = 8};
    assert_int_equal(b->open(&open, &d, NULL), 0);
    assert_int_equal(b->load(d, &q, &p.t->files, NULL, NULL, &fault), EK_EDEVMEM);
    assert_string_equal(fault.msg, "node 1 (host1): No room for weights.");
    assert_true(atomic_load(&g_fake[0].aborted) > 0);
    b->close(d);
    end(&p);
    assert_int_equal(p.n[1].result, EK_EDEVMEM);
    assert_string_equal(p.n[1].fault.msg, "No room for weights.");
}

static void test_load_fails_here(void **state)
{
    struct pair p;
    (void)state;

    reset();
    g_fake[0].load = -ENOMEM;
    assert_int_equal(begin(&p), -ENOMEM);
    ek_cluster_fail(p.n[0].c, EK_ECOMM, "no memory for weights");
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
    assert_string_equal(p.n[1].fault.msg, "node 0 (host0): no memory for weights");
}

/* A pool that one node cannot have is as it was on both, and work goes on. */
static void test_resize_fails_there(void **state)
{
    struct pair p;
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
    struct pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    assert_int_equal(step(&p, NULL), 0);
    g_fake[1].more = 1;
    assert_int_equal(step(&p, NULL), EK_ECOMM);
    assert_non_null(
        strstr(p.n[0].lost, "node 1 (host1) sampled other tokens than node 0 in step 2"));
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
    assert_non_null(strstr(p.n[1].fault.msg, "sampled other tokens"));
}

static void test_step_fails_there(void **state)
{
    static const struct {
        int forward, error, code;
        const char *says;
    } cases[] = {
        {-ENOMEM, 0, EK_ECOMM, "A step could not be begun"},
        {0, EK_EDEVICE, EK_EDEVICE, "device fault"},
        {0, EK_EDEVMEM, EK_EDEVMEM, "device out of memory"},
    };
    struct pair p;
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reset();
        assert_int_equal(begin(&p), 0);
        g_fake[1].forward = cases[i].forward;
        g_fake[1].error = cases[i].error;
        assert_int_equal(step(&p, NULL), cases[i].code);
        char why[480] = "";
        while (!why[0]) { /* the word comes behind the code */
            ek_cluster_why(p.n[0].c, why, sizeof(why));
            (void)usleep(1000);
        }
        end(&p);
        assert_true(p.n[1].result < 0);
        if (!strstr(why, cases[i].says) && !strstr(why, "A rank of node 0"))
            fail_msg("case %zu: %s", i, why);
    }
}

/* Neither side is left alone by one that ends without a word. */
static void test_ends_silently(void **state)
{
    struct pair p;
    (void)state;

    reset();
    assert_int_equal(begin(&p), 0);
    tiny_close(&p.x);
    ek_cluster_free(p.n[0].c);
    p.n[0].c = NULL;
    end(&p);
    assert_int_equal(p.n[1].result, EK_ECOMM);
    assert_string_equal(p.n[1].fault.msg,
                        "node 0 (host0) ended without a word: its log or journal says why");
}

/* ---- the door ---- */

static void *knock(void *arg)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: node\r\nUser-Agent: a port scanner\r\n\r\n";
    const struct node *n = arg;
    struct ek_node_fault answer;
    struct ek_frame head;
    int fd;

    while ((fd = ek_link_connect("127.0.0.1", n->port, 1000000)) < 0)
        (void)usleep(2000);
    assert_int_equal(write(fd, http, sizeof(http)), sizeof(http));
    while (recv(fd, &head, sizeof(head), MSG_WAITALL) < 0 && errno == EAGAIN)
        (void)usleep(2000);
    while (recv(fd, &answer, sizeof(answer), MSG_WAITALL) < 0 && errno == EAGAIN)
        (void)usleep(2000);
    (void)close(fd);
    return NULL;
}

/* A stranger is sent away, a node with another model is told so, the right one is taken; a second
 * one with its number is refused while it is there. */
static void test_door(void **state)
{
    struct node lead = {.node = 0, .port = free_port()}, wrong = {.node = 1, .port = lead.port};
    struct node right = wrong;
    struct ek_cluster_params p = params(&lead);
    pthread_t stranger;
    (void)state;

    p.wait_us = 1500000;
    struct ek_cluster_params other = params(&wrong);
    other.card.graph = 8;
    assert_int_equal(pthread_create(&stranger, NULL, knock, &lead), 0);
    struct ek_cluster *c = NULL;
    assert_int_equal(ek_cluster_new(&p, &c, &lead.fault), EK_ECOMM);
    (void)pthread_join(stranger, NULL);
    assert_non_null(strstr(lead.fault.msg, "Node 1 of 2 did not come to 127.0.0.1:"));
    assert_non_null(strstr(lead.fault.msg, "does not speak the protocol of nodes"));
    assert_int_equal(atomic_load(&lead.warnings), 1);
    other.wait_us = 300000;
    assert_int_equal(ek_cluster_new(&other, &wrong.c, &wrong.fault), EK_ECOMM);
    assert_non_null(strstr(wrong.fault.msg, "Node 0 was not to be had at 127.0.0.1:"));
    (void)right;
}

struct caller {
    struct ek_cluster_params p;
    struct node n;
};

static void *call(void *arg)
{
    struct caller *c = arg;

    c->n.result = ek_cluster_new(&c->p, &c->n.c, &c->n.fault);
    return NULL;
}

static void test_wrong_then_right(void **state)
{
    struct caller lead = {.n = {.node = 0, .port = free_port()}}, wrong = {.n = {.node = 1}}, right;
    (void)state;

    wrong.n.port = lead.n.port;
    right = wrong;
    lead.p = params(&lead.n);
    wrong.p = params(&wrong.n);
    right.p = params(&right.n);
    wrong.p.card.graph = 8;
    assert_int_equal(pthread_create(&lead.n.thread, NULL, call, &lead), 0);
    (void)call(&wrong);
    assert_int_equal(wrong.n.result, -EBADMSG);
    assert_non_null(strstr(wrong.n.fault.msg, "Node 1 (host1) has a model of one shape, node 0"));
    (void)call(&right);
    (void)pthread_join(lead.n.thread, NULL);
    assert_true(lead.n.result == 0 && right.n.result == 0);
    assert_int_equal(atomic_load(&lead.n.warnings), 1);
    ek_cluster_free(right.n.c);
    ek_cluster_free(lead.n.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_life),       cmocka_unit_test(test_load_fails_there),
        cmocka_unit_test(test_load_fails_here),  cmocka_unit_test(test_resize_fails_there),
        cmocka_unit_test(test_disagree),         cmocka_unit_test(test_step_fails_there),
        cmocka_unit_test(test_ends_silently),    cmocka_unit_test(test_door),
        cmocka_unit_test(test_wrong_then_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * A node that follows node 0. Two threads: the reader of the connection puts steps in the ranks'
 * queues as they come (which does not wait) and keeps orders for the thread that called
 * ek_cluster_follow(); that one obeys orders, waits for each step in turn and says what was
 * sampled. So the reader always answers, whatever the ranks do.
 *
 * A step is in one of two flights, by its id:
 *   FREE --STEP--> QUEUED --SAMPLE--> SAMPLED --waited for, DONE is sent--> FREE
 * and what comes in another order ends the group: node 0 checks nothing less.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/nodes/cluster_state.h"
#include "kernels/ranks.h"

#define PIECE_US 200000u /* of a wait for a step, between two looks at the group */

enum flight_state { FLIGHT_FREE, FLIGHT_QUEUED, FLIGHT_SAMPLED };

struct flight {
    struct ek_inbox step, sample;
    uint64_t id;
    enum flight_state state; /* under the cluster's lock */
};

struct follower {
    struct ek_cluster *c;
    struct ek_follow_params p;
    struct ek_device *device;
    struct ek_load_order load;
    struct ek_result *result;
    size_t result_bytes;
    uint32_t kv_blocks;
    bool answers; /* it has the first rank of the last of several stages */
    struct flight flight[2];
    /* under the cluster's lock */
    uint16_t ordered; /* kind of the order that waits, 0 = none */
    union {
        struct ek_meeting meeting;
        struct ek_load_order load;
        struct ek_kv_params kv;
        struct ek_resize_order resize;
    } order;
    bool bye;
    int code;
};

static void confused(struct follower *f, const char *what)
{
    char why[160];

    (void)snprintf(why, sizeof(why),
                   "Node 0 sent %s out of turn: install the same "
                   "evenkeel-server on all nodes",
                   what);
    cluster_fail(f->c, EK_ECOMM, why);
}

/* ---- the reader ---- */

static void keep_order(struct follower *f, const struct ek_frame *frame, const void *body)
{
    struct ek_cluster *c = f->c;

    pthread_mutex_lock(&c->lock);
    const bool free = f->ordered == 0;
    if (free) {
        memcpy(&f->order, body, frame->bytes); /* its kind has that size: ek_frame_check() */
        f->ordered = frame->kind;
        pthread_cond_broadcast(&c->met);
    }
    pthread_mutex_unlock(&c->lock);
    if (!free)
        confused(f, "an order");
}

static enum flight_state state_of(struct follower *f, const struct flight *l)
{
    pthread_mutex_lock(&f->c->lock);
    enum flight_state s = l->state;
    pthread_mutex_unlock(&f->c->lock);
    return s;
}

static void set_state(struct follower *f, struct flight *l, enum flight_state s)
{
    pthread_mutex_lock(&f->c->lock);
    l->state = s;
    pthread_cond_broadcast(&f->c->met);
    pthread_mutex_unlock(&f->c->lock);
}

static void swap(struct ek_inbox *a, struct ek_inbox *b)
{
    struct ek_inbox c = *a;
    *a = *b;
    *b = c;
}

/* Says how a step ended, and where the answer is this node's all of it; what it was is free before
 * node 0 can send another. */
static void say_done(struct follower *f, struct flight *l, int error, const struct ek_result *r)
{
    const struct ek_step_done done = {
        .step = l->id, .error = error, .seqs = r ? r->seqs : 0, .tokens = r ? ek_result_sum(r) : 0};

    set_state(f, l, FLIGHT_FREE);
    const bool answers = f->answers && r && error == 0;
    int s = ek_link_send(&f->c->peer[0].control, answers ? EK_FRAME_RESULT : EK_FRAME_DONE,
                         answers ? (const void *)r : &done,
                         answers ? ek_result_own_bytes(r) : sizeof(done), f->c->stall_us);
    if (s < 0)
        cluster_lost(f->c, f->c->peer[0].control.peer, s, false);
}

/* Other ranks do what these cannot: the group has failed. */
static void cannot(struct follower *f, int r)
{
    char why[160];

    (void)snprintf(why, sizeof(why), "A step could not be begun: %s", ek_strerror(r));
    cluster_fail(f->c, r, why);
}

static void take_step(struct follower *f, struct ek_inbox *in, size_t bytes)
{
    const struct ek_step *step = in->data;
    struct flight *l = &f->flight[step->id & 1];

    if (f->kv_blocks == 0 || state_of(f, l) != FLIGHT_FREE) {
        confused(f, "a step");
        return;
    }
    if (ek_step_check(step, bytes, &f->load.ceiling, f->p.graph->vocab, f->kv_blocks,
                      f->load.block_size) < 0) {
        cluster_fail(f->c, EK_ECOMM,
                     "Node 0 sent a step that is none: its memory or the network "
                     "is faulty");
        return;
    }
    swap(&l->step, in);
    l->id = step->id;
    int r = f->p.backend->forward(f->device, step);
    if (r < 0)
        cannot(f, r);
    else
        set_state(f, l, FLIGHT_QUEUED);
}

static void take_sample(struct follower *f, struct ek_inbox *in)
{
    const struct ek_sample_order *o = in->data;
    struct flight *l = &f->flight[o->step & 1];

    if (l->id != o->step || state_of(f, l) != FLIGHT_QUEUED) {
        confused(f, "masks");
        return;
    }
    swap(&l->sample, in);
    o = l->sample.data;
    const struct ek_masks *masks =
        o->masked ? (const struct ek_masks *)(const void *)(o + 1) : NULL;
    int r = f->p.backend->sample(f->device, l->step.data, masks);
    if (r < 0)
        cannot(f, r);
    else
        set_state(f, l, FLIGHT_SAMPLED);
}

static void on_frame(struct peer *from, const struct ek_frame *frame, struct ek_inbox *in)
{
    struct follower *f = from->cluster->role;
    struct ek_cluster *c = f->c;

    switch ((enum ek_frame_kind)frame->kind) {
    case EK_FRAME_OPEN:
    case EK_FRAME_LOAD:
    case EK_FRAME_KV_OPEN:
    case EK_FRAME_RESIZE: keep_order(f, frame, in->data); return;
    case EK_FRAME_STEP: take_step(f, in, frame->bytes); return;
    case EK_FRAME_SAMPLE: take_sample(f, in); return;
    case EK_FRAME_BYE:
        pthread_mutex_lock(&c->lock);
        f->bye = c->over = true;
        f->code = ((const struct ek_node_fault *)in->data)->code;
        pthread_cond_broadcast(&c->met);
        pthread_mutex_unlock(&c->lock);
        return;
    case EK_FRAME_HELLO:
    case EK_FRAME_WELCOME:
    case EK_FRAME_REFUSE:
    case EK_FRAME_REPLY:
    case EK_FRAME_DONE:
    case EK_FRAME_PING:
    case EK_FRAME_PONG:
    case EK_FRAME_FAIL:
    case EK_FRAME_LEAVE:
    case EK_FRAME_KNOCK:
    case EK_FRAME_CHALLENGE:
    case EK_FRAME_PROOF:
    case EK_FRAME_PEERS:
    case EK_FRAME_RESULT: confused(f, "what only other nodes send"); return;
    }
}

/* ---- orders ---- */

static void abort_ranks(void *ctx)
{
    ek_ranks_abort(ctx);
}

static int obey_open(struct follower *f, const struct ek_meeting *m, struct ek_fault *fault)
{
    if (f->device)
        return -EBUSY;
    memcpy(f->c->meeting, m->bytes, sizeof(m->bytes));
    int r = f->p.backend->open(&f->p.open, &f->device, fault);
    if (r == 0)
        cluster_on_fail(f->c, abort_ranks, f->device);
    return r;
}

static int obey_load(struct follower *f, const struct ek_load_order *o, struct ek_fault *fault)
{
    const struct ek_plan_request q = {.graph = f->p.graph,
                                      .ceiling = o->ceiling,
                                      .logit_rows = o->logit_rows,
                                      .block_size = o->block_size};

    if (!f->device || f->result)
        return -EINVAL;
    f->p.loading(f->p.ctx, o);
    f->load = *o;
    f->result_bytes =
        ek_result_bytes(o->ceiling.seqs, o->ceiling.scores, o->ceiling.seqs, f->p.graph->hidden);
    f->result = f->result_bytes > 0 ? calloc(1, f->result_bytes) : NULL;
    if (!f->result)
        return -ENOMEM;
    return f->p.backend->load(f->device, &q, f->p.files, f->p.progress, f->p.ctx, fault);
}

static int obey_kv_open(struct follower *f, const struct ek_kv_params *kv)
{
    if (!f->result || f->kv_blocks > 0)
        return -EINVAL;
    int r = f->p.backend->kv_open(f->device, kv);
    if (r == 0) {
        f->kv_blocks = kv->blocks;
        f->p.ready(f->p.ctx, f->device, kv->blocks);
    }
    return r;
}

static int obey_resize(struct follower *f, uint32_t blocks)
{
    if (f->kv_blocks == 0)
        return -EINVAL;
    int r = f->p.backend->kv_resize(f->device, blocks);
    if (r == 0)
        f->kv_blocks = blocks;
    return r;
}

static int obey(struct follower *f, uint16_t kind, struct ek_fault *fault)
{
    struct ek_node_fault n = {.code = -EINVAL};

    if (kind == EK_FRAME_OPEN)
        n.code = obey_open(f, &f->order.meeting, fault);
    else if (kind == EK_FRAME_LOAD)
        n.code = obey_load(f, &f->order.load, fault);
    else if (kind == EK_FRAME_KV_OPEN)
        n.code = obey_kv_open(f, &f->order.kv);
    else if (kind == EK_FRAME_RESIZE)
        n.code = obey_resize(f, f->order.resize.blocks);
    (void)snprintf(n.msg, sizeof(n.msg), "%s",
                   n.code < 0 && fault->msg[0] ? fault->msg
                   : n.code < 0                ? ek_strerror(n.code)
                                               : "");
    (void)snprintf(n.field, sizeof(n.field), "%s", n.code < 0 ? fault->field : "");
    pthread_mutex_lock(&f->c->lock);
    f->ordered = 0; /* node 0 may send the next */
    pthread_mutex_unlock(&f->c->lock);
    int s = ek_link_send(&f->c->peer[0].control, EK_FRAME_REPLY, &n, sizeof(n), f->c->stall_us);
    if (s < 0)
        cluster_lost(f->c, f->c->peer[0].control.peer, s, false);
    /* A pool that cannot grow is node 0's to deal with; what else fails ends this node. */
    return kind == EK_FRAME_RESIZE ? 0 : n.code;
}

/* ---- steps ---- */

static int land(struct follower *f, struct flight *l)
{
    int r;

    do
        r = f->p.backend->wait(f->device, l->id, f->result, f->result_bytes, PIECE_US);
    while (r == -ETIMEDOUT && !cluster_failed(f->c));
    const int error = r < 0 ? r : f->result->error;
    if (r == -ETIMEDOUT)
        return EK_ECOMM;
    say_done(f, l, error, f->result);
    return error < 0 ? error : 0; /* what is here does not fit to the others any more */
}

/* ---- both ---- */

/* The oldest step to wait for, with the lock held. */
static struct flight *sampled(struct follower *f)
{
    struct flight *a = &f->flight[0], *b = &f->flight[1];

    if (a->state == FLIGHT_SAMPLED && (b->state != FLIGHT_SAMPLED || a->id < b->id))
        return a;
    return b->state == FLIGHT_SAMPLED ? b : NULL;
}

/* The next thing to do: an order, a step, or the end. */
static int await_work(struct follower *f, uint16_t *ret_order, struct flight **ret_flight)
{
    struct ek_cluster *c = f->c;
    struct flight *l = NULL;
    int r = 1;

    pthread_mutex_lock(&c->lock);
    while (!c->failed && !f->bye && !f->ordered && !(l = sampled(f)))
        pthread_cond_wait(&c->met, &c->lock);
    *ret_order = f->ordered;
    *ret_flight = l;
    if (!l && !f->ordered)
        r = 0;
    if (c->failed)
        r = EK_ECOMM;
    pthread_mutex_unlock(&c->lock);
    return r;
}

static int follow(struct follower *f, struct ek_fault *fault)
{
    struct flight *l;
    uint16_t kind;
    int r;

    while ((r = await_work(f, &kind, &l)) > 0) {
        r = l ? land(f, l) : obey(f, kind, fault);
        if (r < 0)
            break;
    }
    return r;
}

/* The word for a failure: that of the group if it came first, else ours, which the others get. */
static void explain(struct follower *f, int r, struct ek_fault *fault)
{
    if (!cluster_failed(f->c)) {
        char why[480];
        (void)snprintf(why, sizeof(why), "%s", fault->msg[0] ? fault->msg : ek_strerror(r));
        cluster_fail(f->c, r, why);
    }
    ek_cluster_why(f->c, fault->msg, sizeof(fault->msg));
}

static bool has_answers(const struct ek_open_params *p)
{
    const uint32_t rank = p->ranks - ek_open_shares(p); /* the first of the last stage */
    return p->stages > 1 && rank >= p->first && rank - p->first < p->local;
}

int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault)
{
    struct follower f = {.c = c, .p = *p};

    ek_cluster_open(c, &f.p.open);
    f.answers = has_answers(&f.p.open);
    c->on_frame = on_frame;
    /* cppcheck-suppress autoVariables ; its readers end with cluster_stop() */
    c->role = &f;
    int r = cluster_start(c);
    if (r == 0)
        r = follow(&f, fault);
    if (r < 0)
        explain(&f, r, fault);
    else
        *ret_code = f.code;
    p->closing(p->ctx);
    cluster_on_fail(c, NULL, NULL);
    cluster_stop(c); /* before what its threads use */
    p->backend->close(f.device);
    for (int i = 0; i < 2; i++) {
        ek_inbox_done(&f.flight[i].step);
        ek_inbox_done(&f.flight[i].sample);
    }
    free(f.result);
    return r;
}

void ek_cluster_leave(struct ek_cluster *c)
{
    int r = ek_link_send(&c->peer[0].control, EK_FRAME_LEAVE, NULL, 0, EK_US_PER_S);

    if (r < 0)
        cluster_lost(c, c->peer[0].control.peer, r, false);
}

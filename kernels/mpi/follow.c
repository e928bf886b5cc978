/*
 * A node that follows node 0: one thread takes its orders, which only put steps in the ranks'
 * queues and do not wait, and between them waits a moment for the oldest step and says what was
 * sampled.
 *
 * A step is in one of two flights, by its id:
 *   FREE --STEP--> QUEUED --SAMPLE or MASKS--> SAMPLED --landed--> SAID --taken by node 0--> FREE
 * and what comes in another order ends the group: node 0 checks nothing less. What is said is not
 * waited for, since node 0 may be waiting for an order of its own to be taken.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"

#define MOMENT_US 50u /* of a wait for a step, between two looks for orders */

enum flight_state { FLIGHT_FREE, FLIGHT_QUEUED, FLIGHT_SAMPLED, FLIGHT_SAID };

struct follow_flight {
    struct cluster_buffer step, masks;
    struct cluster_done *done; /* the result behind it */
    struct ek_mpi_message said;
    uint64_t id;
    enum flight_state state;
};

struct follower {
    struct ek_cluster *c;
    struct ek_follow_params p;
    struct ek_device *device;
    struct ek_load_order load;
    size_t result_bytes;
    uint32_t kv_blocks, states;
    bool answers; /* it has the first rank of the last of several stages */
    struct follow_flight flight[2];
    struct cluster_buffer in;
    uint64_t last; /* step */
    bool bye;
    int32_t code;
};

static struct ek_result *result_of(const struct follow_flight *l)
{
    return (struct ek_result *)(void *)(l->done + 1);
}

static int confused(struct follower *f, const char *what)
{
    char why[160];

    (void)snprintf(why, sizeof(why),
                   "Node 0 sent %s out of turn: install the same evenkeel-server on all nodes",
                   what);
    cluster_fail(f->c, why);
    return EK_ECOMM;
}

/* ---- steps ---- */

static int mpi_follow_settle(struct follower *f, struct follow_flight *l)
{
    if (l->state != FLIGHT_SAID)
        return 0;
    int r = f->c->p.mpi->test(f->c->p.self, &l->said);
    if (r > 0)
        l->state = FLIGHT_FREE;
    return r < 0 ? cluster_lost(f->c, 0, r) : 0;
}

/* Node 0 asks for more only when it has taken what was said: it is soon known here. */
static int free_flight(struct follower *f, struct follow_flight *l)
{
    struct ek_mpi_wait wait = {.limit_us = f->c->p.stall_us, .cut = &f->c->failed};
    int r = mpi_follow_settle(f, l);

    while (r == 0 && l->state == FLIGHT_SAID && (r = ek_mpi_pause(&wait)) == 0)
        r = mpi_follow_settle(f, l);
    return r == -ETIMEDOUT ? cluster_lost(f->c, 0, r) : r;
}

static int take_step(struct follower *f)
{
    const struct ek_step *step = f->in.data;
    const uint64_t id = f->in.bytes >= sizeof(*step) ? step->id : 0;
    struct follow_flight *l = &f->flight[id & 1];
    int r = free_flight(f, l);

    if (r < 0)
        return r;
    if (f->kv_blocks == 0 || l->state != FLIGHT_FREE || f->in.bytes < sizeof(*step))
        return confused(f, "a step");
    if (ek_step_check(step, f->in.bytes, &f->load.ceiling, f->p.graph->vocab, f->kv_blocks,
                      f->load.block_size, f->states) < 0) {
        cluster_fail(f->c, "Node 0 sent a step that is none: its memory or the network is faulty");
        return EK_ECOMM;
    }
    const struct cluster_buffer other = l->step;
    l->step = f->in;
    f->in = other;
    l->id = f->last = id;
    l->state = FLIGHT_QUEUED;
    return f->p.backend->forward(f->device, step);
}

static int take_sample(struct follower *f, bool masked)
{
    struct follow_flight *l = &f->flight[f->last & 1];
    const struct ek_masks *masks = f->in.data;

    if (l->state != FLIGHT_QUEUED || f->in.bytes < sizeof(f->last) ||
        (!masked && memcmp(f->in.data, &l->id, sizeof(l->id)) != 0) ||
        (masked && f->in.bytes != sizeof(*masks) +
                                      (size_t)masks->rows * masks->words * sizeof(masks->bits[0])))
        return confused(f, "masks");
    const struct cluster_buffer other = l->masks;
    l->masks = f->in;
    f->in = other;
    l->state = FLIGHT_SAMPLED;
    return f->p.backend->sample(f->device, l->step.data, masked ? l->masks.data : NULL);
}

/* Waits a moment for the oldest step; what is here after a failure does not fit to the others. */
static int land(struct follower *f)
{
    struct follow_flight *a = &f->flight[0], *b = &f->flight[1], *l = a;

    if (a->state != FLIGHT_SAMPLED || (b->state == FLIGHT_SAMPLED && b->id < a->id))
        l = b;
    struct ek_result *result = result_of(l);
    int r = f->p.backend->wait(f->device, l->id, result, f->result_bytes, MOMENT_US);
    if (r == -ETIMEDOUT)
        return atomic_load(&f->c->failed) ? EK_ECOMM : 0;
    const int error = r < 0 ? r : result->error;
    const bool whole = f->answers && error == 0;
    *l->done = (struct cluster_done){.step = l->id,
                                     .error = error,
                                     .seqs = r < 0 ? 0 : result->seqs,
                                     .sum = r < 0 ? 0 : cluster_sum(result)};
    l->said = (struct ek_mpi_message){.tag = EK_MPI_DONE,
                                      .out = true,
                                      .data = l->done,
                                      .rows = 1,
                                      .width = sizeof(*l->done) +
                                               (whole ? ek_result_own_bytes(result) : 0)};
    r = f->c->p.mpi->begin(f->c->p.self, &l->said);
    l->state = FLIGHT_SAID;
    return r < 0 ? cluster_lost(f->c, 0, r) : error < 0 ? error : 0;
}

/* ---- orders ---- */

static int obey_open(struct follower *f, struct ek_fault *fault)
{
    if (f->device || f->in.bytes != sizeof(f->c->meeting))
        return -EINVAL;
    memcpy(f->c->meeting, f->in.data, sizeof(f->c->meeting));
    int r = f->p.backend->open(&f->p.open, &f->device, fault);
    if (r == 0)
        cluster_ranks(f->c, f->device);
    return r;
}

static int obey_load(struct follower *f, struct ek_fault *fault)
{
    if (!f->device || f->result_bytes > 0 || f->in.bytes != sizeof(f->load))
        return -EINVAL;
    memcpy(&f->load, f->in.data, sizeof(f->load));
    const struct ek_step_ceiling *c = &f->load.ceiling;
    const struct ek_plan_request q = {.graph = f->p.graph,
                                      .ceiling = *c,
                                      .logit_rows = f->load.logit_rows,
                                      .block_size = f->load.block_size,
                                      .offload_bytes = f->load.offload_bytes,
                                      .share = f->load.share};
    f->p.loading(f->p.ctx, &f->load);
    f->result_bytes = ek_result_bytes(c->seqs, c->scores, c->seqs, f->p.graph->hidden);
    for (int i = 0; i < 2; i++) {
        f->flight[i].done = calloc(1, sizeof(struct cluster_done) + f->result_bytes);
        if (!f->flight[i].done)
            return -ENOMEM;
    }
    return f->p.backend->load(f->device, &q, f->p.files, f->p.progress, f->p.ctx, fault);
}

static int obey_kv(struct follower *f, uint32_t order)
{
    const struct ek_kv_params *kv = f->in.data;
    const bool opens = order == ORDER_KV_OPEN;

    if (f->result_bytes == 0 || opens != (f->kv_blocks == 0) ||
        f->in.bytes != (opens ? sizeof(*kv) : sizeof(uint32_t)))
        return -EINVAL;
    const uint32_t blocks = opens ? kv->blocks : *(const uint32_t *)f->in.data;
    int r =
        opens ? f->p.backend->kv_open(f->device, kv) : f->p.backend->kv_resize(f->device, blocks);
    if (r == 0)
        f->kv_blocks = blocks;
    if (r == 0 && opens)
        f->states = kv->states;
    if (r == 0 && opens)
        f->p.ready(f->p.ctx, blocks);
    return r;
}

static int mpi_reply(struct follower *f, uint32_t order, struct ek_fault *fault)
{
    struct cluster_reply n = {.code = order == ORDER_OPEN   ? obey_open(f, fault)
                                      : order == ORDER_LOAD ? obey_load(f, fault)
                                                            : obey_kv(f, order)};
    struct ek_mpi_message m = {
        .tag = EK_MPI_REPLY, .out = true, .data = &n, .rows = 1, .width = sizeof(n)};
    uint32_t which;

    if (order == ORDER_LOAD && n.code == 0) {
        struct ek_device_stats now;
        f->p.backend->stats(f->device, &now);
        n.room_bytes = now.room_bytes;
    }
    if (n.code < 0) {
        (void)snprintf(n.msg, sizeof(n.msg), "%s",
                       fault->msg[0] ? fault->msg : ek_strerror(n.code));
        (void)snprintf(n.field, sizeof(n.field), "%s", fault->field);
    }
    int r = cluster_move(f->c, &m, 1, 0, &which);
    if (r < 0)
        return cluster_lost(f->c, 0, r);
    /* A pool that cannot grow is node 0's to deal with; what else fails ends this node. */
    return order == ORDER_RESIZE ? 0 : n.code;
}

static int obey(struct follower *f, uint32_t order, struct ek_fault *fault)
{
    int r = cluster_take(f->c, 0, order, &f->in, f->c->p.stall_us);

    if (r < 0)
        return cluster_lost(f->c, 0, r);
    switch ((enum cluster_order)order) {
    case ORDER_OPEN:
    case ORDER_LOAD:
    case ORDER_KV_OPEN:
    case ORDER_RESIZE: return mpi_reply(f, order, fault);
    case ORDER_STEP: return take_step(f);
    case ORDER_SAMPLE: return take_sample(f, false);
    case ORDER_MASKS: return take_sample(f, true);
    case ORDER_BYE:
        if (f->in.bytes == sizeof(f->code))
            memcpy(&f->code, f->in.data, sizeof(f->code));
        f->bye = true;
        return 0;
    }
    return confused(f, "an order of another kind");
}

static int mpi_follow(struct follower *f, struct ek_fault *fault)
{
    struct ek_mpi_wait idle = {.cut = &f->c->failed};
    int r = 0;

    while (r == 0 && !f->bye) {
        uint32_t node = 0, order = EK_MPI_ORDER;
        size_t bytes;
        r = f->c->p.mpi->probe(f->c->p.self, &node, &order, &bytes);
        if (r < 0)
            return cluster_lost(f->c, 0, r);
        if (r > 0) {
            r = obey(f, order, fault);
            idle.waited_us = idle.at_us = 0;
        } else if (f->flight[0].state == FLIGHT_SAMPLED || f->flight[1].state == FLIGHT_SAMPLED) {
            r = land(f);
            idle.waited_us = idle.at_us = 0;
        } else if (ek_mpi_pause(&idle) < 0) {
            r = EK_ECOMM;
        }
        for (int i = 0; r == 0 && i < 2; i++)
            r = mpi_follow_settle(f, &f->flight[i]);
    }
    return r;
}

int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault)
{
    struct follower f = {.c = c, .p = *p};

    ek_cluster_open(c, &f.p.open);
    const uint32_t last = f.p.open.ranks - ek_open_shares(&f.p.open); /* rank */
    f.answers = f.p.open.stages > 1 && last / f.p.open.local == c->p.node;
    int r = mpi_follow(&f, fault);
    if (r < 0 && atomic_load(&c->failed))
        ek_cluster_why(c, fault->msg, sizeof(fault->msg));
    *ret_code = f.code;
    cluster_ranks(c, NULL);
    p->backend->close(f.device);
    for (int i = 0; i < 2; i++) {
        if (f.flight[i].said.request)
            c->p.mpi->drop(c->p.self, &f.flight[i].said);
        free(f.flight[i].step.data);
        free(f.flight[i].masks.data);
        free(f.flight[i].done);
    }
    free(f.in.data);
    ek_wire_done(&c->wire);
    if (r == 0) {
        c->over = true;
        c->p.mpi->finish(c->p.self);
    }
    return r;
}

void ek_cluster_leave(struct ek_cluster *c)
{
    struct ek_mpi_message m = {.tag = EK_MPI_LEAVE, .out = true};
    uint32_t which;
    int r = cluster_move(c, &m, 1, c->p.stall_us, &which);

    if (r < 0)
        (void)cluster_lost(c, 0, r);
}

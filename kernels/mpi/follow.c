/*
 * A node that follows node 0: one thread takes its orders, which only put steps in the ranks'
 * queues and do not wait, and between them waits a moment for the oldest step and says what was
 * sampled.
 *
 * Steps are taken, sampled and landed in the order of their ids, so that three counts tell where
 * each is: landed <= sampled <= taken <= landed + 2. What is said is not waited for, since node 0
 * may be waiting for an order of its own to be taken.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"

#define MOMENT_US 50u /* of a wait for a step, between two looks for orders; */
#define LOOK_US   1u  /* and of such a look */

struct follower {
    struct ek_cluster *c;
    struct ek_follow_params p;
    struct ek_device *device;
    struct ek_plan_request plan;
    struct ek_kv_params kv;                      /* 0 blocks: not open yet */
    struct ek_wire_buffer step[2], masks[2], in; /* what came last */
    struct ek_wire_buffer result;                /* of a step, before it is said */
    uint32_t taken, sampled, landed;             /* steps */
    int32_t code;                                /* of ORDER_BYE */
};

/* ---- steps ---- */

/* Keeps what came for as long as its step is under way. */
static const struct ek_wire_buffer *keep(struct follower *f, struct ek_wire_buffer *as)
{
    const struct ek_wire_buffer before = *as;

    *as = f->in;
    f->in = before;
    return as;
}

static int take_step(struct follower *f)
{
    if (f->taken - f->landed == 2)
        return -EBADMSG;
    const struct ek_wire_buffer *in = keep(f, &f->step[f->taken++ % 2]);
    int r = ek_step_check(in->data, in->bytes, &f->plan.ceiling, f->p.graph->vocab, f->kv.blocks,
                          f->plan.block_size, f->kv.states);
    return r < 0 ? r : f->p.backend->forward(f->device, in->data);
}

static int take_sample(struct follower *f)
{
    if (f->sampled == f->taken)
        return -EBADMSG;
    const uint32_t at = f->sampled++ % 2;
    const struct ek_wire_buffer *in = keep(f, &f->masks[at]);
    if (in->bytes > 0 &&
        (in->bytes < sizeof(struct ek_masks) || in->bytes != ek_masks_bytes(in->data)))
        return -EBADMSG;
    return f->p.backend->sample(f->device, f->step[at].data, in->bytes > 0 ? in->data : NULL);
}

/* Waits a moment for the oldest step; what is here after a failure does not fit to the others. */
static int land(struct follower *f)
{
    const struct ek_step *step = f->step[f->landed % 2].data;
    struct ek_result *result = f->result.data;

    int r = f->p.backend->wait(f->device, step->id, result, f->result.room, MOMENT_US);
    if (r == -ETIMEDOUT)
        return 0;
    const int error = r < 0 ? r : result->error;
    if (error < 0)
        *result = (struct ek_result){.step = step->id, .error = error};
    else if (cluster_teller(f->c) != f->c->p.node)
        *result = (struct ek_result){.step = step->id, .sum = ek_result_sum(result)};
    f->landed++;
    r = ek_wire_tell(&f->c->orders, 0, EK_MPI_DONE, result, ek_result_own_bytes(result));
    return r < 0 ? r : error;
}

/* ---- orders ---- */

static int obey_load(struct follower *f, struct ek_fault *fault)
{
    const struct cluster_load *o = f->in.data;
    const struct ek_step_ceiling *ceiling = &f->plan.ceiling;

    f->plan = o->plan;
    f->plan.graph = f->p.graph;
    memcpy(f->c->meeting, o->meeting, sizeof(f->c->meeting));
    int r = ek_wire_room(&f->result, ek_result_bytes(ceiling->seqs, ceiling->scores, ceiling->seqs,
                                                     f->p.graph->hidden));
    if (r == 0)
        r = f->p.backend->open(&f->p.open, &f->device, fault);
    if (r < 0)
        return r;
    f->p.loading(f->p.ctx, f->plan.max_model_len);
    return f->p.backend->load(f->device, &f->plan, f->p.files, NULL, NULL, fault);
}

static int obey_kv(struct follower *f)
{
    const struct ek_kv_params *kv = f->in.data;
    const bool opens = f->kv.blocks == 0;
    int r = opens ? f->p.backend->kv_open(f->device, kv)
                  : f->p.backend->kv_resize(f->device, kv->blocks);

    if (r < 0)
        return r;
    f->kv = *kv;
    if (opens)
        f->p.ready(f->p.ctx, kv->blocks);
    return 0;
}

/* A pool that cannot grow is node 0's to deal with; what else fails ends this node. */
static int follow_reply(struct follower *f, struct ek_fault *fault)
{
    const bool loads = f->in.tag == ORDER_LOAD, resizes = f->kv.blocks > 0;
    struct cluster_reply n = {.code = loads ? obey_load(f, fault) : obey_kv(f)};

    n.fault = *fault;
    if (loads && n.code == 0) {
        struct ek_device_stats now;
        f->p.backend->stats(f->device, &now);
        n.room_bytes = now.room_bytes;
    }
    int r = ek_wire_tell(&f->c->orders, 0, EK_MPI_REPLY, &n, sizeof(n));
    return r < 0 || resizes ? r : n.code;
}

/* 1: node 0 says that all end. */
static int obey(struct follower *f, struct ek_fault *fault)
{
    switch (f->in.tag) {
    case ORDER_LOAD:
    case ORDER_KV: return follow_reply(f, fault);
    case ORDER_STEP: return take_step(f);
    case ORDER_SAMPLE: return take_sample(f);
    case ORDER_BYE: memcpy(&f->code, f->in.data, sizeof(f->code)); return 1;
    default: return -EBADMSG; /* no order of this version */
    }
}

int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault)
{
    struct follower f = {.c = c, .p = *p};
    int r = 0;

    ek_cluster_open(c, &f.p.open);
    while (r == 0) {
        const bool idle = f.landed == f.sampled;
        r = ek_wire_take(&c->orders, 0, EK_MPI_ORDER, &f.in, idle ? 0 : LOOK_US);
        r = r == -ETIMEDOUT ? land(&f) : r < 0 ? r : obey(&f, fault);
    }
    if (r < 0 && atomic_load(&c->orders.cut))
        (void)snprintf(fault->msg, sizeof(fault->msg), "%s", c->why);
    *ret_code = f.code;
    p->backend->close(f.device);
    for (int i = 0; i < 2; i++) {
        free(f.step[i].data);
        free(f.masks[i].data);
    }
    free(f.result.data);
    free(f.in.data);
    c->over = r > 0;
    return r < 0 ? r : 0;
}

void ek_cluster_leave(struct ek_cluster *c)
{
    struct ek_mpi_message m = ek_mpi_flat(0, EK_MPI_LEAVE, true, NULL, 0);

    (void)ek_wire_move(&c->orders, &m, 1, 0);
}

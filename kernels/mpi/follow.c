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

#define MOMENT_US 50u /* of a wait for a step, between two looks for orders */

struct follower {
    struct ek_cluster *c;
    struct ek_follow_params p;
    struct ek_device *device;
    struct ek_plan_request plan;
    struct ek_kv_params kv; /* 0 blocks: not open yet */
    size_t result_bytes;
    struct ek_result *result;
    struct ek_mpi_copies told;
    struct cluster_buffer step[2], masks[2];
    uint32_t taken, sampled, landed; /* steps */
    struct cluster_buffer in;
    bool bye;
    int32_t code;
};

/* ---- steps ---- */

static int follow_refuse(struct follower *f, const char *what)
{
    char why[160];

    (void)snprintf(why, sizeof(why),
                   "Node 0 sent %s that is none: its memory or the network is faulty", what);
    cluster_fail(f->c, why);
    return EK_ECOMM;
}

/* What came stays in `keep` until the next of its kind. */
static void follow_keep(struct follower *f, struct cluster_buffer *keep)
{
    const struct cluster_buffer other = *keep;

    *keep = f->in;
    f->in = other;
}

static int take_step(struct follower *f)
{
    const struct ek_step *step = f->in.data;

    if (f->taken - f->landed >= 2 ||
        ek_step_check(step, f->in.bytes, &f->plan.ceiling, f->p.graph->vocab, f->kv.blocks,
                      f->plan.block_size, f->kv.states) < 0)
        return follow_refuse(f, "a step");
    follow_keep(f, &f->step[f->taken++ % 2]);
    return f->p.backend->forward(f->device, step);
}

static int take_sample(struct follower *f)
{
    const struct ek_masks *masks = f->in.bytes > 0 ? f->in.data : NULL;
    const uint32_t at = f->sampled % 2;

    if (f->sampled == f->taken ||
        (masks && (f->in.bytes < sizeof(*masks) || f->in.bytes != ek_masks_bytes(masks))))
        return follow_refuse(f, "masks");
    if (masks)
        follow_keep(f, &f->masks[at]);
    f->sampled++;
    return f->p.backend->sample(f->device, f->step[at].data, masks);
}

/* Waits a moment for the oldest step; what is here after a failure does not fit to the others. */
static int land(struct follower *f)
{
    const struct ek_step *step = f->step[f->landed % 2].data;
    struct ek_mpi_wait wait = {.limit_us = f->c->p.stall_us, .cut = &f->c->failed};

    int r = f->p.backend->wait(f->device, step->id, f->result, f->result_bytes, MOMENT_US);
    if (r == -ETIMEDOUT)
        return atomic_load(&f->c->failed) ? EK_ECOMM : 0;
    const int error = r < 0 ? r : f->result->error;
    if (error < 0)
        *f->result = (struct ek_result){.step = step->id, .error = error};
    else if (cluster_teller(f->c) != f->c->p.node)
        *f->result = (struct ek_result){.step = step->id, .sum = ek_result_sum(f->result)};
    const struct ek_mpi_message m =
        ek_mpi_send(0, EK_MPI_DONE, f->result, ek_result_own_bytes(f->result));
    f->landed++;
    r = ek_mpi_tell(f->c->p.mpi, f->c->p.self, &f->told, &m, &wait);
    return r < 0 ? cluster_lost(f->c, 0, r) : error;
}

/* ---- orders ---- */

static int obey_load(struct follower *f, struct ek_fault *fault)
{
    const struct cluster_load *o = f->in.data;
    const struct ek_step_ceiling *ceiling = &f->plan.ceiling;

    f->plan = o->plan;
    f->plan.graph = f->p.graph;
    memcpy(f->c->meeting, o->meeting, sizeof(f->c->meeting));
    int r = f->p.backend->open(&f->p.open, &f->device, fault);
    if (r < 0)
        return r;
    f->p.loading(f->p.ctx, f->plan.max_model_len);
    f->result_bytes =
        ek_result_bytes(ceiling->seqs, ceiling->scores, ceiling->seqs, f->p.graph->hidden);
    f->result = calloc(1, f->result_bytes);
    if (!f->result)
        return -ENOMEM;
    return f->p.backend->load(f->device, &f->plan, f->p.files, f->p.progress, f->p.ctx, fault);
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
static int mpi_reply(struct follower *f, uint32_t order, struct ek_fault *fault)
{
    const bool resizes = f->kv.blocks > 0;
    struct cluster_reply n = {.code = order == ORDER_LOAD ? obey_load(f, fault) : obey_kv(f)};
    struct ek_mpi_message m = ek_mpi_send(0, EK_MPI_REPLY, &n, sizeof(n));

    n.fault = *fault;
    if (order == ORDER_LOAD && n.code == 0) {
        struct ek_device_stats now;
        f->p.backend->stats(f->device, &now);
        n.room_bytes = now.room_bytes;
    }
    struct ek_mpi_wait wait = {.cut = &f->c->failed}; /* node 0 may still load */
    uint32_t which = 0;
    int r = ek_mpi_move(f->c->p.mpi, f->c->p.self, &m, 1, &wait, &which);
    if (r < 0)
        return cluster_lost(f->c, 0, r);
    return resizes ? 0 : n.code;
}

static int obey(struct follower *f, uint32_t order, struct ek_fault *fault)
{
    int r = cluster_take(f->c, 0, order, &f->in, f->c->p.stall_us);

    if (r < 0)
        return cluster_lost(f->c, 0, r);
    switch ((enum cluster_order)order) {
    case ORDER_LOAD:
    case ORDER_KV: return mpi_reply(f, order, fault);
    case ORDER_STEP: return take_step(f);
    case ORDER_SAMPLE: return take_sample(f);
    case ORDER_BYE:
        memcpy(&f->code, f->in.data, sizeof(f->code));
        f->bye = true;
        return 0;
    }
    return follow_refuse(f, "an order");
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
        if (r == 0 && f->landed == f->sampled) {
            r = ek_mpi_pause(&idle) < 0 ? EK_ECOMM : 0;
            continue;
        }
        r = r > 0 ? obey(f, order, fault) : land(f);
        idle.waited_us = idle.at_us = 0;
    }
    return r;
}

int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault)
{
    struct follower f = {.c = c, .p = *p};

    ek_cluster_open(c, &f.p.open);
    int r = mpi_follow(&f, fault);
    if (r < 0 && atomic_load(&c->failed))
        ek_cluster_why(c, fault->msg, sizeof(fault->msg));
    *ret_code = f.code;
    p->backend->close(f.device);
    ek_mpi_forget(c->p.mpi, c->p.self, &f.told);
    for (int i = 0; i < 2; i++) {
        free(f.step[i].data);
        free(f.masks[i].data);
    }
    free(f.result);
    free(f.in.data);
    if (r == 0)
        cluster_end(c);
    return r;
}

void ek_cluster_leave(struct ek_cluster *c)
{
    struct ek_mpi_message m = ek_mpi_send(0, EK_MPI_LEAVE, NULL, 0);

    (void)cluster_send(c, &m, 1);
}

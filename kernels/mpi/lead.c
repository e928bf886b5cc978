/*
 * The other nodes, as node 0 has them: a device for each, which ranks.c opens beside the ranks that
 * are here. Its calls are orders to the node, and what it answers is what the node's own device of
 * ranks does, so that no token leaves on which the nodes do not agree.
 *
 * Owner: the caller of backend.h. A step's own ranks have landed long before its node is waited
 * for; who asks again after a timeout goes on with the same wait.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"

/* A step: what its result has to have, and until when the result is waited for, 0 = not yet. */
struct mpi_asked {
    uint32_t seqs, scores, hiddens;
    uint64_t until_us;
};

struct mpi_node {
    struct ek_cluster *c;
    uint32_t node;
    bool samples; /* it has ranks of the last stage */
    struct cluster_buffer in;
    struct ek_kv_params kv;
    uint64_t room_bytes; /* UINT64_MAX = it measured none */
    uint64_t answer_us;  /* so long a result is waited for, 0 = for ever */
    struct mpi_asked asked[2];
};

static struct mpi_node *node_of(struct ek_device *d)
{
    return (struct mpi_node *)(void *)d;
}

static int mpi_node_tell(struct mpi_node *d, uint32_t order, const void *body, size_t bytes)
{
    struct ek_mpi_message m = ek_mpi_send(d->node, order, body, bytes);

    return cluster_send(d->c, &m, 1);
}

/* ---- making, loading, ending ---- */

static void mpi_node_close(struct ek_device *device)
{
    struct mpi_node *d = node_of(device);

    if (!d)
        return;
    cluster_group(d->c, NULL, NULL);
    free(d->in.data);
    free(d);
}

static int mpi_node_open(const struct ek_open_params *p, struct ek_device **ret_device,
                         struct ek_fault *fault)
{
    struct mpi_node *d = calloc(1, sizeof(*d));

    (void)fault;
    if (!d)
        return -ENOMEM;
    *d = (struct mpi_node){.c = p->cluster,
                           .node = p->rank / ek_open_local(p),
                           .room_bytes = UINT64_MAX,
                           /* Behind what the ranks of the stages wait for one another (span.c), and
                            * time to end for it. */
                           .answer_us = p->stall_us + p->stall_us / 4};
    d->samples = p->rank + ek_open_local(p) > p->ranks - ek_open_shares(p); /* stage by stage */
    cluster_group(d->c, p->each, p->group);
    *ret_device = (struct ek_device *)(void *)d;
    return 0;
}

static int mpi_node_load(struct ek_device *device, const struct ek_plan_request *q,
                         const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                         struct ek_fault *fault)
{
    struct mpi_node *d = node_of(device);
    struct cluster_load o = {.plan = *q};

    (void)files; /* its own, and so is what it says meanwhile */
    (void)progress;
    (void)ctx;
    (void)fault;
    o.plan.graph = NULL;
    memcpy(o.meeting, d->c->meeting, sizeof(o.meeting));
    return mpi_node_tell(d, ORDER_LOAD, &o, sizeof(o));
}

static int mpi_node_kv_open(struct ek_device *device, const struct ek_kv_params *p)
{
    struct mpi_node *d = node_of(device);

    d->kv = *p;
    return mpi_node_tell(d, ORDER_KV, p, sizeof(*p));
}

/* That may be a long time: mpirun ends this node where the other one dies. */
static int mpi_node_settle(struct ek_device *device, struct ek_fault *fault)
{
    struct mpi_node *d = node_of(device);
    int r = cluster_take(d->c, d->node, EK_MPI_REPLY, &d->in, 0);

    if (r < 0)
        return cluster_lost(d->c, d->node, r);
    const struct cluster_reply *reply = d->in.data;
    if (reply->room_bytes > 0)
        d->room_bytes = reply->room_bytes;
    if (reply->code < 0)
        ek_fault_write(fault, reply->fault.field, "node %u (%s): %.380s", d->node,
                       d->c->card[d->node].host,
                       reply->fault.msg[0] ? reply->fault.msg : ek_strerror(reply->code));
    return reply->code;
}

static int mpi_node_kv_resize(struct ek_device *device, uint32_t blocks)
{
    struct ek_kv_params kv = node_of(device)->kv;

    kv.blocks = blocks;
    int r = mpi_node_kv_open(device, &kv);
    return r < 0 ? r : mpi_node_settle(device, NULL);
}

/* ---- steps ---- */

static int mpi_node_forward(struct ek_device *device, const struct ek_step *step)
{
    struct mpi_node *d = node_of(device);
    struct mpi_asked *a = &d->asked[step->id & 1];

    *a = (struct mpi_asked){.seqs = step->seqs};
    for (uint32_t i = 0; i < step->seqs; i++) {
        a->scores += ek_step_seqs(step)[i].scores;
        a->hiddens += ek_step_seqs(step)[i].hidden > 0;
    }
    return mpi_node_tell(d, ORDER_STEP, step, step->bytes);
}

static int mpi_node_sample(struct ek_device *device, const struct ek_step *step,
                           const struct ek_masks *masks)
{
    (void)step; /* the oldest one */
    return mpi_node_tell(node_of(device), ORDER_SAMPLE, masks, masks ? ek_masks_bytes(masks) : 0);
}

static void mpi_faulty(struct ek_cluster *c, uint32_t node, const char *what, uint64_t step)
{
    char why[256];

    (void)snprintf(why, sizeof(why),
                   "node %u (%s) %s in step %llu: its memory, processor or network is faulty", node,
                   c->card[node].host, what, (unsigned long long)step);
    cluster_fail(c, why);
}

static void mpi_blame(struct ek_cluster *c, uint32_t node, int code, uint64_t step)
{
    const uint32_t ranks = c->p.card.ranks, first = ranks - ranks / c->p.card.stages;
    char what[160];

    if (code == -EBADMSG) {
        (void)snprintf(what, sizeof(what), "sampled other tokens than node %u",
                       first / (ranks / c->p.nodes));
        mpi_faulty(c, node, what, step);
    } else if (code == -ETIMEDOUT && node > 0) {
        (void)cluster_lost(c, node, code);
    } else {
        (void)snprintf(what, sizeof(what), "A rank of node %u (%s) failed: %s", node,
                       c->card[node].host, ek_strerror(code));
        cluster_fail(c, what);
    }
}

/* Whether what came is the step's result, whole, and fits. */
static bool mpi_node_answers(const struct mpi_node *d, uint64_t step, size_t bytes)
{
    const struct ek_result *from = d->in.data;
    const struct mpi_asked *a = &d->asked[step & 1];

    if (d->in.bytes > bytes || ek_result_check(from, d->in.bytes) < 0 || from->step != step)
        return false;
    return from->error < 0 || !d->samples ||
           (from->seqs == a->seqs && from->scores == a->scores && from->hiddens == a->hiddens);
}

static int mpi_node_wait(struct ek_device *device, uint64_t step, struct ek_result *ret_result,
                         size_t bytes, uint64_t timeout_us)
{
    struct mpi_node *d = node_of(device);
    uint64_t *until_us = &d->asked[step & 1].until_us;

    if (timeout_us > 0 && *until_us == 0 && d->answer_us > 0)
        *until_us = ek_now_us() + d->answer_us;
    int r = cluster_take(d->c, d->node, EK_MPI_DONE, &d->in, timeout_us > 0 ? timeout_us : 1);
    if (r == -ETIMEDOUT && (*until_us == 0 || ek_now_us() < *until_us))
        return r;
    if (r < 0)
        return cluster_lost(d->c, d->node, r);
    if (!mpi_node_answers(d, step, bytes)) {
        mpi_faulty(d->c, d->node, "answered for another step", step);
        return EK_ECOMM;
    }
    memcpy(ret_result, d->in.data, d->in.bytes);
    if (ret_result->error < 0) /* it ends, and with it all */
        mpi_blame(d->c, d->node, ret_result->error, step);
    return 0;
}

static void mpi_node_stats(struct ek_device *device, struct ek_device_stats *ret_stats)
{
    *ret_stats = (struct ek_device_stats){.room_bytes = node_of(device)->room_bytes};
}

void ek_cluster_bye(struct ek_cluster *c, int code)
{
    const int32_t body = code;
    struct ek_mpi_message m[EK_NODES_MOST];

    if (!c || atomic_load(&c->failed))
        return;
    for (uint32_t k = 1; k < c->p.nodes; k++)
        m[k - 1] = ek_mpi_send(k, ORDER_BYE, &body, sizeof(body));
    if (cluster_send(c, m, c->p.nodes - 1) == 0)
        cluster_end(c);
}

const struct ek_others cluster_others = {.node = {.open = mpi_node_open,
                                                  .close = mpi_node_close,
                                                  .load = mpi_node_load,
                                                  .kv_open = mpi_node_kv_open,
                                                  .kv_resize = mpi_node_kv_resize,
                                                  .forward = mpi_node_forward,
                                                  .sample = mpi_node_sample,
                                                  .wait = mpi_node_wait,
                                                  .stats = mpi_node_stats},
                                         .settle = mpi_node_settle,
                                         .blame = mpi_blame};

/*
 * Node 0's device: its own ranks (ranks.c), and orders to the other nodes. A step goes out behind
 * the call that puts it in the queue here, since only a step that is in the queue somewhere may be
 * waited for by others; wait() holds what the other nodes sampled against the answer here, so that
 * no token leaves on which they do not agree.
 *
 * Owner: the caller of backend.h. Where there are stages, the last of them is on another node: then
 * the answer is what the first rank of it says. A step's own ranks have landed long before; who
 * asks again after a timeout does not wait for them again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"
#include "kernels/ranks.h"

#define LATE_US EK_US_PER_S /* we have our result: so long the others may need for theirs */
#define HERE    0u          /* the node that answers */

/* A step: what it asked for, and what the ranks here said of it. */
struct landing {
    uint32_t seqs, scores, hiddens;
    bool landed;
    int32_t error;
    uint64_t until_us; /* the result is waited for */
};

struct mpi_lead {
    struct ek_cluster *c;
    const struct ek_backend *each; /* of several ranks */
    struct ek_device *inner;
    struct cluster_buffer in;
    struct ek_kv_params kv;
    uint64_t room_bytes; /* of the other node with the least, UINT64_MAX = none measured it */
    uint32_t answers;    /* the node that has the first rank of the last stage */
    uint64_t answer_us;  /* so long a result is waited for behind our own, 0 = for ever */
    struct landing landing[2];
};

static struct mpi_lead *lead_of(struct ek_device *d)
{
    return (struct mpi_lead *)(void *)d;
}

/* ---- orders ---- */

static int mpi_lead_tell(struct mpi_lead *d, uint32_t order, const void *body, size_t bytes)
{
    struct ek_mpi_message m[EK_NODES_MOST];
    const uint32_t others = d->c->p.nodes - 1;

    for (uint32_t i = 0; i < others; i++)
        m[i] = ek_mpi_send(i + 1, order, body, bytes);
    return cluster_send(d->c, m, others);
}

/* Until all have obeyed, or one has not: its code, with its sentence. That may be a long time:
 * mpirun ends this one where a node dies. */
static int replies(struct mpi_lead *d, struct ek_fault *fault)
{
    struct ek_cluster *c = d->c;
    int first = 0;

    for (uint32_t k = 1; k < c->p.nodes; k++) {
        int r = cluster_take(c, k, EK_MPI_REPLY, &d->in, 0);
        if (r < 0)
            return cluster_lost(c, k, r);
        const struct cluster_reply *reply = d->in.data;
        if (reply->room_bytes > 0 && reply->room_bytes < d->room_bytes)
            d->room_bytes = reply->room_bytes;
        if (reply->code < 0 && first == 0) {
            first = reply->code;
            ek_fault_write(fault, reply->fault.field, "node %u (%s): %.380s", k, c->card[k].host,
                           reply->fault.msg[0] ? reply->fault.msg : ek_strerror(first));
        }
    }
    return first;
}

/* ---- making, loading, ending ---- */

static void lead_close(struct ek_device *device)
{
    struct mpi_lead *d = lead_of(device);

    if (!d)
        return;
    cluster_ranks(d->c, NULL);
    d->each->close(d->inner);
    free(d->in.data);
    free(d);
}

static int lead_open(const struct ek_open_params *p, struct ek_device **ret_device,
                     struct ek_fault *fault)
{
    struct mpi_lead *d = calloc(1, sizeof(*d));
    const uint32_t last = p->ranks - ek_open_shares(p); /* ranks are laid out stage by stage */

    if (!d)
        return -ENOMEM;
    d->c = p->cluster;
    d->each = ek_ranks_backend(p->each);
    d->answers = last / ek_open_local(p);
    /* Behind what the ranks of the stages wait for one another (span.c), and time to end for it. */
    if (p->stall_us > 0)
        d->answer_us = p->stall_us + p->stall_us / 4;
    int r = d->each->open(p, &d->inner, fault);
    if (r < 0) {
        free(d);
        return r;
    }
    cluster_ranks(d->c, d->inner);
    *ret_device = (struct ek_device *)(void *)d;
    return 0;
}

/* A node that cannot load ends, and all others with it: this node does not wait long for its ranks.
 */
static int lead_load(struct ek_device *device, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    struct mpi_lead *d = lead_of(device);
    struct cluster_load o = {.plan = *q};

    o.plan.graph = NULL;
    memcpy(o.meeting, d->c->meeting, sizeof(o.meeting));
    int r = mpi_lead_tell(d, ORDER_LOAD, &o, sizeof(o));

    if (r == 0)
        r = d->each->load(d->inner, q, files, progress, ctx, fault);
    d->room_bytes = UINT64_MAX;
    return r < 0 ? r : replies(d, fault);
}

static int lead_kv_open(struct ek_device *device, const struct ek_kv_params *p)
{
    struct mpi_lead *d = lead_of(device);
    int r = mpi_lead_tell(d, ORDER_KV, p, sizeof(*p));

    if (r == 0)
        r = d->each->kv_open(d->inner, p);
    if (r == 0)
        r = replies(d, NULL);
    if (r == 0)
        d->kv = *p;
    return r;
}

static int resize_others(struct mpi_lead *d, uint32_t blocks)
{
    struct ek_kv_params kv = d->kv;

    kv.blocks = blocks;
    int r = mpi_lead_tell(d, ORDER_KV, &kv, sizeof(kv));
    return r < 0 ? r : replies(d, NULL);
}

/* All or none: what a node had a moment ago it has again, or it gives back. */
static int lead_kv_resize(struct ek_device *device, uint32_t blocks)
{
    struct mpi_lead *d = lead_of(device);
    int r = d->each->kv_resize(d->inner, blocks);

    if (r < 0)
        return r;
    r = resize_others(d, blocks);
    if (r == 0) {
        d->kv.blocks = blocks;
        return 0;
    }
    if (r == EK_ECOMM || resize_others(d, d->kv.blocks) < 0 ||
        d->each->kv_resize(d->inner, d->kv.blocks) < 0) {
        cluster_fail(d->c, "The nodes do not agree on the size of the KV pool");
        return EK_ECOMM;
    }
    return r;
}

/* ---- steps ---- */

static int broken(struct mpi_lead *d, int r)
{
    char why[160];

    (void)snprintf(why, sizeof(why), "A rank of node 0 failed: %s", ek_strerror(r));
    if (r == EK_EDEVICE || r == EK_ECOMM)
        cluster_fail(d->c, why); /* or it has before, with a better sentence */
    return r;
}

static int lead_forward(struct ek_device *device, const struct ek_step *step)
{
    struct mpi_lead *d = lead_of(device);
    struct landing *l = &d->landing[step->id & 1];
    int r = d->each->forward(d->inner, step);

    *l = (struct landing){.seqs = step->seqs};
    for (uint32_t i = 0; i < step->seqs; i++) {
        l->scores += ek_step_seqs(step)[i].scores;
        l->hiddens += ek_step_seqs(step)[i].hidden > 0;
    }
    return r < 0 ? broken(d, r) : mpi_lead_tell(d, ORDER_STEP, step, step->bytes);
}

static int lead_sample(struct ek_device *device, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    struct mpi_lead *d = lead_of(device);
    int r = d->each->sample(d->inner, step, masks);

    if (r < 0)
        return broken(d, r);
    return mpi_lead_tell(d, ORDER_SAMPLE, masks, masks ? ek_masks_bytes(masks) : 0);
}

static int faulty(struct mpi_lead *d, uint32_t node, const char *what, uint64_t step)
{
    char why[256];

    (void)snprintf(why, sizeof(why),
                   "node %u (%s) %s in step %llu: its memory, processor or network is faulty", node,
                   d->c->card[node].host, what, (unsigned long long)step);
    cluster_fail(d->c, why);
    return EK_ECOMM;
}

/* What failed says more than that the group did. */
static int32_t lead_cause(int32_t before, int32_t error)
{
    return error < 0 && (before == 0 || before == EK_ECOMM) ? error : before;
}

/* What a node says of a step; in d->in until the next. -ETIMEDOUT when it is late. */
static int hear(struct mpi_lead *d, uint32_t node, uint64_t step, uint64_t limit_us)
{
    char why[160];
    int r = cluster_take(d->c, node, EK_MPI_DONE, &d->in, limit_us > 0 ? limit_us : 1);

    if (r < 0)
        return r == -ETIMEDOUT ? r : cluster_lost(d->c, node, r);
    const struct cluster_done *done = d->in.data;
    if (done->step != step)
        return faulty(d, node, "answered for another step", step);
    if (done->error < 0) { /* it ends, and with it all */
        (void)snprintf(why, sizeof(why), "node %u (%s): %s", node, d->c->card[node].host,
                       ek_strerror(done->error));
        cluster_fail(d->c, why);
    }
    return 0;
}

/* The result of the node that answers. -ETIMEDOUT: not yet, and it may be asked again. */
static int take_answer(struct mpi_lead *d, const struct landing *l, uint64_t step,
                       struct ek_result *result, size_t bytes, uint64_t left_us)
{
    const uint64_t now = ek_now_us(), most = now < l->until_us ? l->until_us - now : 1;

    int r = hear(d, d->answers, step, most < left_us ? most : left_us);
    if (r == -ETIMEDOUT && ek_now_us() >= l->until_us)
        return cluster_lost(d->c, d->answers, r);
    if (r < 0)
        return r;
    const struct cluster_done *done = d->in.data;
    const struct ek_result *from = (const struct ek_result *)(const void *)(done + 1);
    const size_t there = d->in.bytes - sizeof(*done);
    if (done->error < 0) /* that is all of it */
        return done->error;
    if (there < sizeof(*from) || ek_result_own_bytes(from) != there || there > bytes ||
        from->seqs != l->seqs || from->scores != l->scores || from->hiddens != l->hiddens)
        return faulty(d, d->answers, "answered for another step", step);
    memcpy(result, from, there);
    return 0;
}

/* What the nodes say that have not answered, against the result. */
static int32_t hear_others(struct mpi_lead *d, uint64_t step, const struct ek_result *result,
                           int32_t error, uint64_t left_us)
{
    for (uint32_t k = 1; k < d->c->p.nodes; k++) {
        if (k == d->answers)
            continue;
        int r = hear(d, k, step, left_us > LATE_US ? left_us : LATE_US);
        if (r == -ETIMEDOUT)
            r = cluster_lost(d->c, k, r);
        if (r < 0)
            return lead_cause(error, r);
        const struct cluster_done *done = d->in.data;
        error = lead_cause(error, done->error);
        if (error == 0 && k > d->answers && /* one that samples, too */
            (done->seqs != result->seqs || done->sum != cluster_sum(result)))
            error = faulty(d, k,
                           d->answers == HERE ? "sampled other tokens than node 0"
                                              : "sampled other tokens than the first node of its "
                                                "stage",
                           step);
    }
    return error;
}

static int lead_wait(struct ek_device *device, uint64_t step_id, struct ek_result *ret_result,
                     size_t bytes, uint64_t timeout_us)
{
    struct mpi_lead *d = lead_of(device);
    struct landing *l = &d->landing[step_id & 1];
    const uint64_t begin = ek_now_us();
    int r = 0;

    if (!l->landed) {
        r = d->each->wait(d->inner, step_id, ret_result, bytes, timeout_us);
        if (r < 0)
            return r == -ETIMEDOUT ? r : broken(d, r);
        l->landed = true;
        l->error = ret_result->error;
        l->until_us = d->answer_us > 0 ? ek_now_us() + d->answer_us : UINT64_MAX;
    }
    const uint64_t spent = ek_now_us() - begin, left = spent < timeout_us ? timeout_us - spent : 0;
    if (d->answers != HERE)
        r = take_answer(d, l, step_id, ret_result, bytes, left);
    if (r == -ETIMEDOUT)
        return r;
    l->landed = false;
    if (r < 0) /* there is no result of it */
        *ret_result = (struct ek_result){.step = step_id};
    int32_t error = hear_others(d, step_id, ret_result, lead_cause(l->error, r), left);
    if (error < 0) {
        ret_result->error = error;
        ret_result->seqs = 0;
        (void)broken(d, error);
    }
    return 0;
}

static void lead_stats(struct ek_device *device, struct ek_device_stats *ret_stats)
{
    const struct mpi_lead *d = lead_of(device);
    d->each->stats(d->inner, ret_stats);
    if (d->room_bytes < ret_stats->room_bytes) /* all nodes have as many blocks as the least can */
        ret_stats->room_bytes = d->room_bytes;
}

static void lead_rank_stats(struct ek_device *device, uint32_t rank,
                            struct ek_device_stats *ret_stats)
{
    const struct mpi_lead *d = lead_of(device);
    d->each->rank_stats(d->inner, rank, ret_stats);
}

void ek_cluster_bye(struct ek_cluster *c, int code)
{
    struct mpi_lead d = {.c = c};
    const int32_t body = code;

    if (!c || atomic_load(&c->failed) || mpi_lead_tell(&d, ORDER_BYE, &body, sizeof(body)) < 0)
        return;
    cluster_end(c);
}

#define TABLE(its_name, host)                                                                      \
    {                                                                                              \
        .abi = EK_BACKEND_ABI, .size = sizeof(struct ek_backend), .name = (its_name),              \
        .in_host_memory = (host), .probe = ranks_probe, .open = lead_open, .close = lead_close,    \
        .plan = ranks_plan, .choose = ranks_choose, .load = lead_load, .kv_open = lead_kv_open,    \
        .kv_resize = lead_kv_resize, .forward = lead_forward, .sample = lead_sample,               \
        .wait = lead_wait, .stats = lead_stats, .rank_stats = lead_rank_stats                      \
    }

const struct ek_backend *ek_cluster_backend(const struct ek_backend *each)
{
    static const struct ek_backend of_cpu = TABLE("cpu", true), of_cuda = TABLE("cuda", false);

    return each->in_host_memory ? &of_cpu : &of_cuda;
}

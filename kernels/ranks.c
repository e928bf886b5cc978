/*
 * Several ranks as one device. The graph is divided when it is planned and again when it is loaded;
 * every call goes to all ranks in order, which only put work in queues; wait() takes the answer of
 * the first rank that samples and holds the tokens of all others that do against it. They sample
 * from the same logits with the same state, so nothing has to be told to them. Ranks of stages
 * before the last one sample nothing: what they answer is only whether they failed. On a node that
 * has only such ranks, the answer has no sequences.
 *
 * Where this node leads others, each of them is one rank more, behind those that are here: what it
 * answers is the answer of the device of ranks that is there. A step goes to all of them behind the
 * calls that put it in the queues here, since only a step that is in a queue somewhere may be
 * waited for by others.
 *
 * The weights of all ranks are loaded at once, by a thread each: a rank must be able to meet the
 * others while it loads, and the pages it packs are to lie in its own NUMA node. The caller's
 * progress function is called with the sum, by one of these threads at a time.
 *
 * Owner: the caller of backend.h. What fails on one rank fails the group, so that no other rank
 * waits for it.
 */
#include "kernels/ranks.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/ranks_inside.h"
#include "kernels/stage.h"

#define LATE_US  1000000u /* the first has its result: so long the others may need for theirs */
#define PIECE_US 20000u   /* of a wait for the first, between two looks at the others */

static struct ranks *ranks_of(struct ek_device *d)
{
    return (struct ranks *)(void *)d;
}

/* ---- making and ending ---- */

static void ranks_close(struct ek_device *d)
{
    struct ranks *s = ranks_of(d);

    if (!s)
        return;
    for (uint32_t i = 0; i < s->count; i++)
        s->each->close(s->rank[i].device);
    if (s->group && s->open.others)
        s->open.others->group(s->open.cluster, NULL, NULL);
    for (uint32_t i = 0; i < s->all; i++) {
        ek_graph_free(&s->rank[i].graph);
        free(s->rank[i].result);
    }
    if (s->group)
        s->each->group_free(s->group);
    free(s);
}

/* Whether other nodes do what this one is asked. */
static bool leads(const struct ek_open_params *p)
{
    return p->others && p->first == 0;
}

/* The first rank of the last stage, or the node that has it: of all, or of those that are here. */
static uint32_t first_of_last(const struct ek_open_params *p)
{
    const uint32_t shares = ek_open_shares(p), local = ek_open_local(p);
    const uint32_t end = leads(p) ? p->ranks : p->first + local;
    const uint32_t stage = (end - 1) / shares * shares;
    const uint32_t at = stage > p->first ? stage - p->first : 0;

    return at < local ? at : local + at / local - 1;
}

static int ranks_open(const struct ek_open_params *p, struct ek_device **ret_device,
                      struct ek_fault *fault)
{
    int r = ranks_check(p, fault);
    if (r < 0)
        return r;
    const uint32_t count = ek_open_local(p);
    const uint32_t all = count + (leads(p) ? p->ranks / count - 1 : 0);
    struct ranks *s = calloc(1, sizeof(*s) + all * sizeof(s->rank[0]));
    if (!s)
        return -ENOMEM;
    s->each = p->each;
    s->open = *p;
    s->base = p->first;
    s->count = count;
    s->all = all;
    s->first = first_of_last(p);
    s->room_bytes = UINT64_MAX;
    r = s->each->group_new(p, &s->group, fault);
    if (r == 0 && p->others)
        p->others->group(p->cluster, p->each, s->group);
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        struct ek_open_params one = ranks_open_of(p, i);
        one.group = s->group;
        r = s->each->open(&one, &s->rank[i].device, fault);
    }
    if (r < 0) {
        ranks_close((struct ek_device *)(void *)s);
        return r;
    }
    *ret_device = (struct ek_device *)(void *)s;
    return 0;
}

/* ---- other nodes ---- */

static void ranks_blame(struct ranks *s, uint32_t i, int code, uint64_t step)
{
    if (leads(&s->open))
        s->open.others->blame(s->open.cluster, i < s->count ? 0 : i - s->count + 1, code, step);
}

/* Until all have done what they began. */
static int ranks_settle(struct ranks *s, struct ek_fault *fault)
{
    return leads(&s->open) ? s->open.others->settle(s->open.cluster, &s->room_bytes, fault) : 0;
}

/* ---- loading ---- */

static int ranks_load(struct ek_device *d, const struct ek_plan_request *q,
                      const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                      struct ek_fault *fault)
{
    struct ranks *s = ranks_of(d);

    if (s->result_bytes > 0)
        return -EBUSY;
    s->result_bytes = ranks_result_bytes(q);
    int r = s->result_bytes > 0 ? 0 : -EOVERFLOW;
    for (uint32_t i = 0; r == 0 && i < s->all; i++) {
        struct rank *rank = &s->rank[i];
        rank->plan = *q;
        rank->plan.graph = &rank->graph;
        rank->result = calloc(1, s->result_bytes);
        r = rank->result ? 0 : -ENOMEM;
        if (r == 0 && i < s->count)
            r = ek_rank_graph(q->graph, s->base + i, s->open.ranks, s->open.stages, &rank->graph,
                              fault);
    }
    if (r == 0 && leads(&s->open))
        r = s->open.others->load(s->open.cluster, q);
    if (r == 0)
        r = ranks_load_all(s, files, progress, ctx, fault);
    /* A node that cannot load ends, and all others with it: the ranks here do not wait long. */
    return r < 0 ? r : ranks_settle(s, fault);
}

static int ranks_kv_host(struct ek_device *d, void *at)
{
    struct ranks *s = ranks_of(d);

    if (!s->each->kv_host || !s->each->kv_bytes)
        return -ENOTSUP;
    s->host = at;
    return 0;
}

/* One rank's part after the other. */
static int give_host(struct ranks *s, uint32_t blocks)
{
    char *at = s->host;
    int r = 0;

    for (uint32_t i = 0; r == 0 && at && i < s->count; i++) {
        const size_t bytes = s->each->kv_bytes(s->rank[i].device, EK_TIER_HOST) * blocks;
        r = s->each->kv_host(s->rank[i].device, at);
        at += (bytes + EK_HOST_PAGE - 1) / EK_HOST_PAGE * EK_HOST_PAGE;
    }
    return r;
}

static int ranks_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    struct ranks *s = ranks_of(d);
    int r = give_host(s, p->host_blocks);

    if (r == 0 && leads(&s->open))
        r = s->open.others->kv(s->open.cluster, p);
    for (uint32_t i = 0; r == 0 && i < s->count; i++)
        r = s->each->kv_open(s->rank[i].device, p);
    if (r == 0)
        r = ranks_settle(s, NULL);
    if (r == 0)
        s->kv = *p;
    return r;
}

/* Of all ranks, one after the other; not where some are on other nodes. */
static size_t ranks_kv_bytes(const struct ek_device *d, uint32_t tier)
{
    const struct ranks *s = (const struct ranks *)(const void *)d;
    size_t bytes = 0;

    if (!s->each->kv_bytes || s->count < s->open.ranks)
        return 0;
    for (uint32_t i = 0; i < s->count; i++)
        bytes += s->each->kv_bytes(s->rank[i].device, tier); /* a stage may have none */
    return bytes;
}

static int ranks_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    struct ranks *s = ranks_of(d);
    int r = ranks_kv_bytes(d, tier) > 0 ? 0 : -ENOTSUP;

    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        const size_t bytes = s->each->kv_bytes(s->rank[i].device, tier);
        r = bytes > 0 ? s->each->kv_read(s->rank[i].device, tier, block, to) : 0;
        to = (char *)to + bytes;
    }
    return r;
}

static int ranks_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    struct ranks *s = ranks_of(d);
    int r = ranks_kv_bytes(d, tier) > 0 ? 0 : -ENOTSUP;

    for (uint32_t i = 0; r == 0 && i < s->count; i++) {
        const size_t bytes = s->each->kv_bytes(s->rank[i].device, tier);
        r = bytes > 0 ? s->each->kv_write(s->rank[i].device, tier, block, from) : 0;
        from = (const char *)from + bytes;
    }
    return r;
}

/* ---- steps ---- */

/* No rank waits for another any more. */
static void ranks_fail(struct ranks *s, int code)
{
    if (code == EK_EDEVICE || code == EK_ECOMM)
        ranks_blame(s, 0, code, 0); /* or another one was before, by what it did */
    s->each->group_abort(s->group);
}

/* One rank did what others may not have done: they must not wait for each other. nth: 0 where no
 * other was asked before it, here; node 0 asks the others when it has put its own to work. */
static int broken(struct ranks *s, uint32_t nth, int r)
{
    const bool alone = nth + s->base == 0;
    const int code = alone || r == EK_EDEVICE || r == EK_EDEVMEM ? r : EK_ECOMM;

    if (!alone || r == EK_EDEVICE || r == EK_ECOMM)
        ranks_fail(s, code);
    return code;
}

/* The other nodes at once. */
static int resize_others(struct ranks *s, uint32_t blocks)
{
    struct ek_kv_params kv = s->kv;

    if (!leads(&s->open))
        return 0;
    kv.blocks = blocks;
    int r = s->open.others->kv(s->open.cluster, &kv);
    return r < 0 ? r : ranks_settle(s, NULL);
}

/* Ranks that do not agree on the pool end the group: a step may name blocks that one lacks. */
static int ranks_kv_resize(struct ek_device *d, uint32_t blocks)
{
    struct ranks *s = ranks_of(d);
    uint32_t done = 0;
    int r = 0;

    while (r == 0 && done < s->count)
        r = s->each->kv_resize(s->rank[done++].device, blocks);
    const bool all_here = r == 0;
    if (all_here)
        r = resize_others(s, blocks);
    if (r == 0) {
        s->kv.blocks = blocks;
        return 0;
    }
    bool lost = r == EK_EDEVICE || r == EK_ECOMM;
    if (!lost && all_here) /* as it was: what was had a moment ago, or is given back */
        lost = resize_others(s, s->kv.blocks) < 0;
    for (done -= !all_here; !lost && done > 0; done--)
        lost = s->each->kv_resize(s->rank[done - 1].device, s->kv.blocks) < 0;
    if (!lost)
        return r;
    const int code = r == EK_ECOMM ? r : EK_EDEVICE;
    ranks_fail(s, code);
    return code;
}

static int ranks_forward(struct ek_device *d, const struct ek_step *step)
{
    struct ranks *s = ranks_of(d);

    memset(s->landed[step->id & 1], 0, sizeof(s->landed[0]));
    for (uint32_t i = 0; i < s->count; i++) {
        int r = s->each->forward(s->rank[i].device, step);
        if (r < 0)
            return broken(s, i, r);
    }
    int r = leads(&s->open) ? s->open.others->forward(s->open.cluster, step) : 0;
    return r < 0 ? broken(s, 1, r) : 0;
}

static int ranks_sample(struct ek_device *d, const struct ek_step *step,
                        const struct ek_masks *masks)
{
    struct ranks *s = ranks_of(d);

    for (uint32_t i = 0; i < s->count; i++) {
        int r = s->each->sample(s->rank[i].device, step, masks);
        if (r < 0)
            return broken(s, i, r);
    }
    int r = leads(&s->open) ? s->open.others->sample(s->open.cluster, masks) : 0;
    return r < 0 ? broken(s, 1, r) : 0;
}

/* The answer of a rank that is here, or of another node. */
static int wait_rank(struct ranks *s, uint32_t i, uint64_t id, struct ek_result *ret_result,
                     size_t bytes, uint64_t timeout_us)
{
    if (i < s->count)
        return s->each->wait(s->rank[i].device, id, ret_result, bytes, timeout_us);
    return s->open.others->wait(s->open.cluster, i - s->count + 1, id, ret_result, bytes,
                                timeout_us);
}

/* Of a rank that is not the first, whose result is kept here. Sets `landed` when it is there. */
static int wait_other(struct ranks *s, uint32_t i, uint64_t id, uint64_t timeout_us, bool *landed)
{
    int r = landed[i] ? 0 : wait_rank(s, i, id, s->rank[i].result, s->result_bytes, timeout_us);

    landed[i] = r == 0;
    return r < 0 && r != -ETIMEDOUT ? broken(s, 1, r) : r;
}

/* Waits for the first that samples, and looks at the others meanwhile: what has lost its device is
 * not to be waited for. What another node samples is waited for when a rank here has done its part:
 * a wait for nodes looks more seldom the longer it is. */
static int wait_first(struct ranks *s, uint64_t id, struct ek_result *ret_result, size_t bytes,
                      uint64_t timeout_us, bool *landed)
{
    for (uint64_t left = timeout_us;; left -= PIECE_US) {
        uint64_t piece = left < PIECE_US ? left : PIECE_US;
        int r = s->first < s->count ? 0 : wait_other(s, 0, id, piece, landed);
        if (r == 0) {
            r = wait_rank(s, s->first, id, ret_result, bytes, piece);
            if (r != -ETIMEDOUT)
                return r < 0 ? broken(s, 0, r) : 0;
        }
        for (uint32_t i = 0; i < s->all && (r == 0 || r == -ETIMEDOUT); i++)
            r = i != s->first ? wait_other(s, i, id, 0, landed) : 0;
        if (r < 0 && r != -ETIMEDOUT)
            return r;
        if (left <= PIECE_US)
            return -ETIMEDOUT;
    }
}

/* What a rank says against the first's result: the first cause, so far or now. They are one model
 * only as long as they say the same. */
static int32_t hold_against(struct ranks *s, uint32_t i, const struct ek_result *first,
                            int32_t error)
{
    const struct ek_result *other = s->rank[i].result;

    if (other->error < 0)
        return error == 0 || error == EK_ECOMM ? other->error : error;
    if (error < 0 || first->error < 0 || i < s->first ||
        ek_result_sum(first) == ek_result_sum(other))
        return error;
    ranks_blame(s, i, -EBADMSG, first->step);
    return EK_ECOMM;
}

static int ranks_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                      size_t bytes, uint64_t timeout_us)
{
    struct ranks *s = ranks_of(d);
    const uint64_t begin = ek_now_us();
    bool *landed = s->landed[step_id & 1];
    int32_t error = 0;

    int r = wait_first(s, step_id, ret_result, bytes, timeout_us, landed);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < s->all; i++) {
        if (i == s->first)
            continue;
        uint64_t spent = ek_now_us() - begin, left = spent < timeout_us ? timeout_us - spent : 0;
        r = wait_other(s, i, step_id, left > LATE_US ? left : LATE_US, landed);
        landed[i] = false;
        if (r == -ETIMEDOUT)
            ranks_blame(s, i, r, step_id);
        if (r < 0)
            return broken(s, 1, r == -ETIMEDOUT ? EK_ECOMM : r);
        error = hold_against(s, i, ret_result, error);
    }
    if (error < 0 && (ret_result->error == 0 || ret_result->error == EK_ECOMM)) {
        ret_result->error = error;
        ret_result->seqs = 0;
    }
    if (ret_result->error == EK_ECOMM || ret_result->error == EK_EDEVICE)
        ranks_fail(s, ret_result->error);
    return 0;
}

static void ranks_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    struct ranks *s = ranks_of(d);
    struct ek_device_stats all;

    s->each->stats(s->rank[0].device, &all);
    for (uint32_t i = 1; i < s->count; i++) {
        struct ek_device_stats one;
        s->each->stats(s->rank[i].device, &one);
        all.weight_bytes += one.weight_bytes;
        all.activation_bytes += one.activation_bytes;
        all.kv_bytes += one.kv_bytes;
        all.host_kv_bytes += one.host_kv_bytes;
        all.state_bytes += one.state_bytes;
        all.pool_reserved_bytes += one.pool_reserved_bytes;
        all.pool_used_bytes += one.pool_used_bytes;
        all.pool_reserved_high_bytes += one.pool_reserved_high_bytes;
        all.pool_used_high_bytes += one.pool_used_high_bytes;
        all.host_weight_bytes += one.host_weight_bytes;
        all.stream_bytes += one.stream_bytes;
        all.stream_us = ranks_join(all.stream_us, one.stream_us, false); /* all copy at once */
        if (one.room_bytes < all.room_bytes) /* all have as many blocks as the least can */
            all.room_bytes = one.room_bytes;
        all.context_bytes = ranks_join(all.context_bytes, one.context_bytes, false);
        all.others_bytes = ranks_join(all.others_bytes, one.others_bytes, false);
    }
    if (s->room_bytes < all.room_bytes)
        all.room_bytes = s->room_bytes;
    *ret_stats = all;
}

static void ranks_rank_stats(struct ek_device *d, uint32_t rank, struct ek_device_stats *ret_stats)
{
    struct ranks *s = ranks_of(d);
    s->each->stats(s->rank[rank].device, ret_stats);
}

#define TABLE(its_name, host)                                                                      \
    {                                                                                              \
        .abi = EK_BACKEND_ABI, .size = sizeof(struct ek_backend), .name = (its_name),              \
        .in_host_memory = (host), .probe = ranks_probe, .open = ranks_open, .close = ranks_close,  \
        .plan = ranks_plan, .choose = ranks_choose, .load = ranks_load, .kv_open = ranks_kv_open,  \
        .kv_resize = ranks_kv_resize, .forward = ranks_forward, .sample = ranks_sample,            \
        .wait = ranks_wait, .stats = ranks_stats, .rank_stats = ranks_rank_stats,                  \
        .kv_bytes = ranks_kv_bytes, .kv_read = ranks_kv_read, .kv_write = ranks_kv_write,          \
        .kv_host = ranks_kv_host                                                                   \
    }

const struct ek_backend *ek_ranks_backend(const struct ek_backend *each)
{
    static const struct ek_backend of_cpu = TABLE("cpu", true), of_cuda = TABLE("cuda", false);

    return each->in_host_memory ? &of_cpu : &of_cuda;
}

/*
 * Node 0's device: its own ranks (ranks.c), and orders to the other nodes. A step goes out behind
 * the call that puts it in the queue here, since only a step that is in the queue somewhere may be
 * waited for by others; wait() holds what the other nodes sampled against the answer here, so that
 * no token leaves on which they do not agree.
 *
 * Owner: the caller of backend.h; replies and DONE come by the readers' threads, under the
 * cluster's lock.
 *
 * Where there are stages, the last of them is on another node: then the answer is what the first
 * rank of it says (RESULT), which its reader keeps until it is asked for. A step's own ranks have
 * landed long before; who asks again after a timeout does not wait for them again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/nodes/cluster_state.h"
#include "kernels/ranks.h"

#define LATE_US EK_US_PER_S /* we have our result: so long the others may need for theirs */
#define NONE    UINT32_MAX

/* A step: what it asked for, and what the ranks here said of it. */
struct landing {
    uint32_t seqs, scores, hiddens;
    bool landed;
    int32_t error;
    uint64_t since_us;
};

struct lead {
    struct ek_cluster *c;
    const struct ek_backend *each; /* of several ranks */
    struct ek_device *inner;
    struct ek_inbox out; /* an order to sample with masks */
    uint32_t blocks;
    uint32_t answers;   /* the peer that has the first rank of the last stage; NONE: it is here */
    uint32_t samples;   /* peers from this one on have ranks of the last stage */
    uint64_t answer_us; /* so long a result is waited for behind our own, 0 = for ever */
    struct landing landing[2];
};

static struct lead *lead_of(struct ek_device *d)
{
    return (struct lead *)(void *)d;
}

static const struct ek_backend *inner_of(const struct ek_open_params *p)
{
    return ek_ranks_backend(p->each);
}

/* ---- what comes from the others ---- */

static void on_frame(struct peer *from, const struct ek_frame *f, struct ek_inbox *in)
{
    struct ek_cluster *c = from->cluster;

    if (f->kind == EK_FRAME_LEAVE) {
        c->p.leaving(c->p.ctx, from->node, from->card.host);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (c->loading && f->kind == EK_FRAME_REPLY && c->abort &&
        ((const struct ek_node_fault *)in->data)->code < 0)
        c->abort(c->abort_ctx);
    if (f->kind == EK_FRAME_DONE) {
        const struct ek_step_done *done = in->data;
        from->done[done->step & 1] = *done;
    } else if (f->kind == EK_FRAME_RESULT) {
        const struct ek_result *r = in->data;
        from->done[r->step & 1] = (struct ek_step_done){
            .step = r->step, .error = r->error, .seqs = r->seqs, .tokens = ek_result_sum(r)};
        const struct ek_inbox other = from->answer[r->step & 1];
        from->answer[r->step & 1] = *in;
        *in = other;
    } else if (f->kind == EK_FRAME_REPLY) {
        memcpy(&from->reply, in->data, sizeof(from->reply));
        from->replied = true;
    }
    pthread_cond_broadcast(&c->met);
    pthread_mutex_unlock(&c->lock);
}

/* ---- orders ---- */

static int tell(struct lead *d, enum ek_frame_kind kind, const void *body, size_t bytes)
{
    struct ek_cluster *c = d->c;

    for (uint32_t i = 0; i < c->peers; i++) {
        int r = ek_link_send(&c->peer[i].control, kind, body, bytes, c->stall_us);
        if (r < 0) {
            cluster_lost(c, c->peer[i].control.peer, r, false);
            return EK_ECOMM;
        }
    }
    return 0;
}

static int order(struct lead *d, enum ek_frame_kind kind, const void *body, size_t bytes)
{
    struct ek_cluster *c = d->c;

    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->peers; i++)
        c->peer[i].replied = false;
    pthread_mutex_unlock(&c->lock);
    return tell(d, kind, body, bytes);
}

/* Until all have obeyed, or one has not: its code, with its sentence. Who is silent is found by the
 * pulse. */
static int replies(struct lead *d, struct ek_fault *fault)
{
    struct ek_cluster *c = d->c;
    int r = 0;

    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; r == 0 && i < c->peers; i++) {
        struct peer *p = &c->peer[i];
        while (!p->replied && !c->failed)
            pthread_cond_wait(&c->met, &c->lock);
        r = p->replied ? p->reply.code : EK_ECOMM;
        if (r < 0 && p->replied)
            ek_fault_write(fault, p->reply.field, "%s: %.380s", p->control.peer,
                           p->reply.msg[0] ? p->reply.msg : ek_strerror(r));
        else if (r < 0)
            ek_fault_write(fault, "nnodes", "%.470s", c->why);
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* ---- making, loading, ending ---- */

static int lead_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                      struct ek_fault *fault)
{
    return inner_of(p)->probe(p, ret_info, fault);
}

static int lead_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
                     struct ek_plan *ret_plan, struct ek_fault *fault)
{
    return inner_of(p)->plan(p, q, ret_plan, fault);
}

static void abort_ranks(void *ctx)
{
    ek_ranks_abort(ctx);
}

static void lead_close(struct ek_device *device)
{
    struct lead *d = lead_of(device);

    if (!d)
        return;
    cluster_on_fail(d->c, NULL, NULL);
    d->each->close(d->inner);
    ek_inbox_done(&d->out);
    free(d);
}

/* Who answers; ranks are laid out stage by stage. */
static void find_answers(struct lead *d, const struct ek_open_params *p)
{
    const uint32_t local = ek_open_local(p), last = p->ranks - ek_open_shares(p);

    const bool others = local > 0 && last >= local;

    d->answers = others ? last / local - 1 : NONE;
    d->samples = others ? d->answers : 0;
    if (p->stall_us > 0) /* behind what the ranks of the stages wait for one another: span.c */
        d->answer_us = p->stall_us + p->stall_us / 12;
}

static int lead_open(const struct ek_open_params *p, struct ek_device **ret_device,
                     struct ek_fault *fault)
{
    struct lead *d = calloc(1, sizeof(*d));
    struct ek_meeting meeting;

    if (!d)
        return -ENOMEM;
    d->c = p->cluster;
    d->each = inner_of(p);
    d->c->on_frame = on_frame;
    find_answers(d, p);
    int r = d->each->open(p, &d->inner, fault);
    if (r == 0) {
        cluster_on_fail(d->c, abort_ranks, d->inner);
        r = cluster_start(d->c);
    }
    if (r == 0) {
        memcpy(meeting.bytes, d->c->meeting, sizeof(meeting.bytes));
        r = order(d, EK_FRAME_OPEN, &meeting, sizeof(meeting));
    }
    if (r == 0)
        r = replies(d, fault);
    if (r < 0) {
        lead_close((struct ek_device *)(void *)d);
        return r;
    }
    *ret_device = (struct ek_device *)(void *)d;
    return 0;
}

static void set_loading(struct ek_cluster *c, bool loading)
{
    pthread_mutex_lock(&c->lock);
    c->loading = loading;
    pthread_mutex_unlock(&c->lock);
}

static int lead_load(struct ek_device *device, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    struct lead *d = lead_of(device);
    struct ek_load_order o = {.ceiling = q->ceiling,
                              .logit_rows = q->logit_rows,
                              .block_size = q->block_size,
                              .max_model_len = d->c->max_model_len};
    struct ek_fault others = {.msg = ""};

    set_loading(d->c, true);
    int r = order(d, EK_FRAME_LOAD, &o, sizeof(o));
    if (r < 0)
        return r;
    r = d->each->load(d->inner, q, files, progress, ctx, fault);
    if (r < 0 && r != EK_ECOMM)
        return r; /* whoever ends us tells the others */
    if (r == 0)
        d->c->p.say(d->c->p.ctx, false, "The weights of node 0 are loaded: waiting for the others");
    int theirs = replies(d, &others);
    set_loading(d->c, false);
    if (theirs < 0 && fault)
        *fault = others;
    return theirs < 0 ? theirs : r;
}

static int lead_kv_open(struct ek_device *device, const struct ek_kv_params *p)
{
    struct lead *d = lead_of(device);
    int r = order(d, EK_FRAME_KV_OPEN, p, sizeof(*p));

    if (r == 0)
        r = d->each->kv_open(d->inner, p);
    if (r == 0)
        r = replies(d, NULL);
    if (r == 0)
        d->blocks = p->blocks;
    return r;
}

static int resize_others(struct lead *d, uint32_t blocks)
{
    const struct ek_resize_order o = {blocks};
    int r = order(d, EK_FRAME_RESIZE, &o, sizeof(o));

    return r < 0 ? r : replies(d, NULL);
}

/* All or none: what a node had a moment ago it has again, or it gives back. */
static int lead_kv_resize(struct ek_device *device, uint32_t blocks)
{
    struct lead *d = lead_of(device);
    int r = d->each->kv_resize(d->inner, blocks);

    if (r < 0)
        return r;
    r = resize_others(d, blocks);
    if (r == 0) {
        d->blocks = blocks;
        return 0;
    }
    if (r == EK_ECOMM || resize_others(d, d->blocks) < 0 ||
        d->each->kv_resize(d->inner, d->blocks) < 0) {
        cluster_fail(d->c, EK_ECOMM, "The nodes do not agree on the size of the KV pool");
        return EK_ECOMM;
    }
    return r;
}

/* ---- steps ---- */

static int broken(struct lead *d, int r)
{
    char why[160];

    (void)snprintf(why, sizeof(why), "A rank of node 0 failed: %s", ek_strerror(r));
    if (r == EK_EDEVICE || r == EK_ECOMM)
        cluster_fail(d->c, r, why); /* or it has before, with a better sentence */
    return r;
}

static int lead_forward(struct ek_device *device, const struct ek_step *step)
{
    struct lead *d = lead_of(device);
    struct landing *l = &d->landing[step->id & 1];
    int r = d->each->forward(d->inner, step);

    *l = (struct landing){.seqs = step->seqs};
    for (uint32_t i = 0; i < step->seqs; i++) {
        l->scores += ek_step_seqs(step)[i].scores;
        l->hiddens += ek_step_seqs(step)[i].hidden > 0;
    }
    return r < 0 ? broken(d, r) : tell(d, EK_FRAME_STEP, step, step->bytes);
}

static int tell_sample(struct lead *d, const struct ek_step *step, const struct ek_masks *masks)
{
    const struct ek_sample_order o = {.step = step->id, .masked = masks != NULL};
    const size_t more =
        masks ? sizeof(*masks) + (size_t)masks->rows * masks->words * sizeof(masks->bits[0]) : 0;

    if (!masks)
        return tell(d, EK_FRAME_SAMPLE, &o, sizeof(o));
    int r = ek_inbox_room(&d->out, sizeof(o) + more); /* grows to the ceiling, then stays */
    if (r < 0) {
        cluster_fail(d->c, r, "Node 0 has no memory for masks");
        return EK_ECOMM;
    }
    memcpy(d->out.data, &o, sizeof(o));
    memcpy((char *)d->out.data + sizeof(o), masks, more);
    return tell(d, EK_FRAME_SAMPLE, d->out.data, sizeof(o) + more);
}

static int lead_sample(struct ek_device *device, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    struct lead *d = lead_of(device);
    int r = d->each->sample(d->inner, step, masks);

    return r < 0 ? broken(d, r) : tell_sample(d, step, masks);
}

/* What another node says of a step; -ETIMEDOUT when it is late. */
static int await_done(struct peer *p, uint64_t step, const struct timespec *late,
                      struct ek_step_done *ret_done)
{
    struct ek_cluster *c = p->cluster;
    const struct ek_step_done *done = &p->done[step & 1];
    int r = 0;

    pthread_mutex_lock(&c->lock);
    while (r == 0 && done->step != step && !c->failed)
        r = -pthread_cond_timedwait(&c->met, &c->lock, late);
    if (done->step == step) {
        *ret_done = *done;
        r = 0;
    } else if (c->failed) {
        r = EK_ECOMM;
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

static void say_faulty(struct lead *d, const struct peer *p, const char *what, uint64_t step)
{
    char why[256];

    (void)snprintf(why, sizeof(why),
                   "%s %s in step %llu: its memory, processor or network is faulty",
                   p->control.peer, what, (unsigned long long)step);
    cluster_fail(d->c, EK_ECOMM, why);
}

/* One node's word on a step, into the code of all. */
static void join(struct lead *d, uint32_t peer, const struct ek_step_done *done,
                 const struct ek_result *r, int32_t *error)
{
    if (done->error < 0 && (*error == 0 || *error == EK_ECOMM)) {
        *error = done->error;
    } else if (done->error == 0 && *error == 0 && peer >= d->samples &&
               (done->seqs != r->seqs || done->tokens != ek_result_sum(r))) {
        say_faulty(d, &d->c->peer[peer],
                   d->answers == NONE ? "sampled other tokens than node 0"
                                      : "sampled other tokens than the first node of its stage",
                   done->step);
        *error = EK_ECOMM;
    }
}

/* The result of the node that answers, once it has said that it is there. */
static int take_answer(struct lead *d, const struct landing *l, uint64_t step_id,
                       struct ek_result *ret_result, size_t bytes)
{
    struct ek_cluster *c = d->c;
    struct peer *p = &c->peer[d->answers];
    int r = -EBADMSG;

    pthread_mutex_lock(&c->lock);
    const struct ek_result *from = p->answer[step_id & 1].data;
    const bool ours = from && from->step == step_id; /* else it said DONE */
    if (ours && ek_result_own_bytes(from) <= bytes && from->seqs == l->seqs &&
        from->scores == l->scores && from->hiddens == l->hiddens) {
        memcpy(ret_result, from, ek_result_own_bytes(from));
        r = 0;
    }
    pthread_mutex_unlock(&c->lock);
    if (r < 0)
        say_faulty(d, p, "answered for another step", step_id);
    return r < 0 ? EK_ECOMM : 0;
}

/* Until the node that answers has. -ETIMEDOUT: not yet, and it may be asked again. */
static int await_answer(struct lead *d, struct landing *l, uint64_t step_id,
                        struct ek_result *ret_result, size_t bytes, uint64_t left_us)
{
    struct peer *p = &d->c->peer[d->answers];
    struct ek_step_done done;
    uint64_t most = left_us;

    if (d->answer_us > 0) {
        const uint64_t spent = ek_now_us() - l->since_us;
        const uint64_t more = spent < d->answer_us ? d->answer_us - spent : 1;
        most = more < left_us ? more : left_us;
    }
    const struct timespec late = cluster_in(most);
    int r = await_done(p, step_id, &late, &done);
    if (r == 0 && done.error == 0)
        return take_answer(d, l, step_id, ret_result, bytes);
    if (r == 0) /* that is all of it */
        *ret_result = (struct ek_result){.step = step_id, .error = done.error};
    if (r == -ETIMEDOUT && d->answer_us > 0 && ek_now_us() - l->since_us >= d->answer_us) {
        cluster_lost(d->c, p->control.peer, r, true);
        r = EK_ECOMM;
    }
    return r;
}

/* What the other nodes say, against the result. */
static int32_t hear_others(struct lead *d, uint64_t step_id, const struct ek_result *result,
                           int32_t error, uint64_t left_us)
{
    const struct timespec late = cluster_in(left_us > LATE_US ? left_us : LATE_US);

    for (uint32_t i = 0; i < d->c->peers; i++) {
        struct ek_step_done done = {.step = 0};
        int r = await_done(&d->c->peer[i], step_id, &late, &done);
        if (r == -ETIMEDOUT)
            cluster_lost(d->c, d->c->peer[i].control.peer, r, true);
        if (r < 0)
            error = error < 0 && error != EK_ECOMM ? error : EK_ECOMM;
        else
            join(d, i, &done, result, &error);
    }
    return error;
}

static int lead_wait(struct ek_device *device, uint64_t step_id, struct ek_result *ret_result,
                     size_t bytes, uint64_t timeout_us)
{
    struct lead *d = lead_of(device);
    struct landing *l = &d->landing[step_id & 1];
    const uint64_t begin = ek_now_us();
    int r = 0;

    if (!l->landed) {
        r = d->each->wait(d->inner, step_id, ret_result, bytes, timeout_us);
        if (r < 0)
            return r == -ETIMEDOUT ? r : broken(d, r);
        l->landed = true;
        l->error = ret_result->error;
        l->since_us = ek_now_us();
    }
    const uint64_t spent = ek_now_us() - begin, left = spent < timeout_us ? timeout_us - spent : 0;
    int32_t error = l->error;
    if (d->answers != NONE)
        r = await_answer(d, l, step_id, ret_result, bytes, left);
    if (r == -ETIMEDOUT)
        return r;
    l->landed = false;
    if (r < 0) { /* there is no result of it */
        *ret_result = (struct ek_result){.step = step_id};
        error = error < 0 ? error : r;
    }
    if (d->answers != NONE && ret_result->error < 0 && (error == 0 || error == EK_ECOMM))
        error = ret_result->error;
    error = hear_others(d, step_id, ret_result, error, left);
    if (error < 0) {
        ret_result->error = error;
        ret_result->seqs = 0;
        (void)broken(d, error);
    }
    return 0;
}

static void lead_stats(struct ek_device *device, struct ek_device_stats *ret_stats)
{
    const struct lead *d = lead_of(device);
    d->each->stats(d->inner, ret_stats);
}

static void lead_rank_stats(struct ek_device *device, uint32_t rank,
                            struct ek_device_stats *ret_stats)
{
    const struct lead *d = lead_of(device);
    d->each->rank_stats(d->inner, rank, ret_stats);
}

void ek_cluster_serve(struct ek_cluster *c, uint32_t max_model_len)
{
    c->max_model_len = max_model_len;
}

void ek_cluster_bye(struct ek_cluster *c, int code)
{
    struct ek_node_fault n = {.code = code};

    if (!c || cluster_failed(c))
        return;
    pthread_mutex_lock(&c->lock);
    c->over = true;
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->peers; i++) /* who does not take it learns it by the end */
        (void)ek_link_send(&c->peer[i].control, EK_FRAME_BYE, &n, sizeof(n), LATE_US);
}

#define TABLE(its_name, host)                                                                      \
    {                                                                                              \
        .abi = EK_BACKEND_ABI, .size = sizeof(struct ek_backend), .name = (its_name),              \
        .in_host_memory = (host), .probe = lead_probe, .open = lead_open, .close = lead_close,     \
        .plan = lead_plan, .load = lead_load, .kv_open = lead_kv_open,                             \
        .kv_resize = lead_kv_resize, .forward = lead_forward, .sample = lead_sample,               \
        .wait = lead_wait, .stats = lead_stats, .rank_stats = lead_rank_stats                      \
    }

const struct ek_backend *ek_cluster_backend(const struct ek_backend *each)
{
    static const struct ek_backend of_cpu = TABLE("cpu", true), of_cuda = TABLE("cuda", false);

    return each->in_host_memory ? &of_cpu : &of_cuda;
}

/*
 * A card as one of several ranks. Its calls are made by a thread of its own: a collective begins
 * only when all ranks make it, and the caller of backend.h has one thread for all of them.
 *
 *   FREE --forward()--> BEGUN --sample()--> ASKED --(thread)--> DONE --wait()--> FREE
 *
 * The turn is the caller's, but for DONE and its code, which the thread sets under the lock. The
 * flight behind it (step.c) is the thread's until DONE, then the waiting caller's.
 *
 * A step that fails on one rank has begun on others: it fails the group, and what it failed with is
 * the answer to every call from then on.
 */
#include "kernels/cuda/rank.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/group.h"
#include "kernels/cuda/step.h"
#include "kernels/shard.h"

#define ORDERS   4u      /* two of each step in flight */
#define PIECE_US 1000u   /* between two looks at the group */
#define LATE_US  200000u /* more than this at once: all of us were stopped */
#define PROBE    4u      /* elements that are summed to see that it is right */

struct order {
    const struct ek_step *step;
    const struct ek_masks *masks;
    bool samples;
};

struct rank_turn {
    enum { TURN_FREE, TURN_BEGUN, TURN_ASKED, TURN_DONE } state;
    const struct ek_step *step;
    int code;           /* what the thread failed with */
    uint64_t waited_us; /* for its result */
};

struct cuda_rank {
    struct ek_device *d;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    /* under lock */
    struct order order[ORDERS];
    uint32_t first, count;
    bool stops;
    struct rank_turn turn[2];
};

/* ---- its thread ---- */

static void rank_obey(struct cuda_rank *k, const struct order *o)
{
    struct ek_device *d = k->d;
    struct rank_turn *t = &k->turn[o->step->id & 1];
    int r = t->code; /* of the forward before it */

    if (r == 0)
        r = cuda_group_state(d->group, d->rank_index);
    if (r == 0 && o->samples)
        r = cuda_step_sample(d, o->step, o->masks);
    else if (r == 0)
        r = cuda_step_forward(d, o->step);
    if (r < 0)
        (void)cuda_group_fail(d->group, r);
    pthread_mutex_lock(&k->lock);
    t->code = r;
    if (o->samples) {
        t->state = TURN_DONE;
        pthread_cond_broadcast(&k->done);
    }
    pthread_mutex_unlock(&k->lock);
}

static void *rank_main(void *arg)
{
    struct cuda_rank *k = arg;

    (void)k->d->cu.ctx_set(k->d->context); /* each call sets it again */
    pthread_mutex_lock(&k->lock);
    for (;;) {
        while (k->count == 0 && !k->stops)
            pthread_cond_wait(&k->work, &k->lock);
        if (k->count == 0) /* all orders were obeyed: other ranks obey theirs */
            break;
        struct order o = k->order[k->first];
        k->first = (k->first + 1) % ORDERS;
        k->count--;
        pthread_mutex_unlock(&k->lock);
        rank_obey(k, &o);
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static void rank_give(struct cuda_rank *k, const struct ek_step *step, const struct ek_masks *masks,
                      bool samples)
{
    k->order[(k->first + k->count++) % ORDERS] = (struct order){step, masks, samples};
    pthread_cond_signal(&k->work);
}

/* ---- its caller ---- */

int cuda_rank_forward(struct ek_device *d, const struct ek_step *step)
{
    struct cuda_rank *k = d->rank;
    struct rank_turn *t = &k->turn[step->id & 1], *other = &k->turn[~step->id & 1];
    int r = cu_code(d->cu.ctx_set(d->context));

    if (r == 0)
        r = cuda_group_state(d->group, d->rank_index);
    if (r < 0)
        return r;
    pthread_mutex_lock(&k->lock);
    if (!d->kv || other->state == TURN_BEGUN)
        r = -EINVAL;
    else if (t->state != TURN_FREE)
        r = -EBUSY;
    else {
        *t = (struct rank_turn){.state = TURN_BEGUN, .step = step};
        rank_give(k, step, NULL, false);
    }
    pthread_mutex_unlock(&k->lock);
    return r;
}

int cuda_rank_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks)
{
    struct cuda_rank *k = d->rank;
    struct rank_turn *t = &k->turn[step->id & 1];
    int r = 0;

    pthread_mutex_lock(&k->lock);
    if (t->state != TURN_BEGUN || t->step != step)
        r = -EINVAL;
    else {
        t->state = TURN_ASKED;
        rank_give(k, step, masks, true);
    }
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* Until the thread has enqueued all of it, at most for `us`. */
static int await_thread(struct cuda_rank *k, struct rank_turn *t, uint64_t us)
{
    struct timespec late;
    int waits = 0;

    clock_gettime(CLOCK_MONOTONIC, &late);
    uint64_t ns = (uint64_t)late.tv_nsec + us * 1000; /* at most PIECE_US */
    late.tv_sec += (time_t)(ns / 1000000000);
    late.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&k->lock);
    while (t->state == TURN_ASKED && waits == 0)
        waits = pthread_cond_timedwait(&k->done, &k->lock, &late);
    int r = t->state == TURN_DONE ? t->code : -ETIMEDOUT;
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* One piece: the thread, the card, then what the others say. */
static int wait_piece(struct ek_device *d, struct rank_turn *t, uint64_t id,
                      struct ek_result *ret_result, size_t bytes, uint64_t us)
{
    int r = await_thread(d->rank, t, us);
    if (r == 0)
        r = cuda_step_wait(d, id, ret_result, bytes, us);
    if (r != -ETIMEDOUT)
        return r;
    int state = cu_code(d->cu.ctx_set(d->context));
    if (state == 0)
        state = cuda_group_state(d->group, d->rank_index);
    return state < 0 ? state : r;
}

int cuda_rank_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                   uint64_t timeout_us)
{
    struct rank_turn *t = &d->rank->turn[id & 1];
    const uint64_t begin = ek_now_us(), stall = cuda_group_stall_us(d->group);
    uint64_t last = begin;
    int r;

    /* The state leaves ASKED by the thread alone, and only wait() frees it. */
    pthread_mutex_lock(&d->rank->lock);
    bool mine = (t->state == TURN_ASKED || t->state == TURN_DONE) && t->step->id == id;
    pthread_mutex_unlock(&d->rank->lock);
    if (!mine)
        return -EINVAL;
    for (;;) {
        uint64_t left = timeout_us - (last - begin < timeout_us ? last - begin : timeout_us);
        r = wait_piece(d, t, id, ret_result, bytes, left < PIECE_US ? left : PIECE_US);
        uint64_t now = ek_now_us(), spent = now - last;
        t->waited_us += spent < LATE_US ? spent : LATE_US;
        last = now;
        if (r != -ETIMEDOUT)
            break;
        if (stall > 0 && t->waited_us > stall) {
            (void)cuda_group_fail(d->group, EK_ECOMM); /* some rank does not come */
            r = cuda_group_state(d->group, d->rank_index);
            break;
        }
        if (now - begin >= timeout_us)
            return r;
    }
    if (r < 0 && r != -EINVAL)
        (void)cuda_group_fail(d->group, r);
    if (r == 0) {
        pthread_mutex_lock(&d->rank->lock);
        t->state = TURN_FREE;
        pthread_mutex_unlock(&d->rank->lock);
    }
    return r;
}

/* ---- making and ending ---- */

/* Waits for what is on the stream without trusting that it ever ends. */
static int cuda_rank_settle(struct ek_device *d)
{
    const struct timespec nap = {.tv_nsec = PIECE_US * 1000};
    const uint64_t begin = ek_now_us(), stall = cuda_group_stall_us(d->group);
    cu_handle event = d->flight[0].done;
    int r = cu_code(d->cu.event_record(event, d->stream));

    while (r == 0 && (r = cu_code(d->cu.event_query(event))) == -EAGAIN) {
        r = cuda_group_state(d->group, d->rank_index);
        if (r == 0 && stall > 0 && ek_now_us() - begin > stall) {
            (void)cuda_group_fail(d->group, EK_ECOMM);
            r = EK_ECOMM;
        }
        (void)nanosleep(&nap, NULL); /* woken early is as good */
    }
    return r;
}

static int wrong_numbers(const struct ek_device *d, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;
    const uint32_t shares = g->ranks > 0 ? g->ranks : 1, stages = g->stages > 0 ? g->stages : 1;

    ek_fault_write(fault, "tensor-parallel-size",
                   "Rank %u of %u got wrong numbers from the other cards: their direct access is "
                   "broken (often PCIe ACS or an IOMMU). NCCL_P2P_DISABLE=1 goes around it.",
                   d->rank_index, shares * stages);
    return EK_ECOMM;
}

/* The first sums connect the cards, take NCCL's memory and show that links do what they say: a
 * wrong one (broken peer access is known for it) would answer with noise. */
static int try_sums(struct ek_device *d, struct ek_fault *fault)
{
    const uint32_t ranks = d->graph->ranks, rank = d->rank_index;
    cu_ptr part = cuda_arena(d, d->shape.part_at), all = cuda_arena(d, d->shape.gather_at);
    const float want = (float)ranks * ((float)ranks + 1) / 2;
    float mine[PROBE], got[PROBE] = {0}, each[EK_MOST_RANKS * PROBE] = {0};
    bool right = true;

    for (uint32_t i = 0; i < PROBE; i++)
        mine[i] = (float)d->graph->rank + 1;
    int r = cu_code(d->cu.copy_in(part, mine, sizeof(mine), d->stream));
    if (r == 0)
        r = cuda_group_gather(d->group, rank, part, all, PROBE, d->stream);
    if (r == 0)
        r = cuda_group_sum(d->group, rank, part, PROBE, EK_F32, d->stream);
    if (r == 0)
        r = cuda_rank_settle(d);
    if (r == 0)
        r = cu_code(d->cu.copy_out(got, part, sizeof(got), d->stream));
    if (r == 0)
        r = cu_code(d->cu.copy_out(each, all, ranks * sizeof(mine), d->stream));
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->stream));
    for (uint32_t i = 0; r == 0 && i < PROBE; i++)
        right = right && got[i] == want;
    for (uint32_t of = 0; r == 0 && of < ranks; of++)
        for (uint32_t i = 0; i < PROBE; i++)
            right = right && each[of * PROBE + i] == (float)of + 1;
    return right ? r : wrong_numbers(d, fault);
}

/* The same of what goes from stage to stage, and from the last one to the first: a ring. */
static int try_hands(struct ek_device *d, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;
    const uint32_t each = g->ranks > 0 ? g->ranks : 1, all = each * g->stages, me = d->rank_index;
    const uint32_t to = (me + each) % all, from = (me + all - each) % all;
    cu_ptr out = cuda_arena(d, d->shape.part_at), in = cuda_arena(d, d->shape.gather_at);
    float mine[PROBE], got[PROBE] = {0};

    for (uint32_t i = 0; i < PROBE; i++)
        mine[i] = (float)me + 1;
    int r = cu_code(d->cu.copy_in(out, mine, sizeof(mine), d->stream));
    if (r == 0 && ek_graph_first(g))
        r = cuda_group_send(d->group, me, to, out, PROBE, EK_F32, d->stream);
    if (r == 0)
        r = cuda_group_recv(d->group, me, from, in, PROBE, EK_F32, d->stream);
    if (r == 0 && !ek_graph_first(g))
        r = cuda_group_send(d->group, me, to, out, PROBE, EK_F32, d->stream);
    if (r == 0)
        r = cuda_rank_settle(d);
    if (r == 0)
        r = cu_code(d->cu.copy_out(got, in, sizeof(got), d->stream));
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->stream));
    for (uint32_t i = 0; r == 0 && i < PROBE; i++)
        if (got[i] != (float)from + 1)
            r = wrong_numbers(d, fault);
    return r;
}

static int start_thread(struct ek_device *d)
{
    pthread_condattr_t attr;
    struct cuda_rank *k = calloc(1, sizeof(*k));

    if (!k)
        return -ENOMEM;
    k->d = d;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->work, &attr);
    pthread_cond_init(&k->done, &attr);
    pthread_condattr_destroy(&attr);
    int r = -pthread_create(&k->thread, NULL, rank_main, k);
    if (r == 0) {
        d->rank = k;
        return 0;
    }
    pthread_cond_destroy(&k->work);
    pthread_cond_destroy(&k->done);
    pthread_mutex_destroy(&k->lock);
    free(k);
    return r;
}

int cuda_rank_begin(struct ek_device *d, struct ek_fault *fault)
{
    int r = cuda_group_join(d->group, d->rank_index, &d->cu, d->ordinal, fault);
    if (r == 0 && d->graph->ranks > 0)
        r = try_sums(d, fault);
    if (r == 0 && d->graph->stages > 1)
        r = try_hands(d, fault);
    if (r == 0)
        r = start_thread(d);
    if (r < 0)
        (void)cuda_group_fail(d->group,
                              r); /* before anybody waits for a stream that waits for us */
    return r;
}

void cuda_rank_end(struct ek_device *d)
{
    struct cuda_rank *k = d->rank;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stops = true;
    pthread_cond_signal(&k->work);
    pthread_mutex_unlock(&k->lock);
    (void)pthread_join(k->thread, NULL);
    pthread_cond_destroy(&k->work);
    pthread_cond_destroy(&k->done);
    pthread_mutex_destroy(&k->lock);
    free(k);
    d->rank = NULL;
}

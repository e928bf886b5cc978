/*
 * What other threads call of the engine. Everything here is done under the engine's lock
 * and nothing waits for a step, but a change of limits that makes the pool larger.
 */
#include <errno.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/engine/engine_inside.h"

#define RETRY_MOST_S   60u
#define GROWTH_MOST_US (10u * EK_US_PER_S) /* wait for the steps in flight */
#define CHECK_MOST_US  (10u * EK_US_PER_S)

/* Seconds until the prompts that wait have been computed, 0 when that is not known. */
static double predicted_wait_s(const struct engine *e)
{
    return e->prefill_rate > 0 ? (double)e->queued_tokens / e->prefill_rate : 0;
}

/* Whether one more request may be queued; counts a refusal, but of what is tried again.
 * Under the lock. */
static int check_queue(struct engine *e, const struct request *r, struct ek_fault *fault)
{
    const uint64_t *value = e->limits.value;
    uint64_t running = e->shared.running + e->shared.preempted;
    uint64_t spare = value[LIMIT_RUNNING_SEQS] > running ? value[LIMIT_RUNNING_SEQS] - running : 0;
    uint64_t most = e->sched->entries.count - SCHED_ENTRIES_BESIDE * e->p.max_seqs;

    if (e->dead || (e->shut && !r->ask.further) || e->stop) {
        e->refused_drain++;
        (void)ek_fault_set(fault, "", "the server is shutting down: try again later");
        return -ESHUTDOWN;
    }
    if (e->shared.away_long) {
        e->refused_away += !r->ask.again;
        (void)ek_fault_set(fault, "",
                           "there is no engine, for longer than requests wait for one "
                           "(--engine-wait)");
        return -EHOSTDOWN;
    }
    if (value[LIMIT_QUEUED_REQS] != 0 && value[LIMIT_QUEUED_REQS] < most)
        most = value[LIMIT_QUEUED_REQS];
    if (e->queued_reqs >= most + spare) {
        e->refused_queue += !r->ask.again;
        (void)ek_fault_set(fault, "",
                           "the queue is full: %u requests wait, max_num_queued_reqs is "
                           "%llu",
                           e->queued_reqs, (unsigned long long)most);
        return -EBUSY;
    }
    if (e->queued_tokens > 0 && value[LIMIT_QUEUED_TOKENS] != 0 &&
        e->queued_tokens + r->ask.prompt_tokens > value[LIMIT_QUEUED_TOKENS]) {
        e->refused_tokens += !r->ask.again;
        (void)ek_fault_set(fault, "",
                           "the queue is full: %llu prompt tokens wait, "
                           "max_num_queued_tokens is %llu",
                           (unsigned long long)e->queued_tokens,
                           (unsigned long long)value[LIMIT_QUEUED_TOKENS]);
        return -EBUSY;
    }
    /* What waits may be computed at the measured rate; slots and blocks only make it worse. */
    uint64_t deadline = value[LIMIT_QUEUE_DEADLINE];
    if (r->ask.deadline_us != 0) {
        uint64_t left = r->ask.deadline_us > r->queued_us ? r->ask.deadline_us - r->queued_us : 1;
        deadline = deadline == 0 || left < deadline ? left : deadline;
    }
    if (deadline != 0 && predicted_wait_s(e) * 1e6 > (double)deadline) {
        e->refused_deadline += !r->ask.again;
        (void)ek_fault_set(fault, "",
                           "the wait would be %.1f s, longer than the queue deadline of "
                           "%.1f s",
                           predicted_wait_s(e), (double)deadline / 1e6);
        return -EBUSY;
    }
    return 0;
}

int engine_submit(struct engine *e, struct request *r, uint32_t *ret_retry_after_s,
                  struct ek_fault *fault)
{
    r->queued_us = ek_now_us();
    pthread_mutex_lock(&e->lock);
    int code = sched_fit(e->sched, &r->ask, fault);
    if (code != 0)
        e->refused_fit++;
    else
        code = check_queue(e, r, fault);
    if (code == 0) {
        request_ref(r);
        r->next = NULL;
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        e->queued_reqs++;
        e->queued_tokens += r->ask.prompt_tokens;
        if (e->drain == ENGINE_DRAINED)
            e->drain = ENGINE_DRAINING; /* not shut: one more came */
        pthread_cond_signal(&e->wake);
    } else if (ret_retry_after_s) {
        double wait = predicted_wait_s(e) + 1;
        *ret_retry_after_s = wait < RETRY_MOST_S ? (uint32_t)wait : RETRY_MOST_S;
    }
    pthread_mutex_unlock(&e->lock);
    return code;
}

void engine_finish(struct engine *e, struct request *r, enum req_finish how)
{
    int none = REQ_FIN_NONE;

    if (!atomic_compare_exchange_strong(&r->wish, &none, (int)how))
        return; /* one wish is enough */
    request_ref(r);
    pthread_mutex_lock(&e->lock);
    r->next_wish = e->wishes;
    e->wishes = r;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_reset_prefix_cache(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->reset_prefix = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* What the engine thread finds of a restart; later than that it tells the log alone. Under the
 * lock. */
static int wait_check(struct engine *e, struct ek_fault *fault)
{
    uint64_t until = ek_now_us() + CHECK_MOST_US;
    const struct timespec t = {.tv_sec = (time_t)(until / EK_US_PER_S),
                               .tv_nsec = (long)(until % EK_US_PER_S) * 1000};

    for (int r = 0; e->check_code > 0 && r == 0;)
        r = pthread_cond_timedwait(&e->checked, &e->lock, &t);
    if (e->check_code >= 0)
        return 0;
    if (fault)
        *fault = e->check_fault;
    return e->check_code;
}

int engine_device_order(struct engine *e, enum engine_order order, struct ek_fault *fault)
{
    if (!e->backend->release)
        return -ENOTSUP;
    pthread_mutex_lock(&e->lock);
    int r = e->dead || e->stop ? -ESHUTDOWN : 0;
    if (r == 0)
        e->ordered = order;
    pthread_cond_signal(&e->wake);
    if (r == 0 && order == ENGINE_RESTART && e->shared.device == ENGINE_DEVICE_THERE) {
        e->check_code = ENGINE_ASKED;
        r = wait_check(e, fault);
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

/* What came since its thread last looked waits too: a thread that does not come back may have had
 * nothing to do before. Under the lock. */
static void count_untaken(const struct engine *e, uint64_t now_us, struct engine_stats *ret_stats)
{
    ret_stats->waiting = e->queued_reqs + ret_stats->preempted;
    ret_stats->queued_tokens = e->queued_tokens;
    if (!e->inbox || now_us <= e->inbox->queued_us)
        return;
    ret_stats->untaken_us = now_us - e->inbox->queued_us;
    if (ret_stats->oldest_wait_us < ret_stats->untaken_us)
        ret_stats->oldest_wait_us = ret_stats->untaken_us;
}

void engine_stats(struct engine *e, struct engine_stats *ret_stats)
{
    uint64_t now = ek_now_us();

    pthread_mutex_lock(&e->lock);
    *ret_stats = e->shared;
    ret_stats->refused_queue += e->refused_queue;
    ret_stats->refused_tokens += e->refused_tokens;
    ret_stats->refused_deadline += e->refused_deadline;
    ret_stats->refused_drain += e->refused_drain;
    ret_stats->refused_fit += e->refused_fit;
    ret_stats->refused_away += e->refused_away;
    ret_stats->drain = e->drain;
    /* The copy may be old: a step runs for long, or there was none for a while. */
    if (ret_stats->oldest_wait_us != 0 && now > e->shared_us)
        ret_stats->oldest_wait_us += now - e->shared_us;
    count_untaken(e, now, ret_stats);
    if (ret_stats->device != ENGINE_DEVICE_THERE && now > e->shared_us)
        ret_stats->away_us += now - e->shared_us;
    if (now > ret_stats->last_step_us + 10 * EK_US_PER_S)
        ret_stats->largest_gap_us = 0;
    pthread_mutex_unlock(&e->lock);
}

void engine_limits(struct engine *e, struct limits *ret_limits)
{
    pthread_mutex_lock(&e->lock);
    if (limits_expire(&e->limits, ek_now_us()))
        e->limits_new = true;
    *ret_limits = e->limits;
    pthread_mutex_unlock(&e->lock);
}

/* Waits until the device has memory for so many blocks. On success they stay wanted, whatever the
 * limit says, until resize_to is taken back. Under the lock. */
static int wait_growth(struct engine *e, uint32_t blocks, struct ek_fault *fault)
{
    const char *name = limit_table[LIMIT_KV_BLOCKS].name;
    uint64_t until = ek_now_us() + GROWTH_MOST_US;
    const struct timespec t = {.tv_sec = (time_t)(until / EK_US_PER_S),
                               .tv_nsec = (long)(until % EK_US_PER_S) * 1000};

    if (e->resize_to != 0) {
        ek_fault_write(fault, name, "another change of %s is being made: try again", name);
        return -EBUSY;
    }
    if (e->shared.device != ENGINE_DEVICE_THERE) {
        ek_fault_write(fault, name, "there is no engine now: try again when there is one");
        return -EBUSY;
    }
    e->resize_to = blocks;
    e->resize_code = ENGINE_ASKED;
    pthread_cond_signal(&e->wake);
    int r = 0;
    while (e->resize_code > 0 && r == 0)
        r = pthread_cond_timedwait(&e->resized, &e->lock, &t);
    r = e->resize_code > 0 ? -EBUSY : e->resize_code;
    if (r == 0)
        return 0;
    if (r == -EBUSY)
        ek_fault_write(fault, name,
                       "the steps in flight did not end in time for a larger pool: "
                       "try again");
    else if (r == -ESHUTDOWN)
        ek_fault_write(fault, name, "the server is shutting down");
    else
        ek_fault_write(fault, name,
                       "%s %u needs %.1f MiB more for the KV pool, which the device does not have "
                       "now: ask for fewer blocks, or free memory first",
                       name, blocks - 1,
                       (double)(blocks - e->shared.device_blocks) * (double)e->p.block_bytes /
                           (1 << 20));
    e->resize_to = 0;
    pthread_cond_signal(&e->wake);
    return r;
}

/* A change that makes the pool larger than what the device has memory for now. Under the lock. */
static int grow_first(struct engine *e, const struct limits_change *c, struct ek_fault *fault)
{
    struct limits next = e->limits;

    int r = limits_apply(&next, c, ek_now_us(), fault);
    uint64_t blocks = next.value[LIMIT_KV_BLOCKS] + 1;
    if (r != 0 || !(c->set & 1u << LIMIT_KV_BLOCKS) || blocks <= e->shared.device_blocks ||
        blocks > e->p.blocks || e->dead || e->stop)
        return r;
    return wait_growth(e, (uint32_t)blocks, fault);
}

int engine_limits_apply(struct engine *e, const struct limits_change *c, struct limits *ret_limits,
                        struct ek_fault *fault)
{
    pthread_mutex_lock(&e->lock);
    bool waits = e->resize_to == 0;
    int r = grow_first(e, c, fault);
    uint64_t now = ek_now_us();
    if (limits_expire(&e->limits, now))
        e->limits_new = true;
    if (r == 0)
        r = limits_apply(&e->limits, c, now, fault);
    if (r == 0) {
        e->limits_new = true;
        sched_accept_limit(e->sched, e->limits.value[LIMIT_KV_BLOCKS]);
        if (ret_limits)
            *ret_limits = e->limits;
    }
    if (waits)
        e->resize_to = 0; /* from here on the limit says what is wanted */
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return r;
}

void engine_drain(struct engine *e, uint64_t deadline_us, bool shut)
{
    pthread_mutex_lock(&e->lock);
    if (e->drain == ENGINE_SERVING)
        e->drain = ENGINE_DRAINING;
    e->drain_deadline_us = deadline_us;
    e->shut = e->shut || shut;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void engine_resume(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->drain = ENGINE_SERVING;
    e->drain_deadline_us = 0;
    e->shut = false;
    pthread_mutex_unlock(&e->lock);
}

/*
 * Records lie one behind the other in a ring, each with its length before it and never across the
 * end: a length of SKIP says that the next one is at the beginning. `lock` protects all fields but
 * `out`, which is the thread's own: it copies a record there and writes it without the lock.
 */
#include "common/spool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"

#define SKIP    UINT32_MAX
#define REST_US EK_US_PER_S /* after a push that waited in vain */

struct ek_spool {
    struct ek_spool_setup setup;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, written;
    bool ending, left; /* left: no caller waits for the thread, which frees */
    bool quiet;        /* there is nothing to write, to tell or to do */
    uint64_t pushed, done;
    uint64_t dropped, missing; /* ever; not told yet */
    uint64_t no_wait_until_us;
    size_t head, tail, used; /* next to write out, next free byte, bytes taken */
    char *out;
    char ring[];
};

static void spool_drop(struct ek_spool *s)
{
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->written);
    pthread_mutex_destroy(&s->lock);
    free(s->out);
    free(s);
}

/* Where a record of `size` bytes (with its length) fits; SIZE_MAX when it does not. */
static size_t spool_place(const struct ek_spool *s, size_t size, size_t most)
{
    size_t end = s->setup.bytes - s->tail;
    if (s->used + size > most)
        return SIZE_MAX;
    if (s->used > 0 && s->head >= s->tail) /* free is what lies between */
        return size <= s->head - s->tail ? s->tail : SIZE_MAX;
    if (size <= end)
        return s->tail;
    return size <= s->head && s->used + end + size <= most ? 0 : SIZE_MAX;
}

static void spool_put(struct ek_spool *s, size_t at, const struct iovec *part, int count,
                      uint32_t len)
{
    const uint32_t skip = SKIP;
    if (at != s->tail) {
        size_t end = s->setup.bytes - s->tail;
        if (end >= sizeof(skip))
            memcpy(s->ring + s->tail, &skip, sizeof(skip));
        s->used += end;
    }
    memcpy(s->ring + at, &len, sizeof(len));
    char *to = s->ring + at + sizeof(len);
    for (int i = 0; i < count; i++) {
        if (part[i].iov_len)
            memcpy(to, part[i].iov_base, part[i].iov_len);
        to += part[i].iov_len;
    }
    s->tail = (size_t)(to - s->ring);
    s->used += sizeof(len) + len;
}

/* Copies the oldest record out and frees its place. With the lock held and something queued. */
static uint32_t spool_take(struct ek_spool *s)
{
    uint32_t len = SKIP;
    size_t end = s->setup.bytes - s->head;
    if (end >= sizeof(len))
        memcpy(&len, s->ring + s->head, sizeof(len));
    if (len == SKIP) {
        s->used -= end;
        s->head = 0;
        memcpy(&len, s->ring, sizeof(len));
    }
    memcpy(s->out, s->ring + s->head + sizeof(len), len);
    s->head += sizeof(len) + len;
    s->used -= sizeof(len) + len;
    if (s->used == 0)
        s->head = s->tail = 0;
    return len;
}

/* Writes one record, or what is missing at the end of all. With the lock held, which it gives up
 * meanwhile. */
static void spool_write(struct ek_spool *s, bool has)
{
    uint32_t len = has ? spool_take(s) : 0;
    uint64_t missing = s->missing;
    pthread_mutex_unlock(&s->lock);
    bool good = s->setup.write(s->setup.ctx, has ? s->out : NULL, len, missing);
    pthread_mutex_lock(&s->lock);
    if (good)
        s->missing -= missing;
    else if (has) {
        s->missing++;
        s->dropped++;
    }
    s->done += has;
    if (s->done == s->pushed && s->no_wait_until_us == UINT64_MAX)
        s->no_wait_until_us = ek_now_us() + REST_US;
    pthread_cond_broadcast(&s->written);
}

static void *spool_run(void *ctx)
{
    struct ek_spool *s = ctx;
    bool told = true; /* what is missing, or that was tried after the last record */
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->used > 0) {
            spool_write(s, true);
            told = false;
        } else if (!told) {
            told = true;
            if (s->missing > 0)
                spool_write(s, false);
            pthread_mutex_unlock(&s->lock);
            if (s->setup.idle)
                s->setup.idle(s->setup.ctx);
            pthread_mutex_lock(&s->lock);
        } else {
            s->quiet = true;
            pthread_cond_broadcast(&s->written);
            if (s->ending)
                break;
            pthread_cond_wait(&s->work, &s->lock);
        }
    }
    bool left = s->left;
    pthread_mutex_unlock(&s->lock);
    if (left)
        spool_drop(s);
    return NULL;
}

static int spool_start(struct ek_spool *s)
{
    sigset_t all, before;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr); /* these do not fail on Linux */
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->written, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&s->thread, NULL, spool_run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0)
        (void)pthread_setname_np(s->thread, s->setup.name); /* for top and debuggers */
    return r;
}

int ek_spool_new(const struct ek_spool_setup *setup, struct ek_spool **ret_spool)
{
    struct ek_spool *s = calloc(1, sizeof(*s) + setup->bytes);
    char *out = malloc(setup->bytes);
    int r = -ENOMEM;
    if (s && out) {
        s->setup = *setup;
        s->out = out;
        r = spool_start(s);
        if (r == 0) {
            *ret_spool = s;
            return 0;
        }
        out = NULL;
        spool_drop(s);
        s = NULL;
    }
    free(out);
    free(s);
    return r;
}

static struct timespec spool_deadline(uint32_t ms)
{
    uint64_t at = ek_now_us() + ms * 1000ull;
    return (struct timespec){.tv_sec = (time_t)(at / EK_US_PER_S),
                             .tv_nsec = (long)(at % EK_US_PER_S) * 1000};
}

/* Until `upto` records are dealt with, or (UINT64_MAX) everything is. With the lock held. */
static bool spool_wait(struct ek_spool *s, uint64_t upto, uint32_t ms)
{
    struct timespec until = spool_deadline(ms);
    int r = 0;
    while (r == 0 && s->done < upto && !s->quiet)
        r = pthread_cond_timedwait(&s->written, &s->lock, &until);
    return s->done >= upto || s->quiet;
}

bool ek_spool_push(struct ek_spool *s, const struct iovec *part, int count, bool urgent)
{
    size_t len = 0;
    for (int i = 0; i < count; i++)
        len += part[i].iov_len;
    size_t most = urgent ? s->setup.bytes : s->setup.bytes / 4 * 3;
    pthread_mutex_lock(&s->lock);
    size_t at = len < SKIP && !s->ending ? spool_place(s, sizeof(uint32_t) + len, most) : SIZE_MAX;
    if (at == SIZE_MAX) {
        s->dropped++;
        s->missing++;
        pthread_mutex_unlock(&s->lock);
        return false;
    }
    spool_put(s, at, part, count, (uint32_t)len);
    uint64_t mine = ++s->pushed;
    s->quiet = false;
    pthread_cond_signal(&s->work);
    if (s->setup.patience_ms && ek_now_us() >= s->no_wait_until_us &&
        !spool_wait(s, mine, s->setup.patience_ms))
        s->no_wait_until_us = UINT64_MAX; /* until the thread has caught up */
    pthread_mutex_unlock(&s->lock);
    return true;
}

bool ek_spool_flush(struct ek_spool *s, uint32_t wait_ms)
{
    pthread_mutex_lock(&s->lock);
    bool good = spool_wait(s, UINT64_MAX, wait_ms);
    pthread_mutex_unlock(&s->lock);
    return good;
}

uint64_t ek_spool_dropped(struct ek_spool *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->dropped;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void ek_spool_free(struct ek_spool *s, uint32_t wait_ms)
{
    if (!s)
        return;
    pthread_t thread = s->thread;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->work);
    bool good = spool_wait(s, UINT64_MAX, wait_ms);
    s->left = !good;
    pthread_mutex_unlock(&s->lock);
    if (!good) {
        (void)pthread_detach(thread); /* it is not joined */
        return;
    }
    (void)pthread_join(thread, NULL); /* it ends at once */
    spool_drop(s);
}

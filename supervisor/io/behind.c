/*
 * A queue with a thread for the history on disk, on top of common/spool.h; incidents.c and charts.c
 * push into it. An entry is a function, its context and a copy of the data, so the thread touches
 * nothing of the loop's. What a full queue had to drop is counted and shown as a metric.
 */
#include "supervisor/io/behind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "common/spool.h"

#define QUEUE_BYTES 524288u /* hundreds of decisions, minutes of charts */
#define PATIENCE_MS 20u
#define END_MS      2000u

/* What lies in the queue before the data. */
struct behind_head {
    behind_fn fn;
    void *ctx;
};

struct behind {
    struct ek_spool *spool;
    void (*idle)(void *ctx);
    void *idle_ctx;
    bool failed; /* the thread's own: that it cannot be written was said */
    char dir[512];
};

static bool behind_write(void *ctx, const char *record, size_t len, uint64_t missing)
{
    struct behind *b = ctx;
    struct behind_head head;
    if (!record)
        return false; /* told with the next one */
    memcpy(&head, record, sizeof(head));
    int r = head.fn(head.ctx, record + sizeof(head), len - sizeof(head));
    if (r < 0 && !b->failed)
        ek_log(EK_LOG_WARNING,
               "the history in %s cannot be written: %s; what happens meanwhile is forgotten with "
               "this evenkeeld",
               b->dir, ek_strerror(r));
    if (r == 0 && missing > 0)
        ek_log(EK_LOG_WARNING, "the history in %s is written again; %llu records are missing",
               b->dir, (unsigned long long)missing);
    b->failed = r < 0;
    return r == 0;
}

static void behind_quiet(void *ctx)
{
    struct behind *b = ctx;
    if (b->idle)
        b->idle(b->idle_ctx);
}

int behind_new(const char *dir, struct behind **ret_behind)
{
    struct behind *b = calloc(1, sizeof(*b));
    struct ek_spool_setup setup = {.name = "history",
                                   .bytes = QUEUE_BYTES,
                                   .patience_ms = PATIENCE_MS,
                                   .write = behind_write,
                                   .idle = behind_quiet,
                                   .ctx = b};
    if (b)
        (void)snprintf(b->dir, sizeof(b->dir), "%s", dir);
    int r = b ? ek_spool_new(&setup, &b->spool) : -ENOMEM;
    if (r < 0)
        free(b);
    else
        *ret_behind = b;
    return r;
}

bool behind_free(struct behind *b)
{
    if (!b)
        return true;
    bool good = ek_spool_flush(b->spool, END_MS);
    ek_spool_free(b->spool, good ? END_MS : 0);
    if (good) /* else the thread has it */
        free(b);
    return good;
}

bool behind_push(struct behind *b, behind_fn fn, void *ctx, const void *data, size_t len)
{
    struct behind_head head = {fn, ctx};
    union {
        const void *c;
        void *p;
    } u = {.c = data};
    struct iovec part[] = {{&head, sizeof(head)}, {u.p, len}};
    return ek_spool_push(b->spool, part, 2, true);
}

void behind_idle(struct behind *b, void (*fn)(void *ctx), void *ctx)
{
    b->idle_ctx = ctx;
    b->idle = fn;
}

bool behind_flush(struct behind *b, uint32_t wait_ms)
{
    return ek_spool_flush(b->spool, wait_ms);
}

uint64_t behind_lost(struct behind *b)
{
    return ek_spool_dropped(b->spool);
}

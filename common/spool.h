/*
 * A bounded queue of records that a thread of its own writes somewhere: to a log, to a disk. The
 * pusher is never held up by where they go: a pipe that is not read, a terminal that was stopped,
 * a journal or a disk that hangs block that thread alone.
 *
 * While the sink keeps up, a push returns when its record is written, so that a process that is
 * killed next has lost nothing. When that takes longer than patience_ms, pushes wait no more until
 * all that is queued is written (and a second has passed). When the queue is full, records are
 * dropped and counted; the next write is told how many there were before it. Of the last quarter
 * only urgent records take.
 *
 * Any thread may push. The writing thread has all signals blocked. After fork() without exec the
 * child must not use it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ek_spool;

struct ek_spool_setup {
    const char *name; /* of the thread, at most 15 bytes */
    size_t bytes;     /* of the queue */
    uint32_t patience_ms;
    /* In the thread: writes a record and says whether that succeeded. `missing` are those that were
     * dropped or failed before it and were not told yet; told when this succeeds. At the end of the
     * queue record may be NULL: there is only that number to tell. */
    bool (*write)(void *ctx, const char *record, size_t len, uint64_t missing);
    void (*idle)(void *ctx); /* in the thread: the queue is empty; NULL = nothing to do */
    void *ctx;
};

/* 0, -ENOMEM, or a negative errno when there can be no thread. */
int ek_spool_new(const struct ek_spool_setup *setup, struct ek_spool **ret_spool);
/* Writes what is queued for at most wait_ms. A thread that is blocked then is left to the end of
 * the process, with its memory; what setup points to must live as long. */
void ek_spool_free(struct ek_spool *s, uint32_t wait_ms);

/* One record of `count` parts. False: dropped and counted. */
bool ek_spool_push(struct ek_spool *s, const struct iovec *part, int count, bool urgent);
/* Waits until all is written, for at most wait_ms. */
bool ek_spool_flush(struct ek_spool *s, uint32_t wait_ms);
/* Records dropped or not written since it was made. */
uint64_t ek_spool_dropped(struct ek_spool *s);

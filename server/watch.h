/*
 * Threads that serve all must come round: an HTTP thread to its epoll, an encoder thread to the end
 * of its job. One that has used much processor time without doing so loops, and nothing but the end
 * of the process frees it. It is looked at by the thread of main(), which touches nothing that a
 * client sent. Processor time counts, not time: a thread that does not get a core does not loop.
 * An encoder thread has nothing to wait for within a job: one that has used no processor time at
 * all for many looks is lost, too. Looks are counted, so that a process that was stopped is not.
 *
 * The record of it is bounded and says places in programs only, nothing that a client sent, unlike
 * a core.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WATCH_THREADS 96u
#define WATCH_FRAMES  32u

#define WATCH_EVERY_US 500000u /* between two looks; main.c keeps to it */

struct http_thread;

/* What was seen when the thread came round last, and since. */
struct watch {
    uint64_t rounds[WATCH_THREADS], cpu_us[WATCH_THREADS];
    uint64_t seen_us[WATCH_THREADS];  /* processor time at the last look */
    uint64_t still_us[WATCH_THREADS]; /* looks without any, times WATCH_EVERY_US */
};

enum watch_verdict { WATCH_WELL, WATCH_LOOPS, WATCH_LOST };

/* Once, before the threads begin. */
void watch_open(void);
/* One look; *ret_thread is the first of the threads that is not well. */
enum watch_verdict watch_look(struct watch *w, const struct http_thread *t, uint32_t count,
                              const struct http_thread **ret_thread);
/* Where a thread of this process is, as "program+0xoffset program+0xoffset ..."; cut when it does
 * not fit. False when the thread did not say within a second. */
bool watch_stack(pthread_t thread, char *ret_text, size_t size);

/*
 * Threads that serve all must come round: an HTTP thread to its epoll, an encoder thread to the end
 * of its job. One that has used much processor time without doing so loops, and nothing but the end
 * of the process frees it. It is looked at by the thread of main(), which touches nothing that a
 * client sent. Processor time counts, not time: a thread that waits, or does not get a core, does
 * not loop.
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

struct http_thread;

/* What was seen when the thread came round last. */
struct watch {
    uint64_t rounds[WATCH_THREADS], cpu_us[WATCH_THREADS];
};

/* Once, before the threads begin. */
void watch_open(void);
/* The first of the threads that loops, NULL = none. */
const struct http_thread *watch_look(struct watch *w, const struct http_thread *t, uint32_t count);
/* Where a thread of this process is, as "program+0xoffset program+0xoffset ..."; cut when it does
 * not fit. False when the thread did not say within a second. */
bool watch_stack(pthread_t thread, char *ret_text, size_t size);

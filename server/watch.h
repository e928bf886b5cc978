/*
 * Threads that serve all must come round: an HTTP thread to its epoll, an encoder thread to the end
 * of its job. One that has used much processor time without doing so loops, and nothing but the end
 * of the process frees it. It is looked at by the thread of main(), which touches nothing that a
 * client sent. Processor time counts and not time: who waits or is not let run does not loop.
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

#define WATCH_JUMP_US 2000000u /* of one look: more is a clock that jumped, as in a resumed VM */

/* What was seen last, and what the thread has used since it came round. */
struct watch {
    uint64_t rounds[WATCH_THREADS], cpu_us[WATCH_THREADS], used_us[WATCH_THREADS];
};

/* Once, before the threads begin. */
void watch_open(void);
/* What it has used since it came round, with what it has used between two looks. */
static inline uint64_t watch_used_us(uint64_t used_us, uint64_t before_us, uint64_t now_us)
{
    uint64_t more = now_us - before_us;

    return used_us + (more < WATCH_JUMP_US ? more : WATCH_JUMP_US);
}

/* The first of the threads that loops, NULL = none. To be called about once a second. */
const struct http_thread *watch_look(struct watch *w, const struct http_thread *t, uint32_t count);
/* Where a thread of this process is, as "program+0xoffset program+0xoffset ..."; cut when it does
 * not fit. False when the thread did not say within a second. */
bool watch_stack(pthread_t thread, char *ret_text, size_t size);

/*
 * When a server that ended by itself is started again. Pure.
 *
 * The first restart comes after 0.5 s, so that the next request is served within seconds; each
 * further one waits twice as long, up to 300 s, until the server was ready for 10 minutes. The
 * breaker opens at 3 failed starts of one class in a row, at 5 unplanned ends within 30 minutes, or
 * at once for an end that no retry can cure; then one start in 30 minutes is tried. Planned
 * restarts do not count, nor does the end of a node when its group of nodes ends: it starts again
 * at once and waits for node 0, whose backoff and breaker hold all of them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/law/oom.h"

#define BACKOFF_FIRST_S   0.5
#define BACKOFF_MOST_S    300.0
#define BACKOFF_RESET_S   600.0
#define BREAKER_STARTS    3
#define BREAKER_EXITS     5
#define BREAKER_WINDOW_S  1800.0
#define BREAKER_RETRY_S   1800.0
#define BACKOFF_REMEMBERS 8

struct backoff {
    double next_s;     /* 0 = the first */
    uint64_t ready_us; /* since when it is ready, 0 = it is not */
    uint64_t exits_us[BACKOFF_REMEMBERS];
    uint32_t exits; /* ever; exits_us[exits % REMEMBERS] is the next to fill */
    enum crash_class start_class;
    uint32_t start_failures; /* in a row, of start_class */
    bool open;
};

struct backoff_plan {
    double wait_s;
    bool open;   /* by the breaker */
    bool opened; /* just now */
};

void backoff_ready(struct backoff *b, uint64_t now_us);
struct backoff_plan backoff_exit(struct backoff *b, const struct crash_verdict *v, bool starting,
                                 uint64_t now_us);
/* Ready for long enough: forgets. Called on each tick while the server is ready. */
void backoff_tick(struct backoff *b, uint64_t now_us);
/* An operator's command or a changed configuration. */
void backoff_reset(struct backoff *b);

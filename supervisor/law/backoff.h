/*
 * When a server that ended by itself is started again. Pure.
 *
 * The first restart comes after 0.5 s, so that the next request is served within seconds; each
 * further one waits twice as long, up to 300 s, until the server was ready for 10 minutes. The
 * breaker opens at 3 failed starts of one class in a row, at 5 unplanned ends within 30 minutes, or
 * at once for an end that no retry can cure; then one start in 30 minutes is tried.
 *
 * What keeps a start from succeeding may vanish without a word to evenkeeld: a port, a mount,
 * device memory that somebody else has (crash_verdict.vanishes). Then the breaker waits 5 s, twice
 * as long each time, never above 300 s; and the caller tries at once when it sees the cause gone.
 * Such starts never began, so they are no ends of the server.
 *
 * A breaker that failed starts have opened is closed by a server that is ready: that disproves it.
 * One that ends have opened is closed after 10 minutes of being ready. An operator's command or a
 * changed configuration closes either.
 *
 * Planned restarts do not count, nor does the end of a node when its group of nodes ends: it starts
 * again at once and waits for node 0, whose backoff and breaker hold all of them.
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
#define BREAKER_VANISH_S  5.0 /* the first wait where the cause may vanish */
#define BACKOFF_REMEMBERS 8

struct backoff {
    double next_s;     /* 0 = the first */
    uint64_t ready_us; /* since when it is ready, 0 = it is not */
    uint64_t exits_us[BACKOFF_REMEMBERS];
    uint32_t exits; /* ever; exits_us[exits % REMEMBERS] is the next to fill */
    enum crash_class start_class;
    uint32_t start_failures; /* in a row, of start_class */
    bool open;
    bool by_start; /* failed starts have opened it, not ends of a server that was ready */
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
/* Of another boot: counts stay, times go. */
void backoff_forget_times(struct backoff *b);
bool backoff_equal(const struct backoff *a, const struct backoff *b);

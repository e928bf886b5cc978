/*
 * The delays and the breaker as arithmetic over the times of the last ends; servers/ended.c asks
 * after each end. Two ladders are apart: one of restarts that follow a process that ran, one of
 * starts that could not begin (blocked_start()). io/state.c keeps the struct, so that another
 * evenkeeld goes on counting.
 */
#include "supervisor/law/backoff.h"

#include "common/clock.h"

static double since_s(uint64_t then_us, uint64_t now_us)
{
    return now_us > then_us ? (double)(now_us - then_us) / 1e6 : 0.0;
}

void backoff_reset(struct backoff *b)
{
    uint64_t ready_us = b->ready_us;
    *b = (struct backoff){.ready_us = ready_us};
}

void backoff_forget_times(struct backoff *b)
{
    b->ready_us = 0;
    b->exits = 0;
}

bool backoff_equal(const struct backoff *a, const struct backoff *b)
{
    bool same = a->ready_us == b->ready_us && a->exits == b->exits &&
                a->start_class == b->start_class && a->start_failures == b->start_failures &&
                a->open == b->open && a->by_start == b->by_start;
    return same && !(a->next_s < b->next_s) && !(a->next_s > b->next_s);
}

void backoff_ready(struct backoff *b, uint64_t now_us)
{
    b->ready_us = now_us;
    b->start_failures = 0;
    if (b->by_start)
        b->open = b->by_start = false;
}

void backoff_tick(struct backoff *b, uint64_t now_us)
{
    if (b->ready_us && since_s(b->ready_us, now_us) >= BACKOFF_RESET_S) {
        b->next_s = 0;
        b->open = b->by_start = false;
    }
}

static uint32_t recent_exits(const struct backoff *b, uint64_t now_us)
{
    uint32_t n = 0, kept = b->exits < BACKOFF_REMEMBERS ? b->exits : BACKOFF_REMEMBERS;
    for (uint32_t i = 0; i < kept; i++)
        n += since_s(b->exits_us[i], now_us) < BREAKER_WINDOW_S;
    return n;
}

/* FIRST, twice as much each time, up to the most. */
static double grown(double first_s, uint32_t times)
{
    double wait = first_s;
    while (times-- > 1 && wait < BACKOFF_MOST_S)
        wait *= 2;
    return wait < BACKOFF_MOST_S ? wait : BACKOFF_MOST_S;
}

static struct backoff_plan blocked_start(struct backoff *b, const struct crash_verdict *v)
{
    bool was_open = b->open;
    if (!v->retry || b->start_failures >= BREAKER_STARTS)
        b->open = true;
    if (b->open && !was_open)
        b->by_start = true;
    uint32_t before = v->retry ? BREAKER_STARTS - 1 : 0, n = b->start_failures;
    double wait =
        b->open ? grown(BREAKER_VANISH_S, n > before ? n - before : 1) : grown(BACKOFF_FIRST_S, n);
    return (struct backoff_plan){.wait_s = wait, .open = b->open, .opened = b->open && !was_open};
}

struct backoff_plan backoff_exit(struct backoff *b, const struct crash_verdict *v, bool starting,
                                 uint64_t now_us)
{
    backoff_tick(b, now_us);
    b->ready_us = 0;
    if (v->group)
        return (struct backoff_plan){.wait_s = BACKOFF_FIRST_S};
    if (starting) {
        b->start_failures = v->cls == b->start_class ? b->start_failures + 1 : 1;
        b->start_class = v->cls;
    }
    if (starting && v->vanishes)
        return blocked_start(b, v);
    b->exits_us[b->exits++ % BACKOFF_REMEMBERS] = now_us;
    bool was_open = b->open, often = recent_exits(b, now_us) >= BREAKER_EXITS;
    if (!v->retry || b->start_failures >= BREAKER_STARTS || often)
        b->open = true;
    if (b->open && !was_open)
        b->by_start = starting && !often;
    if (b->open)
        return (struct backoff_plan){.wait_s = BREAKER_RETRY_S, .open = true, .opened = !was_open};

    double wait = b->next_s > 0 ? b->next_s : BACKOFF_FIRST_S;
    b->next_s = wait * 2 < BACKOFF_MOST_S ? wait * 2 : BACKOFF_MOST_S;
    return (struct backoff_plan){.wait_s = wait};
}

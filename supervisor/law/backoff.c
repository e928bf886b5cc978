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

void backoff_ready(struct backoff *b, uint64_t now_us)
{
    b->ready_us = now_us;
    b->start_failures = 0;
}

void backoff_tick(struct backoff *b, uint64_t now_us)
{
    if (b->ready_us && since_s(b->ready_us, now_us) >= BACKOFF_RESET_S) {
        b->next_s = 0;
        b->open = false;
    }
}

static uint32_t recent_exits(const struct backoff *b, uint64_t now_us)
{
    uint32_t n = 0, kept = b->exits < BACKOFF_REMEMBERS ? b->exits : BACKOFF_REMEMBERS;
    for (uint32_t i = 0; i < kept; i++)
        n += since_s(b->exits_us[i], now_us) < BREAKER_WINDOW_S;
    return n;
}

struct backoff_plan backoff_exit(struct backoff *b, const struct crash_verdict *v, bool starting,
                                 uint64_t now_us)
{
    backoff_tick(b, now_us);
    b->ready_us = 0;
    if (v->group)
        return (struct backoff_plan){.wait_s = BACKOFF_FIRST_S};
    b->exits_us[b->exits++ % BACKOFF_REMEMBERS] = now_us;
    if (starting) {
        b->start_failures = v->cls == b->start_class ? b->start_failures + 1 : 1;
        b->start_class = v->cls;
    }
    bool was_open = b->open;
    if (!v->retry || b->start_failures >= BREAKER_STARTS ||
        recent_exits(b, now_us) >= BREAKER_EXITS)
        b->open = true;
    if (b->open)
        return (struct backoff_plan){.wait_s = BREAKER_RETRY_S, .open = true, .opened = !was_open};

    double wait = b->next_s > 0 ? b->next_s : BACKOFF_FIRST_S;
    b->next_s = wait * 2 < BACKOFF_MOST_S ? wait * 2 : BACKOFF_MOST_S;
    return (struct backoff_plan){.wait_s = wait};
}

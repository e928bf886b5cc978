/*
 * Finds memory that grows for days (leak.h). Called by servers/leaks.c for each reading of memory.
 */
#include "supervisor/law/leak.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEAST  20u /* points: four in each part */
#define PARTS  5u
#define STEPS  (PARTS - 2) /* between those that count */
#define HOUR_S 3600.0
#define MIB    1048576.0

void leak_start(struct leak *l, double sure_s, uint64_t now_us)
{
    *l = (struct leak){.sure_s = sure_s, .ready_us = now_us};
}

static void halve(struct leak *l)
{
    for (uint32_t i = 0; i < LEAK_POINTS / 2; i++) {
        l->point[i] = l->point[2 * i];
        l->point[i].least = fmin(l->point[i].least, l->point[2 * i + 1].least);
    }
    l->count = LEAK_POINTS / 2;
    l->interval_s *= 2;
}

static double seen_s(const struct leak *l, uint64_t now_us)
{
    return l->count ? (double)(now_us - l->point[0].from_us) / 1e6 : 0;
}

/* The longest time that is kept is that in which a trend is sure; then the oldest goes. */
static void leak_push(struct leak *l, uint64_t now_us)
{
    if (l->count == LEAK_POINTS && seen_s(l, now_us) < l->sure_s * LEAK_KEPT) {
        halve(l);
    } else if (l->count == LEAK_POINTS) {
        memmove(l->point, l->point + 1, (LEAK_POINTS - 1) * sizeof(l->point[0]));
        l->count--;
    }
    l->point[l->count].least = l->least;
    l->point[l->count++].from_us = l->point_us;
}

static void leak_take(struct leak *l, double used, uint64_t now_us)
{
    if (l->interval_s <= 0) {
        l->interval_s = l->sure_s * LEAK_FIRST;
        l->point_us = now_us;
        l->least = used;
    }
    l->least = fmin(l->least, used);
    if ((double)(now_us - l->point_us) < l->interval_s * 1e6)
        return;
    leak_push(l, now_us);
    l->point_us = now_us;
    l->least = used;
}

/* The least of each part. */
static void floors(const struct leak *l, double *floor)
{
    for (uint32_t p = 0; p < PARTS; p++) {
        uint32_t from = p * l->count / PARTS, to = (p + 1) * l->count / PARTS;
        floor[p] = l->point[from].least;
        for (uint32_t i = from + 1; i < to; i++)
            floor[p] = fmin(floor[p], l->point[i].least);
    }
}

/* Bytes a second that the floor rises; 0 where it does not, or not evenly. */
static double trend(const struct leak *l, double seen)
{
    double floor[PARTS];
    if (l->count < LEAST)
        return 0;
    floors(l, floor);
    double grown = floor[PARTS - 1] - floor[1], mean = grown / STEPS;
    if (grown < LEAK_LEAST * floor[1])
        return 0;
    for (uint32_t p = 2; p < PARTS; p++) {
        if (floor[p] - floor[p - 1] < LEAK_EVEN * mean)
            return 0;
    }
    return grown / (seen * STEPS / PARTS);
}

static void leak_say(struct leak_verdict *v, const char *what)
{
    double hours = v->left_s / HOUR_S;
    (void)snprintf(v->why, sizeof(v->why),
                   "%.60s grows by %.1f MiB an hour for %.0f h; what is left lasts for %.*f %s",
                   what, v->rate * HOUR_S / MIB, v->seen_s / HOUR_S, hours < 10 ? 1 : 0,
                   hours < 72 ? hours : hours / 24, hours < 72 ? "h" : "days");
}

struct leak_verdict leak_step(struct leak *l, double used, double left, const char *what,
                              uint64_t now_us)
{
    struct leak_verdict v = {.grows = false};
    if (!(used > 0) || !(left >= 0) || !isfinite(used) || !isfinite(left) || l->sure_s <= 0 ||
        (double)(now_us - l->ready_us) < l->sure_s * LEAK_WARM * 1e6)
        return v;
    leak_take(l, used, now_us);
    v.seen_s = seen_s(l, now_us);
    v.rate = trend(l, v.seen_s);
    if (v.rate <= 0)
        return v;
    v.left_s = LEAK_USABLE * left / v.rate;
    v.grows = v.seen_s >= l->sure_s || v.left_s <= v.seen_s / PARTS;
    if (!v.grows)
        return v;
    v.first = !l->told;
    v.due = v.left_s <= LEAK_DUE_S;
    v.urgent = v.left_s <= LEAK_URGENT_S;
    l->told = true;
    leak_say(&v, what);
    return v;
}

bool leak_is_of(const struct leak_verdict *all, const struct leak_verdict *part)
{
    /* The part's own verdict may be a reading later. */
    return all->grows && part->rate >= LEAK_PART * all->rate;
}

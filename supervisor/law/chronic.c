/*
 * Called with each sample by servers/upkeep.c. The window is thinned to fifteen points, so that its
 * length costs neither memory nor time; the slope over them is robust (Theil-Sen), because single
 * samples of an allocator jump. chronic_step() asks in the order leak, prefix cache, fragmentation
 * and gives one verdict; what was tried already (a trim, a restart) is in the struct, since the
 * next step depends on whether that helped.
 */
#include "supervisor/law/chronic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW       15
#define MOST         0.8       /* of the window's points */
#define FALLING      (-0.0001) /* slope of F from point to point below which it mends itself */
#define SETTLE_SHARE (1.0 / 3) /* of the window, after a trim */
#define SINCE_S      1800.0    /* a restart is judged over so long */

_Static_assert(CHRONIC_POINTS == 4 * WINDOW, "a quarter of the trend");

static bool chronic_since(uint64_t then_us, uint64_t now_us, double seconds)
{
    return now_us >= then_us + (uint64_t)(seconds * 1e6);
}

void chronic_start(struct chronic *c, uint64_t now_us, bool planned)
{
    uint64_t judged = planned ? (now_us ? now_us : 1) : 0;
    *c = (struct chronic){.restarted_us = judged};
}

/* i = 0 is the newest. */
static double frag_at(const struct chronic *c, uint32_t i)
{
    return c->points[(c->next + 2 * CHRONIC_POINTS - 1 - i) % CHRONIC_POINTS].frag;
}

static int chronic_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Theil-Sen: the median of the slopes between all pairs, so that single points do not turn it. */
static double slope(const struct chronic *c)
{
    double slopes[CHRONIC_POINTS * (CHRONIC_POINTS - 1) / 2];
    size_t n = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t k = i + 1; k < c->count; k++) /* k is older */
            slopes[n++] = (frag_at(c, i) - frag_at(c, k)) / (k - i);
    }
    if (n == 0)
        return 0;
    qsort(slopes, n, sizeof(slopes[0]), chronic_compare);
    return slopes[n / 2];
}

/* One point each fifteenth of the window; true when there is a new one. */
static bool take_point(struct chronic *c, const struct chronic_params *p, const struct sample *s,
                       uint64_t now_us)
{
    if (!sample_has(s, SIG_POOL_RESERVED) || !sample_has(s, SIG_POOL_USED_HIGH) ||
        (c->point_us && !chronic_since(c->point_us, now_us, p->window_s / WINDOW)))
        return false;
    double reserved = s->value[SIG_POOL_RESERVED], used = s->value[SIG_POOL_USED_HIGH];
    if (c->count == 0)
        c->first = reserved;
    c->point_us = now_us;
    c->points[c->next].frag = reserved > 0 && used < reserved ? 1 - used / reserved : 0;
    c->points[c->next].wasted = reserved > used ? reserved - used : 0;
    c->points[c->next].grown = reserved - c->first;
    c->next = (c->next + 1) % CHRONIC_POINTS;
    c->count += c->count < CHRONIC_POINTS;
    return true;
}

static bool is_fragmented(const struct chronic *c, const struct chronic_params *p)
{
    uint32_t high = 0;
    uint32_t newest = (c->next + CHRONIC_POINTS - 1) % CHRONIC_POINTS;
    if (c->count < WINDOW || c->points[newest].wasted < p->least_bytes ||
        c->points[newest].grown < p->least_bytes || frag_at(c, 0) <= p->frag)
        return false;
    for (uint32_t i = 0; i < WINDOW; i++)
        high += frag_at(c, i) > p->frag;
    return high >= MOST * WINDOW && (frag_at(c, 0) > p->frag_hard || slope(c) >= FALLING);
}

static void look_at_frag(struct chronic *c, const struct chronic_params *p, uint64_t now_us,
                         struct chronic_verdict *v)
{
    double f = frag_at(c, 0);
    v->measured = f;
    v->limit = p->frag;
    v->wasted = c->points[(c->next + CHRONIC_POINTS - 1) % CHRONIC_POINTS].wasted;
    if (c->restarted_us && chronic_since(c->restarted_us, now_us, fmax(p->window_s, SINCE_S)))
        c->restarted_us = 0;
    if (!is_fragmented(c, p)) {
        if (f < p->frag) {
            c->trim_us = 0;
            c->asked = false;
        }
        if (c->restarted_us && c->count == WINDOW && f < CHRONIC_LITTLE)
            c->restarted_us = 0; /* it helped */
        return;
    }
    if (c->restarted_us) {
        c->restarted_us = 0;
        c->asked = true;
        v->kind = CHRONIC_INEFFECTIVE;
        (void)snprintf(v->why, sizeof(v->why),
                       "a restart did not help: F is %.2f again, above %.2f; none for this reason "
                       "for %.0f h",
                       f, p->frag, CHRONIC_OFF_S / 3600);
    } else if (!c->trim_us) {
        c->trim_us = now_us ? now_us : 1;
        v->kind = CHRONIC_TRIM;
        (void)snprintf(v->why, sizeof(v->why),
                       "memory outside the KV pool is fragmented: F %.2f above %.2f for %.0f min, "
                       "%.0f MiB reserved and unused; trimming",
                       f, p->frag, p->window_s / 60, v->wasted / 1048576);
    } else if (!c->asked && chronic_since(c->trim_us, now_us, p->window_s * SETTLE_SHARE)) {
        c->asked = true;
        v->kind = CHRONIC_RESTART;
        (void)snprintf(v->why, sizeof(v->why),
                       "a trim did not help: F is still %.2f, above %.2f, %.0f MiB reserved and "
                       "unused",
                       f, p->frag, v->wasted / 1048576);
    }
}

/* Blocks in use though nothing runs or waits. */
static bool look_for_leak(struct chronic *c, const struct chronic_params *p, const struct sample *s,
                          uint64_t now_us, struct chronic_verdict *v)
{
    bool leaks = sample_has(s, SIG_KV_USAGE) && sample_has(s, SIG_RUNNING) &&
                 sample_has(s, SIG_WAITING) && s->value[SIG_KV_USAGE] > 0 &&
                 !(s->value[SIG_RUNNING] > 0) && !(s->value[SIG_WAITING] > 0);
    if (!leaks || !(p->leak_s > 0)) {
        c->leak_us = 0;
        return false;
    }
    if (!c->leak_us)
        c->leak_us = now_us ? now_us : 1;
    if (c->leaked || !chronic_since(c->leak_us, now_us, p->leak_s))
        return false;
    c->leaked = true;
    *v = (struct chronic_verdict){.kind = CHRONIC_LEAK, .measured = s->value[SIG_KV_USAGE]};
    (void)snprintf(v->why, sizeof(v->why),
                   "%.1f%% of the KV cache is held though nothing ran or waited for %.0f s: blocks "
                   "leak",
                   s->value[SIG_KV_USAGE] * 100, p->leak_s);
    return true;
}

static bool look_at_prefixes(struct chronic *c, const struct chronic_params *p,
                             const struct sample *s, uint64_t now_us, struct chronic_verdict *v)
{
    if (c->capped || !(p->prefix_hit > 0) || !sample_has(s, SIG_BLOCKS_TOTAL) ||
        !sample_has(s, SIG_BLOCKS_CACHED) || !sample_has(s, SIG_PREFIX_QUERIES) ||
        !sample_has(s, SIG_PREFIX_HITS))
        return false;
    double share = s->value[SIG_BLOCKS_CACHED] / fmax(s->value[SIG_BLOCKS_TOTAL], 1);
    double queries = s->value[SIG_PREFIX_QUERIES], hits = s->value[SIG_PREFIX_HITS];
    if (share < CHRONIC_CACHED || !c->prefix_us || queries < c->queries) {
        c->prefix_us = share < CHRONIC_CACHED ? 0 : now_us ? now_us : 1;
        c->queries = queries;
        c->hits = hits;
        return false;
    }
    double asked = queries - c->queries, rate = asked > 0 ? (hits - c->hits) / asked : 0;
    if (!chronic_since(c->prefix_us, now_us, p->window_s) || asked < CHRONIC_QUERIES)
        return false;
    c->prefix_us = 0; /* the next window is judged by itself */
    if (rate >= p->prefix_hit)
        return false;
    c->capped = true;
    *v = (struct chronic_verdict){.kind = CHRONIC_PREFIX, .measured = rate, .limit = p->prefix_hit};
    (void)snprintf(
        v->why, sizeof(v->why),
        "unused prefixes fill %.0f%% of the KV cache and only %.1f%% of %.0f tokens were "
        "found there, below %.1f%%: their share is capped at %.2f",
        share * 100, rate * 100, asked, p->prefix_hit * 100, CHRONIC_CACHE_TO);
    return true;
}

struct chronic_verdict chronic_step(struct chronic *c, const struct chronic_params *p,
                                    const struct sample *s, uint64_t now_us)
{
    struct chronic_verdict v = {.kind = CHRONIC_NONE};
    if (!s->good || look_for_leak(c, p, s, now_us, &v) || look_at_prefixes(c, p, s, now_us, &v))
        return v;
    if (p->frag > 0 && take_point(c, p, s, now_us))
        look_at_frag(c, p, now_us, &v);
    return v;
}

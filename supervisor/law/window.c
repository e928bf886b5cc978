/*
 * The ring of samples, see window.h. Questions walk over it; with some hundred samples this costs
 * less than keeping sums that must survive samples that leave.
 */
#include "supervisor/law/window.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define LATENCY_NEED 20
#define SLOTS_MOST   4096

struct window {
    uint64_t span_us;
    uint32_t slots, first, count; /* count samples from first on, round the ring */
    double *sorted;               /* [slots] room for one quantile */
    struct sample *samples;       /* [slots] */
};

int window_new(double span_s, uint32_t slots, struct window **ret_window)
{
    if (!(span_s > 0 && span_s < 1e6) || slots < WINDOW_NEED || slots > SLOTS_MOST)
        return -EINVAL;
    int r = -ENOMEM;
    struct window *w = calloc(1, sizeof(*w));
    if (!w)
        goto out;
    w->span_us = (uint64_t)(span_s * 1e6);
    w->slots = slots;
    w->samples = calloc(slots, sizeof(*w->samples));
    w->sorted = calloc(slots, sizeof(*w->sorted));
    if (!w->samples || !w->sorted)
        goto out;

    *ret_window = w;
    w = NULL;
    r = 0;
out:
    window_free(w);
    return r;
}

void window_free(struct window *w)
{
    if (!w)
        return;
    free(w->samples);
    free(w->sorted);
    free(w);
}

void window_clear(struct window *w)
{
    w->first = w->count = 0;
}

uint32_t window_count(const struct window *w)
{
    return w->count;
}

/* i < count */
static const struct sample *law_window_at(const struct window *w, uint32_t i)
{
    return &w->samples[(w->first + i) % w->slots];
}

const struct sample *window_at(const struct window *w, uint32_t i)
{
    return i < w->count ? law_window_at(w, i) : NULL;
}

static void drop_oldest(struct window *w)
{
    assert(w->count > 0 && w->slots > 0);
    w->first = (w->first + 1) % w->slots;
    w->count--;
}

void window_push(struct window *w, const struct sample *s)
{
    if (w->count && s->at_us <= law_window_at(w, w->count - 1)->at_us)
        return;
    if (w->count == w->slots)
        drop_oldest(w);
    w->samples[(w->first + w->count) % w->slots] = *s;
    w->count++;
    /* What lies exactly span back still counts: its counters begin the window. */
    while (s->at_us - law_window_at(w, 0)->at_us > w->span_us)
        drop_oldest(w);
}

/* The first sample that lies within last_s of the newest; 0 = all. */
static uint32_t from(const struct window *w, double last_s)
{
    if (last_s <= 0 || w->count == 0)
        return 0;
    uint64_t newest = law_window_at(w, w->count - 1)->at_us;
    uint64_t span_us = last_s < 1e6 ? (uint64_t)(last_s * 1e6) : w->span_us;
    uint32_t i = 0;
    while (newest - law_window_at(w, i)->at_us > span_us)
        i++;
    return i;
}

uint32_t window_good(const struct window *w, enum signal_id i)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < w->count; k++)
        n += sample_has(law_window_at(w, k), i);
    return n;
}

double window_covered_s(const struct window *w, enum signal_id i)
{
    const struct sample *first = NULL, *last = NULL;
    for (uint32_t k = 0; k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (!sample_has(s, i))
            continue;
        first = first ? first : s;
        last = s;
    }
    return first ? (double)(last->at_us - first->at_us) * 1e-6 : 0;
}

bool window_above(const struct window *w, enum signal_id i, double level, double last_s,
                  double *ret_share)
{
    uint32_t n = 0, above = 0;
    for (uint32_t k = from(w, last_s); k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (!sample_has(s, i))
            continue;
        n++;
        above += s->value[i] >= level;
    }
    if (n < WINDOW_NEED)
        return false;
    *ret_share = (double)above / n;
    return true;
}

static int window_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool window_gauge(const struct window *w, enum signal_id i, double q, double last_s,
                  double *ret_value)
{
    uint32_t n = 0;
    for (uint32_t k = from(w, last_s); k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (sample_has(s, i))
            w->sorted[n++] = s->value[i];
    }
    if (n < WINDOW_NEED)
        return false;
    qsort(w->sorted, n, sizeof(*w->sorted), window_ascending);
    uint32_t rank = (uint32_t)ceil(q * n);
    *ret_value = w->sorted[rank > n ? n - 1 : rank ? rank - 1 : 0];
    return true;
}

/* Growth of a counter and the time over which it was seen. */
static bool window_growth(const struct window *w, enum signal_id i, double last_s,
                          double *ret_delta, double *ret_over_s)
{
    const struct sample *prev = NULL;
    double delta = 0, over_s = 0;
    uint32_t steps = 0;
    for (uint32_t k = from(w, last_s); k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (!sample_has(s, i)) {
            /* After a reset the count starts anew: nothing is known of the step over it. */
            if (s->good && s->flags[i] & SAMPLE_RESET)
                prev = NULL;
            continue;
        }
        if (prev && s->value[i] >= prev->value[i]) {
            delta += s->value[i] - prev->value[i];
            over_s += (double)(s->at_us - prev->at_us) * 1e-6;
            steps++;
        }
        prev = s;
    }
    if (steps == 0)
        return false;
    *ret_delta = delta;
    *ret_over_s = over_s;
    return true;
}

bool window_delta(const struct window *w, enum signal_id i, double last_s, double *ret_delta)
{
    double over_s;
    return window_growth(w, i, last_s, ret_delta, &over_s);
}

bool window_rate(const struct window *w, enum signal_id i, double last_s, double *ret_per_s)
{
    double delta, over_s;
    if (!window_growth(w, i, last_s, &delta, &over_s))
        return false;
    *ret_per_s = delta / over_s;
    return true;
}

bool window_binding(const struct window *w, double limit, double last_s, double *ret_share)
{
    uint32_t n = 0, binds = 0;
    for (uint32_t k = from(w, last_s); k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (!sample_has(s, SIG_RUNNING) || !sample_has(s, SIG_WAITING))
            continue;
        n++;
        binds += s->value[SIG_WAITING] > 0 && window_reached(s->value[SIG_RUNNING], limit);
    }
    if (n == 0)
        return false;
    *ret_share = (double)binds / n;
    return true;
}

bool window_lost(const struct window *w, double last_s, double *ret_per_s)
{
    const struct sample *prev = NULL;
    double lost = 0, over_s = 0;
    uint32_t steps = 0;
    for (uint32_t k = from(w, last_s); k < w->count; k++) {
        const struct sample *s = law_window_at(w, k);
        if (!sample_has(s, SIG_RUNNING) || !sample_has(s, SIG_FINISHED))
            continue;
        enum signal_id queue =
            sample_has(s, SIG_WAITING_CAPACITY) ? SIG_WAITING_CAPACITY : SIG_WAITING;
        if (prev && sample_has(s, queue) && sample_has(prev, queue) &&
            s->value[SIG_FINISHED] >= prev->value[SIG_FINISHED]) {
            double left = prev->value[SIG_RUNNING] - s->value[SIG_RUNNING] -
                          (s->value[SIG_FINISHED] - prev->value[SIG_FINISHED]);
            if (left > 0 && s->value[queue] > prev->value[queue])
                lost += fmin(left, s->value[queue] - prev->value[queue]);
            over_s += (double)(s->at_us - prev->at_us) * 1e-6;
            steps++;
        }
        prev = s;
    }
    if (steps == 0)
        return false;
    *ret_per_s = lost / over_s;
    return true;
}

static const struct sample_hist *hist_of(const struct sample *s, enum hist_id h)
{
    return h == HIST_TTFT ? &s->ttft : &s->itl;
}

static bool same_bounds(const struct sample_hist *a, const struct sample_hist *b)
{
    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->bound[i] != b->bound[i])
            return false;
    }
    return true;
}

/* Sums the growth of each bucket over steps in which none fell. Returns the number of buckets. */
static uint32_t hist_growth(const struct window *w, enum hist_id h, double grown[SAMPLE_BUCKETS],
                            const struct sample_hist **ret_last)
{
    const struct sample_hist *prev = NULL;
    for (uint32_t i = 0; i < SAMPLE_BUCKETS; i++)
        grown[i] = 0;
    for (uint32_t k = 0; k < w->count; k++) {
        const struct sample_hist *now = hist_of(law_window_at(w, k), h);
        if (!law_window_at(w, k)->good || now->count == 0)
            continue;
        bool grew = prev && same_bounds(now, prev);
        for (uint32_t i = 0; grew && i < now->count; i++)
            grew = now->hits[i] >= prev->hits[i];
        for (uint32_t i = 0; grew && i < now->count; i++)
            grown[i] += now->hits[i] - prev->hits[i];
        if (prev && now->count != prev->count) {
            for (uint32_t i = 0; i < SAMPLE_BUCKETS; i++)
                grown[i] = 0;
        }
        prev = now;
    }
    *ret_last = prev;
    return prev ? prev->count : 0;
}

bool window_latency(const struct window *w, enum hist_id h, double q, double *ret_s)
{
    double grown[SAMPLE_BUCKETS];
    const struct sample_hist *last = NULL;
    uint32_t count = hist_growth(w, h, grown, &last);
    if (count == 0 || !(grown[count - 1] >= LATENCY_NEED) || !isfinite(grown[count - 1]))
        return false;
    double rank = q * grown[count - 1];
    uint32_t i = 0;
    while (i + 1 < count && grown[i] < rank)
        i++;
    double low = i ? last->bound[i - 1] : 0, below = i ? grown[i - 1] : 0;
    if (isinf(last->bound[i]) || grown[i] <= below)
        *ret_s = isinf(last->bound[i]) ? low : last->bound[i];
    else
        *ret_s = low + (last->bound[i] - low) * (rank - below) / (grown[i] - below);
    return true;
}

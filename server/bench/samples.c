/* An array of numbers that grows, and what is told of sorted ones; callers are named in samples.h.
 */
#include "server/bench/samples.h"

#include <math.h>
#include <stdlib.h>

#define SAMPLES_FIRST 65536

void samples_push(struct samples *s, double value)
{
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : SAMPLES_FIRST;
        double *at = realloc(s->at, room * sizeof(*at));
        if (!at) {
            s->failed = true;
            return;
        }
        s->at = at;
        s->room = room;
    }
    s->at[s->count++] = value;
}

void samples_done(struct samples *s)
{
    free(s->at);
    *s = (struct samples){0};
}

static int samples_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_numbers(double *values, size_t n)
{
    if (n > 1)
        qsort(values, n, sizeof(values[0]), samples_ascending);
}

double quantile(const double *sorted, size_t n, double q)
{
    if (n == 0)
        return (double)NAN;
    size_t at = (size_t)(q * (double)n);
    return sorted[at < n ? at : n - 1];
}

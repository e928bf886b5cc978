/* A line through the times of steps, see line.h. pace.c learns by it. */
#include "server/engine/line.h"

#include <math.h>

#define FORGET       0.998 /* a step leaves so much of what is known: it is of the last 500 */
#define STEPS_LEAST  64.0  /* in the sums, before anything is told */
#define SPREAD_LEAST 0.1   /* of rows, as a share of their mean */
#define RIDGE        1e-3  /* of the context's square, added to its spread */

bool line_fit(struct line *l)
{
    double sxx = l->xx - l->x * l->x / l->n, sxc = l->xc - l->x * l->c / l->n;
    double scc = l->cc - l->c * l->c / l->n + RIDGE * l->cc;
    double sxt = l->xt - l->x * l->t / l->n, sct = l->ct - l->c * l->t / l->n;
    double mean = l->x / l->n;

    l->known = false;
    if (l->n < STEPS_LEAST || sxx / l->n < SPREAD_LEAST * SPREAD_LEAST * mean * mean)
        return false;
    double det = sxx * scc - sxc * sxc, row = sxt / sxx, context = 0;
    if (scc > 0 && det > 1e-9 * sxx * scc) {
        context = (sct * sxx - sxt * sxc) / det;
        row = (sxt * scc - sct * sxc) / det;
    }
    if (context < 0) {
        context = 0;
        row = sxt / sxx;
    }
    double fixed = (l->t - row * l->x - context * l->c) / l->n;
    double rest = fmax(0, l->tt - l->t * l->t / l->n - row * sxt - context * sct);
    double error = sqrt(rest / l->n / sxx); /* of the time of a row, one standard deviation */
    if (!(row > error))
        return true;
    l->row_us = row - error;
    l->context_us = context;
    l->fixed_us = fmax(fixed, 0) + error * mean;
    l->doubt_us = error;
    l->doubt_rows = mean;
    l->known = true;
    return false;
}

/* The longest that is believed of such a step. */
static double line_longest(const struct line *l, double rows, double context)
{
    if (l->known)
        return LINE_OUTLIER * (l->fixed_us + l->row_us * rows + l->context_us * context);
    return l->n < 4 ? (double)INFINITY : LINE_OUTLIER * fmax(l->t / l->n, l->t / l->x * rows);
}

void line_landed(struct line *l, double rows, double context, double took_us)
{
    double x = rows, c = context, t = fmin(took_us, line_longest(l, x, c));
    double *const sums[] = {&l->n,  &l->x,  &l->c,  &l->t,  &l->xx,
                            &l->xc, &l->cc, &l->xt, &l->ct, &l->tt};
    const double add[] = {1, x, c, t, x * x, x * c, c * c, x * t, c * t, t * t};

    for (uint32_t i = 0; i < sizeof(add) / sizeof(add[0]); i++)
        *sums[i] = FORGET * *sums[i] + add[i];
}

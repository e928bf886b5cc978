/*
 * What a token costs by where it stands, see price.h: least squares over steps of late. rates.c
 * reports each one that has landed, plan.c takes the figures into its plan, share.c asks what rows
 * cost.
 *
 * What goes with rows times depth has to be told apart from what goes with depth alone: steps of
 * one size do not tell, short prompts beside a long one do, and so does every PRICE_EXPLORE-th
 * step. Such steps may be few and far between. So the last ones of each kind are kept, by size and
 * depth, and many of one kind displace no other.
 *
 * Times are of any size and other processes take the machine now and then, for a multiple of a
 * step. So what counts is the difference as a share of what a step was expected to take. What is
 * usual comes from the middle one of these differences; what is beyond it does not count (Huber,
 * "Robust estimation of a location parameter", 1964), and of a step that took far longer nothing
 * does. Before anything is expected each step weighs as its own time says, so one that was
 * interrupted weighs little.
 *
 * The other figures take what is open: depth counts as its estimate less one standard deviation, a
 * row as its estimate and one, so what is not certain leaves tokens shared. A figure that comes out
 * below nothing is left out of the sums and the rest is found again.
 */
#include "server/engine/price.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define COST_LEAST   192u /* steps that cost less take as long as the weights take to be read */
#define STEPS_LEAST  48.0 /* in the sums, before anything is told */
#define LOOK_EVERY   16u
#define SPREAD_LEAST 0.02 /* of a figure's amounts, as a share of their mean, to be told at all */
#define USUAL_FIRST  0.2  /* of what a step takes, the usual difference, to begin with */
#define NORMAL       1.48 /* deviations of the middle difference, if they are normal */
#define BOUNDED      1.5  /* usual differences: what is beyond it does not count, */
#define STOLEN       4.0  /* and the step does not where it took so much longer */
#define RIDGE        1e-4 /* of each spread, added to it */

enum { ONE, ROWS, CONTEXT, READ, DEEP, TOOK };
_Static_assert(TOOK + 1 == PRICE_SUMS, "a sum for each");

/* Of the steps that are kept, by what is believed of each. */
struct price_sums {
    double of[PRICE_SUMS][PRICE_SUMS]; /* of products, by their weights */
    double steps;
};

/* Spread of two amounts around their means. */
static double price_spread(const struct price_sums *s, uint32_t i, uint32_t k)
{
    return s->of[i][k] / s->of[ONE][ONE] -
           s->of[ONE][i] / s->of[ONE][ONE] * (s->of[ONE][k] / s->of[ONE][ONE]);
}

/* The amounts that vary enough; returns how many. */
static uint32_t price_choose(const struct price_sums *s, uint32_t *ret_of)
{
    uint32_t n = 0;

    for (uint32_t i = ROWS; i <= DEEP; i++) {
        double mean = s->of[ONE][i] / s->of[ONE][ONE];
        if (mean > 0 && price_spread(s, i, i) > SPREAD_LEAST * SPREAD_LEAST * mean * mean)
            ret_of[n++] = i;
    }
    return n;
}

/* Solves a x = b in place, a symmetric and positive with n rows, and inverts it: Gauss and Jordan
 * without a choice of pivots. False when it is not positive. */
static bool solve(double a[TOOK][2 * TOOK], uint32_t n)
{
    uint32_t width = 2 * n + 1;

    for (uint32_t i = 0; i < n; i++) {
        double pivot = a[i][i];
        if (!(pivot > 1e-9))
            return false;
        for (uint32_t k = 0; k < width; k++)
            a[i][k] /= pivot;
        for (uint32_t r = 0; r < n; r++) {
            double by = a[r][i];
            for (uint32_t k = 0; r != i && k < width; k++)
                a[r][k] -= by * a[i][k];
        }
    }
    return true;
}

/* One fit of the n amounts in `of`: figures, and what one standard deviation of each is. */
static bool fit(const struct price_sums *s, const uint32_t *of, uint32_t n, double *us,
                double *error)
{
    double a[TOOK][2 * TOOK] = {{0}}, scale[TOOK], rest = price_spread(s, TOOK, TOOK);

    for (uint32_t i = 0; i < n; i++)
        scale[i] = sqrt(price_spread(s, of[i], of[i]));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++)
            a[i][k] = price_spread(s, of[i], of[k]) / (scale[i] * scale[k]);
        a[i][i] += RIDGE;
        a[i][n] = price_spread(s, of[i], TOOK) / scale[i];
        a[i][n + 1 + i] = 1;
    }
    double with[TOOK];
    for (uint32_t i = 0; i < n; i++)
        with[i] = a[i][n];
    if (!solve(a, n))
        return false;
    for (uint32_t i = 0; i < n; i++)
        rest -= a[i][n] * with[i];
    rest = fmax(rest, 0) / s->steps;
    for (uint32_t i = 0; i < n; i++) {
        us[of[i]] = a[i][n] / scale[i];
        error[of[i]] = sqrt(rest * a[i][n + 1 + i]) / scale[i];
    }
    return true;
}

/* Figures of which none is below nothing; false when the steps do not tell. */
static bool fit_all(const struct price_sums *s, double *us, double *error)
{
    uint32_t of[TOOK], n = price_choose(s, of), worst = 0;

    while (worst < n) {
        memset(us, 0, TOOK * sizeof(*us));
        if (of[0] != ROWS || !fit(s, of, n, us, error))
            return false;
        for (worst = 0; worst < n && us[of[worst]] >= 0; worst++)
            continue;
        if (worst == n)
            break;
        if (worst == 0) /* rows that cost nothing */
            return false;
        memmove(of + worst, of + worst + 1, (--n - worst) * sizeof(*of));
        worst = 0;
    }
    us[ONE] = s->of[ONE][TOOK];
    for (uint32_t i = ROWS; i <= DEEP; i++)
        us[ONE] -= us[i] * s->of[ONE][i];
    us[ONE] = fmax(us[ONE], 0) / s->of[ONE][ONE];
    return n > 0 && us[ROWS] > error[ROWS];
}

/* What a step is expected to take; 0 while that is not known. */
static double expected(const struct prices *p, const double *had)
{
    double us = 0;

    for (uint32_t i = ONE; i <= DEEP; i++)
        us += p->us[i] * had[i];
    return us;
}

static void add_step(struct price_sums *s, const double *had, double weight)
{
    for (uint32_t i = 0; i < PRICE_SUMS; i++)
        for (uint32_t k = i; k < PRICE_SUMS; k++)
            s->of[i][k] += weight * had[i] * had[k];
}

/* The middle one of differences, as far as it is below 1. */
static double middle(const float *off, uint32_t count)
{
    float low = 0, high = 1;

    for (uint32_t i = 0; i < 12; i++) {
        float at = (low + high) / 2;
        uint32_t below = 0;
        for (uint32_t k = 0; k < count; k++)
            below += fabsf(off[k]) <= at;
        *(below > count / 2 ? &high : &low) = at;
    }
    return (double)high;
}

/* What of it counts, by how it differs from what was expected. */
static double price_believed(double usual, double off)
{
    if (off > STOLEN * usual)
        return 0;
    return fabs(off) > BOUNDED * usual ? BOUNDED * usual / fabs(off) : 1;
}

/* Sums of the steps that are kept, by what is expected of each; and what difference is usual. */
static void add_steps(struct prices *p, struct price_sums *ret_sums)
{
    float off[PRICE_KINDS * PRICE_KEPT];
    uint32_t n = 0;

    *ret_sums = (struct price_sums){0};
    for (uint32_t kind = 0; kind < PRICE_KINDS; kind++) {
        uint32_t count = p->count[kind] < PRICE_KEPT ? p->count[kind] : PRICE_KEPT;
        for (uint32_t i = 0; i < count; i++) {
            const struct price_kept *k = &p->kept[kind][i];
            double had[PRICE_SUMS] = {1,
                                      (double)k->rows,
                                      (double)k->context,
                                      (double)k->read,
                                      (double)k->deep,
                                      (double)k->us};
            double us = expected(p, had), took = had[TOOK];
            us = us > 0 ? us : took;
            double counts = price_believed(p->usual, took / us - 1);
            off[n++] = (float)(took / us - 1);
            ret_sums->steps += counts;
            add_step(ret_sums, had, counts / (us * us));
        }
    }
    for (uint32_t i = 0; i < PRICE_SUMS; i++)
        for (uint32_t k = 0; k < i; k++)
            ret_sums->of[i][k] = ret_sums->of[k][i];
    if (p->us[ROWS] > 0)
        p->usual = NORMAL * middle(off, n);
}

static void look(struct prices *p)
{
    double us[TOOK] = {0}, error[TOOK] = {0};
    struct price_sums sums;

    add_steps(p, &sums);
    if (sums.steps < STEPS_LEAST)
        return;
    bool known = fit_all(&sums, us, error);
    double deep = known ? us[DEEP] - error[DEEP] : 0, row = us[ROWS] + error[ROWS];
    memcpy(p->us, us, sizeof(us));
    if (!known)
        memset(p->us, 0, sizeof(p->us));
    p->now = (struct price){0};
    if (deep * p->longest > PRICE_LEAST * row)
        p->now = (struct price){
            .deeper = deep / row, .fixed = us[ONE] / us[ROWS], .read = us[READ] / us[ROWS]};
}

/* Steps of about as many rows as deep: powers of two from COST_LEAST on, and of four from 256. */
static uint32_t price_kind_of(const struct price_step *s)
{
    uint32_t size = 0, depth = 0;

    while (size + 1 < PRICE_SIZES && s->rows >> (size + 1) >= COST_LEAST)
        size++;
    while (depth + 1 < PRICE_DEPTHS && s->deep / s->rows >= (double)(256u << 2 * depth))
        depth++;
    return size * PRICE_DEPTHS + depth;
}

void prices_landed(struct prices *p, const struct price_step *step, uint64_t took_us)
{
    if (took_us == 0 || step->rows == 0 || step->rows + p->now.deeper * step->deep < COST_LEAST)
        return;
    uint32_t kind = price_kind_of(step);

    if (p->usual == 0)
        p->usual = USUAL_FIRST;
    p->kept[kind][p->count[kind]++ % PRICE_KEPT] = (struct price_kept){
        .rows = (float)step->rows,
        .context = (float)step->context,
        .read = (float)step->read,
        .deep = (float)step->deep,
        .us = (float)took_us,
    };
    if (++p->landed % LOOK_EVERY == 0)
        look(p);
}

uint32_t prices_budget(struct prices *p, uint32_t rows)
{
    return ++p->planned % PRICE_EXPLORE == PRICE_EXPLORE / 2 && p->now.deeper > 0 ? rows - rows / 2
                                                                                  : rows;
}

double price_row(const struct price *p, double at)
{
    return fmin(1 + p->deeper * at, PRICE_DEAREST);
}

uint32_t price_of(const struct price *p, uint32_t at, uint32_t rows)
{
    if (!(p->deeper > 0))
        return rows;
    return (uint32_t)(rows * price_row(p, at + rows / 2.0) + 0.5);
}

uint32_t price_rows(const struct price *p, uint32_t at, uint32_t cost, uint32_t rows)
{
    uint32_t least = 0, most = cost < rows ? cost : rows;

    if (!(p->deeper > 0))
        return most;
    while (least < most) {
        uint32_t middle = most - (most - least) / 2;
        if (price_of(p, at, middle) <= cost)
            least = middle;
        else
            most = middle - 1;
    }
    return least;
}

uint32_t price_least(const struct price *p, uint32_t at, uint32_t most)
{
    if (!(p->deeper > 0))
        return 0;
    double lost = p->fixed + p->read * at, each = price_row(p, at);
    double slower =
        (lost / fmax(most, 1) + each) / (1 - PRICE_LOSS); /* a row, at the least speed */
    double rows = ceil(fmax(lost / (slower - each), PRICE_ROWS));

    return rows < most ? (uint32_t)rows : most;
}

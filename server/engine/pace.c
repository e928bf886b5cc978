/*
 * The budget of a step from what steps cost, see pace.h, by a line through the times of the steps
 * of late (line.h). plan.c asks for each step, results.c reports each one that has landed.
 *
 * Steps of few rows are another kind: they take as long as the weights take to be read, however few
 * they are, so they tell nothing of larger ones and are left out. Rows have to vary: what prompts
 * leave empty varies them by itself, and every PACE_EXPLORE-th step is made larger or smaller on
 * purpose. What the line leaves open errs towards large steps.
 */
#include "server/engine/pace.h"

#include <math.h>

#define ROWS_LEAST    192u /* steps with less are not learned from */
#define PACE_EXPLORE  32u
#define CHOOSE_EVERY  32u
#define LOSS_TO_RAISE 0.03 /* more than PACE_LOSS, so that the choice does not go to and fro */
#define KNEE_WEIGHT   0.05 /* of a new step in the knee, and in what was paid below it */
#define KNEE_PART     4    /* a part of the knee is free, or prompts would be read too slowly */
#define PAID_MOST     0.5  /* of their price: beyond it rows below the knee are not free */
#define PAID_FORGET   0.999
#define SHARED_TRIED  128u /* steps that are small before anything is known, so that it soon is */
#define SHARED_STEPS  64   /* with several tenants, before the least is chosen anew, */
#define SHARED_FULL   0.75 /* of the least: such a step is judged, as few are quite full */
#define SHARED_AGAIN  4096 /* and so many more where fewer rows were too slow */
#define SHARED_WEIGHT 0.02
#define SHARED_SLOW   0.02 /* above the line, on average: the least is doubled, */
#define SHARED_WELL   0.01 /* or halved below that */

void pace_init(struct pace *p, uint32_t prompts)
{
    *p = (struct pace){.shared_most = prompts < PACE_LEAST ? prompts : PACE_LEAST};
}

/* Rows of prompts a microsecond in steps of so many. */
static double speed(const struct pace *p, uint32_t rows)
{
    return rows / (p->line.fixed_us + p->line.row_us * rows);
}

/* 512, 768, 1024, 1536, ... */
static uint32_t next_budget(uint32_t rows)
{
    return (rows & (rows - 1)) == 0 ? rows + rows / 2 : rows / 3 * 4;
}

static uint32_t pace_smallest(const struct pace *p, uint32_t most, double loss)
{
    double least = speed(p, most) * (1 - loss);
    uint32_t rows = PACE_LEAST;

    while (rows < most && speed(p, rows) < least)
        rows = next_budget(rows);
    return rows < most ? rows : most;
}

static void pace_choose(struct pace *p, uint32_t most)
{
    p->landed = 0;
    if (line_fit(&p->line))
        p->budget = 0; /* the largest is the best */
    if (!p->line.known || most <= PACE_LEAST)
        return;
    uint32_t down = pace_smallest(p, most, PACE_LOSS), up = pace_smallest(p, most, LOSS_TO_RAISE);
    uint32_t now = p->budget ? p->budget : most;
    if (now > down)
        p->budget = down;
    else if (now < up)
        p->budget = up;
}

void pace_landed(struct pace *p, uint32_t rows, uint64_t context, uint64_t took_us)
{
    if (rows < ROWS_LEAST || took_us == 0)
        return;
    p->landed++;
    line_landed(&p->line, rows, (double)context, (double)took_us);
}

/* Rows that a step with this context has on the line of large ones when it takes so long. */
static double rows_in(const struct pace *p, uint64_t context, uint64_t took_us)
{
    return ((double)took_us - p->line.fixed_us - p->line.context_us * (double)context) /
           p->line.row_us;
}

static void pace_mix(double *mean, double value)
{
    *mean += KNEE_WEIGHT * (value - *mean);
}

void pace_answered(struct pace *p, uint32_t rows, uint64_t context, uint64_t took_us)
{
    if (!p->line.known || took_us == 0)
        return;
    double knee = fmax(rows_in(p, context, took_us), rows);

    if (p->knee > 0)
        pace_mix(&p->knee, fmin(knee, LINE_OUTLIER * p->knee));
    else
        p->knee = knee;
    p->paid *= PAID_FORGET;
}

void pace_spread(struct pace *p, uint32_t prompts, uint64_t context, uint64_t took_us)
{
    if (!p->line.known || took_us == 0 || prompts < PACE_SPARE / 2)
        return; /* of few rows, noise would look like their price */
    double more = rows_in(p, context, took_us) - p->knee;

    pace_mix(&p->paid, fmax(-1, fmin(more / prompts, LINE_OUTLIER)));
}

static uint32_t beside(uint32_t rows, uint32_t most, uint32_t decodes)
{
    return decodes < most && rows < most - decodes ? rows + decodes : most;
}

uint32_t pace_budget(const struct pace *p, uint32_t most, uint32_t decodes)
{
    return beside(p->budget ? p->budget : most, most, decodes);
}

/* The choice, as far as the limit allows it. */
static uint32_t pace_within(const struct pace *p, uint32_t most)
{
    return p->budget && p->budget < most ? p->budget : most;
}

uint32_t pace_rows(struct pace *p, uint32_t most, uint32_t decodes)
{
    if (most <= PACE_LEAST)
        return most;
    if (p->landed >= CHOOSE_EVERY)
        pace_choose(p, most);
    uint32_t rows = pace_within(p, most);
    if (++p->planned % PACE_EXPLORE == 0)
        rows = rows < most ? 2 * rows : rows / 2;
    return beside(rows, most, decodes);
}

uint32_t pace_spare(const struct pace *p, uint32_t most, uint32_t decodes)
{
    double free = p->knee - decodes;

    if (!p->line.known || decodes == 0 || p->planned % PACE_EXPLORE == 0 || p->paid > PAID_MOST ||
        free < PACE_SPARE || free < p->knee / KNEE_PART)
        return 0;
    double fast = speed(p, pace_within(p, most));
    if (free * KNEE_PART < fast * (p->line.fixed_us + p->line.row_us * p->knee))
        return 0; /* it is the fixed part that large steps save */
    return p->knee < most ? (uint32_t)p->knee : most;
}

/* Of a step without context, without the doubt: whether it is so is looked at. */
static double pace_likely_us(const struct pace *p, double rows)
{
    return p->line.fixed_us + p->line.row_us * rows +
           p->line.doubt_us * (rows - p->line.doubt_rows);
}

uint32_t pace_shared(struct pace *p, uint32_t most, uint32_t decodes)
{
    const uint32_t usual = p->shared_most != 0 ? p->shared_most : PACE_LEAST;

    if (p->landed >= CHOOSE_EVERY)
        pace_choose(p, most);
    if (p->shared_least == 0 || (p->shared_least >= usual && ++p->shared_landed >= 0))
        p->shared_least = usual / 2;
    uint32_t rows = p->shared_least;
    if (!p->line.known && (p->shared_tried >= SHARED_TRIED || usual < ROWS_LEAST))
        return 0;
    if (!p->line.known) /* two sizes, both large enough to learn from */
        rows = p->shared_turn++ & 1 ? usual : usual / 2 > ROWS_LEAST ? usual / 2 : ROWS_LEAST;
    double dearest_us = pace_likely_us(p, most) / most / (1 - PACE_LOSS); /* of a row */
    while (p->line.known && rows < usual &&
           (rows < decodes || pace_likely_us(p, rows) > dearest_us * rows))
        rows = next_budget(rows);
    return (rows < usual || !p->line.known) && rows < most ? beside(rows, most, decodes) : 0;
}

void pace_shared_landed(struct pace *p, double rows, uint64_t context, uint64_t took_us)
{
    double line = pace_likely_us(p, rows) + p->line.context_us * (double)context;

    if (!p->line.known)
        p->shared_tried += rows >= ROWS_LEAST;
    if (!p->line.known || took_us == 0 || !(line > 0) || rows < SHARED_FULL * p->shared_least)
        return;
    p->shared_over +=
        SHARED_WEIGHT * (fmin((double)took_us / line, LINE_OUTLIER) - 1 - p->shared_over);
    if (p->shared_landed < SHARED_STEPS && ++p->shared_landed < SHARED_STEPS)
        return;
    if (p->shared_over > SHARED_SLOW) {
        p->shared_least *= 2;
        p->shared_landed = -SHARED_AGAIN;
    } else if (p->shared_over < SHARED_WELL && p->shared_least > PACE_SHARED_LEAST) {
        p->shared_least /= 2;
        p->shared_landed = 0;
    } else
        return;
    p->shared_over = 0;
}

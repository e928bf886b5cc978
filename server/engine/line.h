/*
 * What a step takes, learned from steps that land: a fixed part, a part for each row, and a part
 * for each token of the contexts that those with one row, the answers, read. Least squares with
 * rows and context as regressors; older steps count less.
 *
 * Rows and context have to vary or nothing can be told apart. Of context that hardly varies the
 * cost counts as fixed, and so does what one standard deviation leaves open: both err towards a
 * dear step and cheap rows. Pure; part of the scheduler's state.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LINE_OUTLIER 2.0 /* times what was expected: beyond it others had the machine */

struct line {
    /* Sums over steps: of rows, context, time in us, and their products. */
    double n, x, c, t, xx, xc, cc, xt, ct, tt;
    bool known; /* the figures are: */
    double fixed_us, row_us,
        context_us;              /* of a step, of each row, each token of context; above 0 */
    double doubt_us, doubt_rows; /* how much less row_us was set for safety; fixed_us is that higher
                                  * by so many rows */
};

/* A step with so many rows took so long, as far as that is believed. */
void line_landed(struct line *l, double rows, double context, double took_us);
/* Sets what is known. True: nothing is, because a step takes what it takes, however many rows it
 * has. */
bool line_fit(struct line *l);

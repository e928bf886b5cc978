/*
 * How large a step has to be. A step's time is taken to be a fixed part, a part for each row, and a
 * part for each token of the contexts that those with one row, the answers, read; the three are
 * learned from steps that land. Where the fixed part is small, a large step reads prompts no faster
 * than several small ones, and makes all that decode wait for it; where it is large, a small
 * step wastes it. What a prompt's chunk reads of its own beginning is read once more in each step,
 * so it is in the fixed part. Prompts get the smallest budget that costs at most PACE_LOSS of the
 * speed at which the largest one reads them. The operator's limit (max_num_batched_tokens) is the
 * largest one.
 *
 * Which rows a token is computed beside changes no bit of it, so this may follow a clock. Pure; it
 * belongs to the owner of the scheduler.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PACE_LEAST 512u /* rows of prompts: a budget below that is the operator's alone */
#define PACE_LOSS  0.02 /* of the speed of prompts */

struct pace {
    /* Sums over steps, older ones count less: of rows, context, time in us, and their products. */
    double n, x, c, t, xx, xc, cc, xt, ct, tt;
    uint32_t landed, planned;            /* steps since the choice, and ever, round */
    uint32_t budget;                     /* the choice, 0 = none yet: all that the limit allows */
    bool known;                          /* the figures are: */
    double fixed_us, row_us, context_us; /* of a step, of each row, of each token of context */
};

void pace_init(struct pace *p);
/* A step with so many rows took so long; `context`: the tokens of those with one row. */
void pace_landed(struct pace *p, uint32_t rows, uint64_t context, uint64_t took_us);
/* Rows of the next step, at most `most`; `decodes` of them are for those that decode. Now and then
 * it is another number, to learn from. */
uint32_t pace_rows(struct pace *p, uint32_t most, uint32_t decodes);
/* What it is between those. */
uint32_t pace_budget(const struct pace *p, uint32_t most, uint32_t decodes);

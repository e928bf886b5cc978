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
 * On most devices a step of answers alone takes as long as the weights take to be read, and would
 * take no longer with some rows of prompts: as many as are needed until the line of larger steps
 * reaches its time, the knee. A step with more pays for each of them. Where requests wait for
 * blocks, prompts that are read faster only wait for the next block instead, so there they get what
 * is free beside the answers, see pace_spare(). Time is a convex function of rows where nothing
 * else is known, so rows below the knee cost no more than those above it; whether that holds is
 * looked at, too.
 *
 * Where several tenants are served, a new request waits for the step that runs, which is another
 * tenant's; and for one behind it, where that is planned already (rates.c). So there PACE_LOSS may
 * be spent on steps that are smaller still, see pace_shared(). Below the steps that were learned
 * from the line may not hold: devices compute tiles. So the least is half of others' at first, and
 * is halved as long as such steps take what the line says, and doubled where they take more. They
 * do not move the line that they are held to. Before anything is known a number of steps is small,
 * since large ones would take long to tell.
 *
 * Which rows a token is computed beside changes no bit of it, so this may follow a clock. Pure; it
 * belongs to the owner of the scheduler.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/line.h"

#define PACE_LEAST        512u /* rows of prompts: with one tenant less is the operator's alone */
#define PACE_SHARED_LEAST 64u  /* with several */
#define PACE_LOSS         0.02 /* of the speed of prompts */
#define PACE_SPARE        32u  /* rows below the knee: fewer are not worth a step of their own */

struct pace {
    struct line line;         /* of large steps */
    uint32_t landed, planned; /* steps since the choice, and ever, round */
    uint32_t budget;          /* the choice, 0 = none yet: all that the limit allows */
    double knee; /* rows that a step has in the time of one of answers alone; 0 = not known */
    double paid; /* for rows below it all the same, as a share of their price in large steps */
    uint32_t shared_most;  /* rows from which on those for several tenants are no smaller than
                              others; 0 = PACE_LEAST; set once */
    uint32_t shared_least; /* rows of steps that several tenants share; 0 = none was planned yet */
    uint32_t shared_turn;  /* of two sizes that are tried before anything is known */
    uint32_t shared_tried; /* small ones before anything was known, ever */
    int32_t shared_landed; /* such steps since that was chosen; below 0: fewer were too slow */
    double shared_over;    /* what they took above the line, a share of it */
};

/* `prompts`: most rows of prompts in a step, 0 = only the limit bounds them. */
void pace_init(struct pace *p, uint32_t prompts);
/* A step with so many rows took so long; `context`: the tokens of those with one row. */
void pace_landed(struct pace *p, uint32_t rows, uint64_t context, uint64_t took_us);
/* A step of answers alone took so long, */
void pace_answered(struct pace *p, uint32_t rows, uint64_t context, uint64_t took_us);
/* and one with as many rows as pace_spare() said, `prompts` of them those of prompts. */
void pace_spread(struct pace *p, uint32_t prompts, uint64_t context, uint64_t took_us);
/* Rows of the next step, at most `most`; `decodes` of them are for those that decode. Now and then
 * it is another number, to learn from. */
uint32_t pace_rows(struct pace *p, uint32_t most, uint32_t decodes);
/* Rows of the next step while several tenants are served: 0 = as many as pace_rows() says. */
uint32_t pace_shared(struct pace *p, uint32_t most, uint32_t decodes);
/* Such a step, with so many rows, took so long; it is pace_landed()'s, too, where
 * the figures were not known. */
void pace_shared_landed(struct pace *p, double rows, uint64_t context, uint64_t took_us);
/* What it is between those. */
uint32_t pace_budget(const struct pace *p, uint32_t most, uint32_t decodes);
/* Rows of the next step, answers and prompts, that take no longer than the answers alone; 0 = there
 * are none, or it is not known, or it is time to learn from a larger one. After pace_rows(). */
uint32_t pace_spare(const struct pace *p, uint32_t most, uint32_t decodes);

/*
 * How much the running requests will still grow, learned from how long answers were. An admission
 * has to know it, since a request that fits now can throw others out later. Pure; it belongs to the
 * owner of the scheduler.
 *
 * An answer that has so many tokens ends with its next one at a rate that depends on that number
 * only. The rate is measured in ranges of the number, from all tokens made and all ends there, so
 * answers that still run count too: judged by those that have ended, answers look shorter than they
 * are, above all after a start. Old answers are forgotten by and by. Before there are any it
 * assumes a mean of GROWTH_MEAN tokens.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define GROWTH_RANGES 68u   /* of tokens: 0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, ... 2^20 */
#define GROWTH_MEAN   512.0 /* tokens */

struct growth {
    double made[GROWTH_RANGES], ended[GROWTH_RANGES];
    double rate[GROWTH_RANGES]; /* ends a token */
    double sum[GROWTH_RANGES];  /* of the rates of all tokens before the range */
};

void growth_init(struct growth *g);
/* An answer of `tokens` got one more. */
void growth_made(struct growth *g, uint32_t tokens);
/* One is over with so many: it ended by itself, or was cut off. */
void growth_ended(struct growth *g, uint32_t tokens, bool by_itself);
/* The share of answers of `tokens` that get at least `more`, 0 to 1. */
double growth_share(const struct growth *g, uint32_t tokens, uint32_t more);

/*
 * How long answers still get, as a survival curve. In each range of lengths the rate of ends is
 * ends / tokens made (a hazard), with a prior worth two answers of GROWTH_MEAN tokens. The share of
 * answers that get from a to b tokens is exp(-(sum of the rates from a to b)), and sum_up() keeps
 * those sums, so that a question costs the same for any number of tokens. results.c reports each
 * token made, foresee.c asks at each admission.
 */
#include "server/engine/growth.h"

#include <math.h>

#define FORGET 0.998 /* an end leaves so much of what is known: it is of the last 500 answers */
#define PRIOR  2.0   /* answers that the assumption is worth */
#define LINEAR 16u   /* ranges of 4 below, four ranges an octave above */

static uint32_t range_of(uint32_t tokens)
{
    if (tokens < LINEAR)
        return tokens / 4;
    uint32_t octave = 31 - (uint32_t)__builtin_clz(tokens);
    uint32_t range = 4 * (octave - 3) + (tokens >> (octave - 2) & 3);
    return range < GROWTH_RANGES ? range : GROWTH_RANGES - 1;
}

static uint32_t first_of(uint32_t range)
{
    return range < 4 ? 4 * range : (4 + range % 4) << (range / 4 + 1);
}

static void sum_up(struct growth *g)
{
    double sum = 0;

    for (uint32_t i = 0; i < GROWTH_RANGES; i++) {
        double wide = first_of(i + 1) - first_of(i);
        g->rate[i] = (g->ended[i] + PRIOR * wide / GROWTH_MEAN) / (g->made[i] + PRIOR * wide);
        g->sum[i] = sum;
        sum += g->rate[i] * wide;
    }
}

void growth_init(struct growth *g)
{
    *g = (struct growth){0};
    sum_up(g);
}

void growth_made(struct growth *g, uint32_t tokens)
{
    g->made[range_of(tokens)]++;
}

void growth_ended(struct growth *g, uint32_t tokens, bool by_itself)
{
    g->ended[range_of(tokens > 0 ? tokens - 1 : 0)] += by_itself; /* where it made its last one */
    for (uint32_t i = 0; i < GROWTH_RANGES; i++) {
        g->made[i] *= FORGET;
        g->ended[i] *= FORGET;
    }
    sum_up(g);
}

static double sum_to(const struct growth *g, uint32_t tokens)
{
    uint32_t i = range_of(tokens);
    return g->sum[i] + g->rate[i] * (tokens - first_of(i));
}

double growth_share(const struct growth *g, uint32_t tokens, uint32_t more)
{
    return exp(sum_to(g, tokens) - sum_to(g, tokens + more));
}

/*
 * How long answers still get, as a survival curve. In each range of lengths the rate of ends is
 * ends / tokens made (a hazard), with a prior worth two answers of GROWTH_MEAN tokens. The share of
 * answers that get from a to b tokens is exp(-(sum of the rates from a to b)), and sum_up() keeps
 * those sums, so that a question costs the same for any number of tokens. results.c reports each
 * token made, foresee.c asks at each admission.
 *
 * Ends less those that were due (the sum of the rates of all tokens made) are zero in the mean as
 * long as the curves are right, however many answers run and however old they are; so what is
 * missing tells that they are not.
 */
#include "server/engine/growth.h"

#include <math.h>
#include <stddef.h>

#define FORGET 0.998 /* an end leaves so much of what is known: it is of the last 500 answers */
#define PRIOR  2.0   /* answers that the assumption is worth, */
#define OF_ALL 8.0   /* and those of all for a kind */
#define SIZES  8u    /* of prompts, from 32 tokens on a factor of 4 each */
#define LINEAR 16u   /* ranges of 4 below, four ranges an octave above */
#define LATELY 16.0  /* ends that were due count as of late */
#define UNSUM  256u  /* tokens made: then sums are due, though no answer ended */

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

/* `all` = NULL: it is that one. */
static void sum_up(struct growth *g, const struct growth *all)
{
    double sum = 0;

    for (uint32_t i = 0; i < GROWTH_RANGES; i++) {
        double wide = (all ? OF_ALL : PRIOR) * (first_of(i + 1) - first_of(i));
        double rate = all ? all->rate[i] : 1 / GROWTH_MEAN;
        g->rate[i] = (g->ended[i] + rate * wide) / (g->made[i] + wide);
        g->sum[i] = sum;
        sum += g->rate[i] * (first_of(i + 1) - first_of(i));
    }
    g->unsummed = 0;
}

void growths_init(struct growths *g)
{
    *g = (struct growths){0};
    sum_up(&g->all, NULL);
}

uint32_t growths_kind(uint32_t tenant, uint32_t prompt_tokens)
{
    uint32_t size = 0;

    while (size + 1 < SIZES && prompt_tokens >= 32u << 2 * size)
        size++;
    return (tenant * SIZES + size) % GROWTH_KINDS;
}

static const struct growth *curve_of(const struct growths *g, uint32_t kind)
{
    return g->kind[kind].told ? &g->kind[kind] : &g->all;
}

/* How much of each rate to believe, 0 to 1. Ends come by chance: a square root fewer than are due
 * says nothing. */
static double growth_believed(const struct growths *g)
{
    double most = g->came + sqrt(fmax(g->came, 1));

    return g->due > most ? most / g->due : 1;
}

static void add_made(struct growth *g, const struct growth *all, uint32_t range)
{
    g->made[range]++;
    if (++g->unsummed == UNSUM)
        sum_up(g, all);
}

void growths_made(struct growths *g, uint32_t kind, uint32_t tokens)
{
    uint32_t i = range_of(tokens);
    double rate = fmin(curve_of(g, kind)->rate[i], 1), kept = 1 - rate / LATELY;

    g->due = g->due * kept + rate;
    g->came *= kept;
    add_made(&g->all, NULL, i);
    add_made(&g->kind[kind], &g->all, i);
}

static void ended(struct growth *g, const struct growth *all, uint32_t range, bool by_itself)
{
    g->ended[range] += by_itself;
    for (uint32_t i = 0; i < GROWTH_RANGES; i++) {
        g->made[i] *= FORGET;
        g->ended[i] *= FORGET;
    }
    g->told = true;
    sum_up(g, all);
}

void growths_ended(struct growths *g, uint32_t kind, uint32_t tokens, bool by_itself)
{
    uint32_t range = range_of(tokens > 0 ? tokens - 1 : 0); /* where it made its last one */

    g->came += by_itself;
    ended(&g->all, NULL, range, by_itself);
    ended(&g->kind[kind], &g->all, range, by_itself);
}

static double sum_to(const struct growth *g, uint32_t tokens)
{
    uint32_t i = range_of(tokens);
    return g->sum[i] + g->rate[i] * (tokens - first_of(i));
}

double growths_share(const struct growths *g, uint32_t kind, uint32_t tokens, uint32_t more)
{
    const struct growth *of = curve_of(g, kind);

    return exp(growth_believed(g) * (sum_to(of, tokens) - sum_to(of, tokens + more)));
}

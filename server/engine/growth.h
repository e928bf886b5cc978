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
 *
 * What is asked changes at once, and the ends of an hour of short answers would make the long ones
 * that come now look short for hundreds of them. So the ends that come are compared with those that
 * were due: each token that is made adds the rate at which answers end there. While clearly fewer
 * come than are due, all rates count for as much less, until the curves have learned it. The other
 * way round nothing is done: answers that look longer than they are cost some room only.
 *
 * A tenant's answers to prompts of about one length are a kind: a program that sums up documents
 * and one that chats differ, and each is like itself. A kind has a curve of its own, which begins
 * as the curve of all and leaves it as its own answers come.
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
    bool told;                  /* one has ended */
    uint32_t unsummed;          /* tokens made that the rates do not know of */
};

#define GROWTH_KINDS 128u

struct growths {
    struct growth all, kind[GROWTH_KINDS];
    double due, came; /* ends of late, by the curves and in fact; older ones count less */
};

void growths_init(struct growths *g);
/* Below GROWTH_KINDS. Tenants may share one, if there are many. */
uint32_t growths_kind(uint32_t tenant, uint32_t prompt_tokens);
/* An answer of `tokens` got one more. */
void growths_made(struct growths *g, uint32_t kind, uint32_t tokens);
/* One is over with so many: it ended by itself, or was cut off. */
void growths_ended(struct growths *g, uint32_t kind, uint32_t tokens, bool by_itself);
/* The share of the kind's answers of `tokens` that get at least `more`, 0 to 1. */
double growths_share(const struct growths *g, uint32_t kind, uint32_t tokens, uint32_t more);

/*
 * What it costs to read a token of a prompt, by where it stands. A token attends to all that comes
 * before it, so one deep in a long prompt takes a multiple of the time of one at the beginning: of
 * a small model ten times at 16,384. Steps that share tokens are then as long as that, and a short
 * prompt waits for them. So what is shared is cost, in units of a row at the beginning of a prompt:
 * a row with n tokens before it costs 1 + n * deeper, at most PRICE_DEAREST. No row costs less than
 * one, so what a budget of tokens holds by cost is never more than by tokens. Where even the last
 * row of the longest prompt costs hardly more than one, all rows cost the same: PRICE_LEAST.
 *
 * The figures are learned from steps that have landed. The time of one is taken to be a fixed part,
 * a part for each row, a part for each row of a prompt and token before it, a part for each token
 * that a chunk of a prompt reads before itself, however few rows it has, and a part for each token
 * of context of those with one row. The first and the fourth are lost in small steps; where they
 * are large, a chunk has more rows than its cost allows, see price_least().
 *
 * Which rows a token is computed beside changes no bit of it, so this may follow a clock. The
 * figures are an input of decisions that are pure. Belongs to the owner of the scheduler.
 */
#pragma once

#include <stdint.h>

#define PRICE_DEAREST 64u /* rows that one may cost at most */
#define PRICE_LEAST                                                                                \
    0.05 /* the longest prompt's last row is dearer by this, or all cost the same:                 \
          * steps would be more even by less than they are by chance, and trying                   \
          * out what rows cost makes some of them half as long */
#define PRICE_LOSS    0.01 /* of the speed at which a prompt is read, that short steps may cost */
#define PRICE_ROWS    32u  /* a chunk is not made smaller for its cost: devices compute tiles */
#define PRICE_SUMS    6u   /* see price.c */
#define PRICE_EXPLORE 32u  /* every so many steps one has half, to learn from */
#define PRICE_SIZES   6u   /* kinds of steps by their rows, */
#define PRICE_DEPTHS  6u   /* and by what comes before these */
#define PRICE_KINDS   (PRICE_SIZES * PRICE_DEPTHS)
#define PRICE_KEPT    40u /* steps of each kind that are learned from */

/* In rows at the beginning of a prompt; all 0 is not known: tokens are shared. */
struct price {
    double deeper; /* a row, for each token before it */
    double fixed;  /* a step */
    double read;   /* a chunk, for each token before it */
};

/* A step that has landed. */
struct price_kept {
    float rows, context, read, deep, us;
};

struct prices {
    struct price_kept kept[PRICE_KINDS][PRICE_KEPT];
    uint32_t count[PRICE_KINDS]; /* of each kind, ever, round */
    double usual;                /* difference from what is expected, a share of it */
    double us[PRICE_SUMS - 1];   /* the figures, in the order of the sums; 0 = not known */
    uint32_t landed, planned;    /* steps, ever, round */
    uint32_t longest;            /* tokens of a request, prompt and answer; set once */
    struct price now;
};

/* What a step had. */
struct price_step {
    uint32_t rows;
    uint64_t context; /* of those with one row */
    uint64_t read;    /* tokens before the end of each chunk, in all */
    double deep;      /* tokens before each row of a chunk, in all */
};

/* A step took so long. */
void prices_landed(struct prices *p, const struct price_step *step, uint64_t took_us);
/* What the next step may cost when it has so many rows at most. */
uint32_t prices_budget(struct prices *p, uint32_t rows);

/* The cost of a row with so many tokens before it. */
double price_row(const struct price *p, double at);
/* The cost of the next rows of a prompt of which `at` tokens are read; 0 rows cost nothing, and
 * more rows more. */
uint32_t price_of(const struct price *p, uint32_t at, uint32_t rows);
/* The most of `rows` that cost no more than that. */
uint32_t price_rows(const struct price *p, uint32_t at, uint32_t cost, uint32_t rows);
/* The fewest of `most` rows in a step that read the prompt there nearly as fast as `most` do; 0
 * where no row is dearer than another. */
uint32_t price_least(const struct price *p, uint32_t at, uint32_t most);

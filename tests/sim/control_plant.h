/*
 * The server that sim_control.c controls, modelled: a pool of blocks, decodes first, prompts in
 * chunks under the token budget, last come first preempted with recomputation, a queue deadline,
 * limits that lower by draining. Deterministic, in virtual time; the owner moves the clock.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "server/engine/params.h"
#include "server/engine/rates.h"

#define QUEUE   4096
#define RUNNING 128
#define BLOCK   16

struct sim_request {
    uint32_t prompt, want; /* tokens */
    uint32_t made;         /* generated */
    uint32_t held;         /* computed and in the cache */
    uint32_t taken;        /* blocks */
    uint32_t id;           /* the owner's */
    uint32_t best;         /* most that was ever computed: less is recomputed */
    double since_s;        /* it arrived */
    bool began;            /* it ran before: never refused for its wait */
    bool over;             /* it has ended, and the step that is planned now knows */
};

struct sim_plant {
    uint64_t rng;
    uint32_t blocks, free, seqs, tokens, ceiling_seqs, ceiling_tokens;
    struct sim_request queue[QUEUE];
    uint32_t head, queued;
    struct sim_request run[RUNNING];
    uint32_t running;
    double now_s, arrivals_s, gap_s, start_s;
    double preemptions, recomputed, generated, prompts, finished, steps;
    double itl[4];
    double deadline_s, own_deadline_s; /* of the queue, 0 = none; as it was started */
    double own_reserve;
    double reserve; /* share of the pool to be free after an admission, 0 = a hundredth */
    double refused;
    double base_s, row_s; /* a step takes base + rows x row */
    /* Two steps in flight: a step is planned when the one before begins or, if that is guessed to
     * be long, at its end (rates.c); who came since then is seen one step later. */
    bool ahead;
    struct {
        double seconds;
        uint32_t rows;
    } flight, landed; /* the step before, and the one before that */
    /* Whether a prompt has all its blocks when it is admitted, as in evenkeel-server; else it takes
     * them chunk by chunk, as in vLLM, and several may be admitted into the same room. */
    bool whole;
    double begun_s, planned_s;                           /* the step before, and this one */
    void (*told)(void *ctx, const struct sim_request *); /* a token was made; NULL: nobody asks */
    void *ctx;
    /* load */
    double rate;
    uint32_t prompt_most, out_most;
};

static inline uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static inline double uniform(uint64_t *s, double low, double high)
{
    return low + (high - low) * (double)(next(s) >> 11) / 9007199254740992.0;
}

static inline uint32_t upto(uint64_t *s, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(next(s) % (high - low + 1));
}

static inline uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + BLOCK - 1) / BLOCK;
}

static inline void arrive(struct sim_plant *p)
{
    while (p->rate > 0 && p->arrivals_s <= p->now_s) {
        if (p->queued < QUEUE) {
            struct sim_request r = {.prompt = upto(&p->rng, 8, p->prompt_most),
                                    .want = upto(&p->rng, 8, p->out_most),
                                    .since_s = p->arrivals_s};
            p->queue[(p->head + p->queued++) % QUEUE] = r;
        }
        p->arrivals_s += -log(uniform(&p->rng, 1e-9, 1)) / p->rate;
    }
    if (p->arrivals_s < p->now_s)
        p->arrivals_s = p->now_s;
}

/* The last one in loses its blocks and goes to the head of the queue. */
static inline void preempt_last(struct sim_plant *p)
{
    struct sim_request r = p->run[--p->running];
    p->free += r.taken;
    r.held = r.taken = 0;
    r.began = true;
    p->head = (p->head + QUEUE - 1) % QUEUE;
    p->queue[p->head] = r;
    p->queued++;
    p->preemptions++;
}

/* Takes blocks so that request i can hold `held` tokens. False if i itself had to go. */
static inline bool grow(struct sim_plant *p, uint32_t i, uint32_t held)
{
    uint32_t most = blocks_of(held), need = most > p->run[i].taken ? most - p->run[i].taken : 0;
    while (p->free < need) {
        uint32_t last = p->running - 1;
        preempt_last(p);
        if (last == i)
            return false;
    }
    p->free -= need;
    p->run[i].taken += need;
    return true;
}

/* Who waited too long without ever running is refused; the queue is in order of arrival but for the
 * preempted ones at its head. */
static inline void refuse(struct sim_plant *p)
{
    uint32_t kept = 0;
    while (kept < p->queued && p->queue[(p->head + kept) % QUEUE].began)
        kept++;
    while (p->deadline_s > 0 && kept < p->queued) {
        uint32_t at = (p->head + kept) % QUEUE;
        if (p->now_s - p->queue[at].since_s <= p->deadline_s)
            return;
        for (uint32_t i = kept; i > 0; i--) /* the preempted ones move up */
            p->queue[(p->head + i) % QUEUE] = p->queue[(p->head + i - 1) % QUEUE];
        p->head = (p->head + 1) % QUEUE;
        p->queued--;
        p->refused++;
    }
}

static inline double oldest_s(const struct sim_plant *p)
{
    return p->queued ? p->now_s - p->queue[p->head].since_s : 0;
}

/* The first in line, if its whole prompt fits beside the others with the reserve to spare, or for
 * one that was preempted a block for each of them. */
static inline bool admit(struct sim_plant *p)
{
    struct sim_request *r = &p->queue[p->head];
    if (!p->queued || p->running >= p->seqs || p->running >= RUNNING)
        return false;
    if (p->ahead && r->since_s > p->planned_s)
        return false;
    uint32_t need = blocks_of(r->prompt + r->made), spare = 0;
    if (p->running)
        spare = p->reserve > 0 ? (uint32_t)(p->reserve * p->blocks) : p->blocks / 100;
    if (r->began && p->whole) /* it was preempted: a block for each that runs will do */
        spare = p->running;
    if (need + spare > p->free)
        return false;
    if (p->whole) {
        p->free -= need;
        r->taken = need;
    }
    p->run[p->running++] = *r;
    p->head = (p->head + 1) % QUEUE;
    p->queued--;
    return true;
}

static inline void finish(struct sim_plant *p, uint32_t i)
{
    p->free += p->run[i].taken;
    memmove(&p->run[i], &p->run[i + 1], (p->running - i - 1) * sizeof(p->run[0]));
    p->running--;
    p->finished++;
}

/* So many more tokens of a request are computed; behind the last one that is known comes a new one.
 */
static inline void compute(struct sim_plant *p, struct sim_request *r, uint32_t rows)
{
    uint32_t again = r->best > r->held ? r->best - r->held : 0;
    again = again < rows ? again : rows;
    p->recomputed += again;
    r->held += rows;
    if (r->held > r->best)
        r->best = r->held;
    if (r->held < r->prompt + r->made)
        return;
    r->made++;
    p->generated++;
    if (p->told)
        p->told(p->ctx, r);
}

static inline void count_itl(struct sim_plant *p, double seconds, uint32_t tokens)
{
    static const double bounds[] = {0.025, 0.1, 0.5, HUGE_VAL};
    for (int b = 0; b < 4; b++)
        p->itl[b] += seconds <= bounds[b] ? tokens : 0;
}

/* What of a prompt, or of one that is computed again, fits into the step; 0 when it had to go. */
static inline uint32_t read_prompt(struct sim_plant *p, uint32_t i, uint32_t budget)
{
    struct sim_request *r = &p->run[i];
    uint32_t left = r->prompt + r->made - r->held, chunk = left < budget ? left : budget;
    uint32_t fresh = r->held + chunk > r->best ? r->held + chunk - r->best : 0;
    if (!grow(p, i, r->held + chunk))
        return 0;
    p->prompts += fresh < chunk ? fresh : chunk;
    compute(p, r, chunk);
    return chunk;
}

/* How long the step in flight takes, guessed low by the last one. */
static inline double guess_s(const struct sim_plant *p)
{
    uint32_t most = p->landed.rows, rows = p->flight.rows < most ? p->flight.rows : most;

    return most > 0 ? p->landed.seconds * rows / most : 0;
}

/* Whether the one behind it is planned when it is done. */
static inline bool plans_when_done(const struct sim_plant *p)
{
    return guess_s(p) * 1e6 >= GAP_PART * ENGINE_GAP_CPU_US;
}

/* When the step that begins now was planned. */
static inline double plan_time_s(const struct sim_plant *p)
{
    double takes_s = guess_s(p);

    if (plans_when_done(p))
        return p->now_s;
    if (p->begun_s >= p->now_s || takes_s * 1e6 < LATE_LEAST_US)
        return p->begun_s;
    return p->begun_s + takes_s - takes_s / LATE_PART;
}

/* One engine step; returns how long it takes. */
static inline double engine_step(struct sim_plant *p)
{
    bool decoded[RUNNING] = {false};
    uint32_t budget = p->tokens, decodes = 0;
    double begin_s = p->now_s;
    p->planned_s = plan_time_s(p);
    for (uint32_t i = 0; i < p->running && budget; i++) {
        struct sim_request *r = &p->run[i];
        bool over = r->made >= r->want; /* not yet known when this step was planned */
        if (over || !r->made || r->prompt + r->made != r->held + 1 || !grow(p, i, r->held + 1))
            continue;
        compute(p, &p->run[i], 1);
        decoded[i] = true;
        budget--;
        decodes++;
    }
    while (!p->whole && admit(p))
        ;
    for (uint32_t i = 0; i < p->running && budget; i++)
        if (!decoded[i] && p->run[i].made < p->run[i].want)
            budget -= read_prompt(p, i, budget);
    while (p->whole && budget && admit(p))
        budget -= read_prompt(p, p->running - 1, budget);
    p->begun_s = begin_s;
    p->steps++;
    uint32_t rows = p->tokens - budget;
    double seconds = rows ? p->base_s + p->row_s * rows : 0.1;
    p->landed = p->flight;
    p->flight.seconds = seconds;
    p->flight.rows = rows;
    for (uint32_t i = p->running; i-- > 0;) {
        struct sim_request *r = &p->run[i];
        if (r->made >= r->want && (!p->ahead || r->over || plans_when_done(p)))
            finish(p, i);
        else
            r->over = r->made >= r->want;
    }
    count_itl(p, seconds, decodes);
    if (decodes)
        p->gap_s = seconds;
    return seconds;
}

static inline void run_until(struct sim_plant *p, double until_s)
{
    while (p->now_s < until_s) {
        arrive(p);
        refuse(p);
        p->now_s += engine_step(p);
    }
}

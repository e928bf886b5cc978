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

#define QUEUE   4096
#define RUNNING 128
#define BLOCK   16

struct request {
    uint32_t prompt, want; /* tokens */
    uint32_t made;         /* generated */
    uint32_t held;         /* computed and in the cache */
    uint32_t best;         /* most that was ever computed: less is recomputed */
    double since_s;        /* it arrived */
    bool began;            /* it ran before: never refused for its wait */
};

struct plant {
    uint64_t rng;
    uint32_t blocks, free, seqs, tokens, ceiling_seqs, ceiling_tokens;
    struct request queue[QUEUE];
    uint32_t head, queued;
    struct request run[RUNNING];
    uint32_t running;
    double now_s, arrivals_s, gap_s, start_s;
    double preemptions, recomputed, generated, prompts, finished, steps;
    double itl[4];
    double deadline_s, own_deadline_s; /* of the queue, 0 = none; as it was started */
    double refused;
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

static inline void arrive(struct plant *p)
{
    while (p->rate > 0 && p->arrivals_s <= p->now_s) {
        if (p->queued < QUEUE) {
            struct request r = {.prompt = upto(&p->rng, 8, p->prompt_most),
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
static inline void preempt_last(struct plant *p)
{
    struct request r = p->run[--p->running];
    p->free += blocks_of(r.held);
    r.held = 0;
    r.began = true;
    p->head = (p->head + QUEUE - 1) % QUEUE;
    p->queue[p->head] = r;
    p->queued++;
    p->preemptions++;
}

/* Takes blocks so that request i holds `held` tokens. False if i itself had to go. */
static inline bool grow(struct plant *p, uint32_t i, uint32_t held)
{
    uint32_t need = blocks_of(held) - blocks_of(p->run[i].held);
    while (p->free < need) {
        uint32_t last = p->running - 1;
        preempt_last(p);
        if (last == i)
            return false;
    }
    p->free -= need;
    p->run[i].held = held;
    if (held > p->run[i].best)
        p->run[i].best = held;
    return true;
}

/* Who waited too long without ever running is refused; the queue is in order of arrival but for the
 * preempted ones at its head. */
static inline void refuse(struct plant *p)
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

static inline double oldest_s(const struct plant *p)
{
    return p->queued ? p->now_s - p->queue[p->head].since_s : 0;
}

static inline void admit(struct plant *p)
{
    while (p->queued && p->running < p->seqs && p->running < RUNNING) {
        struct request *r = &p->queue[p->head];
        if (blocks_of(r->prompt + r->made) + p->blocks / 100 > p->free)
            break;
        p->run[p->running++] = *r;
        p->head = (p->head + 1) % QUEUE;
        p->queued--;
    }
}

static inline void finish(struct plant *p, uint32_t i)
{
    p->free += blocks_of(p->run[i].held);
    memmove(&p->run[i], &p->run[i + 1], (p->running - i - 1) * sizeof(p->run[0]));
    p->running--;
    p->finished++;
}

static inline void count_itl(struct plant *p, double seconds, uint32_t tokens)
{
    static const double bounds[] = {0.025, 0.1, 0.5, HUGE_VAL};
    for (int b = 0; b < 4; b++)
        p->itl[b] += seconds <= bounds[b] ? tokens : 0;
}

/* One engine step; returns how long it takes. */
static inline double engine_step(struct plant *p)
{
    uint32_t budget = p->tokens, decodes = 0, work = 0;
    for (uint32_t i = 0; i < p->running && budget; i++) {
        struct request *r = &p->run[i];
        if (r->held < r->prompt + r->made || !grow(p, i, r->held + 1))
            continue;
        p->run[i].made++;
        p->generated++;
        budget--;
        decodes++;
    }
    admit(p);
    for (uint32_t i = 0; i < p->running && budget; i++) {
        uint32_t have = p->run[i].held, all = p->run[i].prompt + p->run[i].made;
        if (have >= all)
            continue;
        uint32_t chunk = all - have < budget ? all - have : budget;
        uint32_t again = p->run[i].best > have ? p->run[i].best - have : 0;
        if (!grow(p, i, have + chunk))
            continue;
        again = again < chunk ? again : chunk;
        p->recomputed += again;
        p->prompts += chunk - again;
        budget -= chunk;
        work += chunk;
    }
    for (uint32_t i = p->running; i-- > 0;) {
        if (p->run[i].made >= p->run[i].want)
            finish(p, i);
    }
    p->steps++;
    double seconds = decodes + work ? 0.02 + 0.00006 * (decodes + work) : 0.1;
    count_itl(p, seconds, decodes);
    if (decodes)
        p->gap_s = seconds;
    return seconds;
}

static inline void run_until(struct plant *p, double until_s)
{
    while (p->now_s < until_s) {
        arrive(p);
        refuse(p);
        p->now_s += engine_step(p);
    }
}

/*
 * Steps in flight: what was planned into each, kept from the plan until its result is taken or it
 * is taken back. A ring in order of planning; plan.c and pool.c begin one, results.c ends it.
 * Everybody else reads. Part of the scheduler's state; engine thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SCHED_DEPTH 2u

struct flight_seq {
    uint32_t entry, slot;
    uint64_t number, lease;
    uint32_t first, rows; /* positions */
    uint32_t scores;      /* of them, the last ones before a sampled one */
    uint32_t sure;        /* tokens in the cache when the step is taken back */
    bool sample, set, hidden;
    bool put_off; /* what it samples is dropped, see sched_put_off() */
};

struct flight {
    uint64_t id; /* of the step, 0 = none */
    uint64_t planned_us;
    uint32_t seqs, rows, prefill_rows, copies;
    uint64_t context; /* tokens that those with one row have after it */
    uint64_t read;    /* tokens that those with more have after it */
    double deep;      /* tokens before each of their rows, in all */
    bool full;        /* it took all of the budget */
    bool spread;      /* that was what is free beside the answers, see pace_spare() */
    bool shared;      /* it was made small for other tenants, see pace_shared() */
    bool untimed;     /* its result lay there when it was asked for: it came some time before */
    struct flight_seq *seq; /* [max_seqs] */
};

struct flights {
    struct flight at[SCHED_DEPTH];
    uint32_t first;     /* the oldest in flight is at[first] */
    uint32_t count;     /* in flight */
    uint64_t next_step; /* id of the next one, never used twice */
};

/* 0 or -ENOMEM. */
int flights_init(struct flights *f, uint32_t max_seqs);
void flights_done(struct flights *f);

/* Where in at[] the one is that `after` others in flight are older than. */
static inline uint32_t flights_place(const struct flights *f, uint32_t after)
{
    return (f->first + after) % SCHED_DEPTH;
}
/* Of the newest one; one is in flight. */
static inline uint32_t flights_newest(const struct flights *f)
{
    return flights_place(f, f->count - 1);
}

/* One more is in flight, with the next id and no sequence yet. There is a place for it. */
struct flight *flights_begin(struct flights *f, uint64_t now_us);
/* The oldest one has a result; the newest one is taken back. */
void flights_land(struct flights *f);
void flights_cancel(struct flights *f);

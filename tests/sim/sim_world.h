/*
 * The world of sim_engine.c: a scheduler on the null backend, the requests that live in it, and the
 * numbers that everything is drawn from. Header only, as sim_form.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/sched.h"
#include "tests/sim/null_backend.h"
#include "tests/sim/sim_form.h"

#define LIVE_MOST   256u
#define PROMPT_MOST 160u
#define BASES       6u
#define NAMES       256u
#define SALTS       2u /* that requests share; others are used once */
#define TENANTS     5u

struct sim {
    uint64_t rng, seed, now_us;
    struct engine_params p;
    struct limits limits;
    struct sched *sched;
    struct ek_device *device;
    struct ek_step *steps[SCHED_DEPTH];
    struct ek_result *result;
    size_t result_bytes;
    struct request *live[LIVE_MOST];
    struct {
        uint32_t out, turns; /* tokens, and turns of decoding without one more */
    } pace[LIVE_MOST];
    uint32_t live_count;
    int32_t base[BASES][PROMPT_MOST];
    uint32_t arrive_ppm, abort_ppm, limit_ppm, fail_ppm, tight_ppm, lose_ppm, vocab;
    uint64_t submitted, ended[REQ_FIN_KINDS], steps_done, idle_turns, lost;
    uint64_t first_number, stuck; /* who is first in line, and for how many steps without a token */
    uint32_t first_out, running_before;
    struct price dear; /* what rows cost, instead of what is learned */
    uint32_t knee;     /* rows in the time of answers alone, likewise; 0 = not known */
    bool spread;       /* the next step has no more than those */
    bool shares;       /* several tenants get small steps, of so many rows with the answers' */
    bool several;      /* at least two that have keys have some now */
    uint32_t answers;  /* rows that those running want for answers in the next step */
    uint32_t few;
    bool quiet; /* no step fails, no limit moves, no mask is late: */
    struct {
        uint64_t number;      /* who is the next to be admitted, 0 = not looked at */
        uint32_t most, steps; /* rows to go of those that ran then, and steps since */
        bool large;           /* it needs more than its tenant's part of the blocks */
    } head;
    uint64_t waited_large; /* such ones that waited */
    bool late_ok, caching_moves, plans_late;
    struct {
        struct prefix_name name, parent;
    } seen[NAMES];    /* by the name's low bits */
    uint32_t copy_us; /* of each block that is copied */
    struct sim_form form;
    uint32_t tenants, price[TENANTS];
    uint64_t served[TENANTS]; /* counters when the newest step was planned, */
    uint32_t lent;            /* and rows that the first in line had not had back */
    struct {
        bool on;            /* both have waited since: */
        uint64_t mine, its; /* what they had been served then */
    } pair[TENANTS][TENANTS];
    const char *wrong;
};

static inline uint64_t draw(struct sim *s)
{
    uint64_t z = s->rng += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline uint32_t pick(struct sim *s, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(draw(s) % (to - from + 1));
}

static inline bool chance(struct sim *s, uint32_t ppm)
{
    return draw(s) % 1000000u < ppm;
}

static inline void fail(struct sim *s, const char *wrong)
{
    if (!s->wrong)
        s->wrong = wrong;
}

/*
 * Rates of the device and what follows from them (rates.h): results.c tells of each step, admit.c,
 * swap.c, offload.c and plan.c ask.
 */
#include "server/engine/rates.h"

#include "server/engine/flight.h"

#define RATE_WEIGHT 0.2 /* of a new sample in the measured rates */

static void mix_rate(double *rate, double sample)
{
    *rate = *rate == 0 ? sample : *rate + RATE_WEIGHT * (sample - *rate);
}

/* A step with room left would have taken more prompts in nearly the same time, had there been any:
 * its rate is a lower bound. */
static void measure_prefill(struct rates *r, double rate, bool full)
{
    if (full && !r->prefill_known)
        r->prefill = rate;
    else if (full || rate > r->prefill)
        mix_rate(&r->prefill, rate);
    r->prefill_known |= full;
}

void rates_landed(struct rates *r, const struct flight *f, uint64_t copy_us, uint64_t now_us)
{
    if (f->copies > 0 && copy_us > 0)
        mix_rate(&r->copy, f->copies * 1e6 / (double)copy_us);
    uint64_t from = f->planned_us > r->applied_us ? f->planned_us : r->applied_us;
    bool timed = !f->untimed && (!r->late || f->planned_us >= r->applied_us);

    r->applied_us = now_us;
    r->late = f->untimed;
    if (!timed)
        return;
    r->landed_took_us = now_us > from ? now_us - from : 0;
    r->landed_rows = f->rows;
    if (f->copies == 0) {
        const bool judged = f->shared && r->pace.line.known;
        if (f->shared)
            pace_shared_landed(&r->pace, f->rows, f->context, r->landed_took_us);
        if (!judged)
            pace_landed(&r->pace, f->rows, f->context, r->landed_took_us);
        if (f->prefill_rows == 0)
            pace_answered(&r->pace, f->rows, f->context, r->landed_took_us);
        else if (f->spread)
            pace_spread(&r->pace, f->prefill_rows, f->context, r->landed_took_us);
        prices_landed(&r->prices, &(struct price_step){f->rows, f->context, f->read, f->deep},
                      r->landed_took_us);
    }
    if (f->prefill_rows == 0 || now_us <= from)
        return;
    measure_prefill(r, f->prefill_rows * 1e6 / (double)(now_us - from), f->full);
}

bool rates_copies_pay(const struct rates *r, uint32_t copies, uint32_t tokens)
{
    return r->copy <= 0 || r->prefill <= 0 || copies / r->copy <= tokens / r->prefill;
}

/* The time of a step, guessed low: what comes of it early costs nothing, what comes late leaves the
 * device idle. A step with less rows than the last one takes at least its part of that one's time,
 * one with more takes as long at least; and prompts are read no faster than full steps were. */
static uint64_t guess_us(const struct rates *r, const struct flight *f)
{
    uint32_t rows = f->rows < r->landed_rows ? f->rows : r->landed_rows;
    uint64_t least = r->landed_took_us * rows / r->landed_rows;
    double reads = r->prefill_known ? f->prefill_rows * 1e6 / r->prefill : 0;

    return reads > (double)least ? (uint64_t)reads : least;
}

/* Whether the device may as well wait between this step and the next: who comes meanwhile then
 * waits for no step that was planned without it. */
static bool gap_is_small(const struct rates *r, const struct flight *f, uint64_t takes_us)
{
    uint32_t part = f->shared && f->prefill_rows > 0 ? GAP_SHARED_PART : GAP_PART;

    return r->gap_us != 0 && takes_us >= (uint64_t)part * r->gap_us;
}

uint64_t rates_plan_after(const struct rates *r, const struct flight *f)
{
    if (r->landed_rows == 0)
        return UINT64_MAX;
    uint64_t begun_us = f->planned_us > r->applied_us ? f->planned_us : r->applied_us;
    uint64_t takes_us = guess_us(r, f);

    if (gap_is_small(r, f, takes_us))
        return UINT64_MAX;
    return takes_us < LATE_LEAST_US ? 0 : begun_us + takes_us - takes_us / LATE_PART;
}

/*
 * The meter of work whose size is chosen outside. A loop over what a client or a
 * file of a model sent gets a `struct ek_work *` and pays for each round before it goes on:
 *
 *     if (!ek_work_pay(w, 1))
 *         return ek_work_refuse(w, fault, "messages");
 *
 * A unit is about what a step costs that touches one cache line: 2 to 20 ns. The meter says stop
 * when the fuel is spent (the same input always stops at the same unit, whatever the machine does),
 * when the deadline is past, or when the result is not wanted any more. Once it has said stop it
 * says nothing else, so a loop may go on to its end without looking at every answer, as long as
 * each round is cheap and the result is thrown away.
 *
 * Fuel bounds the work; the deadline bounds the time on a machine that is busy with others. Clock
 * and cancellation are looked at every EK_WORK_LOOK units only.
 *
 * Not shared between threads, but for what `cancelled` points to. A NULL meter pays for everything:
 * it is for what the program itself wrote, never for what came from outside (tools/meter.sh).
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;

#define EK_WORK_LOOK 16384u

struct ek_work {
    uint64_t fuel;                /* units left */
    uint64_t used;                /* units paid */
    uint64_t deadline_us;         /* by ek_now_us(), 0 = none */
    const atomic_bool *cancelled; /* NULL = the work cannot be cancelled */
    uint64_t look;                /* `used` at which clock and cancellation are looked at next */
    int stopped;                  /* 0, -E2BIG (fuel), -ETIMEDOUT or -ECANCELED */
};

/* Fuel for input of so many bytes: `each` units a byte above `base`, no overflow. */
uint64_t ek_work_fuel(uint64_t base, uint64_t bytes, uint64_t each);
/* Not to be called: pays when there is more to do than to subtract. */
bool ek_work_pay_slowly(struct ek_work *w, uint64_t units);

/* Pays; false = stop. */
static inline bool ek_work_pay(struct ek_work *w, uint64_t units)
{
    if (!w)
        return true;
    if (w->stopped != 0 || units > w->fuel || w->used + units >= w->look)
        return ek_work_pay_slowly(w, units);
    w->fuel -= units;
    w->used += units;
    return true;
}

/* Whether it has said stop. */
static inline bool ek_work_stopped(const struct ek_work *w)
{
    return w && w->stopped != 0;
}

/* Why it stopped, as a sentence about `field` in the fault: -EBADMSG for spent fuel, -ETIMEDOUT,
 * -ECANCELED. Only after it said stop. */
int ek_work_refuse(const struct ek_work *w, struct ek_fault *fault, const char *field);

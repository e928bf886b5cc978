/* The meter of work (work.h). Called in each loop over what a client or a model's file sent. */
#include "common/work.h"

#include <errno.h>

#include "common/clock.h"
#include "common/err.h"

uint64_t ek_work_fuel(uint64_t base, uint64_t bytes, uint64_t each)
{
    uint64_t fuel;

    if (__builtin_mul_overflow(bytes, each, &fuel) || __builtin_add_overflow(fuel, base, &fuel))
        return UINT64_MAX;
    return fuel;
}

bool ek_work_pay_slowly(struct ek_work *w, uint64_t units)
{
    if (w->stopped != 0)
        return false;
    if (units > w->fuel) {
        w->fuel = 0;
        w->stopped = -E2BIG;
        return false;
    }
    w->fuel -= units;
    w->used += units;
    if (w->used >= w->look) {
        w->look = w->used + EK_WORK_LOOK;
        if (w->cancelled && atomic_load_explicit(w->cancelled, memory_order_relaxed))
            w->stopped = -ECANCELED;
        else if (w->deadline_us != 0 && ek_now_us() >= w->deadline_us)
            w->stopped = -ETIMEDOUT;
    }
    return w->stopped == 0;
}

int ek_work_refuse(const struct ek_work *w, struct ek_fault *fault, const char *field)
{
    switch (w->stopped) {
    case -ETIMEDOUT:
        ek_fault_write(fault, field, "it took longer than it may while the server is busy");
        return -ETIMEDOUT;
    case -ECANCELED:
        ek_fault_write(fault, field, "nobody waits for it any more");
        return -ECANCELED;
    }
    return ek_fault_set(fault, field, "it takes more work than is offered; make it smaller");
}

/* The ring of steps in flight (flight.h). Called by the scheduler's files. */
#include "server/engine/flight.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int flights_init(struct flights *f, uint32_t max_seqs)
{
    f->next_step = 1;
    for (uint32_t i = 0; i < SCHED_DEPTH; i++) {
        f->at[i].seq = calloc(max_seqs, sizeof(*f->at[i].seq));
        if (!f->at[i].seq)
            return -ENOMEM;
    }
    return 0;
}

void flights_done(struct flights *f)
{
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        free(f->at[i].seq);
}

struct flight *flights_begin(struct flights *f, uint64_t now_us)
{
    assert(f->count < SCHED_DEPTH);
    struct flight *one = &f->at[flights_place(f, f->count++)];

    *one = (struct flight){.id = f->next_step++, .planned_us = now_us, .seq = one->seq};
    return one;
}

void flights_land(struct flights *f)
{
    assert(f->count > 0);
    f->at[f->first].id = 0;
    f->first = flights_place(f, 1);
    f->count--;
}

void flights_cancel(struct flights *f)
{
    assert(f->count > 0);
    f->at[flights_newest(f)].id = 0;
    f->count--;
}

/*
 * Waits for messages between nodes without using up a core (table.h). Called by the other files of
 * the module.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/clock.h"
#include "kernels/mpi/table.h"

#define AWAKE_US   60u     /* an answer in the middle of a step is there by then */
#define SHARE      8u      /* later it is looked for after this part of the time waited */
#define PAUSE_US   1000u   /* the longest, for the first second */
#define IDLE_US    4000u   /* and after that: a core for 1 % */
#define STOPPED_US 200000u /* a pause that took longer: this process was stopped as a whole */

static void sleep_us(uint64_t us)
{
    static _Thread_local bool sharp;
    const struct timespec t = {.tv_nsec = (long)us * 1000};

    if (!sharp) /* the system's slack would double short pauses */
        (void)prctl(PR_SET_TIMERSLACK, 1000);
    sharp = true;
    (void)nanosleep(&t, NULL);
}

int ek_mpi_pause(struct ek_mpi_wait *w)
{
    const uint64_t now = ek_now_us(), spent = w->at_us > 0 ? now - w->at_us : 0;
    const uint64_t most = w->waited_us < EK_US_PER_S ? PAUSE_US : IDLE_US;
    const uint64_t pause = w->waited_us / SHARE;

    w->at_us = now;
    w->waited_us += spent < STOPPED_US ? spent : STOPPED_US;
    if (w->cut && atomic_load(w->cut))
        return -ECANCELED;
    if (w->limit_us > 0 && w->waited_us >= w->limit_us)
        return -ETIMEDOUT;
    if (w->waited_us < AWAKE_US)
        (void)sched_yield();
    else
        sleep_us(pause < most ? pause : most);
    return 0;
}

int ek_mpi_move(const struct ek_mpi *mpi, void *self, struct ek_mpi_message *m, uint32_t count,
                struct ek_mpi_wait *w, uint32_t *ret_which)
{
    uint32_t done = 0;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < count; i++) {
        *ret_which = i;
        r = mpi->begin(self, &m[i]);
    }
    while (r == 0 && done < count) {
        *ret_which = done;
        r = mpi->test(self, &m[done]);
        if (r == 1) {
            done++;
            w->waited_us = w->at_us = 0; /* the limit is for a node that does nothing */
            r = 0;
        } else if (r == 0) {
            r = ek_mpi_pause(w);
        }
    }
    for (uint32_t i = 0; r < 0 && i < count; i++)
        if (m[i].request)
            mpi->drop(self, &m[i]);
    return r;
}

int ek_mpi_tell(const struct ek_mpi *mpi, void *self, struct ek_mpi_copies *copies,
                const struct ek_mpi_message *m, struct ek_mpi_wait *w)
{
    struct ek_mpi_message *to = &copies->m[copies->begun++ % EK_MPI_COPIES];
    int r = 0;

    while (to->request && r == 0) {
        r = mpi->test(self, to);
        if (r == 0)
            r = ek_mpi_pause(w);
    }
    if (r < 0)
        return r;
    char *copy = realloc(to->data, m->width);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, m->data, m->width);
    *to = *m;
    to->data = copy;
    return mpi->begin(self, to);
}

void ek_mpi_forget(const struct ek_mpi *mpi, void *self, struct ek_mpi_copies *copies)
{
    for (uint32_t i = 0; i < EK_MPI_COPIES; i++) {
        if (copies->m[i].request)
            mpi->drop(self, &copies->m[i]);
        free(copies->m[i].data);
    }
    *copies = (struct ek_mpi_copies){.begun = 0};
}

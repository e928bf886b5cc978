/*
 * The CPU backend with steps that take as long as a cost model says, when that is longer than
 * computing them: a plug-in that evenkeel-server loads as its CUDA one. So the real server serves
 * the embedded model at the pace of a larger device, steadily enough to be compared with a
 * simulation (tests/bench/sim_real.py).
 *
 *   PACED_BASE_US, PACED_ROW_US, PACED_CONTEXT_US   a step takes base + rows x row + tokens of its
 *                                                   sequences' contexts x context; all 0: no pace
 *   PACED_COPY_US                                   and this for each block from or to the host
 *   PACED_LOG=FILE   a line for each step when the device is closed: rows, context tokens, copies,
 *                    when it was given to the device and when its result was there, in microseconds
 *
 * Thread: the engine's alone.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/registry.h"

#define STEPS_MOST (1u << 20) /* of a log */
#define FLYING     4u         /* more than there are steps in flight */

struct paced_step {
    uint64_t id, context;
    uint32_t rows, copies;
    double given_us, due_us, done_us;
};

static struct paced {
    const struct ek_backend *cpu;
    struct ek_backend table;
    double base_us, row_us, context_us, copy_us;
    double free_us; /* when the device has done all it was given */
    struct paced_step flying[FLYING];
    struct paced_step *log;
    uint32_t logged;
} paced;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int paced_forward(struct ek_device *d, const struct ek_step *step)
{
    struct paced_step s = {
        .id = step->id, .rows = step->rows, .copies = step->copies, .given_us = now_us()};

    for (uint32_t i = 0; i < step->seqs; i++)
        s.context += ek_step_seqs(step)[i].context;
    double begin = paced.free_us > s.given_us ? paced.free_us : s.given_us;
    s.due_us = begin + paced.base_us + s.rows * paced.row_us +
               (double)s.context * paced.context_us + s.copies * paced.copy_us;
    paced.free_us = s.due_us;
    paced.flying[step->id % FLYING] = s;
    return paced.cpu->forward(d, step);
}

static void sleep_until(double at_us)
{
    struct timespec t = {.tv_sec = (time_t)(at_us / 1e6)};
    t.tv_nsec = (long)((at_us - (double)t.tv_sec * 1e6) * 1e3);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* The result is not there before its time, also for one who does not wait so long. */
static int paced_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                      size_t bytes, uint64_t timeout_us)
{
    struct paced_step *s = &paced.flying[step_id % FLYING];
    double now = now_us(), until = now + (double)timeout_us;

    if (s->id == step_id && s->due_us > now) {
        sleep_until(s->due_us < until ? s->due_us : until);
        if (s->due_us > until)
            return -ETIMEDOUT;
        now = now_us();
    }
    int r =
        paced.cpu->wait(d, step_id, ret_result, bytes, until > now ? (uint64_t)(until - now) : 1);
    if (r != 0 || s->id != step_id)
        return r;
    if (paced.copy_us > 0)
        ret_result->copy_us = (uint64_t)(s->copies * paced.copy_us);
    s->done_us = now_us();
    if (paced.free_us < s->done_us)
        paced.free_us = s->done_us;
    if (paced.log && paced.logged < STEPS_MOST)
        paced.log[paced.logged++] = *s;
    return 0;
}

static void paced_close(struct ek_device *d)
{
    const char *path = getenv("PACED_LOG");
    FILE *f = paced.logged && path ? fopen(path, "we") : NULL;

    for (uint32_t i = 0; f && i < paced.logged; i++)
        (void)fprintf(f, "%u %llu %u %.0f %.0f\n", paced.log[i].rows,
                      (unsigned long long)paced.log[i].context, paced.log[i].copies,
                      paced.log[i].given_us, paced.log[i].done_us);
    if (f && fclose(f) != 0)
        (void)fprintf(stderr, "paced: %s could not be written\n", path);
    paced.logged = 0;
    paced.cpu->close(d);
}

static double number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : 0;
}

const struct ek_backend *ek_backend_get(uint32_t abi);
__attribute__((visibility("default"))) const struct ek_backend *ek_backend_get(uint32_t abi)
{
    paced.cpu = abi == EK_BACKEND_ABI ? ek_backend_find("cpu", NULL) : NULL;
    if (!paced.cpu)
        return NULL;
    paced.table = *paced.cpu;
    paced.table.forward = paced_forward;
    paced.table.wait = paced_wait;
    paced.table.close = paced_close;
    paced.base_us = number("PACED_BASE_US");
    paced.row_us = number("PACED_ROW_US");
    paced.context_us = number("PACED_CONTEXT_US");
    paced.copy_us = number("PACED_COPY_US");
    if (getenv("PACED_LOG") && !paced.log)
        paced.log = calloc(STEPS_MOST, sizeof(*paced.log)); /* none: no log */
    return &paced.table;
}

/*
 * How long each kernel takes, where a profiler may not read the card's counters: an event behind
 * every launch, so that the time from one to the next is a kernel's, with the gap before it. Kept
 * by kernel and grid, because products of several sizes share kernels.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"

#define EVENTS 2048u /* not looked at yet */
#define CELLS  128u  /* kernels and grids */
#define BEGIN  (CUDA_KERNELS + 1)

struct time_cell {
    int kernel;
    uint32_t x, y;
    uint64_t launches;
    double us;
};

struct cuda_times {
    cu_handle event[EVENTS];
    uint16_t cell[EVENTS];
    uint64_t from, to; /* of the ring */
    struct time_cell cells[CELLS];
    uint32_t count;
};

struct cuda_times *cuda_times_open(struct ek_device *d)
{
    const char *wish = getenv("EVENKEEL_CUDA_TIMES");
    struct cuda_times *t = wish && wish[0] == '1' ? calloc(1, sizeof(*t)) : NULL;

    for (uint32_t i = 0; t && i < EVENTS; i++)
        if (d->cu.event_new(&t->event[i], CU_EVENT_DEFAULT) != CU_OK) {
            while (i-- > 0)
                (void)d->cu.event_free(t->event[i]);
            free(t);
            return NULL;
        }
    return t;
}

static uint16_t cell_of(struct cuda_times *t, int kernel, uint32_t x, uint32_t y)
{
    uint32_t i = 0;

    while (i < t->count &&
           (t->cells[i].kernel != kernel || t->cells[i].x != x || t->cells[i].y != y))
        i++;
    if (i == t->count && t->count < CELLS)
        t->cells[t->count++] = (struct time_cell){.kernel = kernel, .x = x, .y = y};
    return (uint16_t)(i < CELLS ? i : CELLS - 1); /* the last one takes what there is no room for */
}

/* What is done of the ring; the event before a launch stays until that is done, too. */
static void times_collect(struct ek_device *d)
{
    struct cuda_times *t = d->times;
    float ms;

    for (; t->from + 1 < t->to; t->from++) {
        const cu_handle before = t->event[t->from % EVENTS],
                        behind = t->event[(t->from + 1) % EVENTS];
        struct time_cell *c = &t->cells[t->cell[(t->from + 1) % EVENTS]];
        if (d->cu.event_query(behind) != CU_OK)
            return;
        if (c->kernel != BEGIN && d->cu.event_ms(&ms, before, behind) == CU_OK) {
            c->us += (double)ms * 1e3;
            c->launches++;
        }
    }
}

static int times_mark(struct ek_device *d, int kernel, uint32_t x, uint32_t y)
{
    struct cuda_times *t = d->times;
    int r = 0;

    if (!t)
        return 0;
    if (t->to - t->from == EVENTS)
        r = cu_code(d->cu.stream_wait(d->stream));
    if (t->to - t->from > EVENTS / 2)
        times_collect(d);
    if (r < 0)
        return r;
    t->cell[t->to % EVENTS] = cell_of(t, kernel, x, y);
    return cu_code(d->cu.event_record(t->event[t->to++ % EVENTS], d->stream));
}

int cuda_times_begin(struct ek_device *d)
{
    return times_mark(d, BEGIN, 0, 0);
}

int cuda_times_mark(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y)
{
    return times_mark(d, (int)k, x, y);
}

static int more_first(const void *a, const void *b)
{
    const struct time_cell *x = a, *y = b;
    return (x->us < y->us) - (x->us > y->us);
}

static void print(struct ek_device *d)
{
    struct cuda_times *t = d->times;
    double all = 0;
    char name[64];

    for (uint32_t i = 0; i < t->count; i++)
        all += t->cells[i].us;
    qsort(t->cells, t->count, sizeof(t->cells[0]), more_first);
    (void)fprintf(stderr, "%-32s %14s %10s %12s %7s\n", "kernel", "grid", "launches", "us each",
                  "share");
    for (uint32_t i = 0; i < t->count; i++) {
        const struct time_cell *c = &t->cells[i];
        if (c->launches == 0)
            continue;
        (void)snprintf(name, sizeof(name), "cuBLASLt, columns and rows");
        if (c->kernel < CUDA_KERNELS)
            (void)cuda_kernel_of(d, (enum cuda_kernel)c->kernel, name, sizeof(name));
        (void)fprintf(stderr, "%-32s %7u %6u %10llu %12.2f %6.1f%%\n", name, c->x, c->y,
                      (unsigned long long)c->launches, c->us / (double)c->launches,
                      100 * c->us / all);
    }
}

void cuda_times_close(struct ek_device *d)
{
    struct cuda_times *t = d->times;

    if (!t)
        return;
    (void)d->cu.stream_wait(d->stream);
    times_collect(d);
    print(d);
    for (uint32_t i = 0; i < EVENTS; i++)
        (void)d->cu.event_free(t->event[i]);
    free(t);
    d->times = NULL;
}

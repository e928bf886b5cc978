/*
 * What the flight recorder costs.
 *
 *   bench_recorder [REPORT [REPEAT]]
 *
 * Part one writes the records of a step over and over: the time of one. Part two lets an engine
 * decode 64 sequences on the null backend, with a recorder and without one in turns, and compares
 * the time of a step: the median of the differences of neighbours. That has all that the engine
 * does for it, requests too.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/recorder.h"
#include "server/engine/engine.h"
#include "tests/bench/report.h"
#include "tests/sim/null_backend.h"

#define SEQS        64u
#define TOKENS      2048u
#define RECORDS     2000000u
#define REPEAT_MOST 101
#define GOAL_US     2.0

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return v[n / 2];
}

static double records_us(struct ek_recorder *r)
{
    struct ek_recorder_step step = {.rows = SEQS};
    uint64_t from = ek_now_us();
    for (uint32_t i = 0; i < RECORDS; i++) {
        step.id = i;
        ek_recorder_begin(r, &step);
        step.at_us = from;
        ek_recorder_step(r, &step);
    }
    return (double)(ek_now_us() - from) / RECORDS;
}

struct recorder_world {
    pthread_mutex_t lock;
    pthread_cond_t news;
};

static void on_deliver(void *ctx, uint32_t worker)
{
    struct recorder_world *w = ctx;
    (void)worker;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static struct engine_params params_of(struct ek_recorder *r, struct recorder_world *w)
{
    struct engine_params p = {.max_seqs = SEQS,
                              .max_batched_tokens = 512,
                              .max_model_len = TOKENS + 32,
                              .block_size = 16,
                              .blocks = SEQS * (TOKENS / 16 + 4) + 1,
                              .vocab = 997,
                              .depth = 2,
                              .recorder = r,
                              .deliver = on_deliver,
                              .ctx = w};
    p.limits.value[LIMIT_RUNNING_SEQS] = p.limits.ceiling[LIMIT_RUNNING_SEQS] = SEQS;
    p.limits.value[LIMIT_BATCHED_TOKENS] = p.limits.ceiling[LIMIT_BATCHED_TOKENS] = 512;
    p.limits.value[LIMIT_QUEUED_REQS] = p.limits.ceiling[LIMIT_QUEUED_REQS] = SEQS;
    return p;
}

static int submit(struct engine *e, struct request **ret)
{
    int32_t prompt[16];
    for (uint32_t n = 0; n < SEQS; n++) {
        for (int32_t i = 0; i < 16; i++)
            prompt[i] = (int32_t)n + i;
        struct req_ask ask = {.prompt = prompt,
                              .prompt_tokens = 16,
                              .max_new_tokens = TOKENS,
                              .sampling.top_p = 1,
                              .sampling.seed = n,
                              .arrival_us = ek_now_us()};
        ret[n] = request_new(&ask);
        int r = ret[n] ? engine_submit(e, ret[n], NULL, NULL) : -1;
        if (r < 0)
            return r;
    }
    return 0;
}

/* Microseconds of a step. */
static int run_engine(struct ek_recorder *recorder, double *ret_us)
{
    struct recorder_world w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    struct engine_params p = params_of(recorder, &w);
    struct ek_step_ceiling ceiling;
    struct request *all[SEQS] = {0};
    struct engine_stats stats;
    struct ek_device *d = NULL;
    struct engine *e = NULL;
    engine_ceiling(&p, &ceiling);
    const struct null_params np = {ceiling, p.blocks, 0, p.block_size, p.vocab, 0};
    int r = null_open(&np, &d);
    if (r == 0)
        r = engine_new(&p, &null_backend, d, &e, NULL);
    uint64_t from = ek_now_us();
    if (r == 0)
        r = submit(e, all);
    pthread_mutex_lock(&w.lock);
    for (uint32_t n = 0; r == 0 && n < SEQS; n++)
        while (atomic_load(&all[n]->state) != REQ_DONE)
            pthread_cond_wait(&w.news, &w.lock);
    pthread_mutex_unlock(&w.lock);
    uint64_t took = ek_now_us() - from;
    if (r == 0) {
        engine_stats(e, &stats);
        *ret_us = stats.steps ? (double)took / (double)stats.steps : 0;
    }
    for (uint32_t n = 0; n < SEQS; n++)
        request_unref(all[n]);
    engine_free(e);
    null_close(d);
    return r;
}

static void tell(struct report *rep, const char *cell, double us, bool goal)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%g", GOAL_US);
    printf("%-24s %8.3f us\n", cell, us);
    report_cell(rep, &(struct report_cell){.cell = cell,
                                           .value = us,
                                           .unit = "us",
                                           .goal = goal ? text : NULL,
                                           .met = us <= GOAL_US});
}

static int measure(struct ek_recorder *recorder, int repeat, struct report *rep)
{
    double records[REPEAT_MOST], with[REPEAT_MOST], without[REPEAT_MOST], apart[REPEAT_MOST];
    int r = 0;
    for (int i = 0; r == 0 && i < repeat; i++) {
        records[i] = records_us(recorder);
        r = run_engine(i % 2 ? recorder : NULL, i % 2 ? &with[i] : &without[i]);
        if (r == 0)
            r = run_engine(i % 2 ? NULL : recorder, i % 2 ? &without[i] : &with[i]);
        apart[i] = with[i] - without[i];
    }
    if (r < 0)
        return r;
    tell(rep, "records_of_a_step", median(records, (size_t)repeat), true);
    tell(rep, "step.without", median(without, (size_t)repeat), false);
    tell(rep, "step.with", median(with, (size_t)repeat), false);
    tell(rep, "step.added", median(apart, (size_t)repeat), true);
    return 0;
}

int main(int argc, char **argv)
{
    char dir[] = "/dev/shm/ek-bench-recorder-XXXXXX", sock[48], path[64];
    struct ek_recorder *recorder = NULL;
    struct report rep;
    double load = 0;
    int repeat = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9;
    if (repeat < 1 || repeat > REPEAT_MOST || !mkdtemp(dir))
        return 2;
    (void)snprintf(sock, sizeof(sock), "%s/s", dir);
    int r = report_open(&rep, "bench-recorder", argc > 1 ? argv[1] : "bench-recorder.json");
    if (r == 0)
        r = ek_recorder_open(sock, &(struct ek_recorder_about){0}, &recorder);
    (void)getloadavg(&load, 1); /* else it is said to be 0 */
    printf("Load at the beginning: %.2f\n", load);
    if (r == 0)
        r = measure(recorder, repeat, &rep);
    report_cell(&rep, &(struct report_cell){.cell = "load", .value = load, .unit = "processes"});
    ek_recorder_close(recorder);
    (void)snprintf(path, sizeof(path), "%s" EK_RECORDER_FILE, sock);
    (void)unlink(path);
    (void)rmdir(dir);
    if (r == 0)
        r = report_close(&rep);
    if (r < 0)
        (void)fprintf(stderr, "bench_recorder: %s\n", ek_strerror(r));
    return r < 0;
}

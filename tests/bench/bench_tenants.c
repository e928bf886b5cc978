/*
 * One key's flood beside another key's few requests, in virtual time on the real scheduler
 * (schedsim.h): what the few wait.
 *
 *   bench_tenants [REPORT [LOADS]]
 *
 * LOADS random loads (12): the few take a tenth to a third of the modelled device, prompts of 64 to
 * 2,048 tokens with answers of 16 to 256; so do the flood's, which sends four times what the device
 * can do. Each with a tenant for each key, and to compare it with:
 *
 *   one   all requests of one tenant, as they are without keys
 *   held  the flood's key held, by hand, to as few requests at once as keep the device busy
 *   idle  the flood's key sends what half of the device can do: a part of it is idle
 *
 * Goal: what the few wait, to the first token and to the last, is at most a tenth above `held`.
 *
 * Then the cell `text` of make bench-attack, with a step's cost as evenkeel-bench engine says it of
 * the embedded model on one thread of an AMD EPYC with AVX2: short requests of one key, one after
 * the other, beside eight sequences of another key. What fair sharing makes of a first token is
 * twice what it takes alone; more is what steps cost that are not left off for who comes, and a
 * step that is planned ahead (`depth` 2), where steps are short.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "tests/bench/checked.h"
#include "tests/bench/report.h"

#define FEW       200u /* requests */
#define BUDGET    512u
#define SEQS      64u
#define ROW_US    80.0 /* of the modelled device, schedsim.h */
#define TOKEN_US  (8000.0 / 32)
#define SHARE     0.5
#define FLOOD     4.0
#define BUSY      0.97 /* of the tokens a second with the flood */
#define LOAD_MOST 1000u

struct tenants_load {
    double few; /* of the device */
    uint32_t few_prompt, few_answer, prompt, answer;
    uint64_t rng;
};

/* Milliseconds from when it came to the end of the step that ran, to the begin of its own, and to
 * its tokens. */
struct answer {
    double taken, begun, first, last;
};

/* Mean and 99th percentile, milliseconds to the first token and to the last; and what the slowest
 * twentieth of the first ones is made of, in the mean: the end of the step that ran, steps planned
 * before it came, and its own. */
struct waits {
    double first, first_p99, last, last_p99;
    struct {
        double running, planned, own;
    } slow;
};

static uint64_t draw(uint64_t *rng)
{
    uint64_t z = *rng += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static uint32_t pick(uint64_t *rng, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(draw(rng) % (to - from + 1));
}

static double work_s(uint32_t prompt, uint32_t answer)
{
    return (prompt * ROW_US + answer * TOKEN_US) * 1e-6;
}

static int by_arrival(const void *a, const void *b)
{
    const struct trace_request *x = a, *y = b;
    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

/* The few at even distances with a jitter, the others at `share` of the device while they come. */
static int make(const struct tenants_load *l, double share, struct trace *ret_trace)
{
    uint64_t rng = l->rng;
    double every = work_s(l->few_prompt, l->few_answer) / l->few;
    double other = work_s(l->prompt, l->answer) / share;
    uint32_t others = (uint32_t)(FEW * every / other);
    struct trace t = {.name = "tenants", .timed = true, .count = FEW + others};

    t.request = calloc(t.count, sizeof(*t.request));
    if (!t.request)
        return -ENOMEM;
    for (uint32_t i = 0; i < FEW; i++)
        t.request[i] = (struct trace_request){.at_s = (i + pick(&rng, 1, 999) * 1e-3) * every,
                                              .prompt = l->few_prompt,
                                              .output = l->few_answer,
                                              .tenant = 1};
    for (uint32_t i = 0; i < others; i++)
        t.request[FEW + i] =
            (struct trace_request){.at_s = (i + pick(&rng, 1, 999) * 1e-3) * other,
                                   .prompt = pick(&rng, l->prompt / 2, l->prompt * 3 / 2),
                                   .output = pick(&rng, l->answer / 2, l->answer * 3 / 2),
                                   .tenant = 2};
    qsort(t.request, t.count, sizeof(*t.request), by_arrival);
    *ret_trace = t;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void spread(double *ms, uint32_t n, double *ret_mean, double *ret_p99)
{
    double sum = 0;

    qsort(ms, n, sizeof(*ms), by_value);
    for (uint32_t i = 0; i < n; i++)
        sum += ms[i];
    *ret_mean = n > 0 ? sum / n : 0;
    *ret_p99 = n > 0 ? ms[n * 99 / 100] : 0;
}

static int by_first(const void *a, const void *b)
{
    const struct answer *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Changes the order of the answers. */
static void read_slow(struct answer *a, uint32_t n, struct waits *w)
{
    uint32_t from = n - n / 20;

    qsort(a, n, sizeof(*a), by_first);
    for (uint32_t i = from; i < n; i++) {
        w->slow.running += a[i].taken / (n - from);
        w->slow.planned += (a[i].begun - a[i].taken) / (n - from);
        w->slow.own += (a[i].first - a[i].begun) / (n - from);
    }
}

/* Of the few's answers in a text of schedsim_params.answers. */
static void read_waits(const char *text, struct waits *ret_waits)
{
    struct answer a[FEW] = {0};
    double first[FEW] = {0}, last[FEW] = {0};
    uint32_t n = 0;

    while (text && *text && n < FEW) {
        char *end;
        first[n] = a[n].first = strtod(text, &end);
        last[n] = a[n].last = strtod(end, &end);
        bool few = strtoul(end, &end, 10) == 1;
        a[n].taken = strtod(end, &end);
        a[n].begun = strtod(end, &end);
        n += few;
        text = end + 1;
    }
    *ret_waits = (struct waits){0};
    spread(first, n, &ret_waits->first, &ret_waits->first_p99);
    spread(last, n, &ret_waits->last, &ret_waits->last_p99);
    read_slow(a, n, ret_waits);
}

/* A trace with those parameters: what the few wait, and the rate of all (may be NULL). */
static int play_trace(const struct trace *t, struct schedsim_params *p, struct waits *ret_waits,
                      double *ret_rate)
{
    struct schedsim_result all;
    char *answers = NULL;
    size_t bytes = 0;

    p->answers = open_memstream(&answers, &bytes);
    int r = p->answers ? schedsim_checked(t, p, &all) : -ENOMEM;
    if (p->answers)
        (void)fclose(p->answers);
    if (r == 0) {
        read_waits(answers, ret_waits);
        if (ret_rate)
            *ret_rate = all.total_rate;
    }
    free(answers);
    return r;
}

static int play(const struct tenants_load *l, double share, uint32_t most, bool apart,
                struct waits *ret_waits, double *ret_rate)
{
    struct schedsim_params p = {.block_size = 16,
                                .pool_tokens = 262144,
                                .max_seqs = SEQS,
                                .budget = BUDGET,
                                .max_model_len = 8192,
                                .depth = 2,
                                .scale = 1,
                                .tenants = apart,
                                .open_most = most,
                                .by_tenant = true,
                                .seed = 1};
    struct trace t = {0};
    int r = make(l, share, &t);

    if (r == 0)
        r = play_trace(&t, &p, ret_waits, ret_rate);
    free(t.request);
    return r;
}

static void cell(struct report *rep, const char *what, double value, const char *unit, double goal)
{
    char full[96], most[32];

    (void)snprintf(full, sizeof(full), "tenants.%s", what);
    (void)snprintf(most, sizeof(most), "%.2f", goal);
    report_cell(rep, &(struct report_cell){.cell = full,
                                           .value = value,
                                           .unit = unit,
                                           .goal = goal > 0 ? most : NULL,
                                           .met = value <= goal});
}

#define SMALL_BASE_US 300.0
#define SMALL_ROW_US  200.0
#define SMALL_PROMPT  10u /* tokens that are not cached */
#define SMALL_FEW     8u  /* tokens of an answer, */
#define SMALL_OTHERS  40u /* and of one of the others, about */
#define SMALL_AT_ONCE 8u

/* Times to the first token with so many sequences of another tenant beside them. */
static int play_small(uint32_t depth, uint32_t beside, struct waits *ret_waits, double *ret_rate)
{
    const struct schedsim_cost cost = {
        .base_us = SMALL_BASE_US, .row_us = SMALL_ROW_US, .copy_us = 1};
    struct schedsim_params p = {.block_size = 16,
                                .pool_tokens = 262144,
                                .max_seqs = 256,
                                .budget = 2048,
                                .max_model_len = 2048,
                                .depth = depth,
                                .scale = 1,
                                .tenants = true,
                                .open_most = beside,
                                .by_tenant = true,
                                .seed = 1,
                                .cost = &cost};
    const double gap_s = 60 * (SMALL_BASE_US + SMALL_ROW_US) * 1e-6;
    uint32_t others = beside * (FEW * 60 / SMALL_OTHERS + 8);
    struct trace t = {.name = "small", .timed = true, .count = FEW + others};
    uint64_t rng = 7;

    t.request = calloc(t.count, sizeof(*t.request));
    for (uint32_t i = 0; i < t.count && t.request; i++)
        t.request[i] =
            i < others ? (struct trace_request){.at_s = i * 1e-9,
                                                .prompt = SMALL_PROMPT,
                                                .output = SMALL_OTHERS * 3 / 4 + pick(&rng, 0, 20),
                                                .tenant = 2}
                       : (struct trace_request){
                             .at_s = (i - others + 1 + pick(&rng, 1, 999) * 1e-3) * gap_s,
                             .prompt = SMALL_PROMPT,
                             .output = SMALL_FEW,
                             .tenant = 1};
    int r = t.request ? play_trace(&t, &p, ret_waits, ret_rate) : -ENOMEM;
    free(t.request);
    return r;
}

static int measure_small(struct report *rep)
{
    char name[64];

    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct waits alone, beside;
        double rate = 0;
        int r = play_small(depth, 0, &alone, &rate);
        if (r == 0)
            r = play_small(depth, SMALL_AT_ONCE, &beside, &rate);
        if (r != 0)
            return r;
        (void)snprintf(name, sizeof(name), "small.depth_%u.first_p99", depth);
        cell(rep, name, beside.first_p99 / alone.first_p99, "ratio", 0);
        printf("short ones beside %u sequences, %u steps in flight, ms to the first token: alone "
               "%.2f (p99 %.2f), beside %.2f (%.2f)\n",
               SMALL_AT_ONCE, depth, alone.first, alone.first_p99, beside.first, beside.first_p99);
        printf(
            "  the slowest twentieth: the running step %.2f, planned ones %.2f, its own %.2f; all "
            "make %.0f tokens a second\n",
            beside.slow.running, beside.slow.planned, beside.slow.own, rate);
    }
    return 0;
}

enum run { IDLE, HELD, ONE, TWO, RUNS };

/* What the few wait beside the flood, to the first token and to the last, with a tenant each, over
 * what they wait in each kind of run. */
struct ratios {
    double first[LOAD_MOST], last[LOAD_MOST];
};

/* The flood's key held to as few requests at once as keep the device busy. */
static int play_held(const struct tenants_load *l, double busy, struct waits *ret_waits,
                     uint32_t *ret_most)
{
    double rate = 0;
    uint32_t most = 1;
    int r = 0;

    while (r == 0 && rate < BUSY * busy && most < SEQS) {
        most *= 2;
        r = play(l, FLOOD, most, false, ret_waits, &rate);
    }
    *ret_most = most;
    return r;
}

static int measure_load(uint32_t i, struct ratios *ratio, double *sum)
{
    uint64_t rng = i + 1;
    struct tenants_load l = {.few = pick(&rng, 100, 333) * 1e-3,
                             .few_prompt = 64u << pick(&rng, 0, 5),
                             .few_answer = 16u << pick(&rng, 0, 4),
                             .prompt = 64u << pick(&rng, 0, 5),
                             .answer = 16u << pick(&rng, 0, 4),
                             .rng = rng};
    struct waits w[RUNS];
    double idle, one, two;
    uint32_t most = 0;
    int r = play(&l, SHARE, 0, false, &w[IDLE], &idle);

    if (r == 0)
        r = play(&l, FLOOD, 0, false, &w[ONE], &one);
    if (r == 0)
        r = play(&l, FLOOD, 0, true, &w[TWO], &two);
    if (r == 0)
        r = play_held(&l, one, &w[HELD], &most);
    if (r != 0)
        return r;
    for (uint32_t k = 0; k < RUNS; k++) {
        ratio[k].first[i] = w[TWO].first / w[k].first;
        ratio[k].last[i] = w[TWO].last / w[k].last;
    }
    *sum += two / one;
    printf("few %.2f %4u+%-3u flood %4u+%-3u, ms to the first token and the last: half the device "
           "%4.0f %5.0f, %2u at once %4.0f %5.0f, one tenant %6.0f %6.0f, two %4.0f %5.0f\n",
           l.few, l.few_prompt, l.few_answer, l.prompt, l.answer, w[IDLE].first, w[IDLE].last, most,
           w[HELD].first, w[HELD].last, w[ONE].first, w[ONE].last, w[TWO].first, w[TWO].last);
    return 0;
}

static void conclude(struct report *rep, const char *run, const char *what, double *ratio,
                     uint32_t n)
{
    char name[64];
    double mean, p99, goal = strcmp(run, "held") == 0 ? 1.1 : 0;

    spread(ratio, n, &mean, &p99);
    (void)snprintf(name, sizeof(name), "%s.%s.median", run, what);
    cell(rep, name, ratio[n / 2], "ratio", goal);
    (void)snprintf(name, sizeof(name), "%s.%s.worst", run, what);
    cell(rep, name, ratio[n - 1], "ratio", goal);
    printf("two tenants over %s, to the %s token: median %.4f, mean %.4f, worst %.4f\n", run, what,
           ratio[n / 2], mean, ratio[n - 1]);
}

int main(int argc, char **argv)
{
    static struct ratios ratio[RUNS];
    static const char *const names[RUNS] = {
        [IDLE] = "idle", [HELD] = "held", [ONE] = "one", [TWO] = "two"};
    const char *path = argc > 1 ? argv[1] : "build/reports/bench-tenants.json";
    unsigned long loads = argc > 2 ? strtoul(argv[2], NULL, 10) : 12;
    struct report rep;
    double rate = 0;
    int r = 0;

    if (loads == 0 || loads > LOAD_MOST) {
        (void)fprintf(stderr, "the number of loads is 1 to %u\n", LOAD_MOST);
        return 2;
    }
    if (report_open(&rep, "bench-tenants", path) != 0)
        return 1;
    for (uint32_t i = 0; i < loads && r == 0; i++)
        r = measure_load(i, ratio, &rate);
    for (uint32_t k = 0; k < TWO && r == 0; k++) {
        conclude(&rep, names[k], "first", ratio[k].first, (uint32_t)loads);
        conclude(&rep, names[k], "last", ratio[k].last, (uint32_t)loads);
    }
    if (r == 0) {
        cell(&rep, "throughput", rate / (double)loads, "ratio", 0);
        printf("throughput with two tenants %.3f of that with one\n", rate / (double)loads);
        r = measure_small(&rep);
    }
    if (report_close(&rep) != 0 || r != 0) {
        (void)fprintf(stderr, "the benchmark failed: %s\n", ek_strerror(r));
        return 1;
    }
    return 0;
}

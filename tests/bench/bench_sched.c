/*
 * What the scheduler does with real workloads, and what it costs the host.
 *
 *   bench_sched [TRACES [REPORT [REQUESTS]]]
 *
 * Part one replays each trace of the directory TRACES (forms: trace.h; files of other forms are
 * passed over) for block sizes 8, 16, 32, swap off and on, and two chunk budgets, in virtual time
 * (schedsim.h); those that share prefixes with evicted ones kept in the host tier too. Part two
 * holds 256 and 1,024 sequences running and measures the host time of one step. A table for people
 * on stdout, REPORT as JSON; tools/report_sched.py draws and writes docs.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/bench/trace.h"
#include "tests/bench/checked.h"
#include "tests/bench/report.h"

#define TRACE_MOST  64
#define POOL_TOKENS 6144u /* about what the traces hold at once: preemptions happen */
#define HOST_TOKENS 24576u
#define KEPT_TOKENS 98304u /* of evicted prefixes */
#define MODEL_LEN   4096u

static const struct schedsim_params base = {.block_size = 16,
                                            .pool_tokens = POOL_TOKENS,
                                            .max_seqs = 256,
                                            .budget = 2048,
                                            .max_model_len = MODEL_LEN,
                                            .depth = 2,
                                            .scale = 1,
                                            .load = 0.9,
                                            .seed = 1};

/* Lengths that suit a pool of 6,144 tokens: prompts of some hundred. */
static uint32_t scale_of(const struct trace *t)
{
    return t->hash_tokens > 0 ? 16 : 4;
}

static void cell(struct report *rep, const char *prefix, const char *what, double value,
                 const char *unit)
{
    char name[160];

    snprintf(name, sizeof(name), "%s.%s", prefix, what);
    report_cell(rep, &(struct report_cell){.cell = name, .value = value, .unit = unit});
}

static void report_replay(struct report *rep, const char *name, const struct schedsim_result *o)
{
    const struct {
        const char *what, *unit;
        double value;
    } rows[] = {{"output_rate", "tokens/s", o->output_rate},
                {"total_rate", "tokens/s", o->total_rate},
                {"ttft_p50", "ms", o->ttft_ms.p50},
                {"ttft_p99", "ms", o->ttft_ms.p99},
                {"itl_p50", "ms", o->itl_ms.p50},
                {"itl_p99", "ms", o->itl_ms.p99},
                {"preemptions", "preemptions", (double)o->preemptions},
                {"swapped_in", "blocks", (double)o->swapped_in_blocks},
                {"offloaded_in", "blocks", (double)o->offload_in_blocks},
                {"recomputed", "share", o->recomputed_share},
                {"waste", "share", o->waste_share},
                {"hit_rate", "share", o->hit_rate},
                {"running", "sequences", o->running},
                {"table_entries", "entries/step", o->table_entries},
                {"host_p50", "us", o->host_us.p50},
                {"host_p99", "us", o->host_us.p99},
                {"requests", "requests", o->requests},
                {"steps", "steps", (double)o->steps},
                {"allocations", "allocations", (double)o->allocations}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        cell(rep, name, rows[i].what, rows[i].value, rows[i].unit);
    printf("%-40s %7.0f %8.0f %8.0f %6.1f %6.1f %6llu %6.2f%% %6.2f%% %6.1f%% %8.0f %6.1f\n", name,
           o->output_rate, o->ttft_ms.p50, o->ttft_ms.p99, o->itl_ms.p50, o->itl_ms.p99,
           (unsigned long long)o->preemptions, 100 * o->recomputed_share, 100 * o->waste_share,
           100 * o->hit_rate, o->table_entries, o->host_us.p50);
}

static int replay_one(struct report *rep, const struct trace *t, const struct schedsim_params *p)
{
    const char *tier = p->offload_tokens ? "offload" : p->host_tokens ? "swap" : "noswap";
    struct schedsim_result o;
    char name[128];

    snprintf(name, sizeof(name), "%s.b%u.%s.c%u", t->name, p->block_size, tier, p->budget);
    int r = schedsim_checked(t, p, &o);
    if (r == 0)
        report_replay(rep, name, &o);
    else
        (void)fprintf(stderr, "%s: %s\n", name, ek_strerror(r));
    return r;
}

static int replay_all(struct report *rep, const struct trace *t)
{
    static const uint32_t sizes[] = {8, 16, 32}, budgets[] = {512, 2048};
    struct schedsim_params p = base;
    int r = 0;

    p.scale = scale_of(t);
    for (uint32_t i = 0; r == 0 && i < 12; i++) {
        p.block_size = sizes[i % 3];
        p.host_tokens = i / 3 % 2 ? HOST_TOKENS : 0;
        p.budget = budgets[i / 6];
        r = replay_one(rep, t, &p);
    }
    /* Evicted prefixes kept in the host tier. */
    p.block_size = 16;
    p.budget = 512;
    p.host_tokens = 0;
    p.offload_tokens = KEPT_TOKENS;
    return r == 0 && t->hash_tokens > 0 ? replay_one(rep, t, &p) : r;
}

/* Every request at once, outputs long: the slots stay taken while requests come and go. */
static int make_crowd(uint32_t seqs, struct trace *ret_trace)
{
    struct trace t = {.name = "crowd", .count = seqs * 8};

    t.request = calloc(t.count, sizeof(*t.request));
    if (!t.request)
        return -ENOMEM;
    for (uint32_t i = 0; i < t.count; i++)
        t.request[i] = (struct trace_request){.prompt = 64 + i * 37 % 192, /* spread, no pattern */
                                              .output = 128 + i * 101 % 256};
    *ret_trace = t;
    return 0;
}

static int host_time(struct report *rep, uint32_t seqs, double goal_p50, double goal_p99)
{
    struct trace t;
    struct schedsim_result o;
    struct schedsim_params p = base;
    char name[64], goal[32];
    int r = make_crowd(seqs, &t);

    if (r != 0)
        return r;
    p.max_seqs = seqs;
    p.pool_tokens = seqs * 640;
    p.budget = seqs + 1024;
    p.load = 1000; /* all are there at once */
    p.max_model_len = 1024;
    r = schedsim_checked(&t, &p, &o);
    trace_done(&t);
    if (r != 0)
        return r;
    const struct {
        const char *what, *unit;
        double value, goal;
    } rows[] = {{"p50", "us", o.host_us.p50, goal_p50},
                {"p99", "us", o.host_us.p99, goal_p99},
                {"running", "sequences", o.running, 0},
                {"third_tenth", "us", o.host_early_us, 0},
                {"seventh_tenth", "us", o.host_late_us, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        snprintf(name, sizeof(name), "host.%u.%s", seqs, rows[i].what);
        snprintf(goal, sizeof(goal), "%g", rows[i].goal);
        report_cell(rep, &(struct report_cell){.cell = name,
                                               .value = rows[i].value,
                                               .unit = rows[i].unit,
                                               .goal = rows[i].goal > 0 ? goal : NULL,
                                               .met = rows[i].value <= rows[i].goal});
    }
    snprintf(name, sizeof(name), "host.%u.allocations", seqs);
    report_cell(rep, &(struct report_cell){.cell = name,
                                           .value = (double)o.allocations,
                                           .unit = "allocations",
                                           .goal = "0",
                                           .met = o.allocations == 0});
    printf("host time of a step, %5u places (%.0f running): median %.1f us, p99 %.1f us; %llu "
           "allocations in %llu steps\n",
           seqs, o.running, o.host_us.p50, o.host_us.p99, (unsigned long long)o.allocations,
           (unsigned long long)o.steps);
    return 0;
}

static int is_file(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int replay_directory(struct report *rep, const char *dir, uint32_t most)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_file, alphasort), r = 0, done = 0;

    if (n < 0)
        return -errno;
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct trace t;
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        int code = r == 0 ? trace_read(path, most, &t) : r;
        if (code == 0) {
            r = replay_all(rep, &t);
            trace_done(&t);
            done++;
        } else if (code != -ENOTSUP) {
            r = code;
        }
        free(names[i]);
    }
    free(names);
    return r == 0 && done == 0 ? -ENOENT : r;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "tests/fixtures/traces";
    const char *path = argc > 2 ? argv[2] : "build/reports/bench-sched.json";
    unsigned long most = argc > 3 ? strtoul(argv[3], NULL, 10) : 1500;
    struct report rep;

    if (most == 0 || most > 10000000) {
        (void)fprintf(stderr, "the number of requests must be 1 to 10,000,000\n");
        return 2;
    }
    if (report_open(&rep, "bench-sched", path) != 0)
        return 1;
    printf("%-40s %7s %8s %8s %6s %6s %6s %7s %7s %7s %8s %6s\n", "trace.block.swap.chunk", "out/s",
           "TTFT50", "TTFT99", "ITL50", "ITL99", "preem", "recomp", "waste", "hits", "entries",
           "host");
    int r = replay_directory(&rep, dir, (uint32_t)most);
    if (r == 0)
        r = host_time(&rep, 256, 150, 400);
    if (r == 0)
        r = host_time(&rep, 1024, 600, 0);
    if (report_close(&rep) != 0 || r != 0) {
        (void)fprintf(stderr, "the benchmark failed: %s\n", ek_strerror(r));
        return 1;
    }
    return 0;
}

/*
 * How well the law controls, against what else could be done: each trace at six levels of load, in
 * virtual time on the real scheduler (plant.h), under
 *
 *   oracle     the best of fixed limits, found by trying them all on this very load; with the same
 *              queue deadline as evenkeeld's
 *   oracle-s   the same with the token budget that evenkeeld begins with, 2048
 *   oracle-5m  begins with the oracle's, and every 300 s takes what is best until the end
 *   low high   16 and 256 sequences, as people set them
 *   high-8s    256 with the oracle's queue deadline: evenkeel's limits, if it changed none and
 *              refused from the first second on
 *   aimd       usage above 0.90: x 0.75, below 0.75: + 4, every 30 s
 *   sidecar    the operations guides': usage > 0.95 or waiting > 2 x running is a strike each 30 s;
 *              three within 300 s: wait up to 60 s for running = 0, then restart, 30 s down
 *   gradient   Netflix's Gradient2 on the time between tokens
 *   evenkeel   policy_step() with its defaults and ttft_slo_s, through a rendered page
 *   no-slo     the same without a promise: nothing is refused
 *
 * Good is an answer whose first token came within 10 s, tokens every 0.2 s in the mean, and no gap
 * above 2 s; who has no first token after 30 s leaves.
 *
 *   [CELLS=part of a name] [ONLY=1] [QUICK=1] [STEADY=1] [SHOW=1] [SEEDS=1] [DEPTH=1]
 *   bench_control [TRACES [REPORT [SECONDS [JOBS]]]]
 *
 * ONLY runs evenkeel alone, QUICK evenkeel, the oracle of fixed limits and high-8s, STEADY all but
 * the oracle that changes, which takes half of the time; SHOW says each change of a limit on
 * stderr. With SEEDS=n each is the mean of n runs, which begin at other places of the trace: the
 * best of ten settings in one run is partly luck, and in the mean of many it is not. DEPTH=2 plans
 * a step while another one runs, as the server does by default.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/law/policy.h"
#include "tests/bench/plant.h"
#include "tests/bench/report.h"

#define TTFT_S      10.0
#define DEADLINE_S  8.0 /* of the oracle's queue: evenkeeld's own share of the promise */
#define MOST_SEQS   256u
#define MOST_TOKENS 2048u
#define PROMPT_MEAN 800.0 /* longer traces are scaled down to it: the pool is small */

#define CHANGE_S 300.0

/* What the oracles choose from. */
#define CHOICES 10
static const struct {
    uint32_t seqs, tokens;
} choices[CHOICES] = {{12, 512},  {12, 2048}, {24, 512},  {24, 2048}, {40, 512},
                      {40, 2048}, {64, 512},  {64, 2048}, {128, 512}, {128, 2048}};

enum law { LAW_FIXED, LAW_CHANGING, LAW_AIMD, LAW_SIDECAR, LAW_GRADIENT, LAW_EVENKEEL };

struct controller {
    enum law law;
    struct policy *policy;
    struct sample last;
    struct ek_buf page;
    double acted_s, usage_sum, usage_n;
    double strikes[64];
    uint32_t strike_count;
    double waiting_since_s, slow, limit;
    struct plant_view before;
    int told; /* where a copy of this process that tries something says how it went; -1 = none */
};

/* Tries limits for the rest of the run in a copy of this process. True in the copy. */
static bool try_ahead(struct controller *c, struct plant *p, const struct plant_limits *l,
                      struct plant_result *ret)
{
    int ends[2], status = 1;
    if (pipe(ends) < 0)
        abort();
    pid_t pid = fork();
    if (pid < 0)
        abort();
    if (pid == 0) {
        close(ends[0]);
        c->told = ends[1];
        plant_set(p, l);
        return true;
    }
    close(ends[1]);
    if (read(ends[0], ret, sizeof(*ret)) != (ssize_t)sizeof(*ret))
        abort();
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        abort();
    return false;
}

static void change(struct controller *c, struct plant *p, const struct plant_view *v)
{
    struct plant_limits best = v->limits, one = v->limits;
    struct plant_result with, without;
    if (c->told >= 0 || v->now_s < c->acted_s + CHANGE_S)
        return;
    c->acted_s += CHANGE_S;
    if (try_ahead(c, p, &one, &without)) /* as it was, if nothing is better */
        return;
    for (int i = 0; i < CHOICES; i++) {
        one.seqs = choices[i].seqs;
        one.tokens = choices[i].tokens;
        if (try_ahead(c, p, &one, &with))
            return;
        if (with.good > without.good) {
            without = with;
            best = one;
        }
    }
    plant_set(p, &best);
}

static void aimd(struct controller *c, struct plant *p, const struct plant_view *v)
{
    struct plant_limits l = v->limits;
    c->usage_sum += v->usage;
    c->usage_n++;
    if (v->now_s - c->acted_s < 30)
        return;
    double usage = c->usage_sum / c->usage_n;
    c->usage_sum = c->usage_n = 0;
    c->acted_s = v->now_s;
    if (usage > 0.90)
        l.seqs = l.seqs > 1 ? (uint32_t)(l.seqs * 0.75) : 1;
    else if (usage < 0.75)
        l.seqs = l.seqs + 4 < MOST_SEQS ? l.seqs + 4 : MOST_SEQS;
    plant_set(p, &l);
}

static void sidecar(struct controller *c, struct plant *p, const struct plant_view *v)
{
    if (c->waiting_since_s > 0) {
        if (v->running > 0 && v->now_s - c->waiting_since_s < 60)
            return;
        c->waiting_since_s = 0;
        c->strike_count = 0;
        plant_kill(p, 30);
        return;
    }
    if (v->now_s - c->acted_s < 30)
        return;
    c->acted_s = v->now_s;
    uint32_t recent = 0;
    bool strike = v->usage > 0.95 || v->waiting > 2 * v->running;
    if (strike && c->strike_count < 64)
        c->strikes[c->strike_count++] = v->now_s;
    for (uint32_t i = 0; i < c->strike_count; i++)
        recent += v->now_s - c->strikes[i] <= 300;
    if (recent >= 3)
        c->waiting_since_s = v->now_s;
    else if (c->strike_count == 64)
        c->strike_count = 0;
}

/* Mean time between tokens of the last second, from the buckets' middles. */
static double mean_itl(const struct plant_view *a, const struct plant_view *b)
{
    static const double middle[PLANT_BUCKETS] = {0.008, 0.017, 0.037, 0.075, 0.15, 0.35, 1, 3};
    double sum = 0, n = 0, below = 0;
    for (int i = 0; i < PLANT_BUCKETS; i++) {
        double upto = b->itl[i] - a->itl[i];
        sum += (upto - below) * middle[i];
        n += upto - below;
        below = upto;
    }
    return n > 0 ? sum / n : 0;
}

static void gradient(struct controller *c, struct plant *p, const struct plant_view *v)
{
    double fast = mean_itl(&c->before, v);
    c->before = *v;
    if (!(fast > 0))
        return;
    c->slow = c->slow > 0 ? c->slow + (fast - c->slow) * 2 / 601 : fast;
    if (c->slow / fast > 2)
        c->slow *= 0.95;
    if (v->running < c->limit / 2)
        return;
    double g = fmax(0.5, fmin(1, 1.5 * c->slow / fast));
    c->limit = fmax(4, fmin(MOST_SEQS, 0.8 * c->limit + 0.2 * (g * c->limit + 4)));
    struct plant_limits l = v->limits;
    l.seqs = (uint32_t)c->limit;
    plant_set(p, &l);
}

static void evenkeel(struct controller *c, struct plant *p, const struct plant_view *v)
{
    struct sample s;
    uint64_t at_us = (uint64_t)(v->now_s * 1e6) + 1;
    if (plant_page(v, &c->page) < 0)
        abort();
    sample_parse(dialect_find("evenkeel"), c->page.data, c->page.len, at_us, &s);
    sample_compare(&s, &c->last);
    if (s.good)
        c->last = s;
    struct decision d = policy_step(c->policy, &s, at_us);
    if (!d.act)
        return;
    if (getenv("SHOW"))
        (void)fprintf(stderr, "%7.1f %s\n", v->now_s, d.why);
    struct plant_limits l = v->limits;
    switch (d.knob) {
    case KNOB_SEQS: l.seqs = d.to; break;
    case KNOB_TOKENS: l.tokens = d.to; break;
    case KNOB_DEADLINE: l.deadline_s = d.to / 1000.0; break;
    case KNOB_RESERVE: l.reserve = d.to / 1000.0; break;
    }
    plant_set(p, &l);
    policy_applied(c->policy, &d, true);
}

static void on_second(void *ctx, struct plant *p, const struct plant_view *v)
{
    struct controller *c = ctx;
    switch (c->law) {
    case LAW_FIXED: break;
    case LAW_CHANGING: change(c, p, v); break;
    case LAW_AIMD: aimd(c, p, v); break;
    case LAW_SIDECAR: sidecar(c, p, v); break;
    case LAW_GRADIENT: gradient(c, p, v); break;
    case LAW_EVENKEEL: evenkeel(c, p, v); break;
    }
}

static int try_once(const struct plant_params *pp, enum law law, struct plant_limits first,
                    bool promise, struct plant_result *ret)
{
    struct controller c = {.law = law, .limit = first.seqs, .told = -1};
    int r = 0;
    if (law == LAW_EVENKEEL) {
        struct policy_params par;
        policy_defaults(&par);
        par.seqs_max = MOST_SEQS;
        par.tokens_min = 64;
        par.tokens_max = MOST_TOKENS;
        par.reserve_start = PLANT_RESERVE;
        par.ttft_slo_s = promise ? TTFT_S : 0;
        r = policy_new(&par, &c.policy);
        if (r == 0)
            policy_limits(c.policy, first.seqs, first.tokens);
    }
    if (r == 0)
        r = plant_run(pp, &first, on_second, &c, ret);
    if (c.told >= 0)
        _exit(r == 0 && write(c.told, ret, sizeof(*ret)) == (ssize_t)sizeof(*ret) ? 0 : 1);
    policy_free(c.policy);
    ek_buf_done(&c.page);
    return r;
}

#define SEEDS_MOST 32u
static uint32_t seeds = 1, depth = 1;

/* The mean over SEEDS arrivals. */
static int try_law(const struct plant_params *pp, enum law law, struct plant_limits first,
                   bool promise, struct plant_result *ret)
{
    struct plant_result runs[SEEDS_MOST];
    int r = 0;

    for (uint32_t i = 0; i < seeds && r == 0; i++) {
        struct plant_params one = *pp;
        one.seed = pp->seed + i;
        r = try_once(&one, law, first, promise, &runs[i]);
    }
    if (r == 0)
        *ret = plant_mean(runs, seeds);
    return r;
}

/* One load: everything that is compared */

enum {
    ROW_ORACLE,
    ROW_ORACLE_SEQS,
    ROW_ORACLE_CHANGING,
    ROW_LOW,
    ROW_HIGH,
    ROW_HIGH_DEADLINE,
    ROW_AIMD,
    ROW_SIDECAR,
    ROW_GRADIENT,
    ROW_EVENKEEL,
    ROW_NO_SLO,
    ROWS
};
static const char *const row_names[ROWS] = {"oracle",   "oracle-s", "oracle-5m", "low",
                                            "high",     "high-8s",  "aimd",      "sidecar",
                                            "gradient", "evenkeel", "no-slo"};

struct cell {
    struct plant_result row[ROWS];
    struct plant_limits best; /* the oracle's */
};

static int find_oracle(const struct plant_params *pp, struct cell *cell)
{
    for (int i = 0; i < CHOICES; i++) {
        struct plant_result one;
        struct plant_limits l = {
            .seqs = choices[i].seqs, .tokens = choices[i].tokens, .deadline_s = DEADLINE_S};
        int r = try_law(pp, LAW_FIXED, l, false, &one);
        if (r != 0)
            return r;
        if (l.tokens == MOST_TOKENS && one.good_per_s >= cell->row[ROW_ORACLE_SEQS].good_per_s)
            cell->row[ROW_ORACLE_SEQS] = one;
        if (one.good_per_s > cell->row[ROW_ORACLE].good_per_s || cell->best.seqs == 0) {
            cell->row[ROW_ORACLE] = one;
            cell->best = l;
        }
    }
    return 0;
}

static int run_cell(const struct plant_params *pp, struct cell *cell)
{
    const struct plant_limits high = {.seqs = MOST_SEQS, .tokens = MOST_TOKENS},
                              low = {.seqs = 16, .tokens = MOST_TOKENS};
    if (getenv("ONLY"))
        return try_law(pp, LAW_EVENKEEL, high, true, &cell->row[ROW_EVENKEEL]);
    struct plant_limits refuses = high;
    refuses.deadline_s = DEADLINE_S;
    int r = find_oracle(pp, cell);
    if (r == 0)
        r = try_law(pp, LAW_FIXED, refuses, false, &cell->row[ROW_HIGH_DEADLINE]);
    if (r == 0 && getenv("QUICK"))
        return try_law(pp, LAW_EVENKEEL, high, true, &cell->row[ROW_EVENKEEL]);
    if (r == 0 && !getenv("STEADY"))
        r = try_law(pp, LAW_CHANGING, cell->best, false, &cell->row[ROW_ORACLE_CHANGING]);
    if (r == 0)
        r = try_law(pp, LAW_FIXED, low, false, &cell->row[ROW_LOW]);
    if (r == 0)
        r = try_law(pp, LAW_FIXED, high, false, &cell->row[ROW_HIGH]);
    if (r == 0)
        r = try_law(pp, LAW_AIMD, high, false, &cell->row[ROW_AIMD]);
    if (r == 0)
        r = try_law(pp, LAW_SIDECAR, high, false, &cell->row[ROW_SIDECAR]);
    if (r == 0)
        r = try_law(pp, LAW_GRADIENT, high, false, &cell->row[ROW_GRADIENT]);
    if (r == 0)
        r = try_law(pp, LAW_EVENKEEL, high, true, &cell->row[ROW_EVENKEEL]);
    if (r == 0)
        r = try_law(pp, LAW_EVENKEEL, high, false, &cell->row[ROW_NO_SLO]);
    return r;
}

/* All of it, a process a load, so that two cores help */

#define LOADS         6
#define CELLS_MOST    256
#define REQUESTS_MOST 30000u
static const double loads[LOADS] = {0.6, 0.9, 1.1, 1.4, 1.8, 2.5};

struct job {
    char name[96];
    struct trace *trace;
    struct plant_params pp;
    pid_t pid;
    int pipe;
};

static void add_jobs(struct job *jobs, uint32_t *count, struct trace *t, double seconds, double out,
                     const char *tail)
{
    double mean = 0;
    for (uint32_t i = 0; i < t->count; i++)
        mean += (double)t->request[i].prompt / t->count;
    for (int i = 0; i < LOADS && *count < CELLS_MOST; i++) {
        struct job *j = &jobs[*count];
        (void)snprintf(j->name, sizeof(j->name), "%s%s.load%.1f", t->name, tail, loads[i]);
        if (getenv("CELLS") && !strstr(j->name, getenv("CELLS")))
            continue;
        ++*count;
        j->trace = t;
        j->pp = (struct plant_params){.trace = t,
                                      .load = loads[i],
                                      .seconds = seconds,
                                      .prompt_factor = mean > PROMPT_MEAN ? PROMPT_MEAN / mean : 1,
                                      .output_factor = out,
                                      .pool_tokens = 40960,
                                      .max_seqs = MOST_SEQS,
                                      .budget = MOST_TOKENS,
                                      .max_model_len = 8192,
                                      .depth = depth,
                                      .give_up_s = 30,
                                      .ttft_s = TTFT_S,
                                      .tpot_s = 0.2,
                                      .gap_s = 2,
                                      .seed = 1};
    }
}

static int begin_job(struct job *j)
{
    int ends[2];
    if (pipe(ends) < 0)
        return -errno;
    (void)fflush(stdout);
    j->pid = fork();
    if (j->pid < 0)
        return -errno;
    if (j->pid == 0) {
        struct cell cell = {0};
        int r = run_cell(&j->pp, &cell);
        bool told = r == 0 && write(ends[1], &cell, sizeof(cell)) == (ssize_t)sizeof(cell);
        if (r != 0)
            (void)fprintf(stderr, "%s: %s\n", j->name, ek_strerror(r));
        _exit(told ? 0 : 1);
    }
    close(ends[1]);
    j->pipe = ends[0];
    return 0;
}

static int end_job(struct job *j, struct cell *ret_cell)
{
    char *at = (char *)ret_cell;
    size_t got = 0;
    int status = 1;
    for (ssize_t n; got < sizeof(*ret_cell); got += (size_t)n) {
        n = read(j->pipe, at + got, sizeof(*ret_cell) - got);
        if (n <= 0)
            break;
    }
    close(j->pipe);
    return waitpid(j->pid, &status, 0) == j->pid && status == 0 && got == sizeof(*ret_cell) ? 0
                                                                                            : -EIO;
}

static void cell_row(struct report *rep, const char *job, const char *row, const char *what,
                     double value, const char *unit)
{
    char name[200];
    (void)snprintf(name, sizeof(name), "%.96s.%s.%s", job, row, what);
    report_cell(rep, &(struct report_cell){.cell = name, .value = value, .unit = unit});
}

static void report_rows(struct report *rep, const struct job *j, const struct cell *c)
{
    cell_row(rep, j->name, "oracle", "seqs", c->best.seqs, "sequences");
    cell_row(rep, j->name, "oracle", "tokens", c->best.tokens, "tokens");
    for (int i = 0; i < ROWS; i++) {
        const struct plant_result *o = &c->row[i];
        const struct {
            const char *what, *unit;
            double value;
        } rows[] = {{"good", "requests/s", o->good_per_s},
                    {"good_tokens", "tokens/s", o->good_tokens_per_s},
                    {"output", "tokens/s", o->output_per_s},
                    {"good_share", "share", (double)o->good / fmax(1, o->requests)},
                    {"ttft_p99", "s", o->ttft_p99_s},
                    {"gap_p99", "s", o->gap_p99_s},
                    {"preemptions", "preemptions", (double)o->preemptions},
                    {"recomputed", "share", o->recomputed_share},
                    {"refused", "requests", o->refused},
                    {"left", "requests", o->left},
                    {"killed", "requests", o->killed},
                    {"restarts", "restarts", o->restarts},
                    {"down", "s", o->down_s},
                    {"seqs_mean", "sequences", o->seqs_mean},
                    {"changes", "changes", o->changes},
                    {"flips", "changes", o->flips}};
        for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++)
            cell_row(rep, j->name, row_names[i], rows[k].what, rows[k].value, rows[k].unit);
        (void)printf("%-34s %-9s %7.3f %5.1f%% %8.0f %7llu %6.1f%% %6.2f %6.2f %6u %6u %5u %4u "
                     "%5.0f %4u\n",
                     i == 0 ? j->name : "", row_names[i], o->good_per_s,
                     100.0 * o->good / fmax(1, o->requests), o->good_tokens_per_s,
                     (unsigned long long)o->preemptions, 100 * o->recomputed_share, o->ttft_p99_s,
                     o->gap_p99_s, o->refused, o->left, o->killed, o->restarts, o->seqs_mean,
                     o->changes);
    }
}

static int run_jobs(struct report *rep, struct job *jobs, uint32_t count, uint32_t at_once)
{
    int r = 0;
    for (uint32_t begun = 0, done = 0; r == 0 && done < count; done++) {
        struct cell cell;
        while (r == 0 && begun < count && begun < done + at_once)
            r = begin_job(&jobs[begun++]);
        if (r == 0)
            r = end_job(&jobs[done], &cell);
        if (r == 0)
            report_rows(rep, &jobs[done], &cell);
    }
    return r;
}

static int is_file(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "tests/fixtures/traces";
    const char *path = argc > 2 ? argv[2] : "build/reports/bench-control.json";
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 1200;
    unsigned long at_once = argc > 4 ? strtoul(argv[4], NULL, 10) : 2;
    static struct job jobs[CELLS_MOST];
    static struct trace traces[64];
    struct dirent **names;
    uint32_t count = 0, n_traces = 0;
    struct report rep;
    int n = scandir(dir, &names, is_file, alphasort), r = 0;
    if (getenv("SEEDS"))
        seeds = (uint32_t)strtoul(getenv("SEEDS"), NULL, 10);
    if (getenv("DEPTH"))
        depth = (uint32_t)strtoul(getenv("DEPTH"), NULL, 10);
    if (n < 0 || !(seconds >= 200 && seconds <= 1e6) || at_once == 0 || at_once > 64 ||
        seeds == 0 || seeds > SEEDS_MOST || depth == 0 || depth > 2) {
        (void)fprintf(stderr, "usage: bench_control [TRACES [REPORT [SECONDS >= 200 [JOBS]]]]\n");
        return 2;
    }
    for (int i = 0; i < n && n_traces < 64; i++) {
        char file[4096];
        (void)snprintf(file, sizeof(file), "%s/%s", dir, names[i]->d_name);
        int code = r == 0 ? trace_read(file, REQUESTS_MOST, &traces[n_traces]) : r;
        if (code == 0) {
            struct trace *t = &traces[n_traces++];
            add_jobs(jobs, &count, t, seconds, 1, "");
            add_jobs(jobs, &count, t, seconds, 4, ".long");
        } else if (code != -ENOTSUP) {
            r = code;
        }
        free(names[i]);
    }
    free(names);
    if (report_open(&rep, "bench-control", path) != 0)
        return 1;
    (void)printf("%-34s %-9s %7s %6s %8s %7s %7s %6s %6s %6s %6s %5s %4s %5s %4s\n", "load", "law",
                 "good/s", "share", "good t/s", "preempt", "recomp", "TTFT99", "gap99", "refuse",
                 "left", "kill", "rest", "seqs", "chg");
    if (r == 0 && count > 0)
        r = run_jobs(&rep, jobs, count, (uint32_t)at_once);
    for (uint32_t i = 0; i < n_traces; i++)
        trace_done(&traces[i]);
    if (report_close(&rep) != 0 || r != 0 || count == 0) {
        (void)fprintf(stderr, "the benchmark failed: %s\n", ek_strerror(r ? r : -ENOENT));
        return 1;
    }
    return 0;
}

/*
 * A month of evenkeeld at one poll a second, as fast as it goes: the parts of its loop that keep
 * something (page, parser, window, law, figures, ring of charts, ring of decisions, state file,
 * JSON for API and journal) beside a server whose load comes and goes, that restarts, and whose
 * pages are junk now and then. After the first day nothing may grow: what is allocated, and the
 * private memory of the process.
 *
 * Usage: sim_month [DAYS] (2; a month: make month); exit status 1 when it grew.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/state.h"
#include "supervisor/law/decisions.h"
#include "supervisor/law/history.h"
#include "supervisor/law/view.h"
#include "supervisor/law/window.h"

#define DAY_S 86400u
#ifdef EK_CHECK
#define POLL_S 4u /* sanitizers take their time */
#else
#define POLL_S 1u
#endif
#define GROWS_BYTES   16384.0  /* of what is allocated */
#define GROWS_PRIVATE 262144.0 /* of it: an allocator may keep a few pages */
#define START_WALL_US 1767225600000000ull

struct month {
    uint64_t rng;
    const struct dialect *dialect;
    struct policy *policy;
    struct sample last;
    struct history *history;
    struct decisions *decisions;
    struct state state;
    struct view view;
    struct ek_buf page, text;
    char dir[64];
    uint32_t seqs, tokens;
    double preemptions, generated, prompts, steps, recomputed, itl[4], started_s;
    uint64_t polls, kinds[ACTION_COUNT], bad;
};

static double unit(struct month *m)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return (double)(m->rng >> 11) / 9007199254740992.0;
}

/* The load of a day with a night, bursts, and a night without any. */
static double load_at(struct month *m, uint64_t second)
{
    double hour = (double)(second % DAY_S) / 3600;
    double load = 0.7 + 0.6 * sin((hour - 9) / 24 * 2 * M_PI);
    return hour < 1 ? 0 : load + (second / 600 % 7 == 0 ? 0.5 : 0) + 0.1 * unit(m);
}

/* A second of the server, and its page. */
static void serve(struct month *m, uint64_t second)
{
    double load = load_at(m, second), fits = 20, wanted = floor(load * 32);
    double running = fmin(wanted, m->seqs), over = fmax(0, running - fits);
    double usage = fmin(1, running / fits), waiting = wanted - running;
    if (unit(m) < 2e-5) /* every 14 hours or so */
        m->started_s = (double)second, m->preemptions = m->generated = m->prompts = m->steps = 0;
    m->preemptions += floor(over * unit(m));
    m->recomputed += over * 60;
    m->generated += fmin(running, fits) * 20;
    m->prompts += running * 10;
    m->steps += running > 0 ? 20 : 0;
    for (int b = 0; b < 4; b++)
        m->itl[b] += running * (b + 1);
    ek_buf_clear(&m->page);
    (void)ek_buf_printf(&m->page,
                        "process_start_time_seconds %.0f\nvllm:kv_cache_usage_perc %.4f\n"
                        "vllm:num_requests_running %.0f\nvllm:num_requests_waiting %.0f\n"
                        "vllm:num_preemptions_total %.0f\nvllm:prompt_tokens_total %.0f\n"
                        "vllm:generation_tokens_total %.0f\nevenkeel_recomputed_tokens_total %.0f\n"
                        "evenkeel_engine_steps_total %.0f\nevenkeel_max_gap_seconds %.3f\n"
                        "evenkeel_queue_oldest_seconds %.3f\n"
                        "evenkeel_limit{limit=\"max_num_running_seqs\"} %u\n"
                        "evenkeel_limit{limit=\"max_num_batched_tokens\"} %u\n",
                        1e9 + m->started_s, usage, running, waiting, m->preemptions, m->prompts,
                        m->generated, m->recomputed, m->steps, over > 4 ? 2.5 : 0.1, waiting,
                        m->seqs, m->tokens);
    static const char *const bounds[] = {"0.025", "0.1", "0.5", "+Inf"};
    for (int b = 0; b < 4; b++)
        (void)ek_buf_printf(&m->page, "vllm:inter_token_latency_seconds_bucket{le=\"%s\"} %.0f\n",
                            bounds[b], m->itl[b]);
}

/* Now and then no answer, half a page, or a page of something else. */
static struct sample read_page(struct month *m, uint64_t at_us)
{
    struct sample s;
    double luck = unit(m);
    if (luck < 1e-3) {
        sample_missing(at_us, &s);
    } else {
        if (luck < 2e-3)
            m->page.len /= 2;
        if (luck > 1 - 1e-3)
            memset(m->page.data, '<', m->page.len / 2);
        sample_parse(m->dialect, m->page.data, m->page.len, at_us, &s);
    }
    sample_compare(&s, &m->last);
    if (s.good)
        m->last = s;
    m->bad += !s.good;
    return s;
}

static void keep(struct month *m, struct decision *d, uint64_t wall_us)
{
    d->wall_us = wall_us;
    decisions_push(m->decisions, d);
    ek_buf_clear(&m->text);
    (void)decision_json(d, "month", &m->text);
    struct state_server *row = state_of(&m->state, "month");
    if (!row || !d->act)
        return;
    if (d->kind != ACT_SHED)
        *(d->knob == KNOB_SEQS ? &m->seqs : &m->tokens) = d->to;
    row->value[d->knob == KNOB_SEQS ? KNOB_SEQS : KNOB_TOKENS] = d->to;
    row->wall_us = wall_us;
    policy_applied(m->policy, d, unit(m) > 0.02);
    (void)state_save(m->dir, &m->state); /* a full disk is another test's */
}

/* What is asked for now and then: the page's charts and lists. */
static void show(struct month *m, uint32_t now_s)
{
    ek_buf_clear(&m->text);
    (void)history_json(m->history, now_s - 7200, 10, &m->text);
    (void)decisions_json(m->decisions, "month", 200, &m->text);
    (void)view_json(&m->view, &m->text);
    ek_buf_done(&m->text); /* an answer is gone when it was sent */
}

static void poll_once(struct month *m, uint64_t second)
{
    uint64_t at_us = (second + 1) * 1000000, wall_us = START_WALL_US + at_us;
    serve(m, second);
    struct sample s = read_page(m, at_us);
    struct decision d = policy_step(m->policy, &s, at_us);
    m->kinds[d.kind]++;
    if (d.kind != ACT_NONE)
        keep(m, &d, wall_us);
    view_take(&m->view, &s, policy_window(m->policy));
    float row[HISTORY_COLUMNS];
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        row[c] = (float)m->view.value[c % VIEW_COUNT];
    history_push(m->history, wall_us, row);
    if (second % 3600 == 0)
        show(m, (uint32_t)(wall_us / 1000000));
    if (second % DAY_S == DAY_S / 2) /* a reload gives the law its constants anew */
        policy_restart(m->policy, at_us);
    m->polls++;
}

/* Writable memory of the process, whether it is in memory just now or not: what a busy kernel took
 * back comes again and has not grown. */
static double private_bytes(void)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof(line), f) && sscanf(line, "VmData: %lf kB", &kib) != 1)
        continue;
    if (f)
        (void)fclose(f); /* it was only read */
    return kib * 1024;
}

static int month_init(struct month *m)
{
    struct policy_params par;
    *m = (struct month){.rng = 20260101, .seqs = 32, .tokens = 2048};
    policy_defaults(&par);
    par.mode = MODE_ACT;
    par.seqs_max = 32;
    par.tokens_max = 2048;
    par.ttft_slo_s = 10;
    m->dialect = dialect_find("evenkeel");
    m->history = calloc(1, sizeof(*m->history));
    m->decisions = calloc(1, sizeof(*m->decisions));
    (void)snprintf(m->dir, sizeof(m->dir), "/tmp/evenkeel-month-XXXXXX");
    if (!m->history || !m->decisions || !mkdtemp(m->dir) || policy_new(&par, &m->policy) < 0)
        return -1;
    policy_limits(m->policy, m->seqs, m->tokens);
    return 0;
}

static void month_done(struct month *m)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/state.json", m->dir);
    (void)unlink(path);
    (void)rmdir(m->dir); /* what is left in it is worth a look */
    policy_free(m->policy);
    state_free(&m->state);
    ek_buf_done(&m->page);
    ek_buf_done(&m->text);
    free(m->history);
    free(m->decisions);
}

int main(int argc, char **argv)
{
    uint64_t days = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    double allocated = 0, private = 0, held = 0, pages = 0;
    struct month m;
    if (days < 2 || month_init(&m) < 0) {
        (void)fprintf(stderr, "usage: sim_month [DAYS], 2 at least\n");
        return 2;
    }
    for (uint64_t day = 0; day < days; day++) {
        for (uint64_t s = 0; s < DAY_S; s += POLL_S)
            poll_once(&m, day * DAY_S + s);
        held = (double)mallinfo2().uordblks;
        pages = private_bytes();
        if (day == 0) {
            allocated = held;
            private = pages;
        }
    }
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    (void)printf("%llu polls in %llu days: %llu cuts, %llu raises, %llu notes, %llu bad pages; "
                 "allocated %.0f -> %.0f KiB, private %.2f -> %.2f MiB, %.1f us a poll\n",
                 (unsigned long long)m.polls, (unsigned long long)days,
                 (unsigned long long)m.kinds[ACT_LOWER], (unsigned long long)m.kinds[ACT_RAISE],
                 (unsigned long long)m.kinds[ACT_NOTE], (unsigned long long)m.bad, allocated / 1024,
                 held / 1024, private / 1048576, pages / 1048576,
                 ((double)used.ru_utime.tv_sec * 1e6 + (double)used.ru_utime.tv_usec) /
                     (double)m.polls);
    bool grew = held > allocated + GROWS_BYTES;
#ifndef EK_CHECK /* sanitizers keep what was freed */
    grew |= pages > private + GROWS_PRIVATE;
#endif
    if (grew)
        (void)fprintf(stderr, "it grew after the first day\n");
    bool idle = m.kinds[ACT_LOWER] == 0 || m.kinds[ACT_RAISE] == 0 || m.bad == 0;
    if (idle)
        (void)fprintf(stderr, "nothing happened that could have grown\n");
    month_done(&m);
    return grew || idle;
}

/*
 * The control law against a modelled server: block pool, decodes first, prompts in chunks under the
 * token budget, last come first preempted with recomputation, limits that lower by draining. The
 * server's state is rendered as a real metrics page each poll, so that the parser is in the loop;
 * pages are damaged at random, writes fail, servers restart.
 *
 * Each run is a random server, load and set of constants from a seed that is printed when something
 * is wrong. At each poll the invariants I1-I7, I9, I12, I18, I22 and I23 of the law are checked.
 * One fixed scenario shows what the law is for: under constant overload preemptions fall, and the
 * limit climbs back afterwards.
 *
 * Usage: sim_control [RUNS [FIRST_SEED]]; RUNS also by $SEEDS.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/engines/sample.h"
#include "supervisor/law/policy.h"
#include "tests/share.h"
#include "tests/sim/control_plant.h"

#ifdef EK_CHECK
#define RUNS 1000 /* sanitizers take their time */
#else
#define RUNS 10000
#endif
#define JOBS   2
#define BASE_S 0.02
#define ROW_S  0.00006

static void render(const struct sim_plant *p, bool vllm, struct ek_buf *out)
{
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"process_start_time_seconds", p->start_s},
        {"vllm:kv_cache_usage_perc{engine=\"0\"}", 1 - (double)p->free / p->blocks},
        {"vllm:num_requests_running{engine=\"0\"}", p->running},
        {"vllm:num_requests_waiting{engine=\"0\"}", p->queued},
        {"vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"}", p->queued},
        {"vllm:num_preemptions_total{engine=\"0\"}", p->preemptions},
        {"vllm:prompt_tokens_total{engine=\"0\"}", p->prompts},
        {"vllm:generation_tokens_total{engine=\"0\"}", p->generated},
        {"vllm:request_success_total{engine=\"0\",finished_reason=\"length\"}", p->finished},
        {"vllm:inter_token_latency_seconds_bucket{le=\"0.025\"}", p->itl[0]},
        {"vllm:inter_token_latency_seconds_bucket{le=\"0.1\"}", p->itl[1]},
        {"vllm:inter_token_latency_seconds_bucket{le=\"0.5\"}", p->itl[2]},
        {"vllm:inter_token_latency_seconds_bucket{le=\"+Inf\"}", p->itl[3]},
        {"evenkeel_recomputed_tokens_total", p->recomputed},
        {"evenkeel_engine_steps_total", p->steps},
        {"evenkeel_max_gap_seconds", p->gap_s},
        {"evenkeel_limit{limit=\"max_num_running_seqs\"}", p->seqs},
        {"evenkeel_limit{limit=\"max_num_batched_tokens\"}", p->tokens},
        {"evenkeel_limit{limit=\"queue_deadline_s\"}", p->deadline_s},
        {"evenkeel_limit{limit=\"watermark\"}", p->reserve},
        {"evenkeel_queue_oldest_seconds", oldest_s(p)},
    };
    ek_buf_clear(out);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!vllm || strncmp(rows[i].name, "evenkeel", 8) != 0)
            (void)ek_buf_printf(out,
                                rows[i].value == floor(rows[i].value) ? "%s %.0f\n" : "%s %.9g\n",
                                rows[i].name, rows[i].value);
    }
}

struct control_run {
    uint64_t seed, rng;
    struct sim_plant plant;
    struct policy *policy, *twin; /* the twin sees the same: I23 */
    struct policy_params par;
    const struct dialect *dialect;
    struct sample last;
    struct ek_buf page;
    double poll_s, fault;
    uint64_t cut_us, flip_us[256];
    uint32_t flips, cuts, raises, reverts, sheds, reserves;
    uint64_t late_us; /* since when the page shows somebody late, 0 = nobody */
    uint64_t seen_us, harmed_us, reserve_us; /* good sample; one before a preemption; change */
    double harmed;                           /* preemptions seen so far */
    int direction[KNOB_COUNT];
    struct decision decided; /* by the last poll */
};

static uint64_t in_us(double seconds)
{
    return (uint64_t)(seconds * 1e6);
}

static void wrong(const struct control_run *r, const struct decision *d, const char *what)
{
    (void)fprintf(stderr, "seed %llu at %.1f s: %s; %s %s %u -> %u: %s\n",
                  (unsigned long long)r->seed, r->plant.now_s, what, action_name(d->kind),
                  reason_name(d->reason), d->from, d->to, d->why);
    exit(1);
}

static void plant_init(struct sim_plant *p, uint64_t *rng)
{
    *p = (struct sim_plant){.rng = next(rng), .start_s = 1e9, .base_s = BASE_S, .row_s = ROW_S};
    p->blocks = p->free = upto(rng, 100, 1000);
    p->seqs = p->ceiling_seqs = upto(rng, 8, RUNNING);
    p->tokens = p->ceiling_tokens = upto(rng, 16, 256) * 16;
    p->prompt_most = upto(rng, 32, 400);
    p->out_most = upto(rng, 32, 600);
}

static void run_init(struct control_run *r, uint64_t seed)
{
    *r = (struct control_run){.seed = seed, .rng = seed * 0x9e3779b97f4a7c15ull + 1};
    for (int i = 0; i < 8; i++)
        (void)next(&r->rng);
    plant_init(&r->plant, &r->rng);
    struct policy_params *par = &r->par;
    policy_defaults(par);
    static const double promises[] = {0, 0, 3, 10};
    par->ttft_slo_s = promises[next(&r->rng) % 4];
    r->plant.own_deadline_s = next(&r->rng) % 4 == 0 ? 20 : 0;
    r->plant.deadline_s = par->queue_start_s = r->plant.own_deadline_s;
    bool fast = next(&r->rng) % 3 == 0;
    r->poll_s = fast ? 0.5 : uniform(&r->rng, 1, 5);
    par->seqs_min = upto(&r->rng, 1, 4);
    par->seqs_max = r->plant.ceiling_seqs;
    par->tokens_max = r->plant.ceiling_tokens;
    par->tokens_min = r->plant.ceiling_tokens < 256 ? r->plant.ceiling_tokens : 256;
    par->itl_slo_s = next(&r->rng) % 4 == 0 ? 0.1 : 0;
    par->drift_quiet_s = uniform(&r->rng, 30, 300);
    par->drift_every_s = uniform(&r->rng, 5, 60);
    par->reserve_most = next(&r->rng) % 3 == 0 ? 0 : uniform(&r->rng, 0.02, 0.3);
    par->reserve_back_s = uniform(&r->rng, 5, 60);
    r->plant.own_reserve = next(&r->rng) % 2 ? 0.01 : uniform(&r->rng, 0.005, 0.1);
    r->plant.reserve = par->reserve_start = r->plant.own_reserve;
    if (fast) {
        par->window_s = 4;
        par->warmup_s = 2;
        par->settle_s = par->raise_after_cut_s = 4;
        par->effect_s = 8;
        par->raise_every_s = 2;
    }
    uint64_t mode = next(&r->rng) % 10;
    par->mode = mode == 0 ? MODE_OBSERVE : mode == 1 ? MODE_ADVISE : MODE_ACT;
    bool vllm = next(&r->rng) % 4 == 0;
    r->dialect = dialect_find(vllm ? "vllm" : "evenkeel");
    r->plant.whole = !vllm && next(&r->rng) % 2;
    r->fault = next(&r->rng) % 2 ? 0 : uniform(&r->rng, 0, 0.3);
    if (policy_new(par, &r->policy) < 0 || policy_new(par, &r->twin) < 0)
        abort();
    policy_limits(r->policy, r->plant.seqs, r->plant.tokens);
    policy_limits(r->twin, r->plant.seqs, r->plant.tokens);
}

static void run_done(struct control_run *r)
{
    policy_free(r->policy);
    policy_free(r->twin);
    ek_buf_done(&r->page);
}

static void restart_plant(struct control_run *r)
{
    struct sim_plant *p = &r->plant;
    uint32_t limits[2] = {p->seqs, p->tokens};
    struct sim_plant fresh = {.rng = p->rng,
                              .blocks = p->blocks,
                              .free = p->blocks,
                              .seqs = limits[0],
                              .tokens = limits[1],
                              .ceiling_seqs = p->ceiling_seqs,
                              .ceiling_tokens = p->ceiling_tokens,
                              .now_s = p->now_s,
                              .arrivals_s = p->now_s,
                              .start_s = p->start_s + p->now_s + 1,
                              .whole = p->whole,
                              .base_s = p->base_s,
                              .row_s = p->row_s,
                              .rate = p->rate,
                              .prompt_most = p->prompt_most,
                              .out_most = p->out_most,
                              .own_deadline_s = p->own_deadline_s,
                              .deadline_s = p->own_deadline_s,
                              .own_reserve = p->own_reserve,
                              .reserve = p->own_reserve};
    *p = fresh;
}

/* Sometimes damages the page, or loses it. */
static struct sample scrape(struct control_run *r)
{
    struct sample s;
    uint64_t at_us = (uint64_t)(r->plant.now_s * 1e6) + 1;
    render(&r->plant, r->dialect == dialect_find("vllm"), &r->page);
    if (uniform(&r->rng, 0, 1) < r->fault) {
        switch (next(&r->rng) % 4) {
        case 0: sample_missing(at_us, &s); return s;
        case 1: r->page.len = next(&r->rng) % r->page.len; break;
        case 2: r->page.data[next(&r->rng) % r->page.len] = (char)next(&r->rng); break;
        default: (void)ek_buf_puts(&r->page, "vllm:kv_cache_usage_perc NaN\n"); break;
        }
    }
    sample_parse(r->dialect, r->page.data, r->page.len, at_us, &s);
    sample_compare(&s, &r->last);
    if (s.good)
        r->last = s;
    return s;
}

static void check_raise(const struct control_run *r, const struct decision *d,
                        const struct sample *s, uint64_t now_us)
{
    double usage = s->value[SIG_KV_USAGE], running = s->value[SIG_RUNNING];
    bool seqs = d->knob == KNOB_SEQS;
    if (seqs && d->to - d->from > r->par.raise_step)
        wrong(r, d, "I3: a raise by more than the step");
    if (r->cut_us && now_us < r->cut_us + (uint64_t)(r->par.raise_after_cut_s * 1e6))
        wrong(r, d, "I4: a raise right after a cut");
    if (!seqs)
        return;
    if (d->reason != REASON_DRIFT_BACK && (!(s->value[SIG_WAITING] > 0) || running < 0.9 * d->from))
        wrong(r, d, "I5: a raise of a limit that does not bind");
    if (usage + (running > 0 ? (d->to - d->from) * usage / running : 0) > r->par.feedforward + 1e-9)
        wrong(r, d, "I5: a raise into a cache that would be too full");
}

static void check_flips(struct control_run *r, const struct decision *d, uint64_t now_us)
{
    int direction = d->kind == ACT_LOWER ? -1 : 1, in = 0;
    if (r->direction[d->knob] && r->direction[d->knob] != direction)
        r->flip_us[r->flips++ % 256] = now_us;
    r->direction[d->knob] = direction;
    for (uint32_t i = 0; i < r->flips && i < 256; i++)
        in += now_us - r->flip_us[i] < 900000000ull;
    if (in > (int)r->par.osc_freeze)
        wrong(r, d, "I22: too many changes of direction in 15 minutes");
}

/* The deadline goes to the promise only from the server's own and when somebody was late for half
 * of it without a break, and back only from the promise. */
static void check_shed(const struct control_run *r, const struct decision *d,
                       const struct sample *s, uint64_t now_us)
{
    double slo_s = r->par.ttft_slo_s * r->par.shed_share, own_s = r->par.queue_start_s;
    uint32_t slo = (uint32_t)lround(slo_s * 1000), own = (uint32_t)lround(own_s * 1000);
    bool late = s->value[SIG_QUEUE_OLDEST_S] > slo_s / 2;
    if (!(slo_s > 0) || (own_s > 0 && own_s <= slo_s))
        wrong(r, d, "a deadline without a promise, or above one that is shorter");
    if (!(d->from == own && d->to == slo) && !(d->from == slo && d->to == own))
        wrong(r, d, "another deadline than the promise and the server's own");
    if ((d->to == slo) != late)
        wrong(r, d, "the queue is not what was said");
    if (d->to == slo && (!r->late_us || now_us - r->late_us < (uint64_t)(fmax(1, slo_s / 2) * 1e6)))
        wrong(r, d, "a burst is no standing queue");
}

static void track_late(struct control_run *r, const struct sample *s, uint64_t now_us)
{
    if (!sample_has(s, SIG_QUEUE_OLDEST_S))
        return;
    if (s->value[SIG_QUEUE_OLDEST_S] <= r->par.ttft_slo_s * r->par.shed_share / 2)
        r->late_us = 0;
    else if (!r->late_us)
        r->late_us = now_us;
}

/* More only for preemptions and after the last step has settled, less only without any and slowly;
 * always between the server's own and the most. */
static void check_reserve(const struct control_run *r, const struct decision *d, uint64_t now_us)
{
    double own = r->par.reserve_start, most = r->par.reserve_most, to = d->to / 1000.0;
    bool more = d->reason == REASON_RESERVE_MORE;
    double clear_s = r->par.window_s - 3 * r->poll_s;
    if (!(most > 0) || to < own - 0.0006 || to > fmax(most, own) + 0.0006)
        wrong(r, d, "I1: a reserve out of bounds");
    if (more != (d->to > d->from) || to - d->from / 1000.0 > r->par.reserve_step + 0.0011)
        wrong(r, d, "I3: another step of the reserve than was said");
    if (r->cut_us && now_us < r->cut_us + in_us(more ? r->par.settle_s : r->par.raise_after_cut_s))
        wrong(r, d, "I4: the reserve moves before a cut has settled");
    if (more && (!r->harmed_us || now_us > r->harmed_us + in_us(r->par.window_s + 1)))
        wrong(r, d, "more reserve without a preemption");
    if (!more && r->harmed_us && clear_s > 0 && now_us < r->harmed_us + in_us(clear_s))
        wrong(r, d, "less reserve while requests are thrown out");
    if (!more && r->reserve_us && now_us < r->reserve_us + in_us(r->par.reserve_back_s))
        wrong(r, d, "the reserve goes back too fast");
}

static void track_harm(struct control_run *r, const struct sample *s, uint64_t now_us)
{
    if (!sample_has(s, SIG_PREEMPTIONS))
        return;
    if (s->value[SIG_PREEMPTIONS] > r->harmed)
        r->harmed_us = r->seen_us;
    r->harmed = s->value[SIG_PREEMPTIONS];
    r->seen_us = now_us;
}

static void check(struct control_run *r, const struct decision *d, const struct sample *s,
                  uint64_t now_us)
{
    const struct sim_plant *p = &r->plant;
    bool change = d->kind == ACT_LOWER || d->kind == ACT_RAISE || d->kind == ACT_REVERT ||
                  d->kind == ACT_SHED || d->kind == ACT_RESERVE;
    if (d->kind == ACT_RESTART || d->kind == ACT_DRAIN)
        wrong(r, d, "I9: a restart");
    if (d->act && (!change || r->par.mode != MODE_ACT))
        wrong(r, d, "I7: acts though it must not");
    if (r->par.mode == MODE_OBSERVE && change)
        wrong(r, d, "I7: proposes in observe mode");
    if (!d->why[0])
        wrong(r, d, "I18: no reason");
    if (!change)
        return;
    if (!sample_has(s, SIG_KV_USAGE) || !sample_has(s, SIG_RUNNING) || !sample_has(s, SIG_WAITING))
        wrong(r, d, "I6: a change on a bad sample");
    if (d->kind == ACT_SHED) {
        check_shed(r, d, s, now_us);
        return;
    }
    if (d->kind == ACT_RESERVE) {
        check_reserve(r, d, now_us);
        return;
    }
    uint32_t low = d->knob == KNOB_SEQS ? r->par.seqs_min : r->par.tokens_min;
    uint32_t high = d->knob == KNOB_SEQS ? r->par.seqs_max : r->par.tokens_max;
    if (d->to < low || d->to > high)
        wrong(r, d, "I1: out of bounds");
    if (d->knob == KNOB_SEQS ? d->to > p->tokens : d->to < p->seqs)
        wrong(r, d, "I2: fewer tokens than sequences");
    if (d->kind == ACT_RAISE)
        check_raise(r, d, s, now_us);
    if (d->kind == ACT_LOWER && r->cut_us && now_us < r->cut_us + (uint64_t)(r->par.settle_s * 1e6))
        wrong(r, d, "I4: a second cut before the first one settled");
}

static void poll_once(struct control_run *r)
{
    struct sim_plant *p = &r->plant;
    run_until(p, p->now_s + r->poll_s * uniform(&r->rng, 0.9, 1.1));
    if (r->fault > 0 && next(&r->rng) % 500 == 0)
        restart_plant(r);
    struct sample s = scrape(r);
    uint64_t now_us = s.at_us;
    struct decision d = policy_step(r->policy, &s, now_us);
    struct decision twin = policy_step(r->twin, &s, now_us);
    r->decided = d;
    track_late(r, &s, now_us);
    track_harm(r, &s, now_us);
    if (d.kind != twin.kind || d.to != twin.to || strcmp(d.why, twin.why) != 0)
        wrong(r, &d, "I23: the same samples gave another decision");
    check(r, &d, &s, now_us);
    if (!d.act)
        return;
    bool ok = !(r->fault > 0 && next(&r->rng) % 20 == 0);
    policy_applied(r->policy, &d, ok);
    policy_applied(r->twin, &twin, ok);
    if (!ok)
        return;
    if (d.kind == ACT_SHED) {
        p->deadline_s = d.to / 1000.0;
        r->sheds++;
        return;
    }
    if (d.kind == ACT_RESERVE) {
        p->reserve = d.to / 1000.0;
        r->reserve_us = now_us;
        if (d.reason == REASON_RESERVE_MORE)
            r->cut_us = now_us;
        r->reserves++;
        return;
    }
    *(d.knob == KNOB_SEQS ? &p->seqs : &p->tokens) = d.to;
    check_flips(r, &d, now_us);
    if (d.kind == ACT_LOWER)
        r->cut_us = now_us;
    r->cuts += d.kind == ACT_LOWER;
    r->raises += d.kind == ACT_RAISE;
    r->reverts += d.kind == ACT_REVERT;
}

/* A load of phases: what the pool can just bear, times a random factor. */
static void random_run(struct control_run *r)
{
    struct sim_plant *p = &r->plant;
    double work = (p->prompt_most + p->out_most) / 2.0;
    double bear = p->blocks * BLOCK / work / (p->out_most / 2.0 * 0.03);
    for (int phase = 0; phase < 5; phase++) {
        static const double factors[] = {0.2, 0.8, 1.5, 3, 0};
        p->rate = bear * factors[next(&r->rng) % 5];
        p->out_most = upto(&r->rng, 32, 600);
        double until_s = p->now_s + uniform(&r->rng, 20, 110);
        while (p->now_s < until_s)
            poll_once(r);
    }
}

/* Constant overload, then little: with the law and with the limit left alone. */
static void overload(bool controlled, double *ret_preemptions, double *ret_generated,
                     uint32_t *ret_low, uint32_t *ret_end)
{
    struct control_run r;
    run_init(&r, 7);
    struct sim_plant *p = &r.plant;
    r.fault = 0;
    r.poll_s = 1;
    r.dialect = dialect_find("evenkeel");
    *p = (struct sim_plant){.rng = 99,
                            .start_s = 1e9,
                            .base_s = BASE_S,
                            .row_s = ROW_S,
                            .blocks = 300,
                            .free = 300,
                            .seqs = 64,
                            .tokens = 1024,
                            .ceiling_seqs = 64,
                            .ceiling_tokens = 1024,
                            .prompt_most = 100,
                            .out_most = 600,
                            .rate = 4};
    policy_free(r.policy);
    policy_free(r.twin);
    policy_defaults(&r.par);
    r.par.seqs_min = 2;
    r.par.seqs_max = 64;
    r.par.tokens_max = 1024;
    r.par.reserve_most = 0; /* the sequences alone */
    r.par.drift_quiet_s = 120;
    r.par.drift_every_s = 10;
    r.par.mode = controlled ? MODE_ACT : MODE_OBSERVE;
    if (policy_new(&r.par, &r.policy) < 0 || policy_new(&r.par, &r.twin) < 0)
        abort();
    while (p->now_s < 200) /* the cuts */
        poll_once(&r);
    double preemptions = p->preemptions, generated = p->generated;
    uint32_t low = p->seqs;
    while (p->now_s < 600) { /* what is left of it */
        poll_once(&r);
        low = p->seqs < low ? p->seqs : low;
    }
    *ret_preemptions = p->preemptions - preemptions;
    *ret_generated = p->generated - generated;
    p->rate = 0.02;
    p->queued = 0;
    while (p->now_s < 1200)
        poll_once(&r);
    *ret_low = low;
    *ret_end = p->seqs;
    run_done(&r);
}

static int show_overload(void)
{
    double with, without, made_with, made_without;
    uint32_t low, end, same;
    overload(true, &with, &made_with, &low, &end);
    overload(false, &without, &made_without, &same, &same);
    (void)printf(
        "overload, 400 s: preemptions %.0f -> %.0f, generated tokens %.0f -> %.0f, limit 64 "
        "-> %u -> %u\n",
        without, with, made_without, made_with, low, end);
    if (with > 0.5 * without || low >= 64 || end != 64 || made_with < 0.8 * made_without) {
        (void)fprintf(stderr, "the law did not do what it is for\n");
        return 1;
    }
    return 0;
}

struct control_sums {
    uint64_t cuts, raises, reverts, sheds, reserves;
};

static struct control_sums run_some(uint64_t first, uint64_t end, uint64_t step)
{
    struct control_sums sums = {0};
    for (uint64_t seed = first; seed < end; seed += step) {
        struct control_run r;
        if (!share_takes(seed / step))
            continue;
        run_init(&r, seed);
        random_run(&r);
        sums.cuts += r.cuts;
        sums.raises += r.raises;
        sums.reverts += r.reverts;
        sums.sheds += r.sheds;
        sums.reserves += r.reserves;
        run_done(&r);
    }
    return sums;
}

/* Every JOBS-th seed in a process of its own. False when one of them found something wrong. */
static bool run_all(uint64_t first, uint64_t runs, struct control_sums *ret_sums)
{
    int ends[JOBS][2];
    pid_t pid[JOBS];
    bool fine = true;
    for (uint32_t i = 0; i < JOBS; i++) {
        if (pipe(ends[i]) < 0 || (pid[i] = fork()) < 0)
            abort();
        if (pid[i] == 0) {
            struct control_sums sums = run_some(first + i, first + runs, JOBS);
            _exit(write(ends[i][1], &sums, sizeof(sums)) != (ssize_t)sizeof(sums));
        }
        close(ends[i][1]);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        struct control_sums one = {0};
        int status = 1;
        fine &= read(ends[i][0], &one, sizeof(one)) == (ssize_t)sizeof(one);
        fine &= waitpid(pid[i], &status, 0) == pid[i] && status == 0;
        close(ends[i][0]);
        ret_sums->cuts += one.cuts;
        ret_sums->raises += one.raises;
        ret_sums->reverts += one.reverts;
        ret_sums->sheds += one.sheds;
        ret_sums->reserves += one.reserves;
    }
    return fine;
}

int main(int argc, char **argv)
{
    const char *asked = argc > 1 ? argv[1] : getenv("SEEDS");
    uint64_t runs = asked ? strtoull(asked, NULL, 10) : RUNS;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct control_sums sums = {0};
    if (!run_all(first, runs, &sums))
        return 1;
    (void)printf("%llu runs: %llu cuts, %llu raises, %llu taken back, %llu deadlines, %llu "
                 "reserves; invariants held\n",
                 (unsigned long long)runs, (unsigned long long)sums.cuts,
                 (unsigned long long)sums.raises, (unsigned long long)sums.reverts,
                 (unsigned long long)sums.sheds, (unsigned long long)sums.reserves);
    return show_overload();
}

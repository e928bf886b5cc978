/*
 * The simulated server on which bench_control.c judges controllers. One loop of virtual time
 * (live_through()): arrivals, clients that give up, steps of the real scheduler with the modelled
 * cost, planned ahead as the server does, and once a second the controller. A kill closes the
 * scheduler and opens a new one after the downtime; what was open is lost, as with a real process.
 */
#include "tests/bench/plant.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/bench/samples.h"
#include "server/engine/sched.h"

#define VOCAB       32000u
#define BLOCK       16u
#define WEIGHTS_US  8000.0 /* as in schedsim.h */
#define ROW_US      80.0
#define CONTEXT_US  0.0655
#define BATCH_GUESS 32.0
#define LIVE_MOST   8192u
#define STOP        7    /* every token is this one; how long an answer is, nobody has said */
#define STARTING_US 60e6 /* the end of a run that does not count: answers still on their way */

static const double itl_bounds[PLANT_BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 2.0, HUGE_VAL};

struct live {
    struct request *req;
    uint32_t seen, prompt;
    bool counts;
    double arrived_us, first_us, last_us, gap_us;
};

struct plant {
    const struct plant_params *p;
    struct engine_params ep;
    struct sched *s;
    struct ek_step *steps[SCHED_DEPTH];
    double end_us[SCHED_DEPTH]; /* of the steps in flight, in the ring of steps */
    double free_us;             /* when the device has done all it was given */
    struct ek_result *result;
    int32_t *prompt;
    struct live *live;
    uint32_t live_count;
    uint64_t next;   /* request, counted over the repeated trace */
    double whole_us; /* of one pass of the trace */
    double begun_us; /* where in it the run begins */
    double now_us, second_us, down_until_us;
    struct plant_limits limits;
    struct plant_view base; /* counters of the processes before */
    double itl[PLANT_BUCKETS];
    int direction;
    double good_tokens, output, seqs_sum, seconds;
    struct samples ttft, gap;
    bool failed;
    struct plant_result out;
};

static double plant_quantile(struct samples *s, double q)
{
    if (s->count == 0)
        return 0;
    sort_numbers(s->at, s->count);
    return quantile(s->at, s->count, q);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint32_t times(uint32_t tokens, double factor, uint32_t most)
{
    double v = tokens * factor;
    return v < 1 ? 1 : v > most ? most : (uint32_t)v;
}

static void lengths(const struct plant *p, uint64_t n, uint32_t *ret_prompt, uint32_t *ret_output)
{
    const struct trace_request *q = &p->p->trace->request[n % p->p->trace->count];
    uint32_t most = p->p->max_model_len;
    *ret_output = times(q->output, p->p->output_factor, most / 2);
    *ret_prompt = times(q->prompt, p->p->prompt_factor, most - *ret_output);
}

/* Processes: the scheduler and its device */

static uint64_t reserve_of(const struct plant_limits *l)
{
    return (uint64_t)((l->reserve > 0 ? l->reserve : PLANT_RESERVE) * 1e6);
}

static int open_process(struct plant *p)
{
    const struct plant_params *q = p->p;
    uint32_t blocks = 1 + q->pool_tokens / BLOCK;
    struct ek_step_ceiling c;
    p->ep = (struct engine_params){.max_seqs = q->max_seqs,
                                   .max_batched_tokens = q->budget,
                                   .max_model_len = q->max_model_len,
                                   .block_size = BLOCK,
                                   .blocks = blocks,
                                   .vocab = VOCAB,
                                   .depth = q->depth,
                                   .gap_us = ENGINE_GAP_CPU_US,
                                   .hash_secret = {q->seed, ~q->seed}};
    p->ep.limits.value[LIMIT_RUNNING_SEQS] = p->limits.seqs;
    p->ep.limits.value[LIMIT_BATCHED_TOKENS] = p->limits.tokens;
    p->ep.limits.value[LIMIT_WATERMARK] = reserve_of(&p->limits);
    p->ep.limits.value[LIMIT_PREFIX_CACHING] = 1;
    p->ep.limits.value[LIMIT_STALLED_SHARE] = 10000; /* the server's own */
    p->ep.limits.value[LIMIT_QUEUE_DEADLINE] = (uint64_t)(p->limits.deadline_s * 1e6);
    p->ep.limits.ceiling[LIMIT_QUEUED_REQS] = LIVE_MOST;
    sched_ceiling(&p->ep, &c);
    int r = sched_new(&p->ep, &p->s);
    if (r == 0 && !p->result)
        p->result = calloc(1, ek_result_size(c.seqs));
    for (uint32_t i = 0; r == 0 && i < SCHED_DEPTH; i++) {
        if (!p->steps[i])
            p->steps[i] = calloc(1, ek_step_size(&c));
        r = p->result && p->steps[i] ? 0 : -ENOMEM;
    }
    p->free_us = 0;
    return r;
}

static void close_process(struct plant *p)
{
    for (uint32_t i = 0; i < p->live_count; i++)
        request_unref(p->live[i].req);
    p->live_count = 0;
    sched_free(p->s);
    p->s = NULL;
}

static void view(const struct plant *p, struct plant_view *v)
{
    struct engine_stats st;
    *v = p->base;
    sched_stats(p->s, (uint64_t)p->now_us + 1, &st);
    v->now_s = p->now_us / 1e6;
    v->usage = st.blocks_total ? (double)st.blocks_used / (double)st.blocks_total : 0;
    v->running = st.running;
    v->waiting = st.waiting;
    v->preemptions += (double)st.preemptions;
    v->recomputed += (double)st.recomputed_tokens;
    v->prompts += (double)st.prompt_tokens;
    v->generated += (double)st.generation_tokens;
    v->steps += (double)st.steps;
    v->oldest_s = (double)st.oldest_wait_us / 1e6;
    v->gap_s = (double)st.largest_gap_us / 1e6;
    v->step_tokens = st.step_rows;
    v->finished += (double)st.finished[REQ_FIN_LENGTH] + (double)st.finished[REQ_FIN_STOP];
    memcpy(v->itl, p->itl, sizeof(v->itl));
    v->limits = p->limits;
    v->lives = p->out.restarts + 1;
}

void plant_kill(struct plant *p, double down_s)
{
    for (uint32_t i = 0; i < p->live_count; i++)
        p->out.killed += p->live[i].counts;
    view(p, &p->base);
    close_process(p);
    p->down_until_us = p->now_us + down_s * 1e6;
    p->out.restarts++;
    p->out.down_s += down_s;
    p->failed |= open_process(p) != 0;
}

void plant_set(struct plant *p, const struct plant_limits *limits)
{
    struct limits l = p->ep.limits;
    int direction = limits->seqs < p->limits.seqs ? -1 : limits->seqs > p->limits.seqs ? 1 : 0;
    if (direction) {
        p->out.changes++;
        p->out.flips += p->direction && direction != p->direction;
        p->direction = direction;
    }
    p->limits = *limits;
    l.value[LIMIT_WATERMARK] = reserve_of(limits);
    l.value[LIMIT_RUNNING_SEQS] = limits->seqs;
    l.value[LIMIT_BATCHED_TOKENS] = limits->tokens;
    l.value[LIMIT_QUEUE_DEADLINE] = (uint64_t)(limits->deadline_s * 1e6);
    sched_limits(p->s, &l, (uint64_t)p->now_us + 1);
}

/* Clients */

static double arrival_us(const struct plant *p, uint64_t n)
{
    const struct trace *t = p->p->trace;
    uint64_t pass = n / t->count, i = n % t->count;
    double last = t->request[t->count - 1].at_s;
    double at = t->timed && last > 0 ? t->request[i].at_s / last : ((double)i + 0.5) / t->count;
    if (!t->timed) /* a gap drawn around its place */
        at += ((double)(mix(p->p->seed + n) >> 11) * 0x1p-53 - 0.5) * 2 / t->count;
    return ((double)pass + (at < 0 ? 0 : at)) * p->whole_us - p->begun_us;
}

static void write_prompt(struct plant *p, uint64_t n, uint32_t tokens)
{
    const struct trace *t = p->p->trace;
    const struct trace_request *q = &t->request[n % t->count];
    uint32_t piece = times(t->hash_tokens ? t->hash_tokens : 1, p->p->prompt_factor, 1u << 30);
    for (uint32_t k = 0; k < tokens; k++) {
        uint64_t key = n << 24 | 1u << 23 | k;
        if (t->hash_tokens && k / piece < q->hashes)
            key = (uint64_t)t->hash[q->hash_at + k / piece] << 32 | k % piece;
        p->prompt[k] = (int32_t)(mix(key + p->p->seed) % VOCAB);
    }
}

/* The server's own prediction when a request comes, server/engine/calls.c. */
static bool is_refused(const struct plant *p)
{
    struct engine_stats st;
    if (p->live_count == LIVE_MOST || p->now_us < p->down_until_us)
        return true;
    if (!(p->limits.deadline_s > 0))
        return false;
    sched_stats(p->s, (uint64_t)p->now_us + 1, &st);
    return st.prefill_rate > 0 && (double)st.queued_tokens / st.prefill_rate > p->limits.deadline_s;
}

static int submit(struct plant *p, uint64_t n)
{
    uint32_t prompt, output, longest = p->p->max_model_len / 2;
    double at = arrival_us(p, n);
    bool counts = at < p->p->seconds * 1e6 - STARTING_US;
    p->out.requests += counts;
    if (is_refused(p)) {
        p->out.refused += counts;
        return 0;
    }
    lengths(p, n, &prompt, &output);
    write_prompt(p, n, prompt);
    const struct req_ask ask = {.prompt = p->prompt,
                                .prompt_tokens = prompt,
                                .max_new_tokens = longest < p->p->max_model_len - prompt
                                                      ? longest
                                                      : p->p->max_model_len - prompt,
                                .min_tokens = output,
                                .stop_ids = {STOP},
                                .stop_count = 1,
                                .sampling.top_p = 1,
                                .arrival_us = (uint64_t)at};
    if (sched_fit(p->s, &ask, NULL) != 0) {
        p->out.refused += counts;
        return 0;
    }
    struct request *q = request_new(&ask);
    if (!q)
        return -ENOMEM;
    request_ref(q);
    int r = sched_submit(p->s, q, (uint64_t)at + 1);
    if (r != 0) {
        request_unref(q);
        request_unref(q);
        p->out.refused += counts;
        return r == -EBUSY ? 0 : r;
    }
    p->live[p->live_count++] =
        (struct live){.req = q, .arrived_us = at, .prompt = prompt, .counts = counts};
    return 0;
}

static void count_itl(struct plant *p, double seconds, uint32_t tokens)
{
    for (int b = 0; b < PLANT_BUCKETS; b++)
        p->itl[b] += seconds <= itl_bounds[b] ? tokens : 0;
}

static void conclude(struct plant *p, const struct live *l)
{
    const struct plant_params *q = p->p;
    if (!l->counts)
        return;
    if (l->req->finish != REQ_FIN_LENGTH && l->req->finish != REQ_FIN_STOP) {
        p->out.left += l->req->finish == REQ_FIN_ABORT;
        p->out.refused += l->req->finish != REQ_FIN_ABORT; /* the queue deadline */
        return;
    }
    double ttft = (l->first_us - l->arrived_us) / 1e6, gap = l->gap_us / 1e6;
    double tpot = l->seen > 1 ? (l->last_us - l->first_us) / 1e6 / (l->seen - 1) : 0;
    p->out.served++;
    samples_push(&p->ttft, ttft);
    samples_push(&p->gap, gap);
    if (ttft > q->ttft_s || tpot > q->tpot_s || gap > q->gap_s)
        return;
    p->out.good++;
    p->good_tokens += l->seen;
}

static void observe(struct plant *p)
{
    for (uint32_t i = 0; i < p->live_count;) {
        struct live *l = &p->live[i];
        uint32_t out = atomic_load(&l->req->out_count);
        if (out > l->seen) {
            double gap = p->now_us - l->last_us;
            if (l->seen == 0)
                l->first_us = p->now_us;
            else
                count_itl(p, gap / 1e6, out - l->seen);
            if (l->seen && gap > l->gap_us)
                l->gap_us = gap;
            p->output += out - l->seen;
            l->seen = out;
            l->last_us = p->now_us;
        }
        if (atomic_load(&l->req->state) != REQ_DONE) {
            i++;
            continue;
        }
        conclude(p, l);
        request_unref(l->req);
        *l = p->live[--p->live_count];
    }
}

static void give_up(struct plant *p)
{
    for (uint32_t i = 0; i < p->live_count; i++) {
        struct live *l = &p->live[i];
        if (l->seen == 0 && p->now_us - l->arrived_us > p->p->give_up_s * 1e6)
            sched_finish(p->s, l->req, REQ_FIN_ABORT, 0, (uint64_t)p->now_us + 1);
    }
    observe(p);
}

/* Time */

static double cost_us(const struct ek_step *step)
{
    double rows = step->rows * ROW_US, context = 0;
    for (uint32_t i = 0; i < step->seqs; i++)
        context += ek_step_seqs(step)[i].context * CONTEXT_US;
    return (rows > WEIGHTS_US ? rows : WEIGHTS_US) + context;
}

/* Any token will do: what a step computes is checked by tests/sim/sim_engine.c. */
static void answer(const struct ek_step *step, struct ek_result *result)
{
    result->step = step->id;
    result->seqs = step->seqs;
    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        result->seq[i].slot = q->slot;
        result->seq[i].tokens = q->sample;
        result->seq[i].token[0] = STOP;
    }
}

static void start_steps(struct plant *p)
{
    struct flights *f = &p->s->flights;

    while (f->count < p->ep.depth && sched_plan_after(p->s) <= (uint64_t)p->now_us + 1) {
        uint32_t at = flights_place(f, f->count);
        if (sched_plan(p->s, (uint64_t)p->now_us + 1, p->steps[at]) == 0)
            return;
        p->free_us = fmax(p->free_us, p->now_us) + cost_us(p->steps[at]);
        p->end_us[at] = p->free_us;
    }
}

/* To the end of the oldest step, or to when the next one is to be planned beside it. */
static void one_step(struct plant *p, bool *ret_idle)
{
    start_steps(p);
    uint32_t at = p->s->flights.first;
    double plan_us = (double)sched_plan_after(p->s);
    *ret_idle = p->s->flights.count == 0;
    if (*ret_idle) {
        observe(p); /* who was refused for the wait */
        return;
    }
    if (p->s->flights.count < p->ep.depth && plan_us > p->now_us && plan_us < p->end_us[at]) {
        p->now_us = plan_us;
        return;
    }
    answer(p->steps[at], p->result);
    p->now_us = p->end_us[at];
    sched_apply(p->s, p->result, (uint64_t)p->now_us + 1);
    observe(p);
}

static bool plant_failed(const struct plant *p)
{
    return p->failed || p->ttft.failed || p->gap.failed;
}

static int live_through(struct plant *p, plant_control_fn control, void *ctx)
{
    int r = 0;
    while (r == 0 && !plant_failed(p) && p->now_us < p->p->seconds * 1e6) {
        bool idle = true;
        while (r == 0 && arrival_us(p, p->next) <= p->now_us)
            r = submit(p, p->next++);
        if (r == 0 && p->now_us >= p->down_until_us)
            one_step(p, &idle);
        if (idle) { /* to the next thing that can happen */
            double next = fmin(arrival_us(p, p->next), p->second_us);
            p->now_us = next > p->now_us ? next : p->now_us + 1000;
        }
        if (p->now_us < p->second_us)
            continue;
        p->second_us += 1e6 * ceil((p->now_us - p->second_us + 1) / 1e6);
        struct plant_view v;
        give_up(p);
        view(p, &v);
        p->seqs_sum += p->limits.seqs;
        p->seconds++;
        if (control && p->now_us >= p->down_until_us)
            control(ctx, p, &v);
    }
    return plant_failed(p) ? -ENOMEM : r;
}

static void sum_up(struct plant *p)
{
    struct plant_view v;
    double seconds = p->p->seconds - STARTING_US / 1e6;
    view(p, &v);
    for (uint32_t i = 0; i < p->live_count; i++) /* too late for everybody who counts */
        p->out.left += p->live[i].counts;
    p->out.preemptions = (uint64_t)v.preemptions;
    p->out.recomputed_share = v.recomputed / fmax(1, v.prompts + v.generated + v.recomputed);
    p->out.good_per_s = p->out.good / seconds;
    p->out.good_tokens_per_s = p->good_tokens / seconds;
    p->out.output_per_s = p->output / p->p->seconds;
    p->out.ttft_p50_s = plant_quantile(&p->ttft, 0.5);
    p->out.ttft_p99_s = plant_quantile(&p->ttft, 0.99);
    p->out.gap_p99_s = plant_quantile(&p->gap, 0.99);
    p->out.seqs_mean = p->seqs_sum / fmax(1, p->seconds);
}

struct plant_result plant_mean(const struct plant_result *runs, uint32_t count)
{
    struct plant_result m = {0};

    assert(count > 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct plant_result *o = &runs[i];
        m.requests += o->requests;
        m.good += o->good;
        m.served += o->served;
        m.refused += o->refused;
        m.left += o->left;
        m.killed += o->killed;
        m.restarts += o->restarts;
        m.changes += o->changes;
        m.flips += o->flips;
        m.preemptions += o->preemptions;
        m.good_per_s += o->good_per_s / count;
        m.good_tokens_per_s += o->good_tokens_per_s / count;
        m.output_per_s += o->output_per_s / count;
        m.ttft_p50_s += o->ttft_p50_s / count;
        m.ttft_p99_s += o->ttft_p99_s / count;
        m.gap_p99_s += o->gap_p99_s / count;
        m.recomputed_share += o->recomputed_share / count;
        m.down_s += o->down_s / count;
        m.seqs_mean += o->seqs_mean / count;
    }
    uint32_t *counts[] = {&m.requests, &m.good,     &m.served,  &m.refused, &m.left,
                          &m.killed,   &m.restarts, &m.changes, &m.flips};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        *counts[i] /= count;
    m.preemptions /= count;
    return m;
}

int plant_run(const struct plant_params *params, const struct plant_limits *first,
              plant_control_fn control, void *ctx, struct plant_result *ret_result)
{
    struct plant p = {.p = params, .limits = *first, .second_us = 1e6};
    p.live = calloc(LIVE_MOST, sizeof(*p.live));
    p.prompt = calloc(params->max_model_len, sizeof(*p.prompt));
    int r = p.live && p.prompt ? open_process(&p) : -ENOMEM;
    double work_us = 0;
    for (uint32_t i = 0; i < params->trace->count; i++) {
        uint32_t prompt, output;
        lengths(&p, i, &prompt, &output);
        work_us += prompt * ROW_US + output * (WEIGHTS_US / BATCH_GUESS + prompt * CONTEXT_US);
    }
    assert(params->trace->count > 0);
    p.whole_us = work_us / params->load;
    if (params->seed > 1) {
        p.next = mix(params->seed) % params->trace->count;
        p.begun_us = arrival_us(&p, p.next);
    }
    if (r == 0)
        r = live_through(&p, control, ctx);
    if (r == 0) {
        sum_up(&p);
        *ret_result = p.out;
    }
    close_process(&p);
    free(p.live);
    free(p.prompt);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        free(p.steps[i]);
    free(p.result);
    samples_done(&p.ttft);
    samples_done(&p.gap);
    return r;
}

int plant_page(const struct plant_view *v, struct ek_buf *out)
{
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"process_start_time_seconds", 1e9 + v->lives},
        {"vllm:kv_cache_usage_perc", v->usage},
        {"vllm:num_requests_running", v->running},
        {"vllm:num_requests_waiting", v->waiting},
        {"vllm:num_preemptions_total", v->preemptions},
        {"vllm:prompt_tokens_total", v->prompts},
        {"vllm:generation_tokens_total", v->generated},
        {"vllm:request_success_total{finished_reason=\"length\"}", v->finished},
        {"evenkeel_recomputed_tokens_total", v->recomputed},
        {"evenkeel_engine_steps_total", v->steps},
        {"evenkeel_max_gap_seconds", v->gap_s},
        {"evenkeel_queue_oldest_seconds", v->oldest_s},
        {"evenkeel_step_tokens", v->step_tokens},
        {"evenkeel_limit{limit=\"max_num_running_seqs\"}", v->limits.seqs},
        {"evenkeel_limit{limit=\"max_num_batched_tokens\"}", v->limits.tokens},
        {"evenkeel_limit{limit=\"queue_deadline_s\"}", v->limits.deadline_s},
        {"evenkeel_limit{limit=\"watermark\"}",
         v->limits.reserve > 0 ? v->limits.reserve : PLANT_RESERVE},
    };
    ek_buf_clear(out);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        (void)ek_buf_printf(out, "%s %.17g\n", rows[i].name, rows[i].value);
    for (int b = 0; b < PLANT_BUCKETS; b++) {
        char bound[32];
        (void)snprintf(bound, sizeof(bound), "%g", itl_bounds[b]);
        (void)ek_buf_printf(out, "vllm:inter_token_latency_seconds_bucket{le=\"%s\"} %.17g\n",
                            b == PLANT_BUCKETS - 1 ? "+Inf" : bound, v->itl[b]);
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

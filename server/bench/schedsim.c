/*
 * The engine of `evenkeel-bench replay` and of the scheduler's benchmarks (tests/bench): it plans
 * and applies steps of a workload as fast as the host can, while time is the model's. Steps overlap
 * as in the server: start_steps() plans ahead as far as the depth allows, land_step() applies the
 * oldest. What is measured is the scheduler's own time and its allocations, never the model's.
 */
#include "server/bench/schedsim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "server/bench/samples.h"
#include "server/engine/sched.h"

#define VOCAB         32000u
#define WIDTH         4u     /* of a hidden state */
#define WEIGHTS_US    8000.0 /* 16 GB at 2 TB/s */
#define ROW_US        80.0   /* 16 GFLOP at 200 TFLOP/s */
#define CONTEXT_US    0.0655 /* 128 KiB at 2 TB/s */
#define COPY_TOKEN_US 6.55   /* 128 KiB at 20 GB/s */
#define BATCH_GUESS   32.0   /* sequences that share a step, for the offered load */
#define IDLE_MOST     1000000u

struct live {
    struct request *req;
    uint32_t seen, index;
    double arrived_us, first_us, last_us;
    double taken_us, begun_us; /* by the scheduler; the first step with a row of it, 0 = none yet */
};

struct schedsim {
    const struct trace *t;
    const struct schedsim_params *p;
    struct engine_params ep;
    struct sched *s;
    struct ek_device *device;
    struct ek_step *steps[SCHED_DEPTH];
    double end_us[SCHED_DEPTH]; /* of the steps in flight, in the ring of steps */
    struct ek_result *result;
    size_t result_bytes;
    double *arrival_us;
    struct live *live;
    uint32_t live_count, next;
    uint32_t open, *held, held_first, held_count; /* of tenant 2: open ones, and held back */
    double now_us, free_us; /* free_us: when the device has done all it was given */
    int32_t *prompt;
    struct samples ttft, itl, host;
    double waste_sum;
    uint64_t waste_steps, entries, running;
    double plan_us; /* host time of planning since the last step that landed */
    struct schedsim_result *out;
};

static double median_of(const double *at, size_t n)
{
    double *copy = malloc((n + 1) * sizeof(*copy));
    double m = 0;

    if (copy && n > 0) {
        memcpy(copy, at, n * sizeof(*copy));
        sort_numbers(copy, n);
        m = copy[n / 2];
    }
    free(copy);
    return m;
}

static struct schedsim_spread spread_of(struct samples *s)
{
    if (s->count == 0)
        return (struct schedsim_spread){0};
    sort_numbers(s->at, s->count);
    return (struct schedsim_spread){quantile(s->at, s->count, 0.5), quantile(s->at, s->count, 0.9),
                                    quantile(s->at, s->count, 0.99)};
}

static double host_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint64_t schedsim_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint32_t schedsim_scaled(uint32_t tokens, uint32_t scale)
{
    return tokens / scale > 0 ? tokens / scale : 1;
}

/* Lengths as they are replayed: at most the model's, at least one token each. */
static void schedsim_lengths(const struct schedsim *r, uint32_t i, uint32_t *ret_prompt,
                             uint32_t *ret_output)
{
    uint32_t most = r->p->max_model_len,
             prompt = schedsim_scaled(r->t->request[i].prompt, r->p->scale);
    uint32_t output = schedsim_scaled(r->t->request[i].output, r->p->scale);

    *ret_output = output < most / 2 ? output : most / 2;
    *ret_prompt = prompt < most - *ret_output ? prompt : most - *ret_output;
}

/* Arrivals in virtual time: the trace's, or drawn, stretched to the wanted load. */
static void set_arrivals(struct schedsim *r)
{
    double work_us = 0, at = 0, last = r->t->request[r->t->count - 1].at_s;

    for (uint32_t i = 0; i < r->t->count; i++) {
        uint32_t prompt, output;
        schedsim_lengths(r, i, &prompt, &output);
        work_us += prompt * ROW_US + output * (WEIGHTS_US / BATCH_GUESS + prompt * CONTEXT_US);
    }
    for (uint32_t i = 0; i < r->t->count && !(r->p->load > 0); i++)
        r->arrival_us[i] = r->t->request[i].at_s * 1e6;
    double whole_us = work_us / r->p->load;
    for (uint32_t i = 0; i < r->t->count && r->p->load > 0; i++) {
        double unit = ((double)(schedsim_mix(r->p->seed + i) >> 11) + 0.5) * 0x1p-53;
        at += -log(unit) * whole_us / r->t->count;
        r->arrival_us[i] = r->t->timed && last > 0 ? r->t->request[i].at_s / last * whole_us : at;
    }
}

/* Of a block. */
static double copy_us(const struct schedsim *r)
{
    return r->p->cost ? r->p->cost->copy_us : COPY_TOKEN_US * r->p->block_size;
}

/* A step's time on the modelled device. */
static double cost_us(const struct schedsim *r, const struct ek_step *step)
{
    const struct schedsim_cost *c = r->p->cost;
    double rows = step->rows * ROW_US, context = 0;

    for (uint32_t i = 0; i < step->seqs; i++)
        context += ek_step_seqs(step)[i].context * (c ? c->context_us : CONTEXT_US);
    for (uint32_t i = 0; c && i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        context += q->rows * (q->context - q->rows / 2.0) * (q->rows > 1 ? c->deep_us : 0);
    }
    double second = r->now_us / 1e6;
    if (c)
        return (c->base_us + step->rows * c->row_us + context + step->copies * copy_us(r)) *
               (second < c->paces ? (double)c->pace[(uint32_t)second] : 1);
    return (rows > WEIGHTS_US ? rows : WEIGHTS_US) + context + step->copies * copy_us(r);
}

static int open_schedsim(struct schedsim *r)
{
    const struct schedsim_params *p = r->p;
    uint32_t blocks = 1 + p->pool_tokens / p->block_size;
    uint32_t offload = p->offload_tokens / p->block_size;
    uint32_t host =
        p->host_tokens + p->offload_tokens > 0 ? 1 + p->host_tokens / p->block_size + offload : 0;
    struct ek_step_ceiling c;

    r->ep = (struct engine_params){.max_seqs = p->max_seqs,
                                   .max_batched_tokens = p->budget,
                                   .max_model_len = p->max_model_len,
                                   .block_size = p->block_size,
                                   .blocks = blocks,
                                   .host_blocks = host,
                                   .offload_blocks = offload,
                                   .vocab = p->vocab ? p->vocab : VOCAB,
                                   .depth = p->depth,
                                   .gap_us = ENGINE_GAP_CPU_US,
                                   .hash_secret = {p->seed, ~p->seed}};
    r->ep.limits.value[LIMIT_RUNNING_SEQS] = p->max_seqs;
    r->ep.limits.value[LIMIT_BATCHED_TOKENS] = p->budget;
    r->ep.limits.value[LIMIT_LONG_PREFILL] = p->long_prefill;
    r->ep.limits.value[LIMIT_WATERMARK] = 10000;
    r->ep.limits.value[LIMIT_STALLED_SHARE] = p->stalled_ppm;
    r->ep.limits.value[LIMIT_PREFIX_CACHING] = 1;
    r->ep.limits.ceiling[LIMIT_QUEUED_REQS] = r->t->count + 1;
    sched_ceiling(&r->ep, &c);
    const struct schedsim_size z = {&c, blocks, host, p->block_size, r->ep.vocab};
    int code = sched_new(&r->ep, &r->s);
    if (code == 0 && p->checker)
        code = p->checker->open(&z, &r->device);
    if (code != 0)
        return code;
    r->result_bytes = ek_result_bytes(c.seqs, c.scores, c.seqs, WIDTH);
    r->result = calloc(1, r->result_bytes);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        r->steps[i] = calloc(1, ek_step_size(&c));
    r->arrival_us = calloc(r->t->count, sizeof(*r->arrival_us));
    r->live = calloc(r->t->count, sizeof(*r->live));
    r->held = calloc(r->t->count, sizeof(*r->held));
    r->prompt = calloc(p->max_model_len, sizeof(*r->prompt));
    return r->result && r->steps[0] && r->steps[1] && r->arrival_us && r->live && r->held &&
                   r->prompt
               ? 0
               : -ENOMEM;
}

static void close_schedsim(struct schedsim *r)
{
    for (uint32_t i = 0; i < r->live_count; i++)
        request_unref(r->live[i].req);
    sched_free(r->s);
    if (r->device)
        r->p->checker->close(r->device);
    for (uint32_t i = 0; i < SCHED_DEPTH; i++)
        free(r->steps[i]);
    free(r->result);
    free(r->arrival_us);
    free(r->live);
    free(r->held);
    free(r->prompt);
    samples_done(&r->ttft);
    samples_done(&r->itl);
    samples_done(&r->host);
}

/* Tokens of a prompt: of its shared pieces by their ids, else of the request alone. */
static void write_prompt(struct schedsim *r, uint32_t i, uint32_t tokens)
{
    const struct trace_request *q = &r->t->request[i];
    uint32_t piece = r->t->hash_tokens > 0 ? schedsim_scaled(r->t->hash_tokens, r->p->scale) : 1;

    for (uint32_t k = 0; k < tokens; k++) {
        uint64_t key = (uint64_t)i << 32 | 1u << 31 | k;
        if (k / piece < q->hashes)
            key = (uint64_t)r->t->hash[q->hash_at + k / piece] << 32 | k % piece;
        r->prompt[k] = (int32_t)(schedsim_mix(key + r->p->seed) % r->ep.vocab);
    }
}

static int schedsim_submit(struct schedsim *r, uint32_t i)
{
    uint32_t prompt, output;

    schedsim_lengths(r, i, &prompt, &output);
    write_prompt(r, i, prompt);
    const struct req_ask ask = {.prompt = r->prompt,
                                .prompt_tokens = prompt,
                                .max_new_tokens = output,
                                .sampling.top_p = 1,
                                .grammar = r->p->form,
                                .grammar_jump_forward = r->p->form != NULL,
                                .grammar_append = r->p->form != NULL,
                                .tenant = {.place = r->p->tenants ? r->t->request[i].tenant : 0},
                                .arrival_us = (uint64_t)r->arrival_us[i]};
    if (sched_fit(r->s, &ask, NULL) != 0) {
        r->out->refused++;
        return 0;
    }
    struct request *q = request_new(&ask);
    if (!q)
        return -ENOMEM;
    request_ref(q);
    int code = sched_submit(r->s, q, (uint64_t)r->arrival_us[i] + 1);
    if (code != 0) {
        request_unref(q);
        request_unref(q);
        return code;
    }
    r->live[r->live_count++] =
        (struct live){.req = q, .index = i, .arrived_us = r->arrival_us[i], .taken_us = r->now_us};
    r->out->requests++;
    r->open += r->t->request[i].tenant == 2;
    r->out->prompt_tokens += prompt;
    return 0;
}

static void write_answer(const struct schedsim *r, const struct live *l)
{
    FILE *f = r->p->answers;

    if (!f)
        return;
    (void)fprintf(f, "%.3f %.3f", (l->first_us - l->arrived_us) / 1e3,
                  (l->last_us - l->arrived_us) / 1e3);
    if (r->p->by_tenant)
        (void)fprintf(f, " %u %.3f %.3f", r->t->request[l->index].tenant,
                      (l->taken_us - l->arrived_us) / 1e3, (l->begun_us - l->arrived_us) / 1e3);
    (void)fputc('\n', f);
}

/* The requests that got tokens by now, and those that have ended. */
static void observe(struct schedsim *r)
{
    for (uint32_t i = 0; i < r->live_count;) {
        struct live *l = &r->live[i];
        uint32_t out = atomic_load(&l->req->out_count);
        if (out > l->seen) {
            if (l->seen == 0) {
                l->first_us = r->now_us;
                samples_push(&r->ttft, (r->now_us - l->arrived_us) / 1e3);
            } else
                samples_push(&r->itl, (r->now_us - l->last_us) / 1e3);
            r->out->output_tokens += out - l->seen;
            l->seen = out;
            l->last_us = r->now_us;
        }
        if (atomic_load(&l->req->state) != REQ_DONE) {
            i++;
            continue;
        }
        write_answer(r, l);
        r->open -= r->t->request[l->index].tenant == 2;
        request_unref(l->req);
        *l = r->live[--r->live_count];
    }
}

static int violated(const struct schedsim *r)
{
    const char *what = r->p->checker->violation(r->device);

    (void)fprintf(stderr, "violation: %s\n", what ? what : "?");
    return EK_EDEVICE;
}

static unsigned long allocations(const struct schedsim *r)
{
    return r->p->checker ? r->p->checker->allocations() : 0;
}

static int begin_step(const struct schedsim *r, const struct ek_step *step)
{
    const struct schedsim_checker *c = r->p->checker;

    return c && (c->backend->forward(r->device, step) != 0 ||
                 c->backend->sample(r->device, step, NULL) != 0)
               ? violated(r)
               : 0;
}

/* Of the oldest step. What its tokens are does not matter without a checker. */
static int end_step(struct schedsim *r, uint32_t at)
{
    const struct schedsim_checker *c = r->p->checker;
    const struct ek_step *step = r->steps[at];

    if (c)
        return c->backend->wait(r->device, r->s->flights.at[at].id, r->result, r->result_bytes,
                                0) != 0 ||
                       r->result->error != 0
                   ? violated(r)
                   : 0;
    *r->result = (struct ek_result){.step = step->id, .seqs = step->seqs};
    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        r->result->seq[i] =
            (struct ek_result_seq){.slot = q->slot,
                                   .tokens = q->sample ? 1 : 0,
                                   .token[0] = (int32_t)(schedsim_mix(step->id + i) % r->ep.vocab)};
    }
    return 0;
}

/* A step that begins then is the first one with rows of some. */
static void note_begun(const struct schedsim *r, double begin_us)
{
    for (uint32_t i = 0; i < r->live_count; i++)
        if (r->live[i].begun_us <= 0 && r->live[i].req->first_scheduled_us != 0)
            r->live[i].begun_us = begin_us;
}

static int start_steps(struct schedsim *r)
{
    while (r->s->flights.count < r->ep.depth && sched_plan_after(r->s) <= (uint64_t)r->now_us + 1) {
        uint32_t at = flights_place(&r->s->flights, r->s->flights.count);
        unsigned long before = allocations(r);
        double from = host_us();
        uint32_t rows = sched_plan(r->s, (uint64_t)r->now_us + 1, r->steps[at]);
        r->plan_us += host_us() - from;
        r->out->allocations += allocations(r) - before;
        if (rows == 0)
            return 0;
        int code = begin_step(r, r->steps[at]);
        if (code != 0)
            return code;
        double begin = r->free_us > r->now_us ? r->free_us : r->now_us;
        note_begun(r, begin);
        r->free_us = begin + cost_us(r, r->steps[at]);
        r->end_us[at] = r->free_us;
        r->entries += r->steps[at]->entries;
        r->running += r->s->entries.running_count;
    }
    return 0;
}

/* What a step leaves. */
static void note_state(struct schedsim *r)
{
    struct schedsim_result *o = r->out;
    struct engine_stats st;

    sched_stats(r->s, (uint64_t)r->now_us + 1, &st);
    o->used_blocks_most =
        st.blocks_used > o->used_blocks_most ? st.blocks_used : o->used_blocks_most;
    o->waiting_most = st.waiting > o->waiting_most ? st.waiting : o->waiting_most;
    if (st.waste_tokens + st.used_tokens > 0) {
        r->waste_sum += (double)st.waste_tokens / (double)(st.waste_tokens + st.used_tokens);
        r->waste_steps++;
    }
}

static int land_step(struct schedsim *r)
{
    uint32_t at = r->s->flights.first;

    int code = end_step(r, at);

    if (code != 0)
        return code;
    r->now_us = r->end_us[at];
    r->result->copy_us = (uint64_t)(r->s->flights.at[at].copies * copy_us(r));
    unsigned long before = allocations(r);
    double from = host_us();
    sched_apply(r->s, r->result, (uint64_t)r->now_us + 1);
    double took = host_us() - from;
    r->out->allocations += allocations(r) - before;
    samples_push(&r->host, r->plan_us + took);
    r->plan_us = 0;
    r->out->steps++;
    observe(r);
    note_state(r);
    return 0;
}

/* The requests that have come by now, less those of tenant 2 beyond what it may have open. */
static int submit_due(struct schedsim *r)
{
    uint32_t most = r->p->open_most != 0 ? r->p->open_most : UINT32_MAX;
    int code = 0;

    for (; r->next < r->t->count && r->arrival_us[r->next] <= r->now_us && code == 0; r->next++) {
        if (r->t->request[r->next].tenant == 2 && r->open >= most)
            r->held[r->held_count++] = r->next;
        else
            code = schedsim_submit(r, r->next);
    }
    while (code == 0 && r->held_first < r->held_count && r->open < most)
        code = schedsim_submit(r, r->held[r->held_first++]);
    return code;
}

/* Goes on to when the next step is to be planned, if that is before the oldest one's end. */
static bool wait_to_plan(struct schedsim *r)
{
    double at = (double)sched_plan_after(r->s);

    if (r->s->flights.count == r->ep.depth || at <= r->now_us ||
        at >= r->end_us[r->s->flights.first])
        return false;
    r->now_us = at;
    return true;
}

static bool is_over(const struct schedsim *r)
{
    if (r->p->lasts_s > 0 && r->now_us >= r->p->lasts_s * 1e6)
        return true;
    return r->next >= r->t->count && r->held_first >= r->held_count && sched_idle(r->s);
}

static int run(struct schedsim *r)
{
    uint32_t idle = 0;
    int code = 0;

    while (code == 0 && !is_over(r)) {
        code = submit_due(r);
        if (code == 0)
            code = start_steps(r);
        if (code == 0 && r->s->flights.count > 0 && wait_to_plan(r))
            continue;
        if (code == 0 && r->s->flights.count > 0) {
            code = land_step(r);
            idle = 0;
        } else if (r->next < r->t->count) {
            r->now_us = r->arrival_us[r->next];
        } else if (++idle > IDLE_MOST) {
            return -EIO;
        }
    }
    return r->ttft.failed || r->itl.failed || r->host.failed ? -ENOMEM : code;
}

static void conclude(struct schedsim *r)
{
    struct schedsim_result *o = r->out;
    const struct engine_stats *st = &r->s->stats;
    double steps = o->steps > 0 ? (double)o->steps : 1;

    o->seconds = r->now_us / 1e6;
    o->output_rate = (double)o->output_tokens / o->seconds;
    o->total_rate = (double)(o->output_tokens + o->prompt_tokens) / o->seconds;
    o->preemptions = st->preemptions;
    o->swapped_in_blocks = st->swapped_in_blocks;
    o->offload_in_blocks = st->offload_in_blocks;
    o->recomputed_share =
        (double)st->recomputed_tokens /
        (double)(o->prompt_tokens + o->output_tokens - st->cached_tokens + st->recomputed_tokens);
    o->waste_share = r->waste_steps > 0 ? r->waste_sum / (double)r->waste_steps : 0;
    o->hits = st->prefix_hits;
    o->jump_forward = st->jump_forward_tokens;
    o->hit_rate = st->prefix_queries > 0 ? (double)st->prefix_hits / (double)st->prefix_queries : 0;
    o->running = (double)r->running / steps;
    o->table_entries = (double)r->entries / steps;
    size_t tenth = r->host.count / 10;
    o->host_early_us = median_of(r->host.at + 2 * tenth, tenth);
    o->host_late_us = median_of(r->host.at + 6 * tenth, tenth);
    o->ttft_ms = spread_of(&r->ttft);
    o->itl_ms = spread_of(&r->itl);
    o->host_us = spread_of(&r->host);
}

int schedsim_run(const struct trace *t, const struct schedsim_params *p,
                 struct schedsim_result *ret_result)
{
    struct schedsim_result out = {0};
    struct schedsim r = {.t = t, .p = p, .out = &out};
    int code = open_schedsim(&r);

    if (code == 0) {
        set_arrivals(&r);
        code = run(&r);
    }
    if (code == 0) {
        conclude(&r);
        *ret_result = out;
    }
    close_schedsim(&r);
    return code;
}

/*
 * The two simulations of a server over one list of requests, for sim_real.py to compare with the
 * real server: "sched" is the server's own scheduler on the null backend (what bench-control and
 * bench-sched stand on), "model" the plant of sim_control. Both in virtual time, with the step
 * times that were measured.
 *
 * Usage: sim_real TRACE name=value... (the names stand in `numbers`); prints one JSON object. The
 * plant has no prefix cache, no host tier, no shared steps and no forms: plant=0 leaves it out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/checked.h"
#include "tests/sim/control_plant.h"
#include "tests/sim/sim_form.h"

#define REQUESTS_MOST QUEUE

/* host_blocks: of the host tier for preempted requests; scale: the trace's lengths are divided by
 * it; run: each answer has a form that forces so many tokens behind each sampled one. */
struct setup {
    double seqs, tokens, blocks, block_size, max_len, depth, host_blocks, scale, run, plant;
    struct schedsim_cost cost;
    struct sim_form form;
};

static int run_sched(const struct trace *t, const struct setup *s)
{
    char *answers = NULL;
    size_t bytes = 0;
    struct schedsim_result o;
    struct schedsim_params p = {.block_size = (uint32_t)s->block_size,
                                .pool_tokens = (uint32_t)((s->blocks - 1) * s->block_size),
                                .host_tokens = (uint32_t)(s->host_blocks * s->block_size),
                                .max_seqs = (uint32_t)s->seqs,
                                .budget = (uint32_t)s->tokens,
                                .max_model_len = (uint32_t)s->max_len,
                                .depth = (uint32_t)s->depth,
                                .scale = (uint32_t)s->scale,
                                .cost = &s->cost,
                                .form = s->form.grammar,
                                .vocab = s->form.grammar ? SIM_FORM_VOCAB : 0,
                                .seed = 1};
    p.answers = open_memstream(&answers, &bytes);
    if (!p.answers)
        return -ENOMEM;
    int r = schedsim_checked(t, &p, &o);
    if (fclose(p.answers) != 0)
        r = -ENOMEM;
    if (r == 0)
        (void)printf("\"sched\": {\"requests\": %u, \"seconds\": %.3f, \"tokens\": %llu, "
                     "\"preemptions\": %llu, \"steps\": %llu, \"gap\": [%.3f, %.3f, %.3f], "
                     "\"hits\": %llu, \"swapped\": %llu, \"forced\": %llu, "
                     "\"answers\": \"%s\"}",
                     o.requests, o.seconds, (unsigned long long)o.output_tokens,
                     (unsigned long long)o.preemptions, (unsigned long long)o.steps, o.itl_ms.p50,
                     o.itl_ms.p90, o.itl_ms.p99, (unsigned long long)o.hits,
                     (unsigned long long)o.swapped_in_blocks, (unsigned long long)o.jump_forward,
                     answers);
    free(answers);
    return r;
}

/* Tokens of a step, which come when it is over. */
struct watcher {
    struct answer {
        double at_s, first_s, last_s;
        bool fresh;
    } answer[REQUESTS_MOST];
    double *gaps;
    size_t gap_count;
    uint64_t tokens;
};

static void told(void *ctx, const struct sim_request *r)
{
    struct watcher *w = ctx;
    w->answer[r->id].fresh = true;
    w->tokens++;
}

static void note_step(struct watcher *w, uint32_t count, double now_s)
{
    for (uint32_t i = 0; i < count; i++) {
        struct answer *a = &w->answer[i];
        if (!a->fresh)
            continue;
        if (a->first_s > 0)
            w->gaps[w->gap_count++] = (now_s - a->last_s) * 1e3;
        else
            a->first_s = now_s;
        a->last_s = now_s;
        a->fresh = false;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void arrive_from(struct sim_plant *p, const struct trace *t, uint32_t *next_one)
{
    for (; *next_one < t->count && t->request[*next_one].at_s <= p->now_s; ++*next_one) {
        const struct trace_request *q = &t->request[*next_one];
        p->queue[(p->head + p->queued++) % QUEUE] = (struct sim_request){
            .prompt = q->prompt, .want = q->output, .since_s = q->at_s, .id = *next_one};
    }
}

static void run_through(struct sim_plant *p, const struct trace *t, struct watcher *w)
{
    uint32_t next_one = 0;
    while (next_one < t->count || p->queued || p->running) {
        arrive_from(p, t, &next_one);
        if (!p->queued && !p->running) {
            p->now_s = p->begun_s = t->request[next_one].at_s;
            continue;
        }
        p->now_s += engine_step(p);
        note_step(w, t->count, p->now_s);
    }
}

static int run_model(const struct trace *t, const struct setup *s)
{
    static struct sim_plant p;
    static struct watcher w;
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < t->count; i++)
        wanted += t->request[i].output;
    w.gaps = calloc(wanted + 1, sizeof(*w.gaps));
    if (!w.gaps)
        return -ENOMEM;
    p = (struct sim_plant){.blocks = (uint32_t)s->blocks - 1,
                           .free = (uint32_t)s->blocks - 1,
                           .seqs = (uint32_t)s->seqs,
                           .tokens = (uint32_t)s->tokens,
                           .base_s = s->cost.base_us / 1e6,
                           .row_s = s->cost.row_us / 1e6,
                           .whole = true,
                           .ahead = s->depth > 1,
                           .told = told,
                           .ctx = &w};
    run_through(&p, t, &w);
    qsort(w.gaps, w.gap_count, sizeof(*w.gaps), by_value);
    (void)printf(", \"model\": {\"requests\": %u, \"seconds\": %.3f, \"tokens\": %llu, "
                 "\"preemptions\": %.0f, \"steps\": %.0f, \"gap\": [%.3f, %.3f, %.3f], "
                 "\"answers\": \"",
                 t->count, p.now_s, (unsigned long long)w.tokens, p.preemptions, p.steps,
                 w.gaps[w.gap_count / 2], w.gaps[w.gap_count * 9 / 10],
                 w.gaps[w.gap_count * 99 / 100]);
    for (uint32_t i = 0; i < t->count; i++)
        (void)printf("%.3f %.3f\\n", (w.answer[i].first_s - t->request[i].at_s) * 1e3,
                     (w.answer[i].last_s - t->request[i].at_s) * 1e3);
    (void)printf("\"}");
    free(w.gaps);
    return 0;
}

static int read_numbers(int count, char **words, struct setup *s)
{
    const struct {
        const char *name;
        double *at;
    } numbers[] = {{"seqs", &s->seqs},
                   {"tokens", &s->tokens},
                   {"blocks", &s->blocks},
                   {"block_size", &s->block_size},
                   {"max_len", &s->max_len},
                   {"depth", &s->depth},
                   {"base_us", &s->cost.base_us},
                   {"row_us", &s->cost.row_us},
                   {"copy_us", &s->cost.copy_us},
                   {"host_blocks", &s->host_blocks},
                   {"scale", &s->scale},
                   {"run", &s->run},
                   {"plant", &s->plant}};

    for (int i = 0; i < count; i++) {
        const char *value = strchr(words[i], '=');
        bool known = false;
        for (size_t k = 0; value && k < sizeof(numbers) / sizeof(numbers[0]); k++) {
            size_t len = strlen(numbers[k].name);
            if (len != (size_t)(value - words[i]) || memcmp(words[i], numbers[k].name, len) != 0)
                continue;
            *numbers[k].at = strtod(value + 1, NULL);
            known = true;
        }
        if (!known) {
            (void)fprintf(stderr, "sim_real: %s is no number that it knows\n", words[i]);
            return -EINVAL;
        }
    }
    return 0;
}

static int run_both(const struct trace *t, const struct setup *s)
{
    (void)printf("{");
    int r = run_sched(t, s);
    if (r == 0 && s->plant > 0)
        r = run_model(t, s);
    (void)printf("}\n");
    return r;
}

int main(int argc, char **argv)
{
    struct trace t;
    struct setup s = {.block_size = BLOCK, .depth = 2, .scale = 1, .plant = 1};
    if (argc < 2 || read_numbers(argc - 2, argv + 2, &s) != 0)
        return 2;
    if (s.block_size != BLOCK || s.blocks < 2 || (s.plant > 0 && s.seqs > RUNNING) ||
        trace_read(argv[1], REQUESTS_MOST, &t) != 0 || t.count == 0) {
        (void)fprintf(stderr, "sim_real: %s cannot be read, or sizes that the plant has not\n",
                      argv[1]);
        return 2;
    }
    int r = 0;
    if (s.run > 0)
        r = sim_form_open_all(&s.form, SIM_FORM_VOCAB, (uint32_t)s.run);
    if (r == 0)
        r = run_both(&t, &s);
    if (s.run > 0)
        sim_form_close(&s.form);
    trace_done(&t);
    return r != 0;
}

/*
 * Prefill and decode through forward, sample and wait of the CPU backend, beside what the machine
 * can read and compute at most, all measured in turns in the same run.
 *
 * A decode step reads every weight once, so the limit of B sequences is B / max(weights / read
 * bandwidth, arithmetic / peak); a prefill's is its arithmetic. Attention and the KV cache are left
 * out of the limits. A model smaller than the last cache can pass the read limit.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "server/bench/bench.h"
#include "server/bench/machine.h"
#include "server/bench/options.h"
#include "server/bench/progress.h"
#include "server/bench/rows.h"
#include "server/model/model.h"

#define BLOCK      16u
#define MOST_CELLS 16u
#define MOST_SEQS  1024u

struct bench_cell {
    bool decode;
    uint32_t count; /* tokens of the prompt, or sequences */
    double value[ROWS_MOST_REPEATS];
};

struct bench_limits {
    double read[ROWS_MOST_REPEATS], peak[ROWS_MOST_REPEATS], pairs[ROWS_MOST_REPEATS];
};

struct bench_engine {
    const struct bench_options *o;
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_device_info info;
    struct ek_forms forms;
    struct model *model;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
    uint32_t seqs;          /* most that decode together */
    bool filled[MOST_SEQS]; /* the slot's context is in the KV cache; decodes leave it there */
    bool pairs;             /* products multiply pairs of bf16: then that is the arithmetic limit */
    double body_params, head_params, weight_bytes;
    struct bench_limits limits;
    struct bench_cell cells[MOST_CELLS];
    uint32_t cell_count;
};

static int run_step(struct bench_engine *e)
{
    e->step->id = ++e->id;
    int r = e->b->forward(e->d, e->step);
    if (r == 0)
        r = e->b->sample(e->d, e->step, NULL);
    if (r == 0)
        r = e->b->wait(e->d, e->id, e->result, ek_result_size(e->seqs), 600 * EK_US_PER_S);
    return r < 0 ? r : e->result->error;
}

/* Adds rows [from, from + rows) of sequence `slot`; decodes take the token from the device. */
static void add_rows(struct bench_engine *e, uint32_t slot, uint32_t from, uint32_t rows,
                     bool sample)
{
    struct ek_step *s = e->step;
    uint32_t blocks = (from + rows + BLOCK - 1) / BLOCK;

    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .sample = sample,
                                                      .logit_row = s->logit_rows};
    s->logit_rows += sample;
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(s)[s->entries++] = 1 + i * e->seqs + slot;
    for (uint32_t i = 0; i < rows; i++, s->rows++) {
        uint32_t at = from + i;
        ek_step_tokens(s)[s->rows] = rows == 1 && from > 0
                                         ? EK_FROM_PREVIOUS
                                         : (int32_t)((at * 31 + slot * 7) % e->model->graph.vocab);
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows] = (1 + at / BLOCK * e->seqs + slot) * BLOCK + at % BLOCK;
    }
}

static int prefill(struct bench_engine *e, uint32_t slot, uint32_t tokens)
{
    const uint32_t chunk = (uint32_t)e->o->chunk;
    int r = 0;

    for (uint32_t from = 0, rows; from < tokens && r == 0; from += rows) {
        rows = tokens - from < chunk ? tokens - from : chunk;
        rows = tokens - from - rows == 1 ? rows - 1 : rows; /* a last row alone would be a decode */
        ek_step_layout(e->step, &e->ceiling);
        if (from == 0)
            ek_step_sets(e->step)[e->step->sets++] =
                (struct ek_slot_set){.slot = slot, .sampling.top_p = 1.0f};
        add_rows(e, slot, from, rows, from + rows == tokens);
        r = run_step(e);
    }
    return r;
}

static double seconds_since(uint64_t start)
{
    uint64_t took = ek_now_us() - start;
    return (double)(took > 0 ? took : 1) / (double)EK_US_PER_S;
}

static int measure_cell(struct bench_engine *e, const struct bench_cell *c, double *ret_rate)
{
    uint64_t start = ek_now_us();
    int r = 0;

    if (!c->decode) {
        r = prefill(e, 0, c->count);
        *ret_rate = c->count / seconds_since(start);
        return r;
    }
    for (uint32_t slot = 0; slot < c->count && r == 0; slot++) {
        r = e->filled[slot] ? 0 : prefill(e, slot, (uint32_t)e->o->context);
        e->filled[slot] = r == 0;
    }
    start = ek_now_us();
    for (uint32_t i = 0; i < e->o->steps && r == 0; i++) {
        ek_step_layout(e->step, &e->ceiling);
        for (uint32_t slot = 0; slot < c->count; slot++)
            add_rows(e, slot, (uint32_t)e->o->context + i, 1, true);
        r = run_step(e);
    }
    *ret_rate = (double)c->count * (double)e->o->steps / seconds_since(start);
    return r;
}

static int measure_limits(struct bench_engine *e, uint32_t i)
{
    struct bench_limits *l = &e->limits;
    int r = machine_measure(MACHINE_READ, e->info.isa, e->info.threads, &l->read[i]);

    if (r == 0)
        r = machine_measure(MACHINE_PEAK, e->info.isa, e->info.threads, &l->peak[i]);
    l->pairs[i] = l->peak[i];
    if (r == 0 && e->pairs)
        r = machine_measure(MACHINE_PAIRS, e->info.isa, e->info.threads, &l->pairs[i]);
    return r;
}

static int measure_all(struct bench_engine *e)
{
    struct progress p = {0};
    double warm;
    int r = measure_cell(e, &e->cells[0], &warm); /* touches everything once */

    for (uint32_t i = 0; i < e->o->repeat && r == 0; i++) {
        progress_show(&p, "the machine's limits", (double)i / (double)e->o->repeat);
        r = measure_limits(e, i);
        for (uint32_t c = 0; c < e->cell_count && r == 0; c++) {
            struct bench_cell *cell = &e->cells[c];
            progress_show(&p, cell->decode ? "decode" : "prefill",
                          (i + (double)c / e->cell_count) / (double)e->o->repeat);
            r = measure_cell(e, cell, &cell->value[i]);
        }
    }
    progress_end(&p);
    return r;
}

static void count_weights(struct bench_engine *e)
{
    const struct ek_graph *g = &e->model->graph;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_LINEAR && op->kind != EK_OP_LOGITS)
            continue;
        const struct ek_weight *w = &g->weights[op->weight];
        double count = (double)w->rows * w->cols;
        *(op->kind == EK_OP_LINEAR ? &e->body_params : &e->head_params) += count;
        e->weight_bytes += count * ek_dtype_bits(w->dtype) / 8;
    }
}

/* Numbers of a list option, as cells. */
static int add_cells(struct bench_engine *e, const struct ek_strings *list, const char *standard,
                     bool decode, struct ek_fault *fault)
{
    size_t count = list->count;
    const char *name = decode ? "decode" : "prefill";
    uint64_t most = decode ? MOST_SEQS : 1000000;

    for (size_t i = 0; count > 0 ? i < count : *standard != '\0'; i++) {
        const char *text = count > 0 ? list->at[i] : standard;
        char *end;
        unsigned long n = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || n == 0 || n > most || (count > 0 && *end != '\0'))
            return ek_fault_set(fault, name, "--%s takes numbers from 1 to %llu, not '%.32s'.",
                                name, (unsigned long long)most, text);
        if (e->cell_count == MOST_CELLS)
            return ek_fault_set(fault, name, "At most %u cells can be measured in one run.",
                                MOST_CELLS);
        e->cells[e->cell_count++] = (struct bench_cell){.decode = decode, .count = (uint32_t)n};
        standard = count > 0 ? standard : end + strspn(end, " ");
    }
    return 0;
}

/* Room for the longest prompt, and for the most sequences at their longest. */
static int open_device(struct bench_engine *e, struct ek_fault *fault)
{
    const struct bench_options *o = e->o;
    const struct ek_open_params open = {
        .threads = (uint32_t)o->threads, .isa = o->isa, .forms = &e->forms};
    uint64_t longest = o->context + o->steps;

    e->seqs = 1;
    for (uint32_t i = 0; i < e->cell_count; i++) {
        const struct bench_cell *c = &e->cells[i];
        if (c->decode)
            e->seqs = c->count > e->seqs ? c->count : e->seqs;
        else
            longest = c->count > longest ? c->count : longest;
    }
    if (longest > e->model->max_model_len)
        return ek_fault_set(fault, "prefill",
                            "A sequence of %llu tokens is longer than the model's %u.",
                            (unsigned long long)longest, e->model->max_model_len);
    uint32_t blocks = (uint32_t)((longest + BLOCK - 1) / BLOCK);
    uint32_t rows = (uint32_t)(longest < o->chunk ? longest : o->chunk);
    rows = rows > e->seqs ? rows : e->seqs;
    e->ceiling = (struct ek_step_ceiling){rows, e->seqs, e->seqs * blocks, 0, 0, 0};
    const struct ek_kv_params kv = {1 + e->seqs * blocks, 0, BLOCK, e->seqs};
    struct ek_plan_request q = {.graph = &e->model->graph,
                                .ceiling = e->ceiling,
                                .logit_rows = e->seqs,
                                .block_size = BLOCK};
    int r = e->b->probe(&open, &e->info, fault);
    if (r == 0 && e->b->choose)
        r = e->b->choose(&open, q.graph, &e->forms, fault);
    if (r == 0)
        r = e->b->open(&open, &e->d, fault);
    if (r == 0)
        r = e->b->load(e->d, &q, &e->model->files, NULL, NULL, fault);
    if (r == 0)
        r = e->b->kv_open(e->d, &kv);
    e->step = calloc(1, ek_step_size(&e->ceiling));
    e->result = calloc(1, ek_result_size(e->seqs));
    return r == 0 && (!e->step || !e->result) ? -ENOMEM : r;
}

static int open_all(struct bench_engine *e, struct ek_fault *fault)
{
    const char *t = e->o->dtype;
    enum model_dtype dtype = strcmp(t, "float32") == 0   ? MODEL_DTYPE_F32
                             : strcmp(t, "float16") == 0 ? MODEL_DTYPE_F16
                                                         : MODEL_DTYPE_BF16;
    const struct model_choice choice = {.dtype = dtype, .quantization = e->o->quantization};

    int r = add_cells(e, &e->o->prefill, "512", false, fault);
    if (r == 0)
        r = add_cells(e, &e->o->decode, "1 4 16", true, fault);
    e->b = ek_backend_find("cpu", fault);
    if (r == 0)
        r = e->b ? model_open_as(e->o->model, &choice, &e->model, fault) : -ENODEV;
    if (r == 0)
        e->model->graph.kv_i8 = strcmp(e->o->kv_cache_dtype, "auto") != 0;
    if (r == 0)
        r = open_device(e, fault);
    if (r < 0)
        return r;
    e->pairs = dtype == MODEL_DTYPE_BF16 &&
               (strcmp(e->info.isa, "avx512bf16") == 0 || strcmp(e->info.isa, "amx") == 0);
    count_weights(e);
    return 0;
}

/* One line: tokens/s, its share of the read bandwidth and of the arithmetic peak. */
static int report_cell(const struct bench_engine *e, json_t *rows, const struct bench_cell *c)
{
    uint32_t n = (uint32_t)e->o->repeat;
    struct spread s = spread_of(c->value, n);
    double read = spread_of(e->limits.read, n).median * 1e9;
    double peak = spread_of(e->limits.pairs, n).median * 1e9;
    double flops = 2.0 * (e->body_params * c->count + e->head_params * (c->decode ? c->count : 1));
    uint64_t chunks = (c->count + e->o->chunk - 1) / e->o->chunk;
    double passes = c->decode ? 1.0 : (double)chunks;
    double by_read = c->count / (passes * e->weight_bytes / read),
           by_peak = c->count / (flops / peak);
    const char *t = e->o->dtype;
    char name[48];

    if (e->model->weights.method && e->model->weights.method[0])
        t = e->model->weights.method;
    (void)snprintf(name, sizeof(name), "%s.%u.%s", c->decode ? "decode" : "prefill", c->count,
                   strcmp(t, "bfloat16") == 0  ? "bf16"
                   : strcmp(t, "float32") == 0 ? "f32"
                   : strcmp(t, "float16") == 0 ? "f16"
                                               : t);
    printf("%-18s %10.1f tok/s  %8.1f - %-8.1f %8.1f %% %8.1f %%\n", name, s.median, s.least,
           s.most, 100.0 * s.median / by_read, 100.0 * s.median / by_peak);
    bool by_bytes = by_read < by_peak;
    return rows_add(rows,
                    &(struct row){name, "tok/s", s, by_bytes ? "read bandwidth" : "arithmetic peak",
                                  by_bytes ? by_read : by_peak});
}

static int report_limit(json_t *rows, const char *cell, const char *title, const char *unit,
                        const double *values, uint32_t n)
{
    struct spread s = spread_of(values, n);

    printf("%-18s %10.1f %-7s%8.1f - %-8.1f\n", title, s.median, unit, s.least, s.most);
    return rows_add(rows, &(struct row){.cell = cell, .unit = unit, .value = s});
}

static int report_all(const struct bench_engine *e, json_t *rows)
{
    const struct bench_limits *l = &e->limits;
    uint32_t n = (uint32_t)e->o->repeat;

    printf("%s\n%s, %s, %.2f M parameters, %u repeats\n\n", e->info.name, e->o->model, e->o->dtype,
           (e->body_params + e->head_params) / 1e6, n);
    printf("%-18s %16s  %19s %10s %10s\n", "", "median", "least - most   ", "of read", "of peak");
    int r = report_limit(rows, "machine.read", "read bandwidth", "GB/s", l->read, n);
    if (r == 0)
        r = report_limit(rows, "machine.peak", "arithmetic peak", "GFLOP/s", l->peak, n);
    if (r == 0 && e->pairs)
        r = report_limit(rows, "machine.peak_bf16", "  in bf16 pairs", "GFLOP/s", l->pairs, n);
    const struct bench_cell *one = NULL, *many = NULL;
    for (uint32_t c = 0; c < e->cell_count && r == 0; c++) {
        const struct bench_cell *cell = &e->cells[c];
        one = cell->decode && cell->count == 1 ? cell : one;
        many = cell->decode && cell->count == 16 ? cell : many;
        r = report_cell(e, rows, cell);
    }
    if (r < 0 || !one || !many)
        return r;
    double gain[ROWS_MOST_REPEATS];
    for (uint32_t i = 0; i < n; i++)
        gain[i] = many->value[i] / one->value[i];
    return report_limit(rows, "decode.16/decode.1", "decode.16/decode.1", "x", gain, n);
}

int bench_engine(const struct bench_options *o, struct ek_fault *fault)
{
    struct bench_engine *e = calloc(1, sizeof(*e));
    json_t *rows = json_array();
    int r = -ENOMEM;

    if (!e || !rows)
        goto out;
    e->o = o;
    r = open_all(e, fault);
    if (r == 0)
        r = measure_all(e);
    if (r == 0)
        r = report_all(e, rows);
    if (r == 0 && o->report) {
        json_t *machine = rows_machine();
        (void)json_object_set_new(machine, "isa", json_string(e->info.isa));
        (void)json_object_set_new(machine, "threads", json_integer(e->info.threads));
        r = rows_write(o->report, "bench", o->commit, machine, rows, fault);
    }
out:
    if (e && e->b)
        e->b->close(e->d);
    if (e) {
        model_free(e->model);
        free(e->step);
        free(e->result);
    }
    free(e);
    json_decref(rows);
    return r;
}

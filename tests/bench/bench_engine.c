/*
 * evenkeel-bench: tokens per second of the CPU backend through forward, sample and wait, beside
 * what the machine can read and compute at most, all measured in turns in the same run.
 *
 * A decode step reads every weight once, so the limit of B sequences is B / max(weights / read
 * bandwidth, arithmetic / peak); a prefill's is its arithmetic. Attention and the KV cache are left
 * out of the limits. A model smaller than the last cache can pass the read limit.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "server/model/model.h"
#include "tests/bench/machine.h"

enum {
    SEQS = 16,
    PREFILL = 512, /* tokens of the prefill, in one step */
    PROMPT = 128,  /* tokens before a decode */
    STEPS = 64,    /* decode steps of one measurement */
    BLOCK = 16,
    SEQ_BLOCKS = (PREFILL + STEPS) / BLOCK,
    MOST_REPEATS = 99,
};

enum cell { READ, PEAK, PAIRS, PREFILL_512, DECODE_1, DECODE_4, DECODE_16, CELLS };

struct bench {
    const char *model_dir, *dtype, *isa, *report, *commit;
    uint32_t threads, repeats;
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_device_info info;
    struct model *model;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
    bool pairs; /* products multiply pairs of bf16: then that is the arithmetic limit */
    double body_params, head_params, weight_bytes;
    double value[CELLS][MOST_REPEATS];
};

static int run_step(struct bench *b)
{
    b->step->id = ++b->id;
    int r = b->b->forward(b->d, b->step);
    if (r == 0)
        r = b->b->sample(b->d, b->step, NULL);
    if (r == 0)
        r = b->b->wait(b->d, b->id, b->result, ek_result_size(SEQS), 60 * EK_US_PER_S);
    return r < 0 ? r : b->result->error;
}

/* Adds rows [from, from + rows) of sequence `slot`; decodes take the token from the device. */
static void add_rows(struct bench *b, uint32_t slot, uint32_t from, uint32_t rows)
{
    struct ek_step *s = b->step;
    uint32_t blocks = (from + rows + BLOCK - 1) / BLOCK;

    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .sample = 1,
                                                      .logit_row = s->logit_rows++};
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(s)[s->entries++] = 1 + i * SEQS + slot;
    for (uint32_t i = 0; i < rows; i++, s->rows++) {
        uint32_t at = from + i;
        ek_step_tokens(s)[s->rows] =
            rows == 1 ? EK_FROM_PREVIOUS : (int32_t)((at * 31 + slot * 7) % b->model->graph.vocab);
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows] = (1 + at / BLOCK * SEQS + slot) * BLOCK + at % BLOCK;
    }
}

static void enter(struct bench *b, uint32_t slot)
{
    ek_step_sets(b->step)[b->step->sets++] = (struct ek_slot_set){.slot = slot, .top_p = 1.0f};
}

static int measure_prefill(struct bench *b, double *ret_rate)
{
    ek_step_layout(b->step, &b->ceiling);
    enter(b, 0);
    add_rows(b, 0, 0, PREFILL);
    uint64_t start = ek_now_us();
    int r = run_step(b);
    *ret_rate = PREFILL / ((double)(ek_now_us() - start) / (double)EK_US_PER_S);
    return r;
}

static int measure_decode(struct bench *b, uint32_t seqs, double *ret_rate)
{
    int r = 0;

    for (uint32_t slot = 0; slot < seqs && r == 0; slot++) {
        ek_step_layout(b->step, &b->ceiling);
        enter(b, slot);
        add_rows(b, slot, 0, PROMPT);
        r = run_step(b);
    }
    uint64_t start = ek_now_us();
    for (uint32_t i = 0; i < STEPS && r == 0; i++) {
        ek_step_layout(b->step, &b->ceiling);
        for (uint32_t slot = 0; slot < seqs; slot++)
            add_rows(b, slot, PROMPT + i, 1);
        r = run_step(b);
    }
    *ret_rate = seqs * STEPS / ((double)(ek_now_us() - start) / (double)EK_US_PER_S);
    return r;
}

static int measure_all(struct bench *b)
{
    int r = measure_prefill(b, &b->value[PREFILL_512][0]); /* warm up, overwritten */

    for (uint32_t i = 0; i < b->repeats && r == 0; i++) {
        r = machine_measure(MACHINE_READ, b->info.isa, b->info.threads, &b->value[READ][i]);
        if (r == 0)
            r = machine_measure(MACHINE_PEAK, b->info.isa, b->info.threads, &b->value[PEAK][i]);
        b->value[PAIRS][i] = b->value[PEAK][i];
        if (r == 0 && b->pairs)
            r = machine_measure(MACHINE_PAIRS, b->info.isa, b->info.threads, &b->value[PAIRS][i]);
        if (r == 0)
            r = measure_prefill(b, &b->value[PREFILL_512][i]);
        if (r == 0)
            r = measure_decode(b, 1, &b->value[DECODE_1][i]);
        if (r == 0)
            r = measure_decode(b, 4, &b->value[DECODE_4][i]);
        if (r == 0)
            r = measure_decode(b, 16, &b->value[DECODE_16][i]);
    }
    return r;
}

static void count_weights(struct bench *b)
{
    const struct ek_graph *g = &b->model->graph;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_LINEAR && op->kind != EK_OP_LOGITS)
            continue;
        const struct ek_weight *w = &g->weights[op->weight];
        double count = (double)w->rows * w->cols;
        *(op->kind == EK_OP_LINEAR ? &b->body_params : &b->head_params) += count;
        b->weight_bytes += count * ek_dtype_bits(w->dtype) / 8;
    }
}

static int open_all(struct bench *b, struct ek_fault *fault)
{
    const struct ek_open_params open = {.threads = b->threads, .isa = b->isa};
    const struct ek_kv_params kv = {1 + SEQS * SEQ_BLOCKS, 0, BLOCK};
    bool f32 = strcmp(b->dtype, "float32") == 0;

    b->b = ek_backend_find("cpu", fault);
    int r = model_open(b->model_dir, f32 ? MODEL_DTYPE_F32 : MODEL_DTYPE_BF16, &b->model, fault);
    if (r == 0)
        r = b->b->probe(&open, &b->info, fault);
    if (r == 0)
        r = b->b->open(&open, &b->d, fault);
    if (r < 0)
        return r;
    b->pairs = !f32 && strcmp(b->info.isa, "avx512bf16") == 0;
    b->ceiling = (struct ek_step_ceiling){PREFILL, SEQS, SEQS * SEQ_BLOCKS, 0, 0, 0};
    struct ek_plan_request q = {
        .graph = &b->model->graph, .ceiling = b->ceiling, .logit_rows = SEQS, .block_size = BLOCK};
    r = b->b->load(b->d, &q, &b->model->files, NULL, NULL, fault);
    if (r == 0)
        r = b->b->kv_open(b->d, &kv);
    b->step = calloc(1, ek_step_size(&b->ceiling));
    b->result = calloc(1, ek_result_size(SEQS));
    if (r == 0 && (!b->step || !b->result))
        r = -ENOMEM;
    count_weights(b);
    return r;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct spread {
    double median, least, most;
};

static struct spread spread_of(const double *values, uint32_t n)
{
    double sorted[MOST_REPEATS];

    memcpy(sorted, values, n * sizeof(sorted[0]));
    qsort(sorted, n, sizeof(sorted[0]), ascending);
    return (struct spread){(sorted[n / 2] + sorted[(n - 1) / 2]) / 2, sorted[0], sorted[n - 1]};
}

/* Appends a row of the report (design.md section 8). limit 0: it has none; goal 0: likewise. */
static bool add_row(json_t *rows, const char *cell, const struct spread *s, const char *unit,
                    const char *limit_name, double limit, double goal)
{
    bool met = goal <= 0.0 || s->median >= goal;
    json_t *row = json_pack("{s:s, s:f, s:s, s:[f,f]}", "cell", cell, "value", s->median, "unit",
                            unit, "spread", s->least, s->most);

    json_object_set_new(row, "peer", limit > 0.0 ? json_string(limit_name) : json_null());
    json_object_set_new(row, "peer_value", limit > 0.0 ? json_real(limit) : json_null());
    json_object_set_new(row, "ratio", limit > 0.0 ? json_real(s->median / limit) : json_null());
    json_object_set_new(row, "goal", goal > 0.0 ? json_real(goal) : json_null());
    json_object_set_new(row, "met", goal > 0.0 ? json_boolean(met) : json_null());
    json_array_append_new(rows, row);
    return met;
}

/* One line of tokens/s: its share of the read bandwidth and of the arithmetic peak. */
static void report_rate(const struct bench *b, json_t *rows, enum cell cell, uint32_t seqs)
{
    struct spread s = spread_of(b->value[cell], b->repeats);
    double read = spread_of(b->value[READ], b->repeats).median * 1e9;
    double peak = spread_of(b->value[PAIRS], b->repeats).median * 1e9;
    double tokens = seqs ? seqs : PREFILL;
    double flops = 2.0 * (b->body_params * tokens + b->head_params * (seqs ? seqs : 1));
    double by_read = tokens / (b->weight_bytes / read), by_peak = tokens / (flops / peak);
    char name[48];

    (void)snprintf(name, sizeof(name), "%s.%u.%s", seqs ? "decode" : "prefill",
                   seqs ? seqs : (uint32_t)PREFILL, strcmp(b->dtype, "float32") ? "bf16" : "f32");
    printf("%-18s %10.0f tok/s  %8.0f - %-8.0f %8.1f %% %8.1f %%\n", name, s.median, s.least,
           s.most, 100.0 * s.median / by_read, 100.0 * s.median / by_peak);
    bool by_bytes = by_read < by_peak;
    add_row(rows, name, &s, "tok/s", by_bytes ? "read bandwidth" : "arithmetic peak",
            by_bytes ? by_read : by_peak, 0.0);
}

static bool report_all(const struct bench *b, json_t *rows)
{
    struct spread read = spread_of(b->value[READ], b->repeats);
    struct spread peak = spread_of(b->value[PEAK], b->repeats);
    double gain[MOST_REPEATS];

    printf("%s\n%s, %s, %.2f M parameters, %u repeats\n\n", b->info.name, b->model_dir, b->dtype,
           (b->body_params + b->head_params) / 1e6, b->repeats);
    printf("%-18s %16s  %19s %10s %10s\n", "", "median", "least - most   ", "of read", "of peak");
    printf("%-18s %10.1f GB/s   %8.1f - %-8.1f\n", "read bandwidth", read.median, read.least,
           read.most);
    printf("%-18s %10.1f GFLOP/s%8.1f - %-8.1f\n", "arithmetic peak", peak.median, peak.least,
           peak.most);
    if (b->pairs) {
        struct spread pairs = spread_of(b->value[PAIRS], b->repeats);
        printf("%-18s %10.1f GFLOP/s%8.1f - %-8.1f\n", "  in bf16 pairs", pairs.median, pairs.least,
               pairs.most);
        add_row(rows, "machine.peak_bf16", &pairs, "GFLOP/s", NULL, 0.0, 0.0);
    }
    add_row(rows, "machine.read", &read, "GB/s", NULL, 0.0, 0.0);
    add_row(rows, "machine.peak", &peak, "GFLOP/s", NULL, 0.0, 0.0);
    report_rate(b, rows, PREFILL_512, 0);
    report_rate(b, rows, DECODE_1, 1);
    report_rate(b, rows, DECODE_4, 4);
    report_rate(b, rows, DECODE_16, 16);
    for (uint32_t i = 0; i < b->repeats; i++)
        gain[i] = b->value[DECODE_16][i] / b->value[DECODE_1][i];
    struct spread g = spread_of(gain, b->repeats);
    bool met = add_row(rows, "decode.16/decode.1", &g, "x", NULL, 0.0, 4.0);
    printf("%-18s %10.2f x      %8.2f - %-8.2f %s\n", "decode.16/decode.1", g.median, g.least,
           g.most, met ? "at least 4: met" : "at least 4: MISSED");
    return met;
}

static int write_report(const struct bench *b, json_t *rows)
{
    double read = spread_of(b->value[READ], b->repeats).median;
    double peak = spread_of(b->value[PEAK], b->repeats).median;
    json_t *root =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:i, s:f, s:f, s:n}, s:O}", "target", "bench", "commit",
                  b->commit, "machine", "cpu", b->info.name, "isa", b->info.isa, "cores",
                  (int)b->info.threads, "read_gbs", read, "peak_gflops", peak, "gpu", "rows", rows);

    int r = root ? json_dump_file(root, b->report, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : -1;
    json_decref(root);
    if (r < 0)
        (void)fprintf(stderr, "evenkeel-bench: %s cannot be written\n", b->report);
    return r;
}

static bool read_count(const char *text, uint32_t most, uint32_t *ret_count)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || n > most)
        return false;
    *ret_count = (uint32_t)n;
    return true;
}

static bool read_options(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {{"model", 1, NULL, 'm'},  {"dtype", 1, NULL, 'd'},
                                            {"isa", 1, NULL, 'i'},    {"threads", 1, NULL, 't'},
                                            {"repeat", 1, NULL, 'r'}, {"report", 1, NULL, 'o'},
                                            {"commit", 1, NULL, 'c'}, {NULL, 0, NULL, 0}};
    bool ok = true;

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm')
            b->model_dir = optarg;
        else if (c == 'd')
            b->dtype = optarg;
        else if (c == 'i')
            b->isa = optarg;
        else if (c == 'o')
            b->report = optarg;
        else if (c == 'c')
            b->commit = optarg;
        else if (c == 't')
            ok = ok && read_count(optarg, 256, &b->threads);
        else if (c == 'r')
            ok = ok && read_count(optarg, MOST_REPEATS, &b->repeats) && b->repeats > 0;
        else
            ok = false;
    }
    ok = ok && optind == argc &&
         (strcmp(b->dtype, "bfloat16") == 0 || strcmp(b->dtype, "float32") == 0);
    if (!ok)
        (void)fprintf(stderr, "usage: evenkeel-bench [--model DIR] [--dtype bfloat16|float32] "
                              "[--isa TIER] [--threads N]\n"
                              "                      [--repeat 1..99] [--report FILE] "
                              "[--commit ID]\n");
    return ok;
}

int main(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    json_t *rows = json_array();
    struct ek_fault fault = {.msg = ""};
    int status = EK_EXIT_USAGE;

    if (!b || !rows)
        return EK_EXIT_INTERNAL;
    b->model_dir = "models/evenkeel-tiny";
    b->dtype = "bfloat16";
    b->commit = "";
    b->repeats = 5;
    if (!read_options(b, argc, argv))
        goto out;
    status = EK_EXIT_INTERNAL;
    int r = open_all(b, &fault);
    if (r == 0)
        r = measure_all(b);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeel-bench: %s\n", fault.msg[0] ? fault.msg : ek_strerror(r));
        goto out;
    }
    bool met = report_all(b, rows);
    if (b->report && write_report(b, rows) < 0)
        goto out;
    status = met ? 0 : 1;
out:
    if (b->b)
        b->b->close(b->d);
    model_free(b->model);
    free(b->step);
    free(b->result);
    free(b);
    json_decref(rows);
    return status;
}

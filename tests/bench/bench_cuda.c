/*
 * What a device does with a model of given shape and random weights, below everything else: decode
 * at several batch sizes, prefill, both of them from one load with long and mixed contexts (section
 * first), both ways to multiply some hundred rows by packed weights (section rows), resizing the KV
 * pool, moving blocks to the host tier. Weights are drawn from a normal distribution, the cache is
 * written by prompts, and a sequence's blocks lie anywhere in the pool: equal bits and rows in
 * order would flatter a card. Beside each figure its
 * share of what the card can read or compute (--bandwidth GB/s, --tflops). Weights need no file:
 * all are read from one buffer of random numbers.
 *
 *   evenkeel-bench-cuda --shape 8b --section decode --report FILE [--weights fp8] [--kv fp8]
 *                       [--offload GIB] [--only ROWS]... [--top-p P] [--swap BLOCKS]
 *
 * --only: batches or lengths of the section, up to four. --swap: so many blocks go to the host tier
 * in each step of decode, and as many come back. EVENKEEL_CUDA_TIMES=1 adds the time of each
 * kernel.
 *
 * With EVENKEEL_WGMMA=off cells have ".mma" in their names: prefill by the other attention kernels.
 * With weights in host memory (--offload) the share is of what the bus was measured to carry.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/registry.h"
#include "tests/bench/bench_cuda.h"

#define BLOCK_SIZE 16u
#define STEPS      40u /* measured, of one batch */
#define WARM       6u
#define WAIT_US    120000000ull

/* ---- the device ---- */

static void show(struct bench *x, const char *cell, double value, const char *unit, double share,
                 const char *of)
{
    char name[96];

    printf("  %-24s %10.1f %-8s %5.1f %% of %s\n", cell, value, unit, 100 * share, of);
    report_cell(&x->report, &(struct report_cell){.cell = cell, .value = value, .unit = unit});
    (void)snprintf(name, sizeof(name), "%s.share", cell);
    report_cell(&x->report, &(struct report_cell){.cell = name, .value = share, .unit = "1"});
    (void)fflush(stdout);
}

static void show_offload(struct bench *x)
{
    struct ek_device_stats s;
    char cell[64];

    x->b->stats(x->d, &s);
    x->copies_s = (double)s.stream_us / 1e6;
    if (s.stream_us == 0)
        return;
    printf("  %.2f GiB in host memory, of which each step copies %.2f\n",
           (double)s.host_weight_bytes / 0x1p30, (double)s.stream_bytes / 0x1p30);
    (void)snprintf(cell, sizeof(cell), "%s.copies", x->name);
    const double rate = (double)s.stream_bytes / x->copies_s / 1e9;
    show(x, cell, rate, "GB/s", rate / 50, "50 GB/s");
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* The pool among so many sequences, in an order that has no runs: by steps of about the golden
 * section of what is shared. */
static void share_out(struct bench *x, uint32_t seqs)
{
    const uint32_t n = x->blocks - 1;

    x->per_seq = n / seqs;
    x->stride = (uint32_t)((double)n * 0.6180339887) | 1u;
    while (common_divisor(x->stride, n) != 1)
        x->stride += 2;
}

static uint32_t block_of(const struct bench *x, uint32_t seq, uint32_t i)
{
    return 1 + (uint32_t)((uint64_t)(seq * x->per_seq + i) * x->stride % (x->blocks - 1));
}

static int open_device(struct bench *x, const char *device, uint32_t seqs, uint32_t rows)
{
    struct ek_fault fault = {.msg = ""};
    const struct ek_open_params open = {.device = 0};
    uint32_t per_seq = (x->context + STEPS + WARM) / BLOCK_SIZE + 2;

    x->ceiling =
        (struct ek_step_ceiling){rows > seqs ? rows : seqs, seqs, seqs * per_seq, 512, 16, 0};
    x->blocks = 1 + seqs * per_seq;
    share_out(x, seqs);
    struct ek_plan_request q = {.graph = &x->g,
                                .ceiling = x->ceiling,
                                .logit_rows = seqs,
                                .block_size = BLOCK_SIZE,
                                .offload_bytes = (uint64_t)(x->offload * 0x1p30)};
    const struct ek_kv_params kv = {x->blocks, 512, BLOCK_SIZE, 0};
    uint64_t begin = ek_now_us();
    x->b = ek_backend_find(device, &fault);
    int r = x->b ? x->b->open(&open, &x->d, &fault) : -ENODEV;
    if (r == 0)
        r = x->b->load(x->d, &q, &x->files, NULL, NULL, &fault);
    if (r == 0)
        r = x->b->kv_open(x->d, &kv);
    if (r < 0) {
        (void)fprintf(stderr, "%s\n", fault.msg[0] ? fault.msg : ek_strerror(r));
        return r;
    }
    struct ek_device_stats s;
    x->b->stats(x->d, &s);
    printf("  loaded in %.1f s\nattention to prompts: %s\nlarge products: %s\n%s%s%s",
           (double)(ek_now_us() - begin) / 1e6, s.attention ? s.attention : "one kind of kernel",
           s.products ? s.products : "one way", s.note ? "note: " : "", s.note ? s.note : "",
           s.note ? "\n" : "");
    show_offload(x);
    for (int i = 0; i < 2; i++)
        x->step[i] = calloc(1, ek_step_size(&x->ceiling));
    x->result = calloc(1, ek_result_bytes(seqs, 0, 0, 0));
    return x->step[0] && x->step[1] && x->result ? 0 : -ENOMEM;
}

static void close_device(struct bench *x)
{
    if (x->b)
        x->b->close(x->d);
    for (int i = 0; i < 2; i++)
        free(x->step[i]);
    free(x->result);
    x->d = NULL;
    x->b = NULL;
    x->step[0] = x->step[1] = NULL;
    x->result = NULL;
}

/* Rows [from, from + rows) of a sequence. */
static void add_rows(struct bench *x, struct ek_step *s, uint32_t seq, uint32_t from, uint32_t rows,
                     bool previous)
{
    uint32_t blocks = (from + rows + BLOCK_SIZE - 1) / BLOCK_SIZE;

    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = seq,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .sample = 1,
                                                      .logit_row = s->logit_rows++};
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(s)[s->entries++] = block_of(x, seq, i);
    for (uint32_t at = from; at < from + rows; at++, s->rows++) {
        ek_step_tokens(s)[s->rows] =
            previous ? EK_FROM_PREVIOUS : (int32_t)((at * 2654435761u) % x->g.vocab);
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows] =
            block_of(x, seq, at / BLOCK_SIZE) * BLOCK_SIZE + at % BLOCK_SIZE;
    }
}

/* Greedy, or with x->top_p as most clients ask. */
static void set_slots(struct bench *x, struct ek_step *s, uint32_t seqs)
{
    for (uint32_t i = 0; i < seqs; i++)
        ek_step_sets(s)[s->sets++] =
            (struct ek_slot_set){.slot = i,
                                 .sampling.top_p = x->top_p > 0 ? x->top_p : 1.0f,
                                 .sampling.temperature = x->top_p > 0 ? 0.8f : 0.0f,
                                 .sampling.seed = i};
}

static struct ek_step *new_step(struct bench *x)
{
    struct ek_step *s = x->step[++x->id & 1];

    ek_step_layout(s, &x->ceiling);
    s->id = x->id;
    return s;
}

static int start(struct bench *x, const struct ek_step *s)
{
    int r = x->b->forward(x->d, s);
    return r == 0 ? x->b->sample(x->d, s, NULL) : r;
}

static int finish(struct bench *x, uint64_t id)
{
    int r = x->b->wait(x->d, id, x->result, ek_result_bytes(x->ceiling.seqs, 0, 0, 0), WAIT_US);
    return r == 0 ? x->result->error : r;
}

/* ---- the sections ---- */

static double weight_bytes(const struct bench *x)
{
    double sum = 0;
    for (uint32_t i = 1; i < x->g.weight_count; i++) { /* the embedding is gathered, not read */
        const struct ek_weight *w = &x->g.weights[i];
        double bits = ek_dtype_bits(w->dtype) + (w->group > 0 ? 32.0 / w->group : 0);
        sum += bits / 8 * w->rows * w->cols;
    }
    return sum;
}

static double kv_token_bytes(const struct bench *x)
{
    const uint32_t values = x->g.value_dim > 0 ? 0 : x->g.head_dim; /* a latent's are in the keys */

    const double head = x->kv_i8 ? x->g.head_dim + values + 8.0 /* two scales */
                                 : (x->kv_f8 ? 1.0 : 2.0) * (x->g.head_dim + values);

    return head * x->g.layers * x->g.kv_heads;
}

/* What a sequence of a batch has behind it. */
static uint32_t context_of(const struct bench *x, uint32_t seq)
{
    return x->mixed ? x->context * (1 + seq * 7 % 32) / 16 : x->context;
}

/* Reads prompts, so that the cache is full of what such a model writes. */
static int write_cache(struct bench *x, uint32_t batch)
{
    int r = 0;
    for (uint32_t k = 0; r == 0 && k < batch; k++)
        for (uint32_t at = 0; r == 0 && at < context_of(x, k);) {
            uint32_t rows = context_of(x, k) - at;
            rows = rows < x->ceiling.rows ? rows : x->ceiling.rows;
            struct ek_step *s = new_step(x);
            set_slots(x, s, k == 0 && at == 0 ? batch : 0);
            add_rows(x, s, k, at, rows, false);
            r = start(x, s);
            if (r == 0)
                r = finish(x, x->id);
            at += rows;
        }
    return r;
}

/* One step of the batch, `i` after the cache was written, and what it computes beside it. */
/* Blocks at the ends of sequences' shares, which no step reads, go to the host tier and come. */
static void add_swaps(struct bench *x, struct ek_step *s, uint32_t batch)
{
    const uint32_t most = x->ceiling.copies / 2;

    for (uint32_t k = 0; k < x->swaps && k < batch && k < most; k++) {
        ek_step_copies(s)[s->copies++] = (struct ek_block_copy){
            block_of(x, k, x->per_seq - 1), k, EK_TIER_DEVICE, EK_TIER_HOST, {0}};
        ek_step_copies(s)[s->copies++] = (struct ek_block_copy){
            most + k, block_of(x, k, x->per_seq - 2), EK_TIER_HOST, EK_TIER_DEVICE, {0}};
    }
}

static int decode_step(struct bench *x, uint32_t batch, uint32_t i, uint64_t *host_us)
{
    struct ek_step *s = new_step(x);
    set_slots(x, s, i == 0 ? batch : 0);
    for (uint32_t k = 0; k < batch; k++)
        add_rows(x, s, k, context_of(x, k) + i, 1, i > 0);
    if (x->chunk > 0) /* a prompt of its own, again and again from its beginning */
        add_rows(x, s, batch, 0, x->chunk, false);
    add_swaps(x, s, batch);
    uint64_t from = ek_now_us();
    int r = start(x, s);
    *host_us += ek_now_us() - from;
    return r;
}

/* From the logits of a batch to its tokens in host memory; the share is of reading them once. */
static void show_sampling(struct bench *x, uint32_t batch, double us)
{
    const double bytes = (double)batch * x->g.vocab * sizeof(float);
    char cell[64];

    if (!(us > 0) || x->context > 1024)
        return; /* the device does not tell; the same at any context, so of the usual one alone */
    (void)snprintf(cell, sizeof(cell), "%s.sample_us.%s.%u", x->name,
                   x->top_p > 0 ? "top_p" : "greedy", batch);
    show(x, cell, us, "us", bytes / us / (x->bandwidth * 1e3), "bandwidth");
}

static int decode(struct bench *x, uint32_t batch, const char *more)
{
    uint64_t begin = 0, host = 0, warm = 0, sample = 0;
    double tokens = 0;
    char cell[64];

    share_out(x, batch + (x->chunk > 0));
    int r = write_cache(x, batch);
    for (uint32_t i = 0; r == 0 && i <= WARM + STEPS; i++) {
        uint64_t before = x->id;
        if (i == WARM)
            begin = ek_now_us();
        if (i < WARM + STEPS)
            r = decode_step(x, batch, i, i >= WARM ? &host : &warm);
        if (r == 0 && i > 0)
            r = finish(x, before);
        sample += i > WARM ? x->result->sample_us : 0;
    }
    if (r < 0)
        return r;
    double step = (double)(ek_now_us() - begin) / 1e6 / STEPS;
    for (uint32_t k = 0; k < batch; k++)
        tokens += context_of(x, k) + WARM + STEPS / 2.0;
    double bytes = weight_bytes(x) + tokens * kv_token_bytes(x);
    (void)snprintf(cell, sizeof(cell), "%s.decode.%u.%u%s", x->name, batch, x->context, more);
    if (x->copies_s > 0)
        show(x, cell, batch / step, "token/s", x->copies_s / step, "the bus");
    else
        show(x, cell, batch / step, "token/s", bytes / step / (x->bandwidth * 1e9), "bandwidth");
    (void)snprintf(cell, sizeof(cell), "%s.host_us.%u%s", x->name, batch, more);
    report_cell(&x->report,
                &(struct report_cell){.cell = cell, .value = (double)host / STEPS, .unit = "us"});
    printf("  %-24s %10.1f us a step\n", "host time", (double)host / STEPS);
    if (x->chunk == 0 && !x->mixed)
        show_sampling(x, batch, (double)sample / STEPS);
    return 0;
}

/* Seconds of a step with so many rows of one prompt. */
static int fastest(struct bench *x, uint32_t length, double *ret_seconds)
{
    double best = 1e30;
    int r = 0;

    for (int i = 0; r == 0 && i < 5; i++) {
        struct ek_step *s = new_step(x);
        set_slots(x, s, 1);
        add_rows(x, s, 0, 0, length, false);
        uint64_t begin = ek_now_us();
        r = start(x, s);
        if (r == 0)
            r = finish(x, x->id);
        double seconds = (double)(ek_now_us() - begin) / 1e6;
        best = seconds < best ? seconds : best;
    }
    *ret_seconds = best;
    return r;
}

static int prefill(struct bench *x, uint32_t length)
{
    double best, flops = 0;
    char cell[64];

    int r = fastest(x, length, &best);
    if (r < 0)
        return r;
    for (uint32_t i = 1; i + 1 < x->g.weight_count; i++)
        flops += 2.0 * x->g.weights[i].rows * x->g.weights[i].cols * length;
    flops += (double)x->g.layers * x->shape->q_heads * (x->g.head_dim + ek_graph_value_dim(&x->g)) *
             length * length;
    (void)snprintf(cell, sizeof(cell), "%s.prefill.%u", x->name, length);
    show(x, cell, length / best, "token/s", flops / best / (x->tflops * 1e12), "arithmetic");
    return 0;
}

/* Steps of few dozen to some hundred rows with packed weights as they are, and with panels of them
 * expanded first: up to where the first way is quicker belongs into cuda_fused_rows(). */
static int both_ways(struct bench *x, const char *device)
{
    static const uint32_t rows[] = {32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512};
    static const char *const way[] = {"fused", "panel"};
    enum { COUNT = sizeof(rows) / sizeof(rows[0]) };
    double seconds[2][COUNT];
    uint32_t quicker = 0;
    int r = 0;

    for (int w = 0; r == 0 && w < 2; w++) {
        setenv("EVENKEEL_FUSED_ROWS", w == 0 ? "512" : "0", 1);
        r = open_device(x, device, 4, rows[COUNT - 1]);
        for (size_t i = 0; r == 0 && i < COUNT; i++) {
            char cell[64];
            r = fastest(x, rows[i], &seconds[w][i]);
            (void)snprintf(cell, sizeof(cell), "%s.%s.%u", x->name, way[w], rows[i]);
            if (r == 0)
                show(x, cell, rows[i] / seconds[w][i], "token/s",
                     weight_bytes(x) / seconds[w][i] / (x->bandwidth * 1e9), "bandwidth");
        }
        close_device(x);
    }
    for (size_t i = 0; r == 0 && i < COUNT && seconds[0][i] < seconds[1][i]; i++)
        quicker = rows[i];
    if (r == 0)
        printf("  reading %s as it is: quicker up to %u rows\n", x->form->name, quicker);
    return r;
}

static int resize(struct bench *x)
{
    struct ek_plan plan;
    struct ek_plan_request q = {.graph = &x->g,
                                .ceiling = x->ceiling,
                                .logit_rows = x->ceiling.seqs,
                                .block_size = BLOCK_SIZE};

    int r = x->b->plan(&(struct ek_open_params){0}, &q, &plan, NULL);
    if (r < 0)
        return r;
    uint32_t more = (uint32_t)((2ull << 30) / plan.block_bytes);
    uint64_t begin = ek_now_us();
    r = x->b->kv_resize(x->d, x->blocks + more);
    uint64_t grown = ek_now_us();
    if (r == 0)
        r = x->b->kv_resize(x->d, x->blocks);
    uint64_t end = ek_now_us();
    if (r < 0)
        return r;
    printf("  %-24s %10.2f ms more, %.2f ms less\n", "kv pool by 2 GiB",
           (double)(grown - begin) / 1e3, (double)(end - grown) / 1e3);
    report_cell(&x->report, &(struct report_cell){.cell = "kv.grow.2gib",
                                                  .value = (double)(grown - begin) / 1e3,
                                                  .unit = "ms"});
    report_cell(&x->report, &(struct report_cell){.cell = "kv.shrink.2gib",
                                                  .value = (double)(end - grown) / 1e3,
                                                  .unit = "ms"});
    return decode(x, 1, ""); /* and it goes on */
}

static int swap(struct bench *x, bool out)
{
    struct ek_device_stats stats;
    uint32_t n = x->blocks - 1 < 512 ? x->blocks - 1 : 512;
    int r = 0;

    x->b->stats(x->d, &stats);
    double bytes = (double)stats.kv_bytes / x->blocks * n, best = 1e30;
    for (int i = 0; r == 0 && i < 4; i++) {
        struct ek_step *s = new_step(x);
        for (uint32_t k = 0; k < n; k++)
            ek_step_copies(s)[s->copies++] =
                out ? (struct ek_block_copy){1 + k, k, EK_TIER_DEVICE, EK_TIER_HOST, {0}}
                    : (struct ek_block_copy){k, 1 + k, EK_TIER_HOST, EK_TIER_DEVICE, {0}};
        set_slots(x, s, 1);
        add_rows(x, s, 0, x->context, 1, false);
        r = start(x, s);
        if (r == 0)
            r = finish(x, x->id);
        double us = (double)x->result->copy_us;
        best = us > 0 && us < best ? us : best;
    }
    if (r < 0)
        return r;
    char cell[32];
    (void)snprintf(cell, sizeof(cell), "swap.%s", out ? "out" : "in");
    show(x, cell, bytes / best / 1e3, "GB/s", bytes / best / 1e3 / 50, "50 GB/s");
    return 0;
}

/* A shape to see that it runs. */
static bool is_small(const struct bench *x)
{
    return x->shape->vocab < 8192;
}

/* What is asked first of a card, from one load: batches, prompts, long and mixed contexts,
 * sampling, and prompts beside a batch. */
static int first(struct bench *x, const char *device)
{
    const bool small = is_small(x);
    const uint32_t most = small ? 8 : 256, middle = small ? 4 : 64, rows = small ? 256 : 8192,
                   usual = small ? 96 : 1024;
    const struct {
        uint32_t batch, context;
        const char *more;
        float top_p;
        uint32_t chunk;
        bool mixed;
    } cells[] = {
        {1, usual, "", 0, 0, false},
        {8, usual, "", 0, 0, false},
        {middle, usual, "", 0, 0, false},
        {most, usual, "", 0, 0, false},
        {8, 8 * usual, "", 0, 0, false},
        {small ? 2 : 4, 32 * usual, "", 0, 0, false},
        {middle, usual, ".mixed", 0, 0, true},
        {middle, usual, ".top_p", 0.9f, 0, false},
        {middle, usual, ".chunk", 0, usual / 2, false},
    };
    x->context = usual;
    int r = open_device(x, device, most, rows);
    for (size_t i = 0; r == 0 && i < sizeof(cells) / sizeof(cells[0]); i++) {
        const uint32_t needs =
            (cells[i].context * (1 + cells[i].mixed) + STEPS + WARM) / BLOCK_SIZE + 1;
        if (needs > (x->blocks - 1) / (cells[i].batch + (cells[i].chunk > 0)))
            continue; /* the pool of this shape is too small for it */
        x->context = cells[i].context;
        x->top_p = cells[i].top_p;
        x->chunk = cells[i].chunk;
        x->mixed = cells[i].mixed;
        r = decode(x, cells[i].batch, cells[i].more);
    }
    x->top_p = 0;
    x->chunk = 0;
    x->mixed = false;
    share_out(x, 1);
    for (uint32_t length = rows / 4; r == 0 && length <= rows; length *= 4)
        r = prefill(x, length);
    close_device(x);
    return r;
}

static bool is_asked(const struct bench *x, uint32_t rows)
{
    bool found = x->only[0] == 0;

    for (int i = 0; i < 4; i++)
        found = found || x->only[i] == rows;
    return found;
}

static int run_section(struct bench *x, const char *device, const char *section)
{
    static const uint32_t batches[] = {1, 2, 8, 16, 32, 64, 128, 256},
                          lengths[] = {512, 2048, 8192};
    bool small = is_small(x);
    bool is_decode = strcmp(section, "decode") == 0, is_prefill = strcmp(section, "prefill") == 0;
    const char *more = x->top_p > 0 ? ".top_p" : x->swaps > 0 ? ".swap" : "";
    int r;

    if (strcmp(section, "rows") == 0) {
        x->context = 512;
        return both_ways(x, device);
    }
    if (strcmp(section, "first") == 0)
        return first(x, device);
    if (strcmp(section, "probe") == 0) { /* whether a model can be loaded, and what would compute */
        x->context = 16;
        r = open_device(x, device, 1, 1);
        close_device(x);
        return r;
    }
    x->context = is_prefill ? 8192 : small ? 100 : 1024;
    r = open_device(x, device, is_decode ? small ? 8 : 256 : 4, is_prefill ? 8192 : 2048);
    if (is_decode)
        for (size_t i = 0; r == 0 && i < (small ? 3 : sizeof(batches) / sizeof(batches[0])); i++)
            r = is_asked(x, batches[i]) ? decode(x, batches[i], more) : 0;
    else if (is_prefill)
        for (size_t i = 0; r == 0 && i < (small ? 1 : sizeof(lengths) / sizeof(lengths[0])); i++)
            r = is_asked(x, lengths[i]) ? prefill(x, lengths[i]) : 0;
    else {
        r = r == 0 ? resize(x) : r;
        r = r == 0 ? swap(x, true) : r;
        r = r == 0 ? swap(x, false) : r;
    }
    close_device(x);
    return r;
}

/* What numbers a KV cache has. */
static bool cache_of(const char *name, struct bench *x)
{
    x->kv_f8 = strcmp(name, "fp8") == 0;
    x->kv_i8 = strcmp(name, "int8") == 0;
    return x->kv_f8 || x->kv_i8 || strcmp(name, "bf16") == 0;
}

/* Shape, weights, cache and what else is not as usual. */
static void name_cells(struct bench *x, const char *shape, const char *weights)
{
    const char *wgmma = getenv("EVENKEEL_WGMMA");
    (void)snprintf(x->name, sizeof(x->name), "%s%s%s%s%s%s", shape,
                   x->form->dtype == EK_BF16 ? "" : ".", x->form->dtype == EK_BF16 ? "" : weights,
                   x->kv_f8   ? ".kv8"
                   : x->kv_i8 ? ".kvint8"
                              : "",
                   x->offload > 0 ? ".offload" : "",
                   wgmma && strcmp(wgmma, "off") == 0 ? ".mma" : "");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},
        {"section", required_argument, NULL, 'e'},
        {"device", required_argument, NULL, 'd'},
        {"bandwidth", required_argument, NULL, 'b'},
        {"report", required_argument, NULL, 'r'},
        {"tflops", required_argument, NULL, 't'},
        {"weights", required_argument, NULL, 'w'},
        {"kv", required_argument, NULL, 'k'},
        {"offload", required_argument, NULL, 'o'},
        {"only", required_argument, NULL, 'n'},
        {"top-p", required_argument, NULL, 'p'},
        {"swap", required_argument, NULL, 'x'},
        {NULL, 0, NULL, 0},
    };
    const char *shape = "8b", *section = "decode", *device = "cuda", *report = "/dev/null",
               *weights = "bf16";
    struct bench x = {.bandwidth = 4300, .tflops = 790};
    int c, only = 0;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's')
            shape = optarg;
        else if (c == 'e')
            section = optarg;
        else if (c == 'd')
            device = optarg;
        else if (c == 'r')
            report = optarg;
        else if (c == 'w')
            weights = optarg;
        else if (c == 'k' && cache_of(optarg, &x))
            continue;
        else if (c == 'o')
            x.offload = strtod(optarg, NULL);
        else if (c == 'n')
            x.only[only++ % 4] = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'x')
            x.swaps = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'p')
            x.top_p = strtof(optarg, NULL);
        else if (c == 'b')
            x.bandwidth = strtod(optarg, NULL);
        else if (c == 't')
            x.tflops = strtod(optarg, NULL);
        else
            return 2;
    }
    x.shape = bench_shape(shape);
    x.form = bench_form(weights);
    if (!x.shape || !x.form) {
        (void)fprintf(stderr,
                      "There is no shape \"%s\" (8b, 7b, moe, fine, latent, wide, small, tiny-moe, "
                      "tiny-latent, tiny-wide) or no weights "
                      "\"%s\" (bf16, int8, "
                      "fp8, int4, w8a8, w8a8fp8, w8a8block).\n",
                      shape, weights);
        return 2;
    }
    name_cells(&x, shape, weights);
    int r = report_open(&x.report, "cuda", report);
    if (r == 0) {
        r = bench_model(&x);
        if (r == 0)
            r = bench_weights(&x);
        if (r == 0)
            r = run_section(&x, device, section);
        int closed = report_close(&x.report);
        r = r < 0 ? r : closed;
    }
    if (r < 0)
        (void)fprintf(stderr, "%s of %s: %s\n", section, shape, ek_strerror(r));
    free((void *)(uintptr_t)x.file.data);
    free(x.g.ops);
    free(x.g.weights);
    free(x.g.quants);
    free(x.g.value_width);
    free(x.rope.inv_freq);
    return r < 0 ? 1 : 0;
}

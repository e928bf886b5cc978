/*
 * What a device does with a model of given shape and random weights, below everything else: decode
 * at several batch sizes, prefill, both ways to multiply some hundred rows by packed weights
 * (section rows), resizing the KV pool, moving blocks to the host tier. Beside each figure its
 * share of what the card can read or compute (--bandwidth GB/s, --tflops). Weights need no file:
 * all are read from one buffer of random numbers.
 *
 *   evenkeel-bench-cuda --shape 8b --section decode --report FILE [--weights fp8] [--kv fp8]
 *                       [--offload GIB]
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
#include "kernels/backend.h"
#include "tests/bench/report.h"

#define BLOCK_SIZE 16u
#define STEPS      40u /* measured, of one batch */
#define WARM       6u
#define WAIT_US    120000000ull

struct shape {
    const char *name;
    uint32_t layers, hidden, q_heads, kv_heads, head_dim, ffn, vocab;
    bool bias;
};

static const struct shape shapes[] = {
    {"8b", 32, 4096, 32, 8, 128, 14336, 128256, false}, /* Llama-3-8B */
    {"7b", 28, 3584, 28, 4, 128, 18944, 152064, true},  /* Qwen2-7B */
    {"small", 2, 512, 8, 2, 64, 1024, 4096, false},     /* to see that it runs */
};

static const struct form {
    const char *name;
    enum ek_dtype dtype; /* of the products' weights */
    uint32_t group;
    bool rounds; /* inputs too */
} forms[] = {{"bf16", EK_BF16, 0, false},
             {"int8", EK_I8, 0, false},
             {"fp8", EK_F8_E4M3, 0, false},
             {"int4", EK_I4, 128, false},
             {"w8a8", EK_I8, 0, true},
             {"w8a8fp8", EK_F8_E4M3, 0, true},
             {"w8a8block", EK_F8_E4M3, 128, true}};

struct bench {
    const struct shape *shape;
    const struct form *form;
    bool kv_f8;    /* the KV cache */
    char name[32]; /* of its cells */
    struct ek_graph g;
    struct ek_rope rope;
    struct ek_weight_file file;
    struct ek_weight_files files;
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    uint32_t blocks, context;
    struct ek_step *step[2];
    struct ek_result *result;
    uint64_t id;
    double bandwidth, tflops; /* GB/s, TFLOP/s */
    double offload;           /* GiB of weights in host memory */
    double copies_s;          /* of a step, as measured at load; 0 = none */
    struct report report;
};

/* ---- the model ---- */

static uint32_t weight(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct ek_weight *w = &x->g.weights[x->g.weight_count];
    bool matrix = rows > 1 && cols > 1;

    *w = (struct ek_weight){.source = EK_BF16,
                            .dtype = matrix ? EK_BF16 : EK_F32,
                            .rows = rows,
                            .cols = cols,
                            .parts = 1,
                            .part = {{0, 0, rows}}};
    (void)snprintf(w->name, sizeof(w->name), "random %u", x->g.weight_count);
    size_t bytes = (size_t)rows * cols * 2;
    x->file.size_bytes = bytes > x->file.size_bytes ? bytes : x->file.size_bytes;
    return x->g.weight_count++;
}

static struct ek_op *op(struct bench *x, enum ek_op_kind kind, uint16_t dst, uint16_t src)
{
    struct ek_op *o = &x->g.ops[x->g.op_count++];

    *o = (struct ek_op){
        .kind = kind, .dst = dst, .src = src, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    return o;
}

/* As a checkpoint has it whose blocks of 128 x 128 share a scale: any numbers of the file. */
static void in_blocks(struct bench *x, struct ek_weight *w)
{
    const struct ek_quant_range none = {.file = UINT32_MAX};

    w->quantized = true;
    w->quant = x->g.quant_count++;
    w->source = EK_F8_E4M3;
    x->g.quants[w->quant] = (struct ek_quant){.kind = EK_QUANT_F8,
                                              .rows = w->rows,
                                              .cols = w->cols,
                                              .bits = 8,
                                              .block_rows = 128,
                                              .block_cols = 128,
                                              .numbers = {.dtype = EK_I8},
                                              .scales = {.dtype = EK_BF16},
                                              .zeros = none,
                                              .groups = none};
}

/* As --quantization makes it, or in blocks. */
static uint32_t product(struct bench *x, uint32_t rows, uint32_t cols, bool head)
{
    uint32_t index = weight(x, rows, cols);
    bool wide = head && x->form->dtype == EK_I4;

    x->g.weights[index].dtype = wide ? EK_I8 : x->form->dtype;
    x->g.weights[index].group = wide ? 0 : x->form->group;
    x->g.weights[index].rounds_input = x->form->rounds && !head;
    if (x->form->rounds && x->form->group > 0 && !head)
        in_blocks(x, &x->g.weights[index]);
    else if (x->form->rounds && x->form->group > 0)
        x->g.weights[index].group = 0;
    return index;
}

static void linear(struct bench *x, uint16_t dst, uint16_t src, bool bias)
{
    struct ek_op *o = op(x, EK_OP_LINEAR, dst, src);

    o->weight = product(x, x->g.value_width[dst], x->g.value_width[src], false);
    if (bias)
        o->bias = weight(x, x->g.value_width[dst], 1);
}

static void norm(struct bench *x, uint16_t dst, uint16_t src)
{
    struct ek_op *o = op(x, EK_OP_NORM, dst, src);

    o->weight = weight(x, 1, x->shape->hidden);
    o->u.norm.eps = 1e-5f;
    o->u.norm.group = x->shape->hidden;
    o->u.norm.heads = 1;
}

static void add_layer(struct bench *x, uint32_t layer)
{
    const struct shape *s = x->shape;

    norm(x, 1, 0);
    linear(x, 2, 1, s->bias);
    struct ek_op *rope = op(x, EK_OP_ROPE, 2, 2);
    rope->u.rope.heads = s->q_heads + s->kv_heads;
    rope->u.rope.head_dim = rope->u.rope.rotary_dim = s->head_dim;
    struct ek_op *a = op(x, EK_OP_ATTENTION, 3, 2);
    a->layer = layer;
    a->u.attention.q_heads = s->q_heads;
    a->u.attention.kv_heads = s->kv_heads;
    a->u.attention.head_dim = s->head_dim;
    a->u.attention.scale = 1.0f / sqrtf((float)s->head_dim);
    linear(x, 4, 3, false);
    op(x, EK_OP_ADD, 0, 4)->u.add.scale = 1.0f;
    norm(x, 1, 0);
    linear(x, 5, 1, false);
    op(x, EK_OP_GLU, 6, 5)->u.glu.act = EK_ACT_SILU;
    linear(x, 4, 6, false);
    op(x, EK_OP_ADD, 0, 4)->u.add.scale = 1.0f;
}

static int make_model(struct bench *x)
{
    const struct shape *s = x->shape;
    uint32_t q = s->q_heads * s->head_dim, kv = s->kv_heads * s->head_dim, half = s->head_dim / 2;
    const uint32_t widths[] = {s->hidden, s->hidden,  q + 2 * kv, q,
                               s->hidden, 2 * s->ffn, s->ffn,     s->hidden};

    x->g = (struct ek_graph){.value_count = 8,
                             .ropes = &x->rope,
                             .rope_count = 1,
                             .layers = s->layers,
                             .kv_heads = s->kv_heads,
                             .head_dim = s->head_dim,
                             .hidden = s->hidden,
                             .vocab = s->vocab,
                             .max_position = 65536,
                             .dtype = EK_BF16,
                             .kv_f8 = x->kv_f8};
    x->g.ops = calloc(s->layers * 11 + 8, sizeof(*x->g.ops));
    x->g.weights = calloc(s->layers * 8 + 8, sizeof(*x->g.weights));
    x->g.quants = calloc(s->layers * 4, sizeof(*x->g.quants));
    x->g.value_width = malloc(sizeof(widths));
    x->rope =
        (struct ek_rope){.inv_freq = calloc(half, sizeof(float)), .count = half, .factor = 1.0f};
    if (!x->g.ops || !x->g.weights || !x->g.quants || !x->g.value_width || !x->rope.inv_freq)
        return -ENOMEM;
    memcpy(x->g.value_width, widths, sizeof(widths));
    for (uint32_t i = 0; i < half; i++)
        x->rope.inv_freq[i] = powf(500000.0f, -(float)i / (float)half);
    struct ek_op *embed = op(x, EK_OP_EMBED, 0, 0);
    embed->weight = weight(x, s->vocab, s->hidden);
    embed->u.embed.scale = 1.0f;
    for (uint32_t i = 0; i < s->layers; i++)
        add_layer(x, i);
    op(x, EK_OP_PICK, 7, 0);
    norm(x, 7, 7);
    struct ek_op *logits = op(x, EK_OP_LOGITS, 0, 7);
    logits->weight = product(x, s->vocab, s->hidden, true);
    logits->u.logits.scale = 1.0f;
    return 0;
}

/* Numbers of either sign between 2^-6 and 2^-5. */
static int make_weights(struct bench *x)
{
    uint16_t *data = malloc(x->file.size_bytes);
    uint64_t state = 1;

    if (!data)
        return -ENOMEM;
    for (size_t i = 0; i < x->file.size_bytes / 2; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        data[i] =
            (uint16_t)(121u << 7 | (uint32_t)(state >> 40 & 0x77u) | /* none is a NaN of E4M3 */
                       (uint32_t)(state >> 50 & 1u) << 15);
    }
    x->file.data = data;
    x->files = (struct ek_weight_files){&x->file, 1};
    return 0;
}

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

static int open_device(struct bench *x, const char *device, uint32_t seqs, uint32_t rows)
{
    struct ek_fault fault = {.msg = ""};
    const struct ek_open_params open = {.device = 0};
    uint32_t per_seq = (x->context + STEPS + WARM) / BLOCK_SIZE + 2;

    x->ceiling =
        (struct ek_step_ceiling){rows > seqs ? rows : seqs, seqs, seqs * per_seq, 512, 16, 0};
    x->blocks = 1 + seqs * per_seq;
    struct ek_plan_request q = {.graph = &x->g,
                                .ceiling = x->ceiling,
                                .logit_rows = seqs,
                                .block_size = BLOCK_SIZE,
                                .offload_bytes = (uint64_t)(x->offload * 0x1p30)};
    const struct ek_kv_params kv = {x->blocks, 512, BLOCK_SIZE};
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
    printf("  loaded in %.1f s; attention to prompts: %s kernels%s%s\n",
           (double)(ek_now_us() - begin) / 1e6, s.attention ? s.attention : "the",
           s.note ? "\n  " : "", s.note ? s.note : "");
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

/* Rows [from, from + rows) of a sequence whose blocks are its own run of ids. */
static void add_rows(struct bench *x, struct ek_step *s, uint32_t seq, uint32_t from, uint32_t rows,
                     bool previous)
{
    uint32_t per_seq = (x->blocks - 1) / x->ceiling.seqs, first = 1 + seq * per_seq;
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
        ek_step_tables(s)[s->entries++] = first + i;
    for (uint32_t at = from; at < from + rows; at++, s->rows++) {
        ek_step_tokens(s)[s->rows] =
            previous ? EK_FROM_PREVIOUS : (int32_t)((at * 2654435761u) % x->g.vocab);
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows] = (first + at / BLOCK_SIZE) * BLOCK_SIZE + at % BLOCK_SIZE;
    }
}

static void set_slots(struct bench *x, struct ek_step *s, uint32_t seqs)
{
    (void)x;
    for (uint32_t i = 0; i < seqs; i++)
        ek_step_sets(s)[s->sets++] = (struct ek_slot_set){.slot = i, .top_p = 1.0f};
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
    return (x->kv_f8 ? 2.0 : 4.0) * x->g.layers * x->g.kv_heads * x->g.head_dim;
}

static int decode(struct bench *x, uint32_t batch)
{
    uint64_t begin = 0, host = 0;
    char cell[64];
    int r = 0;

    for (uint32_t i = 0; r == 0 && i <= WARM + STEPS; i++) {
        uint64_t before = x->id;
        if (i == WARM)
            begin = ek_now_us();
        if (i < WARM + STEPS) {
            struct ek_step *s = new_step(x);
            if (i == 0)
                set_slots(x, s, batch);
            for (uint32_t k = 0; k < batch; k++)
                add_rows(x, s, k, x->context + i, 1, i > 0);
            uint64_t from = ek_now_us();
            r = start(x, s);
            host += i >= WARM ? ek_now_us() - from : 0;
        }
        if (r == 0 && i > 0)
            r = finish(x, before);
    }
    if (r < 0)
        return r;
    double seconds = (double)(ek_now_us() - begin) / 1e6;
    double step = seconds / STEPS, positions = x->context + WARM + STEPS / 2.0;
    double bytes = weight_bytes(x) + batch * positions * kv_token_bytes(x);
    (void)snprintf(cell, sizeof(cell), "%s.decode.%u.%u", x->name, batch, x->context);
    if (x->copies_s > 0)
        show(x, cell, batch / step, "token/s", x->copies_s / step, "the bus");
    else
        show(x, cell, batch / step, "token/s", bytes / step / (x->bandwidth * 1e9), "bandwidth");
    (void)snprintf(cell, sizeof(cell), "%s.host_us.%u", x->name, batch);
    report_cell(&x->report,
                &(struct report_cell){.cell = cell, .value = (double)host / STEPS, .unit = "us"});
    printf("  %-24s %10.1f us a step\n", "host time", (double)host / STEPS);
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
    flops += 2.0 * x->g.layers * x->shape->q_heads * x->g.head_dim * (double)length * length;
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
    return decode(x, 1); /* and it goes on */
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

static int run_section(struct bench *x, const char *device, const char *section)
{
    static const uint32_t batches[] = {1, 2, 8, 16, 32, 64, 128, 256},
                          lengths[] = {512, 2048, 8192};
    bool small = strcmp(x->shape->name, "small") == 0;
    bool is_decode = strcmp(section, "decode") == 0, is_prefill = strcmp(section, "prefill") == 0;
    int r;

    if (strcmp(section, "rows") == 0) {
        x->context = 512;
        return both_ways(x, device);
    }
    x->context = is_prefill ? 8192 : small ? 100 : 1024;
    r = open_device(x, device, is_decode ? small ? 8 : 256 : 4, is_prefill ? 8192 : 1);
    if (is_decode)
        for (size_t i = 0; r == 0 && i < (small ? 3 : sizeof(batches) / sizeof(batches[0])); i++)
            r = decode(x, batches[i]);
    else if (is_prefill)
        for (size_t i = 0; r == 0 && i < (small ? 1 : sizeof(lengths) / sizeof(lengths[0])); i++)
            r = prefill(x, lengths[i]);
    else {
        r = r == 0 ? resize(x) : r;
        r = r == 0 ? swap(x, true) : r;
        r = r == 0 ? swap(x, false) : r;
    }
    close_device(x);
    return r;
}

static const struct form *find_form(const char *name)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

static const struct shape *find_shape(const char *name)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"shape", required_argument, NULL, 's'},   {"section", required_argument, NULL, 'e'},
        {"device", required_argument, NULL, 'd'},  {"bandwidth", required_argument, NULL, 'b'},
        {"report", required_argument, NULL, 'r'},  {"tflops", required_argument, NULL, 't'},
        {"weights", required_argument, NULL, 'w'}, {"kv", required_argument, NULL, 'k'},
        {"offload", required_argument, NULL, 'o'}, {NULL, 0, NULL, 0},
    };
    const char *shape = "8b", *section = "decode", *device = "cuda", *report = "/dev/null",
               *weights = "bf16";
    struct bench x = {.bandwidth = 4300, .tflops = 790};
    int c;

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
        else if (c == 'k' && (strcmp(optarg, "bf16") == 0 || strcmp(optarg, "fp8") == 0))
            x.kv_f8 = strcmp(optarg, "fp8") == 0;
        else if (c == 'o')
            x.offload = strtod(optarg, NULL);
        else if (c == 'b')
            x.bandwidth = strtod(optarg, NULL);
        else if (c == 't')
            x.tflops = strtod(optarg, NULL);
        else
            return 2;
    }
    x.shape = find_shape(shape);
    x.form = find_form(weights);
    if (!x.shape || !x.form) {
        (void)fprintf(stderr,
                      "There is no shape \"%s\" (8b, 7b, small) or no weights \"%s\" (bf16, int8, "
                      "fp8, int4, w8a8, w8a8fp8, w8a8block).\n",
                      shape, weights);
        return 2;
    }
    const char *wgmma = getenv("EVENKEEL_WGMMA");
    (void)snprintf(x.name, sizeof(x.name), "%s%s%s%s%s%s", shape,
                   x.form->dtype == EK_BF16 ? "" : ".", x.form->dtype == EK_BF16 ? "" : weights,
                   x.kv_f8 ? ".kv8" : "", x.offload > 0 ? ".offload" : "",
                   wgmma && strcmp(wgmma, "off") == 0 ? ".mma" : "");
    int r = report_open(&x.report, "cuda", report);
    if (r == 0) {
        r = make_model(&x);
        if (r == 0)
            r = make_weights(&x);
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

/*
 * Which kernels attend to the rows of prompts: ek_attend_wgmma_* on compute capability 9.0, else
 * ek_attend_tile_*. The first kind depends on details of one generation of cards, so before it is
 * used, and before any weight is loaded, both compute the same small problem: a context of some
 * hundred positions in scattered blocks, all of it and then with a window and a cap. If they differ
 * the other kind is used and a note says so. A fault in the trial is one of the context, for which
 * CUDA knows no way back but a new process: the start ends with a sentence that names the switch.
 *
 * EVENKEEL_WGMMA=off takes ek_attend_tile_* always, =on takes wgmma without a trial.
 */
#include "kernels/cuda/attend_choose.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "kernels/num.h"

enum {
    CONTEXT = 300, /* positions: three tiles of either kernel, the last one not full */
    ROWS = 170,    /* of them that attend */
    KV_HEADS = 2,
    WINDOW = 70,
    NAP_NS = 100000,
    TRIAL_US = 10000000, /* a card that takes so long hangs */
};

#define SOFTCAP   4.0f
#define TOLERANCE 0.03f /* of numbers up to 1, some tenths in the mean */

/* The problem; where its parts lie in one buffer. */
struct attend_trial {
    struct cu_attend_args args;
    uint32_t entries;                       /* of the block table; block 0 belongs to no sequence */
    size_t step[2], x, kv, dst[2], bytes;   /* [1]: of wgmma */
    size_t tiles_at, table_at, dst_numbers; /* in a step; numbers of a result */
    uint32_t tile_rows[2], tiles[2];
    char *host;
    struct cuda_buffer card;
};

static size_t cuda_attend_choose_take(size_t *sum, size_t bytes)
{
    size_t at = *sum;

    *sum += (bytes + 1023) & ~(size_t)1023;
    return at;
}

/* The first attention of heads that these kernels are for; NULL: all are wide. */
static const struct ek_op *first_attention(const struct ek_graph *g)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == EK_OP_ATTENTION && g->ops[i].u.attention.head_dim <= CU_DIM_NARROW)
            return &g->ops[i];
    return NULL;
}

static void shape_trial(const struct ek_device *d, struct attend_trial *t)
{
    const struct ek_graph *g = d->graph;
    const struct ek_op *op = first_attention(g);
    assert(op); /* asked before: offered() */
    const uint32_t per_kv = op->u.attention.q_heads / op->u.attention.kv_heads;
    const uint32_t dim = op->u.attention.head_dim;
    const uint32_t block = 1u << d->shape.block_shift, width = KV_HEADS * per_kv * dim;
    size_t plane = 0, step = sizeof(struct cu_step);

    (void)cuda_attend_choose_take(&plane, (size_t)KV_HEADS * block * dim * 2);
    t->args = (struct cu_attend_args){.x = {.stride = width, .dtype = g->dtype},
                                      .dst = {.stride = width, .dtype = g->dtype},
                                      .q_heads = KV_HEADS * per_kv,
                                      .kv_heads = KV_HEADS,
                                      .head_dim = dim,
                                      .block_shift = d->shape.block_shift,
                                      .scale = 6.0f / sqrtf((float)dim),
                                      .v_scale = 1.0f,
                                      .block_bytes = 2 * plane,
                                      .plane_bytes = plane};
    t->entries = (CONTEXT + block - 1) / block;
    t->dst_numbers = (size_t)ROWS * width;
    t->tile_rows[0] = d->shape.tile_rows;
    t->tile_rows[1] = 2 * d->shape.tile_rows;
    t->tiles_at = step;
    step += ROWS * sizeof(struct cu_tile);
    t->table_at = step;
    step += t->entries * sizeof(uint32_t);
    for (int i = 0; i < 2; i++) {
        t->tiles[i] = (ROWS + t->tile_rows[i] - 1) / t->tile_rows[i];
        t->step[i] = cuda_attend_choose_take(&t->bytes, step);
    }
    t->x = cuda_attend_choose_take(&t->bytes, t->dst_numbers * 2);
    t->kv = cuda_attend_choose_take(&t->bytes, (t->entries + 1) * t->args.block_bytes);
    for (int i = 0; i < 2; i++)
        t->dst[i] = cuda_attend_choose_take(&t->bytes, t->dst_numbers * 2);
}

/* Numbers of either sign up to 1, everywhere but in the steps and the results. */
static void fill_trial(const struct ek_device *d, struct attend_trial *t)
{
    const enum ek_dtype type = d->graph->dtype;
    uint32_t state = 1;

    for (size_t i = t->x / 2; i < t->dst[0] / 2; i++) {
        state = state * 1664525u + 1013904223u;
        cpu_store(type, t->host, i, (float)(int32_t)state * 0x1p-31f);
    }
    for (int i = 0; i < 2; i++) {
        char *at = t->host + t->step[i];
        struct cu_step *s = (struct cu_step *)(void *)at;
        struct cu_tile *tile = (struct cu_tile *)(void *)(at + t->tiles_at);
        uint32_t *table = (uint32_t *)(void *)(at + t->table_at);
        *s = (struct cu_step){.rows = ROWS,
                              .tiles = t->tiles[i],
                              .tile_at = (uint32_t)t->tiles_at,
                              .table_at = (uint32_t)t->table_at,
                              .kv = t->card.at + t->kv};
        for (uint32_t k = 0; k < t->tiles[i]; k++) {
            const uint32_t row = k * t->tile_rows[i], left = ROWS - row;
            tile[k] = (struct cu_tile){.row = row,
                                       .rows = left < t->tile_rows[i] ? left : t->tile_rows[i],
                                       .position = CONTEXT - ROWS + row,
                                       .parts = 1};
            tile[k].to = tile[k].position + tile[k].rows;
        }
        for (uint32_t k = 0; k < t->entries; k++)
            table[k] = t->entries - k; /* scattered: backwards */
    }
}

/* Waits for what was launched without trusting that it ever ends. */
static int cuda_attend_choose_settle(struct ek_device *d)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    const uint64_t begin = ek_now_us();
    cu_handle event = d->flight[0].done;
    int r = cu_code(d->cu.event_record(event, d->stream));

    while (r == 0 && (r = cu_code(d->cu.event_query(event))) == -EAGAIN) {
        r = ek_now_us() - begin < TRIAL_US ? 0 : -ETIMEDOUT;
        (void)nanosleep(&nap, NULL); /* woken early is as good */
    }
    return r;
}

/* Both kernels once; the largest difference between their results. */
static int run_trial(struct ek_device *d, struct attend_trial *t, float *ret_differ)
{
    static const enum cuda_kernel kernel[] = {K_ATTEND_TILE, K_ATTEND_WGMMA};
    const enum ek_dtype type = d->graph->dtype;
    float differ = 0.0f;
    int r = 0;

    for (int i = 0; r == 0 && i < 2; i++) {
        struct cu_attend_args a = t->args;
        a.step = t->card.at + t->step[i];
        a.x.at = t->card.at + t->x;
        a.dst.at = t->card.at + t->dst[i];
        r = cuda_launch(d, kernel[i], t->tiles[i], KV_HEADS, i == 0 ? 128 : 256, &a);
    }
    if (r == 0)
        r = cuda_attend_choose_settle(d);
    if (r == 0)
        r = cu_code(d->cu.copy_out(t->host + t->dst[0], t->card.at + t->dst[0],
                                   t->bytes - t->dst[0], d->stream));
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->stream));
    for (size_t i = 0; r == 0 && i < t->dst_numbers; i++) {
        const float by =
            fabsf(cpu_load(type, t->host + t->dst[0], i) - cpu_load(type, t->host + t->dst[1], i));
        differ = by <= differ ? differ : by; /* what is not a number is kept */
    }
    if (r == 0)
        *ret_differ = differ;
    return r;
}

/* The problem without and with a window and a cap. */
static int try_both(struct ek_device *d, struct attend_trial *t, float ret_differ[2])
{
    shape_trial(d, t);
    t->host = calloc(1, t->bytes);
    if (!t->host)
        return -ENOMEM;
    int r = cu_code(d->cu.alloc(&t->card.at, t->bytes));
    if (r < 0) {
        t->card.at = 0;
        return r;
    }
    fill_trial(d, t);
    r = cu_code(d->cu.copy_in(t->card.at, t->host, t->bytes, d->stream));
    for (int i = 0; r == 0 && i < 2; i++) {
        t->args.window = i * WINDOW;
        t->args.softcap = (float)i * SOFTCAP;
        r = run_trial(d, t, &ret_differ[i]);
    }
    return r;
}

static int trial(struct ek_device *d, bool *ret_same, struct ek_fault *fault)
{
    struct attend_trial t = {0};
    float differ[2] = {0};

    int r = try_both(d, &t, differ);
    if (t.card.at && r != -ETIMEDOUT) {
        (void)d->cu.stream_wait(d->stream); /* what was begun uses what is freed here */
        (void)d->cu.free(t.card.at);        /* after a fault it is gone with the context */
    }
    free(t.host);
    if (r == EK_EDEVMEM || r == -EINVAL) { /* the card is as it was */
        cuda_note(d,
                  "The wgmma attention kernels could not be tried on this card (%s): prompts "
                  "are computed with others, more slowly",
                  ek_strerror(r));
        *ret_same = false;
        return 0;
    }
    if (r == -ETIMEDOUT)
        r = EK_EDEVICE;
    if (r == EK_EDEVICE)
        ek_fault_write(fault, "device",
                       "The card failed in the trial of the wgmma attention kernels: start again "
                       "with EVENKEEL_WGMMA=off in the environment, which takes others.");
    if (r < 0)
        return r;
    *ret_same = differ[0] <= TOLERANCE && differ[1] <= TOLERANCE;
    if (!*ret_same)
        cuda_note(d,
                  "On this card the wgmma attention kernels differ from the others by %g, and "
                  "with a window by %g, in numbers up to 1: prompts are computed with the "
                  "others, more slowly; please report it",
                  (double)differ[0], (double)differ[1]);
    return 0;
}

/* Whether wgmma can do what all attention of the graph asks for. */
static bool offered(const struct ek_device *d)
{
    if (d->capability != 90 || !d->kernel[K_ATTEND_WGMMA] || !first_attention(d->graph))
        return false;
    for (uint32_t i = 0; i < d->graph->op_count; i++) {
        const struct ek_op *op = &d->graph->ops[i];
        if (op->kind == EK_OP_ATTENTION && !(op->u.attention.scale > 0.0f))
            return false; /* its maximum is taken before the scale */
    }
    return true;
}

int cuda_attend_choose(struct ek_device *d, struct ek_fault *fault)
{
    const char *wanted = getenv("EVENKEEL_WGMMA");
    const bool off = wanted && strcmp(wanted, "off") == 0;
    bool wgmma = offered(d) && !off;

    if (wgmma && !(wanted && strcmp(wanted, "on") == 0)) {
        int r = trial(d, &wgmma, fault);
        if (r < 0)
            return r;
    }
    d->attend_tile = wgmma ? K_ATTEND_WGMMA : d->graph->kv_i8 ? K_ATTEND_KEPT : K_ATTEND_TILE;
    d->tile_rows = wgmma ? 2 * d->shape.tile_rows : d->shape.tile_rows;
    return 0;
}

const char *cuda_attend_name(const struct ek_device *d)
{
    if (d->shape.tile_rows == 0)
        return "plain";
    return d->attend_tile == K_ATTEND_WGMMA ? "wgmma" : "mma.sync";
}

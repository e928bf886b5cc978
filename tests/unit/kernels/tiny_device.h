/*
 * A device that has loaded a tiny model, and a writer of steps for it: for tests that let a backend
 * compute.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "tests/unit/kernels/tiny.h"

struct tiny_device {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    uint32_t block_size, prompt;
    struct ek_step *step;
    struct ek_result *result;
    uint64_t id;
};

static inline void tiny_close(struct tiny_device *x)
{
    if (x->b)
        x->b->close(x->d);
    free(x->step);
    free(x->result);
    *x = (struct tiny_device){0};
}

/* With ceilings of the test's own. */
static inline int tiny_open_for(const struct ek_backend *b, const struct tiny *t,
                                const struct ek_open_params *open, const struct ek_plan_request *q,
                                uint32_t blocks, struct tiny_device *x)
{
    const struct ek_kv_params kv = {blocks, 4, q->block_size,
                                    t->g.state_floats > 0 ? TINY_STATES : 0};

    *x = (struct tiny_device){
        .b = b, .ceiling = q->ceiling, .block_size = q->block_size, .prompt = t->p.prompt};
    int r = x->b->open(open, &x->d, NULL);
    if (r == 0)
        r = x->b->load(x->d, q, &t->files, NULL, NULL, NULL);
    if (r == 0)
        r = x->b->kv_open(x->d, &kv);
    x->step = calloc(1, ek_step_size(&q->ceiling));
    x->result = calloc(1, ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs, 64));
    if (r == 0 && (!x->step || !x->result))
        r = -12;
    if (r < 0)
        tiny_close(x);
    else
        ek_step_layout(x->step, &q->ceiling);
    return r;
}

static inline int tiny_open_on(const struct ek_backend *b, const struct tiny *t,
                               const struct ek_open_params *open, uint32_t block_size,
                               uint32_t blocks, struct tiny_device *x)
{
    const struct ek_plan_request q = {.graph = &t->g,
                                      .ceiling = {512, 16, 1024, 8, 4096, 8},
                                      .logit_rows = 24,
                                      .block_size = block_size,
                                      .offload_bytes = t->p.offload};

    return tiny_open_for(b, t, open, &q, blocks, x);
}

static inline int tiny_open(const struct tiny *t, const char *isa, uint32_t threads,
                            uint32_t block_size, uint32_t blocks, struct tiny_device *x)
{
    const struct ek_open_params open = {.threads = threads, .isa = isa};

    return tiny_open_on(ek_backend_find("cpu", NULL), t, &open, block_size, blocks, x);
}

static inline void tiny_set(struct tiny_device *x, const struct ek_slot_set *set)
{
    ek_step_sets(x->step)[x->step->sets++] = *set;
}

/* Adds rows [from, from + rows) of a sequence; token NULL = EK_FROM_PREVIOUS. table: all blocks. */
static inline void tiny_add(struct tiny_device *x, uint32_t slot, const int32_t *tokens,
                            uint32_t from, uint32_t rows, const uint32_t *table, bool sample)
{
    struct ek_step *s = x->step;
    uint32_t bs = x->block_size, blocks = (from + rows + bs - 1) / bs;

    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .prompt = x->prompt,
                                                      .sample = sample,
                                                      .logit_row = sample ? s->logit_rows++ : 0};
    memcpy(ek_step_tables(s) + s->entries, table, blocks * sizeof(uint32_t));
    s->entries += blocks;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t at = from + i;
        ek_step_tokens(s)[s->rows] = tokens ? tokens[at] : EK_FROM_PREVIOUS;
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows++] = table[at / bs] * bs + at % bs;
    }
}

/* Runs the step and begins a new, empty one. */
static inline int tiny_run(struct tiny_device *x, const struct ek_masks *masks)
{
    x->step->id = ++x->id;
    int r = x->b->forward(x->d, x->step);
    if (r == 0)
        r = x->b->sample(x->d, x->step, masks);
    if (r == 0)
        r = x->b->wait(x->d, x->id, x->result,
                       ek_result_bytes(x->ceiling.seqs, x->ceiling.scores, x->ceiling.seqs, 64),
                       60000000);
    ek_step_layout(x->step, &x->ceiling);
    return r < 0 ? r : x->result->error;
}

/*
 * A course of steps that meets what a model in parts could get wrong, and a log of all its results:
 * two steps in flight, tokens that are still in the making, prompts in chunks beside decodes, drawn
 * tokens with penalties, scores, hidden states, alternatives, copies to and from the host, a pool
 * that is resized, blocks that two sequences share. Header only, for tests that hold two logs
 * against each other.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { FLOW_BLOCK = 8, FLOW_BLOCKS = 24, FLOW_BYTES = 1 << 20 };

struct flow_log { /* of all results, without times */
    char *at;
    size_t bytes;
};

struct flow { /* two steps at a time */
    struct tiny_device *x;
    struct ek_step *other;
    struct flow_log *log;
};

static inline int flow_end(struct flow *f, uint64_t id)
{
    struct tiny_device *x = f->x;
    struct ek_result *r = x->result;
    const size_t most = ek_result_bytes(x->ceiling.seqs, x->ceiling.scores, x->ceiling.seqs, 64);

    int code = id == 0 ? 0 : x->b->wait(x->d, id, r, most, 60000000);
    if (code < 0 || id == 0 || r->error < 0)
        return code < 0 || id == 0 ? code : r->error;
    r->forward_us = r->sample_us = r->copy_us = 0;
    const size_t bytes = ek_result_own_bytes(r);
    assert_true(f->log->bytes + bytes <= FLOW_BYTES);
    memcpy(f->log->at + f->log->bytes, r, bytes);
    f->log->bytes += bytes;
    return 0;
}

/* Begins the step that was written, then ends the one before it. */
static inline int flow_next(struct flow *f)
{
    struct tiny_device *x = f->x;
    struct ek_step *step = x->step;

    step->id = ++x->id;
    int r = x->b->forward(x->d, step);
    if (r == 0)
        r = x->b->sample(x->d, step, NULL);
    if (r == 0)
        r = flow_end(f, x->id - 1);
    x->step = f->other;
    f->other = step;
    ek_step_layout(x->step, &x->ceiling);
    return r;
}

static inline void flow_slots(struct tiny_device *x, const int32_t *token)
{
    const struct ek_slot_set greedy = {.slot = 0, .sampling.top_p = 1.0f, .top = 4};
    struct ek_slot_set drawn = {.slot = 1,
                                .sampling.temperature = 0.8f,
                                .sampling.top_p = 0.9f,
                                .sampling.seed = 99,
                                .sampling.frequency = 0.5f,
                                .sampling.repetition = 1.3f,
                                .word = 0,
                                .prompt = 7};
    uint32_t *words = ek_step_words(x->step);

    tiny_set(x, &greedy);
    for (uint32_t i = 0; i < drawn.prompt; i++)
        words[i] = (uint32_t)token[i];
    x->step->words = drawn.prompt;
    tiny_set(x, &drawn);
}

static inline void flow_copy(struct tiny_device *x, struct ek_block_copy c)
{
    ek_step_copies(x->step)[x->step->copies++] = c;
}

/* Prompts in chunks beside decodes, scores and a hidden state. */
static inline void flow_prompts(struct flow *f, const int32_t *token, const uint32_t (*table)[6])
{
    struct tiny_device *x = f->x;

    flow_slots(x, token);
    tiny_add(x, 0, token, 0, 9, table[0], false);
    tiny_add(x, 1, token, 0, 7, table[1], true);
    assert_int_equal(flow_next(f), 0);
    tiny_add(x, 0, token, 9, 8, table[0], true);
    tiny_add(x, 1, NULL, 7, 1, table[1], true);
    struct ek_step_seq *q = ek_step_seqs(x->step);
    q[0].scores = 3;
    q[0].score_row = x->step->logit_rows;
    q[0].target = x->step->words;
    for (uint32_t k = 0; k < q[0].scores; k++)
        ek_step_words(x->step)[x->step->words++] = (uint32_t)token[k + 20];
    x->step->logit_rows += q[0].scores;
    q[0].hidden = 1;
    assert_int_equal(flow_next(f), 0);
    for (uint32_t k = 0; k < 5; k++) {
        tiny_add(x, 0, NULL, 17 + k, 1, table[0], true);
        tiny_add(x, 1, NULL, 8 + k, 1, table[1], true);
        ek_step_seqs(x->step)[1].hidden = k % 2;
        assert_int_equal(flow_next(f), 0);
    }
}

/* A sequence leaves for the host and comes back elsewhere, in a larger pool; another one shares a
 * block of its prompt. */
static inline void flow_moves(struct flow *f, const int32_t *token, const uint32_t (*table)[6])
{
    struct tiny_device *x = f->x;
    uint32_t moved[6], shared[6];

    memcpy(moved, table[0], sizeof(moved));
    memcpy(shared, table[0], sizeof(shared));
    moved[1] = FLOW_BLOCKS + 3;
    shared[1] = FLOW_BLOCKS + 4;
    flow_copy(x, (struct ek_block_copy){table[0][1], 2, EK_TIER_DEVICE, EK_TIER_HOST, {0}});
    assert_int_equal(flow_next(f), 0);
    assert_int_equal(flow_end(f, x->id), 0);
    assert_int_equal(x->b->kv_resize(x->d, FLOW_BLOCKS + 8), 0);
    flow_copy(x, (struct ek_block_copy){2, moved[1], EK_TIER_HOST, EK_TIER_DEVICE, {0}});
    tiny_add(x, 0, NULL, 22, 1, moved, true);
    const struct ek_slot_set third = {.slot = 2, .sampling.top_p = 1.0f, .top = 2};
    tiny_set(x, &third);
    tiny_add(x, 2, token, 8, 5, shared, true);
    x->step->id = ++x->id;
    assert_int_equal(x->b->forward(x->d, x->step), 0);
    assert_int_equal(x->b->sample(x->d, x->step, NULL), 0);
    assert_int_equal(flow_end(f, x->id), 0);
    ek_step_layout(x->step, &x->ceiling);
}

static inline void flow_run(const struct ek_backend *b, const struct tiny *t,
                            const struct ek_open_params *open, struct flow_log *log)
{
    static const uint32_t table[2][6] = {{1, 3, 5, 7, 9, 11}, {2, 4, 6, 8, 10, 12}};
    struct tiny_device x;
    int32_t token[32];

    assert_int_equal(tiny_open_on(b, t, open, FLOW_BLOCK, FLOW_BLOCKS, &x), 0);
    struct flow f = {.x = &x, .log = log, .other = calloc(1, ek_step_size(&x.ceiling))};
    log->at = calloc(1, FLOW_BYTES);
    assert_true(f.other && log->at);
    ek_step_layout(f.other, &x.ceiling);
    for (uint32_t i = 0; i < 32; i++)
        token[i] = (int32_t)(i * 37 % t->p.vocab);
    flow_prompts(&f, token, table);
    flow_moves(&f, token, table);
    free(f.other);
    tiny_close(&x);
}

static inline void flow_free(struct flow_log *log)
{
    free(log->at);
    *log = (struct flow_log){0};
}

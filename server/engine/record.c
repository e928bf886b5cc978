/*
 * From the engine's structs to records of the flight recorder, so that common/recorder.c need not
 * know them: called by flights.c (a step begins), engine.c (it landed) and entries.c (a request
 * came or ended). Counters go in as differences or low bits; evenkeeld's post-mortem puts them
 * together again.
 */
#include "server/engine/record.h"

#include <stdatomic.h>

#include "common/recorder.h"
#include "server/engine/sched.h"

/* What a step finds, and what it leaves. */
static void fill_state(const struct sched *s, struct ek_recorder_step *to)
{
    to->running = s->entries.running_count;
    to->waiting = s->entries.waiting_count;
    to->preempted = s->entries.preempted_count;
    to->blocks_total = s->blocks.total - 1 - s->blocks.retired;
    to->blocks_used = s->blocks.referenced - s->pool.migrant_count;
    to->blocks_cached = s->blocks.cached.count;
    to->blocks_free = s->blocks.free.count;
    to->limit_seqs = (uint32_t)s->value[LIMIT_RUNNING_SEQS];
    to->limit_tokens = (uint32_t)s->value[LIMIT_BATCHED_TOKENS];
    to->limit_blocks = (uint32_t)s->value[LIMIT_KV_BLOCKS];
}

void record_begin(struct ek_recorder *r, const struct sched *s, uint64_t now_us)
{
    if (!r)
        return;
    const struct flight *f = &s->flights.at[flights_newest(&s->flights)];
    struct ek_recorder_step step = {.at_us = now_us,
                                    .id = f->id,
                                    .rows = f->rows,
                                    .prefill_rows = f->prefill_rows,
                                    .seqs = f->seqs,
                                    .copies = f->copies};
    fill_state(s, &step);
    ek_recorder_begin(r, &step);
}

struct record_landed record_landing(const struct flight *f)
{
    return (struct record_landed){.id = f->id,
                                  .planned_us = f->planned_us,
                                  .rows = f->rows,
                                  .prefill_rows = f->prefill_rows,
                                  .seqs = f->seqs,
                                  .copies = f->copies};
}

static uint32_t record_since(uint64_t now, uint64_t *before)
{
    uint64_t d = now - *before;
    *before = now;
    return d < UINT32_MAX ? (uint32_t)d : UINT32_MAX;
}

void record_step(struct ek_recorder *r, const struct sched *s, const struct engine_stats *now,
                 const struct record_landed *l, uint64_t before_us[3])
{
    if (!r)
        return;
    struct ek_recorder_step step = {.at_us = l->at_us,
                                    .plan_us = record_since(now->plan_us, &before_us[0]),
                                    .wait_us = record_since(now->wait_us, &before_us[1]),
                                    .mask_us = record_since(now->mask_us, &before_us[2]),
                                    .preemptions = (uint32_t)now->preemptions,
                                    .generation_tokens = (uint32_t)now->generation_tokens,
                                    .host_blocks_used = now->host_blocks_used,
                                    .held = (uint32_t)now->held,
                                    .error = l->error};
    fill_state(s, &step);
    step.id = l->id;
    step.rows = l->rows;
    step.prefill_rows = l->prefill_rows;
    step.seqs = l->seqs;
    step.copies = l->copies;
    step.step_us = l->took_us < UINT32_MAX ? (uint32_t)l->took_us : UINT32_MAX;
    ek_recorder_step(r, &step);
}

static uint16_t flags_of(const struct req_ask *a)
{
    uint32_t flags = (a->grammar ? EK_RECORDER_GRAMMAR : 0) | (a->score ? EK_RECORDER_SCORES : 0) |
                     (a->top > 0 ? EK_RECORDER_TOP : 0) |
                     (a->sampling.temperature > 0 ? EK_RECORDER_SAMPLED : 0) |
                     (request_has_history(a) ? EK_RECORDER_PENALTY : 0) |
                     (a->hidden ? EK_RECORDER_HIDDEN : 0);
    return (uint16_t)flags;
}

static void fill_request(const struct request *q, uint64_t id, struct ek_recorder_request *to)
{
    to->id = id;
    to->flags = flags_of(&q->ask);
    to->priority = q->ask.priority;
    to->prompt_tokens = q->ask.prompt_tokens;
    to->most_tokens = q->ask.max_new_tokens;
}

void record_arrived(struct ek_recorder *r, const struct request *q, uint64_t id, uint64_t now_us)
{
    struct ek_recorder_request to = {.at_us = now_us, .kind = EK_RECORDER_ARRIVED};
    if (!r)
        return;
    fill_request(q, id, &to);
    ek_recorder_request(r, &to);
}

void record_ended(struct ek_recorder *r, const struct request *q, uint64_t id)
{
    struct ek_recorder_request to = {.at_us = q->done_us,
                                     .kind = EK_RECORDER_ENDED,
                                     .finish = (uint8_t)q->finish,
                                     .cached_tokens = q->cached_tokens,
                                     .preemptions = q->preemptions};
    if (!r)
        return;
    fill_request(q, id, &to);
    to.output_tokens = atomic_load_explicit(&q->out_count, memory_order_relaxed);
    ek_recorder_request(r, &to);
}

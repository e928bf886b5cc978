/*
 * What a slot wants changed in a row of logits before a token is chosen: tokens that may not come,
 * biases, penalties. Their state is the slot's words (kernels/step.h): lists, then the history,
 * which grows by each sampled token on the device thread, so that a step planned before the token
 * was known sees it. All is done in the order of the lists and of the history: the same sequence
 * gives the same bits, whatever ran beside it.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/device.h"

static uint32_t *words_of(const struct ek_device *d, uint32_t slot)
{
    return (uint32_t *)(void *)(d->slot_memory.at + d->shape.word_at) +
           (size_t)slot * d->plan.ceiling.words;
}

bool cpu_adjusts(const struct ek_slot_set *s)
{
    return s->allowed > 0 || s->biases > 0 || s->banned > 0 || s->bad > 0 ||
           (ek_sampling_penalizes(&s->sampling) && s->prompt + s->output > 0);
}

void cpu_slot_set(struct ek_device *d, const struct ek_step *step, const struct ek_slot_set *set)
{
    const uint64_t count = ek_slot_words(set);

    d->slots[set->slot] = (struct cpu_slot){.set = *set};
    d->last[set->slot] = -1;
    if (count > 0 && ek_graph_last(d->graph))
        memcpy(words_of(d, set->slot), ek_step_words(step) + set->word, count * sizeof(uint32_t));
}

void cpu_slot_push(struct ek_device *d, uint32_t slot, int32_t token)
{
    struct ek_slot_set *s = &d->slots[slot].set;

    d->last[slot] = token;
    if (s->prompt + s->output == 0 || ek_slot_words(s) >= d->plan.ceiling.words)
        return; /* without a history, or at the model's length: nothing is drawn after that */
    words_of(d, slot)[ek_slot_words(s)] = (uint32_t)token;
    s->output++;
}

static void keep_allowed(float *x, uint32_t n, const uint32_t *bits)
{
    for (uint32_t id = 0; id < n; id++)
        if (!(bits[id / 32] >> (id % 32) & 1u))
            x[id] = -INFINITY;
}

/* A sequence whose last token would come next, after all the others have just come, ends there. */
static void break_sequences(float *x, const uint32_t *bad, uint32_t count, const uint32_t *output,
                            uint32_t outputs)
{
    for (uint32_t i = 0; i < count; i += bad[i] + 1) {
        uint32_t before = bad[i] - 1;
        if (before <= outputs && (before == 0 || memcmp(bad + i + 1, output + outputs - before,
                                                        before * sizeof(*bad)) == 0))
            x[bad[i + bad[i]]] = -INFINITY;
    }
}

static void add_biases(float *x, const uint32_t *pairs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        float bias;
        memcpy(&bias, &pairs[2 * i + 1], sizeof(bias));
        x[pairs[2 * i]] += bias;
    }
}

/* True when the id was not seen before. */
static bool first_time(uint32_t *seen, uint32_t id)
{
    bool first = !(seen[id / 32] >> (id % 32) & 1u);
    seen[id / 32] |= 1u << (id % 32);
    return first;
}

static void penalise(float *x, uint32_t n, const struct ek_slot_set *s, const uint32_t *history,
                     uint32_t *seen)
{
    const size_t bytes = ((size_t)n + 31) / 32 * sizeof(*seen);
    const struct ek_sampling *p = &s->sampling;
    const uint32_t *output = history + s->prompt;

    if (p->repetition != 0.0f && p->repetition != 1.0f) {
        memset(seen, 0, bytes);
        for (uint32_t i = 0; i < s->prompt + s->output; i++) {
            uint32_t id = history[i];
            if (first_time(seen, id))
                x[id] = x[id] > 0.0f ? x[id] / p->repetition : x[id] * p->repetition;
        }
    }
    if (p->frequency == 0.0f && p->presence == 0.0f)
        return;
    memset(seen, 0, bytes);
    for (uint32_t i = 0; i < s->output; i++) {
        x[output[i]] -= p->frequency;
        if (first_time(seen, output[i]))
            x[output[i]] -= p->presence;
    }
}

void cpu_adjust(const struct ek_device *d, uint32_t slot, uint32_t position, float *logits,
                uint32_t *scratch)
{
    const struct ek_slot_set *s = &d->slots[slot].set;
    const uint32_t n = d->graph->vocab;
    const uint32_t *w = words_of(d, slot);
    const uint32_t *biases = w + s->allowed, *banned = biases + 2 * (size_t)s->biases;
    const uint32_t *bad = banned + s->banned, *history = bad + s->bad;

    if (s->allowed > 0)
        keep_allowed(logits, n, w);
    break_sequences(logits, bad, s->bad, history + s->prompt, s->output);
    for (uint32_t i = 0; i < s->banned && position < s->banned_until; i++)
        logits[banned[i]] = -INFINITY;
    add_biases(logits, biases, s->biases);
    if (ek_sampling_penalizes(&s->sampling) && s->prompt + s->output > 0)
        penalise(logits, n, s, history, scratch);
}

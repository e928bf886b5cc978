/*
 * The backend of the engine's simulations, the scheduler's benchmarks and several unit tests; it
 * implements kernels/backend.h with marks in place of keys and values. check_hazards() compares
 * every block that a step writes with those that other sequences use, in this and in earlier steps
 * in flight (struct null_use holds who last did). execute() runs in wait(), as late as a device
 * might, and scribble() leaves garbage after a failed step, so that code which trusts either is
 * found.
 */
#include "tests/sim/null_backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

uint64_t null_mark(int32_t token, uint32_t position)
{
    return mix(((uint64_t)(uint32_t)token << 32 | position) + 0x9e3779b97f4a7c15ull);
}

int32_t null_next(uint64_t sum, uint64_t seed, uint32_t context, uint32_t vocab)
{
    return (int32_t)(mix(sum ^ mix(seed + context)) % vocab);
}

float null_score(int32_t token, uint32_t position)
{
    return (float)(null_mark(token, position) & 0xffff);
}

int null_open(const struct null_params *p, struct ek_device **ret_device)
{
    struct ek_device *d = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    d->p = *p;
    d->most_blocks = p->blocks;
    d->marks = calloc((size_t)p->blocks * p->block_size, sizeof(*d->marks));
    d->host_marks = calloc((size_t)p->host_blocks * p->block_size + 1, sizeof(*d->host_marks));
    d->slots = calloc(p->ceiling.seqs, sizeof(*d->slots));
    d->uses = calloc(p->blocks, sizeof(*d->uses));
    d->states = calloc((size_t)p->states + 1, sizeof(*d->states));
    if (!d->marks || !d->host_marks || !d->slots || !d->uses || !d->states) {
        null_close(d);
        return -ENOMEM;
    }
    *ret_device = d;
    return 0;
}

void null_close(struct ek_device *d)
{
    if (!d)
        return;
    free(d->marks);
    free(d->host_marks);
    free(d->slots);
    free(d->states);
    free(d->uses);
    free(d);
}

static int violated(struct ek_device *d, const char *what)
{
    d->violation = what;
    return EK_EDEVICE;
}

#define NULL_MANY UINT32_MAX

static void note_use(struct null_use *u, uint64_t step, uint32_t slot)
{
    if (u->step != step) {
        u->before = u->step;
        u->before_slot = u->slot;
        u->step = step;
        u->slot = slot;
    } else if (u->slot != slot) {
        u->slot = NULL_MANY;
    }
}

/* Nobody else may use a block that a sequence writes, neither in this step nor in one in flight. */
static int check_hazards(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *seqs = ek_step_seqs(step);
    uint64_t other = d->count > 0 ? d->flying[0]->id : 0;

    for (uint32_t i = 0; i < step->seqs; i++)
        for (uint32_t k = 0; k < seqs[i].blocks; k++)
            note_use(&d->uses[ek_step_tables(step)[seqs[i].table + k]], step->id, seqs[i].slot);
    for (uint32_t i = 0; i < step->seqs; i++) {
        for (uint32_t k = 0; k < seqs[i].rows; k++) {
            uint32_t block = ek_step_kv_slots(step)[seqs[i].row + k] / d->p.block_size;
            const struct null_use *u = &d->uses[block];
            if (u->step != step->id || u->slot != seqs[i].slot)
                return violated(d, "a sequence writes a block that another uses in the step");
            if (other != 0 && u->before == other && u->before_slot != seqs[i].slot)
                return violated(d, "a sequence writes a block that a step in flight uses");
        }
    }
    return 0;
}

static int null_forward(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_ceiling c = d->p.ceiling;
    int r = d->forward_fails;

    d->forward_fails = 0;
    if (r != 0)
        return r;
    if (d->count == 2)
        return violated(d, "three steps in flight");
    if (ek_step_check(step, ek_step_size(&c), &c, d->p.vocab, d->p.blocks, d->p.block_size,
                      d->p.states) != 0)
        return violated(d, "ek_step_check() refuses the step");
    r = check_hazards(d, step);
    if (r == 0)
        d->flying[d->count++] = step;
    return r;
}

/* The step was not sampled: it is dropped. */
static int null_sample(struct ek_device *d, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    int r = d->sample_fails;

    (void)masks;
    d->sample_fails = 0;
    if (r != 0 && d->count > 0 && d->flying[d->count - 1] == step)
        d->count--;
    return r;
}

static uint64_t *marks_of(struct ek_device *d, uint8_t tier, uint32_t block)
{
    return (tier == EK_TIER_HOST ? d->host_marks : d->marks) + (size_t)block * d->p.block_size;
}

static void execute_copies(struct ek_device *d, const struct ek_step *step)
{
    for (uint32_t i = 0; i < step->copies; i++) {
        const struct ek_block_copy *c = &ek_step_copies(step)[i];
        if (c->from_tier == EK_TIER_STATE) {
            d->states[c->to] = d->states[c->from];
            continue;
        }
        if ((c->from_tier == EK_TIER_HOST && c->from >= d->p.host_blocks) ||
            (c->to_tier == EK_TIER_HOST && c->to >= d->p.host_blocks))
            d->violation = "a copy names a host block that does not exist";
        else
            memcpy(marks_of(d, c->to_tier, c->to), marks_of(d, c->from_tier, c->from),
                   d->p.block_size * sizeof(uint64_t));
    }
    for (uint32_t i = 0; i < step->sets; i++) {
        const struct ek_slot_set *set = &ek_step_sets(step)[i];
        struct null_slot *slot = &d->slots[set->slot];
        const uint32_t *w = ek_step_words(step) + set->word + ek_slot_words(set);
        *slot = (struct null_slot){.seed = set->sampling.seed, .last = -1};
        slot->history = set->prompt + set->output;
        slot->words = (uint32_t)ek_slot_words(set);
        for (uint32_t k = 0; k < slot->history; k++)
            slot->history_sum += null_mark((int32_t)w[(int64_t)k - slot->history], k);
    }
}

/* The history that the slot keeps is that of the sequence. */
static int push_history(struct ek_device *d, struct null_slot *slot, uint32_t context, uint64_t sum)
{
    if (slot->history == 0)
        return 0;
    bool stale = d->failed != 0 && slot->step == d->failed + 1; /* nobody will use what it gives */
    if (!stale && (slot->history != context || slot->history_sum != sum))
        return violated(d, "the slot's history is not what the sequence holds");
    if (slot->words > d->p.ceiling.words)
        return violated(d, "the slot's history has outgrown its place");
    slot->history_sum += null_mark(slot->last, slot->history++);
    slot->words++;
    return 0;
}

static int execute_scores(struct ek_device *d, const struct ek_step *step,
                          const struct ek_step_seq *q, struct ek_result_score *out)
{
    const uint32_t *target = ek_step_words(step) + q->target;
    uint32_t first = q->rows - q->sample - q->scores;

    for (uint32_t k = 0; k < q->scores; k++) {
        uint32_t at = ek_step_positions(step)[q->row + first + k] + 1;
        if (first + k + 1 < q->rows &&
            ek_step_tokens(step)[q->row + first + k + 1] != (int32_t)target[k])
            return violated(d, "a token is scored that does not follow");
        out[k] = (struct ek_result_score){.logit = null_score((int32_t)target[k], at), .rank = at};
    }
    return 0;
}

static uint64_t sum_marks(const struct ek_device *d, const uint32_t *table, uint32_t context)
{
    uint32_t bs = d->p.block_size;
    uint64_t sum = 0;

    for (uint32_t at = 0; at < context; at += bs) {
        const uint64_t *marks = d->marks + (size_t)table[at / bs] * bs;
        uint32_t n = context - at < bs ? context - at : bs;
        for (uint32_t k = 0; k < n; k++)
            sum += marks[k];
    }
    return sum;
}

static int sample_all(struct ek_device *d, const struct ek_step *step, struct ek_result *ret_result)
{
    struct ek_result_score *score = ek_result_scores(ret_result);
    uint32_t hiddens = 0;

    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        struct null_slot *slot = &d->slots[q->slot];
        struct ek_result_seq *out = &ret_result->seq[i];
        if (execute_scores(d, step, q, score) != 0)
            return EK_EDEVICE;
        score += q->scores;
        out->slot = q->slot;
        out->tokens = q->sample;
        out->top = 0;
        if (!q->sample)
            continue;
        uint64_t sum = sum_marks(d, ek_step_tables(step) + q->table, q->context);
        slot->last = null_next(sum, slot->seed, q->context, d->p.vocab);
        slot->step = step->id;
        out->token[0] = slot->last;
        out->logit[0] = 1.0f;
        out->lse = 2.0f;
        if (push_history(d, slot, q->context, sum) != 0)
            return EK_EDEVICE;
        for (uint32_t k = 0; q->hidden && k < NULL_WIDTH; k++)
            ek_result_hidden(ret_result, hiddens)[k] = (float)(sum >> (16 * k) & 0xffff);
        hiddens += q->hidden;
    }
    return 0;
}

/* The rows of a sequence upon its state, after their marks are written. */
static int execute_state(struct ek_device *d, const struct ek_step *step,
                         const struct ek_step_seq *q)
{
    struct null_state *state = &d->states[q->slot], whole = {0};
    const uint32_t *table = ek_step_tables(step) + q->table, bs = d->p.block_size;

    if (d->p.states == 0)
        return 0;
    if (q->context == q->rows)
        *state = (struct null_state){0};
    for (uint32_t at = 0; at < q->context; at++) {
        uint64_t mark = d->marks[(size_t)table[at / bs] * bs + at % bs];
        whole.sum = mix(whole.sum ^ mark) + at;
        if (at < q->context - q->rows)
            continue;
        state->sum = mix(state->sum ^ mark) + at;
        if (state->tokens++ == at || step->id == d->stale_step)
            continue;
        return violated(d, "a row is not the next one of its sequence's state");
    }
    if (state->sum != whole.sum && step->id != d->stale_step)
        return violated(d, "a state is not that of its sequence's tokens");
    return 0;
}

static int execute(struct ek_device *d, const struct ek_step *step, struct ek_result *ret_result)
{
    execute_copies(d, step);
    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(step)[i];
        const struct null_slot *slot = &d->slots[q->slot];
        for (uint32_t k = q->row; k < q->row + q->rows; k++) {
            int32_t token = ek_step_tokens(step)[k];
            if (token == EK_FROM_PREVIOUS) {
                if (slot->step != step->id - 1 && d->failed == step->id - 1) {
                    ret_result->error = -ENOMEM; /* it was planned on top of a step that failed */
                    return 0;
                }
                if (slot->step != step->id - 1)
                    return violated(d, "the slot sampled nothing in the step before");
                token = slot->last;
            }
            d->marks[ek_step_kv_slots(step)[k]] = null_mark(token, ek_step_positions(step)[k]);
        }
    }
    for (uint32_t i = 0; i < step->seqs; i++)
        if (execute_state(d, step, &ek_step_seqs(step)[i]) != 0)
            return EK_EDEVICE;
    for (uint32_t i = 0; i < step->seqs; i++) {
        ret_result->scores += ek_step_seqs(step)[i].scores;
        ret_result->hiddens += ek_step_seqs(step)[i].hidden;
    }
    ret_result->width = ret_result->hiddens ? NULL_WIDTH : 0;
    return sample_all(d, step, ret_result);
}
/* A step that failed half-way leaves garbage where it would have written. */
static void scribble(struct ek_device *d, const struct ek_step *step)
{
    for (uint32_t k = 0; k < step->rows; k++)
        d->marks[ek_step_kv_slots(step)[k]] = mix(step->id + k);
    for (uint32_t i = 0; d->p.states > 0 && i < step->seqs; i++)
        d->states[ek_step_seqs(step)[i].slot] = (struct null_state){UINT32_MAX, mix(step->id)};
    for (uint32_t i = 0; i < step->copies; i++) /* done or not: nobody knows */
        if (ek_step_copies(step)[i].to_tier == EK_TIER_STATE)
            d->states[ek_step_copies(step)[i].to] = (struct null_state){UINT32_MAX, ~step->id};
}

static int null_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                     uint64_t timeout_us)
{
    if (d->count == 0 || d->flying[0]->id != id)
        return violated(d, "wait() for a step that is not the oldest in flight");
    const struct ek_step *step = d->flying[0];
    uint32_t samples = 0;
    for (uint32_t i = 0; i < step->seqs; i++)
        samples += ek_step_seqs(step)[i].sample;
    if (bytes < ek_result_bytes(step->seqs, step->logit_rows - samples, samples, NULL_WIDTH))
        return violated(d, "the result does not fit");
    if (atomic_load(&d->hangs)) {
        usleep(timeout_us < 20000 ? (useconds_t)timeout_us : 20000);
        return -ETIMEDOUT;
    }
    if (d->step_us != 0 && timeout_us == 0)
        return -ETIMEDOUT;
    if (d->step_us != 0)
        usleep(d->step_us);
    for (uint32_t k = 0; k < step->rows && d->poison != 0; k++)
        if (ek_step_tokens(step)[k] == d->poison)
            return EK_EDEVICE;
    d->flying[0] = d->flying[1];
    d->count--;
    *ret_result = (struct ek_result){.step = id, .seqs = step->seqs};
    ret_result->error = d->wait_fails;
    d->wait_fails = d->always_fails ? d->wait_fails : 0;
    if (ret_result->error != 0) {
        d->failed = id;
        d->stale_step = d->count > 0 ? d->flying[0]->id : 0;
        ret_result->seqs = 0; /* there is none of any sequence */
        scribble(d, step);
        return 0;
    }
    d->steps++;
    d->rows += step->rows;
    return execute(d, step, ret_result);
}

/* What lies above the end is lost, what comes anew is empty. */
static int null_kv_resize(struct ek_device *d, uint32_t blocks)
{
    int r = atomic_exchange(&d->resize_fails, 0);

    if (d->count > 0)
        return violated(d, "the pool is resized while a step is in flight");
    if (r == -ENOTSUP)
        return r;
    if (blocks < 2 || blocks > d->most_blocks)
        return violated(d, "the pool is resized to a size that was not planned");
    if (r != 0 && blocks > d->p.blocks)
        return r;
    size_t words = d->p.block_size * sizeof(*d->marks);
    for (uint32_t id = blocks; id < d->most_blocks; id++)
        memset(d->marks + (size_t)id * d->p.block_size, 0xee, words);
    d->p.blocks = blocks;
    return 0;
}

static void null_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    *ret_stats = (struct ek_device_stats){.steps = d->steps};
}

void null_lose_host(struct ek_device *d)
{
    memset(d->host_marks, 0xdd,
           (size_t)d->p.host_blocks * d->p.block_size * sizeof(*d->host_marks));
}

void null_lose(struct ek_device *d)
{
    memset(d->marks, 0xdd, (size_t)d->most_blocks * d->p.block_size * sizeof(*d->marks));
    memset(d->slots, 0, d->p.ceiling.seqs * sizeof(*d->slots));
    memset(d->states, 0xdd, d->p.states * sizeof(*d->states));
    memset(d->uses, 0, d->most_blocks * sizeof(*d->uses));
    d->count = 0;
    d->failed = 0;
    d->forward_fails = d->sample_fails = 0;
    d->wait_fails = d->always_fails ? d->wait_fails : 0;
}

static bool null_is_lost(struct ek_device *d)
{
    return atomic_load(&d->vanished);
}

static void null_how_lost(struct ek_device *d, struct ek_device_end *ret_end)
{
    *ret_end = (struct ek_device_end){.fault = d->revive_fault,
                                      .unsure = d->revive_unsure,
                                      .why = "a test",
                                      .ended = true,
                                      .signal = d->revive_signal};
}

static int null_revive(struct ek_device *d, ek_meanwhile_fn meanwhile, void *ctx,
                       struct ek_fault *fault)
{
    (void)fault;
    for (int r = 0; atomic_load(&d->loads);) {
        r = meanwhile(ctx);
        if (r < 0)
            return r;
        (void)usleep(500);
    }
    if (atomic_load(&d->revive_fails) > 0) {
        (void)atomic_fetch_sub(&d->revive_fails, 1);
        return d->revive_code;
    }
    if (d->revivals == 0)
        return EK_EDEVICE;
    d->revivals--;
    d->revived++;
    atomic_store(&d->hangs, 0);
    atomic_store(&d->vanished, 0);
    null_lose(d);
    return 0;
}

static int null_check(struct ek_device *d, struct ek_fault *fault)
{
    d->checks++;
    if (atomic_load(&d->check_code) < 0)
        ek_fault_write(fault, "model", "its files are gone");
    return atomic_load(&d->check_code);
}

static size_t null_kv_bytes(const struct ek_device *d, uint32_t tier)
{
    if (tier == EK_TIER_STATE)
        return d->p.states > 0 ? sizeof(*d->states) : 0;
    return d->p.block_size * sizeof(*d->marks);
}

/* The marks of a block or a slot's state; a violation when there is none or a step is in flight. */
static void *null_block(struct ek_device *d, uint32_t tier, uint32_t block)
{
    if (tier == EK_TIER_STATE) {
        if (d->count > 0 || block >= d->p.states)
            d->violation = "a state is moved that cannot be";
        return &d->states[block];
    }
    if (d->count > 0 || block == 0 ||
        block >= (tier == EK_TIER_HOST ? d->p.host_blocks : d->p.blocks))
        d->violation = "a block is moved that cannot be";
    return (tier == EK_TIER_HOST ? d->host_marks : d->marks) + (size_t)block * d->p.block_size;
}

static int null_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    memcpy(to, null_block(d, tier, block), null_kv_bytes(d, tier));
    return 0;
}

static int null_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    memcpy(null_block(d, tier, block), from, null_kv_bytes(d, tier));
    return 0;
}

static int null_release(struct ek_device *d)
{
    if (d->count > 0)
        d->violation = "released with a step in flight";
    d->released++;
    null_lose(d);
    return 0;
}

const struct ek_backend null_backend = {
    .abi = EK_BACKEND_ABI,
    .size = sizeof(struct ek_backend),
    .name = "null",
    .close = null_close,
    .kv_resize = null_kv_resize,
    .forward = null_forward,
    .sample = null_sample,
    .wait = null_wait,
    .stats = null_stats,
    .kv_bytes = null_kv_bytes,
    .kv_read = null_kv_read,
    .kv_write = null_kv_write,
};

const struct ek_backend null_reviving_backend = {
    .abi = EK_BACKEND_ABI,
    .size = sizeof(struct ek_backend),
    .name = "null",
    .close = null_close,
    .kv_resize = null_kv_resize,
    .forward = null_forward,
    .sample = null_sample,
    .wait = null_wait,
    .stats = null_stats,
    .revive = null_revive,
    .how_lost = null_how_lost,
    .check = null_check,
    .release = null_release,
    .is_lost = null_is_lost,
    .host_drop = null_lose_host,
    .kv_bytes = null_kv_bytes,
    .kv_read = null_kv_read,
    .kv_write = null_kv_write,
};

/*
 * Puts the remedies of a finding into the order in which they should be tried, for the text and the
 * JSON of `evenkeelctl diagnose`. The numbers of the log become the state that common/ladder.h
 * steps down from; values that the log does not name are those that vLLM has by itself.
 */
#include "supervisor/doctor/advise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/ladder.h"
#include "supervisor/doctor/finding.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/engines/dialect.h"

#define GIB 1073741824.0

/* What the engine takes where no flag says another; vLLM's of the version 0.8 and later. */
#define LARGE_CARD   (70 * GIB)
#define LARGE_SEQS   1024
#define LARGE_TOKENS 8192
#define USUAL_SEQS   256
#define USUAL_TOKENS 2048
#define USUAL_SHARE  0.9
#define V1_FROM      800

/* Ranks from it on are of one failure, below of many: what helps is the module's then. */
#define EXACT 60u

enum advise_words { WAIT, TOKENS, SEQS, LESS, SEGMENTS, SWAP, LOW, NAMED, WORDS };

static const struct doctor_remedy remedies[WORDS] = {
    [WAIT] = {.text = DOCTOR_TEXT(remedy_wait)},
    [TOKENS] = {.text = DOCTOR_TEXT(remedy_tokens)},
    [SEQS] = {.text = DOCTOR_TEXT(remedy_seqs)},
    [LESS] = {.text = DOCTOR_TEXT(remedy_less)},
    [SEGMENTS] = {.flag = "PYTORCH_CUDA_ALLOC_CONF", .text = DOCTOR_TEXT(remedy_segments)},
    [SWAP] = {.text = DOCTOR_TEXT(remedy_swap)},
    [LOW] = {.text = DOCTOR_TEXT(remedy_low)},
    [NAMED] = {.text = DOCTOR_TEXT(remedy_named)},
};

struct now {
    const struct doctor_numbers *n;
    const struct dialect *engine; /* its flags */
    uint32_t seqs, tokens;
    bool seqs_assumed, tokens_assumed, share_assumed, ran;
    double share, swap, capacity;
};

static double advise_number(const struct doctor_numbers *n, const char *name, double otherwise)
{
    double v = 0;
    return doctor_numbers_lookup(n, name, &v) ? v : otherwise;
}

static uint32_t advise_whole(double v)
{
    return v > 0 && v < 1e9 ? (uint32_t)v : 0;
}

/* The engine whose flags are named: the log's where it has flags of its own, else vLLM, whose flags
 * evenkeel-server has, too. */
static const struct dialect *engine_of(const struct doctor_numbers *n)
{
    const struct dialect *d;
    for (uint32_t i = 0; (d = dialect_at(i)); i++) {
        if (d->only_read && d->seqs_flag && doctor_is_of(d->name, n))
            return d;
    }
    return dialect_find("vllm");
}

static struct now read_now(const struct doctor_numbers *n)
{
    struct now now = {.n = n,
                      .capacity = advise_number(n, "capacity", 0),
                      .swap = advise_number(n, "swap_space", 0)};
    bool large =
        now.capacity >= LARGE_CARD && !(advise_number(n, "vllm_version", V1_FROM) < V1_FROM);
    double seqs = advise_number(n, "max_num_seqs", 0),
           tokens = advise_number(n, "max_num_batched_tokens", 0);
    double running = advise_number(n, "running", 0), share = advise_number(n, "share", 0);
    now.engine = engine_of(n);
    now.seqs_assumed = !(seqs > 0);
    now.tokens_assumed = !(tokens > 0);
    now.share_assumed = !(share > 0 && share <= 1);
    now.seqs = advise_whole(seqs > 0 ? seqs : large ? LARGE_SEQS : USUAL_SEQS);
    now.tokens = advise_whole(tokens > 0 ? tokens : large ? LARGE_TOKENS : USUAL_TOKENS);
    now.share = now.share_assumed ? USUAL_SHARE : share;
    if (running >= 1 && running < now.seqs) {
        now.seqs = advise_whole(running);
        now.ran = true;
    }
    return now;
}

struct list {
    struct doctor_advice *at;
    uint32_t count;
};

static struct doctor_advice *advise_add(struct list *l, enum advise_words w, const char *flag)
{
    static struct doctor_advice none;
    if (l->count == DOCTOR_ADVICE_MOST)
        return &none;
    struct doctor_advice *a = &l->at[l->count++];
    *a = (struct doctor_advice){.remedy = &remedies[w], .flag = flag ? flag : remedies[w].flag};
    return a;
}

static void put_tokens(struct list *l, const struct now *now)
{
    char text[32];
    uint64_t capacity = now->capacity > 0 ? (uint64_t)now->capacity : 0;
    uint32_t to = ladder_tokens(now->tokens, UINT32_MAX, 1, capacity);
    uint32_t card = ladder_card_tokens(capacity);
    if (to == 0)
        return;
    struct doctor_advice *a = advise_add(l, TOKENS, now->engine->tokens_flag);
    a->has_value = true;
    (void)snprintf(a->value, sizeof(a->value), "%u", to);
    int n = snprintf(a->sum, sizeof(a->sum), "%u%s x %.2f", now->tokens,
                     now->tokens_assumed ? " (the default)" : "", LADDER_TOKENS_PART);
    if (card < now->tokens * LADDER_TOKENS_PART)
        (void)snprintf(a->sum + n, sizeof(a->sum) - (size_t)n, ", at most %u on a card of %s", card,
                       doctor_number_text(now->capacity, true, text));
}

static void put_seqs(struct list *l, const struct now *now)
{
    uint32_t to = ladder_seqs(now->seqs, UINT32_MAX, 1);
    if (to == 0)
        return;
    struct doctor_advice *a = advise_add(l, SEQS, now->engine->seqs_flag);
    a->has_value = true;
    (void)snprintf(a->value, sizeof(a->value), "%u", to);
    (void)snprintf(a->sum, sizeof(a->sum), "%u%s x %.1f", now->seqs,
                   now->ran            ? " that ran"
                   : now->seqs_assumed ? " (the default)"
                                       : "",
                   LADDER_SEQS_PART);
}

static void put_share(struct list *l, const struct now *now, enum ladder_step step)
{
    double to = ladder_share(now->share, step, false);
    if (!(to > 0))
        return;
    struct doctor_advice *a = advise_add(l, LESS, now->engine->share_flag);
    a->has_value = true;
    (void)snprintf(a->value, sizeof(a->value), "%.2f", to);
    (void)snprintf(a->sum, sizeof(a->sum), "%.2f%s - %.2f", now->share,
                   now->share_assumed ? " (the default)" : "", now->share - to);
}

static void put_low(struct list *l, const struct now *now)
{
    double share = ladder_share(now->share, STEP_CONSERVATIVE, false);
    uint32_t seqs = now->seqs < LADDER_LOW_SEQS ? now->seqs : LADDER_LOW_SEQS;
    uint64_t capacity = now->capacity > 0 ? (uint64_t)now->capacity : 0;
    uint32_t tokens = ladder_tokens(now->tokens, LADDER_LOW_TOKENS, 1, capacity);
    struct doctor_advice *a = advise_add(l, LOW, NULL);
    (void)snprintf(a->sum, sizeof(a->sum), "%s %u, %s %u, %s %.2f", now->engine->seqs_flag, seqs,
                   now->engine->tokens_flag, tokens ? tokens : now->tokens, now->engine->share_flag,
                   share > 0 ? share : now->share);
}

static void put_step(struct list *l, const struct now *now, enum ladder_step step)
{
    struct doctor_advice *a;
    switch (step) {
    case STEP_WAIT: (void)advise_add(l, WAIT, NULL); break;
    case STEP_TOKENS: put_tokens(l, now); break;
    case STEP_SHARE: put_share(l, now, STEP_SHARE); break;
    case STEP_BURST:
        put_tokens(l, now);
        put_seqs(l, now);
        put_share(l, now, STEP_BURST);
        break;
    case STEP_EXPANDABLE:
        a = advise_add(l, SEGMENTS, NULL);
        a->has_value = true;
        (void)snprintf(a->value, sizeof(a->value), "expandable_segments:True");
        break;
    case STEP_HALF_SWAP:
        if (!(now->swap > 0))
            break;
        a = advise_add(l, SWAP, "--swap-space");
        a->has_value = true;
        (void)snprintf(a->value, sizeof(a->value), "%.3g", now->swap / 2);
        (void)snprintf(a->sum, sizeof(a->sum), "%.3g / 2", now->swap);
        break;
    case STEP_CONSERVATIVE: put_low(l, now); break;
    case STEP_BURST_AGAIN: /* the same once more */
    case STEP_NO_SWAP:
    case STEP_NONE: break;
    }
}

static enum ladder_kind kind_of(enum doctor_class cls)
{
    return cls == DOCTOR_STARTUP_OOM                             ? LADDER_AT_START
           : cls == DOCTOR_BURST_OOM || cls == DOCTOR_DEVICE_OOM ? LADDER_IN_BURST
           : cls == DOCTOR_FRAG_OOM                              ? LADDER_IN_PIECES
           : cls == DOCTOR_HOST_OOM                              ? LADDER_OF_HOST
                                                                 : LADDERS;
}

/* Weights that do not fit are not made smaller by limits; a card that is not full has memory, and
 * what another process holds no limit of this one gives back. */
static bool can_help(const struct doctor_finding *f)
{
    double weights = advise_number(&f->numbers, "weights", 0),
           all = advise_number(&f->numbers, "capacity", 0);
    return f->signature->ladder && !(advise_number(&f->numbers, "is_loading", 0) > 0) &&
           !(advise_number(&f->numbers, "is_not_full", 0) > 0) &&
           !(advise_number(&f->numbers, "is_shared", 0) > 0) &&
           !(weights > 0 && all > 0 && weights > all);
}

static void put_list(struct list *l, const struct doctor_remedy *from, uint32_t count,
                     const struct doctor_numbers *n)
{
    l->count += doctor_advise(from, count, n, l->at + l->count, DOCTOR_ADVICE_MOST - l->count);
}

/* Of the program and module. */
static void put_helps(struct list *l, const struct doctor_finding *f)
{
    for (uint32_t i = 0; i < f->help_count; i++)
        put_list(l, f->help[i]->remedies, f->help[i]->remedy_count, &f->numbers);
}

/* The flag that the failure's own line names, before all others; not where one of them is it. */
static void put_named(struct list *l, const struct doctor_finding *f)
{
    if (!f->flag[0])
        return;
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->at[i].flag && strcmp(l->at[i].flag, f->flag) == 0)
            return;
    }
    if (l->count == DOCTOR_ADVICE_MOST)
        l->count--;
    memmove(&l->at[1], &l->at[0], l->count * sizeof(l->at[0]));
    l->at[0] = (struct doctor_advice){.remedy = &remedies[NAMED], .flag = f->flag};
    l->count++;
}

uint32_t doctor_advise_for(const struct doctor_finding *f,
                           struct doctor_advice ret_advice[DOCTOR_ADVICE_MOST])
{
    struct list l = {.at = ret_advice};
    struct now now = read_now(&f->numbers);
    enum ladder_kind kind = kind_of(f->cls);
    for (uint32_t i = 0; can_help(f) && ladder_at(kind, i) != STEP_NONE; i++)
        put_step(&l, &now, ladder_at(kind, i));
    bool exact = f->signature->rank >= EXACT;
    if (!exact)
        put_helps(&l, f);
    put_list(&l, f->signature->remedies, f->signature->remedy_count, &f->numbers);
    if (exact)
        put_helps(&l, f);
    put_named(&l, f);
    return l.count;
}

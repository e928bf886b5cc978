/*
 * Choosing: of all ways to serve the model on the machine the one that changes least (bits as they
 * are stored, fewest cards) and holds what was asked. See advise.h.
 */
#include "supervisor/planner/advise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIB        1073741824.0
#define SEQS_SMALL 256u /* vLLM's own ceilings by size of the card */
#define SEQS_LARGE 1024u
#define SEQS_START 256u
#define SEQS_CPU   64u
#define TOKENS_CPU 2048u
#define BLOCK      16u

static struct plan_setup setup_of(const struct plan_question *q, uint32_t cards,
                                  uint32_t weight_bits, uint32_t kv_bits)
{
    uint32_t tokens = q->tokens ? q->tokens
                      : q->gpu  ? plan_start_tokens(q->memory_bytes)
                                : TOKENS_CPU;
    uint32_t seqs = q->seqs ? q->seqs : q->gpu ? SEQS_START : SEQS_CPU;
    return (struct plan_setup){.memory_bytes = q->memory_bytes,
                               .share = q->share,
                               .cards = cards,
                               .weight_bits = weight_bits,
                               .kv_bits = kv_bits,
                               .tokens = tokens > seqs ? tokens : seqs,
                               .seqs = seqs,
                               .block_size = BLOCK,
                               .graphs = q->gpu,
                               .own = !q->gpu};
}

/* What the longest request must have at least. */
static double least_len(const struct plan_question *q)
{
    return q->max_len      ? q->max_len
           : q->load_known ? fmin(q->load.prompt + q->load.output, q->shape.max_len)
                           : 0;
}

/* Weights as stored, then smaller; cache of 16 bits, then 8; fewest cards first. */
static void list_choices(const struct plan_question *q, struct plan_answer *a)
{
    static const uint32_t kv[] = {16, 8}, weights[] = {0, 8, 4};
    for (size_t w = 0; w < 3; w++) {
        if (q->weight_bits ? weights[w] != 0 : weights[w] && weights[w] >= q->shape.weight_bits)
            continue;
        for (uint32_t cards = 1; cards <= q->cards; cards *= 2) {
            for (size_t k = 0; k < 2; k++) {
                bool asked = (!q->cards_each || q->cards_each == cards) &&
                             (!q->kv_bits || q->kv_bits == kv[k]) && (q->gpu || kv[k] == 16);
                if (!asked || a->choice_count == PLAN_CHOICES_MOST)
                    continue;
                struct plan_choice *c = &a->choices[a->choice_count++];
                c->setup = setup_of(q, cards, q->weight_bits ? q->weight_bits : weights[w], kv[k]);
                c->fit = plan_fit_of(&q->shape, &c->setup);
                if (q->own && c->setup.weight_bits == q->weight_bits && cards == 1 && kv[k] == 16)
                    c->fit = *q->own;
            }
        }
    }
}

/* Weights and cache as they are first; whatever holds the length. NULL if nothing does. */
static const struct plan_choice *choose(const struct plan_question *q, const struct plan_answer *a,
                                        double len)
{
    const struct plan_choice *best = NULL;
    for (uint32_t i = 0; i < a->choice_count; i++) {
        const struct plan_choice *c = &a->choices[i];
        if (!c->fit.fits || c->fit.longest < len)
            continue;
        bool changes =
            (!q->weight_bits && c->setup.weight_bits) || (!q->kv_bits && c->setup.kv_bits == 8);
        if (!best)
            best = c;
        if (!changes)
            return c;
    }
    return best;
}

static struct plan_engine engine_of(const struct plan_question *q, const struct plan_choice *c,
                                    uint32_t seqs_most)
{
    return (struct plan_engine){.shape = &q->shape,
                                .device = q->speed,
                                .cards = c->setup.cards,
                                .weight_bits = c->setup.weight_bits,
                                .kv_bits = c->setup.kv_bits,
                                .kv_tokens = c->fit.kv_tokens,
                                .seqs_most = seqs_most};
}

static void say_what(struct plan_answer *a, const char *text)
{
    if (a->what_count < 4)
        (void)snprintf(a->what[a->what_count++], sizeof(a->what[0]), "%s", text);
}

/* How much memory one server on a CPU would need. */
static void advise_memory(const struct plan_question *q, struct plan_answer *a, double len)
{
    char text[200];
    struct plan_setup u = setup_of(q, 1, q->weight_bits, 16);
    double least = fmax(len, fmin(q->shape.max_len, 1024));
    struct plan_fit f = plan_fit_of(&q->shape, &u);
    double bytes = f.weights + f.activations + f.context +
                   plan_kv_request_bytes(&q->shape, 1, 16, least + 2 * u.block_size);
    (void)snprintf(text, sizeof(text), "%.1f GiB of memory, %.2f of which it may take",
                   bytes / q->share / GIB, q->share);
    say_what(a, text);
}

/* Nothing fits the machine: which changes would. */
static void advise_other(const struct plan_question *q, struct plan_answer *a, double len)
{
    char text[200];
    static const uint32_t bits[] = {8, 4};
    for (size_t i = 0; i < 2; i++) {
        struct plan_setup u = setup_of(q, q->cards, bits[i], 16);
        struct plan_fit f = plan_fit_of(&q->shape, &u);
        if (bits[i] >= q->shape.weight_bits || !f.fits || f.longest < len)
            continue;
        if (q->gpu)
            (void)snprintf(
                text, sizeof(text),
                "a copy with %s weights on the %u card%s here: %.1f GiB each, then %.0f tokens "
                "of KV cache",
                bits[i] == 8 ? "8-bit (FP8)" : "4-bit (AWQ, GPTQ)", q->cards,
                q->cards > 1 ? "s" : "", f.weights / GIB, f.kv_tokens);
        else
            (void)snprintf(text, sizeof(text),
                           "--quantization int%u: %.1f GiB of weights, then %.0f tokens of KV "
                           "cache",
                           bits[i], f.weights / GIB, f.kv_tokens);
        say_what(a, text);
        break;
    }
    if (!q->gpu) {
        advise_memory(q, a, len);
        return;
    }
    struct plan_setup u = setup_of(q, 1, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
    uint32_t need = plan_cards_needed(&q->shape, &u, len);
    if (need > q->cards) {
        (void)snprintf(text, sizeof(text), "%u cards of this kind: --tensor-parallel-size %u", need,
                       need);
        say_what(a, text);
    }
    for (uint32_t i = 0; plan_gpu_at(i); i++) {
        const struct plan_gpu *g = plan_gpu_at(i);
        struct plan_question other = *q;
        other.memory_bytes = g->memory_gib * GIB;
        struct plan_setup v =
            setup_of(&other, q->cards, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
        struct plan_fit f = plan_fit_of(&q->shape, &v);
        if (other.memory_bytes <= q->memory_bytes || !f.fits || f.longest < len)
            continue;
        (void)snprintf(text, sizeof(text), "%u x %s (%.0f GiB each)", q->cards, g->text,
                       g->memory_gib);
        say_what(a, text);
    }
}

static void explain_no(const struct plan_question *q, struct plan_answer *a, double len)
{
    const struct plan_fit *f = &a->chosen.fit;
    const struct plan_setup *u = &a->chosen.setup;
    if (!f->splits)
        (void)snprintf(a->why, sizeof(a->why), "Its %u attention heads do not divide by %u cards.",
                       q->shape.heads, u->cards);
    else if (f->weights > u->memory_bytes)
        (void)snprintf(a->why, sizeof(a->why),
                       "The weights alone take %.1f GiB on each of %u card%s of %.1f GiB; fewer "
                       "sequences or shorter requests change nothing about that.",
                       f->weights / GIB, u->cards, u->cards > 1 ? "s" : "", u->memory_bytes / GIB);
    else if (f->kv_bytes <= 0)
        (void)snprintf(
            a->why, sizeof(a->why),
            "Weights (%.1f GiB), activations (%.1f GiB), graphs and context (%.1f GiB) leave "
            "nothing of the share of %.1f GiB for the KV cache.",
            f->weights / GIB, f->activations / GIB, (f->graphs + f->context) / GIB,
            f->share_bytes / GIB);
    else
        (void)snprintf(a->why, sizeof(a->why),
                       "The KV cache of %.2f GiB holds one request of %u tokens, not of %.0f.",
                       f->kv_bytes / GIB, f->longest, len);
    advise_other(q, a, len);
}

static void set_limits(const struct plan_question *q, struct plan_answer *a)
{
    const struct plan_fit *f = &a->chosen.fit;
    uint32_t ceiling = !q->gpu ? SEQS_CPU : q->memory_bytes > 70 * GIB ? SEQS_LARGE : SEQS_SMALL;
    struct plan_engine e = engine_of(q, &a->chosen, q->seqs ? q->seqs : ceiling);
    a->max_len = q->max_len ? q->max_len : f->longest;
    a->tokens = a->chosen.setup.tokens;
    uint32_t best = plan_best_seqs(&e, &q->load, &a->bound);
    a->seqs = q->seqs ? q->seqs : best > a->chosen.setup.seqs ? a->chosen.setup.seqs : best;
    if (a->seqs == 0)
        a->seqs = 1;
    a->alone = plan_speed_at(&e, &q->load, 1);
    a->full = plan_speed_at(&e, &q->load, a->seqs);
    e.seqs_most = a->seqs;
    a->replicas = plan_replicas(&e, &q->load);
    if (q->price_hour > 0 && a->full.output_tokens_s > 0)
        a->cost_million =
            q->price_hour * a->chosen.setup.cards / 3600 / a->full.output_tokens_s * 1e6;
    (void)snprintf(a->why, sizeof(a->why),
                   "%u sequences at once, bounded by %s; the KV cache holds %.0f tokens, requests "
                   "have %.0f.",
                   a->seqs, plan_bound_text(a->bound), f->kv_tokens,
                   q->load.prompt + q->load.output);
}

void plan_advise(const struct plan_question *q, struct plan_answer *ret_answer)
{
    struct plan_answer *a = ret_answer;
    double len = least_len(q);
    memset(a, 0, sizeof(*a));
    list_choices(q, a);
    const struct plan_choice *c = choose(q, a, len);
    struct plan_setup least = setup_of(q, 1, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
    a->cards_needed = plan_cards_needed(&q->shape, &least, len);
    a->fits = c != NULL;
    if (!c) {
        uint32_t cards = q->cards_each ? q->cards_each : q->cards;
        a->chosen.setup = setup_of(q, cards, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
        a->chosen.fit = plan_fit_of(&q->shape, &a->chosen.setup);
        explain_no(q, a, len);
        return;
    }
    a->chosen = *c;
    set_limits(q, a);
}

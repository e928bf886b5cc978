/*
 * Choosing: of all ways to serve the model on the machine the one that changes least (bits as they
 * are stored, fewest cards) and holds what was asked. See advise.h.
 */
#include "supervisor/planner/advise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/budget.h"

#define GIB        1073741824.0
#define SEQS_SMALL 256u /* vLLM's own ceilings by size of the card */
#define SEQS_LARGE 1024u
#define SEQS_START 256u
#define SEQS_CPU   64u
#define BLOCK      16u
#define RANKS_MOST 64u
#define KNEE       0.95

/* Weights in host memory: the share of all that buffers take, and the most that is advised. */
#define BUFFERS        0.03
#define OFFLOADED_MOST 0.5

/* As evenkeel-server chooses it: of a prompt's tokens only the last one needs the output layer. */
static uint32_t start_tokens(const struct plan_question *q)
{
    double flops = q->speed.flops * plan_reach_of(&q->speed).computes;
    double layers = plan_active_parameters(&q->shape) - plan_output_layer(&q->shape);

    if (q->gpu)
        return ek_budget_card(q->memory_bytes);
    return flops > 0 ? ek_budget_cpu(flops, 2 * layers) : EK_BUDGET_MOST;
}

static struct plan_setup setup_of(const struct plan_question *q, uint32_t cards,
                                  uint32_t weight_bits, uint32_t kv_bits)
{
    uint32_t seqs = q->seqs ? q->seqs : q->gpu ? SEQS_START : SEQS_CPU;
    uint32_t tokens = q->tokens ? q->tokens : ek_budget_step(!q->gpu, start_tokens(q), seqs);
    return (struct plan_setup){.memory_bytes = q->memory_bytes,
                               .share = q->share,
                               .cards = cards,
                               .stages = q->stages,
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

bool plan_layout_fits(uint32_t cards, uint32_t stages, uint32_t nodes, uint32_t cards_here)
{
    const uint32_t all = cards * (stages > 0 ? stages : 1), machines = nodes > 0 ? nodes : 1;
    const uint32_t here = all / machines;

    return all % machines == 0 && here <= cards_here &&
           (stages < 2 || here % cards == 0 || cards % here == 0);
}

/* Cards of a stage; a CPU's ranks are not planned apart. */
static uint32_t most_each(const struct plan_question *q)
{
    return q->gpu ? q->cards * (q->nodes > 0 ? q->nodes : 1) / (q->stages > 0 ? q->stages : 1) : 1;
}

/* A cache of 8 bits for what latent attention keeps is planned when it is asked for, never advised:
 * evenkeel-server has none on a card, nor for keys of more than 512 elements, which are all that is
 * published. */
static bool cache_considered(const struct plan_question *q, uint32_t bits)
{
    return q->kv_bits ? q->kv_bits == bits : bits == 16 || q->shape.latent == 0;
}

/* Weights as stored, then smaller; cache of 16 bits, then 8; fewest cards first. */
static void list_choices(const struct plan_question *q, struct plan_answer *a)
{
    static const uint32_t kv[] = {16, 8}, weights[] = {0, 8, 4};
    for (size_t w = 0; w < 3; w++) {
        if (q->weight_bits ? weights[w] != 0 : weights[w] && weights[w] >= q->shape.weight_bits)
            continue;
        for (uint32_t cards = 1; cards <= most_each(q); cards *= 2) {
            if (!plan_layout_fits(cards, q->stages, q->nodes, q->gpu ? q->cards : RANKS_MOST))
                continue;
            for (size_t k = 0; k < 2; k++) {
                bool asked =
                    (!q->cards_each || q->cards_each == cards) && cache_considered(q, kv[k]);
                if (!asked || a->choice_count == PLAN_CHOICES_MOST)
                    continue;
                struct plan_choice *c = &a->choices[a->choice_count++];
                c->setup = setup_of(q, cards, q->weight_bits ? q->weight_bits : weights[w], kv[k]);
                c->fit = plan_fit_of(&q->shape, &c->setup);
                if (q->own && c->setup.weight_bits == q->weight_bits && cards == 1 &&
                    kv[k] == (q->kv_bits ? q->kv_bits : 16))
                    c->fit = *q->own;
            }
        }
    }
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

/* Whether one request alone keeps the promises. */
static bool keeps(const struct plan_question *q, const struct plan_choice *c)
{
    enum plan_bound bound;
    struct plan_engine e = engine_of(q, c, 1);
    return (q->load.ttft_s <= 0 && q->load.itl_s <= 0) || plan_best_seqs(&e, &q->load, &bound) > 0;
}

static bool changes(const struct plan_question *q, const struct plan_choice *c)
{
    return (!q->weight_bits && c->setup.weight_bits) || (!q->kv_bits && c->setup.kv_bits == 8);
}

/* Weights and cache as they are first, with the fewest cards that keep the promises; then whatever
 * holds the length. NULL if nothing does. */
static const struct plan_choice *advise_choose(const struct plan_question *q,
                                               const struct plan_answer *a, double len)
{
    const struct plan_choice *best[4] = {NULL}; /* by what is changed, and what is not kept */
    for (uint32_t i = 0; i < a->choice_count; i++) {
        const struct plan_choice *c = &a->choices[i];
        if (!c->fit.fits || c->fit.longest < len)
            continue;
        size_t rank = (changes(q, c) ? 2u : 0u) + (keeps(q, c) ? 0u : 1u);
        best[rank] = best[rank] ? best[rank] : c;
    }
    for (size_t i = 0; i < 4; i++) {
        if (best[i])
            return best[i];
    }
    return NULL;
}

static void say_what(struct plan_answer *a, const char *text)
{
    if (a->what_count < PLAN_WHAT_MOST)
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

/* The cards that are here, with a part of the weights in host memory: what lacks, and buffers that
 * they are copied to. False when that is most of them. */
static bool offload_text(const struct plan_question *q, double len, char *text, size_t size)
{
    struct plan_setup u = setup_of(q, q->cards, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
    struct plan_fit f = plan_fit_of(&q->shape, &u);
    const double lacks = f.token_bytes * (len + 2 * u.block_size) - f.kv_bytes;
    const double gib = ceil((lacks + f.weights * BUFFERS) / GIB);

    if (!f.splits || lacks <= 0 || gib * GIB > f.weights * OFFLOADED_MOST)
        return false;
    (void)snprintf(text, size,
                   "the card%s here with --cpu-offload-gb %.0f: so much of the weights%s stays in "
                   "host memory and is copied in every step, %.0f ms at 50 GB/s",
                   q->cards > 1 ? "s" : "", gib, q->cards > 1 ? " of each" : "",
                   gib * GIB / 50e9 * 1e3);
    return true;
}

/* A stage on each of several machines like this one. */
static void advise_machines(const struct plan_question *q, struct plan_answer *a, double len)
{
    char text[200];
    uint32_t each = 1;

    while (each * 2 <= q->cards)
        each *= 2;
    for (uint32_t nodes = 2; nodes <= 16 && q->stages < 2 && q->nodes < 2; nodes *= 2) {
        struct plan_setup u = setup_of(q, each, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
        u.stages = nodes;
        const struct plan_fit f = plan_fit_of(&q->shape, &u);
        if (!f.fits || f.longest < len)
            continue;
        (void)snprintf(
            text, sizeof(text),
            "%u machines with %u such card%s each: mpirun -n %u and --pipeline-parallel-size "
            "%u --tensor-parallel-size %u",
            nodes, each, each > 1 ? "s" : "", nodes, nodes, each);
        say_what(a, text);
        return;
    }
}

/* Nothing fits the machine: which changes would. */
static void advise_other(const struct plan_question *q, struct plan_answer *a, double len)
{
    char text[200];
    static const uint32_t bits[] = {8, 4};
    for (size_t i = 0; i < 2; i++) {
        struct plan_setup u = setup_of(q, most_each(q), bits[i], 16);
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
    if (need > most_each(q) && q->stages < 2) {
        (void)snprintf(text, sizeof(text), "%u cards of this kind: --tensor-parallel-size %u", need,
                       need);
        say_what(a, text);
    }
    advise_machines(q, a, len);
    const bool offloads = offload_text(q, len, text, sizeof(text));
    for (uint32_t i = 0; plan_gpu_at(i) && a->what_count + offloads < PLAN_WHAT_MOST; i++) {
        char card[200];
        const struct plan_gpu *g = plan_gpu_at(i);
        struct plan_question other = *q;
        other.memory_bytes = g->memory_gib * GIB;
        struct plan_setup v =
            setup_of(&other, most_each(q), q->weight_bits, q->kv_bits ? q->kv_bits : 16);
        struct plan_fit f = plan_fit_of(&q->shape, &v);
        if (other.memory_bytes <= q->memory_bytes || !f.fits || f.longest < len)
            continue;
        (void)snprintf(card, sizeof(card), "%u x %s (%.0f GiB each)", q->cards, g->text,
                       g->memory_gib);
        say_what(a, card);
    }
    if (offloads)
        say_what(a, text);
}

static void explain_no(const struct plan_question *q, struct plan_answer *a, double len)
{
    const struct plan_fit *f = &a->chosen.fit;
    const struct plan_setup *u = &a->chosen.setup;
    if (!f->splits)
        (void)snprintf(a->why, sizeof(a->why),
                       u->stages > q->shape.layers
                           ? "Its %u layers are fewer than %u stages."
                           : "Its %u attention heads do not divide by %u cards.",
                       u->stages > q->shape.layers ? q->shape.layers : q->shape.heads,
                       u->stages > q->shape.layers ? u->stages : u->cards);
    else if (f->weights > u->memory_bytes)
        (void)snprintf(a->why, sizeof(a->why),
                       "The weights alone take %.1f GiB%s of %.1f GiB; fewer sequences or shorter "
                       "requests change nothing about that.",
                       f->weights / GIB,
                       q->gpu && u->cards > 1 ? " on each of the cards"
                       : q->gpu               ? " on a card"
                                              : " on a machine",
                       u->memory_bytes / GIB);
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

/* The fewest sequences with nearly all of the output: more only wait for each other. */
static void set_knee(const struct plan_engine *e, const struct plan_question *q,
                     struct plan_answer *a)
{
    uint32_t low = 1, high = a->seqs;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (plan_speed_at(e, &q->load, mid).output_tokens_s >= KNEE * a->full.output_tokens_s)
            high = mid;
        else
            low = mid + 1;
    }
    a->knee = low;
    a->at_knee = plan_speed_at(e, &q->load, low);
}

/* The promise is not kept by one request alone: which other ways would keep it. */
static void advise_promise(const struct plan_question *q, struct plan_answer *a, double len)
{
    char text[200];
    for (uint32_t i = 0; i < a->choice_count && a->what_count < 3; i++) {
        const struct plan_choice *c = &a->choices[i];
        if (!c->fit.fits || c->fit.longest < len || c->setup.kv_bits == 8 || !keeps(q, c))
            continue;
        struct plan_engine e = engine_of(q, c, 1);
        struct plan_speed v = plan_speed_at(&e, &q->load, 1);
        uint32_t bits = c->setup.weight_bits ? c->setup.weight_bits : q->shape.weight_bits;
        (void)snprintf(text, sizeof(text),
                       "weights of %u bit on %u card%s: first token %.3g s, then %.3g s", bits,
                       c->setup.cards, c->setup.cards > 1 ? "s" : "", v.ttft_s, v.step_s);
        say_what(a, text);
    }
    for (uint32_t i = 0; plan_gpu_at(i) && q->gpu && a->what_count < 4; i++) {
        const struct plan_gpu *g = plan_gpu_at(i);
        struct plan_question other = *q;
        other.memory_bytes = g->memory_gib * GIB;
        other.speed = plan_gpu_speed(g);
        struct plan_choice c = {.setup = a->chosen.setup};
        c.setup.memory_bytes = other.memory_bytes;
        c.fit = plan_fit_of(&q->shape, &c.setup);
        if (!c.fit.fits || c.fit.longest < len || !keeps(&other, &c))
            continue;
        (void)snprintf(text, sizeof(text), "%u x %s", c.setup.cards, g->text);
        say_what(a, text);
    }
}

/* Another form than the stored one was chosen: why. */
static void explain_change(const struct plan_question *q, struct plan_answer *a)
{
    const struct plan_choice *as_is = NULL;
    for (uint32_t i = 0; i < a->choice_count; i++) {
        if (!changes(q, &a->choices[i]))
            as_is = &a->choices[i]; /* the last has the most cards */
    }
    if (!as_is || !changes(q, &a->chosen))
        return;
    const struct plan_fit *f = &as_is->fit;
    if (f->kv_bytes <= 0)
        (void)snprintf(a->note, sizeof(a->note),
                       "As it is stored (%u bit) it does not fit: %.1f GiB of weights%s, of which "
                       "%.1f GiB may be taken.",
                       q->shape.weight_bits, f->weights / GIB, q->gpu ? " on each card" : "",
                       f->share_bytes / GIB);
    else
        (void)snprintf(a->note, sizeof(a->note),
                       "As it is stored (%u bit), with a cache of 16 bit, the longest request has "
                       "%u tokens.",
                       q->shape.weight_bits, f->longest);
}

static void set_limits(const struct plan_question *q, struct plan_answer *a)
{
    const struct plan_fit *f = &a->chosen.fit;
    uint32_t ceiling = !q->gpu ? SEQS_CPU : q->memory_bytes > 70 * GIB ? SEQS_LARGE : SEQS_SMALL;
    struct plan_engine e = engine_of(q, &a->chosen, q->seqs ? q->seqs : ceiling);
    a->max_len = q->max_len ? q->max_len : f->longest;
    a->tokens = a->chosen.setup.tokens;
    uint32_t best = plan_best_seqs(&e, &q->load, &a->bound);
    a->seqs = q->seqs ? q->seqs : best;
    if (!q->seqs && best > a->chosen.setup.seqs) {
        a->seqs = a->chosen.setup.seqs;
        a->bound = BOUND_CEILING;
    }
    if (a->seqs == 0)
        a->seqs = 1;
    a->alone = plan_speed_at(&e, &q->load, 1);
    a->full = plan_speed_at(&e, &q->load, a->seqs);
    set_knee(&e, q, a);
    e.seqs_most = a->seqs;
    a->replicas = plan_replicas(&e, &q->load);
    if (q->price_hour > 0 && a->full.output_tokens_s > 0)
        a->cost_million = q->price_hour * a->chosen.setup.cards * (q->stages > 0 ? q->stages : 1) /
                          3600 / a->full.output_tokens_s * 1e6;
    a->promise_kept = keeps(q, &a->chosen);
    if (a->promise_kept)
        (void)snprintf(a->why, sizeof(a->why),
                       "%u sequence%s at once, bounded by %s; the KV cache holds %.0f tokens, "
                       "requests have %.0f.",
                       a->seqs, a->seqs > 1 ? "s" : "", plan_bound_text(a->bound), f->kv_tokens,
                       q->load.prompt + q->load.output);
    else
        (void)snprintf(a->why, sizeof(a->why),
                       "But it does not keep the promise: one request alone has its first token "
                       "after %.3g s and the next ones every %.3g s.",
                       a->alone.ttft_s, a->alone.step_s);
}

void plan_advise(const struct plan_question *q, struct plan_answer *ret_answer)
{
    struct plan_answer *a = ret_answer;
    double len = least_len(q);
    memset(a, 0, sizeof(*a));
    list_choices(q, a);
    const struct plan_choice *c = advise_choose(q, a, len);
    struct plan_setup least = setup_of(q, 1, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
    a->cards_needed = plan_cards_needed(&q->shape, &least, len) * (q->stages > 0 ? q->stages : 1);
    a->fits = c != NULL;
    if (!c) {
        uint32_t cards = q->cards_each ? q->cards_each : most_each(q);
        a->chosen.setup = setup_of(q, cards, q->weight_bits, q->kv_bits ? q->kv_bits : 16);
        a->chosen.fit = plan_fit_of(&q->shape, &a->chosen.setup);
        explain_no(q, a, len);
        return;
    }
    a->chosen = *c;
    set_limits(q, a);
    explain_change(q, a);
    if (!a->promise_kept)
        advise_promise(q, a, len);
}

/*
 * Adds up what a model needs on a card (weights, activations, buffers), leaves the rest to the KV
 * cache by common/memplan.h, and finds the smallest number of cards. advise.c and ctl/verb_plan.c
 * ask. What evenkeel-server does in its own way is in the functions own_*(); where the program is
 * installed, ctl/plan_server.c has its exact answer.
 */
#include "supervisor/planner/fit.h"

#include <math.h>

#include "supervisor/planner/weights.h"

#define GIB           1073741824.0
#define CONTEXT       (0.55 * GIB) /* driver, kernels, library handles on one card */
#define CONTEXT_CPU   (0.02 * GIB) /* the program and its tables */
#define COMM          (0.35 * GIB) /* buffers of the collectives, when there are several */
#define GRAPH_LAYER   (12.0 * 1048576)
#define REQUEST_LEAST 1024.0
#define CPU_KV_MOST   (4ull << 30) /* evenkeel-server without --kv-cache-memory-bytes */
#define CARDS_MOST    64u

/* The widest moment of a layer for all tokens of a step, and logits of all sequences in 32 bit with
 * the sampler's copy. */
static double activations(const struct plan_shape *s, const struct plan_setup *u)
{
    double inner = s->experts
                       ? (double)s->expert_intermediate * s->experts_used + s->shared_intermediate
                       : s->intermediate;
    double heads = ((double)s->heads + 2.0 * s->kv_heads) * s->head_dim;
    heads = fmax(heads, ((double)s->heads + 2.0 * s->full_kv_heads) * s->full_head_dim);
    if (s->recurrent_layers > 0)
        heads += s->v_heads ? 4.0 * s->k_heads * s->k_dim + 4.0 * s->v_heads * s->v_dim
                            : 5.0 * s->hidden;
    const double inputs = 2.0 * s->layers * s->layer_input; /* of all layers, on every card */
    double row = (4.0 + 2.0 * s->streams) * s->hidden + (u->cards > 1 ? 2 : 1) * inputs +
                 (2 * inner + heads) / u->cards;
    return u->tokens * row * 2 + 2.0 * u->seqs * s->vocab * 4;
}

/* Longest request for which the KV bytes suffice: windowed layers stop to grow. */
static uint32_t fit_longest(const struct plan_shape *s, const struct plan_setup *u, double bytes)
{
    uint32_t low = 0, high = s->max_len;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (plan_kv_request_bytes(s, u->cards, u->kv_bits, mid) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* A made-up model may need more than can be written down; memplan's sums saturate. */
static uint64_t fit_whole(double bytes)
{
    return bytes < 1e18 ? (uint64_t)bytes : (uint64_t)1e18;
}

/* Shares the memory out. False when it does not fit; kv_bytes then says by how much. */
static bool share_out(const struct plan_shape *s, const struct plan_setup *u, struct plan_fit *f)
{
    const struct ek_plan need = {.weight_bytes = fit_whole(f->weights),
                                 .activation_bytes = fit_whole(f->activations),
                                 .overhead_bytes = fit_whole(f->graphs + f->context),
                                 .state_bytes = fit_whole(f->state_bytes),
                                 .block_bytes = fit_whole(f->token_bytes * u->block_size)};
    f->params = (struct memplan_params){.memory_bytes = fit_whole(u->memory_bytes),
                                        .utilization = u->share,
                                        .kv_most_bytes = u->own ? CPU_KV_MOST : 0,
                                        .block_size = u->block_size,
                                        .max_num_seqs = u->seqs,
                                        .states = f->state_bytes > 0 ? u->seqs : 0,
                                        /* as the server by default; others have none */
                                        .snapshots = u->own && f->state_bytes > 0 ? -1 : 0,
                                        .max_num_batched_tokens = u->tokens};
    if (memplan_make(&f->params, &need, s->max_len, &f->plan, NULL) == 0) {
        f->kv_bytes = (double)f->plan.bytes[MEMPLAN_KV];
        f->kv_tokens = (f->plan.blocks - 1.0) * u->block_size; /* block 0 is never given out */
        return true;
    }
    f->plan = (struct memplan){.share_bytes = fit_whole(f->share_bytes),
                               .block_bytes = need.block_bytes,
                               .bytes = {[MEMPLAN_WEIGHTS] = need.weight_bytes,
                                         [MEMPLAN_ACTIVATIONS] = need.activation_bytes,
                                         [MEMPLAN_STATES] = fit_whole(f->state_bytes * u->seqs),
                                         [MEMPLAN_OVERHEAD] = need.overhead_bytes}};
    f->kv_bytes = f->share_bytes - f->weights - f->activations - f->graphs - f->context -
                  f->state_bytes * u->seqs;
    return false;
}

/* evenkeel-server's cache of 8 bits on the CPU, of one token over all layers: a scale of 4 bytes
 * for each token and head of keys and of values; values are padded to 16. */
static double own_small_token(const struct plan_shape *s)
{
    struct plan_heads of[2];
    double sum = 0;
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        uint32_t values = (of[i].head_dim + 15) & ~15u;
        sum += of[i].keeping * of[i].kv_heads * (of[i].head_dim + values + 2.0 * sizeof(float));
    }
    return sum;
}

/* Its cache of a latent, over all layers: the keys, and of their first part a second time. */
static double own_latent_token(const struct plan_shape *s, uint32_t bits)
{
    uint32_t values = (s->latent + 15) & ~15u;
    return s->layers * (s->latent + (double)s->latent_rope + values) * bits / 8;
}

/* How many whole layers fit in `bytes`. */
static double layers_in(double bytes, double layer)
{
    return bytes > 0 ? floor(bytes / layer + 1e-9) : 0;
}

/* As evenkeel-server divides them: runs of layers whose largest is the smallest, the embedding with
 * the first, the output layer with the last; what serves as both is in both. The layers and the
 * bytes of the largest; those of all where there is one stage. */
static double largest_stage(const struct plan_shape *s, const struct plan_setup *u,
                            uint32_t *ret_layers)
{
    const double all = plan_weights_of(s, u->weight_bits, u->own);
    const double stages = u->stages > 1 ? fmin(u->stages, s->layers) : 1;
    const double ends = fmin(plan_output_layer(s) * 2, all / 2);
    const double layer = (all - (s->tied ? 1 : 2) * ends) / s->layers;
    double most = all;

    *ret_layers = s->layers;
    if (stages < 2 || layer <= 0)
        return all;
    for (uint32_t n = 0; n < 2 * (s->layers + 1); n++) { /* a run of layers, with an end or not */
        const uint32_t whole = n / 2, end = n % 2;
        const double bytes = whole * layer + end * ends;
        const double outer = layers_in(bytes - ends, layer), inner = layers_in(bytes, layer);
        if (bytes < most && outer >= 1 && 2 * outer + (stages - 2) * inner >= s->layers)
            most = bytes;
    }
    /* The cache is that of the stage with most layers, one in the middle where there is one. */
    *ret_layers = (uint32_t)fmin(layers_in(stages > 2 ? most : most - ends, layer), s->layers);
    return most;
}

/* Layers with a state are divided by heads; each card has all of those whose heads do not divide,
 * or whose convolutions lie apart. */
static bool divides(const struct plan_shape *s, uint32_t cards)
{
    if (s->v_heads == 0) /* channels of LFM2's convolutions */
        return true;
    if (s->scan)
        return s->v_heads % cards == 0 && (s->k_heads % cards == 0 || s->k_heads == 1);
    return !s->conv_apart && s->k_heads % cards == 0;
}

/* A card's part of the largest stage, which has so many layers. */
static double weights_of_card(const struct plan_shape *s, const struct plan_setup *u, double stage,
                              uint32_t layers)
{
    const uint32_t bits = u->weight_bits ? u->weight_bits : s->weight_bits;
    const uint32_t cards = u->cards > 0 ? u->cards : 1;
    const double recurrent = s->layers ? (double)s->recurrent_layers * layers / s->layers : 0;
    const double whole =
        divides(s, cards) ? 0 : fmin(stage, recurrent * plan_recurrent_layer(s, bits));

    return whole + (stage - whole) / cards;
}

struct plan_fit plan_fit_of(const struct plan_shape *s, const struct plan_setup *u)
{
    struct plan_fit f = {.share_bytes = u->memory_bytes * u->share};
    struct plan_shape part = *s;
    f.splits = u->cards > 0 && s->heads % u->cards == 0 && u->stages <= s->layers;
    const uint32_t cards = u->cards > 0 ? u->cards : 1;
    const double stage = largest_stage(s, u, &f.layers);
    f.weights = weights_of_card(s, u, stage, f.layers);
    part.layers = f.layers;
    part.windowed_layers =
        s->layers ? (uint32_t)((uint64_t)s->windowed_layers * f.layers / s->layers) : 0;
    part.recurrent_layers =
        s->layers ? (uint32_t)((uint64_t)s->recurrent_layers * f.layers / s->layers) : 0;
    part.forward_layers =
        s->layers ? (uint32_t)((uint64_t)s->forward_layers * f.layers / s->layers) : 0;
    if (f.layers < s->layers) /* no stage begins between a layer and one that reads its KV */
        part.shared_layers = part.shared_windowed = 0;
    f.activations = activations(s, u);
    f.graphs = u->graphs ? f.layers * GRAPH_LAYER : 0;
    f.context = (u->graphs ? CONTEXT : CONTEXT_CPU) + (u->cards > 1 || u->stages > 1 ? COMM : 0);
    double plain = plan_kv_token_bytes(&part, u->cards, u->kv_bits);
    f.token_bytes = u->own && u->kv_bits == 8 && !s->latent ? own_small_token(&part) : plain;
    if (u->own && s->latent > 0)
        f.token_bytes = own_latent_token(&part, u->kv_bits);
    f.state_bytes = plan_state_bytes(&part) / (divides(s, cards) ? cards : 1);
    if (!share_out(s, u, &f))
        return f;
    f.longest = fit_longest(&part, u, f.kv_tokens * plain);
    double least = s->max_len < REQUEST_LEAST ? s->max_len : REQUEST_LEAST;
    f.fits = f.splits && f.longest >= least;
    return f;
}

uint32_t plan_cards_needed(const struct plan_shape *s, const struct plan_setup *u, double len)
{
    for (uint32_t cards = 1; cards <= CARDS_MOST; cards *= 2) {
        struct plan_setup with = *u;
        with.cards = cards;
        struct plan_fit f = plan_fit_of(s, &with);
        if (f.fits && f.longest >= len)
            return cards;
    }
    return 0;
}

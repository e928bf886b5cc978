/* What follows from a model's numbers: parameters, and bytes of weights, KV cache and state, see
 * shape.h. */
#include "supervisor/planner/shape.h"

uint32_t plan_attending(const struct plan_shape *s)
{
    return s->layers - (s->beside ? 0 : s->recurrent_layers) - s->forward_layers;
}

uint32_t plan_forwarding(const struct plan_shape *s)
{
    return s->single ? s->forward_layers : s->layers;
}

uint32_t plan_heads_of(const struct plan_shape *s, struct plan_heads ret_heads[2])
{
    const double all = plan_attending(s);
    const double windowed = s->window ? s->windowed_layers : 0;
    if (s->full_head_dim == 0) {
        ret_heads[0] = (struct plan_heads){
            .layers = all, .keeping = all, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
        return 1;
    }
    ret_heads[0] = (struct plan_heads){.layers = windowed,
                                       .keeping = windowed - s->shared_windowed,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim,
                                       .windowed = true};
    ret_heads[1] = (struct plan_heads){.layers = all - windowed,
                                       .keeping = all - windowed -
                                                  ((double)s->shared_layers - s->shared_windowed),
                                       .kv_heads = s->full_kv_heads,
                                       .head_dim = s->full_head_dim,
                                       .keys_as_values = s->keys_as_values};
    return 2;
}

/* All that attend. */
static double counts_attention(const struct plan_shape *s)
{
    struct plan_heads of[2];
    const uint32_t kinds = plan_heads_of(s, of);
    double sum = 0;
    double h = s->hidden, heads = s->heads;
    if (s->latent > 0) {
        double q = s->nope_dim + s->latent_rope;
        double from = s->q_latent ? s->q_latent * (h + heads * q) : h * heads * q;
        return s->indexers * (double)s->index_heads * (s->q_latent * (double)s->index_dim + h) +
               s->indexers * h * s->index_dim +
               of[0].layers *
                   (from + h * (s->latent + s->latent_rope) +
                    s->latent * heads * (s->nope_dim + s->value_dim) + heads * s->value_dim * h);
    }
    for (uint32_t i = 0; i < kinds; i++)
        sum +=
            of[i].layers * ((s->output_gate || s->gate_proj ? 3 : 2) * h * heads * of[i].head_dim) +
            of[i].keeping *
                ((of[i].keys_as_values ? 1 : 2) * h * (double)of[i].kv_heads * of[i].head_dim);
    return sum;
}

/* What Gemma 3n's streams add. */
static double plan_streams(const struct plan_shape *s)
{
    const double n = s->streams, wide = s->hidden;
    if (s->streams == 0)
        return 0;
    return 2 * (n - 1) * wide * wide +
           s->layers * (2 * wide * s->laurel + n * wide + n * n * (n + 1));
}

/* A wider feed-forward in some layers, and what brings the second embedding into each. */
static double counts_extras(const struct plan_shape *s)
{
    return (s->shared_wide ? s->shared_layers * 3.0 * s->hidden * s->intermediate : 0) +
           3.0 * s->hidden * s->layer_input * s->layers + plan_streams(s);
}

/* Linear attention: products of q, k, v, what gates it, and b and a; a convolution; the output. */
static double linear_attention(const struct plan_shape *s)
{
    double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    if (s->v_heads == 0) /* a short convolution between two gates */
        return s->hidden * (4.0 * s->hidden + s->conv);
    return s->hidden * (2 * keys + 3 * values + s->gates) + (2 * keys + values) * s->conv;
}

static double counts_forward(const struct plan_shape *s, double inner)
{
    return (s->gated ? 3 : 2) * (double)s->hidden * inner;
}

static double counts_mixture(const struct plan_shape *s, double used)
{
    const double wide = s->hidden, takes = s->expert_latent ? s->expert_latent : wide;
    return used * (s->gated ? 3 : 2) * takes * s->expert_intermediate +
           2 * wide * s->expert_latent + counts_forward(s, s->shared_intermediate) +
           wide * s->experts + (s->mixture_norm ? wide : 0);
}

/* All layers; `used` experts of each mixture. */
static double layers(const struct plan_shape *s, double used)
{
    double mixed = s->experts ? (double)plan_forwarding(s) - s->dense_layers : 0;
    double plain = plan_forwarding(s) - mixed;
    return counts_attention(s) + counts_extras(s) + s->recurrent_layers * linear_attention(s) +
           (s->single ? 1.0 : 2.0) * s->layers * s->hidden +
           plain * counts_forward(s, s->intermediate) + mixed * counts_mixture(s, used);
}

double plan_second_embedding(const struct plan_shape *s)
{
    return (double)(s->input_rows ? s->input_rows : s->vocab) * s->layers * s->layer_input;
}

double plan_positions(const struct plan_shape *s)
{
    return s->learned ? (double)s->max_len * s->hidden : 0;
}

uint32_t plan_embed_width(const struct plan_shape *s)
{
    return s->embed_width ? s->embed_width : s->hidden;
}

double plan_output_layer(const struct plan_shape *s)
{
    return (double)s->vocab * plan_embed_width(s);
}

/* The products between a narrow embedding and the layers, and behind them. */
static double narrowing(const struct plan_shape *s)
{
    return 2.0 * s->embed_width * s->hidden;
}

static double tables(const struct plan_shape *s)
{
    return plan_output_layer(s) * (s->tied ? 1.0 : 2.0) + plan_second_embedding(s) +
           plan_positions(s) + narrowing(s);
}

double plan_parameters(const struct plan_shape *s)
{
    return layers(s, s->experts) + tables(s);
}

double plan_active_parameters(const struct plan_shape *s)
{
    return layers(s, s->experts_used) + plan_output_layer(s) + narrowing(s);
}

double plan_weight_bytes(const struct plan_shape *s, uint32_t bits)
{
    if (bits == 0 && s->file_bytes > 0)
        return s->file_bytes;
    uint32_t b = bits ? bits : s->weight_bits;
    double each = b == 4 ? 4.25 / 8 : b / 8.0;
    if (s->experts_only && bits == 0 && b < 16) {
        double experts = (double)s->layers * s->experts * counts_forward(s, s->expert_intermediate);
        return experts * each + (layers(s, s->experts) - experts + tables(s)) * 2;
    }
    return layers(s, s->experts) * each + tables(s) * (b == 32 ? 4 : 2);
}

double plan_kv_token_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits)
{
    double each = bits / 8.0;
    if (s->latent > 0) /* every card keeps the whole */
        return s->layers * (s->latent + (double)s->latent_rope) * each;
    struct plan_heads of[2];
    double sum = 0;
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        double heads = of[i].kv_heads > split ? (double)of[i].kv_heads / split : 1;
        sum += 2.0 * of[i].keeping * heads * of[i].head_dim * each;
    }
    return sum;
}

double plan_state_bytes(const struct plan_shape *s)
{
    double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    double conv = (s->v_heads ? 2 * keys + values : s->hidden) * (s->conv > 0 ? s->conv - 1.0 : 0);
    return s->recurrent_layers * (conv + values * s->k_dim) * sizeof(float);
}

double plan_kv_request_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits, double len)
{
    double token = plan_kv_token_bytes(s, split, bits);
    double attend = plan_attending(s);
    double windowed = attend > 0 ? s->windowed_layers / attend : 0;
    double kept = s->window && len > s->window ? s->window : len, sum = 0;
    struct plan_heads of[2];
    const uint32_t kinds = plan_heads_of(s, of);
    for (uint32_t i = 0; kinds > 1 && i < kinds; i++) {
        double heads = of[i].kv_heads > split ? (double)of[i].kv_heads / split : 1;
        sum += 2.0 * of[i].keeping * heads * of[i].head_dim * bits / 8.0 *
               (of[i].windowed ? kept : len);
    }
    if (kinds > 1)
        return sum;
    return token * ((1 - windowed) * len + windowed * kept);
}

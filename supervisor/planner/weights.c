/*
 * Counts the bytes of weights part by part (attention, forward, mixture, linear attention, vectors)
 * in the layout that kernels/cpu has in memory, for fit.c and speed.c.
 * tests/unit/planner/test_fit.c holds the sums against the two worked examples of docs/planning.md.
 */
#include "supervisor/planner/weights.h"

#include <math.h>

#include "common/memplan.h"

#define PANEL 32.0 /* rows that are packed together */
#define EIGHT 8.0  /* columns of kept numbers are padded to that */
#define LINE  64.0 /* alignment of every array */

static double up(double n, double to)
{
    return ceil(n / to) * to;
}

/* `group` columns of 8 or 4 bits share a scale. */
static double grouped(double rows, double cols, uint32_t bits, double group)
{
    double panel = PANEL * bits / 8 * up(cols, 2);
    if (rows <= 0 || cols <= 0)
        return 0;
    if (bits <= 8)
        panel = up(PANEL * bits / 8 * up(cols, EIGHT), LINE) +
                PANEL * sizeof(float) * ceil(cols / fmin(group, cols));
    return up(rows / PANEL, 1) * panel;
}

static double weights_matrix(double rows, double cols, uint32_t bits)
{
    return grouped(rows, cols, bits, bits == 8 ? EK_INT8_GROUP : ek_int4_group((uint32_t)cols));
}

/* A norm, a bias or another vector: floats. */
static double weights_vector(double n)
{
    return up(n * sizeof(float), LINE);
}

/* Norms and biases of what attends. */
static double attention_vectors(const struct plan_shape *s)
{
    struct plan_heads of[2];
    double sum = 0;
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        const double q = (double)s->heads * of[i].head_dim;
        const double kv = (double)of[i].kv_heads * of[i].head_dim;
        const double reading = of[i].layers - of[i].keeping; /* have queries alone */
        if (s->head_norms)
            sum += (of[i].layers + of[i].keeping) * weights_vector(of[i].head_dim) *
                   (s->norm_bias ? 2 : 1);
        if (s->each_norms)
            sum += (of[i].layers * s->heads + of[i].keeping * of[i].kv_heads) *
                   weights_vector(of[i].head_dim);
        if (s->wide_norms)
            sum += of[i].layers * (weights_vector(q) + weights_vector(kv));
        if (s->qkv_bias)
            sum += of[i].keeping * weights_vector((s->output_gate ? 2 : 1) * q +
                                                  (of[i].keys_as_values ? 1 : 2) * kv) +
                   reading * weights_vector(q);
        sum += of[i].layers * ((s->out_bias ? weights_vector(s->hidden) : 0) +
                               (s->sinks ? weights_vector(s->heads) : 0));
    }
    return sum;
}

/* Products of all layers that attend; the keys and values of latent attention for each head. */
static double weights_attention(const struct plan_shape *s, uint32_t bits)
{
    struct plan_heads of[2];
    const uint32_t kinds = plan_heads_of(s, of);
    double sum = 0;
    if (s->latent > 0) {
        const double turned = s->latent_rope, keys = s->latent + turned;
        const double q = s->heads * (s->nope_dim + turned), from = s->q_latent;
        const double head = weights_matrix(s->latent, s->nope_dim, bits) +
                            weights_matrix(s->value_dim, s->latent, bits);
        sum = (from > 0 ? weights_matrix(from, s->hidden, bits) + weights_vector(from) +
                              (s->qkv_bias ? weights_vector(from) : 0)
                        : 0) +
              weights_matrix(q, from > 0 ? from : s->hidden, bits) +
              weights_matrix(keys, s->hidden, bits) + weights_vector(s->latent) + s->heads * head +
              weights_matrix(s->hidden, (double)s->heads * s->value_dim, bits);
        sum += s->qkv_bias ? weights_vector(keys) : 0;
        return plan_attending(s) * (sum + (s->out_bias ? weights_vector(s->hidden) : 0));
    }
    for (uint32_t i = 0; i < kinds; i++) {
        double q = (double)s->heads * of[i].head_dim, kv = (double)of[i].kv_heads * of[i].head_dim;
        double own = (of[i].keys_as_values ? 1 : 2) * kv;
        sum += (s->gate_proj ? of[i].layers * weights_matrix(q, s->hidden, bits) : 0) +
               of[i].keeping * weights_matrix((s->output_gate ? 2 : 1) * q + own, s->hidden, bits) +
               (of[i].layers - of[i].keeping) * weights_matrix(q, s->hidden, bits) +
               of[i].layers * weights_matrix(s->hidden, q, bits);
    }
    return sum + attention_vectors(s);
}

static double weights_forward(const struct plan_shape *s, double inner, uint32_t bits)
{
    const double rows = (s->gated ? 2 : 1) * inner;
    return weights_matrix(rows, s->hidden, bits) + weights_matrix(s->hidden, inner, bits) +
           (s->forward_bias ? weights_vector(rows) + weights_vector(s->hidden) : 0);
}

/* The router decides, and is not quantized; a gate of the shared expert is of floats. */
static double weights_mixture(const struct plan_shape *s, uint32_t bits)
{
    const double inner = s->expert_intermediate, hidden = s->hidden, n = s->experts;
    const double takes = s->expert_latent ? s->expert_latent : hidden, gates = s->gated ? 2 : 1;
    double sum =
        n * (gates * weights_matrix(inner, takes, bits) + weights_matrix(takes, inner, bits)) +
        weights_matrix(n, hidden, bits < 16 ? 16 : bits);
    if (s->shared_intermediate)
        sum += weights_forward(s, s->shared_intermediate, bits) +
               (s->shared_gate ? weights_matrix(1, hidden, 32) : 0);
    if (s->expert_latent)
        sum += weights_matrix(takes, hidden, bits) + weights_matrix(hidden, takes, bits) +
               (s->forward_bias ? weights_vector(takes) + weights_vector(hidden) : 0);
    if (s->expert_bias) /* of each expert, and of the router */
        sum += gates * weights_vector(n * inner) + weights_vector(n * takes) + weights_vector(n);
    return sum + (s->correction ? weights_vector(n) : 0) +
           (s->mixture_norm ? weights_vector(hidden) : 0);
}

/* The convolution's weights are floats. A delta rule has b and a beside its product, which stay as
 * they are, and a rate and a shift for each head; Mamba has all in one product and a third. */
double plan_recurrent_layer(const struct plan_shape *s, uint32_t bits)
{
    const double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    const double hidden = s->hidden, wide = s->v_heads ? 2 * keys + values : hidden;
    const double rows = s->v_heads == 0 ? 3 * hidden
                        : s->scan       ? 2 * keys + 2 * values + s->gates
                                        : 2 * keys + 2 * values;
    if (s->recurrent_layers == 0)
        return 0;
    double sum = weights_matrix(rows, hidden, bits) + weights_vector(wide * s->conv) +
                 weights_matrix(hidden, s->v_heads ? values : hidden, bits);
    if (s->v_heads && !s->scan)
        sum += weights_matrix(s->gates, hidden, bits < 16 ? 16 : bits) +
               2 * weights_vector(s->v_heads) + weights_vector(s->v_dim);
    if (s->scan)
        sum += 3 * weights_vector(s->v_heads) + (s->unnormed ? 0 : weights_vector(values));
    return sum + (s->conv_bias ? weights_vector(wide) : 0) +
           (s->mixer_bias ? weights_vector(rows) : 0) +
           (s->mixer_out_bias ? weights_vector(hidden) : 0);
}

/* Gemma 3n: products between streams, and in each layer what chooses their coefficients, a product
 * of low rank, and two norms and a factor for each column. */
static double streams(const struct plan_shape *s, uint32_t bits)
{
    const double n = s->streams, wide = s->hidden;
    const uint32_t exact = bits < 16 ? 16 : bits;
    return 2 * (n - 1) * weights_matrix(wide, wide, bits) +
           s->layers *
               (weights_matrix(s->laurel, wide, bits) + weights_matrix(wide, s->laurel, bits) +
                weights_matrix(n, wide, exact) + weights_matrix(n * n, n, exact) +
                weights_matrix(n, n, exact) + (s->streams_scaled ? 3 : 2) * weights_vector(wide));
}

/* Gemma 4: a factor for each layer, its second embedding and what brings it into the layers, wider
 * feed-forwards, and norms and factors of experts. */
static double weights_extras(const struct plan_shape *s, uint32_t bits)
{
    double n = s->layer_input, sum = 0;
    if (s->shared_wide)
        sum += s->shared_layers * (weights_forward(s, 2.0 * s->intermediate, bits) -
                                   weights_forward(s, s->intermediate, bits));
    if (n > 0)
        sum += up(plan_second_embedding(s) * (bits == 32 ? 4 : 2), LINE) +
               weights_matrix(s->layers * n, s->hidden, bits) + weights_vector(n) +
               s->layers * (weights_matrix(n, s->hidden, bits) +
                            weights_matrix(s->hidden, n, bits) + weights_vector(s->hidden));
    if (s->streams > 0)
        sum += streams(s, bits);
    if (s->full_head_dim > 0 && s->streams == 0)
        sum +=
            s->layers *
            (LINE + (s->experts ? 4 * weights_vector(s->hidden) + weights_vector(s->experts) : 0));
    return sum;
}

double plan_own_weights(const struct plan_shape *s, uint32_t bits)
{
    uint32_t b = bits ? bits : s->weight_bits;
    double mixed = s->experts ? (double)plan_forwarding(s) - s->dense_layers : 0;
    if (s->weight_bits <= 8)
        return plan_weight_bytes(s, bits);
    double layers = weights_attention(s, b) + weights_extras(s, b) +
                    s->recurrent_layers * plan_recurrent_layer(s, b) +
                    (plan_forwarding(s) - mixed) * weights_forward(s, s->intermediate, b) +
                    mixed * (mixed > 0 ? weights_mixture(s, b) : 0);
    const double width = plan_embed_width(s), wide = b == 32 ? 4 : 2;
    double head = grouped(s->vocab, width, b > 8 ? b : 8, EK_HEAD_GROUP);
    double embedding = s->tied ? 0 : s->vocab * width * wide;
    double norms = ((double)s->layers * s->norms + !s->no_last_norm) * weights_vector(s->hidden) *
                   (s->norm_bias ? 2 : 1);
    double around = up(plan_positions(s) * wide, LINE);
    if (s->embed_width)
        around += weights_matrix(s->hidden, width, b) + weights_matrix(width, s->hidden, b);
    return layers + head + up(embedding, LINE) + (s->bare_norms ? 0 : norms) + around +
           (s->output_bias ? weights_vector(s->vocab) : 0);
}

double plan_weights_of(const struct plan_shape *s, uint32_t bits, bool own)
{
    return own ? plan_own_weights(s, bits) : plan_weight_bytes(s, bits);
}

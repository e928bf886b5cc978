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
    if (bits <= 8)
        panel = up(PANEL * bits / 8 * up(cols, EIGHT), LINE) +
                PANEL * sizeof(float) * ceil(cols / fmin(group, cols));
    return up(rows / PANEL, 1) * panel;
}

static double matrix(double rows, double cols, uint32_t bits)
{
    return grouped(rows, cols, bits, bits == 8 ? EK_INT8_GROUP : ek_int4_group((uint32_t)cols));
}

/* Norms and biases are floats. */
static double vectors(const struct plan_shape *s)
{
    double hidden = up(s->hidden * sizeof(float), LINE), sum = s->layers * hidden * s->norms;
    struct plan_heads of[2];
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        double heads = s->heads + 2.0 * of[i].kv_heads, all = n > 1 ? of[i].layers : s->layers;
        sum += s->head_norms ? 2 * all * up(of[i].head_dim * sizeof(float), LINE) : 0;
        sum += s->qkv_bias ? all * up(heads * of[i].head_dim * sizeof(float), LINE) : 0;
    }
    if (s->full_head_dim > 0) /* a number for each layer, and norms and factors of experts */
        sum += s->layers * (LINE + (s->layer_input ? hidden : 0) +
                            (s->experts ? 4 * hidden + up(s->experts * sizeof(float), LINE) : 0));
    return sum + hidden;
}

static double forward(const struct plan_shape *s, double inner, uint32_t bits)
{
    return matrix((s->gated ? 2 : 1) * inner, s->hidden, bits) + matrix(s->hidden, inner, bits);
}

static double mixture(const struct plan_shape *s, uint32_t bits)
{
    double inner = s->expert_intermediate, hidden = s->hidden;
    double takes = s->expert_latent ? s->expert_latent : hidden;
    double expert = (s->gated ? 2 : 1) * matrix(inner, takes, bits) + matrix(takes, inner, bits);
    double shared = s->shared_intermediate ? forward(s, s->shared_intermediate, bits) : 0;
    if (s->expert_latent)
        shared += matrix(takes, hidden, bits) + matrix(hidden, takes, bits);
    return s->experts * expert + shared + matrix(s->experts, hidden, 16); /* the router decides */
}

/* b and a stay as they are, and the convolution's weights are floats. */
static double linear_attention(const struct plan_shape *s, uint32_t bits)
{
    double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    if (s->recurrent_layers == 0)
        return 0;
    if (s->v_heads == 0) /* a short convolution between two gates */
        return matrix(3.0 * s->hidden, s->hidden, bits) + matrix(s->hidden, s->hidden, bits) +
               (double)s->hidden * s->conv * sizeof(float);
    return matrix(2 * keys + 2 * values, s->hidden, bits) + matrix(s->hidden, values, bits) +
           matrix(s->gates, s->hidden, bits < 16 ? 16 : bits) +
           (2 * keys + values) * s->conv * sizeof(float);
}

/* Products of all layers that attend. */
static double attention(const struct plan_shape *s, uint32_t bits)
{
    struct plan_heads of[2];
    double sum = 0;
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        double q = (double)s->heads * of[i].head_dim, kv = (double)of[i].kv_heads * of[i].head_dim;
        double own = (of[i].keys_as_values ? 1 : 2) * kv;
        sum += of[i].keeping * matrix((s->output_gate ? 2 : 1) * q + own, s->hidden, bits) +
               (of[i].layers - of[i].keeping) * matrix(q, s->hidden, bits) +
               of[i].layers * matrix(s->hidden, q, bits);
    }
    return sum;
}

/* Gemma 4's second embedding and what brings it into the layers; wider feed-forwards. */
static double extras(const struct plan_shape *s, uint32_t bits)
{
    double n = s->layer_input, sum = 0;
    if (s->shared_wide)
        sum += s->shared_layers *
               (forward(s, 2.0 * s->intermediate, bits) - forward(s, s->intermediate, bits));
    if (n > 0)
        sum += up((double)s->vocab * s->layers * n * (bits == 32 ? 4 : 2), LINE) +
               matrix(s->layers * n, s->hidden, bits) +
               s->layers * (matrix(n, s->hidden, bits) + matrix(s->hidden, n, bits));
    return sum;
}

double plan_own_weights(const struct plan_shape *s, uint32_t bits)
{
    uint32_t b = bits ? bits : s->weight_bits;
    double mixed = s->experts ? (double)plan_forwarding(s) - s->dense_layers : 0;
    if (s->weight_bits <= 8 || s->latent > 0)
        return plan_weight_bytes(s, bits);
    double layers = attention(s, b) + extras(s, b) + s->recurrent_layers * linear_attention(s, b) +
                    (plan_forwarding(s) - mixed) * forward(s, s->intermediate, b) +
                    mixed * (mixed > 0 ? mixture(s, b) : 0);
    double head = grouped(s->vocab, s->hidden, b > 8 ? b : 8, EK_HEAD_GROUP);
    double embedding = s->tied ? 0 : (double)s->vocab * s->hidden * (b == 32 ? 4 : 2);
    return layers + head + up(embedding, LINE) + vectors(s);
}

double plan_weights_of(const struct plan_shape *s, uint32_t bits, bool own)
{
    return own ? plan_own_weights(s, bits) : plan_weight_bytes(s, bits);
}

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
    double heads = s->heads + 2.0 * s->kv_heads;
    double layer = up(s->hidden * sizeof(float), LINE) * s->norms;
    layer += s->head_norms ? 2 * up(s->head_dim * sizeof(float), LINE) : 0;
    layer += s->qkv_bias ? up(heads * s->head_dim * sizeof(float), LINE) : 0;
    return s->layers * layer + up(s->hidden * sizeof(float), LINE);
}

static double forward(const struct plan_shape *s, double inner, uint32_t bits)
{
    return matrix((s->gated ? 2 : 1) * inner, s->hidden, bits) + matrix(s->hidden, inner, bits);
}

static double mixture(const struct plan_shape *s, uint32_t bits)
{
    double inner = s->expert_intermediate, hidden = s->hidden;
    double expert = 2 * matrix(inner, hidden, bits) + matrix(hidden, inner, bits);
    double shared = s->shared_intermediate ? forward(s, s->shared_intermediate, bits) : 0;
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
           matrix(2.0 * s->v_heads, s->hidden, bits < 16 ? 16 : bits) +
           (2 * keys + values) * s->conv * sizeof(float);
}

double plan_own_weights(const struct plan_shape *s, uint32_t bits)
{
    uint32_t b = bits ? bits : s->weight_bits;
    double q = (double)s->heads * s->head_dim, kv = (double)s->kv_heads * s->head_dim;
    double mixed = s->experts ? (double)s->layers - s->dense_layers : 0;
    if (s->weight_bits <= 8 || s->latent > 0)
        return plan_weight_bytes(s, bits);
    double attention =
        matrix((s->output_gate ? 2 : 1) * q + 2 * kv, s->hidden, b) + matrix(s->hidden, q, b);
    double layers = (s->layers - s->recurrent_layers) * attention +
                    s->recurrent_layers * linear_attention(s, b) +
                    (s->layers - mixed) * forward(s, s->intermediate, b) +
                    mixed * (mixed > 0 ? mixture(s, b) : 0);
    double head = grouped(s->vocab, s->hidden, b > 8 ? b : 8, EK_HEAD_GROUP);
    double embedding = s->tied ? 0 : (double)s->vocab * s->hidden * (b == 32 ? 4 : 2);
    return layers + head + up(embedding, LINE) + vectors(s);
}

double plan_weights_of(const struct plan_shape *s, uint32_t bits, bool own)
{
    return own ? plan_own_weights(s, bits) : plan_weight_bytes(s, bits);
}

/*
 * The tier "ref": what each operation means, in plain C for any machine. The other tiers are tested
 * against it; it is not meant to be fast.
 */
#include "kernels/cpu/tier.h"

#include <math.h>

#include "kernels/cpu/expand.h"
#include "kernels/cpu/round8.h"
#include "kernels/num.h"

static void ref_gemm(const struct cpu_gemm *g)
{
    for (uint32_t p = 0; p < g->panels; p++) {
        const char *panel = (const char *)g->w + p * g->panel_bytes;
        for (uint32_t row = 0; row < g->rows; row++) {
            const float *x = g->x + row * g->x_stride;
            float *c = g->c + row * g->c_stride + (size_t)p * CPU_PANEL;
            for (uint32_t col = 0; col < CPU_PANEL; col++) {
                float sum = g->add ? c[col] : 0.0f;
                for (uint32_t k = 0; k < g->k; k++)
                    sum +=
                        x[k] * cpu_load(g->dtype, panel, cpu_panel_index(false, g->dtype, k, col));
                c[col] = sum;
            }
        }
    }
}

static void ref_scores(const struct cpu_block *b)
{
    for (uint32_t row = 0; row < b->rows; row++)
        for (uint32_t at = 0; at < b->blocks * b->keys; at++) {
            const void *block = b->kv[at / b->keys];
            float sum = 0.0f;
            for (uint32_t d = 0; d < b->dim; d++)
                sum += ((const float *)b->in)[row * b->in_stride + d] *
                       cpu_load(b->dtype, block, cpu_key_index(b->pairs, b->keys, d, at % b->keys));
            b->out[row * b->out_stride + at] = sum;
        }
}

static void ref_mix(const struct cpu_block *b)
{
    for (uint32_t row = 0; row < b->rows; row++)
        for (uint32_t d = 0; d < b->dim; d++) {
            float sum = b->out[row * b->out_stride + d];
            for (uint32_t at = 0; at < b->blocks * b->keys; at++)
                sum += ((const float *)b->in)[row * b->in_stride + at] *
                       cpu_load(b->dtype, b->kv[at / b->keys],
                                cpu_value_index(b->pairs, b->dim, d, at % b->keys));
            b->out[row * b->out_stride + d] = sum;
        }
}

static float ref_softmax(float *s, uint32_t n, float scale, float cap, float *m, float *l)
{
    float most = *m, sum = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        s[i] *= scale;
        if (cap > 0.0f)
            s[i] = cap * tanhf(s[i] / cap);
        most = s[i] > most ? s[i] : most;
    }
    float factor = expf(*m - most);
    for (uint32_t i = 0; i < n; i++) {
        s[i] = expf(s[i] - most);
        sum += s[i];
    }
    *m = most;
    *l = *l * factor + sum;
    return factor;
}

static void ref_norm(float *dst, const float *src, const float *w, uint32_t n, float eps,
                     float offset)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < n; i++)
        sum += src[i] * src[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        dst[i] = src[i] * scale * ((w ? w[i] : 1.0f) + offset);
}

static float activate(float x, enum ek_activation a)
{
    switch (a) {
    case EK_ACT_SILU: return x / (1.0f + expf(-x));
    case EK_ACT_GELU_TANH: return x / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    case EK_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case EK_ACT_SWIGLU_CLAMPED: return x / (1.0f + expf(-EK_SWIGLU_ALPHA * x));
    case EK_ACT_RELU: return x < 0.0f ? 0.0f : x;
    }
    return x;
}

static float bound(float x, float least, float most)
{
    x = x > most ? most : x;
    return x < least ? least : x;
}

static void ref_glu(float *dst, const float *gate, const float *up, uint32_t n,
                    enum ek_activation a)
{
    const bool clamped = a == EK_ACT_SWIGLU_CLAMPED;

    for (uint32_t i = 0; i < n && clamped; i++)
        dst[i] = activate(bound(gate[i], -INFINITY, EK_SWIGLU_MOST), a) *
                 (bound(up[i], -EK_SWIGLU_MOST, EK_SWIGLU_MOST) + 1.0f);
    for (uint32_t i = 0; i < n && !clamped; i++)
        dst[i] = activate(gate[i], a) * up[i];
}

static float gate_of(float x, enum ek_gate g, const struct ek_gate_numbers *numbers)
{
    switch (g) {
    case EK_GATE_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case EK_GATE_SILU: return x / (1.0f + expf(-x));
    case EK_GATE_TIMES: return x;
    case EK_GATE_RELU: return x < 0.0f ? 0.0f : x;
    case EK_GATE_GELU_TANH:
        return 1.0f / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    case EK_GATE_GELU: return 0.5f * (1.0f + erff(x * 0.7071067812f));
    case EK_GATE_STEP: return x > 0.0f ? 1.0f : 0.0f;
    case EK_GATE_CLIP: return fabsf(x) > numbers->rising ? numbers->rising / fabsf(x) : 1.0f;
    case EK_GATE_XIELU:
        if (x > 0.0f)
            return numbers->rising * x + numbers->slope;
        return (x < 0.0f ? numbers->falling * (expm1f(x) / x - 1.0f) : x) + numbers->slope;
    }
    return x;
}

static void ref_gate(float *dst, const float *src, uint32_t n, enum ek_gate g,
                     const struct ek_gate_numbers *numbers)
{
    for (uint32_t i = 0; i < n; i++)
        dst[i] *= gate_of(src[i], g, numbers);
}

static void ref_conv(const struct cpu_conv *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        float sum = c->bias ? c->bias[i] : 0.0f;
        for (uint32_t j = 0; j < c->kernel; j++)
            sum += c->w[j * c->w_stride + i] * c->x[j][i];
        c->dst[i] = c->silu ? activate(sum, EK_ACT_SILU) : sum;
    }
}

/* One token of one column. */
static float delta_column(float *s, const float *q, const float *k, uint32_t n, float v,
                          float decay, float beta)
{
    float said = 0.0f, out = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        s[(size_t)i * EK_STATE_COLS] *= decay;
        said += s[(size_t)i * EK_STATE_COLS] * k[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        s[(size_t)i * EK_STATE_COLS] += k[i] * (v - said) * beta;
        out += s[(size_t)i * EK_STATE_COLS] * q[i];
    }
    return out;
}

static void ref_delta(const struct cpu_delta *t)
{
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t c = 0; c < t->cols; c++)
            t->out[r * t->out_stride + c] = delta_column(
                t->state + c, t->q + r * t->stride, t->k + r * t->stride, t->k_dim,
                t->v[r * t->stride + c], t->decay[r * t->gate_stride], t->beta[r * t->gate_stride]);
}

static void ref_scan(const struct cpu_scan *t)
{
    for (uint32_t c = 0; c < EK_STATE_COLS; c++) {
        float out = 0.0f;
        for (uint32_t i = 0; i < t->rows; i++) {
            float *s = t->state + (size_t)i * EK_STATE_COLS + c;
            *s = *s * t->decay + t->b[i] * t->by[c];
            out += *s * t->c[i];
        }
        t->out[c] = out;
    }
}

static void ref_add(float *dst, const float *src, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        dst[i] += src[i] * scale;
}

static void ref_store(enum ek_dtype t, void *to, const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cpu_store(t, to, i, from[i]);
}

static void ref_scale(float *dst, const float *src, uint32_t n, float factor)
{
    for (uint32_t i = 0; i < n; i++)
        dst[i] = src[i] * factor;
}

static void ref_rope(float *x, const float *c, const float *s, uint32_t half)
{
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * c[i] - b * s[i];
        x[half + i] = b * c[i] + a * s[i];
    }
}

static void ref_softcap(float *x, uint32_t n, float cap)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

static float ref_sum_exp(const float *x, uint32_t n, float max, float factor, float *out)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        float e = expf((x[i] - max) * factor);
        e = isnan(e) ? 0.0f : e;
        if (out)
            out[i] = e;
        sum += e;
    }
    return sum;
}

static float ref_max(const float *x, uint32_t n)
{
    float most = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

const struct cpu_ops cpu_ops_ref = {
    .name = "ref",
    .gemm = ref_gemm,
    .expand = expand,
    .scale_panel = scale_panel,
    .scores = ref_scores,
    .mix = ref_mix,
    .softmax = ref_softmax,
    .norm = ref_norm,
    .glu = ref_glu,
    .gate = ref_gate,
    .conv = ref_conv,
    .delta = ref_delta,
    .scan = ref_scan,
    .add = ref_add,
    .store = ref_store,
    .scale = ref_scale,
    .rope = ref_rope,
    .softcap = ref_softcap,
    .sum_exp = ref_sum_exp,
    .max = ref_max,
    .round8 = round8,
    .times = times,
};

/*
 * Gates, convolutions, the delta rule and the scan of Mamba 2 with the primitives of ops_vec.h,
 * which includes it.
 *
 * The delta rule reads and writes a state that is larger than what it computes with, so what bounds
 * it are loads and stores. Per token one pass over the state both ends that token and begins the
 * next: while S = decay * S + k delta is stored, the sums S^T k and S^T q of the token behind it
 * are taken. What a token says of its own update is added afterwards:
 *
 *   S'^T q = decay * (S^T q) + (k q) delta
 */
#pragma once

#define DELTA_VECS   (EK_STATE_COLS / VW)
#define DELTA_CHAINS (VW == 16 ? 4u : 1u) /* so many sums at once hide the latency of additions */
#define UNROLL_ALL   _Pragma("GCC unroll 16")

/* The division is by what is no more than a number next to 0, where the exponent is 1 and so the
 * quotient 0 instead of 1: what it is then multiplied with is as small. */
INLINE vf xielu_of(vf x, const struct ek_gate_numbers *a)
{
    const vf least = v_set1(-1e-20f), one = v_set1(1.0f), slope = v_set1(a->slope);
    const vf low = v_below(x, least, x, least);
    const vf below = v_fma(v_set1(a->falling), (v_exp(low) - one) / low - one, slope);

    return v_below(v_set1(0.0f), x, v_fma(v_set1(a->rising), x, slope), below);
}

INLINE vf gate_of(vf x, enum ek_gate g, const struct ek_gate_numbers *numbers)
{
    const vf one = v_set1(1.0f), zero = v_set1(0.0f);

    switch (g) {
    case EK_GATE_SIGMOID: return one / (one + v_exp(zero - x));
    case EK_GATE_SILU: return x / (one + v_exp(zero - x));
    case EK_GATE_TIMES: return x;
    case EK_GATE_RELU: return v_max(zero, x);
    case EK_GATE_GELU_TANH: {
        vf inner = v_fma(x * x * x, v_set1(0.044715f), x) * v_set1(-1.5957691216f);
        return one / (one + v_exp(inner));
    }
    case EK_GATE_GELU: {
        float lane[VW];
        memcpy(lane, &x, sizeof(x));
        for (uint32_t i = 0; i < VW; i++)
            lane[i] = 0.5f * (1.0f + erff(lane[i] * 0.7071067812f));
        return v_read(lane);
    }
    case EK_GATE_STEP: return v_below(zero, x, one, zero);
    case EK_GATE_CLIP: {
        const vf most = v_set1(numbers->rising), size = v_max(x, zero - x);
        return v_below(most, size, most / size, one);
    }
    case EK_GATE_XIELU: return xielu_of(x, numbers);
    }
    return x;
}

static void vec_gate(float *dst, const float *src, uint32_t n, enum ek_gate g,
                     const struct ek_gate_numbers *numbers)
{
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        v_store(dst + i, v_read(dst + i) * gate_of(v_read(src + i), g, numbers));
    if (i < n) {
        vf v = v_read_part(dst + i, n - i, 0.0f) *
               gate_of(v_read_part(src + i, n - i, 0.0f), g, numbers);
        memcpy(dst + i, &v, (n - i) * sizeof(float));
    }
}

/* VW channels, or the last `part` of them. */
INLINE vf conv_at(const struct cpu_conv *c, uint32_t i, uint32_t part)
{
    vf sum = v_set1(0.0f);

    if (c->bias)
        sum = part == VW ? v_read(c->bias + i) : v_read_part(c->bias + i, part, 0.0f);
    for (uint32_t j = 0; j < c->kernel; j++) {
        const float *w = c->w + j * c->w_stride + i, *x = c->x[j] + i;
        if (part == VW)
            sum = v_fma(v_read(w), v_read(x), sum);
        else
            sum = v_fma(v_read_part(w, part, 0.0f), v_read_part(x, part, 0.0f), sum);
    }
    return c->silu ? activate(sum, EK_ACT_SILU) : sum;
}

static void vec_conv(const struct cpu_conv *c)
{
    uint32_t i = 0;

    for (; i + VW <= c->n; i += VW)
        v_store(c->dst + i, conv_at(c, i, VW));
    if (i < c->n) {
        vf v = conv_at(c, i, c->n - i);
        memcpy(c->dst + i, &v, (c->n - i) * sizeof(float));
    }
}

/* Sums over the rows of a state, of all its columns. */
struct delta_sums {
    vf k[DELTA_VECS], q[DELTA_VECS];
};

/* One pass: where it `ends` a token S becomes decay * S + from[i] * by; where it `begins` one, the
 * sums of what is there then with k and q are taken. Row i adds to chain i % DELTA_CHAINS. */
struct delta_pass {
    float *state;
    uint32_t n;
    const float *from, *k, *q;
    float decay;
    vf by[DELTA_VECS];
};

INLINE void delta_line(const struct delta_pass *p, uint32_t i, bool ends, bool begins,
                       struct delta_sums *sum)
{
    float *s = p->state + (size_t)i * EK_STATE_COLS;

    UNROLL_ALL
    for (uint32_t c = 0; c < DELTA_VECS; c++) {
        vf x = v_read(s + c * VW);
        if (ends) {
            x = v_fma(v_set1(p->from[i]), p->by[c], x * v_set1(p->decay));
            v_store(s + c * VW, x);
        }
        if (begins) {
            sum->k[c] = v_fma(x, v_set1(p->k[i]), sum->k[c]);
            sum->q[c] = v_fma(x, v_set1(p->q[i]), sum->q[c]);
        }
    }
}

INLINE struct delta_sums delta_pass(const struct delta_pass *p, bool ends, bool begins)
{
    struct delta_sums sum[DELTA_CHAINS];
    const uint32_t whole = p->n / DELTA_CHAINS * DELTA_CHAINS;

    UNROLL_ALL
    for (uint32_t u = 0; u < DELTA_CHAINS; u++) {
        UNROLL_ALL
        for (uint32_t c = 0; c < DELTA_VECS; c++)
            sum[u].k[c] = sum[u].q[c] = v_set1(0.0f);
    }
    NOROLL
    for (uint32_t i = 0; i < whole; i += DELTA_CHAINS) {
        UNROLL_ALL
        for (uint32_t u = 0; u < DELTA_CHAINS; u++)
            delta_line(p, i + u, ends, begins, &sum[u]);
    }
    UNROLL_ALL
    for (uint32_t u = 0; u < DELTA_CHAINS; u++)
        if (whole + u < p->n)
            delta_line(p, whole + u, ends, begins, &sum[u]);
    UNROLL_ALL
    for (uint32_t u = 1; u < DELTA_CHAINS; u++) {
        UNROLL_ALL
        for (uint32_t c = 0; c < DELTA_VECS; c++) {
            sum[0].k[c] += sum[u].k[c];
            sum[0].q[c] += sum[u].q[c];
        }
    }
    return sum[0];
}

static float delta_dot(const float *a, const float *b, uint32_t n)
{
    vf sum = v_set1(0.0f);
    uint32_t i = 0;

    for (; i + VW <= n; i += VW)
        sum = v_fma(v_read(a + i), v_read(b + i), sum);
    if (i < n)
        sum = v_fma(v_read_part(a + i, n - i, 0.0f), v_read_part(b + i, n - i, 0.0f), sum);
    return v_sum(sum);
}

static void vec_delta(const struct cpu_delta *t)
{
    struct delta_pass p = {.state = t->state, .n = t->k_dim, .k = t->k, .q = t->q};
    struct delta_sums sums = delta_pass(&p, false, true);

    for (uint32_t r = 0; r < t->rows; r++) {
        const float beta = t->beta[r * t->gate_stride];
        const float both = delta_dot(p.k, p.q, t->k_dim);
        float v[EK_STATE_COLS] = {0}, out[EK_STATE_COLS];
        p.decay = t->decay[r * t->gate_stride];
        memcpy(v, t->v + r * t->stride, t->cols * sizeof(float));
        UNROLL_ALL
        for (uint32_t c = 0; c < DELTA_VECS; c++) {
            p.by[c] = (v_read(v + c * VW) - sums.k[c] * v_set1(p.decay)) * v_set1(beta);
            v_store(out + c * VW, v_fma(v_set1(both), p.by[c], sums.q[c] * v_set1(p.decay)));
        }
        memcpy(t->out + r * t->out_stride, out, t->cols * sizeof(float));
        p.from = p.k;
        p.k += t->stride;
        p.q += t->stride;
        if (r + 1 < t->rows)
            sums = delta_pass(&p, true, true);
        else
            (void)delta_pass(&p, true, false);
    }
}

/* Row i of a state: one token, and what it adds to the sums. */
INLINE void scan_line(const struct cpu_scan *t, uint32_t i, vf sum[DELTA_VECS])
{
    float *s = t->state + (size_t)i * EK_STATE_COLS;

    UNROLL_ALL
    for (uint32_t c = 0; c < DELTA_VECS; c++) {
        const vf x =
            v_fma(v_set1(t->b[i]), v_read(t->by + c * VW), v_read(s + c * VW) * v_set1(t->decay));
        v_store(s + c * VW, x);
        sum[c] = v_fma(x, v_set1(t->c[i]), sum[c]);
    }
}

static void vec_scan(const struct cpu_scan *t)
{
    const uint32_t whole = t->rows / DELTA_CHAINS * DELTA_CHAINS;
    vf sum[DELTA_CHAINS][DELTA_VECS];

    UNROLL_ALL
    for (uint32_t u = 0; u < DELTA_CHAINS; u++) {
        UNROLL_ALL
        for (uint32_t c = 0; c < DELTA_VECS; c++)
            sum[u][c] = v_set1(0.0f);
    }
    NOROLL
    for (uint32_t i = 0; i < whole; i += DELTA_CHAINS) {
        UNROLL_ALL
        for (uint32_t u = 0; u < DELTA_CHAINS; u++)
            scan_line(t, i + u, sum[u]);
    }
    UNROLL_ALL
    for (uint32_t u = 0; u < DELTA_CHAINS; u++)
        if (whole + u < t->rows)
            scan_line(t, whole + u, sum[u]);
    UNROLL_ALL
    for (uint32_t c = 0; c < DELTA_VECS; c++) {
        UNROLL_ALL
        for (uint32_t u = 1; u < DELTA_CHAINS; u++)
            sum[0][c] += sum[u][c];
        v_store(t->out + c * VW, sum[0][c]);
    }
}

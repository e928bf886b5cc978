/*
 * Operations with a recurrent state, and gates: each tier against a plain computation in double
 * over a whole text, whatever way its rows are divided into steps, beside another text, by one
 * member or three; the bits are the same then. And which of their graphs are text_refused.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cpu/device.h"
#include "kernels/stage.h"
#include "tests/unit/kernels/text.h"

enum {
    HIDDEN = 24,
    K_HEADS = 2,
    V_HEADS = 4,
    K_DIM = 19,
    V_DIM = 37, /* a run of columns and a part of one */
    KEYS = K_HEADS * K_DIM,
    VALUES = V_HEADS * V_DIM,
    CHANNELS = 2 * KEYS + VALUES,
    KERNEL = 4
};

/* Values of the graph. */
enum { X, WIDE, GATES, QKV, OUT, ORDERED, ONE, PICKED };

static uint32_t linear(struct tiny *t, uint16_t dst, uint16_t src)
{
    tiny_linear(t, dst, src);
    return t->g.op_count - 1;
}

/* embedding -> [q | k | v | z] -> convolution -> delta rule -> gated by z and by one number ->
 * heads in another order -> logits */
static struct tiny *recurrent(void)
{
    static const uint32_t width[] = {
        HIDDEN, CHANNELS + VALUES, 2 * V_HEADS, CHANNELS, VALUES, VALUES, 1, VALUES};
    const uint32_t channels_at = 0, conv_floats = (KERNEL - 1) * CHANNELS;
    struct tiny *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    t->p.dtype = EK_F32;
    t->room = 1u << 18;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    assert_true(t->data && t->raw);
    t->random = 7;
    memcpy(t->width, width, sizeof(width));
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = t->width,
                             .value_count = 8,
                             .layers = 1,
                             .kv_heads = 1,
                             .head_dim = 16,
                             .hidden = HIDDEN,
                             .vocab = VOCAB,
                             .max_position = 4096,
                             .state_floats = 4096 + V_HEADS * K_DIM * 2 * EK_STATE_COLS,
                             .dtype = EK_F32};
    tiny_op(t, EK_OP_EMBED, X, X, tiny_weight(t, VOCAB, HIDDEN, 1.0f, 0.0f))->u.embed.scale = 1.0f;
    (void)linear(t, WIDE, X);
    (void)linear(t, GATES, X);
    (void)linear(t, ONE, X);
    struct ek_op *op = tiny_op(t, EK_OP_CONV, QKV, WIDE, EK_NO_WEIGHT);
    op->weight = tiny_weight(t, KERNEL, CHANNELS, 0.8f, 0.2f);
    op->bias = tiny_weight(t, CHANNELS, 1, 0.3f, 0.0f);
    op->u.conv.first = channels_at;
    op->u.conv.kernel = KERNEL;
    op->u.conv.silu = true;
    op = tiny_op(t, EK_OP_DELTA, OUT, QKV, EK_NO_WEIGHT);
    op->weight = tiny_weight(t, V_HEADS, 1, 1.0f, -2.0f);
    op->bias = tiny_weight(t, V_HEADS, 1, 0.5f, 0.0f);
    op->u.delta = (struct ek_delta){.gates = GATES,
                                    .k_heads = K_HEADS,
                                    .v_heads = V_HEADS,
                                    .k_dim = K_DIM,
                                    .v_dim = V_DIM,
                                    .state_at = (conv_floats + 15) / 16 * 16};
    op = tiny_op(t, EK_OP_GATE, OUT, WIDE, EK_NO_WEIGHT);
    op->u.gate.first = CHANNELS;
    op->u.gate.step = op->u.gate.group = V_DIM;
    op->u.gate.act = EK_GATE_SILU;
    op = tiny_op(t, EK_OP_GATE, OUT, ONE, EK_NO_WEIGHT);
    op->u.gate.group = 1;
    op = tiny_op(t, EK_OP_TAKE, ORDERED, OUT, EK_NO_WEIGHT); /* even heads, then odd ones */
    op->u.take.step = 2 * V_DIM;
    op->u.take.group = V_DIM;
    op->u.take.heads = V_HEADS / 2;
    op = tiny_op(t, EK_OP_TAKE, ORDERED, OUT, EK_NO_WEIGHT);
    op->u.take.first = V_DIM;
    op->u.take.step = 2 * V_DIM;
    op->u.take.group = V_DIM;
    op->u.take.heads = V_HEADS / 2;
    op->u.take.to = VALUES / 2;
    (void)tiny_op(t, EK_OP_PICK, PICKED, ORDERED, EK_NO_WEIGHT);
    tiny_op(t, EK_OP_LOGITS, PICKED, PICKED, tiny_weight(t, VOCAB, VALUES, 0.5f, 0.0f))
        ->u.logits.scale = 1.0f;
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

/* ---- in double ---- */

struct recur_plain {
    double wide[TOKENS][CHANNELS + VALUES], gates[TOKENS][2 * V_HEADS], one[TOKENS];
    double qkv[TOKENS][CHANNELS], out[TOKENS][VALUES];
    double state[V_HEADS][K_DIM][V_DIM];
};

static void times(struct tiny *t, uint32_t op, const float *x, double *y)
{
    const struct ek_weight *w = &t->weight[t->op[op].weight];
    const float *data = tiny_data(t, t->op[op].weight);

    for (uint32_t i = 0; i < w->rows; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < w->cols; j++)
            y[i] += (double)x[j] * (double)data[(size_t)i * w->cols + j];
    }
}

static void convolve(struct tiny *t, struct recur_plain *p, uint32_t at)
{
    const float *w = tiny_data(t, text_op(t, EK_OP_CONV)->weight);
    const float *bias = tiny_data(t, text_op(t, EK_OP_CONV)->bias);

    for (uint32_t c = 0; c < CHANNELS; c++) {
        double sum = (double)bias[c];
        for (uint32_t j = 0; j < KERNEL; j++)
            if (at + j >= KERNEL - 1)
                sum += (double)w[j * CHANNELS + c] * p->wide[at + j - (KERNEL - 1)][c];
        p->qkv[at][c] = text_silu(sum);
    }
}

static void delta(struct tiny *t, struct recur_plain *p, uint32_t at, uint32_t h)
{
    const struct ek_op *op = text_op(t, EK_OP_DELTA);
    const double *x = p->qkv[at], *v = x + 2 * KEYS + h * V_DIM;
    const double a = p->gates[at][V_HEADS + h] + (double)tiny_data(t, op->bias)[h];
    const double forget = exp(-exp((double)tiny_data(t, op->weight)[h]) * log(1 + exp(a)));
    const double beta = 1 / (1 + exp(-p->gates[at][h]));
    double q[K_DIM], k[K_DIM], qq = 1e-6, kk = 1e-6;

    for (uint32_t i = 0; i < K_DIM; i++) {
        q[i] = x[h / (V_HEADS / K_HEADS) * K_DIM + i];
        k[i] = x[KEYS + h / (V_HEADS / K_HEADS) * K_DIM + i];
        qq += q[i] * q[i];
        kk += k[i] * k[i];
    }
    for (uint32_t j = 0; j < V_DIM; j++) {
        double said = 0, out = 0;
        for (uint32_t i = 0; i < K_DIM; i++) {
            p->state[h][i][j] *= forget;
            said += p->state[h][i][j] * k[i] / sqrt(kk);
        }
        for (uint32_t i = 0; i < K_DIM; i++) {
            p->state[h][i][j] += k[i] / sqrt(kk) * (v[j] - said) * beta;
            out += p->state[h][i][j] * q[i] / sqrt(qq) / sqrt(K_DIM);
        }
        p->out[at][h * V_DIM + j] =
            out * text_silu(p->wide[at][CHANNELS + h * V_DIM + j]) / (1 + exp(-p->one[at]));
    }
}

/* The logits behind the last token. */
static void reference(struct tiny *t, const int32_t *tokens, double *logits)
{
    const float *embed = tiny_data(t, t->op[0].weight);
    const float *head = tiny_data(t, text_op(t, EK_OP_LOGITS)->weight);
    struct recur_plain *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    for (uint32_t i = 0; i < TOKENS; i++) {
        const float *x = embed + (size_t)tokens[i] * HIDDEN;
        times(t, 1, x, p->wide[i]);
        times(t, 2, x, p->gates[i]);
        times(t, 3, x, &p->one[i]);
        convolve(t, p, i);
        for (uint32_t h = 0; h < V_HEADS; h++)
            delta(t, p, i, h);
    }
    for (uint32_t v = 0; v < VOCAB; v++) {
        logits[v] = 0;
        for (uint32_t i = 0; i < VALUES; i++) {
            const uint32_t place = i / V_DIM;
            const uint32_t h = place < V_HEADS / 2 ? 2 * place : 2 * (place - V_HEADS / 2) + 1;
            logits[v] +=
                p->out[TOKENS - 1][h * V_DIM + i % V_DIM] * (double)head[(size_t)v * VALUES + i];
        }
    }
    free(p);
}

static void test_text(void **state)
{
    (void)state;
    struct tiny *t = recurrent();

    text_check(t, reference);
    tiny_free(t);
}

static const struct ek_gate_numbers numbers = {.rising = 0.7f, .falling = 1.3f, .slope = 0.5f};

static double gate_by(enum ek_gate g, double v)
{
    const double s = 1 / (1 + exp(-v)), down = v != 0 ? expm1(v) / v - 1 : 0;

    switch (g) {
    case EK_GATE_SIGMOID: return s;
    case EK_GATE_SILU: return v * s;
    case EK_GATE_TIMES: return v;
    case EK_GATE_RELU: return v > 0 ? v : 0;
    case EK_GATE_GELU_TANH: return 0.5 + 0.5 * tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
    case EK_GATE_GELU: return 0.5 + 0.5 * erf(v / sqrt(2.0));
    case EK_GATE_STEP: return v > 0;
    case EK_GATE_CLIP: return fmin(1, (double)numbers.rising / fabs(v));
    case EK_GATE_XIELU:
        return (double)numbers.slope +
               (v > 0 ? (double)numbers.rising * v : (double)numbers.falling * down);
    }
    return 0;
}

/* A feed-forward's activation is a gate of a value by itself, which is then small where it divides
 * by next to nothing. */
static void test_gates_near_nothing(void **state)
{
    (void)state;
    static const float near[] = {0.0f,   -0.0f, 1e-38f, -1e-38f, 1e-20f, -1e-20f, 1e-7f,
                                 -1e-7f, 1e-3f, -1e-3f, 88.0f,   -88.0f, -200.0f, 1e-30f};
    const uint32_t n = sizeof(near) / sizeof(near[0]);
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++)
        for (uint32_t g = EK_GATE_SIGMOID; g <= EK_GATE_XIELU; g++) {
            float y[sizeof(near) / sizeof(near[0])];
            memcpy(y, near, sizeof(y));
            tiers[i]->gate(y, y, n, (enum ek_gate)g, &numbers);
            for (uint32_t k = 0; k < n; k++) {
                const double v = (double)near[k], want = v * gate_by((enum ek_gate)g, v);
                assert_true(fabs((double)y[k] - want) < 1e-6 + 1e-6 * fabs(want));
            }
        }
}

/* Gates of each kind against libm. */
static void test_gates(void **state)
{
    (void)state;
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++)
        for (uint32_t n = 1; n < 40; n++)
            for (uint32_t g = EK_GATE_SIGMOID; g <= EK_GATE_XIELU; g++) {
                float x[40], y[40];
                for (uint32_t k = 0; k < 40; k++) {
                    x[k] = 3.0f * sinf((float)(k + n));
                    y[k] = 2.0f;
                }
                tiers[i]->gate(y, x, n, (enum ek_gate)g, &numbers);
                for (uint32_t k = 0; k < 40; k++) {
                    const double by = gate_by((enum ek_gate)g, (double)x[k]);
                    assert_true(fabs((double)y[k] - (k < n ? 2 * by : 2)) < 2e-6);
                }
            }
}

static struct ek_op *change(struct tiny **ret_tiny, enum ek_op_kind kind)
{
    *ret_tiny = recurrent();
    return text_op(*ret_tiny, kind);
}

static void test_refused(void **state)
{
    (void)state;
    struct ek_fault fault;
    struct tiny *t = recurrent();
    uint32_t at;

    assert_int_equal(ek_graph_check(&t->g, &fault), 0);
    t->g.state_floats = (KERNEL - 1) * CHANNELS - 1;
    text_refused(t, "convolution's state");
    change(&t, EK_OP_CONV)->u.conv.kernel = 1;
    text_refused(t, "misshapen convolution");
    change(&t, EK_OP_CONV)->u.conv.first = VALUES + 1;
    text_refused(t, "channels of a convolution");
    change(&t, EK_OP_CONV)->bias = 0;
    text_refused(t, "misshapen convolution");
    change(&t, EK_OP_DELTA)->u.delta.state_at = 4097;
    text_refused(t, "delta rule's state");
    change(&t, EK_OP_DELTA)->u.delta.k_heads = 3;
    text_refused(t, "without heads");
    change(&t, EK_OP_DELTA)->u.delta.v_dim++;
    text_refused(t, "other widths");
    change(&t, EK_OP_DELTA)->u.delta.gates = 8;
    text_refused(t, "other widths");
    change(&t, EK_OP_DELTA)->bias = EK_NO_WEIGHT;
    text_refused(t, "weights of a delta rule");
    change(&t, EK_OP_DELTA)->u.delta.k_dim = UINT16_MAX + 1;
    text_refused(t, "without heads");
    t = recurrent();
    assert_int_equal(t->op[2].dst, GATES);
    t->op[2] = t->op[1];
    text_refused(t, "nothing makes");
    at = change(&t, EK_OP_CONV)->weight; /* which makes t anew */
    t->weight[at].dtype = EK_BF16;
    text_refused(t, "misshapen convolution");
    at = change(&t, EK_OP_CONV)->bias;
    t->weight[at].quantized = true;
    text_refused(t, "misshapen convolution");
    at = change(&t, EK_OP_DELTA)->bias;
    t->weight[at].dtype = EK_F16;
    text_refused(t, "weights of a delta rule");
    change(&t, EK_OP_GATE)->u.gate.first++;
    text_refused(t, "gate exceeds");
    struct ek_op *gate = change(&t, EK_OP_GATE);
    gate->u.gate.act = EK_GATE_XIELU;
    gate->u.gate.numbers.falling = NAN;
    text_refused(t, "gate's numbers");
    change(&t, EK_OP_GATE)->u.gate.group = 0;
    text_refused(t, "gate exceeds");
    change(&t, EK_OP_TAKE)->u.take.heads++;
    text_refused(t, "taken exceeds");
    change(&t, EK_OP_TAKE)->u.take.to = VALUES / 2 + 1;
    text_refused(t, "taken exceeds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_gates),
                                       cmocka_unit_test(test_gates_near_nothing),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

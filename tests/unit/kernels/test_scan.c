/*
 * The scan of Mamba 2 and what stands around it: a convolution with a bias, a gate, a norm of
 * groups with weights of their own, and the square of what is positive. Each tier against a plain
 * computation in double over a whole text, whatever way its rows are divided into steps, beside
 * another text, by one member or three; the bits are the same then. And which of their graphs are
 * text_refused.
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
#include "tests/unit/kernels/text.h"

enum {
    HIDDEN = 24,
    HEADS = 6,
    GROUPS = 2,
    HEAD_DIM = 37, /* a run of columns and a part of one */
    STATES = 19,
    INNER = HEADS * HEAD_DIM,
    CHANNELS = INNER + 2 * GROUPS * STATES,
    WIDE = INNER + CHANNELS + HEADS,
    KERNEL = 4
};
static const float LEAST = 0.2f, MOST = 1.5f;

/* Values of the graph. */
enum { X, IN, XBC, OUT, PICKED };

/* embedding -> [z | x B C | steps] -> convolution -> scan -> gated by z -> norm of groups -> times
 * itself where positive -> logits */
static struct tiny *scanning(void)
{
    static const uint32_t width[] = {HIDDEN, WIDE, CHANNELS, INNER, INNER};
    struct tiny *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    t->p.dtype = EK_F32;
    t->room = 1u << 18;
    t->data = malloc(t->room * sizeof(float));
    t->raw = malloc(t->room * sizeof(float));
    assert_true(t->data && t->raw);
    t->random = 11;
    memcpy(t->width, width, sizeof(width));
    t->g = (struct ek_graph){.ops = t->op,
                             .weights = t->weight,
                             .value_width = t->width,
                             .value_count = 5,
                             .layers = 1,
                             .kv_heads = 1,
                             .head_dim = 16,
                             .hidden = HIDDEN,
                             .vocab = VOCAB,
                             .max_position = 4096,
                             .state_floats = 1024 + HEADS * STATES * 2 * EK_STATE_COLS,
                             .dtype = EK_F32};
    tiny_op(t, EK_OP_EMBED, X, X, tiny_weight(t, VOCAB, HIDDEN, 1.0f, 0.0f))->u.embed.scale = 1.0f;
    tiny_linear(t, IN, X);
    struct ek_op *op = tiny_op(t, EK_OP_CONV, XBC, IN, EK_NO_WEIGHT);
    op->weight = tiny_weight(t, KERNEL, CHANNELS, 0.8f, 0.2f);
    op->bias = tiny_weight(t, CHANNELS, 1, 0.3f, 0.0f);
    op->u.conv.first = INNER;
    op->u.conv.kernel = KERNEL;
    op->u.conv.silu = true;
    op = tiny_op(t, EK_OP_SCAN, OUT, XBC, EK_NO_WEIGHT);
    op->weight = tiny_weight(t, HEADS, 1, 1.0f, -1.0f);
    op->bias = tiny_weight(t, HEADS, 1, 0.5f, 0.0f);
    op->u.scan = (struct ek_scan){.steps = IN,
                                  .step_first = INNER + CHANNELS,
                                  .heads = HEADS,
                                  .groups = GROUPS,
                                  .head_dim = HEAD_DIM,
                                  .state_dim = STATES,
                                  .skip = tiny_weight(t, HEADS, 1, 0.5f, 0.5f),
                                  .state_at = 1024,
                                  .least = LEAST,
                                  .most = MOST};
    op = tiny_op(t, EK_OP_GATE, OUT, IN, EK_NO_WEIGHT);
    op->u.gate.group = INNER;
    op->u.gate.act = EK_GATE_SILU;
    op = tiny_op(t, EK_OP_NORM, OUT, OUT, tiny_weight(t, 1, INNER, 0.2f, 1.0f));
    op->u.norm.eps = 1e-5f;
    op->u.norm.group = INNER / GROUPS;
    op->u.norm.heads = GROUPS;
    op->u.norm.own = true;
    op = tiny_op(t, EK_OP_GATE, OUT, OUT, EK_NO_WEIGHT);
    op->u.gate.group = INNER;
    op->u.gate.act = EK_GATE_RELU;
    (void)tiny_op(t, EK_OP_PICK, PICKED, OUT, EK_NO_WEIGHT);
    tiny_op(t, EK_OP_LOGITS, PICKED, PICKED, tiny_weight(t, VOCAB, INNER, 0.5f, 0.0f))
        ->u.logits.scale = 1.0f;
    t->file = (struct ek_weight_file){t->raw, t->floats * sizeof(float), false};
    t->files = (struct ek_weight_files){&t->file, 1};
    return t;
}

/* ---- in double ---- */

struct scan_plain {
    double wide[TOKENS][WIDE], xbc[CHANNELS], out[INNER];
    double state[HEADS][STATES][HEAD_DIM];
};

static void project(struct tiny *t, struct scan_plain *p, uint32_t at, const float *x)
{
    const float *w = tiny_data(t, text_op(t, EK_OP_LINEAR)->weight);

    for (uint32_t i = 0; i < WIDE; i++)
        for (uint32_t j = 0; j < HIDDEN; j++)
            p->wide[at][i] += (double)x[j] * (double)w[i * HIDDEN + j];
}

static void convolve(struct tiny *t, struct scan_plain *p, uint32_t at)
{
    const float *w = tiny_data(t, text_op(t, EK_OP_CONV)->weight);
    const float *bias = tiny_data(t, text_op(t, EK_OP_CONV)->bias);

    for (uint32_t c = 0; c < CHANNELS; c++) {
        double sum = (double)bias[c];
        for (uint32_t j = 0; j < KERNEL; j++)
            if (at + j >= KERNEL - 1)
                sum += (double)w[j * CHANNELS + c] * p->wide[at + j - (KERNEL - 1)][INNER + c];
        p->xbc[c] = text_silu(sum);
    }
}

static void scan(struct tiny *t, struct scan_plain *p, uint32_t at, uint32_t h)
{
    const struct ek_op *op = text_op(t, EK_OP_SCAN);
    const double *x = p->xbc + h * HEAD_DIM, *b = p->xbc + INNER + h / (HEADS / GROUPS) * STATES;
    const double *c = b + GROUPS * STATES, skip = (double)tiny_data(t, op->u.scan.skip)[h];
    const double a = p->wide[at][INNER + CHANNELS + h] + (double)tiny_data(t, op->bias)[h];
    const double step = fmin(fmax(log(1 + exp(a)), (double)LEAST), (double)MOST);
    const double left = exp(-exp((double)tiny_data(t, op->weight)[h]) * step);

    for (uint32_t j = 0; j < HEAD_DIM; j++) {
        double out = skip * x[j];
        for (uint32_t i = 0; i < STATES; i++) {
            p->state[h][i][j] = p->state[h][i][j] * left + step * b[i] * x[j];
            out += p->state[h][i][j] * c[i];
        }
        p->out[h * HEAD_DIM + j] = out * text_silu(p->wide[at][h * HEAD_DIM + j]);
    }
}

static void norm(struct tiny *t, struct scan_plain *p)
{
    const float *w = tiny_data(t, text_op(t, EK_OP_NORM)->weight);
    const uint32_t n = INNER / GROUPS;

    for (uint32_t g = 0; g < GROUPS; g++) {
        double sum = 0;
        for (uint32_t i = g * n; i < (g + 1) * n; i++)
            sum += p->out[i] * p->out[i];
        for (uint32_t i = g * n; i < (g + 1) * n; i++) {
            p->out[i] *= (double)w[i] / sqrt(sum / n + 1e-5);
            p->out[i] = p->out[i] > 0 ? p->out[i] * p->out[i] : 0;
        }
    }
}

/* The logits behind the last token. */
static void reference(struct tiny *t, const int32_t *tokens, double *logits)
{
    const float *embed = tiny_data(t, t->op[0].weight);
    const float *head = tiny_data(t, text_op(t, EK_OP_LOGITS)->weight);
    struct scan_plain *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    for (uint32_t i = 0; i < TOKENS; i++) {
        project(t, p, i, embed + (size_t)tokens[i] * HIDDEN);
        convolve(t, p, i);
        for (uint32_t h = 0; h < HEADS; h++)
            scan(t, p, i, h);
    }
    norm(t, p);
    for (uint32_t v = 0; v < VOCAB; v++) {
        logits[v] = 0;
        for (uint32_t i = 0; i < INNER; i++)
            logits[v] += p->out[i] * (double)head[(size_t)v * INNER + i];
    }
    free(p);
}

static void test_text(void **state)
{
    (void)state;
    struct tiny *t = scanning();

    text_check(t, reference);
    tiny_free(t);
}

static struct ek_scan *change(struct tiny **ret_tiny)
{
    *ret_tiny = scanning();
    return &text_op(*ret_tiny, EK_OP_SCAN)->u.scan;
}

static void test_refused(void **state)
{
    (void)state;
    struct ek_fault fault;
    struct tiny *t = scanning();

    assert_int_equal(ek_graph_check(&t->g, &fault), 0);
    t->g.state_floats--;
    text_refused(t, "scan's state");
    change(&t)->state_at = UINT32_MAX;
    text_refused(t, "scan's state");
    change(&t)->groups = 4;
    text_refused(t, "without heads");
    change(&t)->groups = 0;
    text_refused(t, "without heads");
    change(&t)->state_dim = UINT16_MAX + 1;
    text_refused(t, "without heads");
    change(&t)->head_dim++;
    text_refused(t, "other widths");
    change(&t)->step_first++;
    text_refused(t, "other widths");
    change(&t)->steps = 5;
    text_refused(t, "other widths");
    change(&t)->skip = EK_NO_WEIGHT;
    text_refused(t, "weights of a scan");
    change(&t)->most = 0.1f;
    text_refused(t, "steps of a scan");
    change(&t)->least = -1.0f;
    text_refused(t, "steps of a scan");
    change(&t)->most = NAN;
    text_refused(t, "steps of a scan");
    (void)change(&t);
    text_op(t, EK_OP_SCAN)->bias = EK_NO_WEIGHT;
    text_refused(t, "weights of a scan");
    (void)change(&t);
    t->weight[text_op(t, EK_OP_SCAN)->u.scan.skip].dtype = EK_F16;
    text_refused(t, "weights of a scan");
    (void)change(&t);
    text_op(t, EK_OP_NORM)->u.norm.own = false;
    text_refused(t, "another width");
    (void)change(&t);
    text_op(t, EK_OP_GATE)[2].u.gate.group = INNER / 2; /* of itself */
    text_refused(t, "gate exceeds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

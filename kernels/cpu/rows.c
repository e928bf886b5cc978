/*
 * Operations that treat rows one by one: each member of the team does its own rows, always the same
 * ones, so that a run of them needs no barrier in between. A norm of which each rank has a share is
 * one, too, but for the sum over all ranks.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rows.h"
#include "kernels/num.h"
#include "kernels/quant.h"

/* cos and sin of a row, [count] each, times the table's factor. */
static void fill_rope(const struct ek_rope *r, uint32_t position, uint32_t length, float *cosine,
                      float *sine)
{
    const bool beyond = r->above > 0 && length > r->above;
    const double step = beyond ? -ek_rope_log_base(r, length) / r->count : 0;

    for (uint32_t k = 0; k < r->count; k++) {
        float freq = beyond ? (float)exp(step * k) : r->inv_freq[k], s, c;
        sincosf((float)position * freq, &s, &c);
        cosine[k] = c * r->factor;
        sine[k] = s * r->factor;
    }
}

void cpu_ropes(const struct cpu_member *m)
{
    const struct ek_device *d = m->d;
    const uint32_t *position = ek_step_positions(m->step);
    const struct ek_step_seq *q = ek_step_seqs(m->step);

    for (uint32_t i = 0; i < d->graph->rope_count; i++) {
        const struct ek_rope *r = &d->graph->ropes[i];
        float *cosine = cpu_arena(d, d->rope_at[i]);
        float *sine = cosine + (size_t)d->plan.ceiling.rows * r->count;
        for (uint32_t row = m->first, seq = 0; row < m->end; row++) {
            while (row >= q[seq].row + q[seq].rows)
                seq++;
            uint32_t length = position[row] + 1 > q[seq].prompt ? position[row] + 1 : q[seq].prompt;
            fill_rope(r, position[row], length, cosine + (size_t)row * r->count,
                      sine + (size_t)row * r->count);
        }
    }
}

/* Pairs of neighbours of a head. */
static void turn_neighbours(float *x, const float *c, const float *s, uint32_t half)
{
    for (uint32_t k = 0; k < half; k++) {
        const float a = x[2 * k], b = x[2 * k + 1];
        x[2 * k] = a * c[k] - b * s[k];
        x[2 * k + 1] = b * c[k] + a * s[k];
    }
}

static void warm_row(const struct cpu_member *m, const struct ek_op *op, uint32_t row)
{
    const struct ek_device *d = m->d;
    const float by = ek_warmth(op->u.rope.warm, op->u.rope.warm_from, op->u.rope.warm_every,
                               ek_step_positions(m->step)[row]);

    float *x = cpu_row(d, op->dst, row) + op->u.rope.first_col;

    d->ops->scale(x, x, op->u.rope.heads * op->u.rope.head_dim, by);
}

static void rope_row(const struct cpu_member *m, const struct ek_op *op, uint32_t row)
{
    const struct ek_device *d = m->d;
    const uint32_t half = op->u.rope.rotary_dim / 2;
    const float *c = (const float *)cpu_arena(d, d->rope_at[op->u.rope.table]) + (size_t)row * half;
    const float *s = c + (size_t)d->plan.ceiling.rows * half;
    float *x = cpu_row(d, op->dst, row) + op->u.rope.first_col;

    for (uint32_t h = 0; h < op->u.rope.heads && half > 0; h++, x += op->u.rope.head_dim) {
        if (op->u.rope.neighbours)
            turn_neighbours(x, c, s, half);
        else
            d->ops->rope(x, c, s, half);
    }
    if (op->u.rope.warm_every > 0)
        warm_row(m, op, row);
}

static void embed_row(const struct cpu_member *m, const struct ek_op *op, uint32_t row)
{
    const struct ek_device *d = m->d;
    const bool by_position = op->u.embed.by_position, whole = by_position || d->graph->ranks == 0;
    const struct cpu_weight *w = &d->weights[op->weight];
    const char *at = d->weight_memory.at + w->at;
    uint32_t token = (uint32_t)((const int32_t *)cpu_arena(d, d->shape.token_at))[row];
    float *dst = cpu_row(d, op->dst, row), scale = op->u.embed.scale;

    token = by_position ? ek_step_positions(m->step)[row] : token - d->graph->vocab_first;
    if (token >= w->rows && whole)
        token = 0;
    if (token >= w->rows) { /* of another rank */
        memset(dst, 0, w->cols * sizeof(*dst));
        return;
    }
    if (w->layout == CPU_PANELS) { /* tied to the logits: gathered from the packed panel */
        at += token / CPU_PANEL * w->panel_bytes;
        for (uint32_t k = 0; k < w->cols && ek_dtype_packed(w->dtype); k++)
            dst[k] = cpu_kept_value(d, w, at, k, token % CPU_PANEL) * scale;
        for (uint32_t k = 0; k < w->cols && !ek_dtype_packed(w->dtype); k++) {
            size_t index = cpu_panel_index(w->ops->pairs, w->dtype, k, token % CPU_PANEL);
            dst[k] = cpu_load(w->dtype, at, index) * scale;
        }
        return;
    }
    for (uint32_t k = 0; k < w->cols; k++)
        dst[k] = cpu_load(w->dtype, at, (size_t)token * w->cols + k) * scale;
}

/* dst = src less its mean. So many sums side by side are rounded less than one. */
static void centre(float *dst, const float *src, uint32_t n)
{
    enum { SUMS = 16 };
    float part[SUMS] = {0}, sum = 0.0f;

    for (uint32_t i = 0; i < n; i++)
        part[i % SUMS] += src[i];
    for (uint32_t i = 0; i < SUMS; i++)
        sum += part[i];
    const float mean = sum / (float)n;
    for (uint32_t i = 0; i < n; i++)
        dst[i] = src[i] - mean;
}

static void norm_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const uint32_t heads = op->u.norm.heads ? op->u.norm.heads : 1, n = op->u.norm.group;
    const float *w = cpu_vector(d, op->weight), *bias = cpu_vector(d, op->bias);

    for (uint32_t h = 0; h < heads; h++) {
        const size_t col = op->u.norm.first + (size_t)h * n;
        const size_t own = op->u.norm.own ? (size_t)h * n : 0;
        float *dst = cpu_row(d, op->dst, row) + col;
        const float *src = cpu_row(d, op->src, row) + col;
        if (op->u.norm.centred) {
            centre(dst, src, n);
            src = dst;
        }
        d->ops->norm(dst, src, w ? w + own : NULL, n, op->u.norm.eps, op->u.norm.offset);
        if (bias)
            d->ops->add(dst, bias + own, n, 1.0f);
    }
}

static void take_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const size_t group = op->u.take.group;
    const float *src = cpu_row(d, op->src, row) + op->u.take.first;
    float *dst = cpu_row(d, op->dst, row) + op->u.take.to;

    for (uint32_t h = 0; h < op->u.take.heads; h++)
        memcpy(dst + h * group, src + (size_t)h * op->u.take.step, group * sizeof(*dst));
}

static void gate_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const uint32_t n = d->values[op->dst].width, group = op->u.gate.group, step = op->u.gate.step;
    const float *src = cpu_row(d, op->src, row) + op->u.gate.first;
    float *dst = cpu_row(d, op->dst, row);

    if (step == 0 && group == 1) {
        float by = 1.0f;
        d->ops->gate(&by, src, 1, op->u.gate.act, &op->u.gate.numbers);
        d->ops->scale(dst, dst, n, by);
        return;
    }
    for (uint32_t h = 0; h < n / group; h++)
        d->ops->gate(dst + (size_t)h * group, src + (size_t)h * step, group, op->u.gate.act,
                     &op->u.gate.numbers);
}

static void scale_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const float *by = cpu_vector(d, op->weight);
    const uint32_t n = d->values[op->dst].width;
    const struct ek_weight *w = by ? &d->graph->weights[op->weight] : NULL;
    float *dst = cpu_row(d, op->dst, row);

    if (w && (uint64_t)w->rows * w->cols > 1) {
        d->ops->times(dst, by, n);
        by = NULL;
    }
    if (by || op->u.scale.scale != 1.0f)
        d->ops->scale(dst, dst, n, op->u.scale.scale * (by ? by[0] : 1.0f));
}

/* A sum in lanes: so many side by side are rounded less than one. */
static float sum_of(const float *x, uint32_t n, float less, bool squared)
{
    enum { LANES = 16 };
    float part[LANES] = {0}, sum = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        const float v = x[i] - less;
        part[i % LANES] += squared ? v * v : v;
    }
    for (uint32_t i = 0; i < LANES; i++)
        sum += part[i];
    return sum;
}

static void mix_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const size_t n = op->u.mix.group;
    const uint32_t inputs = op->u.mix.inputs;
    const float *src = cpu_row(d, op->src, row);
    const float *by = op->u.mix.fixed ? NULL : cpu_row(d, op->u.mix.by, row) + op->u.mix.first;
    float *dst = cpu_row(d, op->dst, row) + op->u.mix.to;

    for (uint32_t o = 0; o < op->u.mix.outputs; o++)
        for (uint32_t j = 0; j < inputs; j++)
            d->ops->add(dst + o * n, src + j * n, (uint32_t)n,
                        (by ? by[o * inputs + j] : 0.0f) + op->u.mix.plus);
}

static void match_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const uint32_t n = d->values[op->dst].width;
    float *dst = cpu_row(d, op->dst, row);
    const float target = sum_of(cpu_row(d, op->src, row), n, 0.0f, true) / (float)n;
    const float own = sum_of(dst, n, 0.0f, true) / (float)n;

    d->ops->scale(dst, dst, n,
                  sqrtf(target) / sqrtf(own > op->u.match.least ? own : op->u.match.least));
}

static void cut_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const uint32_t n = op->u.cut.group;
    float *x = cpu_row(d, op->dst, row);
    const float mean = sum_of(x, n, 0.0f, false) / (float)n;
    const float deviation = sqrtf(sum_of(x, n, mean, true) / (float)n);
    const float cut = mean + deviation * op->u.cut.times;

    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] > cut ? x[i] - cut : 0.0f;
}

void cpu_by_rows(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->d;

    for (uint32_t row = m->first; row < m->end; row++) {
        float *dst = cpu_row(d, op->dst, row);
        uint32_t n = d->values[op->dst].width;
        switch (op->kind) {
        case EK_OP_EMBED: embed_row(m, op, row); break;
        case EK_OP_NORM: norm_row(d, op, row); break;
        case EK_OP_ROPE: rope_row(m, op, row); break;
        case EK_OP_GLU: {
            const float *src = cpu_row(d, op->src, row);
            d->ops->glu(dst, src, src + n, n, op->u.glu.act);
            break;
        }
        case EK_OP_ADD: d->ops->add(dst, cpu_row(d, op->src, row), n, op->u.add.scale); break;
        case EK_OP_SCALE: scale_row(d, op, row); break;
        case EK_OP_SOFTCAP: d->ops->softcap(dst, n, op->u.softcap.cap); break;
        case EK_OP_TAKE: take_row(d, op, row); break;
        case EK_OP_GATE: gate_row(d, op, row); break;
        case EK_OP_MIX: mix_row(d, op, row); break;
        case EK_OP_MATCH: match_row(d, op, row); break;
        case EK_OP_CUT: cut_row(d, op, row); break;
        case EK_OP_LINEAR:
        case EK_OP_HEADS:
        case EK_OP_ATTENTION:
        case EK_OP_EXPERTS:
        case EK_OP_CONV:
        case EK_OP_DELTA:
        case EK_OP_SCAN:
        case EK_OP_PICK:
        case EK_OP_LOGITS:
        case EK_OP_REDUCE:
        case EK_OP_GATHER:
        case EK_OP_SEND:
        case EK_OP_RECV: break; /* not of this kind */
        }
    }
}

void cpu_pick(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->d;
    const uint32_t *from = cpu_arena(d, d->shape.pick_at);

    for (uint32_t row = m->first; row < m->end; row++)
        memcpy(cpu_row(d, op->dst, row), cpu_row(d, op->src, from[row]),
               d->values[op->dst].width * sizeof(float));
}

void cpu_cap_logits(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->d;

    for (uint32_t row = m->first; row < m->end; row++)
        d->ops->softcap(cpu_logits(d, row) + d->graph->vocab_first, ek_graph_vocab_rows(d->graph),
                        op->u.softcap.cap);
}

/* A norm of which this rank has a share: the squares of all ranks are added first. */
void cpu_norm_of_all(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->d;
    const uint32_t n = op->u.norm.group, first = op->u.norm.first;
    float *squares = cpu_arena(d, d->shape.square_at);
    const float *w = cpu_vector(d, op->weight);
    const struct ek_exchange x = {.data = squares,
                                  .dtype = EK_F32,
                                  .rows = 1,
                                  .width = m->rows,
                                  .stride = m->rows,
                                  .member = m->index};

    for (uint32_t row = m->first; row < m->end; row++) {
        const float *src = cpu_row(d, op->src, row) + first;
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++)
            sum += src[i] * src[i];
        squares[row] = sum;
    }
    (void)d->peers->ops->reduce(d->peers, &x);
    for (uint32_t row = m->first; row < m->end; row++) {
        const float *src = cpu_row(d, op->src, row) + first;
        float *dst = cpu_row(d, op->dst, row) + first;
        float by = 1.0f / sqrtf(squares[row] / (float)op->u.norm.whole + op->u.norm.eps);
        for (uint32_t i = 0; i < n; i++)
            dst[i] = src[i] * by * (w ? w[i] + op->u.norm.offset : 1.0f);
    }
}

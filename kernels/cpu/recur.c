/*
 * Operations that go from token to token of a sequence, with a state that a slot keeps between
 * steps (cpu_state()): convolutions, the gated delta rule and the scan of Mamba 2. Rows of a
 * sequence are computed one after another by one member, for some of its channels, or of the
 * columns of its heads; so it shows nowhere in the bits how rows were divided into steps, or
 * columns among members.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/recur.h"
#include "kernels/cpu/rows.h"

/* Runs of units, `each` for every sequence: the next one of this member, within one sequence. */
struct recur_share {
    uint64_t unit, end;
    uint32_t each, seq, first, count;
};

static struct recur_share share_of(const struct cpu_member *m, uint32_t each)
{
    const uint64_t units = (uint64_t)m->step->seqs * each, threads = m->d->threads;

    return (struct recur_share){
        .unit = units * m->index / threads, .end = units * (m->index + 1) / threads, .each = each};
}

static bool share_next(struct recur_share *s)
{
    if (s->unit >= s->end)
        return false;
    s->seq = (uint32_t)(s->unit / s->each);
    s->first = (uint32_t)(s->unit % s->each);
    s->count = s->each - s->first;
    s->count = s->end - s->unit < s->count ? (uint32_t)(s->end - s->unit) : s->count;
    s->unit += s->count;
    return true;
}

/* ---- convolutions ---- */

/* Channels [first, first + n) of a sequence's rows. */
static void conv_rows(const struct ek_device *d, const struct ek_op *op,
                      const struct ek_step_seq *q, uint32_t first, uint32_t n)
{
    const uint32_t width = d->values[op->dst].width, kept = op->u.conv.kernel - 1;
    const float *bias = cpu_vector(d, op->bias);
    float *state = cpu_state(d, q->slot) + op->u.conv.state_at + first;
    struct cpu_conv c = {.w = cpu_vector(d, op->weight) + first,
                         .bias = bias ? bias + first : NULL,
                         .w_stride = width,
                         .kernel = op->u.conv.kernel,
                         .n = n,
                         .silu = op->u.conv.silu};

    for (uint32_t r = 0; r < q->rows; r++) {
        for (uint32_t j = 0; j <= kept; j++)
            c.x[j] = r + j < kept
                         ? state + (size_t)(r + j) * width
                         : cpu_row(d, op->src, q->row + r + j - kept) + op->u.conv.first + first;
        c.dst = cpu_row(d, op->dst, q->row + r) + first;
        d->ops->conv(&c);
    }
    for (uint32_t j = 0; j < kept;
         j++) { /* input q->rows + j of those kept and those of the rows */
        const uint32_t at = q->rows + j;
        const float *from =
            at < kept ? state + (size_t)at * width
                      : cpu_row(d, op->src, q->row + at - kept) + op->u.conv.first + first;
        memcpy(state + (size_t)j * width, from, n * sizeof(*state));
    }
}

void cpu_conv(const struct cpu_member *m, const struct ek_op *op)
{
    const uint32_t width = m->d->values[op->dst].width;
    struct recur_share s = share_of(m, (width + EK_STATE_COLS - 1) / EK_STATE_COLS);

    while (share_next(&s)) {
        const uint32_t first = s.first * EK_STATE_COLS, end = first + s.count * EK_STATE_COLS;
        conv_rows(m->d, op, &ek_step_seqs(m->step)[s.seq], first,
                  (end < width ? end : width) - first);
    }
}

/* ---- the delta rule ---- */

/* Divides a row's heads of q and k by their length, and makes of its gates [b | a] what they mean:
 * how much of v is taken over, and what is left of the state. */
static void delta_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const struct ek_delta *t = &op->u.delta;
    const float n = (float)t->k_dim, *a_log = cpu_vector(d, op->weight);
    const float *dt = cpu_vector(d, op->bias);
    float *x = cpu_row(d, op->src, row), *gate = cpu_row(d, t->gates, row);

    for (uint32_t h = 0; h < 2 * t->k_heads; h++, x += t->k_dim) {
        d->ops->norm(x, x, NULL, t->k_dim, EK_DELTA_EPS / n, 0.0f); /* to a length of sqrt(n) */
        d->ops->scale(x, x, t->k_dim, h < t->k_heads ? 1.0f / n : 1.0f / sqrtf(n));
    }
    for (uint32_t h = 0; h < t->v_heads; h++) {
        const float a = gate[t->v_heads + h] + dt[h];
        const float soft = a > 20.0f ? a : log1pf(expf(a));
        gate[h] = (t->twice ? 2.0f : 1.0f) / (1.0f + expf(-gate[h]));
        gate[t->v_heads + h] = expf(-expf(a_log[h]) * soft);
    }
}

/* Run `run` of the columns of a head. */
static void delta_unit(const struct ek_device *d, const struct ek_op *op,
                       const struct ek_step_seq *q, uint32_t head, uint32_t run)
{
    const struct ek_delta *t = &op->u.delta;
    const uint32_t runs = (t->v_dim + EK_STATE_COLS - 1) / EK_STATE_COLS;
    const uint32_t col = run * EK_STATE_COLS, left = t->v_dim - col;
    const size_t keys = (size_t)t->k_heads * t->k_dim;
    const float *src = cpu_row(d, op->src, q->row), *gate = cpu_row(d, t->gates, q->row);
    const float *query = src + (size_t)(head / (t->v_heads / t->k_heads)) * t->k_dim;
    const size_t floats = (size_t)t->k_dim * EK_STATE_COLS;
    const struct cpu_delta delta = {
        .state = cpu_state(d, q->slot) + t->state_at + ((size_t)head * runs + run) * floats,
        .out = cpu_row(d, op->dst, q->row) + (size_t)head * t->v_dim + col,
        .q = query,
        .k = query + keys,
        .v = src + 2 * keys + (size_t)head * t->v_dim + col,
        .decay = gate + t->v_heads + head,
        .beta = gate + head,
        .stride = d->values[op->src].stride,
        .out_stride = d->values[op->dst].stride,
        .gate_stride = d->values[t->gates].stride,
        .rows = q->rows,
        .k_dim = t->k_dim,
        .cols = left < EK_STATE_COLS ? left : EK_STATE_COLS,
    };

    d->ops->delta(&delta);
}

void cpu_delta(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_delta *t = &op->u.delta;
    const uint32_t runs = (t->v_dim + EK_STATE_COLS - 1) / EK_STATE_COLS;
    struct recur_share s = share_of(m, t->v_heads * runs);

    for (uint32_t row = m->first; row < m->end; row++)
        delta_row(m->d, op, row);
    cpu_pool_barrier(m->d->pool);
    while (share_next(&s))
        for (uint32_t unit = s.first; unit < s.first + s.count; unit++)
            delta_unit(m->d, op, &ek_step_seqs(m->step)[s.seq], unit / runs, unit % runs);
}

/* ---- the scan ---- */

/* Run `run` of the columns of a head. */
static void scan_unit(const struct ek_device *d, const struct ek_op *op,
                      const struct ek_step_seq *q, uint32_t head, uint32_t run)
{
    const struct ek_scan *t = &op->u.scan;
    const uint32_t runs = (t->head_dim + EK_STATE_COLS - 1) / EK_STATE_COLS;
    const uint32_t col = run * EK_STATE_COLS, left = t->head_dim - col;
    const uint32_t cols = left < EK_STATE_COLS ? left : EK_STATE_COLS;
    const size_t floats = (size_t)t->state_dim * EK_STATE_COLS, at = (size_t)head * t->head_dim;
    const float falls = -expf(cpu_vector(d, op->weight)[head]);
    const float bias = cpu_vector(d, op->bias)[head], skip = cpu_vector(d, t->skip)[head];
    float by[EK_STATE_COLS] = {0}, out[EK_STATE_COLS];
    struct cpu_scan s = {.by = by, .out = out, .rows = t->state_dim};

    s.state = cpu_state(d, q->slot) + t->state_at + ((size_t)head * runs + run) * floats;
    for (uint32_t row = q->row; row < q->row + q->rows; row++) {
        const float *src = cpu_row(d, op->src, row), *x = src + at + col;
        const float a = cpu_row(d, t->steps, row)[t->step_first + head] + bias;
        float step = a > 20.0f ? a : log1pf(expf(a));
        step = step < t->least ? t->least : step > t->most ? t->most : step;
        s.decay = expf(falls * step);
        s.b = src + (size_t)t->heads * t->head_dim +
              (size_t)(head / (t->heads / t->groups)) * t->state_dim;
        s.c = s.b + (size_t)t->groups * t->state_dim;
        for (uint32_t i = 0; i < cols; i++)
            by[i] = step * x[i];
        d->ops->scan(&s);
        float *dst = cpu_row(d, op->dst, row) + at + col;
        for (uint32_t i = 0; i < cols; i++)
            dst[i] = out[i] + skip * x[i];
    }
}

void cpu_scan(const struct cpu_member *m, const struct ek_op *op)
{
    const struct ek_scan *t = &op->u.scan;
    const uint32_t runs = (t->head_dim + EK_STATE_COLS - 1) / EK_STATE_COLS;
    struct recur_share s = share_of(m, t->heads * runs);

    while (share_next(&s))
        for (uint32_t unit = s.first; unit < s.first + s.count; unit++)
            scan_unit(m->d, op, &ek_step_seqs(m->step)[s.seq], unit / runs, unit % runs);
}

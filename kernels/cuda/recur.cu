/*
 * Operations that go from token to token of a sequence, with a state that its slot keeps between
 * steps: convolutions, the gated delta rule and the scan of Mamba 2 (kernels/graph.h has them).
 *
 * Rows of a sequence are taken one after another whether they came in one step or in many, so it
 * shows nowhere in the bits how a prompt was divided. A block has one run of EK_STATE_COLS columns
 * of a head, a lane each; its warps share the rows of the state and keep them in registers, so the
 * state is read and written once a step: decode is bound by that bandwidth, a prompt by the way
 * from token to token (one barrier each). What a row says of a head is found before, by row.
 *
 * A sequence whose first row is in the step begins from zero, whatever its slot holds.
 */
#include "kernels/cuda/args_recur.h"
#include "kernels/cuda/dev.cuh"

DEV float *state_of(const struct cu_step *s, const struct ek_step_seq *q, const cu_state &st)
{
    return at<float>(s->states, q->slot * st.bytes) + st.at;
}

DEV bool begins(const struct ek_step_seq *q)
{
    return q->context == q->rows;
}

DEV float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* ---- convolutions ---- */

/* The input of a channel `back` tokens before row `row` of the step, 0 before the sequence. */
DEV float input_before(const struct cu_conv_args &a, const struct ek_step_seq *q,
                       const float *state, uint32_t row, uint32_t back, uint32_t channel)
{
    const uint32_t in = row - q->row; /* of the sequence's rows here */

    if (back <= in)
        return load(&a.src, (uint64_t)(row - back) * a.src.stride + a.first + channel);
    return begins(q) ? 0.0f : state[(uint64_t)(a.kernel - 1 - (back - in)) * a.width + channel];
}

/* What a sequence of one row leaves: no other block reads its state. */
DEV void keep_one(const struct cu_conv_args &a, float *state, const float *x, uint32_t channel)
{
#pragma unroll
    for (uint32_t j = 0; j < EK_MOST_CONV; j++) {
        const uint32_t back = EK_MOST_CONV - 1 - j; /* x is aligned to its end */
        if (back + 1 < a.kernel)
            state[(uint64_t)(a.kernel - 2 - back) * a.width + channel] = x[j];
    }
}

/* A block: some rows, a channel for each thread, whose last inputs it keeps. */
EK_KERNEL(ek_conv, struct cu_conv_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t from = blockIdx.x * CU_CONV_ROWS;
    const uint32_t channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (from >= s->rows || channel >= a.width)
        return;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + seq_of_row(s, from);
    float *state = state_of(s, q, a.state);
    const uint32_t to = min(from + CU_CONV_ROWS, s->rows);
    const float bias = a.bias ? at<const float>(a.bias)[channel] : 0.0f;
    float w[EK_MOST_CONV], x[EK_MOST_CONV];
    bool known = false; /* x: the inputs before the row */

#pragma unroll
    for (uint32_t j = 0; j < EK_MOST_CONV; j++) {
        const uint32_t back = EK_MOST_CONV - 1 - j;
        x[j] = w[j] = 0.0f;
        if (back < a.kernel)
            w[j] = at<const float>(a.weight)[(uint64_t)(a.kernel - 1 - back) * a.width + channel];
    }
    for (uint32_t row = from; row < to; row++) {
        if (row == q->row + q->rows) {
            q++;
            state = state_of(s, q, a.state);
            known = false;
        }
        float sum = bias;
#pragma unroll
        for (uint32_t j = 0; j < EK_MOST_CONV; j++) {
            const uint32_t back = EK_MOST_CONV - 1 - j, after = j + 1 < EK_MOST_CONV ? j + 1 : j;
            if (back < a.kernel) {
                x[j] = known && back > 0 ? x[after] : input_before(a, q, state, row, back, channel);
                sum += w[j] * x[j];
            }
        }
        known = true;
        store(&a.dst, (uint64_t)row * a.dst.stride + channel,
              a.silu ? sum / (1.0f + expf(-sum)) : sum);
        if (q->rows == 1)
            keep_one(a, state, x, channel);
    }
}

/* What longer sequences leave, once all of their rows are done: a block has one, and a channel for
 * each thread. */
EK_KERNEL(ek_conv_keep, struct cu_conv_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t channel = blockIdx.y * blockDim.x + threadIdx.x, kept = a.kernel - 1;
    if (blockIdx.x >= s->seqs || channel >= a.width)
        return;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    if (q->rows == 1)
        return;
    float *state = state_of(s, q, a.state);
    for (uint32_t j = 0; j < kept; j++) /* from places that were not written yet */
        state[(uint64_t)j * a.width + channel] =
            input_before(a, q, state, q->row + q->rows - 1, kept - 1 - j, channel);
}

/* ---- a head's state in registers ---- */

/* What a block of 32 columns shares: for two tokens, so that one barrier each is enough. */
struct shared_row {
    float key[CU_STATE_MOST], query[CU_STATE_MOST];
    float sum[2][CU_STATE_MOST / CU_STATE_ROWS][EK_STATE_COLS];
};

struct head_unit {
    float *state; /* of the block's columns: [rows][EK_STATE_COLS] */
    uint32_t rows, first, lane, warp, warps;
};

DEV struct head_unit unit_of(const struct cu_step *s, const struct ek_step_seq *q,
                             const cu_state &st, uint32_t rows)
{
    struct head_unit u;

    u.rows = rows;
    u.lane = threadIdx.x % 32;
    u.warp = threadIdx.x / 32;
    u.warps = blockDim.x / 32;
    u.first = u.warp * CU_STATE_ROWS;
    u.state = state_of(s, q, st) + (uint64_t)blockIdx.y * rows * EK_STATE_COLS;
    return u;
}

DEV void state_load(const struct head_unit &u, bool zero, float *kept)
{
#pragma unroll
    for (uint32_t i = 0; i < CU_STATE_ROWS; i++)
        kept[i] = !zero && u.first + i < u.rows
                      ? u.state[(uint64_t)(u.first + i) * EK_STATE_COLS + u.lane]
                      : 0.0f;
}

DEV void state_store(const struct head_unit &u, const float *kept)
{
#pragma unroll
    for (uint32_t i = 0; i < CU_STATE_ROWS; i++)
        if (u.first + i < u.rows)
            u.state[(uint64_t)(u.first + i) * EK_STATE_COLS + u.lane] = kept[i];
}

/* Products of the warp's rows of the state with its part of a vector, for each lane's column. */
DEV float state_times(const float *kept, const float *by)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t i = 0; i < CU_STATE_ROWS; i += 4) {
        const float4 v = *(const float4 *)(by + i);
        sum.x += kept[i] * v.x, sum.y += kept[i + 1] * v.y;
        sum.z += kept[i + 2] * v.z, sum.w += kept[i + 3] * v.w;
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

/* kept = kept * left + by * value */
DEV void state_move(float *kept, float left, const float *by, float value)
{
#pragma unroll
    for (uint32_t i = 0; i < CU_STATE_ROWS; i += 4) {
        const float4 v = *(const float4 *)(by + i);
        kept[i] = kept[i] * left + v.x * value, kept[i + 1] = kept[i + 1] * left + v.y * value;
        kept[i + 2] = kept[i + 2] * left + v.z * value;
        kept[i + 3] = kept[i + 3] * left + v.w * value;
    }
}

/* Of all warps, for the lane's column. */
DEV float column_sum(const float (*sum)[EK_STATE_COLS], const struct head_unit &u)
{
    float all = 0.0f;

    for (uint32_t i = 0; i < u.warps; i++)
        all += sum[i][u.lane];
    return all;
}

/* ---- the delta rule ---- */

/* A block: one row. A warp for each head of k, a thread for each of v. */
EK_KERNEL(ek_delta_said, struct cu_delta_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, keys = a.k_heads * a.k_dim;
    if (row >= s->rows)
        return;
    const uint64_t src = (uint64_t)row * a.src.stride, gates = (uint64_t)row * a.gates.stride;
    float *said = at<float>(a.said) + (uint64_t)row * a.stride, *of_v = said + 3 * a.k_heads;

    for (uint32_t h = threadIdx.x / 32; h < a.k_heads; h += blockDim.x / 32) {
        float qq = 0.0f, kk = 0.0f, qk = 0.0f;
        for (uint32_t i = lane; i < a.k_dim; i += 32) {
            const float q = load(&a.src, src + h * a.k_dim + i);
            const float k = load(&a.src, src + keys + h * a.k_dim + i);
            qq += q * q;
            kk += k * k;
            qk += q * k;
        }
        const float q_by = rsqrtf(warp_sum(qq) + EK_DELTA_EPS) * rsqrtf((float)a.k_dim);
        const float k_by = rsqrtf(warp_sum(kk) + EK_DELTA_EPS);
        qk = warp_sum(qk) * q_by * k_by;
        if (lane == 0)
            said[3 * h] = q_by, said[3 * h + 1] = k_by, said[3 * h + 2] = qk;
    }
    for (uint32_t h = threadIdx.x; h < a.v_heads; h += blockDim.x) {
        const float b = load(&a.gates, gates + h);
        const float soft =
            softplus(load(&a.gates, gates + a.v_heads + h) + at<const float>(a.bias)[h]);
        of_v[2 * h] = (a.twice ? 2.0f : 1.0f) / (1.0f + expf(-b));
        of_v[2 * h + 1] = expf(-expf(at<const float>(a.weight)[h]) * soft);
    }
}

/* What a thread takes of a token: its row of q and k, its column of v, and what was said. */
struct delta_token {
    float q, k, v, qk, over, left;
};

struct delta_unit {
    struct head_unit u;
    uint32_t head, k_head, col;
};

DEV struct delta_token delta_read(const struct cu_delta_args &a, const struct ek_step_seq *q,
                                  const struct delta_unit &d, uint32_t t)
{
    const uint64_t row = q->row + min(t, q->rows - 1), src = row * a.src.stride;
    const uint32_t q_at = d.k_head * a.k_dim + threadIdx.x, k_at = a.k_heads * a.k_dim + q_at;
    const uint32_t v_at = 2 * a.k_heads * a.k_dim + d.head * a.v_dim + d.col;
    const float *said = at<const float>(a.said) + row * a.stride;
    const float *of_k = said + 3 * d.k_head, *of_v = said + 3 * a.k_heads + 2 * d.head;
    struct delta_token x = {0.0f, 0.0f, 0.0f, of_k[2], of_v[0], of_v[1]};

    if (threadIdx.x < a.k_dim) {
        x.q = load(&a.src, src + q_at) * of_k[0];
        x.k = load(&a.src, src + k_at) * of_k[1];
    }
    if (d.col < a.v_dim)
        x.v = load(&a.src, src + v_at);
    return x;
}

/* A block: one sequence and a run of columns of one head of v. Of what S^T q' will be, what it is
 * without this token's v is summed with S^T k', so that a token takes one barrier. */
EK_KERNEL(ek_delta, struct cu_delta_args, 256)
{
    __shared__ __align__(16) struct shared_row shared[2];
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->seqs)
        return;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    const uint32_t runs = (a.v_dim + EK_STATE_COLS - 1) / EK_STATE_COLS, head = blockIdx.y / runs;
    const struct head_unit u = unit_of(s, q, a.state, a.k_dim);
    const struct delta_unit d = {u, head, head / (a.v_heads / a.k_heads),
                                 blockIdx.y % runs * EK_STATE_COLS + u.lane};
    struct delta_token x = delta_read(a, q, d, 0), next = delta_read(a, q, d, 1);
    float kept[CU_STATE_ROWS];

    state_load(u, begins(q), kept);
    for (uint32_t t = 0; t < q->rows; t++) {
        const struct delta_token later = delta_read(a, q, d, t + 2);
        struct shared_row &r = shared[t % 2];
        r.query[threadIdx.x] = x.q;
        r.key[threadIdx.x] = x.k;
        __syncwarp(); /* a warp reads what it wrote */
        r.sum[0][u.warp][u.lane] = state_times(kept, r.key + u.first);
        r.sum[1][u.warp][u.lane] = state_times(kept, r.query + u.first);
        __syncthreads();
        const float more = (x.v - column_sum(r.sum[0], u) * x.left) * x.over;
        state_move(kept, x.left, r.key + u.first, more);
        if (u.warp == 0 && d.col < a.v_dim)
            store(&a.dst, (uint64_t)(q->row + t) * a.dst.stride + head * a.v_dim + d.col,
                  column_sum(r.sum[1], u) * x.left + x.qk * more);
        x = next;
        next = later;
    }
    state_store(u, kept);
}

/* ---- the scan ---- */

/* A block: one row, a thread for each head. */
EK_KERNEL(ek_scan_said, struct cu_scan_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x;
    if (row >= s->rows)
        return;
    const uint64_t steps = (uint64_t)row * a.steps.stride + a.step_first;
    float *said = at<float>(a.said) + (uint64_t)row * a.stride;

    for (uint32_t h = threadIdx.x; h < a.heads; h += blockDim.x) {
        const float step = bound(softplus(load(&a.steps, steps + h) + at<const float>(a.bias)[h]),
                                 a.least, a.most);
        said[2 * h] = step;
        said[2 * h + 1] = expf(-expf(at<const float>(a.weight)[h]) * step);
    }
}

struct scan_token {
    float x, b, c, step, left;
};

DEV struct scan_token scan_read(const struct cu_scan_args &a, const struct ek_step_seq *q,
                                uint32_t head, uint32_t col, uint32_t t)
{
    const uint64_t row = q->row + min(t, q->rows - 1), src = row * a.src.stride;
    const uint32_t b_at = a.heads * a.head_dim + head / (a.heads / a.groups) * a.state_dim;
    const float *said = at<const float>(a.said) + row * a.stride + 2 * head;
    struct scan_token x = {0.0f, 0.0f, 0.0f, said[0], said[1]};

    if (threadIdx.x < a.state_dim) {
        x.b = load(&a.src, src + b_at + threadIdx.x);
        x.c = load(&a.src, src + b_at + a.groups * a.state_dim + threadIdx.x);
    }
    if (col < a.head_dim)
        x.x = load(&a.src, src + head * a.head_dim + col);
    return x;
}

/* A block: one sequence and a run of columns of one head. */
EK_KERNEL(ek_scan, struct cu_scan_args, 256)
{
    __shared__ __align__(16) struct shared_row shared[2];
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->seqs)
        return;
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + blockIdx.x;
    const uint32_t runs = (a.head_dim + EK_STATE_COLS - 1) / EK_STATE_COLS;
    const struct head_unit u = unit_of(s, q, a.state, a.state_dim);
    const uint32_t head = blockIdx.y / runs, col = blockIdx.y % runs * EK_STATE_COLS + u.lane;
    const float skip = at<const float>(a.skip)[head];
    struct scan_token x = scan_read(a, q, head, col, 0), next = scan_read(a, q, head, col, 1);
    float kept[CU_STATE_ROWS];

    state_load(u, begins(q), kept);
    for (uint32_t t = 0; t < q->rows; t++) {
        const struct scan_token later = scan_read(a, q, head, col, t + 2);
        struct shared_row &r = shared[t % 2];
        r.key[threadIdx.x] = x.b;
        r.query[threadIdx.x] = x.c;
        __syncwarp();
        state_move(kept, x.left, r.key + u.first, x.step * x.x);
        r.sum[0][u.warp][u.lane] = state_times(kept, r.query + u.first);
        __syncthreads();
        if (u.warp == 0 && col < a.head_dim)
            store(&a.dst, (uint64_t)(q->row + t) * a.dst.stride + head * a.head_dim + col,
                  column_sum(r.sum[0], u) + skip * x.x);
        x = next;
        next = later;
    }
    state_store(u, kept);
}

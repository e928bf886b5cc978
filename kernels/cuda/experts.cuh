/*
 * What the products of experts share: some rows of a weight by some of the pairs that chose its
 * expert. In which order a pair's products are added depends on neither how many pairs are
 * multiplied together nor the others.
 */
#pragma once

#include "kernels/cuda/gemv.cuh"

DEV uint32_t rows_here(const struct cu_experts_args *a)
{
    const struct cu_step *s = step_of(a->step);
    uint32_t rows = a->picked ? s->logit_rows : s->rows;
    return rows > a->first ? min(rows - a->first, a->chunk) : 0;
}

/* 16 rows of w from n0 by 8 * NT rows of x (addresses, 0 = none): the elements of this thread, each
 * 16 rows of x further, whose first row of x is thread / 16 and whose row of w is n0 + thread % 16.
 */
template <int NT>
DEV void products_f32(const struct gemv_weight &w, uint32_t n0, const cu_addr *rows,
                      float (&sum)[NT / 2])
{
    const uint32_t col = n0 + threadIdx.x % 16, stride = (w.k + 31) / 32 * 32;

    for (int e = 0; e < NT / 2; e++) {
        const float *x = at<const float>(rows[e * 16 + threadIdx.x / 16]);
        sum[e] = 0.0f;
        for (uint32_t i = 0; x && col < w.n && i < w.k; i++)
            sum[e] += x[i] * (w.packing.form == CU_PLAIN
                                  ? at<const float>(w.at)[(uint64_t)col * stride + i]
                                  : packed_value(w.at, w.packing, col, w.k, i));
    }
}

template <class T, class W, int NT>
DEV void products(const struct gemv_weight &w, uint32_t n0, const cu_addr *rows,
                  float (*part)[16 * 8 * NT], float (&sum)[NT / 2])
{
    if constexpr (sizeof(T) == sizeof(float)) {
        products_f32<NT>(w, n0, rows, sum);
    } else {
        const uint32_t g = threadIdx.x % 32 / 4;
        const uint16_t *x[NT];
        for (int j = 0; j < NT; j++)
            x[j] = at<const uint16_t>(rows[8 * j + g]);
        __syncthreads(); /* the products before were read */
        gemv_sums<T, W, NT>(w, n0, x, part);
        for (int e = 0; e < NT / 2; e++) {
            sum[e] = 0.0f;
            for (int i = 0; i < GEMV_WARPS; i++)
                sum[e] += part[i][e * 256 + threadIdx.x];
        }
    }
}

DEV void put(float *to, float f)
{
    *to = f;
}
DEV void put(bf16 *to, float f)
{
    from_float(to, f);
}
DEV void put(f16 *to, float f)
{
    from_float(to, f);
}

/* Of an expert; 0 where there is none. */
DEV float bias_of(cu_addr biases, uint32_t expert, uint32_t width, uint32_t col)
{
    return biases ? at<const float>(biases)[(uint64_t)expert * width + col] : 0.0f;
}

/* Blocks: 16 columns of inner; an expert, of whose pairs 8 * NT are multiplied together. */
template <class T, class W, int NT> DEV void gate_and_up(const struct cu_experts_args &a)
{
    __shared__ float part[GEMV_WARPS][16 * 8 * NT];
    __shared__ cu_addr rows[8 * NT];
    const uint32_t e = blockIdx.y, n0 = blockIdx.x * 16, col = n0 + threadIdx.x % 16;
    const uint32_t *from = at<const uint32_t>(a.from), *order = at<const uint32_t>(a.order);
    const uint32_t end = from[e + 1], elem = sizeof(T);
    struct gemv_weight w = {0, a.inner_width, a.k, a.gate_packing};

    for (uint32_t first = from[e]; first < end; first += 8 * NT) {
        float gate[NT / 2], up[NT / 2];
        __syncthreads();
        if (threadIdx.x < 8 * NT) {
            const uint32_t p = first + threadIdx.x;
            const uint64_t row = p < end ? a.first + order[p] / a.top : 0;
            rows[threadIdx.x] = p < end ? a.src.at + row * a.src.stride * elem : 0;
        }
        __syncthreads();
        w.at = a.gate + e * a.gate_step;
        products<T, W, NT>(w, n0, rows, part, gate);
        w.at = a.up + e * a.gate_step;
        products<T, W, NT>(w, n0, rows, part, up);
        for (int i = 0; i < NT / 2; i++) {
            const uint32_t p = first + i * 16 + threadIdx.x / 16;
            if (p >= end || col >= a.inner_width)
                continue;
            if (a.share_in) {
                const float share = at<const struct cu_route>(a.route)[order[p]].share;
                gate[i] *= share;
                up[i] *= share;
            }
            put(at<T>(a.inner) + (uint64_t)p * a.inner_stride + col,
                gated(gate[i] + bias_of(a.gate_bias, e, a.inner_width, col),
                      up[i] + bias_of(a.up_bias, e, a.inner_width, col), a.act));
        }
    }
}

/* Blocks: 16 columns of the result; an expert. */
template <class T, class W, int NT> DEV void down(const struct cu_experts_args &a)
{
    __shared__ float part[GEMV_WARPS][16 * 8 * NT];
    __shared__ cu_addr rows[8 * NT];
    const uint32_t e = blockIdx.y, n0 = blockIdx.x * 16, col = n0 + threadIdx.x % 16;
    const uint32_t *from = at<const uint32_t>(a.from), *order = at<const uint32_t>(a.order);
    const uint32_t end = from[e + 1], elem = sizeof(T);
    const struct gemv_weight w = {a.down + e * a.down_step, a.n, a.inner_width, a.down_packing};

    for (uint32_t first = from[e]; first < end; first += 8 * NT) {
        float sum[NT / 2];
        __syncthreads();
        if (threadIdx.x < 8 * NT) {
            const uint64_t p = first + threadIdx.x;
            rows[threadIdx.x] = p < end ? a.inner + p * a.inner_stride * elem : 0;
        }
        __syncthreads();
        products<T, W, NT>(w, n0, rows, part, sum);
        for (int i = 0; i < NT / 2; i++) {
            const uint32_t p = first + i * 16 + threadIdx.x / 16;
            if (p < end && col < a.n)
                at<float>(a.out)[(uint64_t)order[p] * a.out_stride + col] =
                    sum[i] + bias_of(a.down_bias, e, a.n, col);
        }
    }
}

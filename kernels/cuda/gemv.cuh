/*
 * Products of a few rows, bound by reading w once: 16 rows of w by up to 8 * NT rows of x. The warps
 * of a block take turns along k. What a lane multiplies of w, packed or not, it copies to shared
 * memory of its own, some turns ahead: that keeps more loads under way than registers have room
 * for, all the time, and nobody waits for another. In which order a row's products are added
 * depends on neither NT nor the other rows.
 */
#pragma once

#include "kernels/cuda/packed.cuh"

#define GEMV_WARPS CU_GEMV_WARPS

/* Of one turn: two rows of w, 16 bytes of each for each lane. */
struct gemv_slot {
    uint4 w[2][GEMV_WARPS * 32];
};

/* One weight, or that of one expert. */
struct gemv_weight {
    cu_addr at;
    uint32_t n, k;
    struct cu_packing packing;
};

/* Scale and base of a lane's two rows of w, for the group at hand. */
struct gemv_group {
    float scale[2];
    uint32_t base[2];
};

template <class T, class W>
DEV struct gemv_group group_of(const struct gemv_weight &w, const uint32_t row[2], uint32_t slice)
{
    const uint32_t last = w.packing.groups - 1, shift = w.packing.group_shift;
    const uint32_t index = min(slice >> (shift - 5), last);
    struct gemv_group g;

    for (int i = 0; i < 2; i++) {
        g.scale[i] = scale_of(w.at, w.packing, row[i], index);
        g.base[i] = base_of(T{}, W{}, zero_of(w.at, w.packing, row[i], index));
    }
    return g;
}

/* What was added since the last time, times its group's scale. */
template <int NT> DEV void gemv_fold(float sum[NT][4], float c[NT][4], const struct gemv_group &g)
{
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[j][i] += c[j][i] * g.scale[i / 2];
            c[j][i] = 0.0f;
        }
}

/* What a lane has of x beside a chunk of w; zeros where there is no row. */
template <class W, int NT>
DEV void gemv_fetch(uint4 (&b)[W::SLICES][NT], const uint16_t *const x[NT], uint32_t chunk)
{
#pragma unroll
    for (int s = 0; s < W::SLICES; s++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            b[s][j] = x[j] ? ((const uint4 *)x[j])[(chunk * W::SLICES + s) * 4 + threadIdx.x % 4]
                           : make_uint4(0, 0, 0, 0);
}

/* Begins to copy what the lane multiplies in a turn, if there is such a turn. */
DEV void gemv_ask(struct gemv_slot *slots, const uint4 *const w[2], uint32_t turn, uint32_t turns)
{
    const uint32_t chunk = (threadIdx.x / 32 + turn * GEMV_WARPS) * 4;
    struct gemv_slot *slot = &slots[turn % CU_GEMV_STAGES];

    if (turn < turns)
        for (int i = 0; i < 2; i++)
            async_16(&slot->w[i][threadIdx.x], w[i] + chunk, true);
    async_commit();
}

/* A slice of 32 columns, of w and of x. */
template <class T, int NT>
DEV void gemv_slice(float c[NT][4], const uint32_t p[4], const uint32_t q[4], const uint4 (&b)[NT])
{
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t f[4] = {p[2 * h], q[2 * h], p[2 * h + 1], q[2 * h + 1]};
            mma(T{}, c[j], f, word(b[j], 2 * h), word(b[j], 2 * h + 1));
        }
}

/*
 * w is operand A (16 of its rows), x is B (8 of its rows per column tile). A lane has 8 neighbours
 * of k from its row of w, and 8 of the same k from its row of x: which k an mma calls its first
 * does not matter as long as both operands agree. x_of(j) is the lane's row of tile j (its row
 * j * 8 + lane / 4), NULL where there is none; asked for when w is under way. Ends with a barrier: part[warp][row of x][row of w]
 * are then to be added over the warps. Dynamic shared memory: CU_GEMV_SHARED.
 */
template <class T, class W, int NT, class X>
DEV void gemv_sums(const struct gemv_weight &w, uint32_t n0, const X &x_of,
                   float (*part)[16 * 8 * NT])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t wide = 32 * W::SLICES, chunks = (w.k + wide - 1) / wide;
    const uint32_t row[2] = {min(n0 + g, w.n - 1), min(n0 + g + 8, w.n - 1)};
    const uint4 *const at_row[2] = {at<const uint4>(w.at) + (uint64_t)row[0] * chunks * 4 + t,
                                    at<const uint4>(w.at) + (uint64_t)row[1] * chunks * 4 + t};
    const uint32_t turns = warp < chunks ? (chunks - warp + GEMV_WARPS - 1) / GEMV_WARPS : 0;
    const bool packed = W::PACKED, grouped = packed && w.packing.groups > 1;
    const bool by_slice = grouped && (1u << w.packing.group_shift) < wide;
    EK_DYNAMIC(shared);
    struct gemv_slot *slots = (struct gemv_slot *)shared;
    struct gemv_group group = {};
    float c[NT][4] = {}, sum[NT][4] = {};

    for (uint32_t i = 0; i < CU_GEMV_STAGES - 1; i++)
        gemv_ask(slots, at_row, i, turns);
    const uint16_t *x[NT];
    for (int j = 0; j < NT; j++)
        x[j] = x_of(j);
    if (packed)
        group = group_of<T, W>(w, row, 0);
    for (uint32_t i = 0; i < turns; i++) {
        const struct gemv_slot *slot = &slots[i % CU_GEMV_STAGES];
        const uint32_t chunk = warp + i * GEMV_WARPS;
        uint4 b[W::SLICES][NT];
        gemv_fetch<W, NT>(b, x, chunk);
        async_wait<CU_GEMV_STAGES - 2>();
        const uint4 p = slot->w[0][threadIdx.x], q = slot->w[1][threadIdx.x];
        gemv_ask(slots, at_row, i + CU_GEMV_STAGES - 1, turns);
#pragma unroll
        for (int s = 0; s < W::SLICES; s++) {
            const uint32_t slice = chunk * W::SLICES + s;
            uint32_t f[4], h[4];
            if (grouped && (s == 0 || by_slice))
                group = group_of<T, W>(w, row, slice);
            expand(T{}, W{}, p, s, group.base[0], f);
            expand(T{}, W{}, q, s, group.base[1], h);
            gemv_slice<T, NT>(c, f, h, b[s]);
            if (grouped && (s == W::SLICES - 1 || by_slice))
                gemv_fold<NT>(sum, c, group);
        }
    }
    if (packed && !grouped)
        gemv_fold<NT>(sum, c, group);
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++)
            part[warp][(j * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = packed ? sum[j][i] : c[j][i];
    __syncthreads();
}

DEV uint32_t rows_of(const struct cu_gemm_args *a)
{
    const struct cu_step *s = step_of(a->step);
    return a->picked ? s->logit_rows : s->rows;
}

DEV void put(const struct cu_gemm_args *a, uint32_t row, uint32_t col, float sum)
{
    sum *= a->scale;
    if (a->bias)
        sum += at<const float>(a->bias)[col];
    store(&a->c, (uint64_t)row * a->c.stride + col, sum);
}

/* A block: 16 columns of c, and 8 * NT rows of it from row 8 * NT * blockIdx.y on. */
template <class T, class W, int NT> DEV void gemv(const struct cu_gemm_args &a)
{
    __shared__ float part[GEMV_WARPS][16 * 8 * NT];
    const uint32_t n0 = blockIdx.x * 16, row0 = blockIdx.y * 8 * NT;
    const struct gemv_weight w = {a.w, a.n, a.k, a.packing};

    if (row0 > 0 && row0 >= rows_of(&a))
        return;
    gemv_sums<T, W, NT>(
        w, n0,
        [&](int j) {
            const uint32_t row = row0 + j * 8 + threadIdx.x % 32 / 4;
            return row < rows_of(&a) ? at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride
                                     : NULL;
        },
        part);
    const uint32_t rows = rows_of(&a);
    for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += blockDim.x) {
        uint32_t row = row0 + i / 16, col = n0 + i % 16;
        float sum = 0.0f;
        for (uint32_t k = 0; k < GEMV_WARPS; k++)
            sum += part[k][i];
        if (row < rows && col < a.n)
            put(&a, row, col, sum);
    }
}

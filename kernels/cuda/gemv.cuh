/*
 * Products of a few rows, bound by reading w once: 16 rows of w by up to 8 * NT rows of x. w goes
 * from memory straight into the registers of mma, packed or not; the warps of a block take turns
 * along k. In which order a row's products are added depends on neither NT nor the other rows.
 */
#pragma once

#include "kernels/cuda/packed.cuh"

#define GEMV_WARPS 8
/* Loads of a lane under way at once, in pairs; a second tile of x takes the registers of some. */
#define GEMV_TURNS(W, NT) (W::SLICES * NT >= 4 ? 2 : 4)
/* Whether those of x for the second turn wait until the first one has left its registers; and
 * whether x is read a slice at a time, which is what registers allow where its tiles are many. */
#define GEMV_LATE(W, NT) (W::SLICES * NT >= 8)
#define GEMV_SLICED(NT)  (NT > 2)

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

/* What a lane has of x beside a chunk of w; zeros where there is no row, and behind the last one.
 */
template <class W, int NT>
DEV void gemv_fetch(uint4 (&b)[W::SLICES][NT], const uint16_t *const x[NT], uint32_t chunk,
                    uint32_t chunks)
{
#pragma unroll
    for (int s = 0; s < W::SLICES; s++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            b[s][j] = x[j] && chunk < chunks
                          ? ((const uint4 *)x[j])[(chunk * W::SLICES + s) * 4 + threadIdx.x % 4]
                          : make_uint4(0, 0, 0, 0);
}

/* The same of one slice. */
template <int NT>
DEV void gemv_fetch_slice(uint4 (&b)[NT], const uint16_t *const x[NT], uint32_t slice)
{
#pragma unroll
    for (int j = 0; j < NT; j++)
        b[j] = x[j] ? ((const uint4 *)x[j])[slice * 4 + threadIdx.x % 4] : make_uint4(0, 0, 0, 0);
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
 * does not matter as long as both operands agree. x[j] is the lane's row of tile j (its row
 * j * 8 + lane / 4), NULL where there is none. Ends with a barrier: part[warp][row of x][row of w]
 * are then to be added over the warps.
 */
template <class T, class W, int NT>
DEV void gemv_sums(const struct gemv_weight &w, uint32_t n0, const uint16_t *const x[NT],
                   float (*part)[16 * 8 * NT])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t wide = 32 * W::SLICES, chunks = (w.k + wide - 1) / wide;
    const uint32_t row[2] = {min(n0 + g, w.n - 1), min(n0 + g + 8, w.n - 1)};
    const uint4 *w0 = at<const uint4>(w.at) + (uint64_t)row[0] * chunks * 4 + t;
    const uint4 *w1 = at<const uint4>(w.at) + (uint64_t)row[1] * chunks * 4 + t;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const bool packed = W::PACKED, grouped = packed && w.packing.groups > 1;
    const bool by_slice = grouped && (1u << w.packing.group_shift) < wide;
    enum { TURNS = GEMV_TURNS(W, NT), AT_ONCE = GEMV_SLICED(NT) ? 1 : W::SLICES };
    struct gemv_group group = {};
    float c[NT][4] = {}, sum[NT][4] = {};
    uint32_t end = chunks;

    /* so that the first product of a turn is behind a jump, too, which keeps loads before it */
    asm volatile("" : "+r"(end));
    if (packed)
        group = group_of<T, W>(w, row, 0);
    for (uint32_t first = warp; first < chunks; first += GEMV_WARPS * TURNS) {
        uint4 p[TURNS], q[TURNS], b[GEMV_SLICED(NT) ? 1 : TURNS][W::SLICES][NT];
        /* all loads first: those of x behind a jump would be waited for one after the other */
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            uint32_t chunk = first + u * GEMV_WARPS;
            p[u] = chunk < chunks ? load_stream(w0 + chunk * 4) : zero;
            q[u] = chunk < chunks ? load_stream(w1 + chunk * 4) : zero;
        }
#pragma unroll
        for (int u = 0; u < (GEMV_SLICED(NT) ? 0 : GEMV_LATE(W, NT) ? 1 : TURNS); u++)
            gemv_fetch<W, NT>(b[u], x, first + u * GEMV_WARPS, chunks);
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            uint32_t chunk = first + u * GEMV_WARPS;
            if (chunk >= end) /* the same for the whole warp */
                break;
            if (GEMV_LATE(W, NT) && !GEMV_SLICED(NT) && u > 0)
                gemv_fetch<W, NT>(b[u], x, chunk, chunks);
#pragma unroll(AT_ONCE)
            for (int s = 0; s < W::SLICES; s++) {
                const uint32_t slice = chunk * W::SLICES + s;
                uint4(&bs)[NT] = b[GEMV_SLICED(NT) ? 0 : u][GEMV_SLICED(NT) ? 0 : s];
                uint32_t f[4], h[4];
                if (GEMV_SLICED(NT))
                    gemv_fetch_slice<NT>(bs, x, slice);
                if (grouped && (s == 0 || by_slice))
                    group = group_of<T, W>(w, row, slice);
                expand(T{}, W{}, p[u], s, group.base[0], f);
                expand(T{}, W{}, q[u], s, group.base[1], h);
                gemv_slice<T, NT>(c, f, h, bs);
                if (grouped && (s == W::SLICES - 1 || by_slice))
                    gemv_fold<NT>(sum, c, group);
            }
        }
    }
    if (packed && !grouped)
        gemv_fold<NT>(sum, c, group);
    for (int j = 0; j < NT; j++)
        for (int i = 0; i < 4; i++)
            part[warp][(j * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = packed ? sum[j][i] : c[j][i];
    __syncthreads();
}

/* What gemv_sums() does with plain weights and one tile of x, in the same order, but weights of the
 * next turns are under way while those at hand are multiplied: twice the registers for them. */
template <class T>
DEV void gemv_sums_ahead(const struct gemv_weight &w, uint32_t n0, const uint16_t *const x[1],
                         float (*part)[16 * 8])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t chunks = (w.k + 31) / 32;
    const uint4 *const w0 = at<const uint4>(w.at) + (uint64_t)min(n0 + g, w.n - 1) * chunks * 4 + t;
    const uint4 *const w1 =
        at<const uint4>(w.at) + (uint64_t)min(n0 + g + 8, w.n - 1) * chunks * 4 + t;
    enum { TURNS = 4, STEP = GEMV_WARPS * TURNS };
    uint4 p[2][TURNS], q[2][TURNS];
    float c[1][4] = {};
    uint32_t end = chunks;

    asm volatile("" : "+r"(end)); /* as in gemv_sums(): products behind jumps, loads before */

    const auto ask = [&](uint4(&a)[TURNS], uint4(&b)[TURNS], uint32_t first) {
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            const uint32_t chunk = first + u * GEMV_WARPS;
            a[u] = chunk < chunks ? load_stream(w0 + chunk * 4) : make_uint4(0, 0, 0, 0);
            b[u] = chunk < chunks ? load_stream(w1 + chunk * 4) : make_uint4(0, 0, 0, 0);
        }
    };
    const auto multiply = [&](const uint4(&a)[TURNS], const uint4(&b)[TURNS], uint32_t first) {
        uint4 e[TURNS][1][1];
#pragma unroll
        for (int u = 0; u < TURNS; u++)
            gemv_fetch<plain, 1>(e[u], x, first + u * GEMV_WARPS, chunks);
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            const uint32_t f[4] = {a[u].x, a[u].y, a[u].z, a[u].w};
            const uint32_t h[4] = {b[u].x, b[u].y, b[u].z, b[u].w};
            if (first + u * GEMV_WARPS >= end) /* the same for the whole warp */
                break;
            gemv_slice<T, 1>(c, f, h, e[u][0]);
        }
    };
    ask(p[0], q[0], warp);
#pragma unroll 1
    for (uint32_t first = warp; first < chunks; first += 2 * STEP) {
        ask(p[1], q[1], first + STEP);
        multiply(p[0], q[0], first);
        ask(p[0], q[0], first + 2 * STEP);
        multiply(p[1], q[1], first + STEP);
    }
    for (int i = 0; i < 4; i++)
        part[warp][(2 * t + i % 2) * 16 + g + i / 2 * 8] = c[0][i];
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
    const uint32_t rows = rows_of(&a), g = threadIdx.x % 32 / 4, n0 = blockIdx.x * 16;
    const uint32_t row0 = blockIdx.y * 8 * NT;
    const struct gemv_weight w = {a.w, a.n, a.k, a.packing};
    const uint16_t *x[NT];

    if (row0 > 0 && row0 >= rows)
        return;
    for (int j = 0; j < NT; j++) {
        uint32_t row = row0 + j * 8 + g;
        x[j] = row < rows ? at<const uint16_t>(a.x.at) + (uint64_t)row * a.x.stride : NULL;
    }
    gemv_sums<T, W, NT>(w, n0, x, part);
    for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += blockDim.x) {
        uint32_t row = row0 + i / 16, col = n0 + i % 16;
        float sum = 0.0f;
        for (int k = 0; k < GEMV_WARPS; k++)
            sum += part[k][i];
        if (row < rows && col < a.n)
            put(&a, row, col, sum);
    }
}

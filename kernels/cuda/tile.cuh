/*
 * What products in tiles of ROWS by CU_FUSED_COLS share: how operands travel (pipeline.cuh) and lie
 * in shared memory, which results a warp computes (gemm.cu, rounded.cu), and the end of those that
 * divide k among blocks (fused.cu, rounded.cu): sums, floats or integers, lie in shared memory,
 * and the last block that is there adds the parts, in their order. Blocks of these: rows of c by
 * columns of it times parts of k.
 *
 * A chunk is 64 bytes of a row of either operand. A stage has those of the rows of x, then those of
 * w, rows one behind the other. Of four neighbours the pieces of 16 bytes lie in four other orders,
 * so that eight rows' pieces, which is what ldmatrix reads at once, lie in all banks.
 */
#pragma once

#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/pipeline.cuh"

#define COLS  CU_FUSED_COLS
#define PITCH (COLS + 4) /* numbers of a row of results in shared memory: lanes hit all banks */

/* An operand in memory: its first chunk, how many uint4 lie from row to row, rows. */
struct tile_operand {
    const uint4 *at;
    uint32_t stride, rows;
};

/* Where in a stage a piece of a row's chunk is. */
DEV uint32_t tile_place(uint32_t row, uint32_t piece)
{
    return row * 64 + (piece ^ row / 2 % 4) * 16;
}

/* Keeps a number in a register, instead of working it out for each chunk again. */
DEV void tile_keep(uint32_t &number)
{
    asm volatile("" : "+r"(number));
}

/* What a thread copies of each chunk of ROWS rows: of every 64th row one piece. */
template <int ROWS> struct tile_copy {
    uint32_t from[ROWS / 64]; /* from the operand's first, in uint4 */
    uint32_t to;              /* where in a stage the first is; the others 64 rows further each */
    bool there[ROWS / 64];
};

template <int ROWS> DEV tile_copy<ROWS> tile_copy_of(const struct tile_operand &m, uint32_t row0)
{
    const uint32_t row = threadIdx.x / 4, piece = threadIdx.x % 4;
    tile_copy<ROWS> copy;

    copy.to = tile_place(row, piece);
    tile_keep(copy.to);
#pragma unroll
    for (uint32_t n = 0; n < ROWS / 64; n++) {
        copy.there[n] = row0 + row + n * 64 < m.rows;
        copy.from[n] = (copy.there[n] ? row0 + row + n * 64 : 0) * m.stride + piece;
        tile_keep(copy.from[n]);
    }
    return copy;
}

/* The chunk's pieces; zeros where there is no row. */
template <int ROWS>
DEV void tile_fetch_rows(unsigned char *stage, const struct tile_operand &m,
                         const tile_copy<ROWS> &copy, uint32_t chunk)
{
#pragma unroll
    for (uint32_t n = 0; n < ROWS / 64; n++)
        async_16(stage + copy.to + n * 64 * 64, m.at + (copy.from[n] + chunk * 4), copy.there[n]);
}

/* What is multiplied (Q): numbers of 16 bits here, bytes in rounded.cu. Sums of it are of the type
 * Q::sum; tile_weights() makes what is multiplied of weights as they are stored. Which k an mma
 * calls its first does not matter, as both operands agree. */
template <class T> struct tile_halves {
    typedef float sum;
};
template <class T> DEV void tile_weights(tile_halves<T>, uint32_t m[4])
{
    (void)m;
}
template <class T>
DEV void tile_mma(tile_halves<T>, float c[4], const uint32_t m[4], uint32_t b0, uint32_t b1)
{
    mma(T{}, c, m, b0, b1);
}

/* A warp's part of a tile, of eight: 32 columns (two times 16 rows of w) by half of the rows. Of
 * what a lane names for ldmatrix: x and w, where in a stage its first piece is. */
template <class Q, int ROWS>
DEV void tile_multiply(const unsigned char *stage, uint32_t x, uint32_t w,
                       typename Q::sum c[2][ROWS / 16][4])
{
#pragma unroll
    for (int s = 0; s < 64; s += 32) { /* two pieces further */
        uint32_t m[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_matrices(m[i], stage + (w ^ s) + 16 * 64 * i);
            tile_weights(Q{}, m[i]);
        }
#pragma unroll
        for (int j = 0; j < ROWS / 16; j += 2) {
            uint32_t b[4];
            load_matrices(b, stage + (x ^ s) + 8 * 64 * j);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                tile_mma(Q{}, c[i][j], m[i], b[0], b[1]);
                tile_mma(Q{}, c[i][j + 1], m[i], b[2], b[3]);
            }
        }
    }
}

/* The same of chunks [first, end): of x from row `row0` on, of w from row `col0` on. then(chunk)
 * comes behind the products of each. */
template <class Q, int ROWS, int STAGES, class THEN>
DEV void tile_sums(unsigned char *stages, const struct tile_operand (&of)[2], uint32_t row0,
                   uint32_t col0, uint32_t first, uint32_t end,
                   typename Q::sum (&c)[2][ROWS / 16][4], THEN then)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const tile_copy<ROWS> x_copy = tile_copy_of<ROWS>(of[0], row0);
    const tile_copy<COLS> w_copy = tile_copy_of<COLS>(of[1], col0);
    uint32_t x = tile_place(warp / 4 * (ROWS / 2) + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    uint32_t w = tile_place(ROWS + warp % 4 * 32 + lane % 16, lane / 16);

    tile_keep(x);
    tile_keep(w);
    pipelined<STAGES, CU_TILE_STAGE(ROWS)>(
        stages, first, end,
        [&](unsigned char *stage, uint32_t chunk) {
            tile_fetch_rows<ROWS>(stage, of[0], x_copy, chunk);
            tile_fetch_rows<COLS>(stage + ROWS * 64, of[1], w_copy, chunk);
        },
        [&](const unsigned char *stage, uint32_t chunk) {
            tile_multiply<Q, ROWS>(stage, x, w, c);
            then(chunk);
        });
}

/* Its results, each to PUT(row of the tile, column of the tile, result). */
template <int ROWS, class N, class PUT> DEV void tile_results(const N c[2][ROWS / 16][4], PUT put)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = warp / 4 * (ROWS / 2) + 2 * (lane % 4), col = warp % 4 * 32 + lane / 4;

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < ROWS / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                put(row + j * 8 + i % 2, col + m * 16 + i / 2 * 8, c[m][j][i]);
}

/* Whether this block is the last of the parts of its tile, whose results lie in `partials` then. */
template <class N>
DEV bool tile_last(const struct cu_gemm_args &a, const N *tile, N *mine, uint32_t count)
{
    uint32_t *counter = at<uint32_t>(a.counters) + blockIdx.y / a.parts * gridDim.x + blockIdx.x;

    for (uint32_t i = threadIdx.x; i < count; i += 256)
        mine[i] = tile[i / COLS * PITCH + i % COLS];
    return last_of(counter, a.parts);
}

/* From shared memory to c by PUT(a, row, col, sum), once all parts are there. */
template <int ROWS, class N, void PUT(const struct cu_gemm_args &, uint32_t, uint32_t, N)>
DEV void tile_end(const struct cu_gemm_args &a, const N *tile, uint32_t rows)
{
    const uint32_t row0 = blockIdx.x * ROWS, n0 = blockIdx.y / a.parts * COLS;
    const uint32_t count = ROWS * COLS;
    N *partials = at<N>(a.partials) +
                  ((uint64_t)(blockIdx.y / a.parts) * gridDim.x + blockIdx.x) * a.parts * count;

    if (a.parts > 1 && !tile_last(a, tile, partials + blockIdx.y % a.parts * count, count))
        return;
    for (uint32_t i = threadIdx.x; i < count; i += 256) {
        const uint32_t row = row0 + i / COLS, col = n0 + i % COLS;
        N sum = a.parts == 1 ? tile[i / COLS * PITCH + i % COLS] : N(0);
        for (uint32_t p = 0; a.parts > 1 && p < a.parts; p++)
            sum += partials[p * count + i];
        if (row < rows && col < a.n)
            PUT(a, row, col, sum);
    }
}

/* A product in blocks as above, whose sums become results at its end: then(chunk) may leave what c
 * has in `sum` instead, on the way. */
template <class Q, int ROWS,
          void PUT(const struct cu_gemm_args &, uint32_t, uint32_t, typename Q::sum), class THEN>
DEV void tile_product(const struct cu_gemm_args &a, const struct tile_operand (&of)[2],
                      uint32_t chunks, typename Q::sum (&c)[2][ROWS / 16][4],
                      const typename Q::sum (&sum)[2][ROWS / 16][4], THEN then)
{
    EK_DYNAMIC(shared);
    const uint32_t part = blockIdx.y % a.parts, col0 = blockIdx.y / a.parts * COLS;
    const uint32_t first = chunks * part / a.parts, end = chunks * (part + 1) / a.parts;
    typename Q::sum *tile = (typename Q::sum *)shared;

    tile_sums<Q, ROWS, CU_TILE_STAGES(ROWS)>(
        shared, of, blockIdx.x * ROWS, col0, first, end, c,
        [&](uint32_t chunk) { then(chunk, chunk + 1 == end); });
    __syncthreads(); /* the stages become the tile of results */
    tile_results<ROWS>(sum, [&](uint32_t row, uint32_t col, typename Q::sum result) {
        tile[row * PITCH + col] = result;
    });
    __syncthreads();
    tile_end<ROWS, typename Q::sum, PUT>(a, tile, of[0].rows);
}

DEV void tile_put(const struct cu_gemm_args &a, uint32_t row, uint32_t col, float sum)
{
    put(&a, row, col, sum);
}

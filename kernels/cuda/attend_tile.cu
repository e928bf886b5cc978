/*
 * Attention over the paged cache, of rows of prompts by mma, for all cards: a block of
 * ek_attend_tile_* takes 64 (row, head) pairs of one KV head and walks the context in tiles in
 * shared memory, one under way while one is computed with (pipeline.cuh); where rows are few and
 * the context is long, a part of it.
 *
 * A cache of E4M3 (names that end in _f8) is expanded to the type of the model, exactly, from one
 * place of shared memory to another. The scale of K is in that of the scores, the scale of V is
 * multiplied to what comes out.
 */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/pipeline.cuh"

/* A tile of the context in shared memory: K and V of KEYS positions, DIM + 8 halves apart. */
template <int DIM, int KEYS>
DEV void tile_fetch(plain, const struct cu_attend_args &a, const struct cu_step *s,
                    const uint32_t *table, uint32_t kv_head, uint16_t *k, uint32_t base,
                    uint32_t to)
{
    const uint32_t bytes = a.head_dim * 2;

    for (uint32_t i = threadIdx.x; i < KEYS * DIM / 8; i += blockDim.x) {
        uint32_t key = i / (DIM / 8), d = i % (DIM / 8) * 8;
        bool there = d < a.head_dim && base + key < to;
        cu_addr from = kv_at(s->kv, table, min(base + key, to - 1), a.block_shift, a.block_bytes,
                             a.layer_at, kv_head, bytes) +
                       (there ? d * 2 : 0);
        uint16_t *shared = k + key * (DIM + 8) + d;
        async_16(shared, at<const void>(from), there);
        async_16(shared + KEYS * (DIM + 8), at<const void>(from + a.plane_bytes), there);
    }
}

/* The same of bytes, DIM apart: they are expanded once they are there. */
template <int DIM, int KEYS>
DEV void tile_fetch(f8, const struct cu_attend_args &a, const struct cu_step *s,
                    const uint32_t *table, uint32_t kv_head, uint16_t *k, uint32_t base,
                    uint32_t to)
{
    for (uint32_t i = threadIdx.x; i < KEYS * DIM / 16; i += blockDim.x) {
        uint32_t key = i / (DIM / 16), d = i % (DIM / 16) * 16;
        bool there = d < a.head_dim && base + key < to;
        cu_addr from = kv_at(s->kv, table, min(base + key, to - 1), a.block_shift, a.block_bytes,
                             a.layer_at, kv_head, a.head_dim) +
                       (there ? d : 0);
        unsigned char *shared = (unsigned char *)k + key * DIM + d;
        async_16(shared, at<const void>(from), there);
        async_16(shared + KEYS * DIM, at<const void>(from + a.plane_bytes), there);
    }
}

/* From where tile_fetch() put them to where the products read: the place itself, or `room`. */
template <class T, int DIM, int KEYS>
DEV const uint16_t *tile_expand(T, plain, const uint16_t *stage, uint16_t *room)
{
    (void)room;
    return stage;
}
template <class T, int DIM, int KEYS>
DEV const uint16_t *tile_expand(T t, f8, const uint16_t *stage, uint16_t *room)
{
    const uint4 *from = (const uint4 *)stage;

    for (uint32_t i = threadIdx.x; i < 2 * KEYS * DIM / 16; i += blockDim.x) {
        const uint4 v = from[i];
        uint32_t w[8];
#pragma unroll
        for (int k = 0; k < 4; k++)
            four(t, f8{}, word(v, k), 0, w + 2 * k);
        uint4 *to = (uint4 *)(room + i / (DIM / 16) * (DIM + 8) + i % (DIM / 16) * 16);
        to[0] = make_uint4(w[0], w[1], w[2], w[3]);
        to[1] = make_uint4(w[4], w[5], w[6], w[7]);
    }
    __syncthreads();
    return room;
}

/* Fragment of Q for dims 16 c .. 16 c + 15; the cache serves it again for every tile. */
DEV void tile_query(const struct cu_attend_args *a, const struct tile_rows *r, int c, uint32_t f[4])
{
    const uint32_t t = threadIdx.x % 4;

    for (int i = 0; i < 4; i++) {
        uint32_t d = c * 16 + 2 * t + i / 2 * 8;
        bool there = r->there[i % 2] && d < a->head_dim;
        f[i] = there ? *(const uint32_t *)(r->q[i % 2] + d) : 0u;
    }
}

/* Scores of a lane's two rows: a load brings what 16 keys have in 16 dims. */
template <class T, int DIM, int KEYS>
DEV void tile_scores(const struct cu_attend_args &a, const struct tile_rows &r, const uint16_t *k,
                     float x[KEYS / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint16_t *from = k + (lane / 16 * 8 + lane % 8) * (DIM + 8) + lane / 8 % 2 * 8;

#pragma unroll
    for (int c = 0; c < DIM / 16; c++) {
        uint32_t f[4];
        tile_query(&a, &r, c, f);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            uint32_t b[4];
            load_matrices(b, from + j * 8 * (DIM + 8) + c * 16);
            mma(T{}, x[j], f, b[0], b[1]);
            mma(T{}, x[j + 1], f, b[2], b[3]);
        }
    }
}

/* Sums become scores, -infinity where a row does not see the position; most tiles are seen as a
 * whole, and most models cap nothing. */
template <int KEYS>
DEV void tile_mask(const struct cu_attend_args &a, const struct cu_tile &tile,
                   const struct tile_rows &r, uint32_t base, float s[KEYS / 8][4])
{
    const uint32_t t = threadIdx.x % 4, last = tile.position + tile.rows - 1;
    const bool whole = base + KEYS <= tile.position + 1 && first_seen(last, a.window) <= base;

#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[j][e] *= a.scale;
    if (a.softcap > 0.0f) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[j][e] = capped(s[j][e], 1.0f, a.softcap);
    }
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t from = first_seen(r.position[i], a.window);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t position = base + j * 8 + 2 * t + e;
                if (position < from || position > r.position[i])
                    s[j][2 * i + e] = -INFINITY;
            }
    }
}

/* Scores become weights; returns in factor what o of the lane's two rows is multiplied with. */
template <int KEYS>
DEV void tile_softmax(float s[KEYS / 8][4], float m[2], float l[2], float factor[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = m[i];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            most = fmaxf(most, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        factor[i] = weight_of(m[i], most);
        m[i] = most;
        l[i] *= factor[i];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = weight_of(s[j][2 * i + e], most);
                s[j][2 * i + e] = p;
                l[i] += p;
            }
    }
}

template <class T, int DIM, int KEYS>
DEV void tile_mix(const uint16_t *v, const float s[KEYS / 8][4], float o[DIM / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const uint32_t p[4] = {pack(T{}, s[2 * k][0], s[2 * k][1]),
                               pack(T{}, s[2 * k][2], s[2 * k][3]),
                               pack(T{}, s[2 * k + 1][0], s[2 * k + 1][1]),
                               pack(T{}, s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < DIM / 8; n += 2) {
            uint32_t b[4];
            load_transposed(b, v + (k * 16 + lane % 16) * (DIM + 8) + n * 8 + lane / 16 * 8);
            mma(T{}, o[n], p, b[0], b[1]);
            mma(T{}, o[n + 1], p, b[2], b[3]);
        }
    }
}

/* This part's sums. */
template <int DIM>
DEV void tile_leave(const struct cu_attend_args &a, const struct cu_tile &tile,
                    const struct tile_rows &r, const float o[DIM / 8][4], const float m[2],
                    const float l[2])
{
    float *part = tile_part<CU_TILE_ROWS>(&a, &tile, tile.part, blockIdx.y);
    const uint32_t t = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t pair = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i * 8;
        tile_ends<CU_TILE_ROWS>(&a, part, i, m[i], l[i]);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const uint32_t d = n * 8 + 2 * t;
            if (r.there[i] && d < a.head_dim)
                *(float2 *)(part + pair * a.head_dim + d) =
                    make_float2(o[n][2 * i], o[n][2 * i + 1]);
        }
    }
}

template <class T, class KV, int DIM, int KEYS> DEV void attend_tile(const struct cu_attend_args &a)
{
    EK_DYNAMIC(shared);
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->tiles)
        return;
    const struct cu_tile tile = array_of<struct cu_tile>(s, s->tile_at)[blockIdx.x];
    const uint32_t *table = array_of<uint32_t>(s, s->table_at) + tile.table;
    const struct tile_rows r = rows_of_tile(&a, &tile, blockIdx.y);
    const uint32_t to = tile.to, t = threadIdx.x % 4;
    const uint32_t first = max(tile.from, first_seen(tile.position, a.window) / KEYS * KEYS);
    /* bytes of K and V as they are fetched; behind two of them room for one expanded */
    enum { STAGE = KV::PACKED ? 2 * KEYS * DIM : 2 * KEYS * (DIM + 8) * 2 };
    float o[DIM / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};

    /* none where no row of it sees this part */
    pipelined<2, STAGE>(
        shared, first / KEYS, (to + KEYS - 1) / KEYS,
        [&](unsigned char *stage, uint32_t at) {
            tile_fetch<DIM, KEYS>(KV{}, a, s, table, blockIdx.y, (uint16_t *)stage, at * KEYS, to);
        },
        [&](const unsigned char *stage, uint32_t at) {
            const uint16_t *k = tile_expand<T, DIM, KEYS>(T{}, KV{}, (const uint16_t *)stage,
                                                          (uint16_t *)(shared + 2 * STAGE));
            float x[KEYS / 8][4] = {}, factor[2];
            tile_scores<T, DIM, KEYS>(a, r, k, x);
            tile_mask<KEYS>(a, tile, r, at * KEYS, x);
            tile_softmax<KEYS>(x, m, l, factor);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[n][e] *= factor[e / 2];
            tile_mix<T, DIM, KEYS>(k + KEYS * (DIM + 8), x, o);
        });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        l[i] += __shfl_xor_sync(0xffffffffu, l[i], 1);
        l[i] += __shfl_xor_sync(0xffffffffu, l[i], 2);
    }
    const struct cu_tile done = array_of<struct cu_tile>(s, s->tile_at)[blockIdx.x];
    if (done.parts > 1) {
        tile_leave<DIM>(a, done, r, o, m, l);
        tile_merge<T, CU_TILE_ROWS>(&a, &done, blockIdx.y);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float by = whole_of(&a, head_of_row(&a, blockIdx.y, i), m[i], l[i]);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t d = n * 8 + 2 * t + e;
                if (r.there[i] && d < a.head_dim)
                    store(&a.dst, r.out[i] + d, o[n][2 * i + e] * by);
            }
    }
}

/* Blocks on a multiprocessor where the cache has E4M3: as many as shared memory leaves room for, or
 * the assembler can do without spilling. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define F8_BLOCKS(dim) ((dim) == 256 ? 2 : 3)
#else
#define F8_BLOCKS(dim) ((dim) == 256 ? 2 : (dim) == 128 ? 3 : 4)
#endif
#define TWO_BLOCKS(name, type, threads)  EK_KERNEL_LATE(name, type, threads, 2)
#define FOUR_BLOCKS(name, type, threads) EK_KERNEL_BLOCKS(name, type, threads, 4)

#define ATTEND_TILE(type, dim, keys, kernel)                                                       \
    kernel(ek_attend_tile_##type##_##dim, struct cu_attend_args, 128)                              \
    {                                                                                              \
        attend_tile<type, plain, dim, keys>(a);                                                    \
    }                                                                                              \
    EK_KERNEL_BLOCKS(ek_attend_tile_##type##_##dim##_f8, struct cu_attend_args, 128,               \
                     F8_BLOCKS(dim))                                                               \
    {                                                                                              \
        attend_tile<type, f8, dim, keys>(a);                                                       \
    }

ATTEND_TILE(bf16, 64, 64, FOUR_BLOCKS)
ATTEND_TILE(bf16, 128, 64, TWO_BLOCKS)
ATTEND_TILE(bf16, 256, 32, EK_KERNEL)
ATTEND_TILE(f16, 64, 64, FOUR_BLOCKS)
ATTEND_TILE(f16, 128, 64, TWO_BLOCKS)
ATTEND_TILE(f16, 256, 32, EK_KERNEL)

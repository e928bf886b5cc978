/*
 * Attention of rows of a prompt by wgmma, for sm_90a: ek_attend_wgmma_*, the same arguments and
 * cache as ek_attend_tile_*. A block takes 128 (row, head) pairs of one KV head in two warpgroups
 * of 64 and walks the context in tiles of 128 positions (64 where heads are 256 wide). Bound by
 * arithmetic: products of a tile of 128 x 128 x 128 take 2048 cycles of the tensor cores, its
 * exponentials 1024 of a multiprocessor.
 *
 * Scores are S = Q K^T with both from shared memory; weights stay in registers, where they are
 * operand A of O += P V, V from shared memory with its columns as they are stored (MN-major). The
 * products P V of a tile run while the weights of the next one are made of scores that are there:
 *
 *   copies    K(j+1) V(j)                      K(j+2) V(j+1)
 *   products  ...  S(j+1) = Q K(j+1), O += P(j) V(j), ...
 *   warps             wait S(j+1), maximum and exponentials, wait O, scale it, P(j+1)
 *
 * Copies are cp.async by all threads, 16 bytes each, not TMA: pages of 16 tokens of one head are a
 * few KiB, so that a tile would be eight or more bulk copies with coordinates from the block table,
 * and a map of the pool for each layer that a resize makes anew; all that TMA saves is addresses, a
 * tenth of what the warps issue. wgmma reads shared memory by another path than copies write it:
 * each thread waits for its own, makes them visible (async_visible), then all meet at a barrier,
 * once a tile; that barrier also says that what is overwritten next is no longer read.
 *
 * Columns behind the head's last and rows that are not there are zeros. Positions begin with the
 * first that any row sees, so that nothing before a window is read.
 */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/wgmma.cuh"

#if defined(EK_SHIM) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define QUERIES 128u
#define THREADS 256u
#define LOG2E   1.44269504088896340736f

/* Where K or V of the tile's positions are found. */
struct source {
    const uint32_t *table;
    cu_addr kv;
    uint32_t kv_head, to;
};

template <int DIM, int KEYS>
DEV void fetch_keys(const struct cu_attend_args &a, const struct source &from, uint64_t plane,
                    unsigned char *shared, uint32_t base)
{
    const uint32_t c = threadIdx.x % (DIM / 8), first = threadIdx.x / (DIM / 8);

#pragma unroll
    for (uint32_t i = 0; i < KEYS * DIM / 8 / THREADS; i++) {
        const uint32_t key = first + i * (THREADS / (DIM / 8));
        const bool there = c * 8 < a.head_dim && base + key < from.to;
        const cu_addr row = kv_at(from.kv, from.table, min(base + key, from.to - 1), a.block_shift,
                                  a.block_bytes, a.layer_at, from.kv_head, a.head_dim * 2);
        async_16(shared + wgmma_place(KEYS, key, c),
                 at<const void>(row + plane + (there ? c * 16 : 0)), there);
    }
}

template <int DIM>
DEV void fetch_queries(const struct cu_attend_args &a, const struct cu_tile &tile, uint32_t kv_head,
                       unsigned char *shared)
{
    const uint32_t c = threadIdx.x % (DIM / 8), first = threadIdx.x / (DIM / 8);
    const uint32_t per_kv = a.q_heads / a.kv_heads;

#pragma unroll
    for (uint32_t i = 0; i < QUERIES * DIM / 8 / THREADS; i++) {
        const uint32_t pair = first + i * (THREADS / (DIM / 8)), row = pair / per_kv;
        const bool there = c * 8 < a.head_dim && row < tile.rows;
        const uint16_t *q = at<const uint16_t>(a.x.at) +
                            (uint64_t)(tile.row + (there ? row : 0)) * a.x.stride +
                            (kv_head * per_kv + pair % per_kv) * a.head_dim + (there ? c * 8 : 0);
        async_16(shared + wgmma_place(QUERIES, pair, c), q, there);
    }
}

/* x = Q K^T of this warpgroup's 64 queries. */
template <class T, int DIM, int KEYS>
DEV void begin_scores(float (&x)[KEYS / 2], uint64_t q, uint64_t k)
{
#pragma unroll
    for (int c = 0; c < DIM / 16; c++)
        wgmma_rows(T{}, x, q + (c / 4 * QUERIES * WGMMA_ROW + c % 4 * 32) / 16,
                   k + (c / 4 * KEYS * WGMMA_ROW + c % 4 * 32) / 16, c > 0);
    wgmma_commit();
}

/* o += P V */
template <class T, int DIM, int KEYS>
DEV void begin_mix(float (&o)[DIM / 2], const uint32_t (&p)[KEYS / 16][4], uint64_t v)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_columns(T{}, o, p[k], v + k * 16 * WGMMA_ROW / 16);
    wgmma_commit();
}

template <class T, int KEYS>
DEV void pack_weights(const float (&x)[KEYS / 2], uint32_t (&p)[KEYS / 16][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack(T{}, x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
}

/* What a lane keeps of its two rows; l is its share of the sum. */
struct running {
    float m[2], l[2];
    float by; /* weights are 2^((score - m) * by) */
};

/* What no row of a tile may skip: -infinity for scores that do not count. */
template <int KEYS>
DEV void mask_scores(const struct cu_attend_args &a, const struct tile_rows &r, uint32_t base,
                     uint32_t to, float (&x)[KEYS / 2])
{
    const uint32_t t = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t from = first_seen(r.position[i], a.window), end = min(r.position[i] + 1, to);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t position = base + j * 8 + 2 * t + e;
                if (position < from || position >= end)
                    x[4 * j + 2 * i + e] = -INFINITY;
            }
    }
}

/* Scores become weights; factor: what o of the lane's two rows is multiplied with. */
template <int KEYS> DEV void weigh(struct running &w, float (&x)[KEYS / 2], float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = w.m[i], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            most = fmaxf(most, fmaxf(x[4 * j + 2 * i], x[4 * j + 2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float shift = most == -INFINITY ? 0.0f : most * w.by;
        factor[i] = exp2_near(w.m[i] * w.by - shift);
        w.m[i] = most;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &s = x[4 * j + 2 * i + e];
                s = exp2_near(fmaf(s, w.by, -shift));
                sum += s;
            }
        w.l[i] = w.l[i] * factor[i] + sum;
    }
}

/* The scores of a tile, capped, masked where a row does not see all of it, as weights. */
template <int KEYS>
DEV void weigh_tile(const struct cu_attend_args &a, const struct cu_tile &tile,
                    const struct tile_rows &r, uint32_t base, struct running &w,
                    float (&x)[KEYS / 2], float (&factor)[2])
{
    const uint32_t last = tile.position + tile.rows - 1;
    const bool whole =
        base + KEYS <= min(tile.position + 1, tile.to) && first_seen(last, a.window) <= base;

    if (a.softcap > 0.0f) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            x[i] = capped(x[i], a.scale, a.softcap);
    }
    if (!whole)
        mask_scores<KEYS>(a, r, base, tile.to, x);
    weigh<KEYS>(w, x, factor);
}

/* This part's sums, or the tile's results where it is all of the context. */
template <class T, int DIM>
DEV void finish_tile(const struct cu_attend_args &a, const struct cu_tile &tile,
                     const struct tile_rows &r, const struct running &w, const float (&o)[DIM / 2])
{
    const uint32_t t = threadIdx.x % 4;
    float *part = tile_part<QUERIES>(&a, &tile, tile.part, blockIdx.y);

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t pair = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i * 8;
        const float m = w.m[i] * (w.by / LOG2E); /* as that of scores that were scaled */
        float l = w.l[i];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (tile.parts > 1) {
            tile_ends<QUERIES>(&a, part, i, m, l);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                if (r.there[i] && n * 8 + 2 * t < a.head_dim)
                    *(float2 *)(part + pair * a.head_dim + n * 8 + 2 * t) =
                        make_float2(o[4 * n + 2 * i], o[4 * n + 2 * i + 1]);
            continue;
        }
        const float by = whole_of(&a, head_of_row(&a, blockIdx.y, i), m, l);
        uint16_t *to = at<uint16_t>(a.dst.at) + r.out[i];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const uint32_t d = n * 8 + 2 * t;
            if (r.there[i] && d < a.head_dim)
                *(uint32_t *)(to + d) = pack(T{}, o[4 * n + 2 * i] * by, o[4 * n + 2 * i + 1] * by);
        }
    }
}

template <class T, int DIM, int KEYS> DEV void attend_wgmma(const struct cu_attend_args &a)
{
    EK_DYNAMIC(raw);
    const struct cu_step *s = step_of(a.step);
    if (blockIdx.x >= s->tiles)
        return;
    /* the longest first: those of a prompt come in its order */
    const struct cu_tile tile = array_of<struct cu_tile>(s, s->tile_at)[s->tiles - 1 - blockIdx.x];
    const struct source from = {array_of<uint32_t>(s, s->table_at) + tile.table, s->kv, blockIdx.y,
                                tile.to};
    const uint32_t first = max(tile.from, first_seen(tile.position, a.window));
    const uint32_t turns = first < tile.to ? (tile.to - first + KEYS - 1) / KEYS : 0;
    const uint32_t group = threadIdx.x / 128, stage = KEYS * DIM * 2;
    unsigned char *q = raw + (0u - shared_at(raw)) % WGMMA_ATOM, *k = q + QUERIES * DIM * 2,
                  *v = k + 2 * stage;
    const uint64_t q_of = wgmma_matrix(shared_at(q) + group * 64 * WGMMA_ROW, 0),
                   k_of = wgmma_matrix(shared_at(k), 0),
                   v_of = wgmma_matrix(shared_at(v), KEYS * WGMMA_ROW);
    const bool there = group * 64 < tile.rows * (a.q_heads / a.kv_heads),
               works = there && turns > 0;
    const struct tile_rows r = rows_of_tile(&a, &tile, blockIdx.y);
    struct running w = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, LOG2E};
    float x[KEYS / 2], o[DIM / 2], factor[2];
    uint32_t p[KEYS / 16][4];

    if (a.softcap <= 0.0f)
        w.by *= a.scale;
#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        o[i] = 0.0f;
    fetch_queries<DIM>(a, tile, blockIdx.y, q);
    fetch_keys<DIM, KEYS>(a, from, 0, k, first);
    async_commit();
    if (turns > 1)
        fetch_keys<DIM, KEYS>(a, from, 0, k + stage, first + KEYS);
    fetch_keys<DIM, KEYS>(a, from, a.plane_bytes, v, first);
    async_commit();
    async_wait<1>();
    async_visible();
    __syncthreads();
    if (works) {
        wgmma_fence();
        begin_scores<T, DIM, KEYS>(x, q_of, k_of);
        wgmma_wait<0>();
        wgmma_done(x);
        weigh_tile<KEYS>(a, tile, r, first, w, x, factor);
        pack_weights<T, KEYS>(x, p);
    }
    for (uint32_t turn = 1; turn < turns; turn++) {
        const uint32_t now = turn % 2, before = now ^ 1;
        async_wait<0>();
        async_visible();
        __syncthreads(); /* K of this turn and V of the one before are there; theirs are free */
        if (turn + 1 < turns)
            fetch_keys<DIM, KEYS>(a, from, 0, k + before * stage, first + (turn + 1) * KEYS);
        fetch_keys<DIM, KEYS>(a, from, a.plane_bytes, v + now * stage, first + turn * KEYS);
        async_commit();
        if (!works)
            continue;
        wgmma_fence();
        begin_scores<T, DIM, KEYS>(x, q_of, k_of + now * (stage / 16));
        begin_mix<T, DIM, KEYS>(o, p, v_of + before * (stage / 16));
        wgmma_wait<1>();
        wgmma_done(x);
        weigh_tile<KEYS>(a, tile, r, first + turn * KEYS, w, x, factor);
        wgmma_behind(w.l); /* or the mix would be waited for before any exponential */
        wgmma_wait<0>();
        wgmma_done(o);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            o[i] *= factor[i / 2 % 2];
        pack_weights<T, KEYS>(x, p);
    }
    async_wait<0>();
    async_visible();
    __syncthreads();
    if (works) {
        wgmma_fence();
        begin_mix<T, DIM, KEYS>(o, p, v_of + (turns - 1) % 2 * (stage / 16));
        wgmma_wait<0>();
        wgmma_done(o);
    }
    /* read again, so that the loop's registers need not hold it */
    const struct cu_tile done = array_of<struct cu_tile>(s, s->tile_at)[s->tiles - 1 - blockIdx.x];
    if (there)
        finish_tile<T, DIM>(a, done, rows_of_tile(&a, &done, blockIdx.y), w, o);
    if (done.parts > 1)
        tile_merge<T, QUERIES>(&a, &done, blockIdx.y);
}

#define ATTEND_WGMMA(type, dim, keys)                                                              \
    EK_KERNEL_ALONE(ek_attend_wgmma_##type##_##dim, struct cu_attend_args, THREADS)                \
    {                                                                                              \
        attend_wgmma<type, dim, keys>(a);                                                          \
    }

ATTEND_WGMMA(bf16, 64, 128)
ATTEND_WGMMA(bf16, 128, 128)
ATTEND_WGMMA(bf16, 256, 64)
ATTEND_WGMMA(f16, 64, 128)
ATTEND_WGMMA(f16, 128, 128)
ATTEND_WGMMA(f16, 256, 64)
#endif

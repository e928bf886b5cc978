/*
 * CUDA for a host compiler: included before a kernel's source (-include, with EK_SHIM set), it
 * gives every word of CUDA that our kernels use a body in C++. A block's threads are fibers of one
 * OS thread (shim.cc); barriers and warp exchanges switch between them; blocks run one after the
 * other. What has an effect later on a card has it later here: asynchronous copies land in their
 * wait. With EK_RACES set as well it tells the race checker (races.h) what orders what. Not
 * covered: speed.
 */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern "C" {
#include "kernels/num.h"
}
#include "tests/cuda/races.h"

#define __device__
#define __forceinline__ inline
#define __align__(n)    __attribute__((aligned(n)))
#define __shared__      static
#if defined(EK_RACES)
/* What a card does in one instruction, and the race checker is not to look into. */
#define SHIM_PLAIN __attribute__((noinline, unused, no_sanitize("thread")))
#else
#define SHIM_PLAIN inline
#endif

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static inline float rsqrtf(float f)
{
    return 1.0f / sqrtf(f);
}
static inline uint32_t __float_as_uint(float f)
{
    return cpu_to_bits(f);
}
static inline float __uint_as_float(uint32_t u)
{
    return cpu_from_bits(u);
}

/* Byte i of the result is the one of a (0 to 3) and b (4 to 7) that hexadecimal digit i names. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t digits)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> (digits >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
    return r;
}

struct shim_dim {
    unsigned x, y, z;
};
/* What is the shim's own; a kernel's other data is its shared memory. */
#define SHIM_OWN __attribute__((section("ek_shim")))
extern struct shim_dim threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *shim_dynamic;

void shim_sync_block();
/* What lanes come to together: all of a mask to the same. */
enum shim_meeting {
    SHIM_SYNCWARP,
    SHIM_XOR,
    SHIM_UP,
    SHIM_MMA,
    SHIM_MMA_S8,
    SHIM_MATRIX,
    SHIM_WGMMA
};
#define SHIM_ALL        0xffffffffu
#define SHIM_LANE_BYTES 64
/* Leaves `bytes` for the other lanes of the mask; after it lane i's lie at shim_lanes() + i *
 * SHIM_LANE_BYTES. */
void shim_sync_warp(enum shim_meeting at, uint32_t mask, const void *mine, size_t bytes);
const unsigned char *shim_lanes();
const void *shim_lane(unsigned lane); /* one of the mask */
const void *shim_here();              /* the place in the program that asks */
void shim_async_copy(void *to, const void *from, bool valid);
void shim_async_commit();
void shim_async_wait(unsigned left);
void shim_register(const char *name, size_t bytes, unsigned threads, void (*run)(const void *args));

static inline void __syncthreads()
{
    shim_sync_block();
}
static inline void __syncwarp(uint32_t mask = SHIM_ALL)
{
    shim_sync_warp(SHIM_SYNCWARP, mask, NULL, 0);
}
static inline void __threadfence()
{
    races_fence();
}
template <class T> static SHIM_PLAIN T __shfl_xor_sync(uint32_t lanes, T v, int mask)
{
    shim_sync_warp(SHIM_XOR, lanes, &v, sizeof(v));
    memcpy(&v, shim_lane(threadIdx.x % 32 ^ (unsigned)mask), sizeof(v));
    return v;
}
template <class T> static SHIM_PLAIN T __shfl_up_sync(uint32_t lanes, T v, int by)
{
    unsigned lane = threadIdx.x % 32;
    shim_sync_warp(SHIM_UP, lanes, &v, sizeof(v));
    memcpy(&v, shim_lane(lane < (unsigned)by ? lane : lane - (unsigned)by), sizeof(v));
    return v;
}
template <class T> static SHIM_PLAIN T atomicAdd(T *p, T v)
{
    races_atomic(p, sizeof(T), __builtin_return_address(0));
    T old = *p;
    *p = old + v;
    return old;
}
template <class T> static SHIM_PLAIN T atomicExch(T *p, T v)
{
    races_atomic(p, sizeof(T), __builtin_return_address(0));
    T old = *p;
    *p = v;
    return old;
}
static SHIM_PLAIN uint32_t atomicOr(uint32_t *p, uint32_t v)
{
    races_atomic(p, sizeof(*p), __builtin_return_address(0));
    uint32_t old = *p;
    *p = old | v;
    return old;
}

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
static inline float to_float(bf16 h)
{
    return cpu_from_bf16(h.bits);
}
static inline float to_float(f16 h)
{
    return cpu_from_f16(h.bits);
}
static inline void from_float(bf16 *h, float f)
{
    h->bits = cpu_to_bf16(f);
}
static inline void from_float(f16 *h, float f)
{
    h->bits = cpu_to_f16(f);
}
static inline uint32_t pack(bf16, float lo, float hi)
{
    return (uint32_t)cpu_to_bf16(hi) << 16 | cpu_to_bf16(lo);
}
static inline uint32_t pack(f16, float lo, float hi)
{
    return (uint32_t)cpu_to_f16(hi) << 16 | cpu_to_f16(lo);
}

template <class T> static inline uint32_t fma_pair(T t, uint32_t a, uint32_t b, uint32_t c)
{
    float f[2];
    for (int i = 0; i < 2; i++)
        f[i] = fmaf(to_float(T{(uint16_t)(a >> 16 * i)}), to_float(T{(uint16_t)(b >> 16 * i)}),
                    to_float(T{(uint16_t)(c >> 16 * i)}));
    return pack(t, f[0], f[1]);
}

struct shim_fragments {
    float a[4][2], b[2][2];
};
struct shim_sums {
    float c[4];
};
template <class T> static SHIM_PLAIN shim_sums shim_mma(T, shim_sums sums, uint4 a, uint2 b)
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t all[4] = {a.x, a.y, a.z, a.w};
    struct shim_fragments f;
    float *c = sums.c;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4; k++)
            f.a[k][i] = to_float(T{(uint16_t)(all[k] >> 16 * i)});
        f.b[0][i] = to_float(T{(uint16_t)(b.x >> 16 * i)});
        f.b[1][i] = to_float(T{(uint16_t)(b.y >> 16 * i)});
    }
    shim_sync_warp(SHIM_MMA, SHIM_ALL, &f, sizeof(f));
    const unsigned char *warp = shim_lanes();
    for (unsigned q = 0; q < 4; q++) {
        const auto *x = (const struct shim_fragments *)(warp + (g * 4 + q) * SHIM_LANE_BYTES);
        const auto *y = (const struct shim_fragments *)(warp + (t * 8 + q) * SHIM_LANE_BYTES);
        const auto *z = (const struct shim_fragments *)(warp + (t * 8 + 4 + q) * SHIM_LANE_BYTES);
        for (unsigned h = 0; h < 2; h++)
            for (unsigned e = 0; e < 2; e++) {
                c[0] += x->a[2 * h][e] * y->b[h][e];
                c[1] += x->a[2 * h][e] * z->b[h][e];
                c[2] += x->a[2 * h + 1][e] * y->b[h][e];
                c[3] += x->a[2 * h + 1][e] * z->b[h][e];
            }
    }
    return sums;
}
template <class T>
static inline void mma(T t, float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const shim_sums sums = shim_mma(t, {{c[0], c[1], c[2], c[3]}},
                                    make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b0, b1));
    for (int i = 0; i < 4; i++)
        c[i] = sums.c[i];
}
struct shim_bytes {
    uint32_t a[4], b[2];
};
static inline int shim_dot(uint32_t x, uint32_t y)
{
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += (int)(int8_t)(x >> i) * (int8_t)(y >> i);
    return sum;
}
struct shim_exact {
    int c[4];
};
static SHIM_PLAIN shim_exact shim_mma_s8(shim_exact sums, uint4 a, uint2 b)
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const struct shim_bytes mine = {{a.x, a.y, a.z, a.w}, {b.x, b.y}};
    int *c = sums.c;
    shim_sync_warp(SHIM_MMA_S8, SHIM_ALL, &mine, sizeof(mine));
    const unsigned char *warp = shim_lanes();
    for (unsigned q = 0; q < 4; q++) {
        const auto *x = (const struct shim_bytes *)(warp + (g * 4 + q) * SHIM_LANE_BYTES);
        const auto *y = (const struct shim_bytes *)(warp + (t * 8 + q) * SHIM_LANE_BYTES);
        const auto *z = (const struct shim_bytes *)(warp + (t * 8 + 4 + q) * SHIM_LANE_BYTES);
        for (unsigned h = 0; h < 2; h++) {
            c[0] += shim_dot(x->a[2 * h], y->b[h]);
            c[1] += shim_dot(x->a[2 * h], z->b[h]);
            c[2] += shim_dot(x->a[2 * h + 1], y->b[h]);
            c[3] += shim_dot(x->a[2 * h + 1], z->b[h]);
        }
    }
    return sums;
}
static inline void mma_s8(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const shim_exact sums = shim_mma_s8({{c[0], c[1], c[2], c[3]}},
                                        make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b0, b1));
    for (int i = 0; i < 4; i++)
        c[i] = sums.c[i];
}
static inline void async_16(void *shared, const void *global, bool valid)
{
    shim_async_copy(shared, global, valid);
}
static inline void async_commit()
{
    shim_async_commit();
}
template <int left> static inline void async_wait()
{
    shim_async_wait(left);
}
/* Of matrix i the rows 8 * i to 8 * i + 7 that lanes name, or its columns. */
static inline void shim_matrices(uint32_t r[4], const void *shared, bool transposed)
{
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    races_aligned(shared, 16, shim_here());
    shim_sync_warp(SHIM_MATRIX, SHIM_ALL, &shared, sizeof(shared));
    for (unsigned i = 0; i < 4; i++)
        for (unsigned e = 0; e < 2; e++) {
            const uint16_t *row;
            memcpy(&row, shim_lane(i * 8 + (transposed ? 2 * t + e : g)), sizeof(row));
            r[i] = (e > 0 ? r[i] : 0) | (uint32_t)row[transposed ? g : 2 * t + e] << 16 * e;
        }
}
static inline void load_matrices(uint32_t r[4], const void *shared)
{
    shim_matrices(r, shared, false);
}
static inline void load_transposed(uint32_t r[4], const void *shared)
{
    shim_matrices(r, shared, true);
}
static inline uint4 load_stream(const uint4 *p)
{
    return *p;
}
static inline uint2 load_stream(const uint2 *p)
{
    return *p;
}

#define EK_DYNAMIC(name) unsigned char *name = shim_dynamic
#define EK_KERNEL(name, type, threads)                                                             \
    static void name(const type &a);                                                               \
    static const struct name##_known {                                                             \
        name##_known()                                                                             \
        {                                                                                          \
            shim_register(#name, sizeof(type), threads,                                            \
                          [](const void *p) { name(*(const type *)p); });                          \
        }                                                                                          \
    } name##_known;                                                                                \
    static void name(const type &a)
#define EK_KERNEL_ALONE                               EK_KERNEL
#define EK_KERNEL_BLOCKS(name, type, threads, blocks) EK_KERNEL(name, type, threads)
#define EK_KERNEL_LATE                                EK_KERNEL_BLOCKS

#include "tests/cuda/shim_wgmma.h"

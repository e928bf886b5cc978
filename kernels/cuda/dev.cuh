/*
 * What kernels are written with: number types, one-line wrappers of the few instructions that C has
 * no word for, reductions. A host compiler gets another body for the wrappers (tests/cuda/shim.h,
 * included from the command line with EK_SHIM set), so that every kernel also runs without a card.
 *
 * Fragments of mma (m16n8k16, 16-bit inputs, lane = 4 * g + t): A[16x16] holds in a0 row g, columns
 * 2t and 2t+1; a1 row g+8; a2 and a3 the same rows, columns 8 further. B[16x8] holds in b0 rows 2t
 * and 2t+1 of column g, in b1 rows 8 further. C[16x8] holds in c0, c1 row g, columns 2t and 2t+1;
 * in c2, c3 row g+8.
 */
#pragma once

#include <stdint.h>

#include "kernels/cuda/args.h"

/*
 * Not static for nvcc: it would put each file's functions into a namespace named by a hash of the
 * file's full path, and two builds in different folders would differ.
 */
#if defined(EK_SHIM)
#define DEV   static __device__ __forceinline__
#define APART static __device__
#else
#define DEV   __device__ __forceinline__
#define APART __device__ __noinline__
#endif

#if !defined(EK_SHIM)
#define EK_KERNEL(name, type, threads)                                                             \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ type a)
/* One block of it may have all registers of a multiprocessor. */
#define EK_KERNEL_ALONE(name, type, threads)                                                       \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ type a)
/* A multiprocessor is to have registers for so many blocks of it. */
#define EK_KERNEL_BLOCKS(name, type, threads, blocks)                                              \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        name(const __grid_constant__ type a)
/* From sm_100 on room for so many blocks of it and no more is asked for: left alone, the assembler
 * spills there to make room for one that other limits keep out. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define EK_KERNEL_LATE EK_KERNEL_BLOCKS
#else
#define EK_KERNEL_LATE(name, type, threads, blocks) EK_KERNEL(name, type, threads)
#endif
/* Dynamic shared memory of the launch. */
#define EK_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]
#endif

#if !defined(EK_SHIM)
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

DEV float to_float(bf16 h)
{
    return __uint_as_float((uint32_t)h.bits << 16);
}
DEV float to_float(f16 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
DEV void from_float(bf16 *h, float f)
{
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h->bits) : "f"(f));
}
DEV void from_float(f16 *h, float f)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h->bits) : "f"(f));
}
/* Two numbers in a word, the first in its lower half. */
DEV uint32_t pack(bf16, float lo, float hi)
{
    uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
}
DEV uint32_t pack(f16, float lo, float hi)
{
    uint32_t w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
    return w;
}
/* a * b + c of both halves of a word, each rounded once. */
DEV uint32_t fma_pair(bf16, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEV uint32_t fma_pair(f16, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* c += a * b */
DEV void mma(bf16, float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma(f16, float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* The same of signed bytes, exactly (m16n8k32): four neighbours along k where two were, so a0 holds
 * row g, columns 4t to 4t+3, a2 those 16 further, b0 and b1 likewise of column g. */
DEV void mma_s8(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* 16 bytes to shared memory in the background; zeros when !valid. */
DEV void async_16(void *shared, const void *global, bool valid)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}
DEV void async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most `left` groups are under way. */
template <int left> DEV void async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
/* Four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8 and gets columns 2t and
 * 2t+1 of row g of each. */
DEV void load_matrices(uint32_t r[4], const void *shared)
{
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* The same, transposed. */
DEV void load_transposed(uint32_t r[4], const void *shared)
{
    uint32_t from = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* What is read once: past the L1 cache. */
DEV uint4 load_stream(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEV uint2 load_stream(const uint2 *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
#endif

/* The same with rows 8 to 15 of A empty: c += a * b of the upper half only. */
template <class T>
DEV void mma_half(T t, float c[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    const uint32_t a[4] = {a0, 0, a2, 0};
    float all[4] = {c[0], c[1], 0.0f, 0.0f};
    mma(t, all, a, b0, b1);
    c[0] = all[0];
    c[1] = all[1];
}

template <class T> DEV T *at(cu_addr a)
{
    return (T *)(uintptr_t)a;
}
template <class T> DEV T *at(cu_addr a, uint64_t bytes)
{
    return (T *)(uintptr_t)(a + bytes);
}

DEV const struct cu_step *step_of(cu_addr a)
{
    return at<const struct cu_step>(a);
}
template <class T> DEV const T *array_of(const struct cu_step *s, uint32_t offset)
{
    return (const T *)((const char *)s + offset);
}

/* An element of a view whose type is known at run time only; the branch is the same for all. */
DEV float load(const struct cu_view *v, uint64_t i)
{
    if (v->dtype == EK_F32)
        return at<const float>(v->at)[i];
    if (v->dtype == EK_BF16)
        return to_float(at<const bf16>(v->at)[i]);
    return to_float(at<const f16>(v->at)[i]);
}
DEV void store(const struct cu_view *v, uint64_t i, float f)
{
    if (v->dtype == EK_F32)
        at<float>(v->at)[i] = f;
    else if (v->dtype == EK_BF16)
        from_float(&at<bf16>(v->at)[i], f);
    else
        from_float(&at<f16>(v->at)[i], f);
}

/* Four neighbours from i, a multiple of 4, in a row that begins at a multiple of 16 bytes. */
DEV void load4(const struct cu_view *v, uint64_t i, float f[4])
{
    if (v->dtype == EK_F32) {
        float4 x = *(const float4 *)&at<const float>(v->at)[i];
        f[0] = x.x, f[1] = x.y, f[2] = x.z, f[3] = x.w;
        return;
    }
    uint2 x = *(const uint2 *)&at<const uint16_t>(v->at)[i];
    const uint16_t h[4] = {(uint16_t)x.x, (uint16_t)(x.x >> 16), (uint16_t)x.y,
                           (uint16_t)(x.y >> 16)};
    for (int k = 0; k < 4; k++)
        f[k] = v->dtype == EK_BF16 ? to_float(bf16{h[k]}) : to_float(f16{h[k]});
}
DEV void store4(const struct cu_view *v, uint64_t i, const float f[4])
{
    if (v->dtype == EK_F32) {
        *(float4 *)&at<float>(v->at)[i] = make_float4(f[0], f[1], f[2], f[3]);
        return;
    }
    uint2 x;
    if (v->dtype == EK_BF16)
        x = make_uint2(pack(bf16{}, f[0], f[1]), pack(bf16{}, f[2], f[3]));
    else
        x = make_uint2(pack(f16{}, f[0], f[1]), pack(f16{}, f[2], f[3]));
    *(uint2 *)&at<uint16_t>(v->at)[i] = x;
}

/* Eight neighbours of 16 bits from i, a multiple of 8, in a row as above. */
DEV void load8(const struct cu_view *v, uint64_t i, float f[8])
{
    const uint4 x = *(const uint4 *)&at<const uint16_t>(v->at)[i];
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint16_t h = (uint16_t)(w[k / 2] >> k % 2 * 16);
        f[k] = v->dtype == EK_BF16 ? to_float(bf16{h}) : to_float(f16{h});
    }
}
DEV void store8(const struct cu_view *v, uint64_t i, const float f[8])
{
    uint32_t w[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        w[k] = v->dtype == EK_BF16 ? pack(bf16{}, f[2 * k], f[2 * k + 1])
                                   : pack(f16{}, f[2 * k], f[2 * k + 1]);
    *(uint4 *)&at<uint16_t>(v->at)[i] = make_uint4(w[0], w[1], w[2], w[3]);
}

/* As E4M3: rounded to the nearest, ties to even; what is beyond becomes the largest, 448. */
DEV uint8_t e4m3_of(float f)
{
    const uint32_t u = __float_as_uint(f), mag = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    uint32_t bits = (mag + 0x7ffffu + (mag >> 20 & 1u) - 0x3c000000u) >> 20;

    if (mag < 0x3c800000u) /* below 2^-6: adding 2^14 rounds the bits at the place of 2^-9 */
        bits = __float_as_uint(__uint_as_float(mag) + 16384.0f) - 0x46800000u;
    if (mag >= 0x43e00000u)
        bits = mag > 0x7f800000u ? 0x7fu : 0x7eu;
    return (uint8_t)(sign | bits);
}

DEV float warp_sum(float f)
{
    for (int i = 16; i > 0; i >>= 1)
        f += __shfl_xor_sync(0xffffffffu, f, i);
    return f;
}
DEV float warp_max(float f)
{
    for (int i = 16; i > 0; i >>= 1)
        f = fmaxf(f, __shfl_xor_sync(0xffffffffu, f, i));
    return f;
}

/* Over the block, for all its threads; work: one float per warp, in shared memory. */
DEV float block_sum(float f, float *work)
{
    f = warp_sum(f);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        work[threadIdx.x / 32] = f;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        sum += work[i];
    return sum;
}
DEV float block_max(float f, float *work)
{
    f = warp_max(f);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        work[threadIdx.x / 32] = f;
    __syncthreads();
    float most = work[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++)
        most = fmaxf(most, work[i]);
    return most;
}

/* What is no number stays so. */
DEV float bound(float x, float least, float most)
{
    x = x > most ? most : x;
    return x < least ? least : x;
}

/* act(gate) * up, or what the activation makes of both. */
DEV float gated(float gate, float up, uint32_t act)
{
    if (act == EK_ACT_SWIGLU_CLAMPED) {
        gate = gate > EK_SWIGLU_MOST ? EK_SWIGLU_MOST : gate;
        return gate / (1.0f + expf(-EK_SWIGLU_ALPHA * gate)) *
               (bound(up, -EK_SWIGLU_MOST, EK_SWIGLU_MOST) + 1.0f);
    }
    if (act == EK_ACT_RELU)
        return gate > 0.0f ? gate * up : 0.0f;
    if (act == EK_ACT_SILU)
        return gate / (1.0f + expf(-gate)) * up;
    if (act == EK_ACT_GELU_TANH)
        return gate / (1.0f + expf(-1.5957691216f * (gate + 0.044715f * gate * gate * gate))) * up;
    return 0.5f * gate * (1.0f + erff(gate * 0.7071067812f)) * up;
}

/* Whether this block is the last of `parts` to come here, by a counter that it sets back to 0: what
 * the others wrote to global memory before is there then. */
DEV bool last_of(uint32_t *counter, uint32_t parts)
{
    __shared__ uint32_t arrived;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        arrived = atomicAdd(counter, 1u);
    __syncthreads();
    if (arrived != parts - 1)
        return false;
    __threadfence();
    if (threadIdx.x == 0)
        *counter = 0;
    return true;
}

/* Two neighbours in memory, aligned as a word. */
DEV uint32_t pair(const uint16_t *p)
{
    return *(const uint32_t *)p;
}

/* ek_slot_words() for the device. */
DEV uint32_t slot_words(const struct ek_slot_set *s)
{
    return s->allowed + 2 * s->biases + s->banned + s->bad + s->prompt + s->output;
}

/* Where K of a position of one head lies; V lies plane_bytes further. */
DEV cu_addr kv_at(cu_addr kv, const uint32_t *table, uint32_t position, uint32_t shift,
                  uint64_t block_bytes, uint64_t layer_at, uint32_t head, uint32_t row_bytes)
{
    uint32_t block = table[position >> shift], offset = position & ((1u << shift) - 1);
    return kv + block * block_bytes + layer_at + (uint64_t)((head << shift) + offset) * row_bytes;
}

/* Which sequence a row of the step belongs to. */
DEV uint32_t seq_of_row(const struct cu_step *s, uint32_t row)
{
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at);
    uint32_t from = 0, to = s->seqs;

    while (to - from > 1) {
        uint32_t mid = (from + to) / 2;
        if (q[mid].row <= row)
            from = mid;
        else
            to = mid;
    }
    return from;
}

/*
 * Products of a warpgroup (128 threads) on sm_90a: wgmma, which reads operands from shared memory
 * and runs beside its warps. Wrappers of the instructions, as dev.cuh has them for others; a host
 * compiler gets theirs from tests/cuda/shim_wgmma.h.
 *
 * A matrix in shared memory lies in panels of 128 bytes a row (64 numbers), one panel behind the
 * other, each beginning at a multiple of 1024 bytes; the 16 bytes of column c of row r lie where
 * c ^ r % 8 would without this, so that neither copies nor products meet in a bank. That is what
 * PTX calls 128B swizzling (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout").
 * Rows may be those of the product (K-major: Q, K) or its inner dimension (MN-major: V).
 *
 * Accumulators of 64 rows by N: warp w of the group has rows 16 w .. 16 w + 15; of lane 4 g + t
 * d[4 j] and d[4 j + 1] are row g, columns 8 j + 2 t and the next, d[4 j + 2], d[4 j + 3] those of
 * row g + 8. A in registers lies as with mma (dev.cuh). Between wgmma_fence() and the wait for the
 * last group no thread may touch accumulators or A; wgmma_done() tells the compiler so.
 */
#pragma once

#include "kernels/cuda/dev.cuh"

#if !defined(EK_SHIM)
/* The address within shared memory. */
DEV uint32_t shared_at(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}
/* What this thread wrote to shared memory, and copied there and waited for, may be read by wgmma
 * of those that meet it at a barrier after this. */
DEV void async_visible()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEV void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEV void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most `left` groups are under way. */
template <int left> DEV void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
/* What is read of them from here on is read after the waits above. */
template <int N> DEV void wgmma_done(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* A wait that follows stays behind the computation of these sums, which are not negative: ptxas
 * moves a wait up to what precedes it in memory, past all arithmetic, and a store that never
 * happens is such a thing. */
DEV void wgmma_behind(const float (&sum)[2])
{
    asm volatile("{.reg .pred p; .reg .f32 s; add.f32 s, %0, %1; setp.lt.f32 p, s, 0f00000000; "
                 "@p st.shared.f32 [%2], s;}" ::"f"(sum[0]),
                 "f"(sum[1]), "r"(0)
                 : "memory");
}
/* 2^x to two units in the last place; 0 for -infinity. */
DEV float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define WGMMA_TEN(d)                                                                               \
    "%" #d "0,%" #d "1,%" #d "2,%" #d "3,%" #d "4,%" #d "5,%" #d "6,%" #d "7,%" #d "8,%" #d "9,"
#define WGMMA_LIST_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," WGMMA_TEN(1) WGMMA_TEN(2) "%30,%31"
#define WGMMA_LIST_128                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," WGMMA_TEN(1) WGMMA_TEN(2) WGMMA_TEN(3) WGMMA_TEN(4)           \
        WGMMA_TEN(5) "%60,%61,%62,%63"
#define WGMMA_LIST_256                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," WGMMA_TEN(1) WGMMA_TEN(2) WGMMA_TEN(3) WGMMA_TEN(4)           \
        WGMMA_TEN(5) WGMMA_TEN(6) WGMMA_TEN(7) WGMMA_TEN(8) WGMMA_TEN(9) WGMMA_TEN(10)             \
            WGMMA_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_EIGHT(i)                                                                             \
    "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]),            \
        "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define WGMMA_D_64  WGMMA_EIGHT(0), WGMMA_EIGHT(8), WGMMA_EIGHT(16), WGMMA_EIGHT(24)
#define WGMMA_D_128 WGMMA_D_64, WGMMA_EIGHT(32), WGMMA_EIGHT(40), WGMMA_EIGHT(48), WGMMA_EIGHT(56)
#define WGMMA_D_256                                                                                \
    WGMMA_D_128, WGMMA_EIGHT(64), WGMMA_EIGHT(72), WGMMA_EIGHT(80), WGMMA_EIGHT(88),               \
        WGMMA_EIGHT(96), WGMMA_EIGHT(104), WGMMA_EIGHT(112), WGMMA_EIGHT(120)

/* d = a * b^T, or d += where `adds`: descriptors of 64 and n rows by 16 columns. */
#define WGMMA_ROWS(type, n, half, a_at, b_at, adds_at)                                             \
    DEV void wgmma_rows(type, float(&d)[half], uint64_t a, uint64_t b, bool adds)                  \
    {                                                                                              \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #adds_at ", 0; "                            \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type             \
                     " {" WGMMA_LIST_##n "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0;}"              \
                     : WGMMA_D_##n                                                                 \
                     : "l"(a), "l"(b), "r"((uint32_t)adds)                                         \
                     : "memory");                                                                  \
    }
/* d += a * b: a in registers, b the descriptor of 16 rows by n columns. */
#define WGMMA_COLUMNS(type, n, half, a0, a1, a2, a3, b_at)                                         \
    DEV void wgmma_columns(type, float(&d)[half], const uint32_t(&a)[4], uint64_t b)               \
    {                                                                                              \
        asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; "                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type             \
                     " {" WGMMA_LIST_##n "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_at       \
                                         ", p, 1, 1, 1;}"                                          \
                     : WGMMA_D_##n                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                          \
                     : "memory");                                                                  \
    }
WGMMA_ROWS(bf16, 64, 32, 32, 33, 34)
WGMMA_ROWS(bf16, 128, 64, 64, 65, 66)
WGMMA_ROWS(f16, 64, 32, 32, 33, 34)
WGMMA_ROWS(f16, 128, 64, 64, 65, 66)
WGMMA_COLUMNS(bf16, 64, 32, 32, 33, 34, 35, 36)
WGMMA_COLUMNS(bf16, 128, 64, 64, 65, 66, 67, 68)
WGMMA_COLUMNS(bf16, 256, 128, 128, 129, 130, 131, 132)
WGMMA_COLUMNS(f16, 64, 32, 32, 33, 34, 35, 36)
WGMMA_COLUMNS(f16, 128, 64, 64, 65, 66, 67, 68)
WGMMA_COLUMNS(f16, 256, 128, 128, 129, 130, 131, 132)
#endif

#define WGMMA_ROW  128u  /* bytes of a row of a panel */
#define WGMMA_ATOM 1024u /* of eight rows, in which columns are exchanged; panels begin at such */

/* Where the 16 bytes of columns 8 c .. 8 c + 7 of a row lie, in a matrix of so many rows. */
DEV uint32_t wgmma_place(uint32_t rows, uint32_t row, uint32_t c)
{
    return c / 8 * rows * WGMMA_ROW + row * WGMMA_ROW + (c ^ row) % 8 * 16;
}

/* Descriptor of what begins at such an address; `panel`: bytes from one to the next, which only
 * MN-major operands of more than 64 columns need. Fields count 16 bytes: address, panel to panel
 * (from bit 16), eight rows to the next eight (32), 128B swizzling (62). */
DEV uint64_t wgmma_matrix(uint32_t address, uint32_t panel)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(panel >> 4) << 16 |
           (uint64_t)(WGMMA_ATOM >> 4) << 32 | 1ull << 62;
}

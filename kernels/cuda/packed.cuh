/*
 * Weights of 8 and 4 bits as kernels read them. A row is cut into chunks of 64 bytes: four lanes
 * take 16 bytes each, which hold 8 neighbouring columns of each slice of 32 columns. So whatever
 * the form, the four lanes have the columns 8 t .. 8 t + 7 of a slice, as those of plain weights
 * do, and all columns of a slice share a scale. In 16 bytes lie
 *
 *   plain   1 slice:  8 numbers of 16 bits
 *   i8, f8  2 slices: 8 bytes each; an int8 is stored plus 128
 *   i4      4 slices: a word each; the two numbers of a pair lie 16 bits apart
 *
 * pack_row() in load.c writes the same. A slice becomes four words of pairs of the type to
 * compute with, exactly: bits are put below the exponent of a number of known size, which is then
 * taken away, together with the zero. E4M3 is shifted to where exponent and fraction belong and
 * multiplied to what it means, which is right for its subnormal numbers, too; its not-a-number is
 * read as 480.
 */
#pragma once

#include "kernels/cuda/dev.cuh"

struct plain {
    enum { PACKED = 0, SLICES = 1 };
};
struct i8 {
    enum { PACKED = 1, SLICES = 2 };
};
struct f8 {
    enum { PACKED = 1, SLICES = 2 };
};
struct i4 {
    enum { PACKED = 1, SLICES = 4 };
};

DEV uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* What expand() has to take away for this zero. */
DEV uint32_t base_of(bf16, i8, int zero)
{
    return __float_as_uint(8388736.0f + (float)zero); /* 2^23 + 128 */
}
DEV uint32_t base_of(f16, i8, int zero)
{
    return pack(f16{}, -1152.0f - (float)zero, -1152.0f - (float)zero); /* 2^10 + 128 */
}
DEV uint32_t base_of(bf16, i4, int zero)
{
    return pack(bf16{}, -128.0f - (float)zero, -128.0f - (float)zero);
}
DEV uint32_t base_of(f16, i4, int zero)
{
    return pack(f16{}, -1024.0f - (float)zero, -1024.0f - (float)zero);
}
template <class T> DEV uint32_t base_of(T, f8, int)
{
    return 0;
}
template <class T> DEV uint32_t base_of(T, plain, int)
{
    return 0;
}

/* Four bytes as two pairs. */
DEV void four(bf16 t, i8, uint32_t bytes, uint32_t base, uint32_t out[2])
{
    const float less = __uint_as_float(base);
    float f[4];

    for (uint32_t i = 0; i < 4; i++)
        f[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540u | i)) - less;
    out[0] = pack(t, f[0], f[1]);
    out[1] = pack(t, f[2], f[3]);
}
DEV void four(f16 t, i8, uint32_t bytes, uint32_t base, uint32_t out[2])
{
    out[0] = fma_pair(t, __byte_perm(bytes, 0x64646464u, 0x4140u), 0x3c003c00u, base);
    out[1] = fma_pair(t, __byte_perm(bytes, 0x64646464u, 0x4342u), 0x3c003c00u, base);
}
DEV uint32_t e4m3_pair(bf16 t, uint32_t high) /* in the upper bytes of both halves */
{
    uint32_t bits = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
    return fma_pair(t, bits, 0x7b807b80u, 0x80008000u); /* by 2^120, plus -0 */
}
DEV uint32_t e4m3_pair(f16 t, uint32_t high)
{
    uint32_t bits = (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
    return fma_pair(t, bits, 0x5c005c00u, 0x80008000u); /* by 2^8, plus -0 */
}
template <class T> DEV void four(T t, f8, uint32_t bytes, uint32_t, uint32_t out[2])
{
    out[0] = e4m3_pair(t, __byte_perm(bytes, 0, 0x1404u));
    out[1] = e4m3_pair(t, __byte_perm(bytes, 0, 0x3424u));
}

/* As mma_s8, of E4M3 (dev.cuh): by one instruction where the card has it, else as numbers of 16
 * bits, which hold each of them exactly. */
DEV void mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t p[2], q[2], b[2];
        four(f16{}, f8{}, a[2 * half], 0, p);
        four(f16{}, f8{}, a[2 * half + 1], 0, q);
        four(f16{}, f8{}, half == 0 ? b0 : b1, 0, b);
        const uint32_t m[4] = {p[0], q[0], p[1], q[1]};
        mma(f16{}, c, m, b[0], b[1]);
    }
#endif
}

/* A lane's 8 columns of one slice. */
template <class T>
DEV void expand(T, plain, const uint4 &v, int slice, uint32_t base, uint32_t out[4])
{
    (void)slice;
    (void)base;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
template <class T, class W>
DEV void expand(T t, W w, const uint4 &v, int slice, uint32_t base, uint32_t out[4])
{
    four(t, w, word(v, 2 * slice), base, out);
    four(t, w, word(v, 2 * slice + 1), base, out + 2);
}
DEV void expand(bf16 t, i4, const uint4 &v, int slice, uint32_t base, uint32_t out[4])
{
    const uint32_t bits = word(v, slice);

#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = fma_pair(t, (bits >> 4 * i & 0x000f000fu) | 0x43004300u, 0x3f803f80u, base);
}
DEV void expand(f16 t, i4, const uint4 &v, int slice, uint32_t base, uint32_t out[4])
{
    const uint32_t bits = word(v, slice);

#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = fma_pair(t, (bits >> 4 * i & 0x000f000fu) | 0x64006400u, 0x3c003c00u, base);
}

/* Scale and zero of a row's group. */
DEV float scale_of(cu_addr w, const struct cu_packing &p, uint64_t row, uint32_t group)
{
    return at<const float>(w, p.scale_at)[row * p.groups + group];
}
DEV int zero_of(cu_addr w, const struct cu_packing &p, uint64_t row, uint32_t group)
{
    if (p.zero_at == 0)
        return p.form == CU_I4 ? 8 : 0;
    return at<const int16_t>(w, p.zero_at)[row * p.groups + group];
}

DEV float e4m3_float(uint8_t b)
{
    uint32_t pair = e4m3_pair(bf16{}, (uint32_t)b << 8);
    return __uint_as_float(pair << 16);
}

/* One number, worked out by itself: for the few kernels that read single ones. */
DEV float packed_value(cu_addr w, const struct cu_packing &p, uint64_t row, uint32_t k,
                       uint32_t col)
{
    const uint32_t lane = col % 32 / 8, e = col % 8, group = col >> p.group_shift;
    const uint32_t wide = p.form == CU_I4 ? 128 : 64, slice = col % wide / 32;
    const uint8_t *from = at<const uint8_t>(w) + (row * ((k + wide - 1) / wide) + col / wide) * 64;
    float number;

    if (p.form == CU_I4) {
        const uint32_t nibble = e % 2 * 4 + e / 2;
        number = (float)(from[lane * 16 + slice * 4 + nibble / 2] >> nibble % 2 * 4 & 15);
    } else {
        const uint8_t byte = from[lane * 16 + slice * 8 + e];
        number = p.form == CU_F8 ? e4m3_float(byte) : (float)((int)byte - 128);
    }
    return (number - (float)zero_of(w, p, row, group)) * scale_of(w, p, row, group);
}

/*
 * Products with weights of 8 and 4 bits in models of 16:
 *
 *   ek_gemv_*_i8 ...  up to 32 rows: numbers are expanded in the registers of mma (gemv.cuh).
 *   ek_expand_*       more rows: a panel of the weight becomes numbers of 16 bits in scratch, which
 *                     the products of plain weights then read.
 */
#include "kernels/cuda/gemv.cuh"

/* Words of two numbers times the row's scale. */
template <class T> DEV uint32_t scaled(T t, uint32_t pair, float scale)
{
    return pack(t, to_float(T{(uint16_t)pair}) * scale,
                to_float(T{(uint16_t)(pair >> 16)}) * scale);
}

/* A warp: 8 rows at a time along k, as the products read them. Block y: rows 8 y to 8 y + 7. */
template <class T, class W> DEV void expand_rows(const struct cu_expand_args &a)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, wide = 32 * W::SLICES;
    const uint32_t chunks = (a.k + wide - 1) / wide, index = blockIdx.y * 8 + g;
    const uint32_t at_warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint64_t row = a.first + (uint64_t)index;

    if (index >= a.rows)
        return;
    for (uint32_t chunk = at_warp; chunk < chunks; chunk += gridDim.x * (blockDim.x / 32)) {
        const uint4 v = load_stream(at<const uint4>(a.w) + (row * chunks + chunk) * 4 + t);
#pragma unroll
        for (int s = 0; s < W::SLICES; s++) {
            const uint32_t col = chunk * wide + s * 32 + t * 8;
            const uint32_t group = min(col >> a.packing.group_shift, a.packing.groups - 1);
            const float scale = scale_of(a.w, a.packing, row, group);
            uint32_t f[4];
            expand(T{}, W{}, v, s, base_of(T{}, W{}, zero_of(a.w, a.packing, row, group)), f);
            if (col < a.stride)
                *(uint4 *)(at<uint16_t>(a.dst) + (uint64_t)index * a.stride + col) =
                    make_uint4(scaled(T{}, f[0], scale), scaled(T{}, f[1], scale),
                               scaled(T{}, f[2], scale), scaled(T{}, f[3], scale));
        }
    }
}

#define PACKED(name, type, form)                                                                   \
    EK_KERNEL(ek_gemv8_##name, struct cu_gemm_args, 256)                                           \
    {                                                                                              \
        gemv<type, form, 1>(a);                                                                    \
    }                                                                                              \
    EK_KERNEL(ek_gemv16_##name, struct cu_gemm_args, 256)                                          \
    {                                                                                              \
        gemv<type, form, 2>(a);                                                                    \
    }                                                                                              \
    EK_KERNEL(ek_expand_##name, struct cu_expand_args, 256)                                        \
    {                                                                                              \
        expand_rows<type, form>(a);                                                                \
    }

PACKED(bf16_i8, bf16, i8)
PACKED(bf16_f8, bf16, f8)
PACKED(bf16_i4, bf16, i4)
PACKED(f16_i8, f16, i8)
PACKED(f16_f8, f16, f8)
PACKED(f16_i4, f16, i4)

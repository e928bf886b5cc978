/*
 * A cache of int8: its keys and values as they are written, and attention of rows of prompts over
 * it, of heads of up to 256 elements (attend_wide.cuh says how). Rows of decode: attend.cu.
 */
#include "kernels/cuda/attend_wide.cuh"

/* A block: one row, which ek_rope has rotated. A warp for each head of K and V: its largest number
 * is 127, or all are 0. A head with what is no finite number is 0 by a scale that is none. As
 * round8() of the CPU. */
EK_KERNEL(ek_keep, struct cu_rope_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, n = a.head_dim;
    if (row >= s->rows)
        return;
    const uint32_t slot = array_of<uint32_t>(s, s->kv_slot_at)[row];
    const uint32_t block = slot >> a.block_shift, offset = slot & ((1u << a.block_shift) - 1);

    for (uint32_t h = threadIdx.x / 32; h < 2 * a.kv_heads; h += blockDim.x / 32) {
        const uint32_t head = h % a.kv_heads;
        const cu_addr plane =
            s->kv + block * a.block_bytes + a.layer_at + (h < a.kv_heads ? 0 : a.plane_bytes);
        const uint64_t place = (head << a.block_shift) + offset;
        const uint64_t from = (uint64_t)row * a.x.stride + a.k_col + (uint64_t)h * n;
        uint32_t most = 0; /* as whole numbers magnitudes are in order */
        for (uint32_t i = lane; i < n; i += 32)
            most = max(most, __float_as_uint(load(&a.x, from + i)) & 0x7fffffffu);
        for (int i = 16; i > 0; i >>= 1)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, i));
        const float top = __uint_as_float(most);
        const bool finite = most < 0x7f800000u, zero = !finite || top < CU_I8_LEAST;
        const float by = zero ? 0.0f : 127.0f / top;
        for (uint32_t i = lane; i < n; i += 32)
            at<uint8_t>(plane)[place * n + i] =
                (uint8_t)(zero ? 128 : (int)rintf(load(&a.x, from + i) * by) + 128);
        if (lane == 0)
            at<float>(plane + a.scale_at)[place] = !finite ? __uint_as_float(0x7fc00000u)
                                                   : zero  ? 0.0f
                                                           : top / 127.0f;
    }
}

#define ATTEND_KEPT(type, dim, kernel)                                                             \
    kernel(ek_attend_kept_##type##_##dim##_i8, struct cu_attend_args, CU_WIDE_THREADS(dim))        \
    {                                                                                              \
        attend_wide<type, i8, dim, false>(a);                                                      \
    }

ATTEND_KEPT(bf16, 64, EK_KERNEL_ALONE)
ATTEND_KEPT(bf16, 128, EK_KERNEL_ALONE)
ATTEND_KEPT(bf16, 256, EK_KERNEL)
ATTEND_KEPT(f16, 64, EK_KERNEL_ALONE)
ATTEND_KEPT(f16, 128, EK_KERNEL_ALONE)
ATTEND_KEPT(f16, 256, EK_KERNEL)

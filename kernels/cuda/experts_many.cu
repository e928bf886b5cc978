/*
 * Products of experts that many rows meet: weights are read once for 32 or 64 pairs, not for 16 as
 * in experts.cu; 64 of plain weights only, for expanded ones take the registers. The same sums in
 * the same order.
 */
#include "kernels/cuda/experts.cuh"

#define EXPERTS(name, type, form, pairs)                                                           \
    EK_KERNEL(ek_expert_up##pairs##_##name, struct cu_experts_args, 256)                           \
    {                                                                                              \
        gate_and_up<type, form, pairs / 8>(a);                                                     \
    }                                                                                              \
    EK_KERNEL(ek_expert_down##pairs##_##name, struct cu_experts_args, 256)                         \
    {                                                                                              \
        down<type, form, pairs / 8>(a);                                                            \
    }

EXPERTS(bf16, bf16, plain, 32)
EXPERTS(bf16, bf16, plain, 64)
EXPERTS(bf16_i8, bf16, i8, 32)
EXPERTS(bf16_f8, bf16, f8, 32)
EXPERTS(bf16_i4, bf16, i4, 32)
EXPERTS(f16, f16, plain, 32)
EXPERTS(f16, f16, plain, 64)
EXPERTS(f16_i8, f16, i8, 32)
EXPERTS(f16_f8, f16, f8, 32)
EXPERTS(f16_i4, f16, i4, 32)

/*
 * Attention of layers whose heads have more than 256 elements, of up to 512: rows of prompts and
 * of decode, over caches of 16 bits, of E4M3 and of int8; attend_wide.cuh says how.
 */
#include "kernels/cuda/attend_wide.cuh"

#define ATTEND_WIDE(type)                                                                          \
    EK_KERNEL(ek_attend_wide_##type##_512, struct cu_attend_args, CU_WIDE_THREADS(512))            \
    {                                                                                              \
        attend_wide<type, plain, 512, true>(a);                                                    \
    }                                                                                              \
    EK_KERNEL(ek_attend_wide_##type##_512_f8, struct cu_attend_args, CU_WIDE_THREADS(512))         \
    {                                                                                              \
        attend_wide<type, f8, 512, true>(a);                                                       \
    }                                                                                              \
    EK_KERNEL(ek_attend_wide_##type##_512_i8, struct cu_attend_args, CU_WIDE_THREADS(512))         \
    {                                                                                              \
        attend_wide<type, i8, 512, true>(a);                                                       \
    }

ATTEND_WIDE(bf16)
ATTEND_WIDE(f16)

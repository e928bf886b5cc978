/* The tier "avx512": 16 lanes. Compiled with its own flags; entered only after cpu_tier_find() saw
 * that the machine has them. */
#include "kernels/cpu/vec_avx512.h"

const struct cpu_ops cpu_ops_avx512 = {VEC_FIELDS("avx512"), .scores = vec_scores, .mix = vec_mix,
                                       .gemm = vec_gemm, .expand = expand};

/* The tier "avx512": 16 lanes; and "avx512vnni", which multiplies int8 and int4 as whole numbers,
 * too, for processors from Cascade Lake and Ice Lake on. Compiled with its own flags; entered only
 * after cpu_tier_find() saw that the machine has them. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/cache.h"
#include "kernels/cpu/quads.h"

const struct cpu_ops cpu_ops_avx512 = {VEC_FIELDS("avx512"), .scores = vec_scores, .mix = vec_mix,
                                       .gemm = vec_gemm, .expand = expand};

const struct cpu_ops cpu_ops_avx512vnni = {
    VEC_FIELDS("avx512vnni"), .scores = vec_scores,
    .mix = vec_mix,           .gemm = vec_gemm,
    .expand = expand,         .quads = cpu_quads_vnni,
    .quads_bytes = 1,         .cache = &cpu_quad_cache_vnni,
};

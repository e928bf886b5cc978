/*
 * Products with plain weights for 17 to 64 rows of x: w is read once, k is cut where columns are
 * few, parts are added in order, as fused.cu does it for packed ones. Bound by reading w. One of
 * the choices (choices.c); else such products go to cuBLASLt.
 */
#include "kernels/cuda/tile.cuh"

/* Blocks: columns of c times parts of k. */
template <class T> DEV void skinny(const struct cu_gemm_args &a)
{
    const uint32_t rows = rows_of(&a), chunks = (a.k + 31) / 32;
    const struct tile_operand of[2] = {{at<const uint4>(a.x.at), a.x.stride / 8, rows},
                                       {at<const uint4>(a.w), chunks * 4, a.n}};
    float c[2][4][4] = {};

    tile_product<tile_halves<T>, 64, tile_put>(a, of, chunks, c, c, [](uint32_t, bool) {});
}

EK_KERNEL_ALONE(ek_fused64_bf16, struct cu_gemm_args, 256)
{
    skinny<bf16>(a);
}
EK_KERNEL_ALONE(ek_fused64_f16, struct cu_gemm_args, 256)
{
    skinny<f16>(a);
}

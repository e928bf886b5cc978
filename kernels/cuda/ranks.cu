/*
 * What ranks need besides: logits that come from all of them put where the sampler reads, and a
 * norm of which each has a share, in two halves with a sum over all ranks between them.
 */
#include "kernels/cuda/dev.cuh"

/* A block: the logits of one row that one rank computed. */
EK_KERNEL(ek_unpack, struct cu_unpack_args, 256)
{
    const uint32_t row = blockIdx.x, rank = blockIdx.y;
    if (row >= step_of(a.step)->logit_rows)
        return;
    const float *from = at<const float>(a.from) + ((uint64_t)rank * gridDim.x + row) * a.stride;
    float *to = at<float>(a.dst.at) + (uint64_t)row * a.dst.stride + a.begin[rank];
    const uint32_t count = a.begin[rank + 1] - a.begin[rank];

    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        to[i] = from[i];
}

EK_KERNEL(ek_squares, struct cu_squares_args, 256)
{
    __shared__ float work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint64_t from = (uint64_t)row * a.src.stride + a.first;
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
        float x = load(&a.src, from + i);
        sum += x * x;
    }
    sum = block_sum(sum, work);
    if (threadIdx.x == 0)
        at<float>(a.squares)[row] = sum;
}

EK_KERNEL(ek_norm_by, struct cu_squares_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint64_t from = (uint64_t)row * a.src.stride + a.first;
    const uint64_t to = (uint64_t)row * a.dst.stride + a.first;
    const float *w = at<const float>(a.weight);
    const float by = rsqrtf(at<const float>(a.squares)[row] / (float)a.whole + a.eps);

    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x)
        store(&a.dst, to + i, load(&a.src, from + i) * by * ((w ? w[i] : 1.0f) + a.offset));
}

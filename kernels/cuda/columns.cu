/*
 * Row by row, what few families need: columns taken from one value to another, gates, factors, and
 * norms of heads with weights of their own, of what is less its mean, or with a bias. Bound by
 * bandwidth, like rows.cu.
 */
#include "kernels/cuda/args_recur.h"
#include "kernels/cuda/dev.cuh"

DEV float gate_of(const struct cu_columns_args &a, float x)
{
    switch (a.act) {
    case EK_GATE_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case EK_GATE_SILU: return x / (1.0f + expf(-x));
    case EK_GATE_TIMES: return x;
    case EK_GATE_RELU: return x > 0.0f ? x : 0.0f;
    case EK_GATE_GELU_TANH:
        return 1.0f / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
    case EK_GATE_GELU: return 0.5f * (1.0f + erff(x * 0.7071067812f));
    case EK_GATE_STEP: return x > 0.0f ? 1.0f : 0.0f;
    case EK_GATE_CLIP: return fabsf(x) > a.rising ? a.rising / fabsf(x) : 1.0f;
    case EK_GATE_XIELU:
        if (x > 0.0f)
            return a.rising * x + a.slope;
        return a.falling * ((x < 0.0f ? expm1f(x) / x : 1.0f) - 1.0f) + a.slope;
    }
    return x;
}

/* Column i of what is changed, where `from` is the column of src that goes with it. */
DEV float column_value(const struct cu_columns_args &a, float dst, float src, float scale)
{
    if (a.kind == CU_COLUMNS_TAKE)
        return src;
    return dst * (a.kind == CU_COLUMNS_GATE ? gate_of(a, src) : scale);
}

/* A block: part of a row, four elements per thread and turn where runs are aligned for it. */
EK_KERNEL(ek_columns, struct cu_columns_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, first = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t turn = gridDim.y * blockDim.x;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint64_t src = (uint64_t)row * a.src.stride + a.first;
    const uint64_t dst = (uint64_t)row * a.dst.stride + a.to;
    const float scale = a.weight ? a.scale * at<const float>(a.weight)[0] : a.scale;

    if ((a.first | a.apart | a.group | a.to | a.width) % 4 == 0) {
        for (uint32_t i = first * 4; i < a.width; i += turn * 4) {
            float x[4] = {}, y[4] = {};
            if (a.kind != CU_COLUMNS_SCALE)
                load4(&a.src, src + (uint64_t)(i / a.group) * a.apart + i % a.group, x);
            if (a.kind != CU_COLUMNS_TAKE)
                load4(&a.dst, dst + i, y);
            for (int k = 0; k < 4; k++)
                y[k] = column_value(a, y[k], x[k], scale);
            store4(&a.dst, dst + i, y);
        }
        return;
    }
    for (uint32_t i = first; i < a.width; i += turn) {
        const uint64_t from = src + (uint64_t)(i / a.group) * a.apart + i % a.group;
        const float x = a.kind == CU_COLUMNS_SCALE ? 0.0f : load(&a.src, from);
        const float y = a.kind == CU_COLUMNS_TAKE ? 0.0f : load(&a.dst, dst + i);
        store(&a.dst, dst + i, column_value(a, y, x, scale));
    }
}

/* A block: one group of one row. The mean first, then the squares of what is less it. */
EK_KERNEL(ek_centre, struct cu_centre_args, 1024)
{
    __shared__ float work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, col = a.first + blockIdx.y * a.group;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint64_t from = (uint64_t)row * a.src.stride + col,
                   to = (uint64_t)row * a.dst.stride + col;
    const uint32_t own = a.own ? blockIdx.y * a.group : 0;
    const float *w = at<const float>(a.weight), *bias = at<const float>(a.bias);
    float mean = 0.0f, sum = 0.0f;

    if (a.centred) {
        for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x)
            mean += load(&a.src, from + i);
        mean = block_sum(mean, work) / (float)a.group;
    }
    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
        const float x = load(&a.src, from + i) - mean;
        sum += x * x;
    }
    const float scale = rsqrtf(block_sum(sum, work) / (float)a.group + a.eps);
    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
        const float x = (load(&a.src, from + i) - mean) * scale;
        store(&a.dst, to + i,
              x * ((w ? w[own + i] : 1.0f) + a.offset) + (bias ? bias[own + i] : 0.0f));
    }
}

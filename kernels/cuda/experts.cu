/*
 * Mixtures of experts: each row chooses its experts; pairs of row and expert are ordered by expert;
 * then for each expert that was chosen at all, 16 rows of its gate and up (then of its down) meet
 * 16 of its pairs at a time (experts_many.cu: 32 or 64); last each row adds its experts in order of
 * their number. Bound by reading the chosen experts once, as long as each has few rows.
 */
#include "kernels/cuda/experts.cuh"

typedef unsigned long long u64;

/* Larger logits first, of equals the lower expert; what is no number comes last. */
DEV u64 rank_of(float logit, uint32_t expert)
{
    uint32_t u = __float_as_uint(logit + 0.0f);
    uint32_t key = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (u64)(logit == logit ? key : 0u) << 32 | (0xffffffffu - expert);
}

struct routed { /* of a row */
    const struct cu_experts_args *a;
    uint64_t from;              /* its logits */
    float largest, all;         /* of softmax */
    const unsigned char *group; /* which compete, NULL = all */
};

/* Of softmax e^(logit - largest), to be divided by the sum over all. */
DEV float worth(const struct routed *r, uint32_t e)
{
    float logit = load(&r->a->router, r->from + e);
    return r->a->sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - r->largest);
}

/* What an expert competes with: its logit, where the order is the same. */
DEV float competes(const struct routed *r, uint32_t e)
{
    const struct cu_experts_args *a = r->a;
    if (!a->correction && a->groups == 0)
        return load(&a->router, r->from + e);
    if (r->group && !r->group[e / (a->count / a->groups)])
        return -INFINITY;
    float score = a->sigmoid ? worth(r, e) : worth(r, e) / r->all;
    return score + (a->correction ? at<const float>(a->correction)[e] : 0.0f);
}

DEV u64 warp_best(u64 best)
{
    for (int k = 16; k > 0; k >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, k);
        best = other > best ? other : best;
    }
    return best;
}

/* Of a group: the largest, or the sum of the two largest. */
DEV float group_worth(const struct routed *r, uint32_t group)
{
    const uint32_t n = r->a->count / r->a->groups;
    float first = -INFINITY, second = -INFINITY;

    for (uint32_t e = group * n; e < (group + 1) * n; e++) {
        float x = competes(r, e);
        if (x > first) {
            second = first;
            first = x;
        } else if (x > second) {
            second = x;
        }
    }
    return r->a->group_best > 1 ? first + second : first;
}

/* Marks the worthiest groups. */
DEV void keep_groups(struct routed *r, float *sum, unsigned char *kept)
{
    const uint32_t lane = threadIdx.x;

    for (uint32_t g = lane; g < r->a->groups; g += 32) {
        sum[g] = group_worth(r, g);
        kept[g] = 0;
    }
    __syncthreads();
    for (uint32_t i = 0; i < r->a->groups_top; i++) {
        u64 best = 0;
        for (uint32_t g = lane; g < r->a->groups; g += 32) {
            u64 v = kept[g] ? 0 : rank_of(sum[g], g);
            best = v > best ? v : best;
        }
        best = warp_best(best);
        __syncthreads();
        if (lane == 0)
            kept[0xffffffffu - (uint32_t)best] = 1;
        __syncthreads();
    }
    r->group = kept;
}

/* The largest logit and the sum over all of softmax. */
DEV void sum_all(struct routed *r)
{
    float all = 0.0f;
    u64 best = 0;

    for (uint32_t e = threadIdx.x; e < r->a->count; e += 32) {
        u64 v = rank_of(load(&r->a->router, r->from + e), e);
        best = v > best ? v : best;
    }
    r->largest = load(&r->a->router, r->from + (0xffffffffu - (uint32_t)warp_best(best)));
    for (uint32_t e = threadIdx.x; e < r->a->count; e += 32)
        all += worth(r, e);
    r->all = warp_sum(all);
}

/* A warp: the experts of one row, in order of their number, and what each contributes; see struct
 * ek_routing. */
EK_KERNEL(ek_route, struct cu_experts_args, 32)
{
    __shared__ uint32_t chosen[EK_MOST_EXPERTS_TOKEN];
    __shared__ float sums[EK_MOST_EXPERT_GROUPS];
    __shared__ unsigned char kept[EK_MOST_EXPERT_GROUPS];
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    if (row >= rows_here(&a))
        return;
    struct routed r = {&a, (uint64_t)(a.first + row) * a.router.stride, 0.0f, 1.0f, NULL};
    struct cu_route *to = at<struct cu_route>(a.route) + (uint64_t)row * a.top;
    u64 before = 0;
    float some = 0.0f;

    if (!a.sigmoid)
        sum_all(&r);
    if (a.groups > 0)
        keep_groups(&r, sums, kept);
    for (uint32_t i = 0; i < a.top; i++) {
        u64 best = 0;
        for (uint32_t e = lane; e < a.count; e += 32) {
            u64 v = rank_of(competes(&r, e), e);
            if ((i == 0 || v < before) && v > best)
                best = v;
        }
        before = warp_best(best);
        if (lane == 0)
            chosen[i] = 0xffffffffu - (uint32_t)before;
    }
    __syncthreads();
    for (uint32_t i = 0; i < a.top; i++)
        some += worth(&r, chosen[i]);
    const float least = a.sigmoid ? a.least : a.least * r.all;
    const float by = a.normalise ? fmaxf(some, least) : a.sigmoid ? 1.0f : r.all;
    for (uint32_t i = lane; i < a.top; i += 32) {
        uint32_t place = 0;
        for (uint32_t k = 0; k < a.top; k++)
            place += chosen[k] < chosen[i];
        to[place].expert = chosen[i];
        to[place].share = worth(&r, chosen[i]) / by * a.scale *
                          (a.each ? at<const float>(a.each)[chosen[i]] : 1.0f);
    }
}

/* One block: pairs by expert. Where in its expert's run a pair comes changes nothing. */
EK_KERNEL(ek_order, struct cu_experts_args, 1024)
{
    __shared__ uint32_t next[EK_MOST_EXPERTS];
    const uint32_t pairs = rows_here(&a) * a.top;
    const struct cu_route *route = at<const struct cu_route>(a.route);
    uint32_t *from = at<uint32_t>(a.from);

    for (uint32_t e = threadIdx.x; e < a.count; e += blockDim.x)
        next[e] = 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < pairs; p += blockDim.x)
        atomicAdd(&next[route[p].expert], 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0;
        for (uint32_t e = 0; e < a.count; e++) {
            uint32_t mine = next[e];
            next[e] = from[e] = sum;
            sum += mine;
        }
        from[a.count] = sum;
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < pairs; p += blockDim.x)
        at<uint32_t>(a.order)[atomicAdd(&next[route[p].expert], 1u)] = p;
}

#define EXPERTS(name, type, form)                                                                  \
    EK_KERNEL(ek_expert_up_##name, struct cu_experts_args, 256)                                    \
    {                                                                                              \
        gate_and_up<type, form, 2>(a);                                                             \
    }                                                                                              \
    EK_KERNEL(ek_expert_down_##name, struct cu_experts_args, 256)                                  \
    {                                                                                              \
        down<type, form, 2>(a);                                                                    \
    }

EXPERTS(bf16, bf16, plain)
EXPERTS(bf16_i8, bf16, i8)
EXPERTS(bf16_f8, bf16, f8)
EXPERTS(bf16_i4, bf16, i4)
EXPERTS(f16, f16, plain)
EXPERTS(f16_i8, f16, i8)
EXPERTS(f16_f8, f16, f8)
EXPERTS(f16_i4, f16, i4)
EXPERTS(f32, float, plain)

/* A block: one row; its experts are added in order of their number. */
EK_KERNEL(ek_expert_sum, struct cu_experts_args, 256)
{
    const uint32_t row = blockIdx.x;
    if (row >= rows_here(&a))
        return;
    const struct cu_route *route = at<const struct cu_route>(a.route) + (uint64_t)row * a.top;
    const float *out = at<const float>(a.out) + (uint64_t)row * a.top * a.out_stride;

    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < a.top; k++)
            sum += (a.share_in ? 1.0f : route[k].share) * out[(uint64_t)k * a.out_stride + i];
        store(&a.dst, (uint64_t)(a.first + row) * a.dst.stride + i, sum);
    }
}

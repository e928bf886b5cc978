/*
 * Kernels that are wrong on purpose, each beside a twin that is right: what the race checker must
 * find and must leave alone. A name that begins with wrong_ has one fault, right_ has none. Never
 * part of the backend.
 */
#include "kernels/cuda/dev.cuh"

struct wrong_args {
    cu_addr at, counter; /* f32; a count of blocks */
    uint32_t n, pad;
};

/* A value of the left neighbour, by way of shared memory. */
template <bool RIGHT> DEV void neighbour(const struct wrong_args &a)
{
    __shared__ float room[64];

    room[threadIdx.x] = (float)threadIdx.x;
    if (RIGHT)
        __syncthreads();
    at<float>(a.at)[blockIdx.x * 64 + threadIdx.x] = room[(threadIdx.x + 63) % 64];
}
EK_KERNEL(wrong_neighbour, struct wrong_args, 64)
{
    neighbour<false>(a);
}
EK_KERNEL(right_neighbour, struct wrong_args, 64)
{
    neighbour<true>(a);
}

/* The same within a warp. */
template <bool RIGHT> DEV void lanes(const struct wrong_args &a)
{
    __shared__ float room[64];

    room[threadIdx.x] = (float)threadIdx.x;
    const float sum = warp_sum(1.0f); /* lets lanes wait for each other, and orders nothing */
    if (RIGHT)
        __syncwarp();
    at<float>(a.at)[blockIdx.x * 64 + threadIdx.x] = sum + room[threadIdx.x ^ 1];
}
EK_KERNEL(wrong_lanes, struct wrong_args, 64)
{
    lanes<false>(a);
}
EK_KERNEL(right_lanes, struct wrong_args, 64)
{
    lanes<true>(a);
}

/* A barrier of lanes where one of the block is needed. */
EK_KERNEL(wrong_warp, struct wrong_args, 64)
{
    __shared__ float room[64];

    room[threadIdx.x] = (float)threadIdx.x;
    __syncwarp();
    at<float>(a.at)[threadIdx.x] = room[(threadIdx.x + 32) % 64];
}
EK_KERNEL(right_warp, struct wrong_args, 64)
{
    __shared__ float room[64];

    room[threadIdx.x] = (float)threadIdx.x;
    __syncwarp();
    at<float>(a.at)[threadIdx.x] = room[threadIdx.x ^ 31];
}

/* The last block adds what all have written. */
enum { RIGHT, NO_RELEASE, NO_ACQUIRE, NO_COUNT };
template <int KIND> DEV void last_block(const struct wrong_args &a)
{
    __shared__ uint32_t arrived;
    float *part = at<float>(a.at);

    part[blockIdx.x * 64 + threadIdx.x] = 1.0f;
    if (KIND != NO_RELEASE)
        __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        arrived = KIND == NO_COUNT ? blockIdx.x : atomicAdd(at<uint32_t>(a.counter), 1u);
    __syncthreads();
    if (arrived != gridDim.x - 1)
        return;
    if (KIND != NO_ACQUIRE)
        __threadfence();
    float sum = 0.0f;
    for (uint32_t i = 0; i < gridDim.x; i++)
        sum += part[i * 64 + threadIdx.x];
    part[gridDim.x * 64 + threadIdx.x] = sum;
    if (threadIdx.x == 0)
        *at<uint32_t>(a.counter) = 0;
}
EK_KERNEL(wrong_last_release, struct wrong_args, 64)
{
    last_block<NO_RELEASE>(a);
}
EK_KERNEL(wrong_last_acquire, struct wrong_args, 64)
{
    last_block<NO_ACQUIRE>(a);
}
EK_KERNEL(wrong_last_count, struct wrong_args, 64)
{
    last_block<NO_COUNT>(a);
}
EK_KERNEL(right_last, struct wrong_args, 64)
{
    last_block<RIGHT>(a);
}

/* The same with one fence, of the thread that counts: behind the barrier it is for the whole block;
 * before it, it is for that thread's own work only. */
template <bool RIGHT> DEV void one_fence(const struct wrong_args &a)
{
    __shared__ uint32_t arrived;
    float *part = at<float>(a.at);

    part[blockIdx.x * 64 + threadIdx.x] = 1.0f;
    if (!RIGHT && threadIdx.x == 0)
        __threadfence();
    __syncthreads();
    if (RIGHT && threadIdx.x == 0)
        __threadfence();
    if (threadIdx.x == 0) {
        arrived = atomicAdd(at<uint32_t>(a.counter), 1u);
        __threadfence();
    }
    __syncthreads();
    if (arrived == gridDim.x - 1)
        part[gridDim.x * 64 + threadIdx.x] = part[63 - threadIdx.x];
}
EK_KERNEL(wrong_one_fence, struct wrong_args, 64)
{
    one_fence<false>(a);
}
EK_KERNEL(right_one_fence, struct wrong_args, 64)
{
    one_fence<true>(a);
}

/* Blocks whose parts overlap by one. */
EK_KERNEL(wrong_overlap, struct wrong_args, 64)
{
    at<float>(a.at)[blockIdx.x * 63 + threadIdx.x] = 1.0f;
}
EK_KERNEL(right_overlap, struct wrong_args, 64)
{
    at<float>(a.at)[blockIdx.x * 64 + threadIdx.x] = 1.0f;
}

/* Two stages that copies fill in turns. */
enum { WELL, READ_EARLY, FILLED_EARLY, NO_BARRIER };
template <int KIND> DEV void stages(const struct wrong_args &a)
{
    EK_DYNAMIC(shared);
    const float4 *from = at<const float4>(a.at);
    float4 *stage = (float4 *)shared;
    float sum = 0.0f;

    async_16(&stage[threadIdx.x], &from[threadIdx.x], true);
    async_commit();
    for (uint32_t i = 0; i < 4; i++) {
        if (i < 3)
            async_16(&stage[(i + 1) % 2 * 64 + threadIdx.x], &from[(i + 1) * 64 + threadIdx.x],
                     true);
        async_commit();
        if (KIND == READ_EARLY)
            async_wait<2>();
        else
            async_wait<1>();
        if (KIND != NO_BARRIER)
            __syncthreads();
        sum += stage[i % 2 * 64 + (threadIdx.x ^ 33)].x;
        if (KIND != FILLED_EARLY)
            __syncthreads();
    }
    at<float>(a.at)[4 * 4 * 64 + threadIdx.x] = sum;
}
EK_KERNEL(wrong_read_early, struct wrong_args, 64)
{
    stages<READ_EARLY>(a);
}
EK_KERNEL(wrong_filled_early, struct wrong_args, 64)
{
    stages<FILLED_EARLY>(a);
}
EK_KERNEL(wrong_no_barrier, struct wrong_args, 64)
{
    stages<NO_BARRIER>(a);
}
EK_KERNEL(right_stages, struct wrong_args, 64)
{
    stages<WELL>(a);
}

/* Its own copy, read before it is there. */
template <bool RIGHT> DEV void own_copy(const struct wrong_args &a)
{
    EK_DYNAMIC(shared);
    float4 *room = (float4 *)shared;

    async_16(&room[threadIdx.x], at<const float4>(a.at) + threadIdx.x, true);
    async_commit();
    if (RIGHT)
        async_wait<0>();
    at<float>(a.at)[4 * 64 + threadIdx.x] = room[threadIdx.x].x;
    async_wait<0>();
}
EK_KERNEL(wrong_own_copy, struct wrong_args, 64)
{
    own_copy<false>(a);
}
EK_KERNEL(right_own_copy, struct wrong_args, 64)
{
    own_copy<true>(a);
}

/* A flag beside what was written plainly, by atomics that order nothing without fences. */
EK_KERNEL(wrong_mixed, struct wrong_args, 64)
{
    if (threadIdx.x == 0)
        *at<uint32_t>(a.counter) = 7;
    (void)atomicAdd(at<uint32_t>(a.counter), 1u);
}
EK_KERNEL(right_mixed, struct wrong_args, 64)
{
    if (blockIdx.x > 0)
        return;
    if (threadIdx.x == 0)
        *at<uint32_t>(a.counter) = 7;
    __syncthreads();
    (void)atomicAdd(at<uint32_t>(a.counter), 1u);
}

/* Shared memory of the block before. */
EK_KERNEL(wrong_unset, struct wrong_args, 64)
{
    __shared__ float room[64];

    if (blockIdx.x == 0)
        room[threadIdx.x] = 1.0f;
    __syncthreads();
    at<float>(a.at)[blockIdx.x * 64 + threadIdx.x] = room[threadIdx.x];
}
EK_KERNEL(right_unset, struct wrong_args, 64)
{
    __shared__ float room[64];

    room[threadIdx.x] = 1.0f;
    __syncthreads();
    at<float>(a.at)[blockIdx.x * 64 + threadIdx.x] = room[threadIdx.x];
}

/* More dynamic shared memory than the launch has; an index behind an array. */
EK_KERNEL(wrong_outside, struct wrong_args, 64)
{
    EK_DYNAMIC(shared);
    ((float *)shared)[threadIdx.x + 7 * a.n + 1] = 1.0f; /* one thread goes too far */
}
EK_KERNEL(wrong_index, struct wrong_args, 64)
{
    __shared__ float room[4][8];
    room[threadIdx.x / 8 % 4][threadIdx.x % 8 + a.n / 64] = 1.0f; /* one thread goes too far */
    at<float>(a.at)[threadIdx.x] = room[threadIdx.x / 8 % 4][threadIdx.x % 8];
}
EK_KERNEL(right_outside, struct wrong_args, 64)
{
    EK_DYNAMIC(shared);
    ((float *)shared)[threadIdx.x] = 1.0f;
    at<float>(a.at)[threadIdx.x] = ((float *)shared)[threadIdx.x];
}

/* Wide loads and copies where nothing is aligned for them. */
EK_KERNEL(wrong_wide, struct wrong_args, 64)
{
    const uint4 v = *(const uint4 *)(at<uint32_t>(a.at) + 4 * threadIdx.x + 2);
    at<uint32_t>(a.at)[64 * 8 + threadIdx.x] = v.x + v.y + v.z + v.w;
}
EK_KERNEL(wrong_pair, struct wrong_args, 64)
{
    const uint2 v = *(const uint2 *)(at<uint32_t>(a.at) + 4 * threadIdx.x + 1);
    at<uint32_t>(a.at)[64 * 8 + threadIdx.x] = v.x + v.y;
}
EK_KERNEL(wrong_matrix, struct wrong_args, 64)
{
    EK_DYNAMIC(shared);
    uint32_t r[4];

    for (uint32_t i = 0; i < 16; i++)
        ((uint16_t *)shared)[threadIdx.x * 16 + i] = 0;
    __syncthreads();
    load_transposed(r, shared + threadIdx.x * 16 + 8);
    at<uint32_t>(a.at)[threadIdx.x] = r[0];
}
EK_KERNEL(right_wide, struct wrong_args, 64)
{
    EK_DYNAMIC(shared);
    uint32_t r[4];

    for (uint32_t i = 0; i < 16; i++)
        ((uint16_t *)shared)[threadIdx.x * 16 + i] = 0;
    __syncthreads();
    load_transposed(r, shared + threadIdx.x * 16);
    const uint4 v = *(const uint4 *)(at<uint32_t>(a.at) + 4 * threadIdx.x);
    at<uint32_t>(a.at)[64 * 8 + threadIdx.x] = v.x + v.y + v.z + v.w + r[0];
}

/* Lanes that do not come to an exchange that names them, or are not named. */
EK_KERNEL(wrong_divergent, struct wrong_args, 64)
{
    float f = 1.0f;
    if (threadIdx.x % 2 == 0)
        f = __shfl_xor_sync(0xffffffffu, f, 2);
    at<float>(a.at)[threadIdx.x] = f;
}
EK_KERNEL(wrong_unnamed, struct wrong_args, 64)
{
    at<float>(a.at)[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}
EK_KERNEL(wrong_other, struct wrong_args, 64)
{
    float f = 1.0f;
    if (threadIdx.x % 2 == 0)
        f = __shfl_xor_sync(0x55555555u, f, 1); /* of a lane that is not there */
    at<float>(a.at)[threadIdx.x] = f;
}
EK_KERNEL(wrong_left, struct wrong_args, 64)
{
    if (threadIdx.x == 7)
        return;
    __syncthreads();
    at<float>(a.at)[threadIdx.x] = 1.0f;
}
EK_KERNEL(right_divergent, struct wrong_args, 64)
{
    float f = 1.0f;
    if (threadIdx.x % 2 == 0)
        f = __shfl_xor_sync(0x55555555u, f, 2);
    at<float>(a.at)[threadIdx.x] = f;
}

/* Sums of floats in the order in which threads come. */
EK_KERNEL(wrong_order, struct wrong_args, 64)
{
    atomicAdd(at<float>(a.at), 1.0f / (float)(threadIdx.x + 1));
}
EK_KERNEL(right_order, struct wrong_args, 64)
{
    atomicAdd(at<float>(a.at), (float)threadIdx.x);
}

/*
 * The KV pool: one range of addresses for the whole card, into which pieces of 64 MiB are mapped.
 * So a resize maps or unmaps at the end; blocks never move and keep their addresses, also for
 * recorded graphs. Where the driver cannot do that (some virtual machines), the pool is one plain
 * allocation and a resize is not offered. The host tier is ordinary memory, own or the caller's,
 * pinned if that is allowed (copies are slower if not).
 */
#include "kernels/cuda/kv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/states.h"

static int pool_bytes(const struct ek_device *d, uint32_t blocks, size_t *ret_bytes)
{
    return __builtin_mul_overflow(d->shape.block_bytes, (size_t)blocks, ret_bytes) ? EK_EDEVMEM : 0;
}

static uint64_t handles_for(size_t bytes)
{
    return bytes / CUDA_HANDLE + (bytes % CUDA_HANDLE != 0);
}

/* Unmaps from the end until `count` pieces are left. */
static void kv_shrink(struct ek_device *d, uint32_t count)
{
    while (d->kv_handle_count > count) {
        uint32_t i = --d->kv_handle_count;
        (void)d->cu.mem_unmap(d->kv + i * CUDA_HANDLE, CUDA_HANDLE);
        (void)d->cu.mem_release(d->kv_handles[i]);
    }
}

static int add_piece(struct ek_device *d)
{
    const struct cu_location here = {CU_LOCATION_DEVICE, d->ordinal};
    const struct cu_mem_prop prop = {.type = CU_MEM_PINNED, .location = here};
    const struct cu_access access = {here, CU_ACCESS_READWRITE};
    uint32_t i = d->kv_handle_count;
    cu_ptr at = d->kv + i * CUDA_HANDLE;

    int result = d->cu.mem_create(&d->kv_handles[i], CUDA_HANDLE, &prop, 0);
    if (result != CU_OK)
        return cu_code(result);
    result = d->cu.mem_map(at, CUDA_HANDLE, 0, d->kv_handles[i], 0);
    if (result == CU_OK) {
        result = d->cu.mem_access(at, CUDA_HANDLE, &access, 1);
        if (result != CU_OK)
            (void)d->cu.mem_unmap(at, CUDA_HANDLE);
    }
    if (result != CU_OK) {
        (void)d->cu.mem_release(d->kv_handles[i]);
        return cu_code(result);
    }
    d->kv_handle_count++;
    return 0;
}

/* To `bytes` in all; on failure as it was. */
static int map_pool(struct ek_device *d, size_t bytes)
{
    uint32_t before = d->kv_handle_count;
    uint64_t wanted = handles_for(bytes);
    int r = 0;

    if (wanted > d->kv_reserved / CUDA_HANDLE)
        return EK_EDEVMEM; /* more than the card has */
    while (r == 0 && d->kv_handle_count < wanted)
        r = add_piece(d);
    if (r < 0)
        kv_shrink(d, before);
    else
        kv_shrink(d, (uint32_t)wanted);
    return r;
}

/* The address range for all the card could ever hold. -ENOTSUP when it cannot be had. */
static int reserve(struct ek_device *d)
{
    size_t total = 0;

    if (!d->vmm || d->cu.device_memory(&total, d->ordinal) != CU_OK)
        return -ENOTSUP;
    uint64_t pieces = handles_for(total);
    d->kv_handles = calloc(pieces, sizeof(*d->kv_handles));
    if (!d->kv_handles)
        return -ENOMEM;
    if (d->cu.va_reserve(&d->kv, pieces * CUDA_HANDLE, 0, 0, 0) != CU_OK) {
        free(d->kv_handles);
        d->kv_handles = NULL;
        d->kv = 0;
        return -ENOTSUP;
    }
    d->kv_reserved = pieces * CUDA_HANDLE;
    return 0;
}

static int open_host(struct ek_device *d, uint32_t blocks)
{
    size_t bytes;

    if (blocks == 0)
        return 0;
    if (pool_bytes(d, blocks, &bytes) < 0)
        return -ENOMEM;
    if (!d->host_given) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return -ENOMEM;
        d->host_kv = at;
    }
    d->host_bytes = bytes;
    d->host_blocks = blocks;
    d->host_pinned = d->cu.host_register(d->host_kv, bytes, CU_HOST_PORTABLE) == CU_OK;
    return 0;
}

int cuda_kv_host(struct ek_device *d, void *at)
{
    if (d->kv)
        return -EINVAL;
    d->host_kv = at;
    d->host_given = true;
    return 0;
}

void cuda_kv_close(struct ek_device *d)
{
    if (d->kv_reserved > 0) {
        kv_shrink(d, 0);
        (void)d->cu.va_free(d->kv, d->kv_reserved);
    } else if (d->kv) {
        (void)d->cu.free(d->kv);
    }
    if (d->host_pinned)
        (void)d->cu.host_unregister(d->host_kv);
    if (d->host_kv && !d->host_given)
        (void)munmap(d->host_kv, d->host_bytes);
    free(d->kv_handles);
    d->kv_handles = NULL;
    d->kv = 0;
    d->kv_reserved = 0;
    d->host_kv = NULL;
    d->host_pinned = d->host_given = false;
    d->kv_blocks = d->host_blocks = 0;
    cuda_states_close(d);
}

int cuda_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    size_t bytes;

    if (!d->graph || d->kv || p->blocks == 0 || p->block_size != 1u << d->shape.block_shift)
        return -EINVAL;
    if (pool_bytes(d, p->blocks, &bytes) < 0)
        return EK_EDEVMEM;
    int r = reserve(d);
    if (r == 0)
        r = map_pool(d, bytes);
    else if (r == -ENOTSUP)
        r = cu_code(d->cu.alloc(&d->kv, bytes));
    if (r == 0)
        r = open_host(d, p->host_blocks);
    if (r == 0)
        r = cuda_states_open(d, p->states);
    if (r < 0) {
        cuda_kv_close(d);
        return r;
    }
    d->kv_blocks = p->blocks;
    atomic_store(&d->kv_bytes, bytes);
    atomic_store(&d->host_kv_bytes, d->host_bytes);
    return 0;
}

int cuda_kv_resize(struct ek_device *d, uint32_t blocks)
{
    size_t bytes;

    if (!d->kv || blocks == 0)
        return -EINVAL;
    if (!cuda_step_idle(d))
        return -EBUSY;
    if (pool_bytes(d, blocks, &bytes) < 0)
        return EK_EDEVMEM;
    if (d->kv_reserved == 0)
        return -ENOTSUP;
    int r = map_pool(d, bytes);
    if (r < 0)
        return r;
    d->kv_blocks = blocks;
    atomic_store(&d->kv_bytes, bytes);
    return 0;
}

/* What a copy of one block needs: a block that there is, no step in flight, and what the stream
 * still copies done. */
static int begin_copy(struct ek_device *d, uint32_t tier, uint32_t block)
{
    const size_t one = d->shape.block_bytes;
    const size_t count = tier == EK_TIER_HOST ? d->host_bytes / one : d->kv_blocks;

    if (tier > EK_TIER_HOST || !d->kv || block >= count)
        return -EINVAL;
    return cuda_step_idle(d) ? cu_code(d->cu.stream_wait(d->stream)) : -EBUSY;
}

int cuda_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    const size_t one = d->shape.block_bytes;

    if (tier == EK_TIER_STATE)
        return cuda_state_read(d, block, to);
    int r = begin_copy(d, tier, block);

    if (r < 0)
        return r;
    if (tier == EK_TIER_HOST) {
        memcpy(to, d->host_kv + block * one, one);
        return 0;
    }
    r = cu_code(d->cu.copy_out(to, d->kv + block * one, one, d->stream));
    return r < 0 ? r : cu_code(d->cu.stream_wait(d->stream));
}

int cuda_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    const size_t one = d->shape.block_bytes;

    if (tier == EK_TIER_STATE)
        return cuda_state_write(d, block, from);
    int r = begin_copy(d, tier, block);

    if (r < 0)
        return r;
    if (tier == EK_TIER_HOST) {
        memcpy(d->host_kv + block * one, from, one);
        return 0;
    }
    r = cu_code(d->cu.copy_in(d->kv + block * one, from, one, d->stream));
    return r < 0 ? r : cu_code(d->cu.stream_wait(d->stream));
}

/* Blocks that are neighbours on both sides move in one copy. */
static uint32_t run_of(const struct ek_block_copy *c, uint32_t count)
{
    uint32_t n = 1;

    while (n < count && c[n].from_tier == c->from_tier && c[n].to_tier == c->to_tier &&
           c[n].from == c->from + n && c[n].to == c->to + n)
        n++;
    return n;
}

static int copy_states(struct ek_device *d, const struct ek_block_copy *c, uint32_t n)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = cuda_state_copy(d, c[i].from, c[i].to);
    return r;
}

static int copy_run(struct ek_device *d, const struct ek_block_copy *c, uint32_t n,
                    cu_handle stream)
{
    if (c->from_tier == EK_TIER_STATE)
        return copy_states(d, c, n);
    size_t one = d->shape.block_bytes, bytes = n * one;
    cu_ptr from = d->kv + c->from * one, to = d->kv + c->to * one;
    bool overlaps = c->from < c->to + n && c->to < c->from + n;

    if (c->from_tier == EK_TIER_HOST && c->to_tier == EK_TIER_HOST) {
        int result = d->cu.stream_wait(stream); /* what is on its way there comes first */
        if (result == CU_OK)
            memmove(d->host_kv + c->to * one, d->host_kv + c->from * one, bytes);
        return cu_code(result);
    }
    if (c->from_tier == EK_TIER_HOST)
        return cu_code(d->cu.copy_in(to, d->host_kv + c->from * one, bytes, stream));
    if (c->to_tier == EK_TIER_HOST)
        return cu_code(d->cu.copy_out(d->host_kv + c->to * one, from, bytes, stream));
    int r = 0;
    if (!overlaps)
        return cu_code(d->cu.copy(to, from, bytes, stream));
    for (uint32_t i = 0; r == 0 && i < n; i++) /* one after the other, as the step says */
        if (c[i].from != c[i].to)
            r = cu_code(d->cu.copy(to + i * one, from + i * one, one, stream));
    return r;
}

int cuda_kv_copies_check(const struct ek_device *d, const struct ek_step *step)
{
    const struct ek_block_copy *c = ek_step_copies(step);

    for (uint32_t i = 0; i < step->copies; i++)
        if ((c[i].from_tier == EK_TIER_HOST && c[i].from >= d->host_blocks) ||
            (c[i].to_tier == EK_TIER_HOST && c[i].to >= d->host_blocks))
            return -EBADMSG;
    return 0;
}

int cuda_kv_copies(struct ek_device *d, const struct ek_step *step, cu_handle stream)
{
    const struct ek_block_copy *c = ek_step_copies(step);
    int r = 0;

    for (uint32_t i = 0, n; r == 0 && i < step->copies; i += n) {
        n = run_of(c + i, step->copies - i);
        r = copy_run(d, c + i, n, stream);
    }
    return r;
}

/*
 * The CUDA backend's table: probe, open, plan, load and numbers. The driver is opened anew by each
 * probe and open (the library stays loaded), so that nothing is global. Nothing here or below ends
 * the process: a device that is gone is a code.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cuda/attend_choose.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/group.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv.h"
#include "kernels/cuda/load.h"
#include "kernels/cuda/lt.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/rank.h"
#include "kernels/cuda/room.h"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/swap.h"

#define LEAST_MAJOR 8 /* compute capability 8.0: bf16 products, asynchronous copies */
#define CONTEXT                                                                                    \
    (600ull << 20) /* predicted: the driver's own, the kernels, recorded graphs, CUDA_LATER */
#define CONNECTIONS (512ull << 20) /* NCCL's buffers, where there are ranks */

/* The driver and the ordinal's handle in it. -ENODEV with a fault. */
static int find_device(const struct ek_open_params *p, struct cu_driver *cu, int *ret_device,
                       struct ek_fault *fault)
{
    const uint32_t which = ek_open_device(p, p->rank);
    int count = 0, device;

    int r = cu_driver_open(cu, fault);
    if (r < 0)
        return r;
    if (cu->device_count(&count) != CU_OK || count <= 0) {
        ek_fault_write(fault, "device", "The NVIDIA driver is installed but finds no card.");
        return -ENODEV;
    }
    if (which >= (uint32_t)count && p->stages > 1) {
        ek_fault_write(fault, "pipeline-parallel-size",
                       "--pipeline-parallel-size %u with --tensor-parallel-size %u needs %u cards, "
                       "and there is no card %u: the driver has %d; choose sizes whose product is "
                       "not more",
                       p->stages, ek_open_shares(p), p->ranks, which, count);
        return -ENODEV;
    }
    if (which >= (uint32_t)count && p->ranks > 1) {
        ek_fault_write(fault, "tensor-parallel-size",
                       "--tensor-parallel-size %u needs %u cards%s, and there is no card %u: the "
                       "driver has %d.",
                       p->ranks, ek_open_local(p), p->local > 0 ? " on each node" : "", which,
                       count);
        return -ENODEV;
    }
    if (which >= (uint32_t)count) {
        ek_fault_write(fault, "device", "There is no card %u: the driver has %d.", which, count);
        return -ENODEV;
    }
    if (cu->device_get(&device, (int)which) != CU_OK)
        return -ENODEV;
    int major = cu_attribute(cu, device, CU_ATTR_MAJOR),
        minor = cu_attribute(cu, device, CU_ATTR_MINOR);
    if (major < LEAST_MAJOR) {
        ek_fault_write(fault, "device",
                       "The card has compute capability %d.%d, and 8.0 (A100, RTX 30) is needed: "
                       "use --device cpu.",
                       major, minor);
        return -ENODEV;
    }
    *ret_device = device;
    return 0;
}

enum link { LINK_FAST, LINK_SLOW, LINK_NONE };

static enum link link_of(const struct cu_driver *cu, int a, int b)
{
    int can = 0, atomics = 0;

    if (cu->peer_access(&can, a, b) != CU_OK)
        return LINK_FAST; /* not known: nothing is said */
    if (!can)
        return LINK_NONE;
    if (cu->peer_attr(&atomics, CU_P2P_ATOMICS, a, b) != CU_OK || atomics)
        return LINK_FAST;
    return LINK_SLOW;
}

/* One sentence when cards that are to work together reach each other slowly. */
static void note_links(const struct cu_driver *cu, const struct ek_open_params *p, char *note,
                       size_t size)
{
    enum link worst = LINK_FAST;
    const uint32_t each = ek_open_shares(p); /* stages meet once, not in every layer */
    uint32_t pairs = 0, first[2] = {0};

    const uint32_t end = p->first + ek_open_local(p);
    for (uint32_t i = p->first; i < end; i++)
        for (uint32_t k = i + 1; k < end && k / each == i / each; k++) {
            uint32_t a = ek_open_device(p, i), b = ek_open_device(p, k);
            enum link link = link_of(cu, (int)a, (int)b);
            if (link == LINK_FAST || link < worst)
                continue;
            if (link > worst) {
                pairs = 0;
                first[0] = a;
                first[1] = b;
            }
            worst = link;
            pairs++;
        }
    if (worst == LINK_FAST)
        return;
    (void)snprintf(note, size,
                   "Cards %u and %u%s %s: what ranks add %s, and each token waits for it twice in "
                   "every layer; cards linked by NVLink, or one server on each, do better.",
                   first[0], first[1], pairs > 1 ? " (and other pairs)" : "",
                   worst == LINK_NONE ? "cannot reach each other's memory"
                                      : "are linked by PCIe alone",
                   worst == LINK_NONE ? "goes through the host's memory" : "is slow to travel");
}

static int cuda_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                      struct ek_fault *fault)
{
    struct ek_device_info info = {.threads = 1};
    struct cu_driver cu;
    size_t total = 0;
    int device;

    int r = find_device(p, &cu, &device, fault);
    if (r < 0)
        return r;
    char name[40] = "";
    if (cu.device_name(name, sizeof(name), device) != CU_OK ||
        cu.device_memory(&total, device) != CU_OK) {
        ek_fault_write(fault, "device", "The card does not answer: is it lost or in reset?");
        return -ENODEV;
    }
    (void)snprintf(info.name, sizeof(info.name), "%s, sm_%d%d", name,
                   cu_attribute(&cu, device, CU_ATTR_MAJOR),
                   cu_attribute(&cu, device, CU_ATTR_MINOR));
    info.memory_bytes = total;
    info.free_bytes = cuda_room_found(&cu, device, total);
    if (info.free_bytes == 0)
        info.free_bytes = total; /* nobody says what is free */
    if (p->ranks > 1 && p->rank == p->first) {
        struct nccl nccl;
        r = nccl_open(&nccl, p->ranks, fault);
        if (r < 0)
            return r;
    }
    if (p->ranks > 1 &&
        p->rank + 1 == p->first + ek_open_local(p)) /* now all are known to be there */
        note_links(&cu, p, info.note, sizeof(info.note));
    *ret_info = info;
    return 0;
}

static void free_flights(struct ek_device *d)
{
    for (int i = 0; i < 2; i++) {
        struct cuda_flight *f = &d->flight[i];
        cu_handle events[] = {f->begin, f->copying, f->copies, f->forward, f->done};
        char *pinned[] = {f->up, f->results, f->masks};
        for (size_t k = 0; k < sizeof(events) / sizeof(events[0]); k++)
            if (events[k])
                (void)d->cu.event_free(events[k]);
        for (size_t k = 0; k < sizeof(pinned) / sizeof(pinned[0]); k++)
            if (pinned[k])
                (void)d->cu.host_free(pinned[k]);
        *f = (struct cuda_flight){.state = CUDA_FREE};
    }
}

static void table_unload(struct ek_device *d)
{
    if (d->stream)
        (void)d->cu.stream_wait(d->stream);
    (void)cuda_stream_settle(d); /* what was begun uses what is freed here */
    cuda_times_close(d);
    cuda_graphs_free(d);
    cuda_lt_close(d->lt);
    cuda_kernels_unload(d);
    cuda_swap_close(d);
    free_flights(d);
    cuda_stream_close(d);
    if (d->weight_memory.at)
        (void)d->cu.free(d->weight_memory.at);
    if (d->arena.at)
        (void)d->cu.free(d->arena.at);
    free(d->weights);
    free(d->values);
    free(d->rope_at);
    free(d->draws);
    free(d->swap_work);
    free(d->program);
    d->lt = NULL;
    d->weight_memory = d->arena = (struct cuda_buffer){0};
    d->weights = NULL;
    d->values = NULL;
    d->rope_at = NULL;
    d->draws = NULL;
    d->swap_work = NULL;
    d->program = NULL;
    d->graph = NULL;
}

static void cuda_close(struct ek_device *d)
{
    if (!d)
        return;
    if (d->context)
        (void)d->cu.ctx_set(d->context);
    cuda_rank_end(d);
    if (d->stream)
        (void)d->cu.stream_wait(d->stream);
    cuda_kv_close(d);
    table_unload(d);
    if (d->stream)
        (void)d->cu.stream_free(d->stream);
    if (d->retained)
        (void)d->cu.ctx_release(d->ordinal);
    free(d);
}

/* One sentence for a context that cannot be made. */
static int no_context(const struct cu_driver *cu, int result, struct ek_fault *fault)
{
    if (result == CU_OUT_OF_MEMORY) {
        ek_fault_write(fault, "device",
                       "The card has no memory left for a context: another process holds it.");
        return EK_EDEVMEM;
    }
    if (result == CU_DEVICE_BUSY || result == CU_DEVICE_UNAVAILABLE)
        ek_fault_write(fault, "device",
                       "The card is in exclusive use by another process: end that one or choose "
                       "another card.");
    else if (result == CU_ECC_UNCORRECTABLE)
        ek_fault_write(fault, "device",
                       "The card has an uncorrectable memory error: reset or replace it.");
    else
        ek_fault_write(fault, "device", "The card cannot be opened: %s.", cu_name(cu, result));
    return EK_EDEVICE;
}

static int cuda_open(const struct ek_open_params *p, struct ek_device **ret_device,
                     struct ek_fault *fault)
{
    struct ek_device *d = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    int r = find_device(p, &d->cu, &d->ordinal, fault);
    if (r < 0)
        goto out;
    size_t total = 0;
    if (d->cu.device_memory(&total, d->ordinal) == CU_OK)
        d->found_bytes = cuda_room_found(&d->cu, d->ordinal, total);
    int result = d->cu.ctx_retain(&d->context, d->ordinal);
    d->retained = result == CU_OK;
    if (result == CU_OK)
        result = d->cu.ctx_set(d->context);
    if (result == CU_OK)
        result = d->cu.stream_new(&d->stream, CU_STREAM_NON_BLOCKING);
    if (result != CU_OK) {
        r = no_context(&d->cu, result, fault);
        goto out;
    }
    d->group = p->group;
    if (d->group)
        cuda_group_words(d->group, d->collectives, sizeof(d->collectives));
    d->rank_index = p->rank;
    d->multiprocessors = (uint32_t)cu_attribute(&d->cu, d->ordinal, CU_ATTR_SM_COUNT);
    d->multiprocessors += d->multiprocessors == 0;
    d->capability = cu_attribute(&d->cu, d->ordinal, CU_ATTR_MAJOR) * 10 +
                    cu_attribute(&d->cu, d->ordinal, CU_ATTR_MINOR);
    d->vmm = cu_attribute(&d->cu, d->ordinal, CU_ATTR_VMM) != 0;
    *ret_device = d;
    d = NULL;
out:
    cuda_close(d);
    return r;
}

static int cuda_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
                     struct ek_plan *ret_plan, struct ek_fault *fault)
{
    struct cuda_shape s;

    int r = cuda_graph_offered(q->graph, q->block_size, fault);
    if (r == 0)
        r = cuda_shape_of(q, &s, NULL, NULL, NULL);
    if (r == 0)
        r = cuda_shape_offload(q, &s, fault);
    if (r < 0)
        return r;
    *ret_plan = (struct ek_plan){
        .weight_bytes = s.weight_bytes,
        .host_weight_bytes = s.host_bytes,
        .staging_bytes = CUDA_OFFLOAD_SLOTS * s.slot_bytes,
        .offload_most_bytes = s.offload.most_bytes,
        .staging_most_bytes = CUDA_OFFLOAD_SLOTS * s.offload.slot_most + s.pair_most,
        .activation_bytes = s.arena_bytes,
        .slot_bytes = 0, /* in the arena */
        .block_bytes = s.block_bytes,
        .state_bytes = s.state_bytes,
        .overhead_bytes = CONTEXT + CUDA_HANDLE + (p->ranks > 1 ? CONNECTIONS : 0)};
    return 0;
}

static int make_flights(struct ek_device *d)
{
    int result = CU_OK;

    for (int i = 0; result == CU_OK && i < 2; i++) {
        struct cuda_flight *f = &d->flight[i];
        cu_handle *events[] = {&f->begin, &f->copying, &f->copies, &f->forward, &f->done};
        struct {
            char **at;
            size_t bytes;
        } pinned[] = {{&f->up, d->shape.step_bytes},
                      {&f->results, d->shape.result_bytes},
                      {&f->masks, d->shape.mask_bytes}};
        for (size_t k = 0; k < sizeof(pinned) / sizeof(pinned[0]); k++)
            if (d->cu.host_alloc((void **)pinned[k].at, pinned[k].bytes + 1, CU_HOST_PORTABLE) !=
                CU_OK)
                return -ENOMEM;
        for (size_t k = 0; result == CU_OK && k < sizeof(events) / sizeof(events[0]); k++)
            result = d->cu.event_new(events[k], CU_EVENT_DEFAULT);
    }
    return cu_code(result);
}

static int take_buffer(struct ek_device *d, size_t bytes, struct cuda_buffer *ret_buffer)
{
    cu_ptr at;

    int result = d->cu.alloc(&at, bytes + 1);
    if (result == CU_OK)
        *ret_buffer = (struct cuda_buffer){at, bytes};
    return cu_code(result);
}

static int table_take_memory(struct ek_device *d, struct ek_fault *fault)
{
    const struct ek_graph *g = d->graph;

    d->weights = calloc(g->weight_count + 1, sizeof(*d->weights));
    d->values = calloc(g->value_count + 1, sizeof(*d->values));
    d->rope_at = calloc(g->rope_count + 1, sizeof(*d->rope_at));
    d->draws = calloc((size_t)d->plan.ceiling.seqs + 1, sizeof(*d->draws));
    d->swap_work = calloc(2 * (size_t)d->plan.ceiling.copies + 1, sizeof(*d->swap_work));
    if (!d->weights || !d->values || !d->rope_at || !d->draws || !d->swap_work)
        return -ENOMEM;
    int r = cuda_shape_of(&d->plan, &d->shape, d->weights, d->values, d->rope_at);
    if (r == 0)
        r = cuda_shape_offload(&d->plan, &d->shape, fault);
    if (r == 0)
        r = take_buffer(d, d->shape.weight_bytes, &d->weight_memory);
    if (r == 0 && d->shape.slot_bytes > 0)
        r = take_buffer(d, CUDA_OFFLOAD_SLOTS * d->shape.slot_bytes, &d->slots);
    if (r == 0)
        r = take_buffer(d, d->shape.arena_bytes, &d->arena);
    if (r == EK_EDEVMEM) {
        size_t left = 0, total = 0;
        (void)d->cu.mem_info(&left, &total);
        ek_fault_write(fault, "device",
                       "The card has %.2f GiB free of %.2f, and weights and activations need "
                       "%.2f: does another process hold its memory?",
                       (double)left / 0x1p30, (double)total / 0x1p30,
                       (double)(d->shape.weight_bytes + d->slots.bytes + d->shape.arena_bytes) /
                           0x1p30);
    }
    if (r == 0)
        r = cuda_stream_open(d, fault);
    if (r == 0)
        r = cu_code(d->cu.fill(d->arena.at, 0, d->shape.zeroed_bytes, d->stream));
    return r;
}

/* No slot has sampled yet. */
static int begin_slots(struct ek_device *d)
{
    const uint32_t count = d->plan.ceiling.seqs;
    struct cu_slot *slots = calloc((size_t)count + 1, sizeof(*slots));

    if (!slots)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        slots[i].last = -1;
    int result =
        d->cu.copy_in(cuda_arena(d, d->shape.slot_at), slots, count * sizeof(*slots), d->stream);
    if (result == CU_OK)
        result = d->cu.stream_wait(d->stream);
    free(slots);
    return cu_code(result);
}

static int cuda_load(struct ek_device *d, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    if (d->graph)
        return -EBUSY;
    int r = cu_code(d->cu.ctx_set(d->context));
    if (r == 0)
        r = cuda_graph_offered(q->graph, q->block_size, fault);
    if (r < 0)
        return r;
    d->plan = *q;
    d->graph = q->graph;
    cuda_choices_read(d);
    r = table_take_memory(d, fault);
    if (r == 0)
        r = cuda_swap_open(d);
    if (r == 0)
        r = cuda_kernels_load(d, fault);
    if (r == 0)
        r = make_flights(d);
    if (r == 0)
        r = cuda_attend_choose(d, fault);
    if (r == 0 && d->group)
        r = cuda_rank_begin(d, fault);
    if (r == 0)
        r = begin_slots(d);
    if (r == 0)
        r = cuda_program_make(d);
    if (r == 0)
        r = cuda_weights_load(d, files, progress, ctx, fault);
    uint64_t stream_us = 0;
    if (r == 0)
        r = cuda_stream_time(d, &stream_us);
    if (r == 0) {
        d->lt = cuda_lt_open(d);
        d->fused_rows = cuda_fused_rows(d->capability, d->lt != NULL);
        d->e4m3_rows = cuda_e4m3_rows(d->capability, d->lt != NULL);
        d->times = cuda_times_open(d);
        d->records = !d->times;
        r = q->share > 0 ? cuda_room_measure(d) : 0;
    }
    if (r < 0) {
        table_unload(d);
        return r;
    }
    atomic_store(&d->weight_bytes, d->weight_memory.bytes + d->slots.bytes);
    atomic_store(&d->host_weight_bytes, d->shape.host_bytes);
    atomic_store(&d->stream_bytes, d->shape.stream_bytes);
    atomic_store(&d->stream_us, stream_us);
    atomic_store(&d->stream_rows, d->shape.offload.few_rows);
    atomic_store(&d->arena_bytes, d->arena.bytes);
    atomic_store(&d->attention, cuda_attend_name(d));
    return 0;
}

static int with_context(struct ek_device *d)
{
    return cu_code(d->cu.ctx_set(d->context));
}

static int cuda_open_pool(struct ek_device *d, const struct ek_kv_params *p)
{
    int r = with_context(d);
    return r < 0 ? r : cuda_kv_open(d, p);
}

static int cuda_resize_pool(struct ek_device *d, uint32_t blocks)
{
    int r = with_context(d);
    return r < 0 ? r : cuda_kv_resize(d, blocks);
}

static size_t cuda_block_bytes(const struct ek_device *d, uint32_t tier)
{
    return tier == EK_TIER_STATE ? d->shape.state_bytes : d->shape.block_bytes;
}

static int cuda_read_block(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    int r = with_context(d);
    return r < 0 ? r : cuda_kv_read(d, tier, block, to);
}

static int cuda_write_block(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    int r = with_context(d);
    return r < 0 ? r : cuda_kv_write(d, tier, block, from);
}

static void cuda_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    uint64_t own = atomic_load(&d->weight_bytes) + atomic_load(&d->arena_bytes);

    *ret_stats = (struct ek_device_stats){
        .weight_bytes = atomic_load(&d->weight_bytes),
        .activation_bytes = atomic_load(&d->arena_bytes),
        .kv_bytes = atomic_load(&d->kv_bytes),
        .host_kv_bytes = atomic_load(&d->host_kv_bytes),
        .state_bytes = atomic_load(&d->state_bytes),
        .pool_reserved_bytes = own, /* all taken at start: nothing comes and goes */
        .pool_used_bytes = own,
        .pool_reserved_high_bytes = own,
        .pool_used_high_bytes = own,
        .steps = atomic_load(&d->steps),
        .busy_us = atomic_load(&d->busy_us),
        .host_weight_bytes = atomic_load(&d->host_weight_bytes),
        .stream_bytes = atomic_load(&d->stream_bytes),
        .stream_us = atomic_load(&d->stream_us),
        .stream_rows = atomic_load(&d->stream_rows),
        .attention = atomic_load(&d->attention),
        .products = atomic_load(&d->attention) ? d->products : NULL,
        .collectives = atomic_load(&d->attention) && d->collectives[0] ? d->collectives : NULL,
        .note = atomic_load(&d->attention) && d->note[0] ? d->note : NULL,
        .room_bytes = atomic_load(&d->room_bytes),
        .context_bytes = atomic_load(&d->context_bytes),
        .others_bytes = atomic_load(&d->others_bytes),
    };
}

static int cuda_forward(struct ek_device *d, const struct ek_step *step)
{
    return d->rank ? cuda_rank_forward(d, step) : cuda_step_forward(d, step);
}

static int cuda_sample(struct ek_device *d, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    return d->rank ? cuda_rank_sample(d, step, masks) : cuda_step_sample(d, step, masks);
}

static int cuda_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result, size_t bytes,
                     uint64_t timeout_us)
{
    return d->rank ? cuda_rank_wait(d, id, ret_result, bytes, timeout_us)
                   : cuda_step_wait(d, id, ret_result, bytes, timeout_us);
}

const struct ek_backend *ek_backend_get(uint32_t abi);

__attribute__((visibility("default"))) const struct ek_backend *ek_backend_get(uint32_t abi)
{
    static const struct ek_backend table = {
        .abi = EK_BACKEND_ABI,
        .size = sizeof(struct ek_backend),
        .name = "cuda",
        .probe = cuda_probe,
        .open = cuda_open,
        .close = cuda_close,
        .plan = cuda_plan,
        .load = cuda_load,
        .kv_open = cuda_open_pool,
        .kv_resize = cuda_resize_pool,
        .forward = cuda_forward,
        .sample = cuda_sample,
        .wait = cuda_wait,
        .stats = cuda_stats,
        .group_new = cuda_group_new,
        .group_abort = cuda_group_abort,
        .group_free = cuda_group_free,
        .kv_bytes = cuda_block_bytes,
        .kv_read = cuda_read_block,
        .kv_write = cuda_write_block,
        .kv_host = cuda_kv_host,
    };
    return abi == EK_BACKEND_ABI ? &table : NULL;
}

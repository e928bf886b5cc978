/*
 * What a card has left for the pool of KV blocks, measured at the end of a load: context, kernels,
 * cuBLASLt, NCCL, weights and the arena are there, and steps of decode are recorded. Their launches
 * read where the pool lies from the step, so it need not be mapped for that. What is still guessed
 * is named: CUDA_LATER, a piece of the pool that is not filled, and GRAPHS_LAYER where nothing is
 * recorded ahead.
 *
 * The process may have its share of the card's memory. What others had before there was a context,
 * by NVML, is theirs; where that is not known, all that is taken counts as this process's. What
 * others took since cannot be told from our own and makes the pool smaller; what they gave back
 * since makes it larger by the context at most.
 */
#include "kernels/cuda/room.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/nvml.h"

#define GRAPHS_LAYER (12ull << 20) /* of steps that are recorded later; the planner's number */

size_t cuda_room_found(const struct cu_driver *cu, int device, size_t total_bytes)
{
    const struct cuda_bus at = {.domain = (uint32_t)cu_attribute(cu, device, CU_ATTR_PCI_DOMAIN),
                                .bus = (uint32_t)cu_attribute(cu, device, CU_ATTR_PCI_BUS),
                                .device = (uint32_t)cu_attribute(cu, device, CU_ATTR_PCI_DEVICE)};

    return cuda_nvml_free(&at, total_bytes);
}

static uint64_t less(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}

/* Ranks load for different times and would wait for one another; weights that are copied in each
 * step (stream.c) are not where a recording of now finds them. */
static bool records_ahead(const struct ek_device *d)
{
    return d->records && !d->group && d->shape.slot_bytes == 0 && d->shape.host_bytes == 0;
}

int cuda_room_measure(struct ek_device *d)
{
    const uint64_t planned = d->weight_memory.bytes + d->slots.bytes + d->arena.bytes;
    uint64_t later = CUDA_LATER + CUDA_HANDLE;
    size_t free_bytes = 0, total = 0;
    bool all = false;
    int r = 0;

    if (records_ahead(d))
        r = cuda_graphs_record(d, &all);
    if (r == 0)
        r = cu_code(d->cu.stream_wait(d->stream));
    if (r == 0)
        r = cu_code(d->cu.mem_info(&free_bytes, &total));
    if (r < 0)
        return r;
    if (d->records && !all)
        later += GRAPHS_LAYER * d->graph->layers;
    const uint64_t others = d->found_bytes > 0 ? less(total, d->found_bytes) : 0;
    uint64_t own = less(less(total, free_bytes), others);
    if (own < planned) /* others have given back what they had: that is not ours */
        own = planned;
    const uint64_t share = less((uint64_t)((double)total * d->plan.share), own);
    const uint64_t room = less(share < free_bytes ? share : free_bytes, later);

    atomic_store(&d->room_bytes, room > 0 ? room : 1); /* 0 says that it is not known */
    atomic_store(&d->context_bytes, less(own, planned));
    atomic_store(&d->others_bytes, others);
    return 0;
}

/*
 * The CPU's table: open, plan, load, the KV pools and numbers; probe.c has what the machine offers.
 * The work is done by worker.c and below. The KV pools are one mapping each, touched only as blocks
 * are written; a resize moves the mapping, so block ids and contents stay.
 */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/form_choice.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/nodes.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/probe.h"
#include "kernels/cpu/shape.h"
#include "kernels/cpu/states.h"
#include "kernels/cpu/weights.h"
#include "kernels/cpu/worker.h"
#include "kernels/shard.h"

static void unload(struct ek_device *d)
{
    cpu_unmap(&d->weight_memory);
    cpu_unmap(&d->arena);
    cpu_unmap(&d->slot_memory);
    free(d->weights);
    free(d->values);
    free(d->cells);
    free(d->rope_at);
    d->weights = NULL;
    d->values = NULL;
    d->cells = NULL;
    d->rope_at = NULL;
    d->slots = NULL;
    d->last = NULL;
    d->graph = NULL;
}

static void cpu_close(struct ek_device *d)
{
    if (!d)
        return;
    cpu_worker_free(d->worker);
    if (d->peers)
        d->peers->ops->leave(d->peers);
    cpu_pool_free(d->pool);
    cpu_unmap(&d->kv);
    if (!d->host_given)
        cpu_unmap(&d->host_kv);
    cpu_unmap(&d->states);
    unload(d);
    free(d);
}

static int cpu_open(const struct ek_open_params *p, struct ek_device **ret_device,
                    struct ek_fault *fault)
{
    const struct cpu_ops *ops = cpu_tier_find(p->isa, fault);
    const bool shares = p->ranks > 1 && p->group;
    cpu_set_t cores;
    int r = -ENOMEM;

    if (p->device != 0)
        return -ENODEV;
    if (!ops || cpu_check_reserve(p, fault) < 0)
        return -EBADMSG;
    struct ek_device *d = calloc(1, sizeof(*d));
    if (!d)
        return r;
    d->ops = ops;
    d->forms = p->forms;
    d->heap = p->rank == p->first;
    d->threads = cpu_rank_threads(p);
    if (shares)
        (void)cpu_rank_cores(p->rank - p->first, ek_open_local(p), p->reserve, cpu_all_threads(p),
                             &cores);
    else if (p->reserve > 0)
        (void)cpu_rank_cores(0, 1, p->reserve, d->threads, &cores);
    r = cpu_pool_new(d->threads, shares || p->reserve > 0 ? &cores : NULL, &d->pool);
    if (r == 0 && shares)
        r = cpu_group_join(p->group, p->rank, d->pool, &d->peers);
    if (r < 0)
        goto out;
    r = cpu_worker_new(d, &d->worker);
    if (r < 0)
        goto out;
    *ret_device = d;
    d = NULL;
out:
    cpu_close(d);
    return r;
}

static int cpu_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
                    struct ek_plan *ret_plan, struct ek_fault *fault)
{
    uint32_t threads = cpu_rank_threads(p);
    struct cpu_shape s;

    if (q->offload_bytes > 0) {
        ek_fault_set(fault, "cpu-offload-gb",
                     "--cpu-offload-gb is for cards: the CPU backend has all weights in host "
                     "memory already; leave it out, or use --device cuda");
        return -ENOTSUP;
    }
    int r = cpu_graph_offered(q->graph, fault);
    if (r == 0)
        r = cpu_shape_of(q, threads, &s, NULL, NULL, NULL);
    if (r < 0)
        return r;
    *ret_plan = (struct ek_plan){
        .weight_bytes = s.weight_bytes,
        .activation_bytes = s.arena_bytes,
        .slot_bytes = s.slot_bytes,
        .block_bytes = s.block_bytes,
        .state_bytes = s.state_bytes,
        .overhead_bytes = (uint64_t)(threads + 1) * CPU_STACK_BYTES +
                          2 * ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs,
                                              q->graph->hidden) +
                          sizeof(struct ek_device) +
                          q->graph->weight_count * sizeof(struct cpu_weight) +
                          q->graph->value_count * sizeof(struct cpu_value) +
                          q->graph->layers * sizeof(struct cpu_cells),
    };
    if (p->local > 0 && p->rank == p->first && p->local < ek_open_shares(p))
        ret_plan->overhead_bytes += cpu_group_span_bytes(ek_open_shares(p));
    return 0;
}

static int take_memory(struct ek_device *d)
{
    const struct ek_graph *g = d->graph;

    d->weights = calloc(g->weight_count + 1, sizeof(*d->weights));
    d->values = calloc(g->value_count + 1, sizeof(*d->values));
    d->cells = calloc(g->layers + 1ull, sizeof(*d->cells));
    d->rope_at = calloc(g->rope_count + 1, sizeof(*d->rope_at));
    if (!d->weights || !d->values || !d->cells || !d->rope_at)
        return -ENOMEM;
    (void)cpu_cells_of(g, d->plan.block_size, d->cells);
    int r = cpu_shape_of(&d->plan, d->threads, &d->shape, d->weights, d->values, d->rope_at);
    if (r < 0)
        return r;
    if (cpu_map(d->shape.weight_bytes, true, &d->weight_memory) < 0 ||
        cpu_map(d->shape.arena_bytes, true, &d->arena) < 0 ||
        cpu_map(d->shape.slot_bytes, false, &d->slot_memory) < 0)
        return EK_EDEVMEM;
    d->slots = (struct cpu_slot *)(void *)d->slot_memory.at;
    d->last = (int32_t *)(void *)((char *)d->slot_memory.at + d->shape.last_at);
    for (uint32_t i = 0; i < d->plan.ceiling.seqs; i++)
        d->last[i] = -1;
    return 0;
}

static int cpu_choose(const struct ek_open_params *p, const struct ek_graph *graph,
                      struct ek_forms *forms, struct ek_fault *fault)
{
    const struct cpu_ops *ops = cpu_tier_find(p->isa, fault);
    return ops ? cpu_forms_choose(ops, graph, forms) : -EBADMSG;
}

static int cpu_load(struct ek_device *d, const struct ek_plan_request *q,
                    const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                    struct ek_fault *fault)
{
    if (d->graph)
        return -EBUSY;
    int r = cpu_graph_offered(q->graph, fault);
    if (r < 0)
        return r;
    if (q->block_size == 0 || CPU_TILE % q->block_size != 0) {
        ek_fault_set(fault, "block-size", "The block size must be a power of two up to %u, not %u.",
                     CPU_TILE, q->block_size);
        return -EBADMSG;
    }
    const uint32_t ranks = d->peers ? d->peers->ranks : 0;
    const uint32_t stages = d->peers && d->peers->stages > 1 ? d->peers->stages : 0;
    if (q->graph->stages != stages || q->graph->ranks != (stages > 0 && ranks == 1 ? 0 : ranks))
        return -EINVAL;
    if (d->peers)
        cpu_pool_pin(d->pool); /* what it packs lies where it computes */
    for (uint32_t i = 0; d->peers && i <= d->peers->ranks; i++)
        d->vocab_begin[i] = ek_shard_vocab(q->graph->vocab, i, d->peers->ranks);
    d->plan = *q;
    d->graph = q->graph;
    r = take_memory(d);
    if (r == 0) {
        cpu_forms_apply(d, d->forms);
        r = cpu_weights_load(d, files, progress, ctx, fault);
    }
    if (r == 0)
        r = cpu_worker_ready(d->worker, q);
    if (r < 0) {
        unload(d);
        return r;
    }
    atomic_store(&d->weight_bytes, d->weight_memory.bytes);
    atomic_store(&d->arena_bytes, d->arena.bytes + d->slot_memory.bytes);
    return 0;
}

static int pool_bytes(size_t block_bytes, uint32_t blocks, size_t *ret_bytes)
{
    return __builtin_mul_overflow(block_bytes, blocks, ret_bytes) ? EK_EDEVMEM : 0;
}

static int cpu_kv_host(struct ek_device *d, void *at)
{
    if (d->kv.at)
        return -EINVAL;
    d->host_given = at;
    return 0;
}

static int cpu_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    struct cpu_memory kv = {0}, host = {0}, states = {0};
    size_t bytes, host_bytes;

    if (!d->graph || d->kv.at || p->blocks == 0 || p->block_size != d->shape.block_size)
        return -EINVAL;
    if (pool_bytes(d->shape.block_bytes, p->blocks, &bytes) < 0 ||
        pool_bytes(d->shape.block_bytes, p->host_blocks, &host_bytes) < 0)
        return EK_EDEVMEM;
    int r = cpu_states_map(d, p->states, &states);
    if (r == 0)
        r = cpu_map(bytes, true, &kv);
    if (d->host_given)
        host = (struct cpu_memory){d->host_given, host_bytes};
    else if (r == 0 && cpu_map(host_bytes, false, &host) < 0)
        r = -ENOMEM; /* the host tier is host memory */
    if (r < 0) {
        cpu_unmap(&states);
        cpu_unmap(&kv);
        return r;
    }
    d->kv = kv;
    d->host_kv = host;
    d->states = states;
    d->kv_blocks = p->blocks;
    d->host_blocks = p->host_blocks;
    d->state_count = p->states; /* also of a stage that has none of the layers with state */
    atomic_store(&d->kv_bytes, kv.bytes);
    atomic_store(&d->host_kv_bytes, host.bytes);
    atomic_store(&d->state_bytes, states.bytes);
    return 0;
}

/* The thread sanitizer does not see a move: what comes to lie there next would race with it. */
static void *resized(void *at, size_t bytes, size_t new_bytes)
{
#ifdef __SANITIZE_THREAD__
    void *to = mmap(NULL, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (to == MAP_FAILED)
        return to;
    memcpy(to, at, bytes < new_bytes ? bytes : new_bytes);
    (void)munmap(at, bytes); /* ours, as a whole */
    return to;
#else
    return mremap(at, bytes, new_bytes, MREMAP_MAYMOVE);
#endif
}

static int cpu_kv_resize(struct ek_device *d, uint32_t blocks)
{
    size_t bytes;
    uint64_t limit;

    if (!d->kv.at || blocks == 0)
        return -EINVAL;
    if (!cpu_worker_idle(d->worker))
        return -EBUSY;
    if (pool_bytes(d->shape.block_bytes, blocks, &bytes) < 0)
        return EK_EDEVMEM;
    /* Pages are had at their first use: what is not there is to be refused now, not then. */
    if (bytes > d->kv.bytes && bytes - d->kv.bytes > cpu_free_memory(&limit))
        return EK_EDEVMEM;
    void *at = resized(d->kv.at, d->kv.bytes, bytes);
    if (at == MAP_FAILED)
        return EK_EDEVMEM;
    d->kv = (struct cpu_memory){at, bytes};
    d->kv_blocks = blocks;
    atomic_store(&d->kv_bytes, bytes);
    return 0;
}

static size_t cpu_block_bytes(const struct ek_device *d, uint32_t tier)
{
    return tier == EK_TIER_STATE ? d->shape.state_bytes : d->shape.block_bytes;
}

/* Where a block or a state lies, NULL when there is none or a step may be writing to it. */
static char *kv_place(struct ek_device *d, uint32_t tier, uint32_t block)
{
    const uint32_t count[] = {d->kv_blocks, d->host_blocks, d->state_count};
    char *const at[] = {d->kv.at, d->host_kv.at, d->states.at};

    static_assert(EK_TIER_DEVICE == 0 && EK_TIER_HOST == 1 && EK_TIER_STATE == 2, "their order");
    if (tier > EK_TIER_STATE || block >= count[tier] || cpu_block_bytes(d, tier) == 0 ||
        !cpu_worker_idle(d->worker))
        return NULL;
    return at[tier] + block * cpu_block_bytes(d, tier);
}

static int cpu_block_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    const char *at = kv_place(d, tier, block);

    if (at)
        memcpy(to, at, cpu_block_bytes(d, tier));
    return at ? 0 : -EINVAL;
}

static int cpu_block_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    char *at = kv_place(d, tier, block);

    if (at)
        memcpy(at, from, cpu_block_bytes(d, tier));
    return at ? 0 : -EINVAL;
}

static int cpu_forward_job(struct ek_device *d, const struct ek_step *step)
{
    return d->kv.at ? cpu_worker_forward(d->worker, step) : -EINVAL;
}

static int cpu_sample_job(struct ek_device *d, const struct ek_step *step,
                          const struct ek_masks *masks)
{
    return cpu_worker_sample(d->worker, step, masks);
}

static int cpu_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                    size_t bytes, uint64_t timeout_us)
{
    return cpu_worker_wait(d->worker, step_id, ret_result, bytes, timeout_us);
}

/* Raises a mark to at least value; returns the mark. */
static uint64_t raise_mark(_Atomic uint64_t *mark, uint64_t value)
{
    uint64_t seen = atomic_load(mark);

    while (seen < value && !atomic_compare_exchange_weak(mark, &seen, value))
        continue;
    return seen < value ? value : seen;
}

static void cpu_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    struct mallinfo2 m = {0};
    if (d->heap) /* the ranks of a process have one */
        m = mallinfo2();
    uint64_t own = atomic_load(&d->weight_bytes) + atomic_load(&d->arena_bytes);
    uint64_t reserved = own + m.arena + m.hblkhd, used = own + m.uordblks + m.hblkhd;

    *ret_stats = (struct ek_device_stats){
        .weight_bytes = atomic_load(&d->weight_bytes),
        .activation_bytes = atomic_load(&d->arena_bytes),
        .kv_bytes = atomic_load(&d->kv_bytes),
        .host_kv_bytes = atomic_load(&d->host_kv_bytes),
        .state_bytes = atomic_load(&d->state_bytes),
        .pool_reserved_bytes = reserved,
        .pool_used_bytes = used,
        .pool_reserved_high_bytes = raise_mark(&d->reserved_high, reserved),
        .pool_used_high_bytes = raise_mark(&d->used_high, used),
        .steps = atomic_load(&d->steps),
        .busy_us = atomic_load(&d->busy_us),
    };
}

static int cpu_new_group(const struct ek_open_params *p, struct ek_group **ret_group,
                         struct ek_fault *fault)
{
    struct ek_group *g = NULL;

    (void)fault;
    const uint32_t shares = ek_open_shares(p), local = ek_open_local(p);
    int r = cpu_group_new(local, local > shares ? local / shares : 1, p->stall_us, &g);
    if (r == 0 && p->wire)
        r = cpu_group_span(g, p->first, p->ranks, p->stages > 1 ? p->stages : 1, p->wire);
    if (r == 0)
        *ret_group = g;
    else
        cpu_group_free(g);
    return r;
}

const struct ek_backend *cpu_backend(void)
{
    static const struct ek_backend table = {
        .abi = EK_BACKEND_ABI,
        .size = sizeof(struct ek_backend),
        .name = "cpu",
        .in_host_memory = true,
        .probe = cpu_probe,
        .open = cpu_open,
        .close = cpu_close,
        .plan = cpu_plan,
        .choose = cpu_choose,
        .load = cpu_load,
        .kv_open = cpu_kv_open,
        .kv_host = cpu_kv_host,
        .kv_resize = cpu_kv_resize,
        .forward = cpu_forward_job,
        .sample = cpu_sample_job,
        .wait = cpu_wait,
        .stats = cpu_stats,
        .group_new = cpu_new_group,
        .group_abort = cpu_group_abort,
        .group_free = cpu_group_free,
        .kv_bytes = cpu_block_bytes,
        .kv_read = cpu_block_read,
        .kv_write = cpu_block_write,
    };
    return &table;
}

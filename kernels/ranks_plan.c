/*
 * What the device of several ranks has and needs, before there is one (ranks.c): out of what its
 * ranks do, each asked with its share of the graph. Called at start, and for `--dry-run`.
 */
#include "kernels/ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/ranks_inside.h"
#include "kernels/stage.h"

/* Of a rank, counted from the first one that is here. */
struct ek_open_params ranks_open_of(const struct ek_open_params *p, uint32_t rank)
{
    struct ek_open_params q = *p;

    q.rank = p->first + rank;
    q.each = NULL;
    return q;
}

int ranks_check(const struct ek_open_params *p, struct ek_fault *fault)
{
    const uint32_t stages = p->stages > 1 ? p->stages : 1;

    if (!p->each || p->ranks < 2 || p->ranks > EK_MOST_RANKS || p->ranks % stages != 0 ||
        ek_open_local(p) > p->ranks || p->ranks % ek_open_local(p) != 0)
        return ek_fault_set(fault, "tensor-parallel-size",
                            "--tensor-parallel-size %u with --pipeline-parallel-size %u: choose 1 "
                            "to %u ranks in all",
                            p->ranks / stages, stages, EK_MOST_RANKS);
    if (p->each->group_new)
        return 0;
    ek_fault_write(fault, stages > 1 ? "pipeline-parallel-size" : "tensor-parallel-size",
                   "--%s %u: the %s backend runs a model on one device; use 1",
                   stages > 1 ? "pipeline-parallel-size" : "tensor-parallel-size",
                   stages > 1 ? stages : p->ranks, p->each->name);
    return -ENOTSUP;
}

/* ---- what there is and what is needed ---- */

static uint32_t ranks_plan_smallest(const struct ek_device_info *info, uint32_t ranks)
{
    uint32_t least = 0;

    for (uint32_t r = 1; r < ranks; r++)
        if (info[r].memory_bytes < info[least].memory_bytes)
            least = r;
    return least;
}

static void add_note(struct ek_device_info *info, const char *more)
{
    size_t at = strlen(info->note);

    (void)snprintf(info->note + at, sizeof(info->note) - at, "%s%s", at > 0 ? " " : "", more);
}

void ek_ranks_info(const struct ek_device_info *info, uint32_t ranks, bool in_host_memory,
                   struct ek_device_info *ret_info)
{
    const uint32_t least = ranks_plan_smallest(info, ranks);
    struct ek_device_info all = info[least];
    uint32_t other = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        all.free_bytes = info[r].free_bytes < all.free_bytes ? info[r].free_bytes : all.free_bytes;
        bool larger = info[r].memory_bytes > info[other].memory_bytes;
        if (strcmp(info[r].name, info[least].name) != 0 || larger)
            other = r;
    }
    all.note[0] = '\0';
    (void)snprintf(all.name, sizeof(all.name), "%u x %.50s", ranks, info[least].name);
    if (in_host_memory)
        (void)snprintf(all.name, sizeof(all.name), "%.50s, %u ranks", info[0].name, ranks);
    bool differ = strcmp(info[other].name, info[least].name) != 0 ||
                  info[other].memory_bytes != info[least].memory_bytes;
    if (differ && !in_host_memory)
        (void)snprintf(all.note, sizeof(all.note),
                       "The cards differ: rank %u has %s (%.1f GiB), rank %u has %s (%.1f GiB). "
                       "Each rank gets what the smallest can hold, and all go at the pace of the "
                       "slowest.",
                       least, info[least].name, (double)info[least].memory_bytes / 0x1p30, other,
                       info[other].name, (double)info[other].memory_bytes / 0x1p30);
    for (uint32_t r = 0; r < ranks; r++)
        if (info[r].note[0] && (r == 0 || !in_host_memory))
            add_note(&all, info[r].note);
    *ret_info = all;
}

uint64_t ranks_join(uint64_t a, uint64_t b, bool sums)
{
    uint64_t sum;

    if (!sums)
        return a > b ? a : b;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

void ek_ranks_plan(const struct ek_plan *plan, uint32_t ranks, bool in_host_memory,
                   struct ek_plan *ret_plan)
{
    struct ek_plan all = plan[0];

    for (uint32_t r = 1; r < ranks; r++) {
        all.weight_bytes = ranks_join(all.weight_bytes, plan[r].weight_bytes, in_host_memory);
        all.activation_bytes =
            ranks_join(all.activation_bytes, plan[r].activation_bytes, in_host_memory);
        all.slot_bytes = ranks_join(all.slot_bytes, plan[r].slot_bytes, in_host_memory);
        all.block_bytes = ranks_join(all.block_bytes, plan[r].block_bytes, in_host_memory);
        all.state_bytes = ranks_join(all.state_bytes, plan[r].state_bytes, in_host_memory);
        all.overhead_bytes = ranks_join(all.overhead_bytes, plan[r].overhead_bytes, in_host_memory);
        all.host_weight_bytes = ranks_join(all.host_weight_bytes, plan[r].host_weight_bytes, false);
        all.staging_bytes = ranks_join(all.staging_bytes, plan[r].staging_bytes, false);
        all.offload_most_bytes =
            ranks_join(all.offload_most_bytes, plan[r].offload_most_bytes, false);
        all.staging_most_bytes =
            ranks_join(all.staging_most_bytes, plan[r].staging_most_bytes, false);
    }
    *ret_plan = all;
}

int ranks_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                struct ek_fault *fault)
{
    const uint32_t count = ek_open_local(p);
    int r = ranks_check(p, fault);
    if (r < 0)
        return r;
    struct ek_device_info *info = calloc(count, sizeof(*info));
    if (!info)
        return -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        const struct ek_open_params one = ranks_open_of(p, i);
        r = p->each->probe(&one, &info[i], fault);
    }
    if (r == 0 && count == 1)
        *ret_info = info[0];
    else if (r == 0)
        ek_ranks_info(info, count, p->each->in_host_memory, ret_info);
    free(info);
    return r;
}

size_t ranks_result_bytes(const struct ek_plan_request *q)
{
    return ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs, q->graph->hidden);
}

int ek_rank_plan(const struct ek_open_params *p, const struct ek_plan_request *q, uint32_t rank,
                 struct ek_rank_place *ret_place, struct ek_plan *ret_plan, struct ek_fault *fault)
{
    const uint32_t local = ek_open_local(p), stages = p->stages > 1 ? p->stages : 1;
    uint32_t begin[EK_MOST_RANKS + 1] = {[1] = q->graph->layers};
    struct ek_open_params node = *p;
    struct ek_plan_request part = *q;
    struct ek_graph graph = {0};

    int r = ranks_check(p, fault);
    if (r < 0 || rank >= p->ranks)
        return r < 0 ? r : -EINVAL;
    node.first = rank / local * local;
    const struct ek_open_params one = ranks_open_of(&node, rank % local);
    part.graph = &graph;
    r = stages > 1 ? ek_stage_divide(q->graph, stages, begin, fault) : 0;
    if (r == 0)
        r = ek_rank_graph(q->graph, rank, p->ranks, stages, &graph, fault);
    if (r == 0)
        r = p->each->plan(&one, &part, ret_plan, fault);
    ek_graph_free(&graph);
    if (r < 0)
        return r;
    const uint32_t stage = rank / ek_open_shares(p);
    *ret_place = (struct ek_rank_place){.node = rank / local,
                                        .stage = stage,
                                        .first_layer = begin[stage],
                                        .layers = begin[stage + 1] - begin[stage]};
    return 0;
}

/* What a node's ranks need, those of the one that begins with rank `first`. */
static int plan_node(const struct ek_open_params *p, uint32_t first,
                     const struct ek_plan_request *q, struct ek_plan *ret_plan,
                     struct ek_fault *fault)
{
    const uint32_t count = ek_open_local(p);
    struct ek_rank_place place;
    int r = 0;

    struct ek_plan *plan = calloc(count, sizeof(*plan));
    if (!plan)
        return -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        r = ek_rank_plan(p, q, first + i, &place, &plan[i], fault);
    if (r == 0)
        ek_ranks_plan(plan, count, p->each->in_host_memory, ret_plan);
    if (r == 0 && p->each->in_host_memory)
        ret_plan->overhead_bytes += (count - 1) * ranks_result_bytes(q);
    free(plan);
    return r;
}

/* Of several nodes, what the one that needs the most does. */
int ranks_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
               struct ek_plan *ret_plan, struct ek_fault *fault)
{
    int r = ranks_check(p, fault);
    if (r < 0)
        return r;
    const uint32_t local = ek_open_local(p), nodes = p->ranks / local;
    struct ek_plan *plan = calloc(nodes, sizeof(*plan));
    if (!plan)
        return -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < nodes; i++)
        r = plan_node(p, i * local, q, &plan[i], fault);
    if (r == 0)
        ek_ranks_plan(plan, nodes, false, ret_plan);
    free(plan);
    return r;
}

/* The ranks of this machine have one table: what two of them share is measured once. */
int ranks_choose(const struct ek_open_params *p, const struct ek_graph *graph,
                 struct ek_forms *forms, struct ek_fault *fault)
{
    int r = ranks_check(p, fault);

    for (uint32_t i = 0; r == 0 && p->each->choose && i < ek_open_local(p); i++) {
        const struct ek_open_params one = ranks_open_of(p, i);
        struct ek_graph part = {0};
        r = ek_rank_graph(graph, one.rank, p->ranks, p->stages, &part, fault);
        if (r == 0)
            r = p->each->choose(&one, &part, forms, fault);
        ek_graph_free(&part);
    }
    return r;
}

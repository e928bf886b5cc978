/*
 * Chooses the weights for --cpu-offload-gb, at load, for the memory plan and the loader (shape.c).
 * What is chosen is a part: the matrix of a linear operation, or the gates and ups, or the downs,
 * of some experts of a mixture.
 *
 * The card gains the bytes of all parts chosen, less the two buffers, each as large as the largest
 * of them. So each size of part is tried as the largest, and the one with the highest gain wins.
 * Among the parts that are small enough, those are taken that keep the sum in proportion to how far
 * the step has come: a copy then hides behind the operations between it and the one before. A part
 * that two operations read is never chosen. The embedding table goes first where the budget holds
 * it: a step reads few rows of it, so it needs no buffer.
 */
#include "kernels/cuda/offload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/weight.h"

#define PARTS 16u /* of a mixture at most: each is a launch of its own */
#define SMALL 64u /* what is less than this part of the largest matrix is not worth a copy */

/* How many bytes a matrix has at least to be copied. */
static uint64_t least_of(uint64_t most)
{
    return most / SMALL + (most % SMALL != 0);
}

static uint64_t largest(const uint64_t *bytes, uint32_t count)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < count; i++)
        most = bytes[i] > most ? bytes[i] : most;
    return most;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    uint64_t all;
    return __builtin_add_overflow(a, b, &all) ? UINT64_MAX : all;
}

/* ---- which matrices ---- */

/* Those from `least` to `most` bytes, as many as the budget holds, each where it brings the sum
 * nearest to its share of the bytes up to the middle of it. Returns the sum. */
static uint64_t offload_spread(const uint64_t *bytes, uint32_t count, uint64_t least, uint64_t most,
                               uint64_t budget, bool *chosen)
{
    double all = 0, before = 0;
    uint64_t can = 0, has = 0;

    for (uint32_t i = 0; i < count; i++) {
        all += (double)bytes[i];
        can = bytes[i] >= least && bytes[i] <= most ? sum(can, bytes[i]) : can;
    }
    for (uint32_t i = 0; i < count; before += (double)bytes[i++]) {
        const double half = (double)bytes[i] / 2;
        chosen[i] = bytes[i] >= least && bytes[i] <= most && bytes[i] <= budget - has &&
                    (can <= budget || (double)has + half <= (before + half) / all * (double)budget);
        has += chosen[i] ? bytes[i] : 0;
    }
    for (uint32_t i = count; i-- > 0;) { /* what rounding has left, from the end */
        if (chosen[i] || bytes[i] < least || bytes[i] > most || bytes[i] > budget - has)
            continue;
        chosen[i] = true;
        has += bytes[i];
    }
    return has;
}

uint64_t cuda_offload_choose(const uint64_t *bytes, uint32_t count, uint64_t budget,
                             bool *ret_chosen)
{
    const uint64_t least = least_of(largest(bytes, count));
    uint64_t best = 0, gain = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (bytes[i] < least || (best > 0 && bytes[i] == best))
            continue;
        const uint64_t has = offload_spread(bytes, count, least, bytes[i], budget, ret_chosen);
        const uint64_t slots = CUDA_OFFLOAD_SLOTS * bytes[i];
        if (has > slots && (has - slots > gain || (has - slots == gain && bytes[i] < best))) {
            best = bytes[i];
            gain = has - slots;
        }
    }
    memset(ret_chosen, 0, count * sizeof(*ret_chosen));
    if (best == 0)
        return 0;
    (void)offload_spread(bytes, count, least, best, budget, ret_chosen);
    best = 0;
    for (uint32_t i = 0; i < count; i++)
        best = ret_chosen[i] && bytes[i] > best ? bytes[i] : best;
    return best;
}

uint64_t cuda_offload_least(const uint64_t *bytes, uint32_t count)
{
    const uint64_t least = least_of(largest(bytes, count));
    uint64_t best = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t slots = CUDA_OFFLOAD_SLOTS * bytes[i];
        uint64_t all = 0;
        for (uint32_t k = 0; k < count; k++)
            all = bytes[k] >= least && bytes[k] <= bytes[i] ? sum(all, bytes[k]) : all;
        if (bytes[i] < least || all <= slots)
            continue;
        all = all < slots + bytes[i] ? all : slots + bytes[i];
        best = best == 0 || all < best ? all : best;
    }
    return best;
}

/* ---- of a graph ---- */

/* Weights that are copied together: those of a run, or of two that are read in turn. */
struct offload_part {
    uint32_t first[2], runs, count;
    bool experts;
};

struct marking {
    const struct ek_graph *g;
    struct cuda_weight *weights;
    uint8_t *uses;             /* [weight_count] operations that read it, at most 2 */
    struct offload_part *part; /* [parts] */
    uint64_t *bytes;           /* [parts] */
    bool *chosen;
    uint32_t parts, room;
};

static uint64_t weight_bytes(const struct cuda_weight *w)
{
    return w->bytes < SIZE_MAX / 4 ? (w->bytes + CUDA_ALIGN - 1) & ~(size_t)(CUDA_ALIGN - 1)
                                   : SIZE_MAX;
}

/* The matrices that an operation reads, up to three runs of `count`. */
static uint32_t runs_of(const struct ek_op *op, uint32_t first[3], uint32_t *ret_count)
{
    *ret_count = 1;
    first[0] = op->weight;
    if (op->kind != EK_OP_EXPERTS)
        return op->kind == EK_OP_EMBED || op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS;
    *ret_count = op->u.experts.count;
    first[1] = op->u.experts.up;
    first[2] = op->u.experts.down;
    return 3;
}

static void count_uses(struct marking *m)
{
    for (uint32_t i = 0; i < m->g->op_count; i++) {
        uint32_t first[3], count, runs = runs_of(&m->g->ops[i], first, &count);
        m->room += runs * count;
        for (uint32_t r = 0; r < runs; r++)
            for (uint32_t k = 0; k < count; k++)
                m->uses[first[r] + k] += m->uses[first[r] + k] < 2;
    }
}

uint32_t cuda_offload_experts(const struct ek_graph *g, const struct cuda_weight *weights,
                              const struct ek_op *op)
{
    const uint32_t count = op->u.experts.count, least = (count + PARTS - 1) / PARTS;
    const uint64_t one =
        sum(weight_bytes(&weights[op->weight]), weight_bytes(&weights[op->u.experts.up]));
    uint64_t most = 0;

    for (uint32_t i = 0; i < g->op_count && g->ops[i].kind != EK_OP_PICK; i++) {
        if (g->ops[i].kind != EK_OP_LINEAR)
            continue;
        const uint64_t bytes = weight_bytes(&weights[g->ops[i].weight]);
        most = bytes > most ? bytes : most;
    }
    const uint64_t fit = one > 0 ? most / one : 0;
    return fit < least ? least : fit < count ? (uint32_t)fit : count;
}

/* What a part takes; 0 when another operation reads some of it, too, or it is no matrix. */
static uint64_t part_bytes(const struct marking *m, const struct offload_part *p)
{
    uint64_t all = 0;

    for (uint32_t r = 0; r < p->runs; r++)
        for (uint32_t k = 0; k < p->count; k++) {
            const struct cuda_weight *w = &m->weights[p->first[r] + k];
            if (m->uses[p->first[r] + k] > 1 || w->vector)
                return 0;
            all = sum(all, weight_bytes(w));
        }
    return all < SIZE_MAX / 4 ? all : 0;
}

static void set_item(struct marking *m, const struct offload_part *p, uint32_t item)
{
    for (uint32_t r = 0; r < p->runs; r++)
        for (uint32_t k = 0; k < p->count; k++)
            m->weights[p->first[r] + k].item = item;
}

static void list_part(struct marking *m, const struct offload_part *p)
{
    const uint64_t bytes = part_bytes(m, p);

    if (bytes == 0)
        return;
    m->part[m->parts] = *p;
    m->bytes[m->parts++] = bytes;
}

/* In the order in which they are read: gates and ups of some experts after the other, then downs.
 */
static void list_experts(struct marking *m, const struct ek_op *op)
{
    const uint32_t count = op->u.experts.count;
    const uint32_t each = cuda_offload_experts(m->g, m->weights, op);

    for (uint32_t down = 0; down < 2; down++)
        for (uint32_t e = 0; e < count; e += each)
            list_part(m,
                      &(struct offload_part){.first = {(down ? op->u.experts.down : op->weight) + e,
                                                       op->u.experts.up + e},
                                             .runs = down ? 1 : 2,
                                             .count = count - e < each ? count - e : each,
                                             .experts = true});
}

/* All parts, and the embedding if it can be one. */
static void list_parts(struct marking *m, struct offload_part *ret_embed, struct cuda_offload *o)
{
    for (uint32_t i = 0; i < m->g->op_count; i++) {
        const struct ek_op *op = &m->g->ops[i];
        const struct offload_part one = {.first = {op->weight}, .runs = 1, .count = 1};
        if (op->kind == EK_OP_PICK)
            break;
        if (op->kind == EK_OP_EMBED && !op->u.embed.by_position)
            *ret_embed = one;
        if (op->kind == EK_OP_LINEAR)
            list_part(m, &one);
        if (op->kind != EK_OP_EXPERTS)
            continue;
        /* half of the experts, or less, are asked for then */
        const uint32_t few = op->u.experts.count / (2u * op->u.experts.top);
        o->few_rows = !o->experts || few < o->few_rows ? few : o->few_rows;
        o->experts = true;
        list_experts(m, op);
    }
}

static void offload_mark(struct marking *m, uint64_t budget, struct cuda_offload *o)
{
    struct offload_part embed = {.runs = 0};

    list_parts(m, &embed, o);
    const uint64_t table = part_bytes(m, &embed);
    o->slot_most = largest(m->bytes, m->parts);
    for (uint32_t i = 0; i < m->parts; i++)
        if (m->bytes[i] >= least_of(o->slot_most))
            o->most_bytes = sum(o->most_bytes, m->bytes[i]);
    o->most_bytes = sum(o->most_bytes, table);
    o->least = cuda_offload_least(m->bytes, m->parts);
    if (table > 0 && (o->least == 0 || table < o->least))
        o->least = table;
    const bool first = table > 0 && table <= budget; /* it costs next to nothing */
    (void)cuda_offload_choose(m->bytes, m->parts, first ? budget - table : budget, m->chosen);
    o->experts = false;
    for (uint32_t i = 0; i < m->parts; i++) {
        if (!m->chosen[i])
            continue;
        set_item(m, &m->part[i], ++o->streamed);
        o->experts = o->experts || m->part[i].experts;
    }
    o->few_rows = o->experts ? o->few_rows : 0;
    o->items = o->streamed + first;
    if (first)
        set_item(m, &embed, o->items);
}

int cuda_offload_mark(const struct ek_graph *g, uint64_t budget, struct cuda_weight *weights,
                      struct cuda_offload *ret_offload)
{
    struct marking m = {.g = g, .weights = weights};
    struct cuda_offload o = {0};
    int r = -ENOMEM;

    m.uses = calloc((size_t)g->weight_count + 1, sizeof(*m.uses));
    if (!m.uses)
        goto out;
    count_uses(&m);
    m.part = calloc((size_t)m.room + 1, sizeof(*m.part));
    m.bytes = calloc((size_t)m.room + 1, sizeof(*m.bytes));
    m.chosen = calloc((size_t)m.room + 1, sizeof(*m.chosen));
    if (!m.part || !m.bytes || !m.chosen)
        goto out;
    offload_mark(&m, budget, &o);
    *ret_offload = o;
    r = 0;
out:
    free(m.uses);
    free(m.part);
    free(m.bytes);
    free(m.chosen);
    return r;
}

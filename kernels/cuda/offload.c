#include "kernels/cuda/offload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

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
static uint64_t spread(const uint64_t *bytes, uint32_t count, uint64_t least, uint64_t most,
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
        const uint64_t has = spread(bytes, count, least, bytes[i], budget, ret_chosen);
        const uint64_t slots = CUDA_OFFLOAD_SLOTS * bytes[i];
        if (has > slots && (has - slots > gain || (has - slots == gain && bytes[i] < best))) {
            best = bytes[i];
            gain = has - slots;
        }
    }
    memset(ret_chosen, 0, count * sizeof(*ret_chosen));
    if (best == 0)
        return 0;
    (void)spread(bytes, count, least, best, budget, ret_chosen);
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

struct marking {
    const struct ek_graph *g;
    struct cuda_weight *weights;
    uint8_t *uses;   /* [weight_count] operations that read it, at most 2 */
    uint32_t *op;    /* [matrices] which reads it */
    uint64_t *bytes; /* [matrices] */
    bool *chosen;
    uint32_t matrices;
};

/* The weights that an operation reads, but norms and biases: up to three runs of `count`. */
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
        for (uint32_t r = 0; r < runs; r++)
            for (uint32_t k = 0; k < count; k++)
                m->uses[first[r] + k] += m->uses[first[r] + k] < 2;
    }
}

/* What an operation's weights take; 0 when another one reads them, too. */
static uint64_t own_bytes(const struct marking *m, const struct ek_op *op)
{
    uint32_t first[3], count, runs = runs_of(op, first, &count);
    uint64_t all = 0;

    for (uint32_t r = 0; r < runs; r++)
        for (uint32_t k = 0; k < count; k++) {
            const struct cuda_weight *w = &m->weights[first[r] + k];
            if (m->uses[first[r] + k] > 1 || w->vector)
                return 0;
            all = sum(all, w->bytes < SIZE_MAX / 4
                               ? (w->bytes + CUDA_ALIGN - 1) & ~(size_t)(CUDA_ALIGN - 1)
                               : SIZE_MAX);
        }
    return all;
}

static void set_item(struct marking *m, const struct ek_op *op, uint32_t item)
{
    uint32_t first[3], count, runs = runs_of(op, first, &count);

    for (uint32_t r = 0; r < runs; r++)
        for (uint32_t k = 0; k < count; k++)
            m->weights[first[r] + k].item = item;
}

static const struct ek_op *list_matrices(struct marking *m)
{
    const struct ek_op *embed = NULL;

    for (uint32_t i = 0; i < m->g->op_count; i++) {
        const struct ek_op *op = &m->g->ops[i];
        if (op->kind == EK_OP_PICK)
            break;
        if (op->kind == EK_OP_EMBED && own_bytes(m, op) > 0)
            embed = op;
        if (op->kind != EK_OP_LINEAR && op->kind != EK_OP_EXPERTS)
            continue;
        m->op[m->matrices] = i;
        m->bytes[m->matrices] = own_bytes(m, op);
        m->matrices += m->bytes[m->matrices] > 0 && m->bytes[m->matrices] < SIZE_MAX / 4;
    }
    return embed;
}

static void mark(struct marking *m, uint64_t budget, struct cuda_offload *o)
{
    count_uses(m);
    const struct ek_op *embed = list_matrices(m);
    const uint64_t table = embed ? own_bytes(m, embed) : 0;

    o->slot_most = largest(m->bytes, m->matrices);
    for (uint32_t i = 0; i < m->matrices; i++)
        if (m->bytes[i] >= least_of(o->slot_most))
            o->most_bytes = sum(o->most_bytes, m->bytes[i]);
    o->most_bytes = sum(o->most_bytes, table);
    o->least = cuda_offload_least(m->bytes, m->matrices);
    if (table > 0 && (o->least == 0 || table < o->least))
        o->least = table;
    const bool first = table > 0 && table <= budget; /* it costs next to nothing */
    (void)cuda_offload_choose(m->bytes, m->matrices, first ? budget - table : budget, m->chosen);
    for (uint32_t i = 0; i < m->matrices; i++)
        if (m->chosen[i])
            set_item(m, &m->g->ops[m->op[i]], ++o->streamed);
    o->items = o->streamed + first;
    if (first)
        set_item(m, embed, o->items);
}

int cuda_offload_mark(const struct ek_graph *g, uint64_t budget, struct cuda_weight *weights,
                      struct cuda_offload *ret_offload)
{
    struct marking m = {.g = g, .weights = weights};
    struct cuda_offload o = {0};
    int r = -ENOMEM;

    m.uses = calloc((size_t)g->weight_count + 1, sizeof(*m.uses));
    m.op = calloc((size_t)g->op_count + 1, sizeof(*m.op));
    m.bytes = calloc((size_t)g->op_count + 1, sizeof(*m.bytes));
    m.chosen = calloc((size_t)g->op_count + 1, sizeof(*m.chosen));
    if (m.uses && m.op && m.bytes && m.chosen) {
        mark(&m, budget, &o);
        *ret_offload = o;
        r = 0;
    }
    free(m.uses);
    free(m.op);
    free(m.bytes);
    free(m.chosen);
    return r;
}

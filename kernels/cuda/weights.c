/*
 * How each weight is kept on the device: f32 vectors, matrices of the type to compute with, or
 * packed ones as packed.cuh describes. Pure: from the graph.
 */
#include "kernels/cuda/shape.h"
#include "kernels/quant.h"

#define LEAST_SHIFT 5u         /* groups are of 32 columns times a power of two */
#define F8_SHIFT    7u         /* inputs of E4M3 have a scale for each row or 128 columns of it */
#define ROUND_MOST  (1u << 17) /* columns whose products of bytes add up to 31 bits */

/* What decides how a packed weight is read. */
struct weights_keeping {
    uint32_t form, groups, shift;
    bool zeros;
};

static bool has_zeros(const struct ek_graph *g, const struct ek_weight *w)
{
    for (uint32_t i = 0; w->quantized && i < w->parts; i++)
        if (g->quants[w->quant + i].zeros.file != UINT32_MAX)
            return true;
    return false;
}

/* Whether it is a matrix of a product by heads: those are kept as numbers to compute with. */
static bool is_of_heads(const struct ek_graph *g, uint32_t index)
{
    for (uint32_t i = 0; g->value_dim > 0 && i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind == EK_OP_HEADS && index >= op->weight &&
            index - op->weight < op->u.heads.count)
            return true;
    }
    return false;
}

static struct weights_keeping keeping_of(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];
    struct weights_keeping k = {.groups = 1, .shift = 31};

    if (w->rows <= 1 || w->cols <= 1 || !ek_dtype_packed(w->dtype) || is_of_heads(g, index))
        return k;
    if (w->group > 0 && w->group < w->cols) {
        k.shift = (uint32_t)__builtin_ctz(w->group);
        if (w->group != 1u << k.shift || k.shift < LEAST_SHIFT)
            return (struct weights_keeping){.groups = 1, .shift = 31}; /* it is unpacked */
        k.groups = w->cols / w->group + (w->cols % w->group != 0);
    }
    if (w->dtype == EK_F4_E2M1) /* it is unpacked */
        return (struct weights_keeping){.groups = 1, .shift = 31};
    if (w->dtype == EK_I4 && !w->quantized && (k.groups > 1 ? w->group : w->cols) > EK_I4_GROUP)
        return (struct weights_keeping){.groups = 1, .shift = 31};
    k.form = w->dtype == EK_I8 ? CU_I8 : w->dtype == EK_I4 ? CU_I4 : CU_F8;
    k.zeros = k.form != CU_F8 && has_zeros(g, w);
    return k;
}

/* Adds expert's `more` to what is known of those before; plain when they differ. */
static void join(struct weights_keeping *k, const struct weights_keeping *more)
{
    if (k->form != more->form || k->groups != more->groups || k->shift != more->shift)
        *k = (struct weights_keeping){.groups = 1, .shift = 31};
    k->zeros = k->form != CU_PLAIN && (k->zeros || more->zeros);
}

/* All gates and ups of a mixture are read alike, and all downs: one kernel walks over them. */
static struct weights_keeping keeping_of_experts(const struct ek_graph *g, uint32_t index,
                                                 const struct ek_op *op)
{
    const uint32_t first[] = {op->weight, op->u.experts.up, op->u.experts.down};
    const uint32_t count = op->u.experts.count;
    const bool down = index >= first[2] && index - first[2] < count;
    struct weights_keeping up = keeping_of(g, first[0]), back = keeping_of(g, first[2]);

    for (uint32_t e = 0; e < count; e++)
        for (uint32_t m = 0; m < 3; m++) {
            struct weights_keeping k = keeping_of(g, first[m] + e);
            join(m == 2 ? &back : &up, &k);
        }
    if (up.form != back.form)
        return (struct weights_keeping){.groups = 1, .shift = 31};
    return down ? back : up;
}

static const struct ek_op *experts_with(const struct ek_graph *g, uint32_t index)
{
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_EXPERTS)
            continue;
        const uint32_t first[] = {op->weight, op->u.experts.up, op->u.experts.down};
        for (uint32_t m = 0; m < 3; m++)
            if (index >= first[m] && index - first[m] < op->u.experts.count)
                return op;
    }
    return NULL;
}

bool cuda_is_bias(const struct ek_graph *g, uint32_t index)
{
    if (g->weights[index].dtype != EK_F32)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].weight == index)
            return g->ops[i].kind == EK_OP_CONV;
    return !experts_with(g, index) && !is_of_heads(g, index);
}

/* A product's weight of one row or column is no vector. */
static bool is_vector(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];

    if (w->rows > 1 && w->cols > 1)
        return cuda_is_bias(g, index);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].weight == index &&
            (g->ops[i].kind == EK_OP_LINEAR || g->ops[i].kind == EK_OP_LOGITS))
            return false;
    return !is_of_heads(g, index);
}

/* Whether products of this weight can take inputs that are rounded to its type. */
static bool can_round(const struct ek_weight *w, const struct weights_keeping *k)
{
    if (k->form == CU_F8)
        return k->groups == 1 || k->shift == F8_SHIFT;
    return k->form == CU_I8 && k->groups == 1 && !k->zeros && w->cols <= ROUND_MOST;
}

/* Whether blocks of 128 rows share their scales, in numbers that every reading of what cuBLASLt
 * documents agrees on: four groups more at a time. */
static bool in_blocks(const struct ek_graph *g, const struct ek_weight *w)
{
    for (uint32_t i = 0; w->quantized && i < w->parts; i++)
        if (g->quants[w->quant + i].block_rows != 128 || w->part[i].skip % 128 != 0 ||
            (i + 1 < w->parts && w->part[i].rows % 128 != 0))
            return false;
    return w->quantized && w->cols % 512 == 0;
}

struct cuda_weight cuda_weight_of(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];
    const struct ek_op *op = ek_dtype_packed(w->dtype) ? experts_with(g, index) : NULL;
    const struct weights_keeping k = op ? keeping_of_experts(g, index, op) : keeping_of(g, index);
    struct cuda_weight s = {.vector = is_vector(g, index),
                            .packing = {k.form, k.groups, k.shift, 0, 0, 0}};
    const uint32_t wide = k.form == CU_I4 ? 128 : k.form == CU_PLAIN ? 32 : 64;
    const uint32_t bits = k.form == CU_I4      ? 4
                          : k.form != CU_PLAIN ? 8
                          : s.vector           ? 32
                                               : ek_dtype_bits(g->dtype);
    const size_t groups = (size_t)w->rows * k.groups;

    const uint64_t stride = s.vector ? w->cols : ((uint64_t)w->cols + wide - 1) / wide * wide;

    s.stride = (uint32_t)stride;
    s.row_bytes = (size_t)stride * bits / 8;
    if (w->rows == 0) /* it is another rank's */
        return s;
    if (stride > UINT32_MAX || s.row_bytes > SIZE_MAX / 4 / w->rows) {
        s.bytes = SIZE_MAX; /* take() will not have it */
        return s;
    }
    s.bytes = w->rows * s.row_bytes;
    if (k.form == CU_PLAIN)
        return s;
    s.rounds = w->rounds_input && !op && g->dtype != EK_F32 && can_round(w, &k);
    s.packing.scale_at = s.bytes; /* a multiple of 64 */
    s.bytes += groups * sizeof(float);
    s.packing.zero_at = k.zeros ? s.bytes : 0;
    s.bytes += k.zeros ? groups * sizeof(int16_t) : 0;
    if (s.rounds && k.groups > 1 && in_blocks(g, w)) {
        s.block_at = (s.bytes + 15) & ~(size_t)15;
        s.bytes = s.block_at + ((size_t)w->rows + 127) / 128 * k.groups * sizeof(float);
    }
    return s;
}

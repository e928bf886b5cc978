/*
 * How many bytes everything takes and where it lies. plan() prints these numbers before the first
 * allocation and load() allocates by the same function, so that the two cannot disagree.
 */
#include "kernels/cuda/shape.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/quant.h"
#include "kernels/shard.h"

#define FUSED_BLOCKS 128u /* that a fused product is cut into, where it has fewer tiles */
#define FUSED_PARTS  16u  /* of k, at most */
#define FUSED_CHUNKS 8u   /* of 64 bytes that a part has at least */
#define PROBED       16u  /* elements of a first exchange */

static bool shape_stored(enum ek_dtype t)
{
    return t == EK_F32 || t == EK_F16 || t == EK_BF16;
}

static const char *refuse_op(const struct ek_op *op)
{
    static const bool offered[] = {
        [EK_OP_EMBED] = true,  [EK_OP_NORM] = true,      [EK_OP_LINEAR] = true,
        [EK_OP_ROPE] = true,   [EK_OP_ATTENTION] = true, [EK_OP_GLU] = true,
        [EK_OP_ADD] = true,    [EK_OP_SOFTCAP] = true,   [EK_OP_PICK] = true,
        [EK_OP_LOGITS] = true, [EK_OP_EXPERTS] = true,   [EK_OP_REDUCE] = true,
        [EK_OP_GATHER] = true, [EK_OP_SEND] = true,      [EK_OP_RECV] = true,
        [EK_OP_TAKE] = true,   [EK_OP_GATE] = true,      [EK_OP_SCALE] = true,
        [EK_OP_CONV] = true,   [EK_OP_DELTA] = true,     [EK_OP_SCAN] = true,
        [EK_OP_HEADS] = true,
    };
    const size_t kinds = sizeof(offered) / sizeof(offered[0]);

    if ((size_t)op->kind >= kinds || !offered[op->kind])
        return "has an operation that the CUDA backend does not have yet";
    if (op->kind == EK_OP_ATTENTION && op->u.attention.value_dim == 0 &&
        op->u.attention.head_dim > CU_DIM_MOST)
        return "has attention heads of more than 512 elements, which the CUDA backend does not do";
    const char *why = cuda_latent_refuse(op);
    return why ? why : cuda_recur_refuse(op);
}

/* Numbers of each column, and an embedding of a part of the vocabulary. */
static const char *refuse_weight(const struct ek_graph *g, const struct ek_op *op)
{
    const struct ek_weight *w = op->weight < g->weight_count ? &g->weights[op->weight] : NULL;
    const bool columns = w && op->kind == EK_OP_SCALE && (uint64_t)w->rows * w->cols > 1;
    const bool fewer = w && op->kind == EK_OP_EMBED && !op->u.embed.by_position &&
                       w->rows != ek_graph_vocab_rows(g);

    return columns || fewer ? "has an operation that the CUDA backend does not have yet" : NULL;
}

int cuda_graph_offered(const struct ek_graph *g, uint32_t block_size, struct ek_fault *fault)
{
    int r = ek_graph_check(g, fault);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const char *why = refuse_op(&g->ops[i]);
        if (!why)
            why = refuse_weight(g, &g->ops[i]);
        if (!why)
            continue;
        ek_fault_set(fault, "model", "The model %s (operation %u of %u): use --device cpu.", why, i,
                     g->op_count);
        return -ENOTSUP;
    }
    bool ok = shape_stored(g->dtype);
    for (uint32_t i = 0; i < g->weight_count; i++) {
        const struct ek_weight *w = &g->weights[i];
        bool matrix = w->rows > 1 && w->cols > 1 && !cuda_is_bias(g, i);
        ok = ok && (w->quantized || shape_stored(w->source)) &&
             (w->dtype == g->dtype || (!matrix && w->dtype == EK_F32) ||
              (matrix && ek_dtype_packed(w->dtype)));
    }
    if (!ok) {
        ek_fault_set(
            fault, "dtype",
            "The CUDA backend computes float32, float16 and bfloat16 only, with weights of "
            "8 and 4 bits: use --device cpu or another copy of the model.");
        return -ENOTSUP;
    }
    if ((g->kv_f8 || g->kv_i8) && g->value_dim > 0) {
        ek_fault_set(
            fault, "kv-cache-dtype",
            "The CUDA backend keeps what latent attention caches in the model's type only: "
            "use --kv-cache-dtype auto.");
        return -ENOTSUP;
    }
    if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1)) != 0) {
        ek_fault_set(fault, "block-size",
                     "The block size must be a power of two from 8 to 256, not %u.", block_size);
        return -EBADMSG;
    }
    return 0;
}

size_t cuda_shape_take(size_t *sum, size_t count, size_t size)
{
    size_t at = *sum, bytes, end;

    if (at == SIZE_MAX || __builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(at, bytes, &end) || end > SIZE_MAX / 2) {
        *sum = SIZE_MAX;
        return 0;
    }
    *sum = (end + CUDA_ALIGN - 1) & ~(size_t)(CUDA_ALIGN - 1);
    return at;
}

uint32_t cuda_fused_parts(uint32_t n, uint32_t k, uint32_t form)
{
    const uint32_t tiles = n / CU_FUSED_COLS + (n % CU_FUSED_COLS != 0);
    const uint32_t wide = form == CU_I4 ? 128 : form == CU_PLAIN ? 32 : 64;
    const uint32_t most = k / wide / FUSED_CHUNKS;
    uint32_t parts = FUSED_BLOCKS / tiles;

    parts = parts < most ? parts : most;
    return parts > FUSED_PARTS ? FUSED_PARTS : parts > 0 ? parts : 1;
}

/* Rows that a product can have. */
static size_t most_rows(const struct cuda_shape *s)
{
    return s->rows > s->logit_rows ? s->rows : s->logit_rows;
}

static bool is_product(const struct ek_op *op)
{
    return op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS;
}

/* Counters of fused products' tiles; sums of parts lie where panels do. Bytes of those. */
static size_t shape_fused(const struct ek_graph *g, struct cuda_shape *s)
{
    const size_t most = most_rows(s), rows = most < CUDA_FUSED_MOST ? most : CUDA_FUSED_MOST;
    size_t counters = 0, bytes = 0;

    for (uint32_t i = 0; g->dtype != EK_F32 && i < g->op_count; i++) {
        if (!is_product(&g->ops[i]))
            continue;
        const struct ek_weight *w = &g->weights[g->ops[i].weight];
        uint32_t form = cuda_weight_of(g, g->ops[i].weight).packing.form;
        size_t parts = cuda_fused_parts(w->rows, w->cols, form);
        if (parts == 1)
            continue;
        size_t tiles = ((size_t)w->rows + CU_FUSED_COLS - 1) / CU_FUSED_COLS;
        size_t sums = tiles * CU_FUSED_COLS * ((rows + 127) & ~(size_t)127) * parts * sizeof(float);
        size_t count = tiles * (form == CU_PLAIN ? 1 : (rows + 63) / 64);
        if (form == CU_PLAIN) /* few rows: its sums are where cuBLASLt works */
            sums = 0;
        counters = count > counters ? count : counters;
        bytes = sums > bytes ? sums : bytes;
    }
    s->arrived_at = cuda_shape_take(&s->arena_bytes, counters, sizeof(uint32_t));
    return bytes;
}

/* Room for a product's inputs as bytes, and their scales; a tile reads those of rows behind the
 * last one, too. */
static void shape_rounded(const struct ek_graph *g, struct cuda_shape *s)
{
    size_t most = 0, groups = 0;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (!is_product(op))
            continue;
        const struct cuda_weight w = cuda_weight_of(g, op->weight);
        if (!w.rounds)
            continue;
        size_t bytes = ((size_t)g->weights[op->weight].cols + 63) & ~(size_t)63;
        most = bytes > most ? bytes : most;
        groups = w.packing.groups > groups ? w.packing.groups : groups;
        s->rounds = s->rounds || w.packing.form == CU_I8;
        s->rounds_f8 = s->rounds_f8 || w.packing.form == CU_F8;
    }
    const size_t rows = most > 0 ? (most_rows(s) + 127) & ~(size_t)127 : 0;
    s->rounded_at = cuda_shape_take(&s->arena_bytes, rows, most);
    s->row_scale_at = cuda_shape_take(&s->arena_bytes, rows, groups * sizeof(float));
}

/* Which forms products have to read, and room for a panel of the packed ones. */
static void shape_forms(const struct ek_graph *g, struct cuda_shape *s, size_t most)
{

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind == EK_OP_EXPERTS) {
            s->expert_forms[cuda_weight_of(g, op->weight).packing.form] = true;
            s->expert_forms[cuda_weight_of(g, op->u.experts.down).packing.form] = true;
        }
        if (!is_product(op))
            continue;
        const struct ek_weight *w = &g->weights[op->weight];
        uint32_t form = cuda_weight_of(g, op->weight).packing.form, rows = cuda_panel_rows(w->cols);
        size_t bytes = (size_t)(w->rows < rows ? w->rows : rows) * ((w->cols + 31) & ~31u) * 2;
        s->forms[form] = true;
        most = form != CU_PLAIN && bytes > most ? bytes : most;
    }
    s->panel_at = cuda_shape_take(&s->arena_bytes, 1, g->dtype == EK_F32 ? 0 : most);
}

uint32_t cuda_panel_rows(uint32_t cols)
{
    size_t row_bytes = ((size_t)cols + 31) / 32 * 64, rows = CUDA_PANEL / row_bytes & ~(size_t)127;

    rows = rows > CUDA_PANEL_ROWS ? CUDA_PANEL_ROWS : rows;
    return rows < 128 ? 128 : (uint32_t)rows;
}

/* Each weight behind the one before, in the weight memory or its item. */
static int lay_weights(const struct ek_graph *g, struct cuda_shape *s, struct cuda_weight *weights)
{
    const uint32_t items = s->offload.items, streamed = s->offload.streamed;
    size_t *item = calloc((size_t)items + 1, sizeof(*item));

    if (!item)
        return -ENOMEM;
    for (uint32_t i = 0; i < g->weight_count; i++) {
        struct cuda_weight *w = &weights[i];
        w->at = cuda_shape_take(w->item > 0 ? &item[w->item] : &s->weight_bytes, w->bytes, 1);
    }
    for (uint32_t i = 1; i <= items; i++) {
        (void)cuda_shape_take(&s->host_bytes, item[i], 1);
        if (i > streamed)
            continue;
        s->stream_bytes += item[i];
        s->slot_bytes = item[i] > s->slot_bytes ? item[i] : s->slot_bytes;
    }
    free(item);
    return 0;
}

static int shape_weights(const struct ek_plan_request *q, struct cuda_shape *s,
                         struct cuda_weight *weights)
{
    const struct ek_graph *g = q->graph;
    struct cuda_weight *own =
        weights ? NULL : calloc((size_t)g->weight_count + 1, sizeof(*weights));

    if (!weights && !own)
        return -ENOMEM;
    weights = weights ? weights : own;
    for (uint32_t i = 0; i < g->weight_count; i++)
        weights[i] = cuda_weight_of(g, i);
    int r = cuda_offload_mark(g, q->offload_bytes, weights, &s->offload);
    if (r == 0)
        r = lay_weights(g, s, weights);
    free(own);
    return r;
}

int cuda_shape_offload(const struct ek_plan_request *q, const struct cuda_shape *s,
                       struct ek_fault *fault)
{
    const double least = ceil((double)s->offload.least / 0x1p30 * 100) / 100;

    if (q->offload_bytes == 0 || s->offload.items > 0)
        return 0;
    if (s->offload.least == 0)
        ek_fault_write(fault, "cpu-offload-gb",
                       "--cpu-offload-gb: the model%s has no weights that could stay in host "
                       "memory; leave it out.",
                       q->graph->ranks > 0 ? "'s share of a card" : "");
    else
        ek_fault_write(fault, "cpu-offload-gb",
                       "--cpu-offload-gb %.3g frees nothing: the buffers on the card that weights "
                       "are copied to are as large; give at least %.2f, or leave it out.",
                       (double)q->offload_bytes / 0x1p30, least);
    return -EBADMSG;
}

/* Whether ranks sum parts of it that are then added to something: half the bytes are enough, as
 * they are for those of the parts. */
static bool travels(const struct ek_graph *g, uint32_t value)
{
    bool summed = false;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->dst != value)
            continue;
        if (op->kind == EK_OP_ADD || op->kind == EK_OP_EMBED)
            return false;
        summed = summed || op->kind == EK_OP_REDUCE;
    }
    return summed;
}

/* A value is kept in the type of the products where one reads it, or attention, or where it travels
 * between cards; sums (the residual stream) and what is only added to them stay in f32. */
static enum ek_dtype value_dtype(const struct ek_graph *g, uint32_t value)
{
    if (travels(g, value))
        return g->dtype;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        bool reads = op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS ||
                     op->kind == EK_OP_ATTENTION || op->kind == EK_OP_GLU ||
                     op->kind == EK_OP_EXPERTS || op->kind == EK_OP_HEADS;
        bool writes =
            op->kind == EK_OP_ATTENTION || op->kind == EK_OP_GLU || op->kind == EK_OP_HEADS;
        if (op->kind == EK_OP_ATTENTION && op->u.attention.value_dim > 0 &&
            op->u.attention.keys == value)
            return g->dtype;
        if ((reads && op->src == value) || (writes && op->dst == value))
            return g->dtype;
    }
    return EK_F32;
}

/* Values written before the pick have a row for each row of the step, the others for each logit. */
static void shape_values(const struct ek_graph *g, const struct cuda_shape *s, size_t *sum,
                         struct cuda_value *values)
{
    for (uint32_t v = 0; v < g->value_count; v++) {
        struct cuda_value shape = {.stride = (g->value_width[v] + 127) & ~127u,
                                   .dtype = value_dtype(g, v)};
        size_t rows = s->logit_rows;
        bool picked = false;
        for (uint32_t i = 0; i < g->op_count; i++) {
            picked = picked || g->ops[i].kind == EK_OP_PICK;
            if (!picked && g->ops[i].dst == v)
                rows = s->rows > rows ? s->rows : rows;
        }
        shape.at = cuda_shape_take(sum, rows * shape.stride, ek_dtype_bits(shape.dtype) / 8);
        if (values)
            values[v] = shape;
    }
}

/* Room for the pairs of one chunk of rows, of the largest mixture. */
static void shape_experts(const struct ek_plan_request *q, struct cuda_shape *s)
{
    const struct ek_graph *g = q->graph;
    const size_t all = most_rows(s);
    size_t rows = all, experts = 0;

    /* experts that are copied for a step are copied once */
    if (!s->offload.experts && rows > CUDA_EXPERT_ROWS)
        rows = CUDA_EXPERT_ROWS;
    s->expert_rows = (uint32_t)rows;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_EXPERTS)
            continue;
        size_t pairs = rows * op->u.experts.top;
        uint32_t inner = (g->weights[op->weight].rows + 127) & ~127u;
        uint32_t out = (g->value_width[op->dst] + 63) & ~63u;
        s->pairs = pairs > s->pairs ? pairs : s->pairs;
        s->inner_stride = inner > s->inner_stride ? inner : s->inner_stride;
        s->out_stride = out > s->out_stride ? out : s->out_stride;
        experts = op->u.experts.count > experts ? op->u.experts.count : experts;
    }
    if (s->pairs == 0)
        return;
    const size_t begin = s->arena_bytes;
    s->route_at = cuda_shape_take(&s->arena_bytes, s->pairs, sizeof(struct cu_route));
    s->order_at = cuda_shape_take(&s->arena_bytes, s->pairs, sizeof(uint32_t));
    s->from_at = cuda_shape_take(&s->arena_bytes, experts + 1, sizeof(uint32_t));
    s->inner_at =
        cuda_shape_take(&s->arena_bytes, s->pairs * s->inner_stride, ek_dtype_bits(g->dtype) / 8);
    s->out_at = cuda_shape_take(&s->arena_bytes, s->pairs * s->out_stride, sizeof(float));
    if (s->arena_bytes != SIZE_MAX)
        s->pair_most = (s->arena_bytes - begin) / rows * (all - rows);
}

static void shape_step(const struct ek_plan_request *q, struct cuda_shape *s)
{
    const struct ek_step_ceiling *c = &q->ceiling;
    size_t sum = 0;

    (void)cuda_shape_take(&sum, 1, sizeof(struct cu_step));
    (void)cuda_shape_take(&sum, c->rows, 4 * sizeof(uint32_t));
    (void)cuda_shape_take(&sum, c->seqs, sizeof(struct ek_step_seq) + sizeof(struct ek_slot_set));
    (void)cuda_shape_take(&sum, c->entries, sizeof(uint32_t));
    (void)cuda_shape_take(&sum, c->words, sizeof(uint32_t));
    (void)cuda_shape_take(&sum, c->scores, sizeof(struct cu_score));
    (void)cuda_shape_take(&sum, s->most_items, sizeof(struct cu_item));
    (void)cuda_shape_take(&sum, s->most_tiles, sizeof(struct cu_tile));
    s->step_bytes = sum;
    s->step_at = cuda_shape_take(&s->arena_bytes, sum, 1);
    const bool last = ek_graph_last(q->graph); /* samples */
    s->result_bytes = sizeof(struct cu_flags);
    if (last)
        s->result_bytes += ek_result_bytes(c->seqs, c->scores, c->seqs, q->graph->hidden);
    s->result_at = cuda_shape_take(&s->arena_bytes, s->result_bytes, 1);
    s->mask_words = (q->graph->vocab + 31) / 32;
    s->mask_bytes = last ? (size_t)q->logit_rows * s->mask_words * sizeof(uint32_t) : 0;
    s->mask_at = cuda_shape_take(&s->arena_bytes, s->mask_bytes, 1);
    s->adjusted_at = cuda_shape_take(
        &s->arena_bytes, last ? (size_t)c->seqs * CU_ADJUSTED(s->logit_stride, s->mask_words) : 0,
        sizeof(uint32_t));
    const size_t sampled = last ? c->seqs : 0, pieces = (q->graph->vocab + CU_PIECE - 1) / CU_PIECE;
    s->piece_at = cuda_shape_take(&s->arena_bytes, sampled * pieces, sizeof(struct cu_piece));
    s->draw_at = cuda_shape_take(&s->arena_bytes, sampled, sizeof(struct cu_draw));
}

/* A row of logits has as much room as the largest share needs. */
static void shape_ranks(const struct ek_plan_request *q, struct cuda_shape *s)
{
    const struct ek_graph *g = q->graph;
    uint32_t most = 0, last = 0;

    if (g->ranks == 0 && g->stages == 0)
        return;
    for (uint32_t r = 1; r <= g->ranks; r++) {
        uint32_t end = ek_shard_vocab(g->vocab, r, g->ranks);
        most = end - last > most ? end - last : most;
        last = end;
    }
    s->part_stride = (most + 63) & ~63u;
    size_t part = ek_graph_last(g) ? (size_t)s->logit_rows * s->part_stride : 0;
    part += PROBED; /* the first exchange finds room before there are any logits */
    s->part_at = cuda_shape_take(&s->arena_bytes, part, sizeof(float));
    s->gather_at = cuda_shape_take(&s->arena_bytes, part, (g->ranks + !g->ranks) * sizeof(float));
    s->square_at = cuda_shape_take(&s->arena_bytes, most_rows(s), sizeof(float));
}

int cuda_shape_of(const struct ek_plan_request *q, struct cuda_shape *ret_shape,
                  struct cuda_weight *weights, struct cuda_value *values, size_t *rope_at)
{
    const struct ek_graph *g = q->graph;
    struct cuda_shape s = {.block_shift = (uint32_t)__builtin_ctz(q->block_size),
                           .rows = (q->ceiling.rows + 127) & ~127u,
                           .logit_rows = (q->logit_rows + 15) & ~15u,
                           .logit_stride = (g->vocab + 63) & ~63u};

    if (q->ceiling.rows > UINT32_MAX / 4 || q->logit_rows > UINT32_MAX / 4 ||
        g->vocab > UINT32_MAX / 4)
        return -EOVERFLOW;
    int r = shape_weights(q, &s, weights);
    if (r < 0)
        return r;
    shape_values(g, &s, &s.arena_bytes, values);
    const bool last = ek_graph_last(g);
    s.logits_at = cuda_shape_take(&s.arena_bytes, last ? (size_t)s.logit_rows * s.logit_stride : 0,
                                  sizeof(float));
    for (uint32_t i = 0; i < g->rope_count; i++) {
        size_t at = cuda_shape_take(&s.arena_bytes, g->ropes[i].count, sizeof(float));
        (void)cuda_shape_take(&s.arena_bytes, (size_t)q->ceiling.rows * g->ropes[i].count,
                              2 * sizeof(float));
        if (rope_at)
            rope_at[i] = at;
    }
    s.token_at = cuda_shape_take(&s.arena_bytes, q->ceiling.rows, sizeof(int32_t));
    s.row_table_at = cuda_shape_take(&s.arena_bytes, q->ceiling.rows, sizeof(uint32_t));
    s.pick_at = cuda_shape_take(&s.arena_bytes, q->logit_rows, sizeof(uint32_t));
    s.slot_at = cuda_shape_take(&s.arena_bytes, q->ceiling.seqs, sizeof(struct cu_slot));
    s.word_at = cuda_shape_take(
        &s.arena_bytes, last ? (size_t)q->ceiling.seqs * q->ceiling.words : 0, sizeof(uint32_t));
    cuda_shape_attend(q, &s);
    shape_experts(q, &s);
    shape_ranks(q, &s);
    s.said_at = cuda_shape_take(&s.arena_bytes, (size_t)s.rows * cuda_recur_said(g), sizeof(float));
    (void)cuda_shape_take(&s.state_bytes, g->state_floats, sizeof(float));
    shape_step(q, &s);
    const size_t sums = shape_fused(g, &s);
    s.zeroed_bytes = s.arena_bytes;
    s.tile_partial_at = cuda_shape_take(&s.arena_bytes, s.tile_rows > 0 ? CUDA_TILE_PAIRS : 0,
                                        ((size_t)ek_graph_value_dim(g) + 2) * sizeof(float));
    s.space_at = cuda_shape_take(&s.arena_bytes, 1, g->dtype == EK_F32 ? 0 : CUDA_LT_SPACE);
    shape_forms(g, &s, sums);
    shape_rounded(g, &s);
    if (s.weight_bytes == SIZE_MAX || s.arena_bytes == SIZE_MAX || s.block_bytes == SIZE_MAX ||
        s.host_bytes == SIZE_MAX)
        return -EOVERFLOW;
    *ret_shape = s;
    return 0;
}

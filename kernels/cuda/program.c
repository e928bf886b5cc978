/*
 * The operation list as launches, made once at load. Neighbours that one kernel does together are
 * joined: a sum and the norm behind it, a rotation and the write to the cache. Arguments hold
 * addresses and widths only; what changes from step to step is read from the step on the device.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/group.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/stream.h"
#include "kernels/shard.h"

#define EXTRA_LAUNCHES 2u /* beside one per rope table and three per operation */

/* What is computed here: of a rank its share, which is gathered. */
static struct cu_view logits_view(const struct ek_device *d)
{
    if (d->graph->ranks > 0)
        return (struct cu_view){cuda_arena(d, d->shape.part_at), d->shape.part_stride, EK_F32};
    return (struct cu_view){cuda_arena(d, d->shape.logits_at), d->shape.logit_stride, EK_F32};
}

struct cuda_launch *cuda_program_add(struct maker *m, enum cuda_run run, enum cuda_kernel kernel,
                                     uint32_t threads, uint32_t columns)
{
    struct cuda_launch *l = &m->d->program[m->d->launches++];

    *l = (struct cuda_launch){.run = run, .kernel = kernel, .threads = threads, .columns = columns};
    return l;
}

static void make_begin(struct maker *m)
{
    struct ek_device *d = m->d;

    cuda_program_add(m, RUN_PICK, K_PREPARE, 256, 1)->args.prepare = (struct cu_prepare_args){
        .step = step_addr(d),
        .slots = cuda_arena(d, d->shape.slot_at),
        .words = ek_graph_last(d->graph) ? cuda_arena(d, d->shape.word_at) : 0,
        .slot_words = d->plan.ceiling.words,
        .tokens = cuda_arena(d, d->shape.token_at),
        .row_table = cuda_arena(d, d->shape.row_table_at),
        .picks = cuda_arena(d, d->shape.pick_at),
        .flags = cuda_arena(d, d->shape.result_at)};
    for (uint32_t i = 0; i < d->graph->rope_count; i++) {
        const struct ek_rope *r = &d->graph->ropes[i];
        if (r->count == 0)
            continue;
        cuda_program_add(m, RUN_ROWS, K_ANGLES, 64, 1)->args.angles =
            (struct cu_angle_args){.step = step_addr(d),
                                   .inv_freq = cuda_arena(d, d->rope_at[i]),
                                   .table = cuda_angles_at(d, i),
                                   .count = r->count,
                                   .factor = r->factor,
                                   .above = r->above,
                                   .theta = r->theta,
                                   .grow = r->grow};
    }
}

static void make_embed(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct cuda_weight *w = &d->weights[m->op->weight];
    const bool by_position = m->op->u.embed.by_position;

    cuda_program_add(m, RUN_ROWS, K_EMBED, 256, 1)->args.embed = (struct cu_embed_args){
        .step = step_addr(d),
        .tokens = cuda_arena(d, d->shape.token_at),
        .weight = {weight_addr(d, m->op->weight), w->stride, w->vector ? EK_F32 : d->graph->dtype},
        .dst = value_view(d, m->op->dst),
        .packing = w->packing,
        .width = d->graph->value_width[m->op->dst],
        .scale = m->op->u.embed.scale,
        .first = d->graph->ranks > 0 ? d->graph->vocab_first : 0,
        .count =
            by_position ? d->graph->weights[m->op->weight].rows : ek_graph_vocab_rows(d->graph),
        .by_position = by_position};
}

static uint32_t norm_threads(uint32_t group)
{
    uint32_t threads = (group / 4 + 31) / 32 * 32;
    return threads < 32 ? 32 : threads > 1024 ? 1024 : threads;
}

static void make_sum(struct maker *m, struct cu_view of)
{
    cuda_program_add(m, RUN_SUM, K_PREPARE, 0, 0)->args.sum =
        (struct cuda_sum){.of = of, .picked = m->picked};
}

/* All rows of a value, to or from the same rank of another stage. */
static void make_hand(struct maker *m, enum cuda_run run, uint16_t value)
{
    cuda_program_add(m, run, K_PREPARE, 0, 0)->args.sum =
        (struct cuda_sum){.of = value_view(m->d, value)};
}

/* A norm of which this rank has a share: its squares, those of all, then what they say. */
static void make_norm_of_all(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const struct cu_squares_args a = {.step = step_addr(d),
                                      .weight = weight_addr(d, op->weight),
                                      .squares = cuda_arena(d, d->shape.square_at),
                                      .src = value_view(d, op->src),
                                      .dst = value_view(d, op->dst),
                                      .group = op->u.norm.group,
                                      .first = op->u.norm.first,
                                      .picked = m->picked,
                                      .whole = op->u.norm.whole,
                                      .eps = op->u.norm.eps,
                                      .offset = op->u.norm.offset};

    cuda_program_add(m, by_rows(m), K_SQUARES, 256, 1)->args.squares = a;
    make_sum(m, (struct cu_view){a.squares, 1, EK_F32});
    cuda_program_add(m, by_rows(m), K_NORM_BY, 256, 1)->args.squares = a;
}

static void make_gather(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_graph *g = d->graph;

    struct cu_unpack_args *a =
        &cuda_program_add(m, RUN_GATHER, K_UNPACK, 256, g->ranks)->args.unpack;
    *a = (struct cu_unpack_args){
        .step = step_addr(d),
        .from = cuda_arena(d, d->shape.gather_at),
        .dst = {cuda_arena(d, d->shape.logits_at), d->shape.logit_stride, EK_F32},
        .ranks = g->ranks,
        .stride = d->shape.part_stride};
    for (uint32_t r = 0; r <= g->ranks; r++)
        a->begin[r] = ek_shard_vocab(g->vocab, r, g->ranks);
}

/* `sum` is the addition before it, or NULL. */
static void make_norm(struct maker *m, const struct ek_op *norm, const struct ek_op *sum)
{
    struct ek_device *d = m->d;
    uint32_t heads = norm->u.norm.heads ? norm->u.norm.heads : 1, group = norm->u.norm.group;

    struct cu_norm_args *a =
        &cuda_program_add(m, by_rows(m), K_NORM, norm_threads(group), heads)->args.norm;
    *a = (struct cu_norm_args){.step = step_addr(d),
                               .weight = weight_addr(d, norm->weight),
                               .src = value_view(d, norm->src),
                               .dst = value_view(d, norm->dst),
                               .group = group,
                               .first = norm->u.norm.first,
                               .heads = heads,
                               .picked = m->picked,
                               .eps = norm->u.norm.eps,
                               .offset = norm->u.norm.offset};
    if (!sum)
        return;
    a->adds = 1;
    a->add = value_view(d, sum->src);
    a->add_scale = sum->u.add.scale;
}

/* A sum whose whole row the next operation norms. */
static bool joins_norm(const struct maker *m)
{
    const struct ek_op *sum = m->op, *norm = m->op + 1;

    return norm < m->end && norm->kind == EK_OP_NORM && norm->src == sum->dst &&
           norm->u.norm.first == 0 && norm->u.norm.heads <= 1 && sum->src != sum->dst &&
           !cuda_norm_apart(norm) && norm->u.norm.group == m->d->graph->value_width[sum->dst];
}

static void make_rows(struct maker *m, enum cu_rows_kind kind)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    bool logits = kind == CU_ROWS_SOFTCAP && m->logits;
    uint32_t width = logits ? ek_graph_vocab_rows(d->graph) : d->graph->value_width[op->dst];
    uint32_t columns = (width + 1023) / 1024;
    enum cuda_run run = kind == CU_ROWS_PICK ? RUN_LOGIT_ROWS : by_rows(m);

    struct cu_rows_args *a = &cuda_program_add(m, run, K_ROWS, 256, columns)->args.rows;
    *a = (struct cu_rows_args){.step = step_addr(d),
                               .picks = cuda_arena(d, d->shape.pick_at),
                               .dst = logits ? logits_view(d) : value_view(d, op->dst),
                               .kind = kind,
                               .width = width,
                               .picked = run == RUN_LOGIT_ROWS};
    if (kind == CU_ROWS_GLU)
        a->act = op->u.glu.act;
    if (kind == CU_ROWS_ADD)
        a->scale = op->u.add.scale;
    if (kind == CU_ROWS_SOFTCAP)
        a->scale = op->u.softcap.cap;
    else
        a->src = value_view(d, op->src);
}

static void make_gemm(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const struct ek_weight *w = &d->graph->weights[op->weight];
    bool logits = op->kind == EK_OP_LOGITS;

    if (logits)
        d->hidden = value_view(d, op->src);
    const struct cu_packing *packing = &d->weights[op->weight].packing;
    struct cuda_launch *l = cuda_program_add(m, RUN_GEMM, K_GEMM, 256, 1);
    l->item = d->weights[op->weight].item;
    l->args.gemm =
        (struct cu_gemm_args){.step = step_addr(d),
                              .x = value_view(d, op->src),
                              .c = logits ? logits_view(d) : value_view(d, op->dst),
                              .w = weight_addr(d, op->weight),
                              .bias = weight_addr(d, op->bias),
                              .packing = *packing,
                              .n = w->rows,
                              .k = w->cols,
                              .picked = m->picked,
                              .scale = logits ? op->u.logits.scale : 1.0f,
                              .partials = cuda_arena(d, d->shape.panel_at),
                              .counters = cuda_arena(d, d->shape.arrived_at),
                              .parts = cuda_fused_parts(w->rows, w->cols, packing->form)};
    if (!d->weights[op->weight].rounds ||
        (packing->form == CU_F8 && d->capability < CUDA_ROUNDED_F8))
        return;
    l->args.gemm.rounded = cuda_arena(d, d->shape.rounded_at);
    l->args.gemm.row_scales = cuda_arena(d, d->shape.row_scale_at);
    l->args.gemm.input_scale = w->input_scale;
    l->args.gemm.input_most = w->input_most;
    if (d->weights[op->weight].block_at > 0)
        l->args.gemm.blocks = weight_addr(d, op->weight) + d->weights[op->weight].block_at;
}

static void make_experts(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    uint32_t gate = op->weight, down = op->u.experts.down;
    const uint32_t each = d->shape.offload.experts ? cuda_offload_experts(d->graph, d->weights, op)
                                                   : op->u.experts.count;
    const struct ek_routing *r = &op->u.experts.routing;
    struct cuda_launch *l = cuda_program_add(m, RUN_EXPERTS, K_ROUTE, 32, each);
    l->op = op;
    l->args.experts = (struct cu_experts_args){.step = step_addr(d),
                                               .route = cuda_arena(d, d->shape.route_at),
                                               .order = cuda_arena(d, d->shape.order_at),
                                               .from = cuda_arena(d, d->shape.from_at),
                                               .inner = cuda_arena(d, d->shape.inner_at),
                                               .out = cuda_arena(d, d->shape.out_at),
                                               .router = value_view(d, op->u.experts.router),
                                               .src = value_view(d, op->src),
                                               .dst = value_view(d, op->dst),
                                               .gate_bias = weight_addr(d, op->bias),
                                               .up_bias = weight_addr(d, op->u.experts.up_bias),
                                               .down_bias = weight_addr(d, op->u.experts.down_bias),
                                               .gate_step = cuda_weight_step(&d->weights[gate]),
                                               .down_step = cuda_weight_step(&d->weights[down]),
                                               .gate_packing = d->weights[gate].packing,
                                               .down_packing = d->weights[down].packing,
                                               .count = op->u.experts.count,
                                               .top = op->u.experts.top,
                                               .normalise = r->normalise,
                                               .correction = weight_addr(d, r->correction),
                                               .each = weight_addr(d, r->each),
                                               .sigmoid = r->score == EK_SCORE_SIGMOID,
                                               .share_in = r->share_in,
                                               .groups = r->groups,
                                               .groups_top = r->groups_top,
                                               .group_best = r->group_best,
                                               .scale = r->scale,
                                               .least = r->least,
                                               .act = op->u.experts.act,
                                               .picked = m->picked,
                                               .k = d->graph->value_width[op->src],
                                               .inner_width = d->graph->weights[gate].rows,
                                               .n = d->graph->value_width[op->dst],
                                               .inner_stride = d->shape.inner_stride,
                                               .out_stride = d->shape.out_stride};
}

static bool joins_attention(const struct maker *m)
{
    const struct ek_op *next = m->op + 1;

    return next < m->end && next->kind == EK_OP_ATTENTION && next->src == m->op->dst &&
           next->u.attention.head_dim == m->op->u.rope.head_dim && next->u.attention.value_dim == 0;
}

/* A product whose result the next operation gates, and nothing else ever reads. */
static bool joins_glu(const struct maker *m)
{
    const struct ek_graph *g = m->d->graph;
    const struct ek_op *op = m->op, *next = m->op + 1;

    if (next >= m->end || next->kind != EK_OP_GLU || next->src != op->dst || m->picked)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *o = &g->ops[i];
        const bool reads =
            o->src == op->dst || (o->kind == EK_OP_EXPERTS && o->u.experts.router == op->dst);
        if (o->kind != EK_OP_GLU && o->kind != EK_OP_EMBED && reads)
            return false;
    }
    return true;
}

/* Makes one operation's launches; returns how many operations they do. */
static uint32_t make_op(struct maker *m)
{
    const struct ek_op *op = m->op;

    if (cuda_recur_make(m) || cuda_latent_make(m))
        return 1;
    switch (op->kind) {
    case EK_OP_EMBED: make_embed(m); return 1;
    case EK_OP_NORM:
        if (op->u.norm.whole > 0)
            make_norm_of_all(m);
        else
            make_norm(m, op, NULL);
        return 1;
    case EK_OP_LINEAR:
        make_gemm(m);
        m->d->program[m->d->launches - 1].joins = joins_glu(m);
        return 1;
    case EK_OP_ROPE:
        if (!joins_attention(m)) {
            cuda_program_rope(m, op->dst, op, NULL);
            return 1;
        }
        cuda_program_rope(m, op->dst, op, op + 1);
        m->op++;
        cuda_attend_make(m);
        return 2;
    case EK_OP_ATTENTION:
        if (!op->u.attention.reads)
            cuda_program_rope(m, op->src, NULL, op);
        cuda_attend_make(m);
        return 1;
    case EK_OP_GLU: make_rows(m, CU_ROWS_GLU); return 1;
    case EK_OP_ADD:
        if (!joins_norm(m)) {
            make_rows(m, CU_ROWS_ADD);
            return 1;
        }
        make_norm(m, op + 1, op);
        return 2;
    case EK_OP_HEADS:
    case EK_OP_TAKE:
    case EK_OP_GATE:
    case EK_OP_SCALE:
    case EK_OP_CONV:
    case EK_OP_SCAN:
    case EK_OP_MIX:
    case EK_OP_MATCH:
    case EK_OP_CUT:
    case EK_OP_DELTA: break; /* made above, or not offered */
    case EK_OP_EXPERTS: make_experts(m); return 1;
    case EK_OP_SOFTCAP: make_rows(m, CU_ROWS_SOFTCAP); return 1;
    case EK_OP_PICK:
        make_rows(m, CU_ROWS_PICK);
        m->picked = true;
        return 1;
    case EK_OP_LOGITS:
        make_gemm(m);
        m->logits = true;
        return 1;
    case EK_OP_REDUCE: make_sum(m, value_view(m->d, op->dst)); return 1;
    case EK_OP_GATHER: make_gather(m); return 1;
    case EK_OP_SEND: make_hand(m, RUN_SEND, op->src); return 1;
    case EK_OP_RECV: make_hand(m, RUN_RECV, op->dst); return 1;
    }
    return 1; /* not offered: refused before */
}

int cuda_program_make(struct ek_device *d)
{
    const struct ek_graph *g = d->graph;
    struct maker m = {.d = d, .op = g->ops, .end = g->ops + g->op_count};
    size_t most = EXTRA_LAUNCHES + g->rope_count + 3 * (size_t)g->op_count;

    d->program = calloc(most, sizeof(*d->program));
    if (!d->program)
        return -ENOMEM;
    d->launches = 0;
    make_begin(&m);
    for (const struct ek_op *op = g->ops; op < m.end;) {
        m.op = op;
        op += make_op(&m);
    }
    return 0;
}

/* Gate and up, or down, of all experts: those together whose weights lie together. */
static int run_each(struct ek_device *d, const struct cuda_launch *l, enum cuda_kernel k, bool down)
{
    const struct ek_op *op = l->op;
    const uint32_t all = op->u.experts.count,
                   width = down ? l->args.experts.n : l->args.experts.inner_width;
    const uint32_t each = l->columns;
    int r = 0;

    for (uint32_t e = 0; r == 0 && e < all; e += each) {
        struct cu_experts_args a = l->args.experts;
        const uint32_t item = d->weights[(down ? op->u.experts.down : op->weight) + e].item;
        const bool copied = item > 0 && !d->in_place;
        a.from += e * sizeof(uint32_t);
        a.gate_bias += a.gate_bias ? (uint64_t)e * a.inner_width * sizeof(float) : 0;
        a.up_bias += a.up_bias ? (uint64_t)e * a.inner_width * sizeof(float) : 0;
        a.down_bias += a.down_bias ? (uint64_t)e * a.n * sizeof(float) : 0;
        a.gate = weight_addr(d, op->weight + e);
        a.up = weight_addr(d, op->u.experts.up + e);
        a.down = weight_addr(d, op->u.experts.down + e);
        if (copied)
            r = cuda_stream_await(d, item);
        if (r == 0)
            r = cuda_launch(d, k, (width + 15) / 16, all - e < each ? all - e : each, 256, &a);
        if (r == 0 && copied)
            r = cuda_stream_leave(d, item);
    }
    return r;
}

/* The kernel for so many pairs of an expert: those that read weights once for more of them are for
 * experts that have them, and are as the others to the bit. */
static enum cuda_kernel expert_kernel(const struct ek_device *d, bool down, uint32_t form,
                                      uint32_t pairs)
{
    const uint8_t most = d->choices.experts;

    if (d->graph->dtype == EK_F32)
        return down ? K_EXPERT_DOWN : K_EXPERT_UP;
    if (form == CU_PLAIN && pairs > 32 && most == PAIRS_64)
        return down ? K_EXPERT_DOWN64 : K_EXPERT_UP64;
    if (pairs > 16 && most >= PAIRS_32)
        return (enum cuda_kernel)((down ? K_EXPERT_DOWN32 : K_EXPERT_UP32) + form);
    return (enum cuda_kernel)((down ? K_EXPERT_DOWN : K_EXPERT_UP) + form);
}

static int run_experts(struct ek_device *d, struct cuda_launch *l, uint32_t rows)
{
    struct cu_experts_args *a = &l->args.experts;
    int r = 0;

    for (uint32_t first = 0; r == 0 && first < rows; first += a->chunk) {
        uint32_t left = rows - first;
        a->first = first;
        a->chunk = d->shape.expert_rows;
        left = left < a->chunk ? left : a->chunk;
        const uint32_t pairs = left * a->top / a->count; /* of an expert, as a rule */
        const enum cuda_kernel up = expert_kernel(d, false, a->gate_packing.form, pairs),
                               down = expert_kernel(d, true, a->down_packing.form, pairs);
        r = cuda_launch(d, K_ROUTE, left, 1, 32, a);
        if (r == 0)
            r = cuda_launch(d, K_ORDER, 1, 1, 1024, a);
        if (r == 0)
            r = run_each(d, l, up, false);
        if (r == 0)
            r = run_each(d, l, down, true);
        if (r == 0)
            r = cuda_launch(d, K_EXPERT_SUM, left, 1, 256, a);
    }
    return r;
}

static int run_sum(struct ek_device *d, const struct cuda_sum *s, uint32_t rows)
{
    return cuda_group_sum(d->group, d->rank_index, s->of.at, (size_t)rows * s->of.stride,
                          (enum ek_dtype)s->of.dtype, d->stream);
}

static int run_hand(struct ek_device *d, const struct cuda_launch *l, uint32_t rows)
{
    const struct cu_view *v = &l->args.sum.of;
    const uint32_t each = d->graph->ranks > 0 ? d->graph->ranks : 1, me = d->rank_index;
    const size_t count = (size_t)rows * v->stride;

    if (l->run == RUN_SEND)
        return cuda_group_send(d->group, me, me + each, v->at, count, (enum ek_dtype)v->dtype,
                               d->stream);
    return cuda_group_recv(d->group, me, me - each, v->at, count, (enum ek_dtype)v->dtype,
                           d->stream);
}

static int run_gather(struct ek_device *d, struct cuda_launch *l, uint32_t rows)
{
    int r = cuda_group_gather(d->group, d->rank_index, cuda_arena(d, d->shape.part_at),
                              l->args.unpack.from, (size_t)rows * l->args.unpack.stride, d->stream);
    return r < 0 ? r : cuda_launch(d, l->kernel, rows, l->columns, l->threads, &l->args);
}

static bool of_logit_rows(const struct cuda_launch *l)
{
    return l->run == RUN_LOGIT_ROWS || l->run == RUN_GATHER ||
           (l->run == RUN_GEMM && l->args.gemm.picked) ||
           (l->run == RUN_EXPERTS && l->args.experts.picked) ||
           (l->run == RUN_SUM && l->args.sum.picked);
}

/* One that asks for nothing but its rows. */
static int run_launch(struct ek_device *d, struct cuda_launch *l, uint32_t rows)
{
    switch (l->run) {
    case RUN_PICK: return cuda_launch(d, l->kernel, 1, 1, l->threads, &l->args);
    case RUN_ROWS:
    case RUN_LOGIT_ROWS: return cuda_launch(d, l->kernel, rows, l->columns, l->threads, &l->args);
    case RUN_GEMM: return cuda_product(d, &l->args.gemm, rows);
    case RUN_EXPERTS: return run_experts(d, l, rows);
    case RUN_SUM: return run_sum(d, &l->args.sum, rows);
    case RUN_GATHER: return run_gather(d, l, rows);
    case RUN_SEND:
    case RUN_RECV: return run_hand(d, l, rows);
    case RUN_CONV: return cuda_recur_conv(d, l, rows);
    case RUN_SEQS: return cuda_launch(d, l->kernel, d->seqs, l->columns, l->threads, &l->args);
    case RUN_HEADS:
    case RUN_ATTEND:
    case RUN_LATENT: break; /* ask for more */
    }
    return -EINVAL;
}

int cuda_program_run(struct ek_device *d, uint32_t rows, uint32_t logit_rows, uint32_t tiles,
                     uint32_t items)
{
    int r = rows > 0 ? cuda_stream_begin(d, rows) : 0;

    for (uint32_t i = 0; r == 0 && i < d->launches; i++) {
        struct cuda_launch *l = &d->program[i];
        bool picked = of_logit_rows(l);
        if ((picked && logit_rows == 0) || (rows == 0 && i > 0))
            break; /* a chunk in the middle of a prompt needs no more; nor does an empty step */
        uint32_t count = picked ? logit_rows : rows;
        if (l->item > 0)
            r = cuda_stream_await(d, l->item);
        if (r == 0 && l->run == RUN_ATTEND)
            r = cuda_attend_run(d, l, rows, tiles, items);
        else if (r == 0 && (l->run == RUN_LATENT || l->run == RUN_HEADS))
            r = cuda_latent_run(d, l, rows, tiles);
        else if (r == 0 && l->joins && cuda_product_joins(d, &l->args.gemm, count))
            r = cuda_product_glu(d, &l->args.gemm, &d->program[++i].args.rows, count);
        else if (r == 0)
            r = run_launch(d, l, count);
        if (r == 0 && l->item > 0)
            r = cuda_stream_leave(d, l->item);
    }
    return r;
}

/*
 * Launches of the operations with a recurrent state (recur.cu), and of those on columns and the
 * norms that few families have (columns.cu).
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/program.h"
#include "kernels/cuda/shape.h"

static uint32_t runs_of(uint32_t cols)
{
    return (cols + EK_STATE_COLS - 1) / EK_STATE_COLS;
}

/* A thread for each row of a head's state, whole warps of them. */
static uint32_t state_threads(uint32_t rows)
{
    return (rows + CU_STATE_ROWS - 1) / CU_STATE_ROWS * 32;
}

static uint32_t said_of(const struct ek_op *op)
{
    if (op->kind == EK_OP_DELTA)
        return 3 * op->u.delta.k_heads + 2 * op->u.delta.v_heads;
    return op->kind == EK_OP_SCAN ? 2 * op->u.scan.heads : 0;
}

uint32_t cuda_recur_said(const struct ek_graph *g)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const uint32_t floats = said_of(&g->ops[i]);
        most = floats > most ? floats : most;
    }
    return most;
}

bool cuda_norm_apart(const struct ek_op *op)
{
    return op->u.norm.own || op->u.norm.centred || op->bias != EK_NO_WEIGHT;
}

/* More blocks than a launch may have side by side are no model's. */
const char *cuda_recur_refuse(const struct ek_op *op)
{
    uint64_t rows = 0, blocks = 0;

    if (op->kind == EK_OP_DELTA) {
        rows = op->u.delta.k_dim;
        blocks = (uint64_t)op->u.delta.v_heads * runs_of(op->u.delta.v_dim);
    } else if (op->kind == EK_OP_SCAN) {
        rows = op->u.scan.state_dim;
        blocks = (uint64_t)op->u.scan.heads * runs_of(op->u.scan.head_dim);
    }
    if (rows > CU_STATE_MOST)
        return "has a recurrent state of more than 256 rows a head, which is served on the CPU for "
               "now";
    return blocks > UINT16_MAX ? "has more heads of recurrent state than a card takes" : NULL;
}

static struct cu_state state_at(const struct ek_device *d, uint32_t at)
{
    return (struct cu_state){.bytes = d->shape.state_bytes, .at = at};
}

static void make_conv(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const uint32_t width = d->graph->value_width[op->dst];

    cuda_program_add(m, RUN_CONV, K_CONV, 256, (width + 255) / 256)->args.conv =
        (struct cu_conv_args){.step = step_addr(d),
                              .weight = weight_addr(d, op->weight),
                              .bias = weight_addr(d, op->bias),
                              .src = value_view(d, op->src),
                              .dst = value_view(d, op->dst),
                              .state = state_at(d, op->u.conv.state_at),
                              .first = op->u.conv.first,
                              .width = width,
                              .kernel = op->u.conv.kernel,
                              .silu = op->u.conv.silu};
}

static void make_delta(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const struct ek_delta *t = &op->u.delta;
    const struct cu_delta_args a = {.step = step_addr(d),
                                    .weight = weight_addr(d, op->weight),
                                    .bias = weight_addr(d, op->bias),
                                    .said = cuda_arena(d, d->shape.said_at),
                                    .src = value_view(d, op->src),
                                    .gates = value_view(d, t->gates),
                                    .dst = value_view(d, op->dst),
                                    .state = state_at(d, t->state_at),
                                    .k_heads = t->k_heads,
                                    .v_heads = t->v_heads,
                                    .k_dim = t->k_dim,
                                    .v_dim = t->v_dim,
                                    .stride = said_of(op),
                                    .twice = t->twice};

    cuda_program_add(m, RUN_ROWS, K_DELTA_SAID, 256, 1)->args.delta = a;
    cuda_program_add(m, RUN_SEQS, K_DELTA, state_threads(t->k_dim), t->v_heads * runs_of(t->v_dim))
        ->args.delta = a;
}

static void make_scan(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const struct ek_scan *t = &op->u.scan;
    const struct cu_scan_args a = {.step = step_addr(d),
                                   .weight = weight_addr(d, op->weight),
                                   .bias = weight_addr(d, op->bias),
                                   .skip = weight_addr(d, t->skip),
                                   .said = cuda_arena(d, d->shape.said_at),
                                   .src = value_view(d, op->src),
                                   .steps = value_view(d, t->steps),
                                   .dst = value_view(d, op->dst),
                                   .state = state_at(d, t->state_at),
                                   .step_first = t->step_first,
                                   .heads = t->heads,
                                   .groups = t->groups,
                                   .head_dim = t->head_dim,
                                   .state_dim = t->state_dim,
                                   .stride = said_of(op),
                                   .least = t->least,
                                   .most = t->most};

    cuda_program_add(m, RUN_ROWS, K_SCAN_SAID, 256, 1)->args.scan = a;
    cuda_program_add(m, RUN_SEQS, K_SCAN, state_threads(t->state_dim),
                     t->heads * runs_of(t->head_dim))
        ->args.scan = a;
}

static void make_columns(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    struct cu_columns_args a = {.step = step_addr(d),
                                .src = value_view(d, op->src),
                                .dst = value_view(d, op->dst),
                                .width = d->graph->value_width[op->dst],
                                .picked = m->picked,
                                .scale = 1.0f};

    if (op->kind == EK_OP_TAKE) {
        a.kind = CU_COLUMNS_TAKE;
        a.first = op->u.take.first;
        a.apart = op->u.take.step;
        a.group = op->u.take.group;
        a.to = op->u.take.to;
        a.width = op->u.take.heads * op->u.take.group;
    } else if (op->kind == EK_OP_GATE) {
        a.kind = CU_COLUMNS_GATE;
        a.first = op->u.gate.first;
        a.apart = op->u.gate.step;
        a.group = op->u.gate.group;
        a.act = op->u.gate.act;
        a.rising = op->u.gate.numbers.rising;
        a.falling = op->u.gate.numbers.falling;
        a.slope = op->u.gate.numbers.slope;
    } else {
        a.kind = CU_COLUMNS_SCALE;
        a.weight = weight_addr(d, op->weight);
        a.scale = op->u.scale.scale;
    }
    cuda_program_add(m, by_rows(m), K_COLUMNS, 256, (a.width + 1023) / 1024)->args.columns = a;
}

static void make_centre(struct maker *m)
{
    struct ek_device *d = m->d;
    const struct ek_op *op = m->op;
    const uint32_t group = op->u.norm.group, most = (group + 31) / 32 * 32;

    cuda_program_add(m, by_rows(m), K_CENTRE, most > 256 ? 256 : most,
                     op->u.norm.heads ? op->u.norm.heads : 1)
        ->args.centre = (struct cu_centre_args){.step = step_addr(d),
                                                .weight = weight_addr(d, op->weight),
                                                .bias = weight_addr(d, op->bias),
                                                .src = value_view(d, op->src),
                                                .dst = value_view(d, op->dst),
                                                .group = group,
                                                .first = op->u.norm.first,
                                                .own = op->u.norm.own,
                                                .centred = op->u.norm.centred,
                                                .picked = m->picked,
                                                .eps = op->u.norm.eps,
                                                .offset = op->u.norm.offset};
}

bool cuda_recur_make(struct maker *m)
{
    switch ((int)m->op->kind) {
    case EK_OP_CONV: make_conv(m); return true;
    case EK_OP_DELTA: make_delta(m); return true;
    case EK_OP_SCAN: make_scan(m); return true;
    case EK_OP_TAKE:
    case EK_OP_GATE:
    case EK_OP_SCALE: make_columns(m); return true;
    case EK_OP_NORM:
        if (m->op->u.norm.whole > 0 || !cuda_norm_apart(m->op))
            return false;
        make_centre(m);
        return true;
    }
    return false;
}

int cuda_recur_conv(struct ek_device *d, struct cuda_launch *l, uint32_t rows)
{
    const uint32_t blocks = (rows + CU_CONV_ROWS - 1) / CU_CONV_ROWS;
    int r = cuda_launch(d, K_CONV, blocks, l->columns, l->threads, &l->args.conv);

    if (r == 0 && d->seqs < rows) /* one of several rows */
        r = cuda_launch(d, K_CONV_KEEP, d->seqs, l->columns, l->threads, &l->args.conv);
    return r;
}

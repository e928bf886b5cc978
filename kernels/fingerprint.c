/* Numbers that tell models apart: nodes that compute one together compare them when they meet. */
#include "kernels/fingerprint.h"

#include <string.h>
#include <xxhash.h>

#define SAMPLED_WEIGHTS 512u /* whose bytes go into ek_weight_sum() */
#define SAMPLED_BYTES   256u /* of each, from the middle of its first part */

static void fingerprint_add(uint64_t *s, const void *data, size_t bytes)
{
    *s = XXH3_64bits_withSeed(data, bytes, *s);
}

static void add_u32(uint64_t *s, uint32_t n)
{
    fingerprint_add(s, &n, sizeof(n));
}

static void add_float(uint64_t *s, float f)
{
    fingerprint_add(s, &f, sizeof(f));
}

static void add_routing(uint64_t *s, const struct ek_routing *r)
{
    const uint32_t numbers[] = {(uint32_t)r->score, r->normalise,  r->share_in,   r->groups,
                                r->groups_top,      r->group_best, r->correction, r->each};

    fingerprint_add(s, numbers, sizeof(numbers));
    add_float(s, r->scale);
    add_float(s, r->least);
}

static void add_rope(uint64_t *s, const struct ek_op *op)
{
    add_u32(s, op->u.rope.first_col);
    add_u32(s, op->u.rope.heads);
    add_u32(s, op->u.rope.head_dim);
    add_u32(s, op->u.rope.rotary_dim);
    add_u32(s, op->u.rope.table);
    add_u32(s, op->u.rope.neighbours);
    add_float(s, op->u.rope.warm);
    add_u32(s, op->u.rope.warm_from);
    add_u32(s, op->u.rope.warm_every);
}

static void add_attention(uint64_t *s, const struct ek_op *op)
{
    add_u32(s, op->u.attention.q_heads);
    add_u32(s, op->u.attention.kv_heads);
    add_u32(s, op->u.attention.head_dim);
    add_float(s, op->u.attention.scale);
    add_float(s, op->u.attention.softcap);
    add_u32(s, op->u.attention.window);
    add_u32(s, op->u.attention.chunks);
    add_float(s, op->u.attention.k_scale);
    add_float(s, op->u.attention.v_scale);
    add_u32(s, op->u.attention.value_dim);
    add_u32(s, op->u.attention.keys);
    add_u32(s, op->u.attention.reads);
}

static void add_experts(uint64_t *s, const struct ek_op *op)
{
    add_u32(s, op->u.experts.router);
    add_u32(s, op->u.experts.count);
    add_u32(s, op->u.experts.top);
    add_routing(s, &op->u.experts.routing);
    add_u32(s, (uint32_t)op->u.experts.act);
    add_u32(s, op->u.experts.up);
    add_u32(s, op->u.experts.down);
    add_u32(s, op->u.experts.up_bias);
    add_u32(s, op->u.experts.down_bias);
}

static void add_delta(uint64_t *s, const struct ek_op *op)
{
    add_u32(s, op->u.delta.gates);
    add_u32(s, op->u.delta.k_heads);
    add_u32(s, op->u.delta.v_heads);
    add_u32(s, op->u.delta.k_dim);
    add_u32(s, op->u.delta.v_dim);
    add_u32(s, op->u.delta.state_at);
    add_u32(s, op->u.delta.twice);
}

static void add_scan(uint64_t *s, const struct ek_op *op)
{
    const struct ek_scan *t = &op->u.scan;
    const uint32_t numbers[] = {t->steps,    t->step_first, t->heads, t->groups,
                                t->head_dim, t->state_dim,  t->skip,  t->state_at};

    fingerprint_add(s, numbers, sizeof(numbers));
    add_float(s, t->least);
    add_float(s, t->most);
}

static void add_mix(uint64_t *s, const struct ek_op *op)
{
    const uint32_t numbers[] = {op->u.mix.by,     op->u.mix.fixed,   op->u.mix.first,
                                op->u.mix.inputs, op->u.mix.outputs, op->u.mix.group,
                                op->u.mix.to};

    fingerprint_add(s, numbers, sizeof(numbers));
    add_float(s, op->u.mix.plus);
}

static void add_op(uint64_t *s, const struct ek_op *op)
{
    const uint32_t head[] = {(uint32_t)op->kind, op->dst, op->src, op->weight, op->bias, op->layer};

    fingerprint_add(s, head, sizeof(head));
    switch (op->kind) {
    case EK_OP_EMBED:
        add_float(s, op->u.embed.scale);
        if (op->u.embed.by_position)
            add_u32(s, true);
        break;
    case EK_OP_ADD:
    case EK_OP_SCALE:
    case EK_OP_LOGITS: add_float(s, op->u.add.scale); break;
    case EK_OP_NORM:
        add_float(s, op->u.norm.eps);
        add_float(s, op->u.norm.offset);
        add_u32(s, op->u.norm.group);
        add_u32(s, op->u.norm.first);
        add_u32(s, op->u.norm.heads);
        if (op->u.norm.own)
            add_u32(s, true);
        if (op->u.norm.centred)
            add_u32(s, 2);
        break;
    case EK_OP_ROPE: add_rope(s, op); break;
    case EK_OP_ATTENTION: add_attention(s, op); break;
    case EK_OP_HEADS:
        add_u32(s, op->u.heads.count);
        add_u32(s, op->u.heads.rest);
        break;
    case EK_OP_GLU: add_u32(s, (uint32_t)op->u.glu.act); break;
    case EK_OP_EXPERTS: add_experts(s, op); break;
    case EK_OP_SOFTCAP: add_float(s, op->u.softcap.cap); break;
    case EK_OP_TAKE: fingerprint_add(s, &op->u.take, sizeof(op->u.take)); break;
    case EK_OP_GATE:
        add_u32(s, op->u.gate.first);
        add_u32(s, op->u.gate.step);
        add_u32(s, op->u.gate.group);
        add_u32(s, (uint32_t)op->u.gate.act);
        if (op->u.gate.act == EK_GATE_CLIP)
            add_float(s, op->u.gate.numbers.rising);
        if (op->u.gate.act == EK_GATE_XIELU) {
            add_float(s, op->u.gate.numbers.rising);
            add_float(s, op->u.gate.numbers.falling);
            add_float(s, op->u.gate.numbers.slope);
        }
        break;
    case EK_OP_CONV:
        add_u32(s, op->u.conv.first);
        add_u32(s, op->u.conv.kernel);
        add_u32(s, op->u.conv.state_at);
        add_u32(s, op->u.conv.silu);
        break;
    case EK_OP_DELTA: add_delta(s, op); break;
    case EK_OP_MIX: add_mix(s, op); break;
    case EK_OP_MATCH: add_float(s, op->u.match.least); break;
    case EK_OP_CUT:
        add_u32(s, op->u.cut.group);
        add_float(s, op->u.cut.times);
        break;
    case EK_OP_SCAN: add_scan(s, op); break;
    case EK_OP_LINEAR:
    case EK_OP_PICK:
    case EK_OP_REDUCE:
    case EK_OP_GATHER:
    case EK_OP_SEND:
    case EK_OP_RECV: break;
    }
}

static void add_weight(uint64_t *s, const struct ek_weight *w)
{
    const uint32_t shape[] = {
        (uint32_t)w->source, (uint32_t)w->dtype, w->rows,     w->cols,    w->group, w->parts,
        w->first_col,        w->quantized,       w->row_step, w->col_step};

    fingerprint_add(s, w->name, strnlen(w->name, sizeof(w->name)));
    fingerprint_add(s, shape, sizeof(shape));
}

uint64_t ek_graph_sum(const struct ek_graph *g)
{
    const uint32_t shape[] = {g->op_count, g->weight_count, g->value_count,     g->rope_count,
                              g->layers,   g->kv_heads,     g->head_dim,        g->hidden,
                              g->vocab,    g->max_position, (uint32_t)g->dtype, g->kv_i8,
                              g->kv_f8,    g->value_dim,    g->state_floats,    g->kv_mixed};
    uint64_t s = 0;

    fingerprint_add(&s, shape, sizeof(shape));
    for (uint32_t i = 0; i < g->op_count; i++)
        add_op(&s, &g->ops[i]);
    for (uint32_t i = 0; i < g->weight_count; i++)
        add_weight(&s, &g->weights[i]);
    fingerprint_add(&s, g->value_width, g->value_count * sizeof(*g->value_width));
    for (uint32_t i = 0; i < g->rope_count; i++) {
        const struct ek_rope *r = &g->ropes[i];
        fingerprint_add(&s, r->inv_freq, r->count * sizeof(*r->inv_freq));
        add_float(&s, r->factor);
        add_u32(&s, r->above);
    }
    return s;
}

uint64_t ek_weight_sum(const struct ek_graph *g, const struct ek_weight_files *files)
{
    const uint32_t taken = g->weight_count < SAMPLED_WEIGHTS ? g->weight_count : SAMPLED_WEIGHTS;
    uint64_t s = 0;

    for (uint32_t i = 0; i < taken; i++) {
        const uint32_t at = (uint32_t)((uint64_t)g->weight_count * i / taken);
        const struct ek_weight *w = &g->weights[at];
        if (w->parts == 0 || w->part[0].file >= files->count)
            continue;
        const struct ek_weight_part *p = &w->part[0];
        const struct ek_weight_file *f = &files->file[p->file];
        const uint64_t bytes =
            (uint64_t)p->rows * ek_weight_file_cols(w) * ek_dtype_bits(w->source) / 8;
        const uint64_t some = bytes < SAMPLED_BYTES ? bytes : SAMPLED_BYTES;
        const uint64_t from = p->offset_bytes + (bytes - some) / 2;
        if (from <= f->size_bytes && some <= f->size_bytes - from)
            fingerprint_add(&s, (const char *)f->data + from, some);
    }
    return s;
}

/*
 * The rules of products, gates and parts that are taken, for the walk of shard.c. Whether a product
 * is divided by its rows is seen from what reads its result: attention, a product by heads, a
 * recurrent layer or the activation of a feed-forward; by its columns when its input is divided.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/shard.h"
#include "kernels/shard_cut.h"

/* A product that makes the heads of an attention, or its queries alone; GATED: each head of q is
 * twice as wide. */
static int linear_heads(struct sharding *s, const struct ek_op *attention, bool gated)
{
    const uint32_t q = attention->u.attention.q_heads, kv = attention->u.attention.kv_heads;
    const uint32_t d = attention->u.attention.head_dim, mine = q / s->ranks;
    const uint32_t wide = gated ? 2 : 1;

    int r = shard_check_heads(s, q, kv);
    if (r < 0)
        return r;
    const struct shard_cut c = shard_kv_cut(s, kv);
    const struct shard_cut rows[3] = {{s->rank * mine * wide * d, mine * wide * d},
                                      {(wide * q + c.first) * d, c.count * d},
                                      {(wide * q + kv + c.first) * d, c.count * d}};
    const uint32_t runs = attention->u.attention.reads ? 1 : 3;
    r = shard_cut_rows(s, s->op.weight, rows, runs);
    if (r == 0)
        r = shard_cut_rows(s, s->op.bias, rows, runs);
    shard_push(s, &s->op);
    s->held[s->op.dst].form = gated ? GATED : HEADS;
    return r < 0 ? r : shard_width(s, s->op.dst, (wide * mine + (runs - 1) * c.count) * d);
}

/* The attention whose keys serve as values: a product makes [q | k], which are moved to it. */
static const struct ek_op *takes_keys(const struct sharding *s, const struct ek_op *take)
{
    const struct ek_op *a = shard_attention_of(s, take->dst);
    const uint32_t n = s->g->value_width[take->src];

    if (!a || a->u.attention.reads || a->u.attention.value_dim > 0)
        return NULL;
    const uint32_t all = a->u.attention.q_heads + a->u.attention.kv_heads;
    return n == all * a->u.attention.head_dim ? a : NULL;
}

static int linear_keys(struct sharding *s, const struct ek_op *a)
{
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim, mine = q / s->ranks;

    int r = shard_check_heads(s, q, kv);
    if (r < 0)
        return r;
    const struct shard_cut c = shard_kv_cut(s, kv);
    const struct shard_runs runs = {
        2, {{s->rank * mine * d, mine * d}, {(q + c.first) * d, c.count * d}}};
    return shard_linear_runs(s, &runs);
}

/* Queries and keys, or keys as values, to where attention reads them. */
static int take_keys(struct sharding *s, const struct ek_op *a)
{
    const uint32_t q = a->u.attention.q_heads * a->u.attention.head_dim, mine = q / s->ranks;
    const struct shard_cut kv = shard_kv_cut(s, a->u.attention.kv_heads);
    const uint32_t own = kv.count * a->u.attention.head_dim, to = s->op.u.take.to;
    const uint32_t keys = a->u.attention.kv_heads * a->u.attention.head_dim;
    const bool both = to == 0 && s->op.u.take.first == 0 && s->op.u.take.group == q + keys;
    const bool last = to == q + keys && s->op.u.take.first == q && s->op.u.take.group == keys;

    if ((!both && !last) || s->op.u.take.heads != 1)
        return shard_no_rule(s, "of some of the heads");
    s->op.u.take.first = both ? 0 : mine;
    s->op.u.take.group = both ? mine + own : own;
    s->op.u.take.to = both ? 0 : mine + own;
    shard_push(s, &s->op);
    s->held[s->op.dst].form = HEADS;
    return shard_width(s, s->op.dst, mine + 2 * own);
}

/* The attention whose q, k or v is taken from groups that have as many heads of each: [q | k | v]
 * or [q | v | k]; or NULL. */
static const struct ek_op *takes_by_group(const struct sharding *s, const struct ek_op *take)
{
    const struct ek_op *a = shard_attention_of(s, take->dst);
    const uint32_t groups = take->u.take.heads;

    if (!a || a->u.attention.reads || a->u.attention.value_dim > 0 || groups < 2)
        return NULL;
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim, to = take->u.take.to;
    if (q % groups != 0 || kv % groups != 0 || (to != 0 && to != q * d && to != (q + kv) * d))
        return NULL;
    const bool all = take->u.take.group == (to == 0 ? q : kv) / groups * d &&
                     take->u.take.step == (q + 2 * kv) / groups * d &&
                     s->g->value_width[take->src] == (uint64_t)(q + 2 * kv) * d;
    return all ? a : NULL;
}

/* A product that makes what lies by heads: the rows of the rank's. */
static int linear_of_heads(struct sharding *s)
{
    const uint32_t n = s->g->value_width[s->op.dst] / s->ranks;
    const struct shard_runs rows = {1, {{n * s->rank, n}}};

    return shard_linear_runs(s, &rows);
}

/* Of so many heads, which are to be divided: `kv` as shard_check_heads() has it. */
static int linear_by_heads(struct sharding *s, uint32_t heads, uint32_t kv)
{
    int r = shard_check_heads(s, heads, kv);
    return r < 0 ? r : linear_of_heads(s);
}

/* A product that makes groups of q, k and v: as many for each rank. */
static int linear_by_groups(struct sharding *s, uint32_t groups)
{
    if (groups % s->ranks == 0)
        return linear_of_heads(s);
    return ek_fault_set(s->fault, "tensor-parallel-size",
                        "--tensor-parallel-size %u: the model's heads lie in %u groups, which so "
                        "many ranks cannot share evenly; choose a divisor of %u",
                        s->ranks, groups, groups);
}

static int take_each_group(struct sharding *s)
{
    s->op.u.take.heads /= s->ranks;
    s->op.u.take.to /= s->ranks;
    shard_push(s, &s->op);
    s->held[s->op.dst].form = HEADS;
    return shard_width(s, s->op.dst, s->g->value_width[s->op.dst] / s->ranks);
}

/* A product that makes gate and up of a feed-forward, each of n columns, or what is its own gate.
 */
static int linear_inner(struct sharding *s, uint32_t n, uint32_t parts)
{
    const uint32_t unit = ek_shard_unit(n, shard_widest_group(s->g, n), s->ranks);

    if (unit == 0)
        return shard_too_narrow(s, n);
    const struct shard_cut c = shard_cut_of(s, n, unit);
    const struct shard_runs rows = {parts, {c, {n + c.first, c.count}}};
    return shard_linear_runs(s, &rows);
}

/* Whether a gate takes all of a value, element by element. */
static bool gate_whole(const struct sharding *s, const struct ek_op *gate)
{
    const uint32_t n = s->g->value_width[gate->dst];

    return gate->u.gate.first == 0 && gate->u.gate.group == n && s->g->value_width[gate->src] == n;
}

/* Whether the value that a gate works on is what attention gives. */
static bool gates_heads(const struct sharding *s, const struct ek_op *gate)
{
    for (const struct ek_op *op = gate - 1; op >= s->g->ops; op--)
        if (op->dst == gate->dst)
            return op->kind == EK_OP_ATTENTION;
    return false;
}

int shard_gate(struct sharding *s)
{
    const struct shard_held *dst = &s->held[s->op.dst], *src = &s->held[s->op.src];

    if (dst->form == WHOLE && src->form == WHOLE)
        return shard_push_whole(s);
    if (dst->form == HEADS && s->op.dst == s->op.src) { /* of each element by itself */
        s->op.u.gate.step = s->op.u.gate.group = s->out->value_width[s->op.dst];
        shard_push(s, &s->op);
        return 0;
    }
    if (dst->form == COLUMNS && src->form == GATED) { /* as many heads of both */
        shard_push(s, &s->op);
        return 0;
    }
    const struct shard_cut c = {s->op.u.gate.first + dst->columns.first, dst->columns.count};
    if (dst->form != COLUMNS || s->op.u.gate.group != s->g->value_width[s->op.dst] ||
        !shard_columns_at(s, s->op.src, c, &s->op.u.gate.first))
        return shard_no_rule(s, "of divided columns");
    s->op.u.gate.step = s->op.u.gate.group = dst->columns.count;
    shard_push(s, &s->op);
    return 0;
}

/* The attention whose queries it takes from heads that are twice as wide: [q | gate]; or NULL. */
static const struct ek_op *takes_queries(const struct sharding *s, const struct ek_op *take)
{
    const struct ek_op *a = shard_attention_of(s, take->dst);

    if (!a)
        return NULL;
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads,
                   d = a->u.attention.head_dim;
    const bool all = take->u.take.first == 0 && take->u.take.heads == q &&
                     take->u.take.group == d && take->u.take.step == 2 * d &&
                     s->g->value_width[take->src] == (uint64_t)(q + kv) * 2 * d;
    return all ? a : NULL;
}

/* Queries, or keys and values, out of heads with gates; or columns that all ranks have. */
int shard_take(struct sharding *s)
{
    const struct ek_op *a = shard_attention_of(s, s->op.dst);

    const int form = s->held[s->op.src].form;

    if (form == WHOLE)
        return shard_push_whole(s);
    if (form == COLUMNS && takes_by_group(s, &s->g->ops[s->at]))
        return take_each_group(s);
    if (form == RUNS && a)
        return take_keys(s, a);
    if (form != GATED || !a)
        return shard_take_runs(s);
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim, mine = q / s->ranks;
    const uint32_t keys = shard_kv_cut(s, kv).count;
    if (takes_queries(s, &s->g->ops[s->at])) {
        s->op.u.take.heads = mine;
    } else if (s->op.u.take.first == 2 * q * d && s->op.u.take.heads == 1 &&
               s->op.u.take.group == 2 * kv * d && s->op.u.take.to == q * d) {
        s->op.u.take.first = 2 * mine * d;
        s->op.u.take.group = 2 * keys * d;
        s->op.u.take.to = mine * d;
    } else {
        return shard_no_rule(s, "of some of the heads");
    }
    shard_push(s, &s->op);
    s->held[s->op.dst].form = HEADS;
    return shard_width(s, s->op.dst, (mine + 2 * keys) * d);
}

/* The activation of a feed-forward of n columns whose gate is multiplied with a number before. */
static bool scales_gate(const struct sharding *s, const struct ek_op *take, uint32_t *ret_n)
{
    const struct ek_op *glu = take + 3, *end = s->g->ops + s->g->op_count;
    const uint32_t n = s->g->value_width[take->src] / 2;

    *ret_n = n;
    return glu < end && glu->kind == EK_OP_GLU && glu->src == take->src &&
           take->u.take.first == 0 && take->u.take.heads == 1 && take->u.take.group == n &&
           take[1].kind == EK_OP_SCALE && take[2].kind == EK_OP_TAKE && take[2].dst == take->src;
}

int shard_linear(struct sharding *s)
{
    const struct shard_held *src = &s->held[s->op.src];

    if (src->form == COLUMNS) {
        int r = shard_cut_cols(s, s->op.weight, src->columns);
        if (s->rank > 0)
            s->op.bias = EK_NO_WEIGHT; /* counts once */
        return r < 0 ? r : shard_push_sum(s);
    }
    if (src->form != WHOLE)
        return shard_no_rule(s, "of heads");
    const struct ek_op *next = shard_reader(s);
    if (next && next->kind == EK_OP_ATTENTION && next->src == s->op.dst)
        return linear_heads(s, next, false);
    if (next && next->kind == EK_OP_HEADS && next->src == s->op.dst)
        return linear_by_heads(s, next->u.heads.count, 1);
    const bool taken = next && next->kind == EK_OP_TAKE && next->src == s->op.dst;
    const struct ek_op *gated = taken ? takes_queries(s, next) : NULL;
    const struct ek_op *keys = taken && !gated ? takes_keys(s, next) : NULL;
    struct shard_runs runs;
    uint32_t n;
    if (gated)
        return linear_heads(s, gated, true);
    if (taken && takes_by_group(s, next))
        return linear_by_groups(s, next->u.take.heads);
    if (keys)
        return linear_keys(s, keys);
    if (next && next->kind == EK_OP_GLU && next->src == s->op.dst)
        return linear_inner(s, s->g->value_width[next->dst], 2);
    if (taken && scales_gate(s, next, &n))
        return linear_inner(s, n, 2);
    if (shard_state_runs(s, &runs))
        return shard_linear_runs(s, &runs);
    if (next && next->kind == EK_OP_GATE && next->src == s->op.dst && gate_whole(s, next))
        return next->dst == s->op.dst ? linear_inner(s, s->g->value_width[next->dst], 1)
               : gates_heads(s, next) ? linear_of_heads(s)
                                      : shard_push_whole(s);
    return shard_push_whole(s);
}

/*
 * The rank's list is written in one walk over the whole list. `held` says of each value which of
 * its columns the rank has at that point; every operation has a rule for what it is given and says
 * what it leaves. Whether a product is divided by its rows is seen from who reads what it makes:
 * attention or the activation of a feed-forward.
 */
#include "kernels/shard.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/err.h"
#include "kernels/shard_cut.h"

/* ---- the list ---- */

int shard_width(struct sharding *s, uint16_t value, uint32_t width)
{
    if (s->width_set[value] && s->out->value_width[value] != width)
        return shard_no_rule(s, "whose value is divided in two ways");
    s->width_set[value] = 1;
    s->out->value_width[value] = width;
    return 0;
}

void shard_push(struct sharding *s, const struct ek_op *op)
{
    s->out->ops[s->out->op_count++] = *op;
}

/* What the rank leaves in dst is a part of a sum. */
static int push_sum(struct sharding *s)
{
    const uint16_t dst = s->op.dst;
    const struct ek_op sum = {
        .kind = EK_OP_REDUCE, .dst = dst, .src = dst, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};

    shard_push(s, &s->op);
    shard_push(s, &sum);
    s->held[dst].form = WHOLE;
    return shard_width(s, dst, s->g->value_width[dst]);
}

static int push_whole(struct sharding *s)
{
    const uint16_t dst = s->op.dst;

    shard_push(s, &s->op);
    s->held[dst].form = WHOLE;
    return shard_width(s, dst, s->g->value_width[dst]);
}

/* Who reads what operation `at` makes, past norms and rotations of heads in place. */
static const struct ek_op *reader(const struct sharding *s)
{
    const uint16_t value = s->op.dst;

    for (uint32_t i = s->at + 1; i < s->g->op_count; i++) {
        const struct ek_op *op = &s->g->ops[i];
        bool in_place = op->dst == value &&
                        (op->kind == EK_OP_ROPE || (op->kind == EK_OP_NORM && op->src == value));
        if (in_place)
            continue;
        if (op->src == value || op->dst == value)
            return op;
    }
    return NULL;
}

/* The attention that reads a value of heads. */
static const struct ek_op *attention_of(const struct sharding *s, uint16_t value)
{
    for (uint32_t i = s->at; i < s->g->op_count; i++)
        if (s->g->ops[i].kind == EK_OP_ATTENTION && s->g->ops[i].src == value)
            return &s->g->ops[i];
    return NULL;
}

/* The heads of K and V that the rank has: its share, or the one that several ranks need. */
static struct shard_cut kv_cut(const struct sharding *s, uint32_t kv)
{
    if (kv >= s->ranks)
        return (struct shard_cut){kv / s->ranks * s->rank, kv / s->ranks};
    return (struct shard_cut){(uint32_t)((uint64_t)s->rank * kv / s->ranks), 1};
}

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
    const struct shard_cut c = kv_cut(s, kv);
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
    const struct ek_op *a = attention_of(s, take->dst);
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
    const struct shard_cut c = kv_cut(s, kv);
    const struct shard_runs runs = {
        2, {{s->rank * mine * d, mine * d}, {(q + c.first) * d, c.count * d}}};
    return shard_linear_runs(s, &runs);
}

/* Queries and keys, or keys as values, to where attention reads them. */
static int take_keys(struct sharding *s, const struct ek_op *a)
{
    const uint32_t q = a->u.attention.q_heads * a->u.attention.head_dim, mine = q / s->ranks;
    const struct shard_cut kv = kv_cut(s, a->u.attention.kv_heads);
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

/* A product that makes what one by heads reads: queries of latent attention. */
static int linear_by_heads(struct sharding *s, const struct ek_op *next)
{
    const uint32_t heads = next->u.heads.count, n = s->g->value_width[s->op.dst];

    int r = shard_check_heads(s, heads, 1);
    if (r < 0)
        return r;
    const struct shard_runs rows = {1, {{n / s->ranks * s->rank, n / s->ranks}}};
    return shard_linear_runs(s, &rows);
}

/* Whether a gate takes all of a value, element by element. */
static bool gate_whole(const struct sharding *s, const struct ek_op *gate)
{
    const uint32_t n = s->g->value_width[gate->dst];

    return gate->u.gate.first == 0 && gate->u.gate.group == n && s->g->value_width[gate->src] == n;
}

/* A product that gates what attention gives: the rows of the rank's heads. */
static int linear_of_heads(struct sharding *s)
{
    const uint32_t n = s->g->value_width[s->op.dst];
    const struct shard_runs rows = {1, {{n / s->ranks * s->rank, n / s->ranks}}};

    return shard_linear_runs(s, &rows);
}

/* Whether the value that a gate works on is what attention gives. */
static bool gates_heads(const struct sharding *s, const struct ek_op *gate)
{
    for (const struct ek_op *op = gate - 1; op >= s->g->ops; op--)
        if (op->dst == gate->dst)
            return op->kind == EK_OP_ATTENTION;
    return false;
}

static int shard_gate(struct sharding *s)
{
    const struct shard_held *dst = &s->held[s->op.dst], *src = &s->held[s->op.src];

    if (dst->form == WHOLE && src->form == WHOLE)
        return push_whole(s);
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
    const struct ek_op *a = attention_of(s, take->dst);

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
static int shard_take(struct sharding *s)
{
    const struct ek_op *a = attention_of(s, s->op.dst);

    const int form = s->held[s->op.src].form;

    if (form == WHOLE)
        return push_whole(s);
    if (form == RUNS && a)
        return take_keys(s, a);
    if (form != GATED || !a)
        return shard_take_runs(s);
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim, mine = q / s->ranks;
    const uint32_t keys = kv_cut(s, kv).count;
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

/* What is divided is by heads; else each rank has all of the layer and its state. */
static int shard_recurrent(struct sharding *s)
{
    const struct ek_op *op = &s->op;
    const uint16_t beside = op->kind == EK_OP_DELTA  ? op->u.delta.gates
                            : op->kind == EK_OP_SCAN ? op->u.scan.steps
                                                     : op->src;

    if (s->held[op->src].form == WHOLE && s->held[beside].form == WHOLE)
        return push_whole(s);
    if (op->kind == EK_OP_CONV)
        return shard_conv(s);
    return op->kind == EK_OP_DELTA ? shard_delta(s) : shard_scan(s);
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

static int shard_linear(struct sharding *s)
{
    const struct shard_held *src = &s->held[s->op.src];

    if (src->form == COLUMNS) {
        int r = shard_cut_cols(s, s->op.weight, src->columns);
        if (s->rank > 0)
            s->op.bias = EK_NO_WEIGHT; /* counts once */
        return r < 0 ? r : push_sum(s);
    }
    if (src->form != WHOLE)
        return shard_no_rule(s, "of heads");
    const struct ek_op *next = reader(s);
    if (next && next->kind == EK_OP_ATTENTION && next->src == s->op.dst)
        return linear_heads(s, next, false);
    if (next && next->kind == EK_OP_HEADS && next->src == s->op.dst)
        return linear_by_heads(s, next);
    const bool taken = next && next->kind == EK_OP_TAKE && next->src == s->op.dst;
    const struct ek_op *gated = taken ? takes_queries(s, next) : NULL;
    const struct ek_op *keys = taken && !gated ? takes_keys(s, next) : NULL;
    struct shard_runs runs;
    uint32_t n;
    if (gated)
        return linear_heads(s, gated, true);
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
                                      : push_whole(s);
    return push_whole(s);
}

/* Moves what an operation does to all heads of Q, of K or of both to those of the rank. */
static int move_heads(const struct sharding *s, uint16_t value, uint32_t *first, uint32_t *heads)
{
    const struct ek_op *a = attention_of(s, value);

    if (!a)
        return shard_no_rule(s, "of heads that nothing attends with");
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim;
    if (*first == 0 && (*heads == q || *heads == q + kv)) {
        *heads = q / s->ranks + (*heads > q ? kv_cut(s, kv).count : 0);
    } else if ((*first == q * d || *first == (q + kv) * d) && *heads == kv) {
        const uint32_t mine = kv_cut(s, kv).count;
        *first = (q / s->ranks + (*first > q * d ? mine : 0)) * d;
        *heads = mine;
    } else {
        return shard_no_rule(s, "of some of the heads");
    }
    return 0;
}

/* A norm of all heads of Q or of K together: each rank norms its own, by the squares of all. Heads
 * that several ranks have count several times, in the sum and in its width. */
static int norm_all_heads(struct sharding *s, const struct ek_op *a)
{
    const uint32_t d = a->u.attention.head_dim, q = a->u.attention.q_heads;
    uint32_t heads = s->op.u.norm.group / d, first = s->op.u.norm.first;

    if (s->op.u.norm.heads > 1)
        return shard_no_rule(s, "of groups of heads");
    int r = move_heads(s, s->op.src, &first, &heads);
    if (r < 0)
        return r;
    const struct shard_cut kv = kv_cut(s, a->u.attention.kv_heads);
    const uint32_t from = first == 0 ? q / s->ranks * s->rank : kv.first;
    s->op.u.norm.first = first;
    s->op.u.norm.group = heads * d;
    s->op.u.norm.whole = heads * d * s->ranks;
    if (s->op.weight != EK_NO_WEIGHT)
        r = shard_cut_cols(s, s->op.weight, (struct shard_cut){from * d, heads * d});
    shard_push(s, &s->op);
    return r;
}

static int shard_norm(struct sharding *s)
{
    const struct shard_held *src = &s->held[s->op.src];

    if (src->form == WHOLE)
        return push_whole(s);
    if (src->form == COLUMNS)
        return shard_norm_columns(s);
    const struct ek_op *a = attention_of(s, s->op.src);
    if (src->form != HEADS || s->op.dst != s->op.src || !a)
        return shard_no_rule(s, "of divided columns");
    if (s->op.u.norm.own || s->op.u.norm.centred)
        return shard_no_rule(s, "of heads that have weights of their own or are centred");
    if (s->op.u.norm.group != a->u.attention.head_dim)
        return norm_all_heads(s, a);
    int r = move_heads(s, s->op.src, &s->op.u.norm.first, &s->op.u.norm.heads);
    shard_push(s, &s->op);
    return r;
}

/* Each rank has the matrices of its heads; those of the others are emptied. */
static int shard_heads(struct sharding *s)
{
    const uint32_t all = s->op.u.heads.count, mine = all / s->ranks;

    if (s->held[s->op.src].form != COLUMNS || all % s->ranks != 0)
        return shard_no_rule(s, "that is not divided by heads");
    for (uint32_t h = 0; h < all; h++)
        if (h / mine != s->rank) {
            struct ek_weight *w = &s->out->weights[s->op.weight + h];
            w->rows = w->cols = w->parts = 0;
            w->quantized = false;
            w->source = w->dtype = s->g->dtype;
            w->group = 0;
        }
    const uint32_t width = s->g->value_width[s->op.dst] / s->ranks;
    s->op.weight += s->rank * mine;
    s->op.u.heads.count = mine;
    shard_push(s, &s->op);
    s->held[s->op.dst] = (struct shard_held){.form = COLUMNS, .columns = {s->rank * width, width}};
    return shard_width(s, s->op.dst, width);
}

/* Of queries that a product by heads or latent attention reads: those of the rank. */
static int rope_by_heads(struct sharding *s)
{
    const struct ek_op *next = reader(s);
    uint32_t heads = 0;

    if (next && next->kind == EK_OP_HEADS)
        heads = next->u.heads.count;
    else if (next && next->kind == EK_OP_ATTENTION)
        heads = next->u.attention.q_heads;
    if (s->op.u.rope.heads != heads)
        return shard_no_rule(s, "of divided columns");
    s->op.u.rope.heads /= s->ranks;
    return 0;
}

static int shard_rope(struct sharding *s)
{
    int r = 0;

    if (s->held[s->op.dst].form == HEADS)
        r = move_heads(s, s->op.dst, &s->op.u.rope.first_col, &s->op.u.rope.heads);
    else if (s->held[s->op.dst].form == COLUMNS)
        r = rope_by_heads(s);
    shard_push(s, &s->op);
    return r;
}

static int shard_attention(struct sharding *s)
{
    const uint32_t q = s->op.u.attention.q_heads, latent = s->op.u.attention.value_dim;
    const uint32_t d = latent > 0 ? latent : s->op.u.attention.head_dim;

    if (s->held[s->op.src].form != (latent > 0 ? COLUMNS : HEADS) ||
        (latent > 0 && s->held[s->op.u.attention.keys].form != WHOLE))
        return shard_no_rule(s, "that is not divided by heads");
    const struct shard_cut mine = {q / s->ranks * s->rank, q / s->ranks};
    int r = shard_cut_rows(s, s->op.bias, &mine, 1); /* sinks */
    if (r < 0)
        return r;
    s->op.u.attention.q_heads = q / s->ranks;
    s->op.u.attention.kv_heads = kv_cut(s, s->op.u.attention.kv_heads).count;
    shard_push(s, &s->op);
    s->held[s->op.dst] = (struct shard_held){
        .form = COLUMNS, .columns = {q / s->ranks * s->rank * d, q / s->ranks * d}};
    return shard_width(s, s->op.dst, q / s->ranks * d);
}

static int shard_glu(struct sharding *s)
{
    const struct shard_held *src = &s->held[s->op.src];

    if (src->form == WHOLE)
        return push_whole(s);
    const struct shard_cut c = src->runs.run[0], up = src->runs.run[1];
    if (src->form != RUNS || src->runs.count != 2 || up.count != c.count ||
        up.first != s->g->value_width[s->op.dst] + c.first)
        return shard_no_rule(s, "of divided columns");
    shard_push(s, &s->op);
    s->held[s->op.dst] = (struct shard_held){.form = COLUMNS, .columns = c};
    return shard_width(s, s->op.dst, c.count);
}

static int shard_experts(struct sharding *s)
{
    const uint32_t inner = s->g->weights[s->op.weight].rows, down = s->op.u.experts.down;
    const uint32_t unit = ek_shard_unit(inner, shard_widest_group(s->g, inner), s->ranks);
    int r = 0;

    if (s->held[s->op.src].form != WHOLE || s->held[s->op.u.experts.router].form != WHOLE)
        return shard_no_rule(s, "of divided columns");
    if (unit == 0)
        return shard_too_narrow(s, inner);
    const struct shard_cut c = shard_cut_of(s, inner, unit);
    for (uint32_t e = 0; r == 0 && e < s->op.u.experts.count; e++) {
        r = shard_cut_rows(s, s->op.weight + e, &c, 1);
        if (r == 0)
            r = shard_cut_rows(s, s->op.u.experts.up + e, &c, 1);
        if (r == 0)
            r = shard_cut_cols(s, down + e, c);
    }
    if (r == 0 && s->op.bias != EK_NO_WEIGHT)
        r = shard_cut_cols(s, s->op.bias, c);
    if (r == 0 && s->op.u.experts.up_bias != EK_NO_WEIGHT)
        r = shard_cut_cols(s, s->op.u.experts.up_bias, c);
    if (s->rank > 0)
        s->op.u.experts.down_bias = EK_NO_WEIGHT; /* counts once */
    return r < 0 ? r : push_sum(s);
}

static int shard_vocab(struct sharding *s)
{
    const struct shard_cut c = {s->out->vocab_first, s->out->vocab_rows};

    if (c.count == 0)
        return shard_too_narrow(s, s->g->vocab);
    if (s->op.kind == EK_OP_LOGITS && s->held[s->op.src].form != WHOLE)
        return shard_no_rule(s, "of divided columns");
    int r = shard_cut_rows(s, s->op.weight, &c, 1);
    if (r < 0)
        return r;
    if (s->op.kind == EK_OP_EMBED)
        return push_sum(s);
    shard_push(s, &s->op);
    return 0;
}

/* What all ranks do alike. */
static int shard_alike(struct sharding *s, bool reads, bool after_logits)
{
    bool whole = after_logits || (s->held[s->op.dst].form == WHOLE || s->op.kind == EK_OP_PICK);

    if (!whole || (reads && s->held[s->op.src].form != WHOLE))
        return shard_no_rule(s, "of divided columns");
    if (!after_logits)
        return push_whole(s);
    shard_push(s, &s->op);
    return 0;
}

static int shard_op(struct sharding *s, bool after_logits)
{
    switch (s->op.kind) {
    case EK_OP_EMBED:
    case EK_OP_LOGITS: return shard_vocab(s);
    case EK_OP_NORM: return shard_norm(s);
    case EK_OP_LINEAR: return shard_linear(s);
    case EK_OP_HEADS: return shard_heads(s);
    case EK_OP_ROPE: return shard_rope(s);
    case EK_OP_ATTENTION: return shard_attention(s);
    case EK_OP_GLU: return shard_glu(s);
    case EK_OP_EXPERTS: return shard_experts(s);
    case EK_OP_GATE: return shard_gate(s);
    case EK_OP_ADD:
    case EK_OP_PICK: return shard_alike(s, true, false);
    case EK_OP_SOFTCAP: return shard_alike(s, false, after_logits);
    case EK_OP_TAKE: return shard_take(s);
    case EK_OP_CONV:
    case EK_OP_SCAN:
    case EK_OP_DELTA: return shard_recurrent(s);
    case EK_OP_SCALE: shard_push(s, &s->op); return 0; /* of each element by itself */
    case EK_OP_REDUCE:
    case EK_OP_GATHER:
    case EK_OP_SEND:
    case EK_OP_RECV: break;
    }
    return shard_no_rule(s, "that is one already");
}

static int shard_ops(struct sharding *s)
{
    const struct ek_op gather = {
        .kind = EK_OP_GATHER, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    bool logits = false;

    for (s->at = 0; s->at < s->g->op_count; s->at++) {
        s->op = s->g->ops[s->at];
        int r = shard_op(s, logits);
        if (r < 0)
            return r;
        logits = logits || s->op.kind == EK_OP_LOGITS;
    }
    shard_push(s, &gather);
    return 0;
}

/* ---- all of it ---- */

/* A rank's list; with whole_states recurrent layers are not divided. */
static int shard_all(const struct ek_graph *g, uint32_t rank, uint32_t ranks, bool whole_states,
                     struct ek_graph *ret_graph, struct ek_fault *fault)
{
    struct ek_graph out = {0};
    struct sharding s = {.g = g, .out = &out, .rank = rank, .ranks = ranks, .fault = fault};

    s.whole_states = whole_states;
    int r = shard_copy(g, &out);
    s.held = calloc(g->value_count + SHARD_MOST_PIECES, sizeof(*s.held));
    s.width_set = calloc(g->value_count + SHARD_MOST_PIECES, 1);
    s.cut = calloc(g->weight_count + 1, 1);
    if (!s.held || !s.width_set || !s.cut)
        r = -ENOMEM;
    if (r < 0)
        goto out;
    out.rank = rank;
    out.ranks = ranks;
    out.vocab_first = ek_shard_vocab(g->vocab, rank, ranks);
    out.vocab_rows = ek_shard_vocab(g->vocab, rank + 1, ranks) - out.vocab_first;
    out.kv_heads = kv_cut(&s, g->kv_heads).count;
    r = shard_ops(&s);
    if (r < 0)
        goto out;
    shard_states(&out);
    r = ek_graph_check(&out, fault);
    if (r < 0)
        goto out;
    *ret_graph = out;
    out = (struct ek_graph){0};
out:
    ek_graph_free(&out);
    free(s.held);
    free(s.width_set);
    free(s.cut);
    return r;
}

/* Whether layers with a state can be divided for all ranks: they would not meet if some of them had
 * such a layer whole. 0 or a negative errno. */
static int divides_states(const struct ek_graph *g, uint32_t ranks)
{
    struct ek_graph one = {0};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < ranks; i++) {
        r = shard_all(g, i, ranks, false, &one, NULL);
        ek_graph_free(&one);
    }
    return r;
}

int ek_shard(const struct ek_graph *g, uint32_t rank, uint32_t ranks, struct ek_graph *ret_graph,
             struct ek_fault *fault)
{
    int r = ek_graph_check(g, fault);
    if (r < 0)
        return r;
    if (rank >= ranks || ranks > EK_MOST_RANKS || g->ranks > 0 ||
        g->value_count + SHARD_MOST_PIECES > UINT16_MAX)
        return -EINVAL;
    const int divided = g->state_floats > 0 ? divides_states(g, ranks) : -EINVAL;
    if (divided == -ENOMEM)
        return divided;
    return shard_all(g, rank, ranks, divided < 0, ret_graph, fault);
}

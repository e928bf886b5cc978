/*
 * The rank's list is written in one walk over the whole list. `held` says of each value which of
 * its columns the rank has at that point; every operation has a rule for what it is given and says
 * what it leaves. The rules of products and of what is made of them before attention or an
 * activation reads it are in shard_products.c, those of values in runs in shard_runs.c.
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

int shard_push_sum(struct sharding *s)
{
    const uint16_t dst = s->op.dst;
    const struct ek_op sum = {
        .kind = EK_OP_REDUCE, .dst = dst, .src = dst, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};

    shard_push(s, &s->op);
    shard_push(s, &sum);
    s->held[dst].form = WHOLE;
    return shard_width(s, dst, s->g->value_width[dst]);
}

int shard_push_whole(struct sharding *s)
{
    const uint16_t dst = s->op.dst;

    shard_push(s, &s->op);
    s->held[dst].form = WHOLE;
    return shard_width(s, dst, s->g->value_width[dst]);
}

const struct ek_op *shard_reader(const struct sharding *s)
{
    const uint16_t value = s->op.dst;

    for (uint32_t i = s->at + 1; i < s->g->op_count; i++) {
        const struct ek_op *op = &s->g->ops[i];
        bool clips = op->kind == EK_OP_GATE && op->u.gate.act == EK_GATE_CLIP;
        bool in_place =
            op->dst == value &&
            (op->kind == EK_OP_ROPE || ((op->kind == EK_OP_NORM || clips) && op->src == value));
        if (in_place)
            continue;
        if (op->src == value || op->dst == value)
            return op;
    }
    return NULL;
}

const struct ek_op *shard_attention_of(const struct sharding *s, uint16_t value)
{
    for (uint32_t i = s->at; i < s->g->op_count; i++)
        if (s->g->ops[i].kind == EK_OP_ATTENTION && s->g->ops[i].src == value)
            return &s->g->ops[i];
    return NULL;
}

struct shard_cut shard_kv_cut(const struct sharding *s, uint32_t kv)
{
    if (kv >= s->ranks)
        return (struct shard_cut){kv / s->ranks * s->rank, kv / s->ranks};
    return (struct shard_cut){(uint32_t)((uint64_t)s->rank * kv / s->ranks), 1};
}

/* What is divided is by heads; else each rank has all of the layer and its state. */
static int shard_recurrent(struct sharding *s)
{
    const struct ek_op *op = &s->op;
    const uint16_t beside = op->kind == EK_OP_DELTA  ? op->u.delta.gates
                            : op->kind == EK_OP_SCAN ? op->u.scan.steps
                                                     : op->src;

    if (s->held[op->src].form == WHOLE && s->held[beside].form == WHOLE)
        return shard_push_whole(s);
    if (op->kind == EK_OP_CONV)
        return shard_conv(s);
    return op->kind == EK_OP_DELTA ? shard_delta(s) : shard_scan(s);
}

/* Moves what an operation does to all heads of Q, of K or of both to those of the rank. */
static int move_heads(const struct sharding *s, uint16_t value, uint32_t *first, uint32_t *heads)
{
    const struct ek_op *a = shard_attention_of(s, value);

    if (!a)
        return shard_no_rule(s, "of heads that nothing attends with");
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim;
    if (*first == 0 && (*heads == q || *heads == q + kv)) {
        *heads = q / s->ranks + (*heads > q ? shard_kv_cut(s, kv).count : 0);
    } else if ((*first == q * d || *first == (q + kv) * d) && *heads == kv) {
        const uint32_t mine = shard_kv_cut(s, kv).count;
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
    const struct shard_cut kv = shard_kv_cut(s, a->u.attention.kv_heads);
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
        return shard_push_whole(s);
    if (src->form == COLUMNS)
        return shard_norm_columns(s);
    const struct ek_op *a = shard_attention_of(s, s->op.src);
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
    const struct ek_op *next = shard_reader(s);
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
    s->op.u.attention.kv_heads = shard_kv_cut(s, s->op.u.attention.kv_heads).count;
    shard_push(s, &s->op);
    s->held[s->op.dst] = (struct shard_held){
        .form = COLUMNS, .columns = {q / s->ranks * s->rank * d, q / s->ranks * d}};
    return shard_width(s, s->op.dst, q / s->ranks * d);
}

static int shard_glu(struct sharding *s)
{
    const struct shard_held *src = &s->held[s->op.src];

    if (src->form == WHOLE)
        return shard_push_whole(s);
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
    return r < 0 ? r : shard_push_sum(s);
}

static int shard_vocab(struct sharding *s)
{
    const struct shard_cut c = {s->out->vocab_first, s->out->vocab_rows};

    if (c.count == 0)
        return shard_too_narrow(s, s->g->vocab);
    if (s->g->weights[s->op.weight].rows != s->g->vocab)
        return shard_no_rule(s, "of fewer tokens than the vocabulary has");
    if (s->op.kind == EK_OP_LOGITS && s->held[s->op.src].form != WHOLE)
        return shard_no_rule(s, "of divided columns");
    int r = shard_cut_rows(s, s->op.weight, &c, 1);
    if (r == 0)
        r = shard_cut_rows(s, s->op.bias, &c, 1);
    if (r < 0)
        return r;
    if (s->op.kind == EK_OP_EMBED)
        return shard_push_sum(s);
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
        return shard_push_whole(s);
    shard_push(s, &s->op);
    return 0;
}

/* Of each element by itself, unless each column has a number of its own. */
static int shard_scale(struct sharding *s)
{
    const uint32_t w = s->op.weight;

    if (w != EK_NO_WEIGHT && (uint64_t)s->g->weights[w].rows * s->g->weights[w].cols > 1)
        return shard_alike(s, false, false);
    shard_push(s, &s->op);
    return 0;
}

static int shard_mix(struct sharding *s)
{
    if (!s->op.u.mix.fixed && s->held[s->op.u.mix.by].form != WHOLE)
        return shard_no_rule(s, "of divided columns");
    return shard_alike(s, true, false);
}

static int shard_op(struct sharding *s, bool after_logits)
{
    switch (s->op.kind) {
    case EK_OP_EMBED: return s->op.u.embed.by_position ? shard_push_whole(s) : shard_vocab(s);
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
    case EK_OP_SCALE: return shard_scale(s);
    case EK_OP_MIX: return shard_mix(s);
    case EK_OP_MATCH: return shard_alike(s, true, false);
    case EK_OP_CUT: return shard_alike(s, false, false);
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
    out.kv_heads = shard_kv_cut(&s, g->kv_heads).count;
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

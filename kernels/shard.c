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
#include <string.h>

#include "common/err.h"
#include "kernels/quant.h"

#define UNIT 32u /* columns: a panel of the CPU's products */

struct cut { /* columns [first, first + count) of a value or rows of a matrix */
    uint32_t first, count;
};

struct held {
    /* HEADS: the rank's [q | k | v]; GATED: the same, each head of q with its gate behind it */
    enum { WHOLE, COLUMNS, HEADS, GATED } form;
    struct cut columns;
};

struct sharding {
    const struct ek_graph *g;
    struct ek_graph *out;
    uint32_t rank, ranks;
    struct ek_op op;    /* the one at hand, as it is for the rank */
    uint32_t at;        /* its place in the whole list */
    struct held *held;  /* [values] */
    uint8_t *width_set; /* [values]: the rank's width is known */
    uint8_t *cut;       /* [weights]: how a weight is cut, 0 = not yet */
    struct ek_fault *fault;
};

enum { CUT_ROWS = 1, CUT_COLS };

uint32_t ek_shard_unit(uint32_t n, uint32_t group, uint32_t ranks)
{
    uint32_t unit = group > 1 ? group : 1;

    if (n < ranks)
        return 0;
    while (unit % UNIT != 0 && (uint64_t)n / (2ull * unit) >= ranks)
        unit *= 2;
    while (n / unit < ranks)
        unit = unit % 2 == 0 ? unit / 2 : 1;
    return unit;
}

uint32_t ek_shard_vocab(uint32_t vocab, uint32_t rank, uint32_t ranks)
{
    uint32_t unit = ek_shard_unit(vocab, 1, ranks);
    return unit > 0 ? ek_shard_begin(vocab, unit, rank, ranks) : 0;
}

static struct cut cut_of(const struct sharding *s, uint32_t n, uint32_t unit)
{
    uint32_t first = ek_shard_begin(n, unit, s->rank, s->ranks);
    return (struct cut){first, ek_shard_begin(n, unit, s->rank + 1, s->ranks) - first};
}

static const char *kind_name(enum ek_op_kind k)
{
    switch (k) {
    case EK_OP_EMBED: return "embedding";
    case EK_OP_NORM: return "norm";
    case EK_OP_LINEAR: return "product";
    case EK_OP_HEADS: return "product by heads";
    case EK_OP_ROPE: return "rotation";
    case EK_OP_ATTENTION: return "attention";
    case EK_OP_GLU: return "activation";
    case EK_OP_EXPERTS: return "mixture of experts";
    case EK_OP_ADD: return "addition";
    case EK_OP_SCALE: return "scale";
    case EK_OP_SOFTCAP: return "soft cap";
    case EK_OP_TAKE: return "move of columns";
    case EK_OP_GATE: return "gate";
    case EK_OP_CONV: return "convolution";
    case EK_OP_DELTA: return "delta rule";
    case EK_OP_SCAN: return "scan";
    case EK_OP_PICK: return "pick";
    case EK_OP_LOGITS: return "output layer";
    case EK_OP_REDUCE:
    case EK_OP_GATHER: return "collective";
    case EK_OP_SEND:
    case EK_OP_RECV: return "end of a stage";
    }
    return "operation";
}

static int no_rule(const struct sharding *s, const char *why)
{
    ek_fault_write(s->fault, "tensor-parallel-size",
                   "--tensor-parallel-size %u: there is no rule how ranks share a %s %s (operation "
                   "%u of %u): use 1",
                   s->ranks, kind_name(s->op.kind), why, s->at, s->g->op_count);
    return -ENOTSUP;
}

/* ---- numbers of ranks ---- */

static bool heads_divide(uint32_t q, uint32_t kv, uint32_t ranks)
{
    return q % ranks == 0 && (kv % ranks == 0 || ranks % kv == 0);
}

static int check_heads(const struct sharding *s, uint32_t q, uint32_t kv)
{
    char fit[96] = "1";

    if (heads_divide(q, kv, s->ranks))
        return 0;
    for (uint32_t n = 2; n <= q && n <= EK_MOST_RANKS; n++)
        if (heads_divide(q, kv, n))
            (void)snprintf(fit + strlen(fit), sizeof(fit) - strlen(fit), ", %u", n);
    return ek_fault_set(s->fault, "tensor-parallel-size",
                        "--tensor-parallel-size %u: the model has %u heads of queries and %u of "
                        "keys, which so many ranks cannot share evenly; choose one of %s",
                        s->ranks, q, kv, fit);
}

static int too_narrow(const struct sharding *s, uint32_t columns)
{
    return ek_fault_set(s->fault, "tensor-parallel-size",
                        "--tensor-parallel-size %u: a %s has only %u columns; choose fewer ranks",
                        s->ranks, kind_name(s->op.kind), columns);
}

/* ---- weights ---- */

/* Takes rows [c.first, c.first + c.count) of the whole weight: more parts. */
static int take_rows(const struct sharding *s, const struct ek_weight *whole, struct cut c,
                     struct ek_weight *w)
{
    uint32_t part = 0, row = c.first, left = c.count;

    while (part < whole->parts && row >= whole->part[part].rows)
        row -= whole->part[part++].rows;
    for (; left > 0; part++, row = 0) {
        if (part == whole->parts || w->parts == EK_MOST_PARTS)
            return no_rule(s, "whose rows lie so in the files");
        uint32_t rows = whole->part[part].rows - row;
        rows = rows < left ? rows : left;
        w->part[w->parts] = whole->part[part];
        w->part[w->parts].rows = rows;
        w->part[w->parts].skip += row;
        if (whole->quantized)
            s->out->quants[s->out->quant_count++] = s->g->quants[whole->quant + part];
        w->parts++;
        w->rows += rows;
        left -= rows;
    }
    return 0;
}

/* The rank's rows of a weight (or bias), in up to three runs. */
static int cut_rows(struct sharding *s, uint32_t index, const struct cut *c, uint32_t count)
{
    if (index == EK_NO_WEIGHT || s->cut[index] == CUT_ROWS)
        return 0; /* of two operations with the same rule: embedding and output layer */
    if (s->cut[index])
        return no_rule(s, "whose weight serves another operation");
    const struct ek_weight *whole = &s->g->weights[index];
    struct ek_weight *w = &s->out->weights[index];
    w->parts = w->rows = 0;
    w->quant = s->out->quant_count;
    for (uint32_t i = 0; i < count; i++) {
        int r = take_rows(s, whole, c[i], w);
        if (r < 0)
            return r;
    }
    s->cut[index] = CUT_ROWS;
    return 0;
}

/* Columns that share a published scale, 1 where a cut may be anywhere. */
static uint32_t group_of(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];
    bool grouped = w->quantized && ek_dtype_packed(w->dtype) && w->group > 0 && w->group < w->cols;
    return grouped ? w->group : 1;
}

/* Of all matrices with so many columns: the same cut serves all layers. */
static uint32_t widest_group(const struct ek_graph *g, uint32_t cols)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < g->weight_count; i++)
        if (g->weights[i].cols == cols && group_of(g, i) > most)
            most = group_of(g, i);
    return most;
}

static int cut_cols(struct sharding *s, uint32_t index, struct cut c)
{
    struct ek_weight *w = &s->out->weights[index];
    uint32_t group = group_of(s->g, index), end = c.first + c.count;

    if (s->cut[index])
        return no_rule(s, "whose weight serves another operation");
    s->cut[index] = CUT_COLS;
    bool between = c.first % group == 0 && (end % group == 0 || end == w->cols);
    if (!between && c.first / group != (end - 1) / group) {
        w->dtype = s->g->dtype; /* its groups cannot be kept: it is unpacked */
        w->group = 0;
    }
    w->file_cols = ek_weight_file_cols(w);
    w->first_col += c.first;
    w->cols = c.count;
    return 0;
}

/* ---- the list ---- */

static int set_width(struct sharding *s, uint16_t value, uint32_t width)
{
    if (s->width_set[value] && s->out->value_width[value] != width)
        return no_rule(s, "whose value is divided in two ways");
    s->width_set[value] = 1;
    s->out->value_width[value] = width;
    return 0;
}

static void push(struct sharding *s, const struct ek_op *op)
{
    s->out->ops[s->out->op_count++] = *op;
}

/* What the rank leaves in dst is a part of a sum. */
static int push_sum(struct sharding *s)
{
    const uint16_t dst = s->op.dst;
    const struct ek_op sum = {
        .kind = EK_OP_REDUCE, .dst = dst, .src = dst, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};

    push(s, &s->op);
    push(s, &sum);
    s->held[dst].form = WHOLE;
    return set_width(s, dst, s->g->value_width[dst]);
}

static int push_whole(struct sharding *s)
{
    const uint16_t dst = s->op.dst;

    push(s, &s->op);
    s->held[dst].form = WHOLE;
    return set_width(s, dst, s->g->value_width[dst]);
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

/* The heads of K and V that the rank has: its share, or the one that several ranks need. */
static struct cut kv_cut(const struct sharding *s, uint32_t kv)
{
    if (kv >= s->ranks)
        return (struct cut){kv / s->ranks * s->rank, kv / s->ranks};
    return (struct cut){(uint32_t)((uint64_t)s->rank * kv / s->ranks), 1};
}

/* A product that makes the heads of an attention. */
static int linear_heads(struct sharding *s, const struct ek_op *attention)
{
    const uint32_t q = attention->u.attention.q_heads, kv = attention->u.attention.kv_heads;
    const uint32_t d = attention->u.attention.head_dim, mine = q / s->ranks;

    int r = check_heads(s, q, kv);
    if (r < 0)
        return r;
    const struct cut c = kv_cut(s, kv);
    const struct cut rows[3] = {{s->rank * mine * d, mine * d},
                                {(q + c.first) * d, c.count * d},
                                {(q + kv + c.first) * d, c.count * d}};
    r = cut_rows(s, s->op.weight, rows, 3);
    if (r == 0)
        r = cut_rows(s, s->op.bias, rows, 3);
    push(s, &s->op);
    s->held[s->op.dst].form = HEADS;
    return r < 0 ? r : set_width(s, s->op.dst, (mine + 2 * c.count) * d);
}

/* A product that makes gate and up of a feed-forward. */
static int linear_inner(struct sharding *s, const struct ek_op *glu)
{
    const uint32_t n = s->g->value_width[glu->dst];
    const uint32_t unit = ek_shard_unit(n, widest_group(s->g, n), s->ranks);

    if (unit == 0)
        return too_narrow(s, n);
    const struct cut c = cut_of(s, n, unit), rows[2] = {c, {n + c.first, c.count}};
    int r = cut_rows(s, s->op.weight, rows, 2);
    if (r == 0)
        r = cut_rows(s, s->op.bias, rows, 2);
    push(s, &s->op);
    s->held[s->op.dst] = (struct held){COLUMNS, c};
    return r < 0 ? r : set_width(s, s->op.dst, 2 * c.count);
}

/* A product that makes what one by heads reads: queries of latent attention. */
static int linear_by_heads(struct sharding *s, const struct ek_op *next)
{
    const uint32_t heads = next->u.heads.count, n = s->g->value_width[s->op.dst];

    int r = check_heads(s, heads, 1);
    if (r < 0)
        return r;
    const struct cut c = {n / s->ranks * s->rank, n / s->ranks};
    r = cut_rows(s, s->op.weight, &c, 1);
    if (r == 0)
        r = cut_rows(s, s->op.bias, &c, 1);
    push(s, &s->op);
    s->held[s->op.dst] = (struct held){COLUMNS, c};
    return r < 0 ? r : set_width(s, s->op.dst, c.count);
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
    const struct cut c = {n / s->ranks * s->rank, n / s->ranks};

    int r = cut_rows(s, s->op.weight, &c, 1);
    if (r == 0)
        r = cut_rows(s, s->op.bias, &c, 1);
    push(s, &s->op);
    s->held[s->op.dst] = (struct held){COLUMNS, c};
    return r < 0 ? r : set_width(s, s->op.dst, c.count);
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
    const struct held *dst = &s->held[s->op.dst], *src = &s->held[s->op.src];

    if (dst->form == WHOLE && src->form == WHOLE)
        return push_whole(s);
    if (dst->form == COLUMNS && src->form == GATED) { /* as many heads of both */
        push(s, &s->op);
        return 0;
    }
    if (dst->form != COLUMNS || src->form != COLUMNS || !gate_whole(s, &s->op) ||
        dst->columns.first != src->columns.first || dst->columns.count != src->columns.count)
        return no_rule(s, "of divided columns");
    s->op.u.gate.step = s->op.u.gate.group = dst->columns.count;
    push(s, &s->op);
    return 0;
}

/* The attention that reads a value of heads. */
static const struct ek_op *attention_of(const struct sharding *s, uint16_t value)
{
    for (uint32_t i = s->at; i < s->g->op_count; i++)
        if (s->g->ops[i].kind == EK_OP_ATTENTION && s->g->ops[i].src == value)
            return &s->g->ops[i];
    return NULL;
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

/* A product that makes heads with gates. */
static int linear_gated(struct sharding *s, const struct ek_op *a)
{
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    const uint32_t d = a->u.attention.head_dim, mine = q / s->ranks;

    int r = check_heads(s, q, kv);
    if (r < 0)
        return r;
    const struct cut c = kv_cut(s, kv);
    const struct cut rows[3] = {{s->rank * mine * 2 * d, mine * 2 * d},
                                {(2 * q + c.first) * d, c.count * d},
                                {(2 * q + kv + c.first) * d, c.count * d}};
    r = cut_rows(s, s->op.weight, rows, 3);
    if (r == 0)
        r = cut_rows(s, s->op.bias, rows, 3);
    push(s, &s->op);
    s->held[s->op.dst].form = GATED;
    return r < 0 ? r : set_width(s, s->op.dst, (mine + c.count) * 2 * d);
}

/* Queries, or keys and values, out of heads with gates; or columns that all ranks have. */
static int shard_take(struct sharding *s)
{
    const struct ek_op *a = attention_of(s, s->op.dst);

    if (s->held[s->op.src].form == WHOLE)
        return push_whole(s);
    if (s->held[s->op.src].form != GATED || !a)
        return no_rule(s, "of divided columns");
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
        return no_rule(s, "of some of the heads");
    }
    push(s, &s->op);
    s->held[s->op.dst].form = HEADS;
    return set_width(s, s->op.dst, (mine + 2 * keys) * d);
}

/* Each rank has all of the recurrent layers and their states. */
static int shard_recurrent(struct sharding *s)
{
    const struct ek_op *op = &s->op;
    const uint16_t beside = op->kind == EK_OP_DELTA  ? op->u.delta.gates
                            : op->kind == EK_OP_SCAN ? op->u.scan.steps
                                                     : op->src;

    if (s->held[op->src].form != WHOLE || s->held[beside].form != WHOLE)
        return no_rule(s, "of divided columns");
    return push_whole(s);
}

static int shard_linear(struct sharding *s)
{
    const struct held *src = &s->held[s->op.src];

    if (src->form == COLUMNS) {
        int r = cut_cols(s, s->op.weight, src->columns);
        if (s->rank > 0)
            s->op.bias = EK_NO_WEIGHT; /* counts once */
        return r < 0 ? r : push_sum(s);
    }
    if (src->form != WHOLE)
        return no_rule(s, "of heads");
    const struct ek_op *next = reader(s);
    if (next && next->kind == EK_OP_ATTENTION && next->src == s->op.dst)
        return linear_heads(s, next);
    if (next && next->kind == EK_OP_HEADS && next->src == s->op.dst)
        return linear_by_heads(s, next);
    const struct ek_op *gated =
        next && next->kind == EK_OP_TAKE && next->src == s->op.dst ? takes_queries(s, next) : NULL;
    if (gated)
        return linear_gated(s, gated);
    if (next && next->kind == EK_OP_GLU && next->src == s->op.dst)
        return linear_inner(s, next);
    if (next && next->kind == EK_OP_GATE && next->src == s->op.dst && gate_whole(s, next) &&
        gates_heads(s, next))
        return linear_of_heads(s);
    return push_whole(s);
}

/* Moves what an operation does to all heads of Q, of K or of both to those of the rank. */
static int move_heads(const struct sharding *s, uint16_t value, uint32_t *first, uint32_t *heads)
{
    const struct ek_op *a = attention_of(s, value);

    if (!a)
        return no_rule(s, "of heads that nothing attends with");
    const uint32_t q = a->u.attention.q_heads, kv = a->u.attention.kv_heads;
    if (*first == 0 && (*heads == q || *heads == q + kv)) {
        *heads = q / s->ranks + (*heads > q ? kv_cut(s, kv).count : 0);
    } else if (*first == q * a->u.attention.head_dim && *heads == kv) {
        *first = q / s->ranks * a->u.attention.head_dim;
        *heads = kv_cut(s, kv).count;
    } else {
        return no_rule(s, "of some of the heads");
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
        return no_rule(s, "of groups of heads");
    int r = move_heads(s, s->op.src, &first, &heads);
    if (r < 0)
        return r;
    const struct cut kv = kv_cut(s, a->u.attention.kv_heads);
    const uint32_t from = first == 0 ? q / s->ranks * s->rank : kv.first;
    s->op.u.norm.first = first;
    s->op.u.norm.group = heads * d;
    s->op.u.norm.whole = heads * d * s->ranks;
    if (s->op.weight != EK_NO_WEIGHT)
        r = cut_cols(s, s->op.weight, (struct cut){from * d, heads * d});
    push(s, &s->op);
    return r;
}

static int shard_norm(struct sharding *s)
{
    const struct held *src = &s->held[s->op.src];

    if (src->form == WHOLE)
        return push_whole(s);
    const struct ek_op *a = attention_of(s, s->op.src);
    if (src->form != HEADS || s->op.dst != s->op.src || !a)
        return no_rule(s, "of divided columns");
    if (s->op.u.norm.own || s->op.u.norm.centred)
        return no_rule(s, "of heads that have weights of their own or are centred");
    if (s->op.u.norm.group != a->u.attention.head_dim)
        return norm_all_heads(s, a);
    int r = move_heads(s, s->op.src, &s->op.u.norm.first, &s->op.u.norm.heads);
    push(s, &s->op);
    return r;
}

/* Each rank has the matrices of its heads; those of the others are emptied. */
static int shard_heads(struct sharding *s)
{
    const uint32_t all = s->op.u.heads.count, mine = all / s->ranks;

    if (s->held[s->op.src].form != COLUMNS || all % s->ranks != 0)
        return no_rule(s, "that is not divided by heads");
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
    push(s, &s->op);
    s->held[s->op.dst] = (struct held){COLUMNS, {s->rank * width, width}};
    return set_width(s, s->op.dst, width);
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
        return no_rule(s, "of divided columns");
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
    push(s, &s->op);
    return r;
}

static int shard_attention(struct sharding *s)
{
    const uint32_t q = s->op.u.attention.q_heads, latent = s->op.u.attention.value_dim;
    const uint32_t d = latent > 0 ? latent : s->op.u.attention.head_dim;

    if (s->held[s->op.src].form != (latent > 0 ? COLUMNS : HEADS) ||
        (latent > 0 && s->held[s->op.u.attention.keys].form != WHOLE))
        return no_rule(s, "that is not divided by heads");
    const struct cut mine = {q / s->ranks * s->rank, q / s->ranks};
    int r = cut_rows(s, s->op.bias, &mine, 1); /* sinks */
    if (r < 0)
        return r;
    s->op.u.attention.q_heads = q / s->ranks;
    s->op.u.attention.kv_heads = kv_cut(s, s->op.u.attention.kv_heads).count;
    push(s, &s->op);
    s->held[s->op.dst] = (struct held){COLUMNS, {q / s->ranks * s->rank * d, q / s->ranks * d}};
    return set_width(s, s->op.dst, q / s->ranks * d);
}

static int shard_glu(struct sharding *s)
{
    const struct held *src = &s->held[s->op.src];

    if (src->form == WHOLE)
        return push_whole(s);
    if (src->form != COLUMNS)
        return no_rule(s, "of heads");
    push(s, &s->op);
    s->held[s->op.dst] = *src;
    return set_width(s, s->op.dst, src->columns.count);
}

static int shard_experts(struct sharding *s)
{
    const uint32_t inner = s->g->weights[s->op.weight].rows, down = s->op.u.experts.down;
    const uint32_t unit = ek_shard_unit(inner, widest_group(s->g, inner), s->ranks);
    int r = 0;

    if (s->held[s->op.src].form != WHOLE || s->held[s->op.u.experts.router].form != WHOLE)
        return no_rule(s, "of divided columns");
    if (unit == 0)
        return too_narrow(s, inner);
    const struct cut c = cut_of(s, inner, unit);
    for (uint32_t e = 0; r == 0 && e < s->op.u.experts.count; e++) {
        r = cut_rows(s, s->op.weight + e, &c, 1);
        if (r == 0)
            r = cut_rows(s, s->op.u.experts.up + e, &c, 1);
        if (r == 0)
            r = cut_cols(s, down + e, c);
    }
    if (r == 0 && s->op.bias != EK_NO_WEIGHT)
        r = cut_cols(s, s->op.bias, c);
    if (r == 0 && s->op.u.experts.up_bias != EK_NO_WEIGHT)
        r = cut_cols(s, s->op.u.experts.up_bias, c);
    if (s->rank > 0)
        s->op.u.experts.down_bias = EK_NO_WEIGHT; /* counts once */
    return r < 0 ? r : push_sum(s);
}

static int shard_vocab(struct sharding *s)
{
    const struct cut c = {s->out->vocab_first, s->out->vocab_rows};

    if (c.count == 0)
        return too_narrow(s, s->g->vocab);
    if (s->op.kind == EK_OP_LOGITS && s->held[s->op.src].form != WHOLE)
        return no_rule(s, "of divided columns");
    int r = cut_rows(s, s->op.weight, &c, 1);
    if (r < 0)
        return r;
    if (s->op.kind == EK_OP_EMBED)
        return push_sum(s);
    push(s, &s->op);
    return 0;
}

/* What all ranks do alike. */
static int shard_alike(struct sharding *s, bool reads, bool after_logits)
{
    bool whole = after_logits || (s->held[s->op.dst].form == WHOLE || s->op.kind == EK_OP_PICK);

    if (!whole || (reads && s->held[s->op.src].form != WHOLE))
        return no_rule(s, "of divided columns");
    if (!after_logits)
        return push_whole(s);
    push(s, &s->op);
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
    case EK_OP_SCALE: return no_rule(s, "of a layer");
    case EK_OP_REDUCE:
    case EK_OP_GATHER:
    case EK_OP_SEND:
    case EK_OP_RECV: break;
    }
    return no_rule(s, "that is one already");
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
    push(s, &gather);
    return 0;
}

/* ---- memory ---- */

static void *copy_of(const void *from, size_t count, size_t size, size_t room)
{
    void *p = calloc(room + 1, size);
    if (p && count > 0)
        memcpy(p, from, count * size);
    return p;
}

static int copy_graph(const struct ek_graph *g, struct ek_graph *c)
{
    const size_t quants = (size_t)g->quant_count + (size_t)EK_MOST_PARTS * g->weight_count;

    *c = *g;
    c->op_count = 0;
    c->ops = calloc(2 * (size_t)g->op_count + 1, sizeof(*c->ops));
    c->weights = copy_of(g->weights, g->weight_count, sizeof(*c->weights), g->weight_count);
    c->quants =
        g->quant_count > 0 ? copy_of(g->quants, g->quant_count, sizeof(*c->quants), quants) : NULL;
    c->value_width = copy_of(g->value_width, g->value_count, sizeof(uint32_t), g->value_count);
    c->ropes = copy_of(g->ropes, g->rope_count, sizeof(*c->ropes), g->rope_count);
    for (uint32_t i = 0; c->ropes && i < g->rope_count; i++)
        c->ropes[i].inv_freq = NULL;
    if (!c->ops || !c->weights || !c->value_width || !c->ropes ||
        (g->quant_count > 0 && !c->quants))
        return -ENOMEM;
    for (uint32_t i = 0; i < g->rope_count; i++) {
        uint32_t count = g->ropes[i].count;
        c->ropes[i].inv_freq = copy_of(g->ropes[i].inv_freq, count, sizeof(float), count);
        if (!c->ropes[i].inv_freq)
            return -ENOMEM;
    }
    return 0;
}

void ek_shard_free(struct ek_graph *g)
{
    for (uint32_t i = 0; g->ropes && i < g->rope_count; i++)
        free(g->ropes[i].inv_freq);
    free(g->ropes);
    free(g->ops);
    free(g->weights);
    free(g->quants);
    free(g->value_width);
    *g = (struct ek_graph){0};
}

int ek_shard(const struct ek_graph *g, uint32_t rank, uint32_t ranks, struct ek_graph *ret_graph,
             struct ek_fault *fault)
{
    struct ek_graph out = {0};
    struct sharding s = {.g = g, .out = &out, .rank = rank, .ranks = ranks, .fault = fault};

    int r = ek_graph_check(g, fault);
    if (r == 0 && (rank >= ranks || ranks > EK_MOST_RANKS || g->ranks > 0))
        r = -EINVAL;
    if (r == 0 && g->kv_mixed) {
        ek_fault_set(fault, "tensor-parallel-size",
                     "The model's layers differ in their heads of keys and values, which are not "
                     "divided among ranks yet: leave --tensor-parallel-size out.");
        r = -ENOTSUP;
    }
    if (r < 0)
        return r;
    r = copy_graph(g, &out);
    s.held = calloc(g->value_count + 1, sizeof(*s.held));
    s.width_set = calloc(g->value_count + 1, 1);
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
    if (r == 0)
        r = ek_graph_check(&out, fault);
    if (r < 0)
        goto out;
    *ret_graph = out;
    out = (struct ek_graph){0};
out:
    ek_shard_free(&out);
    free(s.held);
    free(s.width_set);
    free(s.cut);
    return r;
}

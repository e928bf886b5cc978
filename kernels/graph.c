/*
 * The check of an operation list, shared by the backends: indices, widths, shapes. It runs once at
 * load; an interpreter relies on it afterwards. What a backend does not offer (a dtype, say) is its
 * own test.
 */
#include "kernels/graph.h"

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/err.h"

struct graph_check {
    const struct ek_graph *g;
    const struct ek_op *op;
};

static uint64_t width(const struct graph_check *c, uint16_t value)
{
    return c->g->value_width[value];
}

static bool matrix_at(const struct graph_check *c, uint64_t index, uint64_t rows, uint64_t cols)
{
    if (index >= c->g->weight_count)
        return false;
    const struct ek_weight *w = &c->g->weights[index];
    return w->rows == rows && w->cols == cols;
}

static bool graph_matrix(const struct graph_check *c, uint64_t rows, uint64_t cols)
{
    return matrix_at(c, c->op->weight, rows, cols);
}

static bool graph_vector(const struct graph_check *c, uint32_t weight, uint64_t count)
{
    if (weight == EK_NO_WEIGHT)
        return true;
    if (weight >= c->g->weight_count)
        return false;
    const struct ek_weight *w = &c->g->weights[weight];
    return (w->rows == 1 || w->cols == 1) && (uint64_t)w->rows * w->cols == count;
}

/* Numbers that are read as they are. */
static bool graph_plain(const struct graph_check *c, uint32_t weight)
{
    return weight == EK_NO_WEIGHT ||
           (weight < c->g->weight_count && !c->g->weights[weight].quantized &&
            c->g->weights[weight].dtype == EK_F32);
}

static const char *check_norm(const struct graph_check *c)
{
    const struct ek_op *op = c->op;

    if (op->u.norm.whole > 0 && (c->g->ranks == 0 || op->u.norm.heads > 1))
        return "a norm of all ranks without ranks";
    uint64_t heads = op->u.norm.heads ? op->u.norm.heads : 1;
    uint64_t end = op->u.norm.first + heads * op->u.norm.group;

    if (op->u.norm.group == 0 || end > width(c, op->dst) || end > width(c, op->src))
        return "the groups of a norm exceed its value";
    const uint64_t vectors = op->u.norm.own ? heads : 1;
    if (op->u.norm.own && op->u.norm.whole > 0)
        return "a norm of all ranks in groups";
    if (op->u.norm.whole > 0 && (op->u.norm.centred || op->bias != EK_NO_WEIGHT))
        return "a norm of all ranks that is centred or has a bias";
    return graph_vector(c, op->weight, vectors * op->u.norm.group) &&
                   graph_vector(c, op->bias, vectors * op->u.norm.group) && graph_plain(c, op->bias)
               ? NULL
               : "a norm's weight or bias has another width";
}

static const char *check_rope(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint32_t turns = op->u.rope.warm_every > 0 ? op->u.rope.head_dim : op->u.rope.rotary_dim;
    uint64_t end = op->u.rope.first_col + (uint64_t)op->u.rope.heads * op->u.rope.head_dim;

    if (op->u.rope.heads > 0 &&
        turns < op->u.rope.head_dim) /* of the last head no more is touched */
        end -= op->u.rope.head_dim - turns;
    if (end > width(c, op->dst) || op->u.rope.rotary_dim > op->u.rope.head_dim ||
        op->u.rope.rotary_dim % 2 != 0)
        return "the heads of a rope exceed its value";
    if (op->u.rope.table >= c->g->rope_count ||
        (op->u.rope.rotary_dim > 0 &&
         c->g->ropes[op->u.rope.table].count * 2 != op->u.rope.rotary_dim))
        return "a rope's table has another size";
    if (!(op->u.rope.warm >= 0 && op->u.rope.warm <= FLT_MAX))
        return "a rope's warmth is out of range";
    const struct ek_rope *r = &c->g->ropes[op->u.rope.table];
    if (r->above > 0 && (r->count < 2 || !(r->theta >= 1) || !(r->grow >= 1)))
        return "a rope's dynamic scaling is out of range";
    return NULL;
}

/* src, dst and, if latent, keys. */
static bool attention_widths(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    uint64_t q = op->u.attention.q_heads, kv = op->u.attention.kv_heads;
    uint64_t d = op->u.attention.head_dim, v = op->u.attention.value_dim;

    if (op->dst == op->src || v != c->g->value_dim)
        return false;
    if (op->u.attention.reads)
        return v == 0 && q * d == width(c, op->src) && q * d == width(c, op->dst);
    if (v == 0)
        return (q + 2 * kv) * d == width(c, op->src) && q * d == width(c, op->dst);
    return v <= d && op->u.attention.keys < c->g->value_count && op->u.attention.keys != op->dst &&
           kv * d == width(c, op->u.attention.keys) && q * d == width(c, op->src) &&
           q * v == width(c, op->dst);
}

/* Whether the cells of the attention's layer are as it takes them: one that reads follows one that
 * writes cells of that shape, and where layers differ each is written by one. */
static bool layer_fits(const struct graph_check *c)
{
    const struct ek_op *op = c->op, *first = c->g->ops;

    if (!c->g->kv_mixed && !op->u.attention.reads)
        return true;
    while (first < op && (first->kind != EK_OP_ATTENTION || first->layer != op->layer))
        first++;
    if (!op->u.attention.reads)
        return first == op;
    return !first->u.attention.reads && first->u.attention.kv_heads == op->u.attention.kv_heads &&
           first->u.attention.head_dim == op->u.attention.head_dim;
}

static const char *check_attention(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    uint64_t q = op->u.attention.q_heads, kv = op->u.attention.kv_heads;
    uint64_t d = op->u.attention.head_dim;

    if (kv == 0 || q == 0 || d == 0 || q % kv != 0 || kv > c->g->kv_heads || d > c->g->head_dim ||
        (!c->g->kv_mixed && (kv != c->g->kv_heads || d != c->g->head_dim)))
        return "the heads of an attention do not fit the cache";
    if (op->layer >= c->g->layers)
        return "an attention names a layer that the cache lacks";
    if (!layer_fits(c))
        return "an attention names a layer that another one writes otherwise, or none";
    if (op->u.attention.chunks && op->u.attention.window == 0)
        return "chunks of an attention without their size";
    if (!(op->u.attention.k_scale >= 0 && op->u.attention.k_scale <= FLT_MAX) ||
        !(op->u.attention.v_scale >= 0 && op->u.attention.v_scale <= FLT_MAX))
        return "a scale of the KV cache is out of range";
    if (!attention_widths(c))
        return "the values of an attention have other widths";
    return graph_vector(c, op->bias, q) ? NULL : "misshapen sinks";
}

static const char *check_heads(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint64_t count = op->u.heads.count, rest = op->u.heads.rest;

    if (count == 0 || op->dst == op->src || op->weight >= c->g->weight_count)
        return "a product by heads without heads";
    const struct ek_weight *w = &c->g->weights[op->weight];
    if (count * (w->cols + rest) != width(c, op->src) ||
        count * (w->rows + rest) != width(c, op->dst))
        return "the values of a product by heads have other widths";
    for (uint64_t h = 0; h < count; h++)
        if (!matrix_at(c, op->weight + h, w->rows, w->cols))
            return "a misshapen product by heads";
    return NULL;
}

/* A bias for each expert, or none. */
static bool bias_rows(const struct graph_check *c, uint32_t weight, uint64_t cols)
{
    return weight == EK_NO_WEIGHT ||
           (matrix_at(c, weight, c->op->u.experts.count, cols) &&
            c->g->weights[weight].dtype == EK_F32 && !c->g->weights[weight].quantized);
}

static const char *check_routing(const struct graph_check *c)
{
    const struct ek_routing *r = &c->op->u.experts.routing;
    const uint32_t count = c->op->u.experts.count, top = c->op->u.experts.top;

    if (!(r->scale > 0 && r->scale <= FLT_MAX) || !(r->least >= 0 && r->least <= 1))
        return "a scale of experts that is out of range";
    if (r->groups > 0 &&
        (r->groups > EK_MOST_EXPERT_GROUPS || count % r->groups != 0 || r->groups_top == 0 ||
         r->groups_top > r->groups || r->group_best == 0 || r->group_best > 2 ||
         r->group_best > count / r->groups || r->groups_top * (count / r->groups) < top))
        return "impossible groups of experts";
    if (!graph_vector(c, r->each, count) || !graph_plain(c, r->each))
        return "misshapen factors of experts";
    return graph_vector(c, r->correction, count) ? NULL : "a misshapen correction of experts";
}

static const char *check_experts(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    uint32_t count = op->u.experts.count, top = op->u.experts.top;

    if (count == 0 || count > EK_MOST_EXPERTS || top == 0 || top > count ||
        top > EK_MOST_EXPERTS_TOKEN)
        return "an impossible number of experts";
    if (op->u.experts.router >= c->g->value_count || width(c, op->u.experts.router) != count ||
        op->dst == op->src || op->dst == op->u.experts.router)
        return "the values of experts have other widths";
    uint64_t k = width(c, op->src), n = width(c, op->dst), inner = 0;
    if (op->weight < c->g->weight_count)
        inner = c->g->weights[op->weight].rows;
    for (uint64_t e = 0; e < count; e++)
        if (inner == 0 || !matrix_at(c, op->weight + e, inner, k) ||
            !matrix_at(c, op->u.experts.up + e, inner, k) ||
            !matrix_at(c, op->u.experts.down + e, n, inner))
            return "misshapen experts";
    return bias_rows(c, op->bias, inner) && bias_rows(c, op->u.experts.up_bias, inner) &&
                   bias_rows(c, op->u.experts.down_bias, n)
               ? check_routing(c)
               : "misshapen biases of experts";
}

static uint64_t head_states(uint64_t heads, uint64_t rows, uint64_t cols)
{
    return heads * rows * ((cols + EK_STATE_COLS - 1) / EK_STATE_COLS * EK_STATE_COLS);
}

uint64_t ek_op_state(const struct ek_graph *g, const struct ek_op *op, uint32_t *ret_at)
{
    const struct ek_delta *t = &op->u.delta;

    *ret_at = 0;
    if (op->kind == EK_OP_CONV) {
        *ret_at = op->u.conv.state_at;
        return (uint64_t)(op->u.conv.kernel - 1) * g->value_width[op->dst];
    }
    if (op->kind == EK_OP_SCAN) {
        *ret_at = op->u.scan.state_at;
        return head_states(op->u.scan.heads, op->u.scan.state_dim, op->u.scan.head_dim);
    }
    if (op->kind != EK_OP_DELTA)
        return 0;
    *ret_at = t->state_at;
    return head_states(t->v_heads, t->k_dim, t->v_dim);
}

/* The state of an operation that has one. */
static bool state_fits(const struct graph_check *c)
{
    uint32_t at;
    const uint64_t floats = ek_op_state(c->g, c->op, &at);

    return floats > 0 && at <= c->g->state_floats && floats <= c->g->state_floats - at;
}

static const char *check_take(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint64_t heads = op->u.take.heads, group = op->u.take.group;

    if (op->dst == op->src || heads == 0 || group == 0 ||
        op->u.take.to + heads * group > width(c, op->dst) ||
        op->u.take.first + (heads - 1) * op->u.take.step + group > width(c, op->src))
        return "what is taken exceeds its value";
    return NULL;
}

static const char *check_gate(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint64_t group = op->u.gate.group, n = width(c, op->dst);

    const struct ek_gate_numbers *x = &op->u.gate.numbers;
    if (op->u.gate.act == EK_GATE_CLIP && !(x->rising > 0 && x->rising <= FLT_MAX))
        return "a gate clips to nothing";
    if (op->u.gate.act == EK_GATE_XIELU &&
        !(isfinite(x->rising) && isfinite(x->falling) && isfinite(x->slope)))
        return "a gate's numbers are out of range";
    const bool itself = op->dst == op->src && (op->u.gate.first > 0 || group != n);
    if (itself || group == 0 || n % group != 0 ||
        op->u.gate.first + (n / group - 1) * op->u.gate.step + group > width(c, op->src))
        return "a gate exceeds its value";
    return NULL;
}

static const char *check_mix(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint64_t inputs = op->u.mix.inputs, outputs = op->u.mix.outputs, n = op->u.mix.group;

    if (op->dst == op->src || inputs == 0 || inputs > EK_MOST_STREAMS || outputs == 0 ||
        outputs > EK_MOST_STREAMS || n == 0 || inputs * n > width(c, op->src) ||
        op->u.mix.to + outputs * n > width(c, op->dst) || !isfinite(op->u.mix.plus))
        return "a mix exceeds its values";
    if (!op->u.mix.fixed && (op->u.mix.by >= c->g->value_count || op->u.mix.by == op->dst ||
                             op->u.mix.first + inputs * outputs > width(c, op->u.mix.by)))
        return "a mix without its coefficients";
    return NULL;
}

static const char *check_match(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const float least = op->u.match.least;

    return op->dst != op->src && width(c, op->src) == width(c, op->dst) && least > 0 &&
                   least <= FLT_MAX
               ? NULL
               : "a misshapen match";
}

static const char *check_cut(const struct graph_check *c)
{
    const struct ek_op *op = c->op;

    return op->u.cut.group > 0 && op->u.cut.group <= width(c, op->dst) && isfinite(op->u.cut.times)
               ? NULL
               : "a cut exceeds its value";
}

static const char *check_scale(const struct graph_check *c)
{
    const struct ek_op *op = c->op;

    return (graph_vector(c, op->weight, 1) || graph_vector(c, op->weight, width(c, op->dst))) &&
                   graph_plain(c, op->weight) && isfinite(op->u.scale.scale)
               ? NULL
               : "a misshapen scale";
}

/* A table of positions has as many as a sequence can reach. */
static const char *check_positions(const struct graph_check *c)
{
    const uint32_t n = c->op->weight;
    const bool fits = n < c->g->weight_count && c->g->weights[n].rows > 0 &&
                      c->g->weights[n].rows >= c->g->max_position;

    return fits && graph_matrix(c, c->g->weights[n].rows, width(c, c->op->dst))
               ? NULL
               : "misshapen table of positions";
}

static const char *check_embed(const struct graph_check *c)
{
    const uint32_t rows = ek_graph_vocab_rows(c->g), n = c->op->weight;
    const bool fewer = n < c->g->weight_count && c->g->ranks == 0 && c->g->weights[n].rows > 0 &&
                       c->g->weights[n].rows < rows;

    return graph_matrix(c, fewer ? c->g->weights[n].rows : rows, width(c, c->op->dst))
               ? NULL
               : "misshapen embedding";
}

static const char *check_conv(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const uint64_t n = width(c, op->dst);

    if (op->dst == op->src || op->u.conv.first + n > width(c, op->src))
        return "the channels of a convolution exceed its value";
    if (op->u.conv.kernel < 2 || op->u.conv.kernel > EK_MOST_CONV ||
        !graph_matrix(c, op->u.conv.kernel, n) || !graph_vector(c, op->bias, n) ||
        !graph_plain(c, op->weight) || !graph_plain(c, op->bias))
        return "a misshapen convolution";
    return state_fits(c) ? NULL : "a convolution's state is out of range";
}

/* Whether an operation before this one writes the value. */
static bool made(const struct graph_check *c, uint16_t value)
{
    for (const struct ek_op *op = c->g->ops; op < c->op; op++)
        if (op->dst == value && op->kind != EK_OP_SEND && op->kind != EK_OP_GATHER &&
            op->kind != EK_OP_LOGITS)
            return true;
    return false;
}

static const char *check_delta(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const struct ek_delta *t = &op->u.delta;
    const uint64_t q = (uint64_t)t->k_heads * t->k_dim, v = (uint64_t)t->v_heads * t->v_dim;

    if (q == 0 || v == 0 || t->v_heads % t->k_heads != 0 || t->k_dim > UINT16_MAX)
        return "a delta rule without heads";
    if (t->gates >= c->g->value_count || op->dst == op->src || t->gates == op->dst ||
        t->gates == op->src || 2 * q + v != width(c, op->src) || v != width(c, op->dst) ||
        2 * (uint64_t)t->v_heads != width(c, t->gates))
        return "the values of a delta rule have other widths";
    if (op->weight == EK_NO_WEIGHT || op->bias == EK_NO_WEIGHT ||
        !graph_vector(c, op->weight, t->v_heads) || !graph_vector(c, op->bias, t->v_heads) ||
        !graph_plain(c, op->weight) || !graph_plain(c, op->bias))
        return "misshapen weights of a delta rule";
    if (!made(c, op->src) || !made(c, t->gates))
        return "a delta rule of values that nothing makes";
    return state_fits(c) ? NULL : "a delta rule's state is out of range";
}

static const char *check_scan(const struct graph_check *c)
{
    const struct ek_op *op = c->op;
    const struct ek_scan *t = &op->u.scan;
    const uint64_t x = (uint64_t)t->heads * t->head_dim, b = (uint64_t)t->groups * t->state_dim;

    if (x == 0 || b == 0 || t->heads % t->groups != 0 || t->state_dim > UINT16_MAX)
        return "a scan without heads";
    if (t->steps >= c->g->value_count || op->dst == op->src || t->steps == op->dst ||
        x + 2 * b != width(c, op->src) || x != width(c, op->dst) ||
        (uint64_t)t->step_first + t->heads > width(c, t->steps))
        return "the values of a scan have other widths";
    if (op->weight == EK_NO_WEIGHT || op->bias == EK_NO_WEIGHT || t->skip == EK_NO_WEIGHT ||
        !graph_vector(c, op->weight, t->heads) || !graph_vector(c, op->bias, t->heads) ||
        !graph_vector(c, t->skip, t->heads) || !graph_plain(c, op->weight) ||
        !graph_plain(c, op->bias) || !graph_plain(c, t->skip))
        return "misshapen weights of a scan";
    if (!(t->least >= 0 && t->least <= FLT_MAX) || !(t->most >= t->least))
        return "the steps of a scan are out of range";
    if (!made(c, op->src) || !made(c, t->steps))
        return "a scan of values that nothing makes";
    return state_fits(c) ? NULL : "a scan's state is out of range";
}

static bool values_known(const struct graph_check *c)
{
    enum ek_op_kind k = c->op->kind;
    bool reads = k != EK_OP_EMBED && k != EK_OP_ROPE && k != EK_OP_SOFTCAP && k != EK_OP_SCALE &&
                 k != EK_OP_REDUCE && k != EK_OP_GATHER && k != EK_OP_RECV && k != EK_OP_CUT;
    bool writes = k != EK_OP_LOGITS && k != EK_OP_GATHER && k != EK_OP_SEND;

    return (!writes || c->op->dst < c->g->value_count) &&
           (!reads || c->op->src < c->g->value_count);
}

static const char *check_op(const struct graph_check *c)
{
    const struct ek_op *op = c->op;

    switch (op->kind) {
    case EK_OP_EMBED: return op->u.embed.by_position ? check_positions(c) : check_embed(c);
    case EK_OP_NORM: return check_norm(c);
    case EK_OP_LINEAR:
        if (op->dst == op->src || !graph_matrix(c, width(c, op->dst), width(c, op->src)))
            return "misshapen linear";
        return graph_vector(c, op->bias, width(c, op->dst)) ? NULL : "misshapen bias";
    case EK_OP_HEADS: return check_heads(c);
    case EK_OP_ROPE: return check_rope(c);
    case EK_OP_ATTENTION: return check_attention(c);
    case EK_OP_GLU: return width(c, op->src) == 2 * width(c, op->dst) ? NULL : "misshapen gate";
    case EK_OP_EXPERTS: return check_experts(c);
    case EK_OP_ADD: return width(c, op->src) == width(c, op->dst) ? NULL : "misshapen addition";
    case EK_OP_SCALE: return check_scale(c);
    case EK_OP_SOFTCAP: return op->u.softcap.cap > 0.0f ? NULL : "a softcap of 0";
    case EK_OP_PICK:
        return op->dst != op->src && width(c, op->src) == width(c, op->dst) ? NULL
                                                                            : "misshapen pick";
    case EK_OP_LOGITS:
        return graph_matrix(c, ek_graph_vocab_rows(c->g), width(c, op->src)) &&
                       graph_vector(c, op->bias, ek_graph_vocab_rows(c->g))
                   ? NULL
                   : "misshapen logits";
    case EK_OP_REDUCE:
    case EK_OP_GATHER: return c->g->ranks > 0 ? NULL : "a collective without ranks";
    case EK_OP_TAKE: return check_take(c);
    case EK_OP_GATE: return check_gate(c);
    case EK_OP_CONV: return check_conv(c);
    case EK_OP_DELTA: return check_delta(c);
    case EK_OP_SCAN: return check_scan(c);
    case EK_OP_MIX: return check_mix(c);
    case EK_OP_MATCH: return check_match(c);
    case EK_OP_CUT: return check_cut(c);
    case EK_OP_SEND: return ek_graph_last(c->g) ? "rows are sent behind the last stage" : NULL;
    case EK_OP_RECV: return ek_graph_first(c->g) ? "rows come before the first stage" : NULL;
    }
    return "an unknown operation";
}

/* Where the operation stands: what it may not follow. */
static const char *check_place(const struct ek_op *op, uint32_t picks, uint32_t logits, bool cap)
{
    if (logits > 0 && op->kind != EK_OP_LOGITS && op->kind != EK_OP_GATHER && !cap)
        return "work after the logits";
    if (logits == 0 && op->kind == EK_OP_GATHER)
        return "logits are gathered before there are any";
    if (picks > 0 &&
        (op->kind == EK_OP_EMBED || op->kind == EK_OP_ATTENTION || op->kind == EK_OP_ROPE ||
         op->kind == EK_OP_CONV || op->kind == EK_OP_DELTA || op->kind == EK_OP_SCAN))
        return "work on all rows after the pick";
    return NULL;
}

/* Whether what a stage is given and hands on stands at its ends, and only there. */
static bool check_ends(const struct ek_graph *g)
{
    const bool takes = !ek_graph_first(g), gives = !ek_graph_last(g);

    if (g->op_count == 0)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++)
        if ((g->ops[i].kind == EK_OP_RECV) != (takes && i == 0) ||
            (g->ops[i].kind == EK_OP_SEND) != (gives && i + 1 == g->op_count))
            return false;
    return true;
}

int ek_graph_check(const struct ek_graph *g, struct ek_fault *fault)
{
    uint32_t picks = 0, logits = 0;

    if (g->vocab == 0 || g->vocab > INT32_MAX || g->kv_heads == 0 || g->head_dim == 0 ||
        g->value_dim > g->head_dim || (g->kv_mixed && g->value_dim > 0))
        return ek_fault_set(fault, "graph", "the model has no vocabulary or no heads");
    if (g->ranks > 0 && (g->rank >= g->ranks || g->ranks > EK_MOST_RANKS || g->vocab_rows == 0 ||
                         g->vocab_first > g->vocab || g->vocab_rows > g->vocab - g->vocab_first))
        return ek_fault_set(fault, "graph", "a rank's share of the vocabulary is out of range");
    if (g->stages > EK_MOST_RANKS || g->stage >= g->stages + !g->stages)
        return ek_fault_set(fault, "graph", "a stage is out of range");
    for (uint32_t i = 0; i < g->op_count; i++) {
        struct graph_check c = {.g = g, .op = &g->ops[i]};
        const char *wrong = "an unknown value";
        bool cap = c.op->kind == EK_OP_SOFTCAP && logits > 0;
        if (cap || values_known(&c))
            wrong = check_op(&c);
        picks += c.op->kind == EK_OP_PICK;
        logits += c.op->kind == EK_OP_LOGITS;
        if (!wrong)
            wrong = check_place(c.op, picks, logits, cap);
        if (wrong)
            return ek_fault_set(fault, "graph", "operation %u of %u is wrong: %s", i, g->op_count,
                                wrong);
    }
    const uint32_t once = ek_graph_last(g) ? 1 : 0;
    if (picks != once || logits != once)
        return ek_fault_set(fault, "graph", "the model must pick rows once and have logits once");
    if (!check_ends(g))
        return ek_fault_set(fault, "graph",
                            "a stage must begin with what it is given and end with "
                            "what it hands on");
    return 0;
}

void ek_graph_free(struct ek_graph *g)
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

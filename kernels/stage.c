/*
 * One walk from the last operation to the first finds the cuts: it keeps the set of values that
 * are still read, and where that is one value between two attentions, the later layer may begin.
 * A stage is then a copy of a run of operations with the weights, values and rope tables that it
 * names, numbered anew in the same order (so that experts stay adjacent).
 */
#include "kernels/stage.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/quant.h"
#include "kernels/shard.h"

#define NONE UINT32_MAX

/* ---- which values an operation reads ---- */

struct flow {
    bool fills, dst, src; /* writes all of dst; reads these */
    bool other;           /* and a third one: the router's logits, or latent keys */
    uint16_t value;
};

static struct flow flow_of(const struct ek_graph *g, const struct ek_op *op, bool after_logits)
{
    switch (op->kind) {
    case EK_OP_EMBED:
    case EK_OP_RECV: return (struct flow){.fills = true};
    case EK_OP_LINEAR:
    case EK_OP_HEADS:
    case EK_OP_GLU:
    case EK_OP_PICK: return (struct flow){.fills = true, .src = true};
    case EK_OP_ATTENTION:
        return (struct flow){.fills = true,
                             .src = true,
                             .other = op->u.attention.value_dim > 0,
                             .value = op->u.attention.keys};
    case EK_OP_EXPERTS:
        return (struct flow){
            .fills = true, .src = true, .other = true, .value = op->u.experts.router};
    case EK_OP_NORM: {
        const uint64_t heads = op->u.norm.heads ? op->u.norm.heads : 1;
        bool all = op->u.norm.first == 0 && heads * op->u.norm.group == g->value_width[op->dst];
        return (struct flow){.fills = all, .dst = !all, .src = true};
    }
    case EK_OP_ADD: return (struct flow){.dst = true, .src = true};
    case EK_OP_SOFTCAP: return (struct flow){.dst = !after_logits};
    case EK_OP_TAKE: {
        const bool begins = op->u.take.to == 0;
        return (struct flow){.fills = begins, .dst = !begins, .src = true};
    }
    case EK_OP_GATE: return (struct flow){.dst = true, .src = true};
    case EK_OP_CONV: return (struct flow){.fills = true, .src = true};
    case EK_OP_DELTA:
        return (struct flow){.fills = true, .src = true, .other = true, .value = op->u.delta.gates};
    case EK_OP_SCAN:
        return (struct flow){.fills = true, .src = true, .other = true, .value = op->u.scan.steps};
    case EK_OP_MIX:
        return (struct flow){
            .dst = true, .src = true, .other = !op->u.mix.fixed, .value = op->u.mix.by};
    case EK_OP_MATCH: return (struct flow){.dst = true, .src = true};
    case EK_OP_CUT:
    case EK_OP_ROPE:
    case EK_OP_SCALE:
    case EK_OP_REDUCE: return (struct flow){.dst = true};
    case EK_OP_LOGITS:
    case EK_OP_SEND: return (struct flow){.src = true};
    case EK_OP_GATHER: break;
    }
    return (struct flow){.fills = false};
}

/* ---- cuts ---- */

struct stage_cut {
    uint32_t op;    /* the first one of the layer */
    uint16_t value; /* what is handed to it */
};

struct walk {
    const struct ek_graph *g;
    uint8_t *live; /* [values] */
    uint32_t lives;
};

static void set_live(struct walk *w, uint16_t value, bool live)
{
    w->lives += (uint32_t)live - w->live[value];
    w->live[value] = live;
}

static void step_back(struct walk *w, const struct ek_op *op, bool after_logits)
{
    const struct flow f = flow_of(w->g, op, after_logits);

    if (f.fills)
        set_live(w, op->dst, false);
    if (f.dst)
        set_live(w, op->dst, true);
    if (f.src)
        set_live(w, op->src, true);
    if (f.other)
        set_live(w, f.value, true);
}

static uint16_t only_live(const struct walk *w)
{
    uint16_t value = 0;

    while (!w->live[value])
        value++;
    return value;
}

static int no_cut(uint32_t stages, uint32_t layer, struct ek_fault *fault)
{
    ek_fault_write(fault, "pipeline-parallel-size",
                   "--pipeline-parallel-size %u: there is no rule where layer %u of this model "
                   "begins: use 1",
                   stages, layer);
    return -ENOTSUP;
}

/* Where each layer begins, the first one with the first operation; cut[layers] is the end. */
static int find_cuts(const struct ek_graph *g, uint32_t stages, struct stage_cut *cut,
                     struct ek_fault *fault)
{
    uint32_t layer = g->layers, logits = g->op_count;
    struct walk w = {.g = g, .live = calloc(g->value_count + 1, 1)};

    if (!w.live)
        return -ENOMEM;
    cut[layer] = (struct stage_cut){.op = g->op_count};
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == EK_OP_LOGITS)
            logits = i;
    int r = 0;
    bool found = true; /* where `layer` begins */
    for (uint32_t i = g->op_count; r == 0 && i-- > 0;) {
        step_back(&w, &g->ops[i], i > logits);
        if (g->ops[i].kind == EK_OP_ATTENTION) {
            if (!found || layer == 0 || g->ops[i].layer != layer - 1)
                r = no_cut(stages, layer, fault);
            layer -= layer > 0;
            found = false;
        } else if (!found && layer > 0 && w.lives == 1) {
            cut[layer] = (struct stage_cut){i, only_live(&w)};
            found = true;
        }
    }
    if (r == 0 && layer > 0)
        r = no_cut(stages, layer, fault);
    cut[0] = (struct stage_cut){.op = 0};
    free(w.live);
    return r;
}

/* ---- shares of weight bytes ---- */

static uint64_t bytes_of(const struct ek_weight *w)
{
    uint64_t bytes = (uint64_t)w->rows * w->cols * ek_dtype_bits(w->dtype) / 8;
    uint64_t group = w->group > 0 ? w->group : w->cols;

    if (ek_dtype_packed(w->dtype))
        bytes += w->rows * ((w->cols + group - 1) / group) *
                 (ek_power_scales(w->dtype, w->group) ? 1 : sizeof(float));
    return bytes;
}

static uint64_t op_bytes(const struct ek_graph *g, const struct ek_op *op)
{
    uint64_t sum = 0;

    if (op->bias != EK_NO_WEIGHT && op->kind == EK_OP_LINEAR)
        sum += bytes_of(&g->weights[op->bias]);
    if (op->kind == EK_OP_EXPERTS)
        for (uint32_t e = 0; e < op->u.experts.count; e++)
            sum += bytes_of(&g->weights[op->weight + e]) +
                   bytes_of(&g->weights[op->u.experts.up + e]) +
                   bytes_of(&g->weights[op->u.experts.down + e]);
    else if (op->weight != EK_NO_WEIGHT)
        sum +=
            bytes_of(&g->weights[op->weight]) * (op->kind == EK_OP_HEADS ? op->u.heads.count : 1);
    return sum;
}

/* The runs of layers whose largest sum is the smallest. all: [layers + 1] sums of those before a
 * layer; best, from: [stages + 1][layers + 1]. Of equal ones the last stage, which has the logits
 * to compute as well, gets the fewest. */
static void stage_divide(const uint64_t *all, uint32_t layers, uint32_t stages, uint64_t *best,
                         uint32_t *from)
{
    const size_t row = layers + 1;

    for (uint32_t n = 0; n <= layers; n++)
        best[n] = n == 0 ? 0 : UINT64_MAX;
    for (uint32_t k = 1; k <= stages; k++)
        for (uint32_t n = 0; n <= layers; n++) {
            best[k * row + n] = UINT64_MAX;
            for (uint32_t j = k - 1; j < n; j++) {
                uint64_t before = best[(k - 1) * row + j], own = all[n] - all[j];
                uint64_t most = before > own ? before : own;
                if (before == UINT64_MAX || most > best[k * row + n])
                    continue;
                best[k * row + n] = most;
                from[k * row + n] = j;
            }
        }
}

int ek_stage_divide(const struct ek_graph *g, uint32_t stages, uint32_t *ret_begin,
                    struct ek_fault *fault)
{
    const size_t row = (size_t)g->layers + 1;

    if (stages == 0 || stages > g->layers)
        return ek_fault_set(fault, "pipeline-parallel-size",
                            "--pipeline-parallel-size %u: each stage needs a layer, and the model "
                            "has %u; choose 1 to %u",
                            stages, g->layers,
                            g->layers < EK_MOST_RANKS ? g->layers : EK_MOST_RANKS);
    struct stage_cut *cut = calloc(row, sizeof(*cut));
    uint64_t *all = calloc(row, sizeof(*all));
    uint64_t *best = calloc((stages + 1) * row, sizeof(*best));
    uint32_t *from = calloc((stages + 1) * row, sizeof(*from));
    int r = cut && all && best && from ? find_cuts(g, stages, cut, fault) : -ENOMEM;

    for (uint32_t n = 0; r == 0 && n < g->layers; n++) {
        all[n + 1] = all[n];
        for (uint32_t i = cut[n].op; i < cut[n + 1].op; i++)
            all[n + 1] += op_bytes(g, &g->ops[i]);
    }
    if (r == 0) {
        stage_divide(all, g->layers, stages, best, from);
        ret_begin[stages] = g->layers;
        for (uint32_t k = stages; k > 0; k--)
            ret_begin[k - 1] = from[k * row + ret_begin[k]];
    }
    free(cut);
    free(all);
    free(best);
    free(from);
    return r;
}

/* ---- the graph of a stage ---- */

struct copying {
    const struct ek_graph *g;
    struct ek_graph *out;
    uint32_t *value, *weight, *rope; /* numbers of the stage's; NONE: it has no such */
    uint32_t state_first;            /* the stage's part of the state begins here */
};

static void use_run(uint32_t *number, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        number[first + i] = 0;
}

/* Marks what an operation names. */
static void use(struct copying *c, const struct ek_op *op, bool after_logits)
{
    const struct flow f = flow_of(c->g, op, after_logits);

    if (f.fills || f.dst)
        c->value[op->dst] = 0;
    if (f.src)
        c->value[op->src] = 0;
    if (f.other)
        c->value[f.value] = 0;
    if (op->kind == EK_OP_ROPE)
        c->rope[op->u.rope.table] = 0;
    if (op->bias != EK_NO_WEIGHT)
        c->weight[op->bias] = 0;
    if (op->kind == EK_OP_SCAN)
        c->weight[op->u.scan.skip] = 0;
    if (op->kind == EK_OP_EXPERTS) {
        use_run(c->weight, op->weight, op->u.experts.count);
        use_run(c->weight, op->u.experts.up, op->u.experts.count);
        use_run(c->weight, op->u.experts.down, op->u.experts.count);
        use_run(c->weight, op->u.experts.up_bias, op->u.experts.up_bias != EK_NO_WEIGHT);
        use_run(c->weight, op->u.experts.down_bias, op->u.experts.down_bias != EK_NO_WEIGHT);
        use_run(c->weight, op->u.experts.routing.correction,
                op->u.experts.routing.correction != EK_NO_WEIGHT);
        use_run(c->weight, op->u.experts.routing.each, op->u.experts.routing.each != EK_NO_WEIGHT);
    } else if (op->weight != EK_NO_WEIGHT) {
        use_run(c->weight, op->weight, op->kind == EK_OP_HEADS ? op->u.heads.count : 1);
    }
}

/* Gives what is marked numbers in order; how many. */
static uint32_t number_all(uint32_t *number, uint32_t count)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        if (number[i] != NONE)
            number[i] = n++;
    return n;
}

static uint32_t *unmarked(uint32_t count)
{
    uint32_t *number = malloc(((size_t)count + 1) * sizeof(*number));

    if (number)
        memset(number, 0xff, ((size_t)count + 1) * sizeof(*number));
    return number;
}

static uint16_t value_of(const struct copying *c, uint16_t value)
{
    return c->value[value] == NONE ? 0 : (uint16_t)c->value[value]; /* 0: nothing reads it */
}

static void stage_push(const struct copying *c, const struct ek_op *whole, uint32_t first_layer)
{
    struct ek_op op = *whole;

    op.dst = value_of(c, op.dst);
    op.src = value_of(c, op.src);
    if (op.weight != EK_NO_WEIGHT)
        op.weight = c->weight[op.weight];
    if (op.bias != EK_NO_WEIGHT)
        op.bias = c->weight[op.bias];
    if (op.kind == EK_OP_ATTENTION)
        op.layer -= first_layer;
    if (op.kind == EK_OP_ATTENTION && op.u.attention.value_dim > 0)
        op.u.attention.keys = value_of(c, op.u.attention.keys);
    if (op.kind == EK_OP_ROPE)
        op.u.rope.table = c->rope[op.u.rope.table];
    if (op.kind == EK_OP_MIX && !op.u.mix.fixed)
        op.u.mix.by = value_of(c, op.u.mix.by);
    if (op.kind == EK_OP_CONV)
        op.u.conv.state_at -= c->state_first;
    if (op.kind == EK_OP_DELTA) {
        op.u.delta.gates = value_of(c, op.u.delta.gates);
        op.u.delta.state_at -= c->state_first;
    }
    if (op.kind == EK_OP_SCAN) {
        op.u.scan.steps = value_of(c, op.u.scan.steps);
        op.u.scan.skip = c->weight[op.u.scan.skip];
        op.u.scan.state_at -= c->state_first;
    }
    if (op.kind == EK_OP_EXPERTS) {
        op.u.experts.router = value_of(c, op.u.experts.router);
        op.u.experts.up = c->weight[op.u.experts.up];
        op.u.experts.down = c->weight[op.u.experts.down];
        if (op.u.experts.up_bias != EK_NO_WEIGHT)
            op.u.experts.up_bias = c->weight[op.u.experts.up_bias];
        if (op.u.experts.down_bias != EK_NO_WEIGHT)
            op.u.experts.down_bias = c->weight[op.u.experts.down_bias];
        if (op.u.experts.routing.correction != EK_NO_WEIGHT)
            op.u.experts.routing.correction = c->weight[op.u.experts.routing.correction];
        if (op.u.experts.routing.each != EK_NO_WEIGHT)
            op.u.experts.routing.each = c->weight[op.u.experts.routing.each];
    }
    c->out->ops[c->out->op_count++] = op;
}

static void push_end(const struct copying *c, enum ek_op_kind kind, uint16_t value)
{
    c->out->ops[c->out->op_count++] = (struct ek_op){.kind = kind,
                                                     .dst = (uint16_t)c->value[value],
                                                     .src = (uint16_t)c->value[value],
                                                     .weight = EK_NO_WEIGHT,
                                                     .bias = EK_NO_WEIGHT};
}

static int copy_rope(const struct ek_rope *from, struct ek_rope *to)
{
    *to = *from;
    to->inv_freq = malloc(((size_t)from->count + 1) * sizeof(float));
    if (!to->inv_freq)
        return -ENOMEM;
    memcpy(to->inv_freq, from->inv_freq, from->count * sizeof(float));
    return 0;
}

/* Memory for what is marked, and the copies of it. */
static int copy_marked(const struct copying *c, uint32_t ops)
{
    const struct ek_graph *g = c->g;
    struct ek_graph *out = c->out;
    int r = 0;

    out->value_count = number_all(c->value, g->value_count);
    out->weight_count = number_all(c->weight, g->weight_count);
    out->rope_count = number_all(c->rope, g->rope_count);
    out->ops = calloc(ops + 2ull, sizeof(*out->ops));
    out->weights = calloc(out->weight_count + 1ull, sizeof(*out->weights));
    out->value_width = calloc(out->value_count + 1ull, sizeof(*out->value_width));
    out->ropes = calloc(out->rope_count + 1ull, sizeof(*out->ropes));
    out->quants = g->quant_count > 0 ? calloc(g->quant_count, sizeof(*out->quants)) : NULL;
    if (!out->ops || !out->weights || !out->value_width || !out->ropes ||
        (g->quant_count > 0 && !out->quants))
        return -ENOMEM;
    if (g->quant_count > 0)
        memcpy(out->quants, g->quants, g->quant_count * sizeof(*out->quants));
    for (uint32_t i = 0; i < g->value_count; i++)
        if (c->value[i] != NONE)
            out->value_width[c->value[i]] = g->value_width[i];
    for (uint32_t i = 0; i < g->weight_count; i++)
        if (c->weight[i] != NONE)
            out->weights[c->weight[i]] = g->weights[i];
    for (uint32_t i = 0; r == 0 && i < g->rope_count; i++)
        if (c->rope[i] != NONE)
            r = copy_rope(&g->ropes[i], &out->ropes[c->rope[i]]);
    return r;
}

/* The state of the operations from one to another, which lies in their order. */
static void cut_state(struct copying *c, const struct stage_cut *from, const struct stage_cut *to)
{
    uint64_t first = UINT64_MAX, end = 0;

    for (uint32_t i = from->op; i < to->op; i++) {
        uint32_t at;
        const uint64_t floats = ek_op_state(c->g, &c->g->ops[i], &at);
        first = floats > 0 && at < first ? at : first;
        end = floats > 0 && at + floats > end ? at + floats : end;
    }
    c->state_first = end > 0 ? (uint32_t)first : 0;
    c->out->state_floats = (uint32_t)(end - c->state_first);
}

static int copy_run(struct copying *c, const struct stage_cut *from, const struct stage_cut *to,
                    uint32_t first_layer)
{
    const struct ek_graph *g = c->g;
    bool logits = false;

    for (uint32_t i = from->op; i < to->op; i++) {
        use(c, &g->ops[i], logits);
        logits = logits || g->ops[i].kind == EK_OP_LOGITS;
    }
    if (!ek_graph_first(c->out))
        c->value[from->value] = 0;
    if (!ek_graph_last(c->out))
        c->value[to->value] = 0;
    int r = copy_marked(c, to->op - from->op);
    if (r < 0)
        return r;
    cut_state(c, from, to);
    if (!ek_graph_first(c->out))
        push_end(c, EK_OP_RECV, from->value);
    for (uint32_t i = from->op; i < to->op; i++)
        stage_push(c, &g->ops[i], first_layer);
    if (!ek_graph_last(c->out))
        push_end(c, EK_OP_SEND, to->value);
    return 0;
}

int ek_stage(const struct ek_graph *g, const uint32_t *begin, uint32_t stage, uint32_t stages,
             struct ek_graph *ret_graph, struct ek_fault *fault)
{
    struct ek_graph out = {0};
    struct copying c = {.g = g, .out = &out};

    int r = ek_graph_check(g, fault);
    if (r == 0 && (stage >= stages || stages > EK_MOST_RANKS || g->stages > 0 ||
                   begin[stage] >= begin[stage + 1] || begin[stage + 1] > g->layers))
        r = -EINVAL;
    if (r < 0)
        return r;
    struct stage_cut *cut = calloc(g->layers + 1ull, sizeof(*cut));
    c.value = unmarked(g->value_count);
    c.weight = unmarked(g->weight_count);
    c.rope = unmarked(g->rope_count);
    r = cut && c.value && c.weight && c.rope ? find_cuts(g, stages, cut, fault) : -ENOMEM;
    if (r < 0)
        goto out;
    out = *g;
    out.ops = NULL;
    out.weights = NULL;
    out.quants = NULL;
    out.value_width = NULL;
    out.ropes = NULL;
    out.op_count = out.rope_count = 0;
    out.stage = stage;
    out.stages = stages;
    out.layers = begin[stage + 1] - begin[stage];
    r = copy_run(&c, &cut[begin[stage]], &cut[begin[stage + 1]], begin[stage]);
    if (r == 0)
        r = ek_graph_check(&out, fault);
    if (r < 0)
        goto out;
    *ret_graph = out;
    out = (struct ek_graph){0};
out:
    ek_graph_free(&out);
    free(cut);
    free(c.value);
    free(c.weight);
    free(c.rope);
    return r;
}

int ek_rank_graph(const struct ek_graph *g, uint32_t rank, uint32_t ranks, uint32_t stages,
                  struct ek_graph *ret_graph, struct ek_fault *fault)
{
    const uint32_t each = stages > 1 ? ranks / stages : ranks;
    uint32_t begin[EK_MOST_RANKS + 1];
    struct ek_graph share = {0};

    if (stages <= 1)
        return ek_shard(g, rank, ranks, ret_graph, fault);
    if (stages > EK_MOST_RANKS || each * stages != ranks || rank >= ranks)
        return -EINVAL;
    int r = ek_stage_divide(g, stages, begin, fault);
    if (r == 0 && each > 1)
        r = ek_shard(g, rank % each, each, &share, fault);
    if (r == 0)
        r = ek_stage(each > 1 ? &share : g, begin, rank / each, stages, ret_graph, fault);
    ek_graph_free(&share);
    return r;
}

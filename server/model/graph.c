/*
 * The builder of graphs: values and operations; weights are in graph_weights.c, experts in
 * graph_experts.c. Rooms double; an allocation that fails sticks like any other error.
 */
#include "server/model/graph.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/model/graph_weights.h"
#include "server/model/kvscale.h"
#include "server/model/rope.h"

#define VALUES_MOST 4096u

void *graph_grow(struct graph_builder *b, void *array, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return array;
    uint32_t more = *room ? *room * 2 : 16;
    void *p = realloc(array, (size_t)more * size);
    if (!p) {
        b->error = -ENOMEM;
        return NULL;
    }
    *room = more;
    return p;
}

void graph_begin(struct graph_builder *b)
{
    const struct model_config *c = b->config;
    struct ek_graph *g = b->graph;
    g->layers = g->kv_heads = g->head_dim = 0;
    for (uint32_t i = 0; i < c->layers; i++) {
        const struct graph_kv kv = graph_kv_of(c, i);
        if (c->recurrent[i] || c->forward_only[i] || kv.reads)
            continue;
        g->kv_mixed = g->kv_mixed ||
                      (g->layers > 0 && (kv.heads != g->kv_heads || kv.head_dim != g->head_dim));
        g->kv_heads = kv.heads > g->kv_heads ? kv.heads : g->kv_heads;
        g->head_dim = kv.head_dim > g->head_dim ? kv.head_dim : g->head_dim;
        g->layers++;
    }
    if (g->layers == 0) { /* a cache of nothing */
        g->kv_heads = c->kv_heads;
        g->head_dim = c->head_dim;
    }
    g->value_dim = c->latent.rank;
    g->hidden = c->embed_width > 0 ? c->embed_width : c->hidden; /* of what the logits read */
    g->vocab = c->vocab;
    g->max_position = c->max_model_len;
}

uint16_t graph_value(struct graph_builder *b, uint32_t width)
{
    struct ek_graph *g = b->graph;
    if (b->error)
        return 0;
    assert(width > 0 && g->value_count < VALUES_MOST);
    uint32_t *w = graph_grow(b, g->value_width, g->value_count, &b->value_room, sizeof(*w));
    if (!w)
        return 0;
    g->value_width = w;
    w[g->value_count] = width;
    return (uint16_t)g->value_count++;
}

void graph_prefix(struct graph_builder *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(b->prefix, sizeof(b->prefix), fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof(b->prefix));
}

void graph_op_push(struct graph_builder *b, struct ek_op op)
{
    struct ek_graph *g = b->graph;
    if (b->error)
        return;
    struct ek_op *ops = graph_grow(b, g->ops, g->op_count, &b->op_room, sizeof(*ops));
    if (!ops)
        return;
    g->ops = ops;
    ops[g->op_count++] = op;
}

uint32_t graph_width(const struct graph_builder *b, uint16_t value)
{
    return b->error ? 0 : b->graph->value_width[value];
}

uint32_t graph_rope(struct graph_builder *b, const struct config_rope_params *p)
{
    struct ek_graph *g = b->graph;
    uint32_t count = p->dims / 2;
    bool two = p->type == ROPE_LONGROPE;
    if (b->error)
        return 0;
    float *freq = malloc((size_t)count * (two ? 2 : 1) * sizeof(*freq));
    struct ek_rope *ropes = freq ? realloc(g->ropes, (g->rope_count + 1) * sizeof(*ropes)) : NULL;
    if (!ropes) {
        free(freq);
        b->error = -ENOMEM;
        return 0;
    }
    g->ropes = ropes;
    float factor = config_rope_table(p, b->config->max_model_len > p->original_positions, freq);
    if (two)
        (void)config_rope_table(p, false, freq + count);
    ropes[g->rope_count] = (struct ek_rope){.inv_freq = freq, .count = count, .factor = factor};
    if (p->type == ROPE_DYNAMIC) {
        ropes[g->rope_count].above = (uint32_t)p->original_positions;
        ropes[g->rope_count].theta = p->theta;
        ropes[g->rope_count].grow = p->factor;
    }
    return g->rope_count++;
}

void graph_embed(struct graph_builder *b, uint16_t dst, const char *name, float scale)
{
    graph_embed_rows(b, dst, name, b->config->vocab, scale);
}

void graph_embed_rows(struct graph_builder *b, uint16_t dst, const char *name, uint32_t rows,
                      float scale)
{
    struct graph_part part = {name, rows};
    uint32_t w = graph_weight(b, &part, 1, graph_width(b, dst), ".weight");
    graph_op_push(b, (struct ek_op){.kind = EK_OP_EMBED,
                                    .dst = dst,
                                    .src = dst,
                                    .weight = w,
                                    .bias = EK_NO_WEIGHT,
                                    .u.embed.scale = scale});
}

void graph_embed_positions(struct graph_builder *b, uint16_t dst, const char *name, uint32_t skip)
{
    const uint32_t rows = b->config->max_model_len, n = graph_width(b, dst);
    const struct graph_shape shape = {2, {(uint64_t)rows + skip, n}};
    const uint32_t w =
        graph_weight_one(b, name, ".weight", &shape,
                         (struct ek_weight){.dtype = b->graph->dtype, .rows = rows, .cols = n});

    if (b->error)
        return;
    b->graph->weights[w].part[0].skip = skip;
    graph_op_push(b, (struct ek_op){.kind = EK_OP_EMBED,
                                    .dst = dst,
                                    .src = dst,
                                    .weight = w,
                                    .bias = EK_NO_WEIGHT,
                                    .u.embed = {.scale = 1.0f, .by_position = true}});
}

static void norm_with(struct graph_builder *b, uint16_t dst, uint16_t src, uint32_t w,
                      struct graph_heads h)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_NORM,
                                    .dst = dst,
                                    .src = src,
                                    .weight = w,
                                    .bias = EK_NO_WEIGHT,
                                    .u.norm = {.eps = (float)b->config->rms_eps,
                                               .offset = b->config->norm_offset,
                                               .group = h.group,
                                               .first = h.first,
                                               .heads = h.heads,
                                               .centred = b->config->norm_centred}});
}

static void norm_push(struct graph_builder *b, uint16_t dst, uint16_t src, const char *name,
                      struct graph_heads h)
{
    const struct graph_part part = {name, 1}, column = {name, h.group};
    const bool bare = !name || b->config->norm_bare;

    norm_with(b, dst, src, bare ? EK_NO_WEIGHT : graph_weight(b, &part, 1, h.group, ".weight"), h);
    if (bare || !b->config->norm_bias)
        return;
    const uint32_t bias = graph_weight(b, &column, 1, 1, ".bias");
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].bias = bias;
}

void graph_norm_by(struct graph_builder *b, uint16_t dst, uint16_t src, const char *tensor)
{
    const struct graph_part part = {tensor, 1};
    const uint32_t n = graph_width(b, src);

    norm_with(b, dst, src, graph_weight(b, &part, 1, n, ""),
              (struct graph_heads){.group = n, .heads = 1});
}

void graph_norm(struct graph_builder *b, uint16_t dst, uint16_t src, const char *name)
{
    norm_push(b, dst, src, name, (struct graph_heads){.group = graph_width(b, src), .heads = 1});
}

void graph_head_norm(struct graph_builder *b, uint16_t value, const char *name,
                     struct graph_heads h)
{
    norm_push(b, value, value, name, h);
}

void graph_head_norm_unbiased(struct graph_builder *b, uint16_t value, const char *name,
                              struct graph_heads h)
{
    const struct graph_part part = {name, 1};

    norm_with(b, value, value, graph_weight(b, &part, 1, h.group, ".weight"), h);
}

void graph_head_norm_own(struct graph_builder *b, uint16_t value, const char *name,
                         struct graph_heads h)
{
    norm_with(b, value, value, graph_head_weight(b, name, h.heads, h.group), h);
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.norm.own = true;
}

void graph_norm_first(struct graph_builder *b, uint16_t value, const char *name, uint32_t group,
                      double eps)
{
    norm_push(b, value, value, name, (struct graph_heads){.group = group, .heads = 1});
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.norm.eps = (float)eps;
}

void graph_norm_groups(struct graph_builder *b, uint16_t value, const char *name, uint32_t group)
{
    const uint32_t heads = graph_width(b, value) / group;

    norm_push(b, value, value, name, (struct graph_heads){.group = group, .heads = heads});
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.norm.offset = 0.0f;
}

void graph_norm_own(struct graph_builder *b, uint16_t value, const char *name, uint32_t group)
{
    norm_push(b, value, value, name,
              (struct graph_heads){.group = graph_width(b, value), .heads = 1});
    if (b->error)
        return;
    struct ek_op *op = &b->graph->ops[b->graph->op_count - 1];
    op->u.norm.offset = 0.0f;
    op->u.norm.heads = op->u.norm.group / group;
    op->u.norm.group = group;
    op->u.norm.own = true;
}

void graph_linear_push(struct graph_builder *b, uint16_t dst, uint16_t src, uint32_t weight,
                       uint32_t bias)
{
    assert(b->error || b->graph->weights[weight].rows == graph_width(b, dst));
    graph_op_push(
        b, (struct ek_op){
               .kind = EK_OP_LINEAR, .dst = dst, .src = src, .weight = weight, .bias = bias});
}

void graph_linear(struct graph_builder *b, uint16_t dst, uint16_t src,
                  const struct graph_part *parts, uint32_t count, bool bias)
{
    uint32_t w = graph_weight(b, parts, count, graph_width(b, src), ".weight");
    uint32_t v = bias ? graph_weight(b, parts, count, 1, ".bias") : EK_NO_WEIGHT;
    graph_keep(b, w);
    graph_linear_push(b, dst, src, w, v);
}

void graph_linear_exact(struct graph_builder *b, uint16_t dst, uint16_t src,
                        const struct graph_part *parts, uint32_t count)
{
    graph_linear_push(b, dst, src, graph_weight(b, parts, count, graph_width(b, src), ".weight"),
                      EK_NO_WEIGHT);
}

void graph_rotate(struct graph_builder *b, uint16_t value, uint32_t table, uint32_t first,
                  uint32_t heads)
{
    graph_rotate_heads(b, value, table, (struct graph_heads){first, b->config->head_dim, heads});
}

void graph_rotate_heads(struct graph_builder *b, uint16_t value, uint32_t table,
                        struct graph_heads h)
{
    graph_op_push(
        b, (struct ek_op){.kind = EK_OP_ROPE,
                          .dst = value,
                          .src = value,
                          .weight = EK_NO_WEIGHT,
                          .bias = EK_NO_WEIGHT,
                          .u.rope = {.first_col = h.first,
                                     .heads = h.heads,
                                     .head_dim = h.group,
                                     .rotary_dim = b->error ? 0 : b->graph->ropes[table].count * 2,
                                     .table = table,
                                     .neighbours = b->config->neighbours}});
}

void graph_warm(struct graph_builder *b, uint16_t value, uint32_t first, uint32_t heads)
{
    const struct model_config *c = b->config;
    const struct ek_op *last = b->error ? NULL : &b->graph->ops[b->graph->op_count - 1];

    if (last && (last->kind != EK_OP_ROPE || last->dst != value ||
                 last->u.rope.first_col != first || last->u.rope.heads != heads))
        graph_op_push(b,
                      (struct ek_op){
                          .kind = EK_OP_ROPE,
                          .dst = value,
                          .src = value,
                          .weight = EK_NO_WEIGHT,
                          .bias = EK_NO_WEIGHT,
                          .u.rope = {.first_col = first, .heads = heads, .head_dim = c->head_dim}});
    if (b->error)
        return;
    struct ek_op *op = &b->graph->ops[b->graph->op_count - 1];
    op->u.rope.warm = c->warm;
    op->u.rope.warm_from = c->warm_from;
    op->u.rope.warm_every = c->warm_every;
}

/* The KV cache has those layers that attend and write. */
struct graph_kv graph_kv_of(const struct model_config *c, uint32_t layer)
{
    const struct config_kinds *k = &c->kinds;
    const bool full = !c->windowed[layer];
    const uint32_t writing = c->layers - k->shared;
    struct graph_kv kv = {.heads = full && k->kv_heads ? k->kv_heads : c->kv_heads,
                          .head_dim = full && k->head_dim ? k->head_dim : c->head_dim,
                          .reads = layer >= writing};
    uint32_t owner = kv.reads ? writing - 1 : layer;

    while (kv.reads && owner > 0 && c->windowed[owner] != c->windowed[layer])
        owner--;
    for (uint32_t i = 0; i < owner; i++)
        kv.layer += !c->recurrent[i] && !c->forward_only[i];
    return kv;
}

/* By what the numbers of an 8-bit cache were divided: a layer that reads another's has no say. */
static int graph_kv_scales(struct graph_builder *b, const struct graph_kv *kv, float *k, float *v)
{
    int r = kvscale_find(b->tensors, b->prefix, k, v, b->fault);
    for (uint32_t i = 0; r == 0 && kv->reads && i < b->graph->op_count; i++) {
        const struct ek_op *op = &b->graph->ops[i];
        if (op->kind != EK_OP_ATTENTION || op->layer != kv->layer || op->u.attention.reads)
            continue;
        *k = op->u.attention.k_scale;
        *v = op->u.attention.v_scale;
        break;
    }
    return r;
}

void graph_attention(struct graph_builder *b, uint16_t dst, uint16_t qkv, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct graph_kv kv = graph_kv_of(c, layer);
    float scale = c->attention_scale > 0 ? c->attention_scale : 1.0f / sqrtf((float)kv.head_dim);
    if (c->layer_scale > 0)
        scale /= c->layer_scale * (float)(layer + 1);
    float k = 0.0f, v = 0.0f;
    if (!b->error && b->graph->kv_f8)
        b->error = graph_kv_scales(b, &kv, &k, &v);
    const struct graph_part sinks = {"self_attn.sinks", c->q_heads};
    graph_op_push(b,
                  (struct ek_op){
                      .kind = EK_OP_ATTENTION,
                      .dst = dst,
                      .src = qkv,
                      .weight = EK_NO_WEIGHT,
                      .bias = c->sinks ? graph_weight(b, &sinks, 1, 1, "") : EK_NO_WEIGHT,
                      .layer = kv.layer,
                      .u.attention = {.q_heads = c->q_heads,
                                      .kv_heads = kv.heads,
                                      .head_dim = kv.head_dim,
                                      .reads = kv.reads,
                                      .scale = scale,
                                      .k_scale = k,
                                      .v_scale = v,
                                      .softcap = c->attention_softcap,
                                      .window = c->windowed[layer] ? c->window : 0,
                                      .chunks = c->chunks && c->windowed[layer] && c->window > 0}});
}

void graph_latent_attention(struct graph_builder *b, uint16_t dst, uint16_t q, uint16_t keys,
                            uint32_t layer)
{
    graph_attention(b, dst, q, layer);
    if (b->error)
        return;
    struct ek_op *op = &b->graph->ops[b->graph->op_count - 1];
    op->u.attention.value_dim = b->config->latent.rank;
    op->u.attention.keys = keys;
}

void graph_by_head(struct graph_builder *b, uint16_t dst, uint16_t src,
                   const struct graph_head_part *part, uint32_t rest)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_HEADS,
                                    .dst = dst,
                                    .src = src,
                                    .weight = graph_head_matrices(b, part),
                                    .bias = EK_NO_WEIGHT,
                                    .u.heads = {.count = part->heads, .rest = rest}});
}

void graph_glu(struct graph_builder *b, uint16_t dst, uint16_t src)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_GLU,
                                    .dst = dst,
                                    .src = src,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.glu.act = b->config->act});
}

void graph_add(struct graph_builder *b, uint16_t dst, uint16_t src)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_ADD,
                                    .dst = dst,
                                    .src = src,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.add.scale = b->config->residual_scale});
}

void graph_scale(struct graph_builder *b, uint16_t value, float scale, const char *tensor)
{
    const struct graph_part part = {tensor, 1};

    graph_op_push(b,
                  (struct ek_op){.kind = EK_OP_SCALE,
                                 .dst = value,
                                 .src = value,
                                 .weight = tensor ? graph_weight(b, &part, 1, 1, "") : EK_NO_WEIGHT,
                                 .bias = EK_NO_WEIGHT,
                                 .u.scale.scale = scale});
}

void graph_softcap(struct graph_builder *b, uint16_t value, float cap)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_SOFTCAP,
                                    .dst = value,
                                    .src = value,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.softcap.cap = cap});
}

void graph_head(struct graph_builder *b, uint16_t src, const char *norm, const char *embedding)
{
    const struct graph_head_names names = {norm, embedding, "lm_head", false, NULL};

    graph_head_of(b, src, &names);
}

void graph_head_of(struct graph_builder *b, uint16_t src, const struct graph_head_names *names)
{
    const struct model_config *c = b->config;
    const uint32_t width = c->embed_width > 0 ? c->embed_width : c->hidden;
    const struct graph_part project = {names->project, width};

    graph_prefix(b, "%s", "");
    if (c->embed_width > 0) { /* of all rows: only then can it be told which of it is wanted */
        const uint16_t narrow = graph_value(b, width);
        graph_linear(b, narrow, src, &project, 1, false);
        src = narrow;
    }
    uint16_t picked = graph_value(b, width);
    uint16_t normed = c->no_last_norm ? picked : graph_value(b, width);
    graph_op_push(b, (struct ek_op){.kind = EK_OP_PICK,
                                    .dst = picked,
                                    .src = src,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT});
    if (!c->no_last_norm)
        graph_norm(b, normed, picked, names->norm);
    const struct graph_part part = {c->tied ? names->embedding : names->output, c->vocab};
    const struct graph_part column = {names->output, c->vocab};
    uint32_t w = graph_weight(b, &part, 1, width, ".weight");
    uint32_t v = names->bias ? graph_weight(b, &column, 1, 1, ".bias") : EK_NO_WEIGHT;
    graph_keep_head(b, w);
    graph_op_push(b, (struct ek_op){.kind = EK_OP_LOGITS,
                                    .dst = normed,
                                    .src = normed,
                                    .weight = w,
                                    .bias = v,
                                    .u.logits.scale = c->logits_scale});
    if (c->logit_softcap > 0)
        graph_softcap(b, normed, c->logit_softcap);
}

/*
 * The builder of graphs. Rooms double; an allocation that fails sticks like any other error.
 */
#include "server/model/graph.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/memplan.h"
#include "server/model/family.h"
#include "server/model/kvscale.h"
#include "server/model/quant.h"

#define VALUES_MOST 4096u

/* Room for one more of `size` bytes; NULL after an error, which then sticks. */
static void *grow(struct graph_builder *b, void *array, uint32_t count, uint32_t *room, size_t size)
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
    g->layers = c->layers;
    g->kv_heads = c->kv_heads;
    g->head_dim = c->head_dim;
    g->hidden = c->hidden;
    g->vocab = c->vocab;
    g->max_position = c->max_model_len;
}

void graph_done(struct ek_graph *g)
{
    for (uint32_t i = 0; i < g->rope_count; i++)
        free(g->ropes[i].inv_freq);
    free(g->ropes);
    free(g->ops);
    free(g->weights);
    free(g->quants);
    free(g->value_width);
    *g = (struct ek_graph){0};
}

uint16_t graph_value(struct graph_builder *b, uint32_t width)
{
    struct ek_graph *g = b->graph;
    if (b->error)
        return 0;
    assert(width > 0 && g->value_count < VALUES_MOST);
    uint32_t *w = grow(b, g->value_width, g->value_count, &b->value_room, sizeof(*w));
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

static void op_push(struct graph_builder *b, struct ek_op op)
{
    struct ek_graph *g = b->graph;
    if (b->error)
        return;
    struct ek_op *ops = grow(b, g->ops, g->op_count, &b->op_room, sizeof(*ops));
    if (!ops)
        return;
    g->ops = ops;
    ops[g->op_count++] = op;
}

static uint32_t width_of(const struct graph_builder *b, uint16_t value)
{
    return b->error ? 0 : b->graph->value_width[value];
}

static void shape_text(const struct st_tensor *t, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < t->dims && at + 1 < bytes; i++) {
        int n = snprintf(text + at, bytes - at, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
}

struct shape {
    uint32_t dims;
    uint64_t size[3];
};

/* The tensor of that name and shape. */
static struct st_tensor *tensor_get(struct graph_builder *b, const char *name,
                                    const struct shape *s)
{
    struct st_tensor *t = st_find(b->tensors, name);
    if (!t) {
        b->error =
            ek_fault_set(b->fault, name,
                         "%s: tensor '%s' is missing; download the model again, or correct "
                         "config.json if the model has no such part",
                         b->tensors->files > 1 ? "*.safetensors" : "model.safetensors", name);
        return NULL;
    }
    const char *file = st_file_name(b->tensors, t);
    if (!t->usable) {
        b->error = ek_fault_set(b->fault, name,
                                "%s: tensor '%s' has type %s; convert the model to BF16, F16 or "
                                "F32",
                                file, name, t->type);
        return NULL;
    }
    bool fits = t->dims == s->dims;
    for (uint32_t i = 0; fits && i < s->dims; i++)
        fits = t->shape[i] == s->size[i];
    if (!fits) {
        char has[64], want[64];
        struct st_tensor asked = {.dims = (uint8_t)s->dims};
        memcpy(asked.shape, s->size, s->dims * sizeof(s->size[0]));
        shape_text(t, has, sizeof(has));
        shape_text(&asked, want, sizeof(want));
        b->error = ek_fault_set(b->fault, name,
                                "%s: tensor '%s' has shape [%s] but config.json asks for [%s]; use "
                                "the files of one model",
                                file, name, has, want);
        return NULL;
    }
    t->used = true;
    return t;
}

/* One part of a quantized weight; 1 if it is one. */
static int part_quantized(struct graph_builder *b, const char *name, uint32_t rows,
                          struct ek_weight *w)
{
    struct ek_graph *g = b->graph;
    struct ek_quant q;
    int r = quant_find(b->tensors, &b->config->quant, name, rows, w->cols, &q, b->fault);
    if (r <= 0)
        return b->error = r;
    struct ek_quant *all = grow(b, g->quants, g->quant_count, &b->quant_room, sizeof(*all));
    if (!all)
        return b->error;
    g->quants = all;
    if (w->parts == 0) {
        w->quantized = true;
        w->quant = g->quant_count;
    }
    all[g->quant_count++] = q;
    w->source = q.bits == 4 ? EK_I4 : EK_I8;
    if (q.kind == EK_QUANT_F8)
        w->source = EK_F8_E4M3;
    w->part[w->parts++] = (struct ek_weight_part){
        .file = q.numbers.file, .offset_bytes = q.numbers.offset_bytes, .rows = rows};
    w->rows += rows;
    return 1;
}

/* One part that lies in the file as it is. */
static int part_plain(struct graph_builder *b, const char *name, uint32_t rows, bool vector,
                      struct ek_weight *w)
{
    const struct shape shape =
        vector ? (struct shape){1, {(uint64_t)rows * w->cols}} : (struct shape){2, {rows, w->cols}};
    const struct st_tensor *t = tensor_get(b, name, &shape);
    if (!t)
        return b->error;
    if (w->parts == 0)
        w->source = t->dtype;
    if (t->dtype != w->source || w->quantized)
        return b->error = ek_fault_set(
                   b->fault, name,
                   "%s: tensor '%s' has type %s, unlike '%s' which it is joined with; convert "
                   "the model to one type",
                   st_file_name(b->tensors, t), name, t->type, w->name);
    w->rows += rows;
    w->part[w->parts++] =
        (struct ek_weight_part){.file = t->file, .offset_bytes = t->begin, .rows = rows};
    return 0;
}

static int weight_fill(struct graph_builder *b, const struct graph_part *parts, uint32_t count,
                       const char *suffix, struct ek_weight *w)
{
    bool bias = strcmp(suffix, ".bias") == 0;
    bool vector = bias || (count == 1 && parts[0].rows == 1);
    w->dtype = vector ? EK_F32 : b->graph->dtype;
    for (uint32_t i = 0; i < count; i++) {
        char name[sizeof(w->name)] = "";
        int n = snprintf(name, sizeof(name), "%s%s", b->prefix, parts[i].name);
        assert(n > 0 && (size_t)n + strlen(suffix) < sizeof(name)); /* families see to it */
        int r = vector || (i > 0 && !w->quantized) ? 0 : part_quantized(b, name, parts[i].rows, w);
        if (r < 0)
            return r;
        (void)memcpy(name + n, suffix, strlen(suffix) + 1);
        if (i == 0)
            memcpy(w->name, name, sizeof(w->name));
        if (r == 0 && part_plain(b, name, parts[i].rows, vector, w) < 0)
            return b->error;
    }
    return 0;
}

/* Adds a weight, or finds it if it is there. */
static uint32_t weight_push(struct graph_builder *b, const struct ek_weight *w)
{
    struct ek_graph *g = b->graph;
    for (uint32_t i = 0; i < g->weight_count; i++) {
        const struct ek_weight *o = &g->weights[i];
        if (o->parts == w->parts && o->part[0].file == w->part[0].file &&
            o->part[0].offset_bytes == w->part[0].offset_bytes && o->rows == w->rows)
            return i;
    }
    struct ek_weight *all = grow(b, g->weights, g->weight_count, &b->weight_room, sizeof(*all));
    if (!all)
        return EK_NO_WEIGHT;
    g->weights = all;
    all[g->weight_count] = *w;
    b->parameters += (uint64_t)w->rows * w->cols;
    return g->weight_count++;
}

uint32_t graph_weight(struct graph_builder *b, const struct graph_part *parts, uint32_t count,
                      uint32_t cols, const char *suffix)
{
    struct ek_weight w = {.cols = cols};
    assert(count > 0 && count <= EK_MOST_PARTS);
    if (b->error || weight_fill(b, parts, count, suffix, &w) < 0)
        return EK_NO_WEIGHT;
    return weight_push(b, &w);
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
    struct graph_part part = {name, b->config->vocab};
    uint32_t w = graph_weight(b, &part, 1, width_of(b, dst), ".weight");
    op_push(b, (struct ek_op){.kind = EK_OP_EMBED,
                              .dst = dst,
                              .src = dst,
                              .weight = w,
                              .bias = EK_NO_WEIGHT,
                              .u.embed.scale = scale});
}

static void norm_push(struct graph_builder *b, uint16_t dst, uint16_t src, const char *name,
                      struct graph_heads h)
{
    struct graph_part part = {name, 1};
    uint32_t w = graph_weight(b, &part, 1, h.group, ".weight");
    op_push(b, (struct ek_op){.kind = EK_OP_NORM,
                              .dst = dst,
                              .src = src,
                              .weight = w,
                              .bias = EK_NO_WEIGHT,
                              .u.norm = {.eps = (float)b->config->rms_eps,
                                         .offset = b->config->norm_offset,
                                         .group = h.group,
                                         .first = h.first,
                                         .heads = h.heads}});
}

void graph_norm(struct graph_builder *b, uint16_t dst, uint16_t src, const char *name)
{
    norm_push(b, dst, src, name, (struct graph_heads){.group = width_of(b, src), .heads = 1});
}

void graph_head_norm(struct graph_builder *b, uint16_t value, const char *name,
                     struct graph_heads h)
{
    norm_push(b, value, value, name, h);
}

/* The form in which all parts of a quantized weight can be kept. */
static bool form_of(const struct ek_graph *g, const struct ek_weight *w, enum ek_dtype *ret_dtype,
                    uint32_t *ret_group)
{
    for (uint32_t i = 0; i < w->parts; i++) {
        enum ek_dtype dtype;
        uint32_t group;
        if (!ek_quant_form(&g->quants[w->quant + i], &dtype, &group))
            return false;
        if (i > 0 && (group != *ret_group || (dtype == EK_F8_E4M3) != (*ret_dtype == EK_F8_E4M3)))
            return false;
        *ret_group = group;
        *ret_dtype = i > 0 && *ret_dtype == EK_I8 ? EK_I8 : dtype;
    }
    return true;
}

/* Decides how a matrix that only products read is kept. */
static void keep(struct graph_builder *b, uint32_t index)
{
    if (b->error)
        return;
    struct ek_weight *w = &b->graph->weights[index];
    struct model_weights none = {0}, *count = b->weights ? b->weights : &none;
    enum ek_dtype dtype = w->dtype;
    uint32_t group = 0;
    bool kept = false;
    if (w->quantized)
        kept = form_of(b->graph, w, &dtype, &group) &&
               (!b->wide_groups || group == 0 || (group >= 32 && (group & (group - 1)) == 0));
    if (!w->quantized && b->load != QUANT_AS_IT_IS) {
        dtype = quant_load_form(b->load, w->cols, b->wide_groups, &group);
        kept = true;
    }
    count->matrices++;
    count->kept += kept;
    count->unpacked += w->quantized && !kept;
    if (kept) {
        w->dtype = dtype;
        w->group = group;
    }
}

/* The output layer is read whole for each token. Quantized while loading it takes 8 bits, whatever
 * the layers take, and more scales: its errors reach the answer at once. */
static void keep_head(struct graph_builder *b, uint32_t index)
{
    const enum quant_load load = b->load == QUANT_LOAD_INT4 ? QUANT_LOAD_INT8 : b->load;

    if (b->error || b->load == QUANT_AS_IT_IS || b->graph->weights[index].quantized)
        return;
    struct ek_weight *w = &b->graph->weights[index];
    w->dtype = quant_load_form(load, w->cols, b->wide_groups, &w->group);
    w->group = w->group > 0 ? EK_HEAD_GROUP : 0;
    if (b->weights) {
        b->weights->matrices++;
        b->weights->kept++;
    }
}

static void linear_push(struct graph_builder *b, uint16_t dst, uint16_t src, uint32_t weight,
                        uint32_t bias)
{
    assert(b->error || b->graph->weights[weight].rows == width_of(b, dst));
    op_push(b, (struct ek_op){
                   .kind = EK_OP_LINEAR, .dst = dst, .src = src, .weight = weight, .bias = bias});
}

void graph_linear(struct graph_builder *b, uint16_t dst, uint16_t src,
                  const struct graph_part *parts, uint32_t count, bool bias)
{
    uint32_t w = graph_weight(b, parts, count, width_of(b, src), ".weight");
    uint32_t v = bias ? graph_weight(b, parts, count, 1, ".bias") : EK_NO_WEIGHT;
    keep(b, w);
    linear_push(b, dst, src, w, v);
}

void graph_rotate(struct graph_builder *b, uint16_t value, uint32_t table, uint32_t first,
                  uint32_t heads)
{
    op_push(b,
            (struct ek_op){.kind = EK_OP_ROPE,
                           .dst = value,
                           .src = value,
                           .weight = EK_NO_WEIGHT,
                           .bias = EK_NO_WEIGHT,
                           .u.rope = {.first_col = first,
                                      .heads = heads,
                                      .head_dim = b->config->head_dim,
                                      .rotary_dim = b->error ? 0 : b->graph->ropes[table].count * 2,
                                      .table = table}});
}

void graph_attention(struct graph_builder *b, uint16_t dst, uint16_t qkv, uint32_t layer)
{
    const struct model_config *c = b->config;
    float scale = c->attention_scale > 0 ? c->attention_scale : 1.0f / sqrtf((float)c->head_dim);
    float k = 0.0f, v = 0.0f;
    if (!b->error && b->graph->kv_f8)
        b->error = kvscale_find(b->tensors, b->prefix, &k, &v, b->fault);
    op_push(b, (struct ek_op){.kind = EK_OP_ATTENTION,
                              .dst = dst,
                              .src = qkv,
                              .weight = EK_NO_WEIGHT,
                              .bias = EK_NO_WEIGHT,
                              .layer = layer,
                              .u.attention = {.q_heads = c->q_heads,
                                              .kv_heads = c->kv_heads,
                                              .head_dim = c->head_dim,
                                              .scale = scale,
                                              .k_scale = k,
                                              .v_scale = v,
                                              .softcap = c->attention_softcap,
                                              .window = c->windowed[layer] ? c->window : 0}});
}

/* Matrix [rows, cols] number `index` of a tensor of three dimensions, from row `skip` of each. */
static void slice_push(struct graph_builder *b, const struct st_tensor *t, uint32_t index,
                       uint32_t skip, uint32_t rows)
{
    uint32_t cols = (uint32_t)t->shape[2];
    uint64_t row_bytes = (uint64_t)cols * ek_dtype_bits(t->dtype) / 8;
    struct ek_weight w = {.source = t->dtype,
                          .dtype = b->graph->dtype,
                          .rows = rows,
                          .cols = cols,
                          .parts = 1,
                          .part = {{.file = t->file, .rows = rows}}};
    w.part[0].offset_bytes = t->begin + (index * t->shape[1] + skip) * row_bytes;
    (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", t->name, index);
    if (!b->error)
        keep(b, weight_push(b, &w));
}

/* The matrices of all experts of one kind, adjacent; the index of the first. */
static uint32_t expert_matrices(struct graph_builder *b, const char *format, uint32_t rows,
                                uint32_t cols)
{
    uint32_t first = b->graph->weight_count;
    for (uint32_t e = 0; e < b->config->experts && !b->error; e++) {
        char name[80];
        struct graph_part part = {name, rows};
        const char *hole = strstr(format, "%u");
        assert(hole);
        (void)snprintf(name, sizeof(name), "%.*s%u%s", (int)(hole - format), format, e, hole + 2);
        keep(b, graph_weight(b, &part, 1, cols, ".weight"));
    }
    return first;
}

/* The same from one tensor: rows [skip, skip + rows) of [experts, all, cols]. */
static uint32_t expert_slices(struct graph_builder *b, const char *suffix, const struct shape *s,
                              uint32_t skip, uint32_t rows)
{
    char name[sizeof(((struct ek_weight *)0)->name)];
    uint32_t first = b->graph->weight_count;
    int n = snprintf(name, sizeof(name), "%s%s.weight", b->prefix, suffix);
    assert(n > 0 && (size_t)n < sizeof(name));
    const struct st_tensor *t = b->error ? NULL : tensor_get(b, name, s);
    for (uint32_t e = 0; t && e < b->config->experts; e++)
        slice_push(b, t, e, skip, rows);
    return first;
}

void graph_experts(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t router,
                   const struct graph_expert_names *names)
{
    const struct model_config *c = b->config;
    const uint32_t inner = c->expert_intermediate, n = c->hidden;
    const struct graph_part gate = {names->router, c->experts};
    struct ek_op op = {.kind = EK_OP_EXPERTS,
                       .dst = dst,
                       .src = src,
                       .bias = EK_NO_WEIGHT,
                       .u.experts = {.router = router,
                                     .count = (uint16_t)c->experts,
                                     .top = (uint16_t)c->experts_per_token,
                                     .normalise = c->normalise_experts,
                                     .act = c->act}};
    /* The router is small and decides: it stays as it is. */
    linear_push(b, router, src, graph_weight(b, &gate, 1, n, ".weight"), EK_NO_WEIGHT);
    if (names->gate) {
        op.weight = expert_matrices(b, names->gate, inner, n);
        op.u.experts.up = expert_matrices(b, names->up, inner, n);
        op.u.experts.down = expert_matrices(b, names->down, n, inner);
    } else {
        const struct shape in = {3, {c->experts, 2ull * inner, n}};
        const struct shape out = {3, {c->experts, n, inner}};
        op.weight = expert_slices(b, names->all_in, &in, 0, inner);
        op.u.experts.up = expert_slices(b, names->all_in, &in, inner, inner);
        op.u.experts.down = expert_slices(b, names->all_out, &out, 0, n);
    }
    op_push(b, op);
}

void graph_glu(struct graph_builder *b, uint16_t dst, uint16_t src)
{
    op_push(b, (struct ek_op){.kind = EK_OP_GLU,
                              .dst = dst,
                              .src = src,
                              .weight = EK_NO_WEIGHT,
                              .bias = EK_NO_WEIGHT,
                              .u.glu.act = b->config->act});
}

void graph_add(struct graph_builder *b, uint16_t dst, uint16_t src)
{
    op_push(b, (struct ek_op){.kind = EK_OP_ADD,
                              .dst = dst,
                              .src = src,
                              .weight = EK_NO_WEIGHT,
                              .bias = EK_NO_WEIGHT,
                              .u.add.scale = b->config->residual_scale});
}

void graph_head(struct graph_builder *b, uint16_t src, const char *norm, const char *embedding)
{
    const struct model_config *c = b->config;
    uint16_t picked = graph_value(b, c->hidden);
    uint16_t normed = graph_value(b, c->hidden);
    op_push(b, (struct ek_op){.kind = EK_OP_PICK,
                              .dst = picked,
                              .src = src,
                              .weight = EK_NO_WEIGHT,
                              .bias = EK_NO_WEIGHT});
    graph_norm(b, normed, picked, norm);
    struct graph_part part = {c->tied ? embedding : "lm_head", c->vocab};
    uint32_t w = graph_weight(b, &part, 1, c->hidden, ".weight");
    keep_head(b, w);
    op_push(b, (struct ek_op){.kind = EK_OP_LOGITS,
                              .dst = normed,
                              .src = normed,
                              .weight = w,
                              .bias = EK_NO_WEIGHT,
                              .u.logits.scale = c->logits_scale});
    if (c->logit_softcap > 0)
        op_push(b, (struct ek_op){.kind = EK_OP_SOFTCAP,
                                  .dst = normed,
                                  .src = normed,
                                  .weight = EK_NO_WEIGHT,
                                  .bias = EK_NO_WEIGHT,
                                  .u.softcap.cap = c->logit_softcap});
}

/* Left in many checkpoints by what wrote them, computed or tied here. */
static bool harmless(const struct model_config *c, const char *name)
{
    static const char INV_FREQ[] = "rotary_emb.inv_freq";
    size_t len = strlen(name), tail = sizeof(INV_FREQ) - 1;
    return (len >= tail && strcmp(name + len - tail, INV_FREQ) == 0) ||
           (c->quant.method != QUANT_NONE && quant_harmless(name)) ||
           (c->tied && strcmp(name, "lm_head.weight") == 0);
}

/* Tools for GPTQ write a bias of zeros for matrices that have none. */
static bool zero_bias(const struct graph_builder *b, const struct st_tensor *t)
{
    size_t len = strlen(t->name);
    if (b->config->quant.method != QUANT_GPTQ || len < 5 || strcmp(t->name + len - 5, ".bias") != 0)
        return false;
    const char *bytes = b->tensors->file[t->file].data;
    uint64_t at = t->begin;
    while (at < t->end && bytes[at] == 0)
        at++;
    return at == t->end;
}

int graph_check_unused(struct graph_builder *b)
{
    const struct st_tensor *first = NULL;
    uint32_t extra = 0;
    if (b->error)
        return b->error;
    for (uint32_t i = 0; i < b->tensors->count; i++) {
        const struct st_tensor *t = &b->tensors->tensor[i];
        if (t->used || harmless(b->config, t->name) || zero_bias(b, t))
            continue;
        first = first ? first : t;
        extra++;
    }
    if (!first)
        return 0;
    b->error = ek_fault_set(b->fault, first->name,
                            "%s: tensor '%.128s' (one of %u) has no place in a %s of this "
                            "configuration; config.json does not belong to these weights, download "
                            "both again",
                            st_file_name(b->tensors, first), first->name, extra,
                            b->config->family->architecture);
    return b->error;
}

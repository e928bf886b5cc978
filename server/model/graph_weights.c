/*
 * Weights of a graph: found by name among the tensors, their type and shape checked, joined where a
 * product reads several as one, and in which form each is kept. Called by graph.c and its parts.
 */
#include "server/model/graph_weights.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/memplan.h"
#include "server/model/quant.h"

static void shape_text(const struct st_tensor *t, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < t->dims && at + 1 < bytes; i++) {
        int n = snprintf(text + at, bytes - at, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
}

struct st_tensor *graph_tensor_any(struct graph_builder *b, const char *name,
                                   const struct graph_shape *s)
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

struct st_tensor *graph_tensor(struct graph_builder *b, const char *name,
                               const struct graph_shape *s)
{
    struct st_tensor *t = st_find(b->tensors, name);
    if (!t || t->usable)
        return graph_tensor_any(b, name, s);
    b->error = ek_fault_set(b->fault, name,
                            "%s: tensor '%s' has type %s; convert the model to BF16, F16 or F32",
                            st_file_name(b->tensors, t), name, t->type);
    return NULL;
}

int graph_quant_push(struct graph_builder *b, const struct ek_quant *q, uint32_t rows,
                     struct ek_weight *w)
{
    struct ek_graph *g = b->graph;
    struct ek_quant *all = graph_grow(b, g->quants, g->quant_count, &b->quant_room, sizeof(*all));
    if (!all)
        return b->error;
    g->quants = all;
    if (w->parts == 0) {
        w->quantized = true;
        w->quant = g->quant_count;
        w->input_most = b->config->quant.input_most;
    }
    all[g->quant_count++] = *q;
    w->source = q->bits == 4 ? EK_I4 : EK_I8;
    if (q->kind == EK_QUANT_F8)
        w->source = EK_F8_E4M3;
    w->part[w->parts++] = (struct ek_weight_part){
        .file = q->numbers.file, .offset_bytes = q->numbers.offset_bytes, .rows = rows};
    w->rows += rows;
    return 0;
}

/* One part of a quantized weight; 1 if it is one. */
static int part_quantized(struct graph_builder *b, const char *name, uint32_t rows,
                          struct ek_weight *w)
{
    struct ek_quant q;
    int r = quant_find(b->tensors, &b->config->quant, name, rows, w->cols, &q, b->fault);
    if (r <= 0)
        return b->error = r;
    float scale = 0.0f;
    bool rounds = quant_rounds_input(b->tensors, &b->config->quant, &q, name, &scale);
    if (w->parts == 0)
        w->rounds_input = rounds;
    /* parts of one product round their inputs alike: with the widest of their scales */
    w->rounds_input = w->rounds_input && rounds;
    w->input_scale = scale > w->input_scale ? scale : w->input_scale;
    r = graph_quant_push(b, &q, rows, w);
    return r < 0 ? r : 1;
}

/* One part that lies in the file as it is. */
static int part_plain(struct graph_builder *b, const char *name, uint32_t rows, bool vector,
                      struct ek_weight *w)
{
    const struct graph_shape shape = vector ? (struct graph_shape){1, {(uint64_t)rows * w->cols}}
                                            : (struct graph_shape){2, {rows, w->cols}};
    const struct graph_shape row = {2, {1, shape.size[0]}}, turned = {2, {w->cols, rows}};
    const bool lies_turned = b->turned && !vector;
    const struct st_tensor *of = vector ? st_find(b->tensors, name) : NULL;
    const bool is_row = of && of->dims == 2 && of->shape[0] == 1;
    const struct st_tensor *t = graph_tensor(b, name,
                                             is_row        ? &row
                                             : lies_turned ? &turned
                                                           : &shape);
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
    assert(!lies_turned || w->parts == 0); /* families see to it */
    w->row_step = lies_turned ? 1 : 0;
    w->col_step = lies_turned ? rows : 0;
    w->rows += rows;
    w->part[w->parts++] =
        (struct ek_weight_part){.file = t->file, .offset_bytes = t->begin, .rows = rows};
    return 0;
}

int graph_weight_fill(struct graph_builder *b, const struct graph_part *parts, uint32_t count,
                      const char *suffix, struct ek_weight *w)
{
    bool bias = strcmp(suffix, ".weight") != 0;
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

uint32_t graph_weight_push(struct graph_builder *b, const struct ek_weight *w)
{
    struct ek_graph *g = b->graph;
    for (uint32_t i = 0; i < g->weight_count; i++) {
        const struct ek_weight *o = &g->weights[i];
        if (o->parts == w->parts && o->part[0].file == w->part[0].file &&
            o->part[0].offset_bytes == w->part[0].offset_bytes &&
            o->part[0].skip == w->part[0].skip && o->rows == w->rows && o->row_step == w->row_step)
            return i;
    }
    struct ek_weight *all =
        graph_grow(b, g->weights, g->weight_count, &b->weight_room, sizeof(*all));
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
    if (b->error || graph_weight_fill(b, parts, count, suffix, &w) < 0)
        return EK_NO_WEIGHT;
    return graph_weight_push(b, &w);
}

uint32_t graph_weight_one(struct graph_builder *b, const char *name, const char *suffix,
                          const struct graph_shape *s, struct ek_weight w)
{
    if (b->error)
        return EK_NO_WEIGHT;
    int n = snprintf(w.name, sizeof(w.name), "%s%s%s", b->prefix, name, suffix);
    assert(n > 0 && (size_t)n < sizeof(w.name));
    const struct st_tensor *t = graph_tensor(b, w.name, s);
    if (!t)
        return EK_NO_WEIGHT;
    w.source = t->dtype;
    w.parts = 1;
    w.part[0] = (struct ek_weight_part){.file = t->file, .offset_bytes = t->begin, .rows = w.rows};
    return graph_weight_push(b, &w);
}

uint32_t graph_conv_weight(struct graph_builder *b, const char *name, uint32_t channels,
                           uint32_t kernel)
{
    const struct graph_shape shape = {3, {channels, 1, kernel}};

    return graph_weight_one(
        b, name, ".weight", &shape,
        (struct ek_weight){
            .dtype = EK_F32, .rows = kernel, .cols = channels, .row_step = 1, .col_step = kernel});
}

uint32_t graph_head_weight(struct graph_builder *b, const char *name, uint32_t heads,
                           uint32_t group)
{
    const struct graph_shape shape = {2, {heads, group}};

    return graph_weight_one(b, name, ".weight", &shape,
                            (struct ek_weight){.dtype = EK_F32, .rows = 1, .cols = heads * group});
}

/* The form in which all parts of a quantized weight can be kept. */
static bool weight_form(const struct ek_graph *g, const struct ek_weight *w,
                        enum ek_dtype *ret_dtype, uint32_t *ret_group)
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

void graph_keep(struct graph_builder *b, uint32_t index)
{
    if (b->error)
        return;
    struct ek_weight *w = &b->graph->weights[index];
    struct model_weights none = {0}, *count = b->weights ? b->weights : &none;
    enum ek_dtype dtype = w->dtype;
    uint32_t group = 0;
    bool kept = false;
    if (w->quantized && w->row_step == 0)
        kept = weight_form(b->graph, w, &dtype, &group) &&
               (!b->wide_groups || group == 0 || (group >= 32 && (group & (group - 1)) == 0));
    if (!w->quantized && b->load != QUANT_AS_IT_IS) {
        dtype = quant_load_form(b->load, w->cols, b->wide_groups, &group);
        kept = true;
    }
    if (kept && dtype == EK_F4_E2M1 && b->wide_groups)
        dtype = EK_I8; /* as exact */
    count->matrices++;
    count->kept += kept;
    count->unpacked += w->quantized && !kept;
    if (kept) {
        w->dtype = dtype;
        w->group = group;
    }
    w->rounds_input =
        w->rounds_input && kept && (group == 0 || (dtype == EK_F8_E4M3 && group == 128));
    count->rounding += w->rounds_input;
    count->rounds_f8 = count->rounds_f8 || (w->rounds_input && dtype == EK_F8_E4M3);
}

void graph_keep_head(struct graph_builder *b, uint32_t index)
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

/*
 * Weights of a graph: found by name among the tensors, their type and shape checked, joined where a
 * product reads several as one, and in which form each is kept; at the end whether any tensor was
 * left over.
 */
#include "server/model/graph_weights.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/memplan.h"
#include "server/model/family.h"
#include "server/model/quant.h"

#define WEIGHT_NAME sizeof(((struct ek_weight *)0)->name)

static void shape_text(const struct st_tensor *t, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < t->dims && at + 1 < bytes; i++) {
        int n = snprintf(text + at, bytes - at, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
}

/* The tensor of that name and shape, of any type. */
static struct st_tensor *tensor_find(struct graph_builder *b, const char *name,
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

static struct st_tensor *tensor_get(struct graph_builder *b, const char *name,
                                    const struct graph_shape *s)
{
    struct st_tensor *t = st_find(b->tensors, name);
    if (!t || t->usable)
        return tensor_find(b, name, s);
    b->error = ek_fault_set(b->fault, name,
                            "%s: tensor '%s' has type %s; convert the model to BF16, F16 or F32",
                            st_file_name(b->tensors, t), name, t->type);
    return NULL;
}

/* One more part of a weight, which is quantized. */
static int quant_push(struct graph_builder *b, const struct ek_quant *q, uint32_t rows,
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
    r = quant_push(b, &q, rows, w);
    return r < 0 ? r : 1;
}

/* One part that lies in the file as it is. */
static int part_plain(struct graph_builder *b, const char *name, uint32_t rows, bool vector,
                      struct ek_weight *w)
{
    const struct graph_shape shape = vector ? (struct graph_shape){1, {(uint64_t)rows * w->cols}}
                                            : (struct graph_shape){2, {rows, w->cols}};
    const struct graph_shape row = {2, {1, shape.size[0]}};
    const struct st_tensor *of = vector ? st_find(b->tensors, name) : NULL;
    const struct st_tensor *t =
        tensor_get(b, name, of && of->dims == 2 && of->shape[0] == 1 ? &row : &shape);
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

/* Adds a weight, or finds it if it is there. */
static uint32_t weight_push(struct graph_builder *b, const struct ek_weight *w)
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
    if (b->error || weight_fill(b, parts, count, suffix, &w) < 0)
        return EK_NO_WEIGHT;
    return weight_push(b, &w);
}

uint32_t graph_conv_weight(struct graph_builder *b, const char *name, uint32_t channels,
                           uint32_t kernel)
{
    const struct graph_shape shape = {3, {channels, 1, kernel}};
    char full[WEIGHT_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    int n = snprintf(full, sizeof(full), "%s%s.weight", b->prefix, name);
    assert(n > 0 && (size_t)n < sizeof(full));
    const struct st_tensor *t = tensor_get(b, full, &shape);
    if (!t)
        return EK_NO_WEIGHT;
    struct ek_weight w = {.source = t->dtype,
                          .dtype = EK_F32,
                          .rows = kernel,
                          .cols = channels,
                          .row_step = 1,
                          .col_step = kernel,
                          .parts = 1,
                          .part = {{.file = t->file, .offset_bytes = t->begin, .rows = kernel}}};
    (void)memcpy(w.name, full, sizeof(w.name));
    return weight_push(b, &w);
}

uint32_t graph_head_weight(struct graph_builder *b, const char *name, uint32_t heads,
                           uint32_t group)
{
    const struct graph_shape shape = {2, {heads, group}};
    char full[WEIGHT_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    int n = snprintf(full, sizeof(full), "%s%s.weight", b->prefix, name);
    assert(n > 0 && (size_t)n < sizeof(full));
    const struct st_tensor *t = tensor_get(b, full, &shape);
    if (!t)
        return EK_NO_WEIGHT;
    struct ek_weight w = {.source = t->dtype,
                          .dtype = EK_F32,
                          .rows = 1,
                          .cols = heads * group,
                          .parts = 1,
                          .part = {{.file = t->file, .offset_bytes = t->begin, .rows = 1}}};
    (void)memcpy(w.name, full, sizeof(w.name));
    return weight_push(b, &w);
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
        kept = form_of(b->graph, w, &dtype, &group) &&
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

static uint64_t blocks_in(uint64_t count, uint64_t block)
{
    return count / block + (count % block != 0);
}

/* Scales of experts that lie in one tensor of E4M3, in NAME_scale_inv or NAME_scale: for each
 * expert one, two of its halves, one for each row, or one for each block. */
static const struct st_tensor *slice_scales(struct graph_builder *b, const struct st_tensor *t,
                                            struct ek_quant *q)
{
    const struct config_quant_params *p = &b->config->quant;
    char name[160];

    (void)snprintf(name, sizeof(name), "%.140s_scale_inv", t->name);
    struct st_tensor *s = st_find(b->tensors, name);
    if (!s) {
        (void)snprintf(name, sizeof(name), "%.140s_scale", t->name);
        s = st_find(b->tensors, name);
    }
    const uint64_t rows = s && s->dims == 3 ? s->shape[1] : 0, cols = rows ? s->shape[2] : 0;
    if (rows == blocks_in(q->rows, p->block_rows) && cols == blocks_in(q->cols, p->block_cols)) {
        q->block_rows = p->block_rows;
        q->block_cols = p->block_cols;
    } else if (cols == 1 && (rows == 1 || rows == q->rows || (rows == 2 && q->rows % 2 == 0))) {
        q->block_rows = (uint32_t)(q->rows / rows);
        q->block_cols = q->cols;
    } else {
        s = NULL;
    }
    if (s && s->usable && s->shape[0] == t->shape[0]) {
        s->used = true;
        return s;
    }
    b->error = ek_fault_set(b->fault, t->name,
                            "%s: tensor '%s' has experts of F8_E4M3, but no scales that fit lie "
                            "beside it as '%s'; use the files of one model",
                            st_file_name(b->tensors, t), t->name, name);
    return NULL;
}

/* Matrix [rows, cols] number `index` of experts of E4M3, from row `skip` of each. */
static void slice_push_f8(struct graph_builder *b, const struct st_tensor *t, uint32_t index,
                          uint32_t skip, uint32_t rows)
{
    struct ek_quant q = {.kind = EK_QUANT_F8,
                         .rows = (uint32_t)t->shape[1],
                         .cols = (uint32_t)t->shape[2],
                         .bits = 8,
                         .zeros.file = UINT32_MAX,
                         .groups.file = UINT32_MAX};
    const struct st_tensor *s = slice_scales(b, t, &q);
    if (!s)
        return;
    const uint64_t scales = s->shape[1] * s->shape[2] * (ek_dtype_bits(s->dtype) / 8);
    q.numbers = (struct ek_quant_range){
        .file = t->file, .offset_bytes = t->begin + index * t->shape[1] * t->shape[2]};
    q.scales = (struct ek_quant_range){
        .file = s->file, .dtype = s->dtype, .offset_bytes = s->begin + index * scales};
    struct ek_weight w = {.cols = q.cols, .dtype = b->graph->dtype};
    (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", t->name, index);
    if (quant_push(b, &q, rows, &w) < 0)
        return;
    w.part[0].skip = skip;
    graph_keep(b, weight_push(b, &w));
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
        graph_keep(b, weight_push(b, &w));
}

uint32_t graph_head_matrices(struct graph_builder *b, const struct graph_head_part *part)
{
    const uint32_t first = b->graph->weight_count;
    const struct graph_part whole = {part->name, part->heads * part->step};
    struct ek_weight all = {.cols = part->cols};
    if (b->error || weight_fill(b, &whole, 1, ".weight", &all) < 0)
        return EK_NO_WEIGHT;
    const uint64_t elem = ek_dtype_bits(all.source) / 8;
    all.rounds_input = false; /* no backend does so */
    for (uint32_t h = 0; h < part->heads && !b->error; h++) {
        const uint32_t row = h * part->step + part->first;
        struct ek_weight w = all;
        w.rows = part->turned ? part->cols : part->rows;
        w.cols = part->turned ? part->rows : part->cols;
        w.row_step = part->turned ? 1 : 0;
        w.col_step = part->turned ? part->cols : 0;
        w.part[0].rows = w.rows;
        w.part[0].skip = all.quantized ? row : 0;
        w.part[0].offset_bytes += all.quantized ? 0 : (uint64_t)row * part->cols * elem;
        (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", all.name, h);
        graph_keep(b, weight_push(b, &w));
    }
    return first;
}

uint32_t graph_expert_matrices(struct graph_builder *b, const char *format, uint32_t rows,
                               uint32_t cols)
{
    uint32_t first = b->graph->weight_count;
    for (uint32_t e = 0; e < b->config->experts && !b->error; e++) {
        char name[80];
        struct graph_part part = {name, rows};
        const char *hole = strstr(format, "%u");
        assert(hole);
        (void)snprintf(name, sizeof(name), "%.*s%u%s", (int)(hole - format), format, e, hole + 2);
        const uint32_t w = graph_weight(b, &part, 1, cols, ".weight");
        if (!b->error)
            b->graph->weights[w].rounds_input = false; /* no backend does so */
        graph_keep(b, w);
    }
    return first;
}

uint32_t graph_expert_slices(struct graph_builder *b, const char *suffix,
                             const struct graph_shape *s, uint32_t skip, uint32_t rows)
{
    char name[WEIGHT_NAME], plain[WEIGHT_NAME];
    uint32_t first = b->graph->weight_count;
    int n = snprintf(name, sizeof(name), "%s%s.weight", b->prefix, suffix);
    assert(n > 0 && (size_t)n < sizeof(name));
    (void)snprintf(plain, sizeof(plain), "%s%s", b->prefix, suffix);
    if (!b->error && st_find(b->tensors, plain))
        memcpy(name, plain, sizeof(name));
    const struct st_tensor *is = b->error ? NULL : st_find(b->tensors, name);
    const bool f8 = is && b->config->quant.method != QUANT_NONE && strcmp(is->type, "F8_E4M3") == 0;
    const struct st_tensor *t = b->error ? NULL
                                : f8     ? tensor_find(b, name, s)
                                         : tensor_get(b, name, s);
    for (uint32_t e = 0; t && !b->error && e < b->config->experts; e++)
        (f8 ? slice_push_f8 : slice_push)(b, t, e, skip, rows);
    return first;
}

bool graph_experts_joined(const struct graph_builder *b, const struct graph_expert_names *names)
{
    char name[WEIGHT_NAME];

    if (b->error || !names->all_in)
        return false;
    int n = snprintf(name, sizeof(name), "%s%s", b->prefix, names->all_in);
    assert(n > 0 && (size_t)n < sizeof(name));
    return st_find(b->tensors, name) != NULL;
}

static void lane_name(const struct graph_builder *b, const struct graph_lane *l, const char *end,
                      char name[WEIGHT_NAME])
{
    int n = snprintf(name, WEIGHT_NAME, "%s%s%s", b->prefix, l->name, end);
    assert(n > 0 && (size_t)n < WEIGHT_NAME);
}

/* One of the two tensors of blocks. */
static const struct st_tensor *lane_tensor(struct graph_builder *b, const struct graph_lane *l,
                                           const char *end, const struct graph_shape *s)
{
    char name[WEIGHT_NAME];
    lane_name(b, l, end, name);
    struct st_tensor *t = tensor_find(b, name, s);
    if (!t || strcmp(t->type, "U8") == 0)
        return t;
    b->error =
        ek_fault_set(b->fault, name,
                     "%s: tensor '%s' has type %s, but blocks of MXFP4 and their scales are of U8; "
                     "download the model again",
                     st_file_name(b->tensors, t), name, t->type);
    return NULL;
}

static void blocks_push(struct graph_builder *b, const struct graph_lane *l)
{
    const uint64_t all = l->all, groups = l->cols / EK_MXFP4_GROUP;
    const struct graph_shape shape = {4, {b->config->experts, all, groups, EK_MXFP4_GROUP / 2}};
    const struct graph_shape powers = {3, {b->config->experts, all, groups}};
    if (l->cols % EK_MXFP4_GROUP != 0)
        b->error = ek_fault_set(b->fault, "intermediate_size",
                                "config.json: blocks of MXFP4 have %u columns, and experts have "
                                "%u, which is no multiple of it; correct hidden_size or "
                                "intermediate_size",
                                EK_MXFP4_GROUP, l->cols);
    const struct st_tensor *t = b->error ? NULL : lane_tensor(b, l, "_blocks", &shape);
    const struct st_tensor *s = t ? lane_tensor(b, l, "_scales", &powers) : NULL;
    for (uint32_t e = 0; s && e < b->config->experts && !b->error; e++) {
        const uint64_t row = e * all + l->first;
        struct ek_quant q = {.kind = EK_QUANT_MXFP4,
                             .rows = l->rows,
                             .cols = l->cols,
                             .bits = 4,
                             .block_rows = 1,
                             .block_cols = EK_MXFP4_GROUP,
                             .row_step = l->step,
                             .zeros.file = UINT32_MAX,
                             .groups.file = UINT32_MAX};
        q.numbers = (struct ek_quant_range){.file = t->file};
        q.numbers.offset_bytes = t->begin + row * (l->cols / 2);
        q.scales = (struct ek_quant_range){.file = s->file};
        q.scales.offset_bytes = s->begin + row * groups;
        struct ek_weight w = {.cols = l->cols, .dtype = b->graph->dtype};
        (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", t->name, e);
        if (quant_push(b, &q, l->rows, &w) == 0)
            graph_keep(b, weight_push(b, &w));
    }
}

uint32_t graph_expert_lane(struct graph_builder *b, const struct graph_lane *l)
{
    const uint32_t first = b->graph->weight_count, all = l->all;
    const struct graph_shape shape = {3, {b->config->experts, l->cols, all}};
    char name[WEIGHT_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    if (b->config->quant.method == QUANT_MXFP4) {
        blocks_push(b, l);
        return first;
    }
    lane_name(b, l, "", name);
    const struct st_tensor *t = tensor_get(b, name, &shape);
    for (uint32_t e = 0; t && e < b->config->experts && !b->error; e++) {
        struct ek_weight w = {.source = t->dtype,
                              .dtype = b->graph->dtype,
                              .rows = l->rows,
                              .cols = l->cols,
                              .row_step = l->step,
                              .col_step = all,
                              .parts = 1,
                              .part = {{.file = t->file, .rows = l->rows}}};
        const uint64_t at = (uint64_t)e * l->cols * all + l->first;
        w.part[0].offset_bytes = t->begin + at * (ek_dtype_bits(t->dtype) / 8);
        (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", t->name, e);
        graph_keep(b, weight_push(b, &w));
    }
    return first;
}

uint32_t graph_lane_biases(struct graph_builder *b, const struct graph_lane *l)
{
    const uint32_t all = l->all, experts = b->config->experts;
    const struct graph_shape shape = {2, {experts, all}};
    char name[WEIGHT_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    lane_name(b, l, "_bias", name);
    const struct st_tensor *t = tensor_get(b, name, &shape);
    if (!t)
        return EK_NO_WEIGHT;
    struct ek_weight w = {.source = t->dtype,
                          .dtype = EK_F32,
                          .rows = experts,
                          .cols = l->rows,
                          .row_step = all,
                          .col_step = l->step,
                          .parts = 1,
                          .part = {{.file = t->file, .rows = experts}}};
    w.part[0].offset_bytes = t->begin + (uint64_t)l->first * (ek_dtype_bits(t->dtype) / 8);
    (void)memcpy(w.name, name, sizeof(w.name));
    return weight_push(b, &w);
}

/* What follows the layer of a tensor, with the point; NULL: it is of none. */
static const char *after_layer(const char *name, uint32_t *ret_layer)
{
    static const char LAYERS[] = "model.layers.";
    uint32_t layer = 0;

    if (strncmp(name, LAYERS, sizeof(LAYERS) - 1) != 0)
        return NULL;
    const char *at = name + sizeof(LAYERS) - 1;
    for (; *at >= '0' && *at <= '9' && layer < CONFIG_LAYERS_MOST; at++)
        layer = layer * 10 + (uint32_t)(*at - '0');
    *ret_layer = layer;
    return *at == '.' ? at : NULL;
}

/* Of a layer for drafts, behind those that are used. */
static bool of_drafts(const struct model_config *c, const char *name)
{
    uint32_t layer;
    return after_layer(name, &layer) && layer >= c->layers && layer < c->layers + c->extra_layers;
}

/* K and V of a layer that reads those of another one: its code has none. */
static bool of_readers(const struct model_config *c, const char *name)
{
    static const char *const parts[] = {".self_attn.k_proj.", ".self_attn.v_proj.",
                                        ".self_attn.k_norm.", ".self_attn.v_norm."};
    uint32_t layer;
    const char *part = c->kinds.shared > 0 ? after_layer(name, &layer) : NULL;
    for (size_t i = 0; part && i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strncmp(part, parts[i], strlen(parts[i])) == 0)
            return layer >= c->layers - c->kinds.shared && layer < c->layers;
    return false;
}

/* Left in many checkpoints by what wrote them, computed or tied here. */
static bool harmless(const struct model_config *c, const char *name)
{
    static const char INV_FREQ[] = "rotary_emb.inv_freq";
    size_t len = strlen(name), tail = sizeof(INV_FREQ) - 1;
    return (len >= tail && strcmp(name + len - tail, INV_FREQ) == 0) ||
           (c->quant.method != QUANT_NONE && quant_harmless(name)) || of_drafts(c, name) ||
           of_readers(c, name) || strncmp(name, "mtp.", 4) == 0 || /* layers for drafts, too */
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

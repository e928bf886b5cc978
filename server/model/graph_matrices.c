/*
 * Matrices of which one tensor holds many, and one for each: those of experts, in the forms that
 * are published, and those of heads. Each becomes a weight of its own, adjacent to its like. Called
 * by graph.c and graph_experts.c.
 */
#include "server/model/graph_weights.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/model/quant.h"

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
    if (graph_quant_push(b, &q, rows, &w) < 0)
        return;
    w.part[0].skip = skip;
    graph_keep(b, graph_weight_push(b, &w));
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
        graph_keep(b, graph_weight_push(b, &w));
}

uint32_t graph_head_matrices(struct graph_builder *b, const struct graph_head_part *part)
{
    const uint32_t first = b->graph->weight_count;
    const struct graph_part whole = {part->name, part->heads * part->step};
    struct ek_weight all = {.cols = part->cols};
    if (b->error || graph_weight_fill(b, &whole, 1, ".weight", &all) < 0)
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
        graph_keep(b, graph_weight_push(b, &w));
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
    char name[GRAPH_NAME], plain[GRAPH_NAME];
    uint32_t first = b->graph->weight_count;
    int n = snprintf(name, sizeof(name), "%s%s.weight", b->prefix, suffix);
    assert(n > 0 && (size_t)n < sizeof(name));
    (void)snprintf(plain, sizeof(plain), "%s%s", b->prefix, suffix);
    if (!b->error && st_find(b->tensors, plain))
        memcpy(name, plain, sizeof(name));
    const struct st_tensor *is = b->error ? NULL : st_find(b->tensors, name);
    const bool f8 = is && b->config->quant.method != QUANT_NONE && strcmp(is->type, "F8_E4M3") == 0;
    const struct st_tensor *t = b->error ? NULL
                                : f8     ? graph_tensor_any(b, name, s)
                                         : graph_tensor(b, name, s);
    for (uint32_t e = 0; t && !b->error && e < b->config->experts; e++)
        (f8 ? slice_push_f8 : slice_push)(b, t, e, skip, rows);
    return first;
}

bool graph_experts_joined(const struct graph_builder *b, const struct graph_expert_names *names)
{
    char name[GRAPH_NAME];

    if (b->error || !names->all_in)
        return false;
    int n = snprintf(name, sizeof(name), "%s%s", b->prefix, names->all_in);
    assert(n > 0 && (size_t)n < sizeof(name));
    return st_find(b->tensors, name) != NULL;
}

static void lane_name(const struct graph_builder *b, const struct graph_lane *l, const char *end,
                      char name[GRAPH_NAME])
{
    int n = snprintf(name, GRAPH_NAME, "%s%s%s", b->prefix, l->name, end);
    assert(n > 0 && (size_t)n < GRAPH_NAME);
}

/* One of the two tensors of blocks. */
static const struct st_tensor *lane_tensor(struct graph_builder *b, const struct graph_lane *l,
                                           const char *end, const struct graph_shape *s)
{
    char name[GRAPH_NAME];
    lane_name(b, l, end, name);
    struct st_tensor *t = graph_tensor_any(b, name, s);
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
        if (graph_quant_push(b, &q, l->rows, &w) == 0)
            graph_keep(b, graph_weight_push(b, &w));
    }
}

uint32_t graph_expert_lane(struct graph_builder *b, const struct graph_lane *l)
{
    const uint32_t first = b->graph->weight_count, all = l->all;
    const struct graph_shape shape = {3, {b->config->experts, l->cols, all}};
    char name[GRAPH_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    if (b->config->quant.method == QUANT_MXFP4) {
        blocks_push(b, l);
        return first;
    }
    lane_name(b, l, "", name);
    const struct st_tensor *t = graph_tensor(b, name, &shape);
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
        graph_keep(b, graph_weight_push(b, &w));
    }
    return first;
}

uint32_t graph_lane_biases(struct graph_builder *b, const struct graph_lane *l)
{
    const uint32_t all = l->all, experts = b->config->experts;
    const struct graph_shape shape = {2, {experts, all}};
    char name[GRAPH_NAME];
    if (b->error)
        return EK_NO_WEIGHT;
    lane_name(b, l, "_bias", name);
    const struct st_tensor *t = graph_tensor(b, name, &shape);
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
    return graph_weight_push(b, &w);
}

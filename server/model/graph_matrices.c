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

/* Matrix number `index` of a quantized tensor, from row `skip` of it; false after an error. */
static bool quant_push(struct graph_builder *b, const char *name, uint32_t index,
                       const struct ek_quant *q, uint32_t rows, uint32_t skip)
{
    struct ek_weight w = {.cols = q->cols, .dtype = b->graph->dtype};

    (void)snprintf(w.name, sizeof(w.name), "%.80s[%u]", name, index);
    if (graph_quant_push(b, q, rows, &w) < 0)
        return false;
    w.part[0].skip = skip;
    graph_keep(b, graph_weight_push(b, &w));
    return true;
}

/* The rows from `skip` on of matrix number `index` of a quantized tensor; false: it is not one, or
 * after an error. */
static bool slice_push_quant(struct graph_builder *b, const struct quant_slice *s, uint32_t skip,
                             uint32_t rows)
{
    struct ek_quant q;
    const int r =
        b->error ? b->error : quant_find_slice(b->tensors, &b->config->quant, s, &q, b->fault);
    if (r <= 0) {
        b->error = r;
        return false;
    }
    return quant_push(b, s->name, s->index, &q, rows, skip);
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
    struct quant_slice slice = {.name = plain,
                                .count = b->config->experts,
                                .rows = (uint32_t)s->size[1],
                                .cols = (uint32_t)s->size[2]};
    if (2ull * rows == slice.rows)
        slice.half = skip == 0 ? HALF_GATE : HALF_UP;
    while (slice.index < slice.count && slice_push_quant(b, &slice, skip, rows))
        slice.index++;
    if (slice.index > 0)
        return first;
    if (!b->error && st_find(b->tensors, plain))
        memcpy(name, plain, sizeof(name));
    const struct st_tensor *t = b->error ? NULL : graph_tensor(b, name, s);
    for (uint32_t e = 0; t && !b->error && e < b->config->experts; e++)
        slice_push(b, t, e, skip, rows);
    return first;
}

/* Whether there is a tensor PREFIX NAME with one of the endings that weights have. */
static bool weight_there(const struct graph_builder *b, const char *name)
{
    static const char *const ends[] = {"", ".weight", ".weight_packed", "_packed", ".qweight"};
    char full[GRAPH_NAME];
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        int n = snprintf(full, sizeof(full), "%s%s%s", b->prefix, name, ends[i]);
        assert(n > 0 && (size_t)n < sizeof(full));
        if (st_find(b->tensors, full))
            return true;
    }
    return false;
}

bool graph_experts_joined(const struct graph_builder *b, const struct graph_expert_names *names)
{
    return !b->error && names->all_in && weight_there(b, names->all_in);
}

bool graph_experts_apart(const struct graph_builder *b, const struct graph_expert_names *names)
{
    char first[64];
    if (b->error || !names->apart)
        return false;
    (void)snprintf(first, sizeof(first), "%s.0.up_proj", names->apart);
    return weight_there(b, first);
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
        (void)quant_push(b, t->name, e, &q, l->rows, 0);
    }
}

/* Whether they are quantized otherwise; then they are there, or an error is. */
static bool lane_push_quant(struct graph_builder *b, const struct graph_lane *l)
{
    char plain[GRAPH_NAME];
    struct quant_lane lane = {
        .of = {.name = plain, .count = b->config->experts, .rows = l->rows, .cols = l->cols},
        .first = l->first,
        .all = l->all};
    lane_name(b, l, "", plain);
    if (2ull * l->rows == l->all)
        lane.of.half = l->first == 0 ? HALF_GATE : HALF_UP;
    for (uint32_t *e = &lane.of.index; l->step == 1 && *e < lane.of.count; (*e)++) {
        struct ek_quant q;
        const int r = b->error
                          ? b->error
                          : quant_find_lane(b->tensors, &b->config->quant, &lane, &q, b->fault);
        if (r < 0)
            b->error = r;
        if (r <= 0)
            return r < 0;
        (void)quant_push(b, plain, *e, &q, l->rows, 0);
    }
    return lane.of.index > 0;
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
    if (lane_push_quant(b, l))
        return first;
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

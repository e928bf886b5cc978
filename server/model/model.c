/*
 * Opening a model directory: configuration, then the headers of the weight files, then the graph.
 * All faults name a file. Owner: its opener; nothing is shared between threads until it is
 * complete, and then it is read-only but for model_close_files().
 */
#include "server/model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/model/config.h"
#include "server/model/family.h"
#include "server/model/files.h"
#include "server/model/graph.h"
#include "server/model/hf_quant.h"
#include "server/model/safetensors.h"
#include "server/model/textpart.h"

#define CONFIG_MOST_BYTES (4u << 20)

static int config_load(struct model *m, const struct model_choice *choice, struct model_config *c,
                       struct ek_fault *fault)
{
    struct ek_buf text = {0};
    const char *generation = choice->generation;
    int r = model_file_read(choice->files, m->dir, "config.json", CONFIG_MOST_BYTES, &text, fault);
    if (r == 0)
        r = hf_quant_join(choice->files, m->dir, &text, fault);
    if (r == 0)
        r = config_parse(text.data, text.len, c, fault);
    m->defaults = config_no_defaults();
    const char *dir = generation ? generation : m->dir;
    if (r == 0 && (generation || model_file_exists(choice->files, dir, "generation_config.json"))) {
        r = model_file_read(choice->files, dir, "generation_config.json", CONFIG_MOST_BYTES, &text,
                            fault);
        if (r == 0)
            r = config_parse_generation(text.data, text.len, c, &m->defaults, fault);
    }
    ek_buf_done(&text);
    return r;
}

/* What the class with an output layer writes before the names of the one without it. */
struct bare_names {
    const char *tensor, *prefix;
    bool text; /* so are checkpoints for text published whose logits are tied */
};

/* NULL: the tensors are of the class with the layer. */
static const struct bare_names *bare_find(const struct st_set *tensors)
{
    static const struct bare_names table[] = {
        {"embed_tokens.weight", "model.", false},
        {"decoder.embed_tokens.weight", "model.", true}, /* OPT */
        {"wte.weight", "transformer.", true}};           /* GPT-2 and what came of it */
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (st_find(tensors, table[i].tensor))
            return &table[i];
    return NULL;
}

/* Names as the class without an output layer writes them, "layers.0.", become those of the one with
 * it. Without the layer the embedding stands for it; its result is not used but for a text. */
static int bare_tensors(struct st_set *tensors, const struct bare_names *bare,
                        struct model_config *c)
{
    bool head = false;
    for (uint32_t i = 0; i < tensors->count; i++) {
        struct st_tensor *t = &tensors->tensor[i];
        if (strncmp(t->name, "lm_head.", 8) == 0 || strncmp(t->name, "score.", 6) == 0) {
            head = head || t->name[0] == 'l';
            continue;
        }
        char *name = ek_arena_take(&tensors->arena, strlen(t->name) + strlen(bare->prefix) + 1);
        if (!name)
            return -ENOMEM;
        (void)stpcpy(stpcpy(name, bare->prefix), t->name);
        t->name = name;
    }
    if (!head && c->output == CONFIG_TEXT && !(bare->text && c->tied))
        c->output = CONFIG_STATES;
    c->tied = c->tied || !head;
    return 0;
}

/* The headers of all weight files. The output layer of a text part is tied where it has no tensor:
 * what its configuration says is said of the whole by some and of the part by others. */
static int tensors_load(struct st_set *tensors, const char *dir, struct model_config *c,
                        struct ek_fault *fault)
{
    bool head = true;
    int r = st_open(tensors, dir, fault);
    if (r < 0)
        return r;
    const struct bare_names *bare = bare_find(tensors);
    if (c->text_part)
        r = text_part_tensors(tensors, &head);
    else if (bare)
        r = bare_tensors(tensors, bare, c);
    else if (c->output != CONFIG_TEXT)
        head = st_find(tensors, "lm_head.weight") != NULL;
    else
        return 0;
    c->tied = c->tied || !head;
    return r < 0 ? r : st_sort(tensors, fault);
}

/* The type to compute with: what was asked, else config.json's, else that of the weights. */
static enum ek_dtype dtype_choose(enum model_dtype asked, const struct model_config *c,
                                  const struct st_set *tensors)
{
    switch (asked) {
    case MODEL_DTYPE_F32: return EK_F32;
    case MODEL_DTYPE_F16: return EK_F16;
    case MODEL_DTYPE_BF16: return EK_BF16;
    case MODEL_DTYPE_AUTO: break;
    }
    if (c->dtype_given)
        return c->dtype;
    for (uint32_t i = 0; i < tensors->count; i++)
        if (tensors->tensor[i].usable && tensors->tensor[i].dims == 2)
            return tensors->tensor[i].dtype;
    return EK_F32;
}

static int graph_load(struct model *m, const struct model_config *c,
                      const struct model_choice *choice, struct st_set *tensors,
                      struct ek_fault *fault)
{
    struct graph_builder b = {.graph = &m->graph,
                              .tensors = tensors,
                              .config = c,
                              .fault = fault,
                              .wide_groups = choice->wide_groups,
                              .weights = &m->weights};
    int r = quant_load_find(choice->quantization, &c->quant, &b.load, fault);
    if (r < 0)
        return r;
    m->weights.on_load = b.load != QUANT_AS_IT_IS;
    m->weights.method = m->weights.on_load ? quant_load_name(b.load) : quant_method_name(&c->quant);
    graph_begin(&b);
    c->family->build(&b, c);
    r = b.error ? b.error : classes_load(m->dir, c, tensors, &m->classes, fault);
    if (r == 0)
        r = graph_check_unused(&b);
    m->parameters = b.parameters;
    return r;
}

/* Moves the mappings from the reader to the model. */
static int files_take(struct model *m, struct st_set *tensors)
{
    m->file_name = calloc(tensors->files ? tensors->files : 1, sizeof(*m->file_name));
    if (!m->file_name)
        return -ENOMEM;
    for (uint32_t i = 0; i < tensors->files; i++) {
        m->weight_file_bytes += tensors->file[i].size_bytes;
        (void)snprintf(m->file_name[i], sizeof(m->file_name[i]), "%s", tensors->file_name[i]);
    }
    m->files = (struct ek_weight_files){.file = tensors->file, .count = tensors->files};
    tensors->file = NULL;
    tensors->files = 0;
    return 0;
}

int model_open(const char *dir, enum model_dtype dtype, struct model **ret_model,
               struct ek_fault *fault)
{
    return model_open_as(dir, &(struct model_choice){.dtype = dtype}, ret_model, fault);
}

int model_open_as(const char *dir, const struct model_choice *choice, struct model **ret_model,
                  struct ek_fault *fault)
{
    struct st_set tensors = {.bundle = choice->files};
    struct model_config *c = calloc(1, sizeof(*c));
    struct model *m = calloc(1, sizeof(*m));
    int r = -ENOMEM;
    if (!c || !m)
        goto out;
    int n = snprintf(m->dir, sizeof(m->dir), "%s", dir);
    if (n <= 0 || (size_t)n >= sizeof(m->dir)) {
        r = ek_fault_set(fault, "model",
                         "the path of the model directory must have 1 to %zu "
                         "bytes; name another directory",
                         sizeof(m->dir) - 1);
        goto out;
    }

    r = config_load(m, choice, c, fault);
    if (r == 0)
        r = tensors_load(&tensors, dir, c, fault);
    if (r < 0)
        goto out;
    m->graph.dtype = dtype_choose(choice->dtype, c, &tensors);
    m->graph.kv_f8 = choice->kv_f8;
    r = graph_load(m, c, choice, &tensors, fault);
    if (r < 0)
        goto out;

    memcpy(m->family, c->model_type, sizeof(m->family));
    memcpy(m->eos, c->eos, sizeof(m->eos));
    m->eos_count = c->eos_count;
    m->bos = c->bos;
    m->textless = c->output != CONFIG_TEXT;
    m->embeds = c->output == CONFIG_STATES;
    m->max_model_len = c->max_model_len;
    m->index_tokens = c->index_tokens;
    if (c->rope.type == ROPE_LONGROPE)
        m->long_above = (uint32_t)c->rope.original_positions;
    for (uint32_t i = 0; i < m->graph.rope_count; i++)
        if (m->graph.ropes[i].above > 0)
            m->stretched_above = m->graph.ropes[i].above; /* the same for all */
    r = files_take(m, &tensors);
    if (r < 0)
        goto out;
    *ret_model = m;
    m = NULL;
out:
    st_done(&tensors);
    model_free(m);
    free(c);
    /* A missing file is bad input to the caller; the fault names it. */
    return r == -ENOENT ? -EBADMSG : r;
}

const char *model_dtype_name(enum ek_dtype t)
{
    switch (t) {
    case EK_F32: return "float32";
    case EK_F16: return "float16";
    case EK_BF16: return "bfloat16";
    case EK_F8_E4M3: return "fp8";
    case EK_I8: return "int8";
    case EK_I4: return "int4";
    case EK_F4_E2M1: return "mxfp4";
    }
    return "?";
}

void model_weights_note(const struct model *m, bool whole, char ret_text[MODEL_NOTE_BYTES])
{
    const struct model_weights *w = &m->weights;
    const char *type = model_dtype_name(m->graph.dtype);
    char inputs[96] = "whatever scales the files have";

    ret_text[0] = '\0';
    if (w->rounding > 0)
        (void)snprintf(inputs, sizeof(inputs), "on CUDA %s in %u products, as the files say%s",
                       w->rounds_f8 ? "fp8" : "int8", w->rounding,
                       w->rounds_f8 ? " (cards from Ada on)" : "");
    if (!w->method || !w->method[0])
        return;
    if (!whole && w->on_load)
        (void)snprintf(ret_text, MODEL_NOTE_BYTES, "%s, %u matrices", w->method, w->kept);
    else if (!whole)
        (void)snprintf(ret_text, MODEL_NOTE_BYTES, "%s, %u of %u matrices packed", w->method,
                       w->kept, w->matrices);
    else if (w->on_load)
        (void)snprintf(ret_text, MODEL_NOTE_BYTES,
                       "Quantizing %u matrices to %s while loading, the output layer to 8 bits; "
                       "norms, routers and an embedding of its own stay %s",
                       w->kept, w->method, type);
    else
        (void)snprintf(ret_text, MODEL_NOTE_BYTES,
                       "Weights as published (%s): %u of %u matrices of layers stay packed, %u are "
                       "unpacked to %s; activations are %s, %s",
                       w->method, w->kept, w->matrices, w->unpacked, type, type, inputs);
}

void model_serve(struct model *m, uint32_t max_model_len)
{
    if (m->long_above == 0 || max_model_len > m->long_above)
        return;
    for (uint32_t i = 0; i < m->graph.rope_count; i++) {
        struct ek_rope *r = &m->graph.ropes[i];
        memcpy(r->inv_freq, r->inv_freq + r->count, r->count * sizeof(*r->inv_freq));
    }
}

void model_close_files(struct model *m)
{
    struct ek_weight_file *file = (struct ek_weight_file *)(uintptr_t)m->files.file;
    for (uint32_t i = 0; i < m->files.count; i++)
        model_file_unmap(&file[i]);
    free(file);
    free(m->file_name);
    m->file_name = NULL;
    m->files = (struct ek_weight_files){0};
}

void model_free(struct model *m)
{
    if (!m)
        return;
    model_close_files(m);
    classes_done(&m->classes);
    ek_graph_free(&m->graph);
    free(m);
}

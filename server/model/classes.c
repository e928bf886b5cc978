/* The classes of a model that ranks or classifies (classes.h). Called while the model is read. */
#include "server/model/classes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "server/model/config.h"
#include "server/model/files.h"
#include "server/model/json.h"
#include "server/model/safetensors.h"

#define CONFIG_MOST_BYTES (4u << 20)

void classes_done(struct model_classes *k)
{
    for (uint32_t i = 0; k->label && i < k->rows; i++)
        free(k->label[i]);
    free(k->label);
    free(k->weight);
    free(k->bias);
    *k = (struct model_classes){0};
}

/* The numbers of a whole tensor. */
static int numbers_of(const struct st_set *set, struct st_tensor *t, float **ret_numbers)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < t->dims; i++)
        count *= t->shape[i];
    float *v = calloc(count, sizeof(*v));
    if (!v)
        return -ENOMEM;
    st_numbers(t->dtype, (const char *)set->file[t->file].data + t->begin, count, v);
    t->used = true;
    *ret_numbers = v;
    return 0;
}

static bool is_plain(const struct st_tensor *t)
{
    return t->usable && (t->dtype == EK_F32 || t->dtype == EK_F16 || t->dtype == EK_BF16);
}

static int rows_load(struct model_classes *k, const struct model_config *c, struct st_set *tensors,
                     struct ek_fault *fault)
{
    struct st_tensor *t = st_find(tensors, "score.weight");
    struct st_tensor *bias = st_find(tensors, "score.bias");
    if (!t)
        return ek_fault_set(
            fault, "score.weight",
            "config.json: architectures names a ...ForSequenceClassification, but no "
            "file has the tensor score.weight; get the whole checkpoint");
    if (!is_plain(t) || t->dims != 2 || t->shape[0] < 1 || t->shape[0] > CLASSES_MOST ||
        t->shape[1] != c->hidden)
        return ek_fault_set(fault, "score.weight",
                            "%s: score.weight must be 1 to %u rows of %u plain numbers; get the "
                            "checkpoint again",
                            st_file_name(tensors, t), CLASSES_MOST, c->hidden);
    if (bias && (!is_plain(bias) || bias->dims != 1 || bias->shape[0] != t->shape[0]))
        return ek_fault_set(fault, "score.bias",
                            "%s: score.bias must have a number for each row of score.weight; get "
                            "the checkpoint again",
                            st_file_name(tensors, bias));
    k->rows = (uint32_t)t->shape[0];
    k->width = c->hidden;
    int r = numbers_of(tensors, t, &k->weight);
    return r < 0 || !bias ? r : numbers_of(tensors, bias, &k->bias);
}

static const char *text_in(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

/* "torch.nn.modules.activation.Sigmoid" and such, where sentence-transformers wrote one. */
static enum classes_act act_of(const json_t *root)
{
    const char *fn = text_in(json_object_get(root, "sentence_transformers"), "activation_fn");
    const char *type = text_in(root, "problem_type");
    if (!*fn)
        fn = text_in(root, "sbert_ce_default_activation_function");
    if (strstr(fn, "Sigmoid") || (!*fn && strcmp(type, "multi_label_classification") == 0))
        return CLASSES_SIGMOID;
    if (strstr(fn, "Identity") || (!*fn && strcmp(type, "regression") == 0))
        return CLASSES_AS_THEY_ARE;
    return CLASSES_BY_COUNT;
}

static int names_load(struct model_classes *k, const json_t *root)
{
    const json_t *names = json_object_get(root, "id2label");
    k->label = calloc(k->rows, sizeof(*k->label));
    if (!k->label)
        return -ENOMEM;
    for (uint32_t i = 0; i < k->rows; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%u", i);
        const char *name = json_string_value(json_object_get(names, key));
        k->label[i] = name ? strdup(name) : NULL;
        if (name && !k->label[i])
            return -ENOMEM;
    }
    return 0;
}

int classes_load(const char *dir, const struct model_config *c, struct st_set *tensors,
                 struct model_classes *k, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    json_t *root = NULL;
    if (c->output != CONFIG_CLASSES)
        return 0;
    int r = rows_load(k, c, tensors, fault);
    if (r == 0)
        r = model_file_read(tensors->bundle, dir, "config.json", CONFIG_MOST_BYTES, &text, fault);
    if (r == 0)
        r = model_json_parse("config.json", text.data, text.len, &root, fault);
    if (r == 0) {
        k->act = act_of(root);
        r = names_load(k, root);
    }
    json_decref(root);
    ek_buf_done(&text);
    return r;
}

/* The matrix that the logits are made with; NULL when its rows cannot be read as they are,
 * or it has a bias. */
static const struct ek_weight *output_of(const struct ek_graph *g, float *ret_scale,
                                         float *ret_softcap)
{
    const struct ek_weight *w = NULL;
    *ret_softcap = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind == EK_OP_LOGITS) {
            w = op->bias == EK_NO_WEIGHT ? &g->weights[op->weight] : NULL;
            *ret_scale = op->u.logits.scale;
        } else if (op->kind == EK_OP_SOFTCAP) {
            *ret_softcap = op->u.softcap.cap;
        }
    }
    const bool plain = w && (w->source == EK_F32 || w->source == EK_F16 || w->source == EK_BF16);
    if (!plain || w->quantized || w->parts != 1 || w->row_step != 0 || w->file_cols != 0)
        return NULL;
    return w;
}

int classes_of_tokens(const struct ek_graph *g, const struct ek_weight_files *files,
                      const int32_t *ids, uint32_t count, bool two_way, struct model_classes *k,
                      struct ek_fault *fault)
{
    float scale = 1.0f, softcap = 0;
    const struct ek_weight *w = output_of(g, &scale, &softcap);
    if (!w)
        return ek_fault_set(fault, "hf-overrides",
                            "--hf-overrides: classifier_from_token needs an output layer of plain "
                            "numbers without a bias, and this model's is packed or has one; serve "
                            "another or unpack it");
    struct model_classes made = {.width = w->cols, .two_way = two_way, .softcap = softcap};
    made.weight = calloc((size_t)count * w->cols, sizeof(*made.weight));
    made.label = calloc(count, sizeof(*made.label));
    made.rows = count;
    if (!made.weight || !made.label) {
        classes_done(&made);
        return -ENOMEM;
    }
    const uint64_t row_bytes = (uint64_t)w->cols * ek_dtype_bits(w->source) / 8;
    const char *base = (const char *)files->file[w->part[0].file].data + w->part[0].offset_bytes;
    for (uint32_t i = 0; i < count; i++) {
        float *row = made.weight + (size_t)i * w->cols;
        st_numbers(w->source, base + (uint64_t)ids[i] * row_bytes, w->cols, row);
        for (uint32_t n = 0; n < w->cols; n++)
            row[n] *= scale;
    }
    classes_done(k);
    *k = made;
    return 0;
}

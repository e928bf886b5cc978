/*
 * Reading config.json and generation_config.json. What a family alone knows (biases, windows) is
 * read by its own function in family_*.c; rope frequencies are in rope.c.
 *
 * Refused instead of guessed: unknown quantization, rope types and activations, attention to later
 * tokens, more end-of-text tokens than there is room for.
 */
#include "server/model/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/families.h"
#include "common/textpart.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/quant.h"
#include "server/model/rope.h"

static const char CONFIG[] = "config.json";
static const char GENERATION[] = "generation_config.json";

static int read_family(const struct model_json *j, struct model_config *c)
{
    static const enum config_output outputs[] = {[EK_FAMILY_TEXT] = CONFIG_TEXT,
                                                 [EK_FAMILY_CLASSES] = CONFIG_CLASSES,
                                                 [EK_FAMILY_STATES] = CONFIG_STATES};
    const struct ek_family_name name = ek_family_of(j->object);
    c->output = outputs[name.use];
    c->family = name.family ? model_family_find(name.family) : NULL;
    if (c->family)
        return 0;
    const char *near = ek_family_nearest(name.first);
    if (near)
        return ek_fault_set(j->fault, "architectures",
                            "%s: architecture '%.64s' is not supported (the nearest that is: "
                            "%.60s); take another model, of which the README lists the classes",
                            j->file, name.first, near);
    if (!*name.first)
        return ek_fault_set(j->fault, "architectures",
                            "%s: architectures names no model class; download the file again",
                            j->file);
    return ek_fault_set(j->fault, "architectures",
                        "%s: architecture '%.64s' is not supported; take another model, of which "
                        "the README lists the classes",
                        j->file, name.first);
}

/* The name that the file has for a key: the family's own, if it is there. */
static const char *config_key_of(const struct model_json *j, const struct model_config *c,
                                 const char *usual)
{
    const struct family_key *k = c->family->keys;
    for (uint32_t i = 0; i < FAMILY_KEYS_MOST && k[i].usual; i++)
        if (strcmp(k[i].usual, usual) == 0 && json_object_get(j->object, k[i].own))
            return k[i].own;
    return usual;
}

static int read_layers(const struct model_json *j, struct model_config *c)
{
    const char *key = config_key_of(j, c, "num_hidden_layers");
    const uint64_t listed = c->family->count ? c->family->count(j) : 0;
    if (listed > CONFIG_LAYERS_MOST)
        return ek_fault_set(j->fault, key, "%s: %llu layers are named; at most %u are supported",
                            j->file, (unsigned long long)listed, CONFIG_LAYERS_MOST);
    return config_read_u32(j, key, CONFIG_LAYERS_MOST, (uint32_t)listed, &c->layers);
}

/* A number, or one for each layer (Gemma 3n), which must be the same. */
static int read_intermediate(const struct model_json *j, const char *key, struct model_config *c)
{
    if (json_array_size(json_object_get(j->object, key)) > 0)
        return config_read_same(j, key, 1u << 20, &c->intermediate);
    return config_read_u32(j, key, 1u << 20, c->family->four_times ? 4 * c->hidden : 0,
                           &c->intermediate);
}

static int read_shape(const struct model_json *j, struct model_config *c)
{
    int r = config_read_u32(j, config_key_of(j, c, "hidden_size"), 1u << 16, 0, &c->hidden);
    if (r == 0)
        r = read_intermediate(j, config_key_of(j, c, "intermediate_size"), c);
    if (r == 0)
        r = read_layers(j, c);
    if (r == 0)
        r = config_read_u32(j, config_key_of(j, c, "num_attention_heads"), 1024, 0, &c->q_heads);
    if (r == 0)
        r = config_read_u32(j, config_key_of(j, c, "num_key_value_heads"), 1024, c->q_heads,
                            &c->kv_heads);
    if (r == 0)
        r = config_read_u32(j, "vocab_size", 1u << 22, 0, &c->vocab);
    if (r == 0)
        r = config_read_u32(j, config_key_of(j, c, "max_position_embeddings"), 1u << 26,
                            c->family->positions, &c->max_model_len);
    if (r < 0)
        return r;

    uint32_t head_dim = c->family->head_dim;
    if (head_dim == 0)
        head_dim = c->hidden / c->q_heads;
    const char *head_key = c->family->head_key ? c->family->head_key : "head_dim";
    r = config_read_u32(j, head_key, CONFIG_HEAD_DIM_MOST, head_dim, &c->head_dim);
    if (r < 0)
        return r;
    if (c->head_dim > CONFIG_HEAD_DIM_MOST)
        return ek_fault_set(
            j->fault, "head_dim",
            "%s: hidden_size / num_attention_heads is %u, but a head has at most %u "
            "elements; correct one of them or give head_dim",
            j->file, c->head_dim, CONFIG_HEAD_DIM_MOST);
    if (c->head_dim % 2 != 0)
        return ek_fault_set(j->fault, "head_dim",
                            "%s: head_dim is %u, but rotary positions need an even number; correct "
                            "it or hidden_size and num_attention_heads",
                            j->file, c->head_dim);
    if (c->q_heads % c->kv_heads != 0)
        return ek_fault_set(j->fault, "num_key_value_heads",
                            "%s: num_attention_heads %u is no multiple of num_key_value_heads %u; "
                            "correct one of them",
                            j->file, c->q_heads, c->kv_heads);
    return 0;
}

static int read_dtype(const struct model_json *j, struct model_config *c)
{
    static const struct {
        const char *name;
        enum ek_dtype dtype;
    } table[] = {{"float32", EK_F32}, {"float16", EK_F16}, {"bfloat16", EK_BF16}};
    const char *key = json_object_get(j->object, "dtype") ? "dtype" : "torch_dtype";
    const char *name = NULL;
    int r = model_json_string(j, key, &name, &c->dtype_given);
    if (r < 0 || !c->dtype_given)
        return r;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0) {
            c->dtype = table[i].dtype;
            return 0;
        }
    return ek_fault_set(j->fault, key,
                        "%s: %s '%.32s' is not supported; convert the model to bfloat16, float16 "
                        "or float32",
                        j->file, key, name);
}

static int read_act(const struct model_json *j, struct model_config *c)
{
    const struct model_family *f = c->family;
    const char *act = f->act ? f->act : "silu";
    const char *key = f->act_key ? f->act_key : config_key_of(j, c, "hidden_act");
    bool given = false;
    /* Gemma's files have both keys, and its code reads the second. */
    if (!f->act_key && json_is_string(json_object_get(j->object, "hidden_activation")))
        key = "hidden_activation";
    int r = model_json_string(j, key, &act, &given);
    if (r < 0)
        return r;
    if (f->act_key && strcmp(act, f->act) != 0)
        return ek_fault_set(j->fault, key, "%s: %s must be %s for %s", j->file, key, f->act,
                            f->architecture);
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0)
        c->act = EK_ACT_SILU;
    else if (strcmp(act, "gelu_pytorch_tanh") == 0 || strcmp(act, "gelu_new") == 0 ||
             strcmp(act, "gelu_fast") == 0)
        c->act = EK_ACT_GELU_TANH;
    else if (f->relu && strcmp(act, "relu") == 0)
        c->act = EK_ACT_RELU;
    else if (strcmp(act, "gelu") == 0)
        c->act = EK_ACT_GELU;
    else if (f->act_key) /* relu2: max(x, 0) * x; xielu, which no product is gated by */
        c->act = EK_ACT_RELU;
    else
        return ek_fault_set(j->fault, key,
                            "%s: %s '%.32s' is not supported; supported are silu, gelu and "
                            "gelu_pytorch_tanh",
                            j->file, key, act);
    return 0;
}

static int read_numerics(const struct model_json *j, struct model_config *c)
{
    bool given = false;
    c->rms_eps = c->family->rms_eps > 0 ? c->family->rms_eps : 1e-6;
    const char *eps = c->family->eps_key ? c->family->eps_key : "rms_norm_eps";
    int r = model_json_float(j, eps, (struct model_range){0, 1}, &c->rms_eps, &given);
    if (r < 0)
        return r;

    r = read_act(j, c);
    if (r == 0)
        r = config_read_quant(j, &c->quant);
    if (r < 0)
        return r;
    r = config_read_bool(j, "tie_word_embeddings", c->family->tied, &c->tied);
    return r < 0 ? r : read_dtype(j, c);
}

/* Token ids: one, a list, or none. Adds those that are not there yet. */
static int read_eos(const struct model_json *j, struct model_config *c)
{
    const json_t *v = json_object_get(j->object, "eos_token_id");
    if (!v || json_is_null(v))
        return 0;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)c->vocab)
            return ek_fault_set(j->fault, "eos_token_id",
                                "%s: eos_token_id must be token ids from 0 to %u; correct it",
                                j->file, c->vocab - 1);
        int32_t token = (int32_t)json_integer_value(id);
        uint32_t k = 0;
        while (k < c->eos_count && c->eos[k] != token)
            k++;
        if (k < c->eos_count)
            continue;
        if (c->eos_count == MODEL_EOS_MOST)
            return ek_fault_set(j->fault, "eos_token_id",
                                "%s: more than %u end-of-text tokens; remove some from "
                                "eos_token_id",
                                j->file, MODEL_EOS_MOST);
        c->eos[c->eos_count++] = token;
    }
    return 0;
}

static int read_tokens(const struct model_json *j, struct model_config *c)
{
    int64_t bos = -1;
    bool given = false;
    struct model_range ids = {0, INT32_MAX};
    /* It is not needed to run the model: some configurations hold a list here, or a token that the
     * vocabulary does not have. */
    if (!json_is_array(json_object_get(j->object, "bos_token_id"))) {
        int r = model_json_int(j, "bos_token_id", ids, &bos, &given);
        if (r < 0)
            return r;
    }
    c->bos = bos < (int64_t)c->vocab ? (int32_t)bos : -1;
    return read_eos(j, c);
}

static int check_causal(const struct model_json *j)
{
    bool causal = true;
    int r = config_read_bool(j, "is_causal", true, &causal);
    if (r < 0 || causal)
        return r;
    return ek_fault_set(j->fault, "is_causal",
                        "%s: is_causal is false: attention to later tokens is not supported; take "
                        "another model",
                        j->file);
}

static int config_read_all(const struct model_json *j, struct model_config *c)
{
    int r = read_family(j, c);
    if (r == 0)
        r = check_causal(j);
    if (r == 0)
        r = read_shape(j, c);
    if (r == 0)
        r = read_numerics(j, c);
    if (r == 0)
        r = read_tokens(j, c);
    if (r == 0)
        r = config_read_rope(j, c);
    if (r == 0)
        r = c->family->configure(j, c);
    if (r == 0)
        r = config_stretch(j, c);
    if (r == 0 && c->index_tokens > 0 && c->max_model_len > c->index_tokens)
        c->max_model_len = c->index_tokens;
    else
        c->index_tokens = 0; /* it is no bound */
    return r;
}

int config_parse(const char *text, size_t len, struct model_config *ret_config,
                 struct ek_fault *fault)
{
    json_t *root = NULL, *part = NULL;
    struct model_config c = {.bos = -1,
                             .embed_scale = 1,
                             .residual_scale = 1,
                             .logits_scale = 1,
                             .routing = {.scale = 1, .least = 1e-20f}};
    const char *type = "";
    bool given = false;
    int r = model_json_parse(CONFIG, text, len, &root, fault);
    if (r < 0)
        return r;
    struct model_json j = {.file = CONFIG, .object = root, .fault = fault};
    r = model_json_string(&j, "model_type", &type, &given);
    if (r == 0)
        r = ek_text_part(root, &part);
    c.text_part = part != NULL;
    j.object = part ? part : root;
    if (r == 0)
        r = config_read_all(&j, &c);
    if (r < 0)
        goto out;
    (void)snprintf(c.model_type, sizeof(c.model_type), "%s", type); /* only shown */
    *ret_config = c;
out:
    json_decref(part);
    json_decref(root);
    return r;
}

struct model_defaults config_no_defaults(void)
{
    return (struct model_defaults){.sampling = EK_SAMPLING_NEUTRAL, .max_new_tokens = -1};
}

int config_parse_generation(const char *text, size_t len, struct model_config *config,
                            struct model_defaults *ret_defaults, struct ek_fault *fault)
{
    json_t *root = NULL;
    struct model_defaults d = config_no_defaults();
    struct model_config c = *config;
    bool given = false;
    int64_t top_k = 0;
    int r = model_json_parse(GENERATION, text, len, &root, fault);
    if (r < 0)
        return r;
    struct model_json j = {.file = GENERATION, .object = root, .fault = fault};

    struct {
        const char *key;
        struct model_range range;
        float *value;
    } floats[] = {
        {"temperature", {0, 100}, &d.sampling.temperature},
        {"top_p", {1e-6, 1}, &d.sampling.top_p},
        {"min_p", {0, 1}, &d.sampling.min_p},
        {"repetition_penalty", {1e-3, 100}, &d.sampling.repetition},
    };
    for (size_t i = 0; r == 0 && i < sizeof(floats) / sizeof(floats[0]); i++) {
        double v = (double)*floats[i].value;
        r = model_json_float(&j, floats[i].key, floats[i].range, &v, &given);
        *floats[i].value = ek_sampling_value(v);
    }
    if (r == 0)
        r = model_json_int(&j, "top_k", (struct model_range){-1, 1u << 22}, &top_k, &given);
    d.sampling.top_k = top_k > 0 ? (uint32_t)top_k : 0;
    if (r == 0)
        r = model_json_int(&j, "max_new_tokens", (struct model_range){1, 1u << 26},
                           &d.max_new_tokens, &given);
    if (r < 0)
        goto out;

    /* The first end-of-text token is the one that a forced stop reports: this file's. */
    c.eos_count = 0;
    r = read_eos(&j, &c);
    for (uint32_t i = 0; r == 0 && i < config->eos_count; i++) {
        uint32_t k = 0;
        while (k < c.eos_count && c.eos[k] != config->eos[i])
            k++;
        if (k == c.eos_count && c.eos_count < MODEL_EOS_MOST)
            c.eos[c.eos_count++] = config->eos[i];
        else if (k == c.eos_count)
            r = ek_fault_set(fault, "eos_token_id",
                             "%s: with %s more than %u end-of-text tokens; remove some from "
                             "eos_token_id",
                             GENERATION, CONFIG, MODEL_EOS_MOST);
    }
    if (r < 0)
        goto out;
    *config = c;
    *ret_defaults = d;
out:
    json_decref(root);
    return r;
}

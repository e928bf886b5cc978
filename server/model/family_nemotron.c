/*
 * NemotronHForCausalLM (Nemotron-H, Nemotron Nano 2): each layer is one mixer behind one norm, and
 * is Mamba 2 (mamba.c), attention without positions, or a feed-forward without a gate whose
 * activation is max(x, 0) squared. Layers of experts are refused.
 */
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/graph.h"
#include "server/model/mamba.h"

#define KIND_BYTES 40u

struct kinds {
    const char *key;
    const json_t *list; /* of names; NULL: the text has a letter for each layer */
    const char *letters;
    size_t count;
};

/* The list counts where there are both, and layer_types is its newer name. */
static struct kinds kinds_of(const struct model_json *j)
{
    static const char *const lists[] = {"layers_block_type", "layer_types"};
    struct kinds k = {.key = "hybrid_override_pattern"};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        k.list = json_object_get(j->object, lists[i]);
        if (json_is_array(k.list)) {
            k.key = lists[i];
            k.count = json_array_size(k.list);
            return k;
        }
    }
    k.list = NULL;
    k.letters = json_string_value(json_object_get(j->object, k.key));
    k.count = k.letters ? strlen(k.letters) : 0;
    return k;
}

static uint64_t nemotron_count(const struct model_json *j)
{
    return kinds_of(j).count;
}

/* The letter of a layer, or 0; what the file has there as text. */
static char kind_at(const struct kinds *k, uint32_t layer, char text[KIND_BYTES])
{
    static const struct {
        const char *name;
        char letter;
    } names[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                 {"attention", '*'}, {"full_attention", '*'},
                 {"mlp", '-'},       {"moe", 'E'}};
    if (!k->list) {
        const char letter = k->letters[layer];
        const bool shown = letter > ' ' && letter < 127;
        (void)snprintf(text, KIND_BYTES, "%c", shown ? letter : '?');
        return strchr("M*-E", letter) ? letter : 0;
    }
    const char *name = json_string_value(json_array_get(k->list, layer));
    (void)snprintf(text, KIND_BYTES, "%.32s", name ? name : "something that is no text");
    for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].letter;
    return 0;
}

static int kind_fault(const struct model_json *j, const char *key, char letter, const char *text)
{
    if (letter == 'E')
        return ek_fault_set(j->fault, key,
                            "%s: %s has '%s': layers of experts are not supported for "
                            "NemotronHForCausalLM; take a model without them",
                            j->file, key, text);
    return ek_fault_set(j->fault, key,
                        "%s: %s has '%s'; supported are M (mamba, linear_attention), * (attention, "
                        "full_attention) and - (mlp)",
                        j->file, key, text);
}

static int nemotron_kinds(const struct model_json *j, struct model_config *c)
{
    const struct kinds k = kinds_of(j);
    char text[KIND_BYTES];
    uint32_t attend = 0;

    if (k.count != c->layers)
        return ek_fault_set(j->fault, k.key,
                            "%s: %s must name the kind of each of the %u layers; correct it",
                            j->file, k.key, c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char letter = kind_at(&k, i, text);
        if (letter == 0 || letter == 'E')
            return kind_fault(j, k.key, letter, text);
        c->recurrent[i] = letter == 'M';
        c->forward_only[i] = letter == '-';
        c->unrotated[i] = true;
        attend += letter == '*';
    }
    if (attend == 0)
        return ek_fault_set(j->fault, k.key, "%s: no layer of %s has attention; correct it",
                            j->file, k.key);
    return 0;
}

/* The first models have attention_head_dim. */
static int nemotron_heads(const struct model_json *j, struct model_config *c)
{
    static const char KEY[] = "attention_head_dim";

    if (json_object_get(j->object, "head_dim"))
        return 0;
    int r = config_read_u32(j, KEY, CONFIG_HEAD_DIM_MOST, c->head_dim, &c->head_dim);
    if (r == 0 && c->head_dim % 2 != 0)
        r = ek_fault_set(j->fault, KEY, "%s: %s is %u; it must be even, correct it", j->file, KEY,
                         c->head_dim);
    return r;
}

static int nemotron_configure(const struct model_json *j, struct model_config *c)
{
    const struct mamba_keys keys = {"mamba_num_heads", "n_groups",        "ssm_state_size",
                                    "conv_kernel",     "use_conv_bias",   "use_bias",
                                    .usual_groups = 8, .usual_state = 128};
    const char *act = "silu";
    bool given = false;
    int r = nemotron_kinds(j, c);
    if (r == 0)
        r = nemotron_heads(j, c);
    if (r == 0)
        r = model_json_float(j, "layer_norm_epsilon", (struct model_range){0, 1}, &c->rms_eps,
                             &given);
    if (r == 0)
        r = model_json_string(j, "mamba_hidden_act", &act, &given);
    if (r == 0 && strcmp(act, "silu") != 0)
        r = ek_fault_set(j->fault, "mamba_hidden_act", "%s: mamba_hidden_act must be silu for %s",
                         j->file, c->family->architecture);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r == 0)
        r = config_read_u32(j, "mamba_head_dim", 1u << 16, 64, &c->scan.head_dim);
    return r == 0 ? mamba_configure(j, &keys, c) : r;
}

struct values {
    uint16_t stream, side, qkv, heads, inner;
    struct mamba_values mamba;
};

static void nemotron_begin(struct graph_builder *b, struct values *v)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    v->stream = graph_value(b, c->hidden);
    v->side = graph_value(b, c->hidden);
    v->qkv = graph_value(b, q + 2 * kv);
    v->heads = graph_value(b, q);
    v->inner = graph_value(b, c->intermediate);
    mamba_begin(b, &v->mamba);
    graph_prefix(b, "backbone.");
    graph_embed(b, v->stream, "embeddings", c->embed_scale);
}

/* In place of `side`, as the other mixers. */
static void nemotron_attention(struct graph_builder *b, const struct values *v, uint32_t layer)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct graph_part parts[] = {
        {"mixer.q_proj", q}, {"mixer.k_proj", kv}, {"mixer.v_proj", kv}};
    const struct graph_part out = {"mixer.o_proj", c->hidden};

    graph_linear(b, v->qkv, v->side, parts, 3, c->qkv_bias);
    graph_attention(b, v->heads, v->qkv, layer);
    graph_linear(b, v->side, v->heads, &out, 1, c->o_bias);
}

static void nemotron_forward(struct graph_builder *b, const struct values *v)
{
    const struct model_config *c = b->config;
    const struct graph_part up = {"mixer.up_proj", c->intermediate};
    const struct graph_part down = {"mixer.down_proj", c->hidden};

    graph_linear(b, v->inner, v->side, &up, 1, c->mlp_bias);
    graph_gate(b, v->inner, v->inner, EK_GATE_RELU,
               (struct graph_run){.step = c->intermediate, .group = c->intermediate});
    graph_linear(b, v->side, v->inner, &down, 1, c->mlp_bias);
}

static void nemotron_build(struct graph_builder *b, const struct model_config *c)
{
    struct values v;

    nemotron_begin(b, &v);
    for (uint32_t i = 0; i < c->layers; i++) {
        graph_prefix(b, "backbone.layers.%u.", i);
        graph_norm(b, v.side, v.stream, "norm");
        if (c->recurrent[i])
            mamba_mixer(b, &v.mamba, v.side, "mixer");
        else if (c->forward_only[i])
            nemotron_forward(b, &v);
        else
            nemotron_attention(b, &v, i);
        graph_add(b, v.stream, v.side);
    }
    graph_prefix(b, "%s", "");
    graph_head(b, v.stream, "backbone.norm_f", "backbone.embeddings");
}

const struct model_family family_nemotron_h = {.architecture = "NemotronHForCausalLM",
                                               .head_dim = 128,
                                               .rms_eps = 1e-5,
                                               .act = "relu2",
                                               .act_key = "mlp_hidden_act",
                                               .count = nemotron_count,
                                               .configure = nemotron_configure,
                                               .build = nemotron_build};

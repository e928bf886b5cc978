/*
 * NemotronHForCausalLM (Nemotron-H, Nemotron Nano 2, Nemotron 3): each layer is one mixer behind
 * one norm, and is Mamba 2 (mamba.c), attention without positions, a feed-forward without a gate
 * whose activation is max(x, 0) squared, or experts that are such feed-forwards, chosen by sigmoids
 * with a correction, beside one that all tokens take. With moe_latent_size the experts take a
 * narrower vector, which a product makes of the hidden state, and another one widens what they
 * give.
 */
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/graph_weights.h"
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

static int kind_fault(const struct model_json *j, const char *key, const char *text)
{
    return ek_fault_set(j->fault, key,
                        "%s: %s has '%s'; supported are M (mamba, linear_attention), * (attention, "
                        "full_attention), - (mlp) and E (moe)",
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
        if (letter == 0)
            return kind_fault(j, k.key, text);
        c->recurrent[i] = letter == 'M';
        c->forward_only[i] = letter == '-' || letter == 'E';
        c->plain[i] = letter != 'E';
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

/* What a file says of experts counts where a layer has them. However many are shared, they are one
 * matrix, whose width is said by itself. */
static int nemotron_experts(const struct model_json *j, struct model_config *c)
{
    bool plain[CONFIG_LAYERS_MOST], mixed = false, given = false;
    int64_t shared = 1, latent = 0;
    const size_t bytes = c->layers * sizeof(plain[0]);
    for (uint32_t i = 0; i < c->layers; i++)
        mixed = mixed || !c->plain[i];
    if (!mixed)
        return 0;
    memcpy(plain, c->plain, bytes);
    int r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_routing(j, c);
    memcpy(c->plain, plain, bytes);
    c->routing.score = EK_SCORE_SIGMOID;
    if (r == 0)
        r = model_json_int(j, "n_shared_experts", (struct model_range){1, 64}, &shared, &given);
    if (r == 0)
        r = config_read_u32(j, "moe_shared_expert_intermediate_size", 1u << 20, 0,
                            &c->shared_intermediate);
    if (r == 0)
        r = model_json_int(j, "moe_latent_size", (struct model_range){1, 1u << 20}, &latent,
                           &given);
    c->expert_latent = (uint32_t)latent;
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
        r = nemotron_experts(j, c);
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
    c->tied = false; /* whatever the file says: the class has an output layer of its own */
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r == 0)
        r = config_read_u32(j, "mamba_head_dim", 1u << 16, 64, &c->scan.head_dim);
    return r == 0 ? mamba_configure(j, &keys, c) : r;
}

struct values {
    uint16_t stream, side, qkv, heads, inner;
    uint16_t router, mixed, shared; /* with experts, */
    uint16_t latent, given;         /* and what they take and give, where that is narrower */
    struct mamba_values mamba;
    const char *root; /* of the tensors' names */
};

static void experts_begin(struct graph_builder *b, struct values *v)
{
    const struct model_config *c = b->config;

    v->router = graph_value(b, c->experts);
    v->mixed = graph_value(b, c->hidden);
    v->shared = graph_value(b, c->shared_intermediate);
    if (c->expert_latent > 0) {
        v->latent = graph_value(b, c->expert_latent);
        v->given = graph_value(b, c->expert_latent);
    }
}

static void nemotron_begin(struct graph_builder *b, struct values *v)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    v->stream = graph_value(b, c->hidden);
    v->side = graph_value(b, c->hidden);
    v->qkv = graph_value(b, q + 2 * kv);
    v->heads = graph_value(b, q);
    v->inner = graph_value(b, c->intermediate);
    if (c->experts > 0)
        experts_begin(b, v);
    mamba_begin(b, &v->mamba);
    /* transformers 5 calls it so inside, and in what it saves with save_original_format=False */
    v->root = st_find(b->tensors, "model.embeddings.weight") ? "model." : "backbone.";
    graph_prefix(b, "%s", v->root);
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

static void nemotron_forward(struct graph_builder *b, const struct values *v, const char *name,
                             uint16_t inner)
{
    const struct model_config *c = b->config;
    const uint32_t width = graph_width(b, inner);
    char in[48], out[48];
    const struct graph_part up = {in, width}, down = {out, c->hidden};

    (void)snprintf(in, sizeof(in), "%s.up_proj", name);
    (void)snprintf(out, sizeof(out), "%s.down_proj", name);
    graph_linear(b, inner, v->side, &up, 1, c->mlp_bias);
    graph_gate(b, inner, inner, EK_GATE_RELU, (struct graph_run){.step = width, .group = width});
    graph_linear(b, v->side, inner, &down, 1, c->mlp_bias);
}

/* The chosen experts' sum to the stream, then what all tokens take in place of `side`. */
static void nemotron_mixture(struct graph_builder *b, const struct values *v)
{
    static const struct graph_expert_names names = {.up = "mixer.experts.%u.up_proj",
                                                    .down = "mixer.experts.%u.down_proj",
                                                    .correction =
                                                        "mixer.gate.e_score_correction_bias",
                                                    .all_in = "mixer.experts.up_proj",
                                                    .all_out = "mixer.experts.down_proj",
                                                    .alone = true};
    const struct model_config *c = b->config;
    const struct graph_part router = {"mixer.gate", c->experts};
    const struct graph_part narrow = {"mixer.fc1_latent_proj", c->expert_latent};
    const struct graph_part widen = {"mixer.fc2_latent_proj", c->hidden};

    graph_linear_exact(b, v->router, v->side, &router, 1);
    if (c->expert_latent > 0) {
        graph_linear(b, v->latent, v->side, &narrow, 1, c->mlp_bias);
        graph_experts(b, v->given, v->latent, v->router, &names);
        graph_linear(b, v->mixed, v->given, &widen, 1, c->mlp_bias);
    } else {
        graph_experts(b, v->mixed, v->side, v->router, &names);
    }
    graph_add(b, v->stream, v->mixed);
    nemotron_forward(b, v, "mixer.shared_experts", v->shared);
}

static void nemotron_build(struct graph_builder *b, const struct model_config *c)
{
    struct values v;

    nemotron_begin(b, &v);
    for (uint32_t i = 0; i < c->layers; i++) {
        graph_prefix(b, "%slayers.%u.", v.root, i);
        graph_norm(b, v.side, v.stream, "norm");
        if (c->recurrent[i])
            mamba_mixer(b, &v.mamba, v.side, "mixer");
        else if (!c->plain[i])
            nemotron_mixture(b, &v);
        else if (c->forward_only[i])
            nemotron_forward(b, &v, "mixer", v.inner);
        else
            nemotron_attention(b, &v, i);
        graph_add(b, v.stream, v.side);
    }
    char norm[32], embeddings[32];
    (void)snprintf(norm, sizeof(norm), "%snorm_f", v.root);
    (void)snprintf(embeddings, sizeof(embeddings), "%sembeddings", v.root);
    graph_head(b, v.stream, norm, embeddings);
}

const struct model_family family_nemotron_h = {.architecture = "NemotronHForCausalLM",
                                               .head_dim = 128,
                                               .rms_eps = 1e-5,
                                               .act = "relu2",
                                               .act_key = "mlp_hidden_act",
                                               .count = nemotron_count,
                                               .configure = nemotron_configure,
                                               .build = nemotron_build};

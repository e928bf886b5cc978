/*
 * Gemma4ForCausalLM and Gemma4UnifiedForCausalLM (the text parts of Gemma 4): norms before and
 * after each half as Gemma 3, by the weight as it is; queries, keys and values normed (values
 * without weights), scores not scaled. Layers without a window have larger heads, which turn in
 * part, and in some sizes take keys as values. In the small sizes the last layers read the keys and
 * values that an earlier one wrote, and each layer is given something of the token: a second
 * embedding, and a projection of the first. In one size experts stand beside the feed-forward, with
 * a router that norms for itself. What a layer gives is multiplied by one number.
 */
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

enum { WINDOWED, FULL, KINDS };

/* ---- config.json ---- */

/* Heads of each layer as transformers 5 writes them: those that differ from the rest, by number. */
struct own_heads {
    uint32_t dim[CONFIG_LAYERS_MOST], kv[CONFIG_LAYERS_MOST];
};

static int read_layer(const struct model_json *j, const char *name, const json_t *value,
                      const struct model_config *c, struct own_heads *h)
{
    struct model_json inner = {.file = j->file, .object = value, .fault = j->fault};
    uint32_t layer = 0;
    const char *at = name, *key;
    const json_t *v;
    for (; *at >= '0' && *at <= '9' && layer < CONFIG_LAYERS_MOST; at++)
        layer = layer * 10 + (uint32_t)(*at - '0');
    if (at == name || *at || layer >= c->layers || !json_is_object(value))
        return ek_fault_set(j->fault, "per_layer_config",
                            "%s: per_layer_config must have an object for some of the layers 0 to "
                            "%u; correct it",
                            j->file, c->layers - 1);
    json_object_foreach((json_t *)(uintptr_t)value, key, v)
    {
        if (strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0)
            return ek_fault_set(j->fault, "per_layer_config",
                                "%s: per_layer_config has '%.32s' for layer %u; supported are "
                                "head_dim and num_key_value_heads",
                                j->file, key, layer);
    }
    int r = config_read_u32(&inner, "head_dim", CONFIG_HEAD_DIM_MOST, c->head_dim, &h->dim[layer]);
    return r < 0 ? r
                 : config_read_u32(&inner, "num_key_value_heads", 1024, c->kv_heads, &h->kv[layer]);
}

static int read_layers(const struct model_json *j, const json_t *own, struct model_config *c)
{
    struct own_heads h;
    uint32_t first[KINDS] = {UINT32_MAX, UINT32_MAX};
    const char *name;
    const json_t *value;
    for (uint32_t i = 0; i < c->layers; i++) {
        h.dim[i] = c->head_dim;
        h.kv[i] = c->kv_heads;
    }
    json_object_foreach((json_t *)(uintptr_t)own, name, value)
    {
        int r = read_layer(j, name, value, c, &h);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 0; i < c->layers; i++) {
        uint32_t *of = &first[c->windowed[i] ? WINDOWED : FULL];
        *of = *of == UINT32_MAX ? i : *of;
        if (h.dim[i] != h.dim[*of] || h.kv[i] != h.kv[*of])
            return ek_fault_set(j->fault, "per_layer_config",
                                "%s: per_layer_config gives layers %u and %u, which are of one "
                                "kind, different heads; that is not supported",
                                j->file, *of, i);
    }
    if (first[FULL] != UINT32_MAX) {
        c->kinds.head_dim = h.dim[first[FULL]];
        c->kinds.kv_heads = h.kv[first[FULL]];
    }
    if (first[WINDOWED] != UINT32_MAX) {
        c->head_dim = h.dim[first[WINDOWED]];
        c->kv_heads = h.kv[first[WINDOWED]];
    }
    return 0;
}

/* Heads of layers without a window. Published files have a key for each; what the later
 * transformers saved tells it of layers. */
static int read_heads(const struct model_json *j, struct model_config *c)
{
    const json_t *own = json_object_get(j->object, "per_layer_config");
    struct config_kinds *k = &c->kinds;
    int r = config_read_bool(j, "attention_k_eq_v", false, &k->keys_as_values);
    if (r == 0 && own && !json_is_object(own) && !json_is_null(own))
        return ek_fault_set(j->fault, "per_layer_config",
                            "%s: per_layer_config must be an object; correct it", j->file);
    if (r == 0 && own)
        r = read_layers(j, own, c);
    if (r == 0 && !own)
        r = config_read_u32(j, "global_head_dim", CONFIG_HEAD_DIM_MOST, 512, &k->head_dim);
    if (r == 0 && !own && k->keys_as_values)
        r = config_read_u32(j, "num_global_key_value_heads", 1024, c->kv_heads, &k->kv_heads);
    if (r < 0)
        return r;
    if (k->head_dim % 2 != 0 || c->head_dim % 2 != 0)
        return ek_fault_set(j->fault, own ? "per_layer_config" : "global_head_dim",
                            "%s: heads of %u and %u elements: rotary positions need even numbers; "
                            "correct them",
                            j->file, c->head_dim, k->head_dim);
    const bool even = c->kv_heads > 0 && c->q_heads % c->kv_heads == 0;
    if (!even || (k->kv_heads > 0 && c->q_heads % k->kv_heads != 0))
        return ek_fault_set(j->fault, own ? "per_layer_config" : "num_global_key_value_heads",
                            "%s: num_attention_heads %u is no multiple of the %u heads of keys of "
                            "some layers; correct one of them",
                            j->file, c->q_heads, even ? k->kv_heads : c->kv_heads);
    return 0;
}

/* Each kind of layers has rotations of its own; a file that names one kind names all. */
static int check_rotations(const struct model_json *j, const struct model_config *c,
                           const json_t *named)
{
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *kind = c->windowed[i] ? "sliding_attention" : "full_attention";
        if (!json_is_object(json_object_get(named, kind)))
            return ek_fault_set(j->fault, "rope_parameters",
                                "%s: rope_parameters has no %s, which layer %u is; add it, or "
                                "leave out rope_parameters for the usual ones",
                                j->file, kind, i);
    }
    return 0;
}

/* Frequencies are those of each kind's own heads. */
static int set_ropes(const struct model_json *j, struct model_config *c)
{
    const json_t *named = json_object_get(j->object, "rope_parameters");
    if (!json_is_object(named))
        named = json_object_get(j->object, "rope_scaling");
    c->rope.dims = c->kinds.head_dim > 0 ? c->kinds.head_dim : c->head_dim;
    c->rope_local.dims = c->head_dim;
    if (json_is_object(named))
        return check_rotations(j, c, named);
    c->rope.type = ROPE_PROPORTIONAL;
    c->rope.part = 0.25;
    return 0;
}

static int read_inputs(const struct model_json *j, struct model_config *c)
{
    const char *key = "hidden_size_per_layer_input";
    int64_t input = json_object_get(j->object, key) ? 0 : 256;
    uint32_t vocab = 0;
    bool given = false;
    if (c->family == &family_gemma4_unified)
        return 0;
    int r = model_json_int(j, key, (struct model_range){0, 1u << 14}, &input, &given);
    if (r == 0)
        r = config_read_u32(j, "vocab_size_per_layer_input", 1u << 22, 262144, &vocab);
    c->kinds.input = (uint32_t)input;
    if (r == 0 && input > 0 && vocab != c->vocab)
        return ek_fault_set(j->fault, "vocab_size_per_layer_input",
                            "%s: vocab_size_per_layer_input %u differs from vocab_size %u, which "
                            "is not supported",
                            j->file, vocab, c->vocab);
    return r;
}

static int read_mixtures(const struct model_json *j, struct model_config *c)
{
    bool mixed = false;
    int r = config_read_bool(j, "enable_moe_block", false, &mixed);
    if (r < 0 || !mixed || c->family == &family_gemma4_unified)
        return r;
    c->routing.normalise = true;
    r = config_read_u32(j, "num_experts", EK_MOST_EXPERTS, 0, &c->experts);
    if (r == 0)
        r = config_read_u32(j, "top_k_experts", EK_MOST_EXPERTS_TOKEN, 0, &c->experts_per_token);
    if (r == 0)
        r = config_read_u32(j, "moe_intermediate_size", 1u << 20, 0, &c->expert_intermediate);
    if (r == 0 && c->experts_per_token > c->experts)
        return ek_fault_set(j->fault, "top_k_experts",
                            "%s: top_k_experts %u is more than the %u experts of num_experts; "
                            "correct one of them",
                            j->file, c->experts_per_token, c->experts);
    return r;
}

/* Text has no pictures, whose tokens "vision" lets see each other. */
static int check_direction(const struct model_json *j)
{
    const char *how = "vision";
    bool given = false;
    int r = model_json_string(j, "use_bidirectional_attention", &how, &given);
    if (r < 0 || strcmp(how, "vision") == 0)
        return r;
    return ek_fault_set(j->fault, "use_bidirectional_attention",
                        "%s: use_bidirectional_attention '%.32s': attention to later tokens is not "
                        "supported; take another model",
                        j->file, how);
}

static int gemma4_configure(const struct model_json *j, struct model_config *c)
{
    const uint32_t window = c->family == &family_gemma4_unified ? 1024 : 512;
    int r = check_direction(j);
    c->attention_scale = 1.0f;
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_float(j, "final_logit_softcapping", (struct model_range){1e-3, 1e6},
                              &c->logit_softcap);
    if (r == 0)
        r = config_read_window(
            j, (struct config_window){.use = true, .full_every = 6, .if_missing = window}, c);
    c->windowed[c->layers - 1] = false; /* whatever the file says */
    if (r == 0)
        r = read_heads(j, c);
    if (r == 0)
        r = config_read_shared(j, 0, c);
    if (r == 0)
        r = config_read_bool(j, "use_double_wide_mlp", false, &c->kinds.wide);
    if (r == 0)
        r = read_inputs(j, c);
    if (r == 0)
        r = read_mixtures(j, c);
    return r < 0 ? r : set_ropes(j, c);
}

/* ---- operations ---- */

/* Values of a kind's attention: q | k | v, or q alone where a layer reads; q | k where v is k. */
struct kind {
    uint16_t qkv, q, qk, heads;
};

struct gemma4 {
    struct layers l;
    struct kind kind[KINDS];
    uint16_t wide_gate_up, wide_inner; /* of layers that read */
    struct token_inputs inputs;
    uint16_t routed;
};

static void kind_begin(struct graph_builder *b, struct kind *k, struct graph_kv kv, bool k_is_v)
{
    const uint32_t q = b->config->q_heads * kv.head_dim, own = kv.heads * kv.head_dim;

    if (k->heads == 0)
        k->heads = graph_value(b, q);
    if (kv.reads && k->q == 0)
        k->q = graph_value(b, q);
    if (!kv.reads && k->qkv == 0) {
        k->qkv = graph_value(b, q + 2 * own);
        k->qk = k_is_v ? graph_value(b, q + own) : 0;
    }
}

static void gemma4_begin(struct graph_builder *b, struct gemma4 *g)
{
    const struct model_config *c = b->config;
    struct layers *l = &g->l;

    l->stream = graph_value(b, c->hidden);
    l->side = graph_value(b, c->hidden);
    l->gate_up = graph_value(b, 2 * c->intermediate);
    l->inner = graph_value(b, c->intermediate);
    for (uint32_t i = 0; i < c->layers; i++)
        kind_begin(b, &g->kind[c->windowed[i] ? WINDOWED : FULL], graph_kv_of(c, i),
                   c->kinds.keys_as_values && !c->windowed[i]);
    if (c->kinds.wide && c->kinds.shared > 0) {
        g->wide_gate_up = graph_value(b, 4 * c->intermediate);
        g->wide_inner = graph_value(b, 2 * c->intermediate);
    }
    if (c->experts > 0) {
        g->routed = graph_value(b, c->hidden);
        l->router = graph_value(b, c->experts);
        l->mixed = graph_value(b, c->hidden);
    }
    l->rope = graph_rope(b, &c->rope);
    l->rope_local = graph_rope(b, &c->rope_local);
    graph_embed(b, l->stream, "model.embed_tokens", layers_root(b->graph->dtype, c->hidden));
    if (c->kinds.input > 0)
        inputs_begin(b, &g->inputs, l->stream, c->vocab);
}

/* q | k | v of `side`, or the q that a layer that reads has; returns the value. */
static uint16_t queries_and_keys(struct graph_builder *b, const struct gemma4 *g, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct graph_kv kv = graph_kv_of(c, layer);
    const struct kind *k = &g->kind[c->windowed[layer] ? WINDOWED : FULL];
    const uint32_t q = c->q_heads * kv.head_dim, own = kv.heads * kv.head_dim;
    const struct graph_part parts[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", own}, {"self_attn.v_proj", own}};
    const bool k_is_v = !kv.reads && c->kinds.keys_as_values && !c->windowed[layer];
    const uint16_t to = kv.reads ? k->q : k->qkv;

    graph_linear(b, k_is_v ? k->qk : to, g->l.side, parts,
                 kv.reads ? 1
                 : k_is_v ? 2
                          : 3,
                 c->qkv_bias);
    if (k_is_v) {
        graph_take(b, to, k->qk, (struct graph_run){.group = q + own, .heads = 1});
        graph_take(b, to, k->qk,
                   (struct graph_run){.first = q, .group = own, .heads = 1, .to = q + own});
    }
    return to;
}

/* Experts of the stream, beside the feed-forward that is in `side` and normed after it. */
static void gemma4_experts(struct graph_builder *b, const struct gemma4 *g)
{
    const struct model_config *c = b->config;
    const struct graph_part router = {"router.proj", c->experts};
    const struct graph_expert_names names = {.each = "router.per_expert_scale",
                                             .apart = "experts",
                                             .all_in = "experts.gate_up_proj",
                                             .all_out = "experts.down_proj"};

    graph_norm(b, g->l.side, g->l.side, "post_feedforward_layernorm_1");
    graph_norm_by(b, g->routed, g->l.stream, "router.scale");
    graph_scale(b, g->routed, 1.0f / sqrtf((float)c->hidden), NULL);
    graph_linear_exact(b, g->l.router, g->routed, &router, 1);
    graph_norm(b, g->routed, g->l.stream, "pre_feedforward_layernorm_2");
    graph_experts(b, g->l.mixed, g->routed, g->l.router, &names);
    graph_norm(b, g->l.mixed, g->l.mixed, "post_feedforward_layernorm_2");
    graph_add(b, g->l.side, g->l.mixed);
}

static void gemma4_layer(struct graph_builder *b, const struct gemma4 *g, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct layers *l = &g->l;
    const bool wide = c->kinds.wide && graph_kv_of(c, layer).reads;
    const struct layers_gated narrow = {"mlp", l->side, l->gate_up, l->inner, c->intermediate};
    const struct layers_gated twice = {"mlp", l->side, g->wide_gate_up, g->wide_inner,
                                       2 * c->intermediate};

    layers_prefix(b, l, layer);
    graph_norm(b, l->side, l->stream, "input_layernorm");
    layers_attend_normed(b, l, queries_and_keys(b, g, layer),
                         g->kind[c->windowed[layer] ? WINDOWED : FULL].heads, layer);
    graph_norm(b, l->side, l->side, "post_attention_layernorm");
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->side, l->stream, "pre_feedforward_layernorm");
    layers_gated(b, l, wide ? &twice : &narrow);
    if (c->experts > 0)
        gemma4_experts(b, g);
    graph_norm(b, l->side, l->side, "post_feedforward_layernorm");
    graph_add(b, l->stream, l->side);
    if (c->kinds.input > 0) {
        inputs_of_layer(b, &g->inputs, l->stream, l->side, layer);
        graph_add(b, l->stream, l->side);
    }
    graph_scale(b, l->stream, 1.0f, "layer_scalar");
}

static void gemma4_build(struct graph_builder *b, const struct model_config *c)
{
    struct gemma4 g = {.l = {.qk_norm = NORM_HEADS}};

    gemma4_begin(b, &g);
    for (uint32_t i = 0; i < c->layers; i++)
        gemma4_layer(b, &g, i);
    layers_end(b, &g.l);
}

const struct model_family family_gemma4 = {.architecture = "Gemma4ForCausalLM",
                                           .head_dim = 256,
                                           .rope_theta = 1e6,
                                           .local_theta = 1e4,
                                           .local_rope = true,
                                           .act = "gelu_pytorch_tanh",
                                           .tied = true,
                                           .configure = gemma4_configure,
                                           .build = gemma4_build};
const struct model_family family_gemma4_unified = {.architecture = "Gemma4UnifiedForCausalLM",
                                                   .head_dim = 256,
                                                   .rope_theta = 1e6,
                                                   .local_theta = 1e4,
                                                   .local_rope = true,
                                                   .act = "gelu_pytorch_tanh",
                                                   .tied = true,
                                                   .configure = gemma4_configure,
                                                   .build = gemma4_build};

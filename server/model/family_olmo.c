/*
 * OlmoForCausalLM (OLMo 1): LayerNorms without weights, q, k and v may be clipped. Olmo2ForCausalLM
 * and Olmo3ForCausalLM: norms only after attention and feed-forward, and on q and k over all their
 * heads. Olmo3 has a window in three layers of four, and there plain frequencies.
 * OlmoHybridForCausalLM: three layers of four have linear attention (delta.c) behind a norm
 * instead; without a rope_theta nothing turns. Norms go by two names, that of Hugging Face's files
 * and that of the code. FlexOlmoForCausalLM: Olmo2 with a mixture of experts in every layer.
 */
#include <stdio.h>

#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"
#include "server/model/safetensors.h"

static int olmo2_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r;
}

static int olmo_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_clip(j, c);
    c->norm_centred = true;
    c->norm_bare = true;
    c->rms_eps = 1e-5; /* which no key says */
    return r < 0 ? r : olmo2_configure(j, c);
}

static int olmo3_configure(const struct model_json *j, struct model_config *c)
{
    int r = olmo2_configure(j, c);
    return r < 0 ? r
                 : config_read_window(j, (struct config_window){.use = true, .full_every = 4}, c);
}

static void olmo1_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {0};

    layers_write(b, &l, c);
}

static void olmo_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_WHOLE, .experts = {.router = "mlp.gate", GRAPH_MLP_EXPERTS}};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_post_norm(b, &l, i);
    layers_end(b, &l);
}

static int flex_olmo_configure(const struct model_json *j, struct model_config *c)
{
    int r = olmo2_configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "intermediate_size", c);
    return r < 0 ? r : config_read_bool(j, "norm_topk_prob", false, &c->routing.normalise);
}

static int olmo_hybrid_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *rope = json_object_get(j->object, "rope_parameters");
    const bool turns = json_is_number(json_object_get(j->object, "rope_theta")) ||
                       json_is_number(json_object_get(rope, "rope_theta"));
    const uint32_t k_dim = 3 * c->hidden / (4 * c->q_heads);
    int r = olmo2_configure(j, c);
    if (r == 0)
        r = config_read_delta_layers(j, c);
    if (r == 0)
        r = config_read_delta(j,
                              (struct config_delta){.k_heads = c->q_heads,
                                                    .v_heads = c->q_heads,
                                                    .k_dim = k_dim > 0 ? k_dim : 1,
                                                    .v_dim = 2 * k_dim},
                              c);
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = !turns;
    return r < 0 ? r : config_read_bool(j, "linear_allow_neg_eigval", true, &c->delta.twice);
}

/* The one of two names that the layer's files have. */
static const char *norm_name(const struct graph_builder *b, const char *saved, const char *code)
{
    char full[160];
    (void)snprintf(full, sizeof(full), "%s%s.weight", b->prefix, saved);
    return st_find(b->tensors, full) ? saved : code;
}

static void olmo_hybrid_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_WHOLE, .delta_apart = true};
    uint32_t first = 0;

    layers_begin(b, &l);
    while (first < c->layers && !c->recurrent[first])
        first++;
    if (first < c->layers)
        delta_begin_apart(b, &l, first);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        const char *middle = norm_name(b, "feedforward_layer_norm", "post_attention_layernorm");
        if (c->recurrent[i]) {
            graph_norm(b, l.side, l.stream,
                       norm_name(b, "attention_layer_norm", "input_layernorm"));
            delta_attention(b, &l, l.side);
            graph_add(b, l.stream, l.side);
            graph_norm(b, l.side, l.stream, middle);
            layers_feed_forward(b, &l);
            graph_add(b, l.stream, l.side);
            continue;
        }
        layers_attention_of(b, &l, l.stream, i);
        graph_norm(b, l.side, l.side, middle);
        graph_add(b, l.stream, l.side);
        layers_feed_forward_of(b, &l, l.stream);
        graph_norm(b, l.side, l.side, "post_feedforward_layernorm");
        graph_add(b, l.stream, l.side);
    }
    layers_end(b, &l);
}

const struct model_family family_olmo_hybrid = {.architecture = "OlmoHybridForCausalLM",
                                                .configure = olmo_hybrid_configure,
                                                .build = olmo_hybrid_build};
const struct model_family family_olmo = {
    .architecture = "OlmoForCausalLM", .configure = olmo_configure, .build = olmo1_build};
const struct model_family family_olmo2 = {.architecture = "Olmo2ForCausalLM",
                                          .rms_eps = 1e-5,
                                          .configure = olmo2_configure,
                                          .build = olmo_build};
const struct model_family family_flex_olmo = {.architecture = "FlexOlmoForCausalLM",
                                              .rope_theta = 5e5,
                                              .configure = flex_olmo_configure,
                                              .build = olmo_build};
const struct model_family family_olmo3 = {.architecture = "Olmo3ForCausalLM",
                                          .rms_eps = 1e-5,
                                          .rope_theta = 5e5,
                                          .local_rope = true,
                                          .configure = olmo3_configure,
                                          .build = olmo_build};

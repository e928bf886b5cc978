/*
 * GlmForCausalLM and Glm4ForCausalLM (GLM-4 of 9B and 32B): gate and up stored as one matrix, half
 * of each head turns, in pairs of neighbours; in the second a norm also after attention and
 * feed-forward. Glm4MoeForCausalLM (GLM-4.5, 4.6, 4.7): first layers that are plain, then mixtures
 * with sigmoid scores, a correction of the choice and experts that all tokens share; pairs of a
 * head lie half of it apart. Layers for drafts at the end of its files are passed over.
 * SolarOpenForCausalLM is that with mixtures in all layers, and Dots1ForCausalLM that with norms on
 * the heads of q and k, and a sliding window in layers from one on where its file has one.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int glm_configure(const struct model_json *j, struct model_config *c)
{
    c->neighbours = true;
    return config_read_bool(j, "attention_bias", c->family == &family_glm, &c->qkv_bias);
}

static int glm4_moe_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "use_qk_norm", false, &c->qk_norm);
    if (r == 0)
        r = config_read_experts(j, "moe_intermediate_size", c);
    c->routing.score = EK_SCORE_SIGMOID;
    return r < 0 ? r : config_read_routing(j, c);
}

static int solar_open_configure(const struct model_json *j, struct model_config *c)
{
    int r = glm4_moe_configure(j, c);

    c->o_bias = false;
    c->qk_norm = false;
    return r;
}

static int dots1_configure(const struct model_json *j, struct model_config *c)
{
    int64_t first = 62;
    bool given = false;
    int r = glm4_moe_configure(j, c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", false, &c->routing.normalise);
    if (r == 0)
        r = model_json_int(j, "max_window_layers", (struct model_range){0, 1u << 20}, &first,
                           &given);
    const struct config_window w = {
        .use = true, .first_layer = (uint32_t)first, .if_missing = 4096};
    c->o_bias = c->qkv_bias;
    c->qk_norm = true;
    return r < 0 ? r : config_read_window(j, w, c);
}

static void glm_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.fused_gate_up = true};

    layers_write(b, &l, c);
}

static void glm4_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.fused_gate_up = true};
    static const struct layer_norms names = {.after_attention = "post_self_attn_layernorm",
                                             .before_mlp = "post_attention_layernorm",
                                             .after_mlp = "post_mlp_layernorm"};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_both_norms(b, &l, &names, i);
    layers_end(b, &l);
}

static void glm4_moe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_HEADS : NORM_NONE,
                       .shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate",
                                   .correction = "mlp.gate.e_score_correction_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

const struct model_family family_glm = {.architecture = "GlmForCausalLM",
                                        .head_dim = 128,
                                        .rms_eps = 1.5625e-7,
                                        .partial_rotary = true,
                                        .partial = 0.5,
                                        .configure = glm_configure,
                                        .build = glm_build};
const struct model_family family_glm4 = {.architecture = "Glm4ForCausalLM",
                                         .head_dim = 128,
                                         .rms_eps = 1.5625e-7,
                                         .partial_rotary = true,
                                         .partial = 0.5,
                                         .configure = glm_configure,
                                         .build = glm4_build};
const struct model_family family_glm4_moe = {.architecture = "Glm4MoeForCausalLM",
                                             .rms_eps = 1e-5,
                                             .partial_rotary = true,
                                             .partial = 0.5,
                                             .configure = glm4_moe_configure,
                                             .build = glm4_moe_build};
const struct model_family family_solar_open = {
    .architecture = "SolarOpenForCausalLM",
    .head_dim = 128,
    .rope_theta = 1e6,
    .rms_eps = 1e-5,
    .keys = {{"intermediate_size", "moe_intermediate_size"}},
    .partial_rotary = true,
    .configure = solar_open_configure,
    .build = glm4_moe_build};
const struct model_family family_dots1 = {
    .architecture = "Dots1ForCausalLM", .configure = dots1_configure, .build = glm4_moe_build};

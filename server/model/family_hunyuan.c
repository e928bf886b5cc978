/*
 * HunYuanDenseV1ForCausalLM: norms on the heads of q and k after they turned, and frequencies of a
 * base that is stretched once (`alpha`). HunYuanMoEV1ForCausalLM (Hunyuan A13B) has mixtures in all
 * layers, with shares of the chosen experts' softmax, beside a feed-forward that all tokens take.
 * Its files have a number for each layer, of which all must be one. HYV3ForCausalLM (Hy3) has norms
 * on the heads of q and k before they turn, a first layer that is plain, then mixtures with sigmoid
 * scores and a correction of the choice, beside what all tokens take.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int hunyuan_configure(const struct model_json *j, struct model_config *c)
{
    bool shares = false, norms = true;
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "use_cla", false, &shares);
    if (r == 0)
        r = config_read_bool(j, "use_qk_norm", true, &norms);
    if (r == 0 && (shares || !norms))
        return ek_fault_set(j->fault, shares ? "use_cla" : "use_qk_norm",
                            "%s: %s is not supported; transformers has no such %s either", j->file,
                            shares ? "use_cla true" : "use_qk_norm false", c->family->architecture);
    return r;
}

static int hunyuan_moe_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t shared = 1;
    int r = hunyuan_configure(j, c);
    c->experts_per_token = 1;
    c->expert_intermediate = c->intermediate;
    c->routing.normalise = true;
    if (r == 0)
        r = config_read_same(j, "num_experts", EK_MOST_EXPERTS, &c->experts);
    if (r == 0)
        r = config_read_same(j, "moe_topk", EK_MOST_EXPERTS_TOKEN, &c->experts_per_token);
    if (r == 0)
        r = config_read_same(j, "moe_intermediate_size", 1u << 20, &c->expert_intermediate);
    if (r == 0)
        r = config_read_same(j, "num_shared_expert", 64, &shared);
    if (r == 0 && (c->experts == 0 || c->experts_per_token > c->experts))
        r = ek_fault_set(j->fault, "moe_topk",
                         "%s: moe_topk %u is more than num_experts %u; correct one of them",
                         j->file, c->experts_per_token, c->experts);
    c->shared_intermediate = shared * c->intermediate;
    return r;
}

static int hy_v3_experts(const struct model_json *j, struct model_config *c)
{
    static const char usual[] = "moe_intermediate_size";
    const char *inner = json_object_get(j->object, usual) ? usual : "expert_hidden_dim";
    uint32_t first = 1, shared = 1;
    int r = config_read_experts(j, inner, c);
    c->routing.score = EK_SCORE_SIGMOID;
    c->routing.scale = 2.826f;
    if (r == 0)
        r = config_read_routing(j, c);
    if (r == 0)
        r = config_read_bool(j, "route_norm", true, &c->routing.normalise);
    if (r == 0)
        r = config_read_float(j, "router_scaling_factor", (struct model_range){1e-6, 1e6},
                              &c->routing.scale);
    if (r == 0)
        r = config_read_u32(j, "num_shared_experts", 64, 1, &shared);
    c->shared_intermediate = shared * c->expert_intermediate;
    if (json_object_get(j->object, "first_k_dense_replace"))
        first = 0; /* read above */
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = c->plain[i] || i < first;
    return r < 0 ? r : config_read_mlp_types(j, c);
}

static int hy_v3_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r == 0)
        r = config_read_bool(j, "qk_norm", true, &c->qk_norm);
    return r < 0 ? r : hy_v3_experts(j, c);
}

static void hunyuan_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_TURNED,
                       .q_norm = "self_attn.query_layernorm",
                       .k_norm = "self_attn.key_layernorm"};

    layers_write(b, &l, c);
}

static void hunyuan_moe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_TURNED,
                       .q_norm = "self_attn.query_layernorm",
                       .k_norm = "self_attn.key_layernorm",
                       .shared = "mlp.shared_mlp",
                       .experts = {.router = "mlp.gate.wg", GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

static void hy_v3_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_HEADS : NORM_NONE,
                       .shared = "mlp.shared_mlp",
                       .experts = {.router = "mlp.router.gate",
                                   .correction = "mlp.expert_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

const struct model_family family_hy_v3 = {.architecture = "HYV3ForCausalLM",
                                          .head_dim = 128,
                                          .rope_theta = 11158840,
                                          .rms_eps = 1e-5,
                                          .configure = hy_v3_configure,
                                          .build = hy_v3_build};
const struct model_family family_hunyuan = {.architecture = "HunYuanDenseV1ForCausalLM",
                                            .rms_eps = 1e-5,
                                            .rope_alpha = true,
                                            .configure = hunyuan_configure,
                                            .build = hunyuan_build};
const struct model_family family_hunyuan_moe = {.architecture = "HunYuanMoEV1ForCausalLM",
                                                .rms_eps = 1e-5,
                                                .rope_alpha = true,
                                                .configure = hunyuan_moe_configure,
                                                .build = hunyuan_moe_build};

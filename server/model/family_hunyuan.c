/*
 * HunYuanDenseV1ForCausalLM: norms on the heads of q and k after they turned, and frequencies of a
 * base that is stretched once (`alpha`). HunYuanMoEV1ForCausalLM (Hunyuan A13B) has mixtures in all
 * layers, with shares of the chosen experts' softmax, beside a feed-forward that all tokens take.
 * Its files have a number for each layer, of which all must be one.
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

/* A number, or a list of one number for all layers; not there or null: as it is. */
static int same_number(const struct model_json *j, const char *key, uint32_t max, uint32_t *number)
{
    const json_t *v = json_object_get(j->object, key);
    if (!v || json_is_null(v))
        return 0;
    const json_int_t first = json_integer_value(json_is_array(v) ? json_array_get(v, 0) : v);
    bool same = json_is_integer(v) || json_array_size(v) > 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *each = json_array_get(v, i);
        same = same && json_is_integer(each) && json_integer_value(each) == first;
    }
    if (!same || first < 1 || first > max)
        return ek_fault_set(j->fault, key,
                            "%s: %s must be a number from 1 to %u, the same for each layer",
                            j->file, key, max);
    *number = (uint32_t)first;
    return 0;
}

static int hunyuan_moe_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t shared = 1;
    int r = hunyuan_configure(j, c);
    c->experts_per_token = 1;
    c->expert_intermediate = c->intermediate;
    c->routing.normalise = true;
    if (r == 0)
        r = same_number(j, "num_experts", EK_MOST_EXPERTS, &c->experts);
    if (r == 0)
        r = same_number(j, "moe_topk", EK_MOST_EXPERTS_TOKEN, &c->experts_per_token);
    if (r == 0)
        r = same_number(j, "moe_intermediate_size", 1u << 20, &c->expert_intermediate);
    if (r == 0)
        r = same_number(j, "num_shared_expert", 64, &shared);
    if (r == 0 && (c->experts == 0 || c->experts_per_token > c->experts))
        r = ek_fault_set(j->fault, "moe_topk",
                         "%s: moe_topk %u is more than num_experts %u; correct one of them",
                         j->file, c->experts_per_token, c->experts);
    c->shared_intermediate = shared * c->intermediate;
    return r;
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

/*
 * HunYuanDenseV1ForCausalLM: norms on the heads of q and k after they turned, and frequencies of a
 * base that is stretched once (`alpha`).
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int configure(const struct model_json *j, struct model_config *c)
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

static void build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_TURNED,
                       .q_norm = "self_attn.query_layernorm",
                       .k_norm = "self_attn.key_layernorm"};

    layers_write(b, &l, c);
}

const struct model_family family_hunyuan = {.architecture = "HunYuanDenseV1ForCausalLM",
                                            .rms_eps = 1e-5,
                                            .rope_alpha = true,
                                            .configure = configure,
                                            .build = build};

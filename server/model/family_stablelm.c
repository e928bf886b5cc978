/*
 * StableLmForCausalLM (StableLM 3B, Zephyr, Stable Code, StableLM 2): LayerNorms with a bias, a
 * quarter of each head turns. The largest has attention and feed-forward beside each other behind
 * one norm, and a norm of its own for each head of q and k.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int stablelm_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "use_qkv_bias", false, &c->qkv_bias);

    c->norm_centred = true;
    c->norm_bias = true;
    if (r == 0)
        r = config_read_bool(j, "use_parallel_residual", false, &c->parallel);
    return r < 0 ? r : config_read_bool(j, "qk_layernorm", false, &c->qk_norm);
}

static void stablelm_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_EACH : NORM_NONE,
                       .q_norm = "self_attn.q_layernorm.norms",
                       .k_norm = "self_attn.k_layernorm.norms"};

    if (!c->parallel) {
        layers_write(b, &l, c);
        return;
    }
    layers_begin(b, &l);
    layers_parallel(b, &l, c);
    layers_end(b, &l);
}

const struct model_family family_stablelm = {.architecture = "StableLmForCausalLM",
                                             .rms_eps = 1e-5,
                                             .eps_key = "layer_norm_eps",
                                             .partial_rotary = true,
                                             .partial = 0.25,
                                             .configure = stablelm_configure,
                                             .build = stablelm_build};

/*
 * GraniteForCausalLM (Granite 3 and 4 dense): as Llama, with four multipliers: of the embedding, of
 * attention scores, of what each half of a layer adds, and a divisor of the logits.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int granite_configure(const struct model_json *j, struct model_config *c)
{
    const struct model_range scales = {1e-6, 1e6};
    float divisor = 1.0f;
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    c->attention_scale = 1.0f;
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r == 0)
        r = config_read_float(j, "embedding_multiplier", scales, &c->embed_scale);
    if (r == 0)
        r = config_read_float(j, "attention_multiplier", scales, &c->attention_scale);
    if (r == 0)
        r = config_read_float(j, "residual_multiplier", scales, &c->residual_scale);
    if (r == 0)
        r = config_read_float(j, "logits_scaling", scales, &divisor);
    c->logits_scale = 1.0f / divisor;
    return r;
}

static void granite_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_write(b, &l, c);
}

const struct model_family family_granite = {
    .architecture = "GraniteForCausalLM", .configure = granite_configure, .build = granite_build};

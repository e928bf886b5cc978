/*
 * GraniteForCausalLM (Granite 3 and 4 dense): as Llama, with four multipliers: of the embedding, of
 * attention scores, of what each half of a layer adds, and a divisor of the logits.
 * HyperCLOVAXForCausalLM (HyperCLOVA X SEED) multiplies the logits by that number, scales scores as
 * usual where its file says nothing, and norms what each half adds.
 */
#include <math.h>

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

static int hyperclovax_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *scores = json_object_get(j->object, "attention_multiplier");
    int r = granite_configure(j, c);

    c->logits_scale = 1.0f / c->logits_scale;
    if (!scores || json_is_null(scores))
        c->attention_scale = 1.0f / sqrtf((float)c->head_dim);
    return r < 0 ? r : config_read_bool(j, "use_post_norm", true, &c->post_norms);
}

static void hyperclovax_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};
    static const struct layer_norms names = {.after_attention = "post_norm1",
                                             .before_mlp = "post_attention_layernorm",
                                             .after_mlp = "post_norm2"};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->post_norms)
            layers_both_norms(b, &l, &names, i);
        else
            layers_pre_norm(b, &l, i);
    }
    layers_end(b, &l);
}

const struct model_family family_granite = {
    .architecture = "GraniteForCausalLM", .configure = granite_configure, .build = granite_build};
const struct model_family family_hyperclovax = {.architecture = "HyperCLOVAXForCausalLM",
                                                .configure = hyperclovax_configure,
                                                .build = hyperclovax_build};

/*
 * GraniteForCausalLM (Granite 3 and 4 dense): as Llama, with four multipliers: of the embedding, of
 * attention scores, of what each half of a layer adds, and a divisor of the logits.
 * GraniteSWAForCausalLM has sinks, windows in most layers, and a base of frequencies for each
 * layer, 0 where it does not turn: of one kind of layers the bases that turn must be one.
 * HyperCLOVAXForCausalLM (HyperCLOVA X SEED Think 14B) multiplies the logits by that number, scales
 * scores as usual where its file says nothing, and norms what each half adds.
 */
#include <math.h>

#include "common/err.h"
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

/* The base of each layer's frequencies, by layer_rope_theta. */
static int read_thetas(const struct model_json *j, struct model_config *c)
{
    static const char KEY[] = "layer_rope_theta";
    const json_t *list = json_object_get(j->object, KEY);
    double of[2] = {0, 0}; /* of layers that see all, and of those with a window */

    if (!list || json_is_null(list))
        return 0;
    if (json_array_size(list) != c->layers)
        return ek_fault_set(j->fault, KEY, "%s: %s must have a number for each of the %u layers",
                            j->file, KEY, c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const json_t *v = json_array_get(list, i);
        const double theta = json_number_value(v);
        double *kind = &of[c->windowed[i]];
        if (!json_is_number(v) || theta < 0 || theta > 1e12 || (theta > 0 && theta < 1))
            return ek_fault_set(j->fault, KEY, "%s: %s of layer %u must be 0, or from 1 to 1e12",
                                j->file, KEY, i);
        c->unrotated[i] = theta <= 0;
        if (theta > 0 && *kind > 0 && theta != *kind)
            return ek_fault_set(j->fault, KEY,
                                "%s: %s gives layers of one kind %g and %g, which is not "
                                "supported; they must be one, or 0",
                                j->file, KEY, *kind, theta);
        *kind = theta > 0 ? theta : *kind;
    }
    c->rope_local = c->rope;
    c->rope.theta = of[0] > 0 ? of[0] : c->rope.theta;
    c->rope_local.theta = of[1] > 0 ? of[1] : c->rope_local.theta;
    c->local_rope = true;
    return 0;
}

static int granite_swa_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    int r = granite_configure(j, c);

    c->sinks = true;
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = true, .if_missing = 128}, c);
    for (uint32_t i = 0; (!types || json_is_null(types)) && i < c->layers; i++)
        c->windowed[i] = i % 4 != 0;
    return r < 0 ? r : read_thetas(j, c);
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
const struct model_family family_granite_swa = {.architecture = "GraniteSWAForCausalLM",
                                                .rms_eps = 1e-5,
                                                .tied = true,
                                                .configure = granite_swa_configure,
                                                .build = granite_build};
const struct model_family family_hyperclovax = {.architecture = "HyperCLOVAXForCausalLM",
                                                .configure = hyperclovax_configure,
                                                .build = hyperclovax_build};

/*
 * Exaone4ForCausalLM: norms only after attention and feed-forward, and on the heads of q and k.
 * Where it has windows, the layers without one have no rotary positions. ExaoneMoeForCausalLM
 * (K-EXAONE) has the same positions, norms before each half, and mixtures as DeepSeek-V3's.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int exaone_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    const json_t *window = json_object_get(j->object, "sliding_window");
    const bool none = json_is_null(window);
    uint32_t pattern = 4;
    int r = 0;
    if (json_is_string(json_object_get(j->object, "sliding_window_pattern"))) {
        if (!none && !json_is_array(types))
            r = ek_fault_set(j->fault, "layer_types",
                             "%s: layer_types is missing beside sliding_window_pattern; download "
                             "the file again",
                             j->file);
    } else if (!none) {
        r = config_read_u32(j, "sliding_window_pattern", 1u << 20, 4, &pattern);
    }
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = true, .full_every = pattern}, c);
    if (!window)
        c->window = 4096;
    for (uint32_t i = 0; r == 0 && i < c->layers; i++)
        c->unrotated[i] = c->window > 0 && !c->windowed[i];
    return r;
}

static int exaone_moe_configure(const struct model_json *j, struct model_config *c)
{
    int64_t shared = 1;
    bool given = false;
    int r = exaone_configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "moe_intermediate_size", c);
    c->routing.score = EK_SCORE_SIGMOID;
    c->routing.scale = 2.5f;
    if (r == 0)
        r = config_read_routing(j, c);
    if (r == 0)
        r = model_json_int(j, "num_shared_experts", (struct model_range){0, 64}, &shared, &given);
    c->shared_intermediate = (uint32_t)shared * c->expert_intermediate;
    c->plain[0] = c->plain[0] || !json_object_get(j->object, "first_k_dense_replace");
    return r < 0 ? r : config_read_mlp_types(j, c);
}

static void exaone_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_post_norm(b, &l, i);
    layers_end(b, &l);
}

static void exaone_moe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS,
                       .shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate",
                                   .correction = "mlp.e_score_correction_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

const struct model_family family_exaone4 = {.architecture = "Exaone4ForCausalLM",
                                            .rms_eps = 1e-5,
                                            .configure = exaone_configure,
                                            .build = exaone_build};
const struct model_family family_exaone_moe = {.architecture = "ExaoneMoeForCausalLM",
                                               .rms_eps = 1e-5,
                                               .configure = exaone_moe_configure,
                                               .build = exaone_moe_build};
/* As published checkpoints and other servers spell it. */
const struct model_family family_exaone_moe_hub = {.architecture = "ExaoneMoEForCausalLM",
                                                   .rms_eps = 1e-5,
                                                   .configure = exaone_moe_configure,
                                                   .build = exaone_moe_build};

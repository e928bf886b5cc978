/*
 * Olmo2ForCausalLM and Olmo3ForCausalLM: norms only after attention and feed-forward, and on q and
 * k over all their heads. Olmo3 has a window in three layers of four, and there plain frequencies.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int olmo2_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r;
}

static int olmo3_configure(const struct model_json *j, struct model_config *c)
{
    int r = olmo2_configure(j, c);
    return r < 0 ? r
                 : config_read_window(j, (struct config_window){.use = true, .full_every = 4}, c);
}

static void olmo_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_WHOLE};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_post_norm(b, &l, i);
    layers_end(b, &l);
}

const struct model_family family_olmo2 = {.architecture = "Olmo2ForCausalLM",
                                          .rms_eps = 1e-5,
                                          .configure = olmo2_configure,
                                          .build = olmo_build};
const struct model_family family_olmo3 = {.architecture = "Olmo3ForCausalLM",
                                          .rms_eps = 1e-5,
                                          .rope_theta = 5e5,
                                          .local_rope = true,
                                          .configure = olmo3_configure,
                                          .build = olmo_build};

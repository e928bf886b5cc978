/*
 * CohereForCausalLM (Command R, Aya Expanse) and Cohere2ForCausalLM (Command R7B, Command A):
 * attention and feed-forward read the same normed input, and what both give is added. Norms take
 * the mean off and have no bias; logits are scaled; rotary pairs are neighbours. The first may have
 * norms of q and k with weights for each head; in the second layers without a window have no
 * rotary positions.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int cohere_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->norm_centred = true;
    c->neighbours = true;
    c->logits_scale = 0.0625f;
    if (r == 0) /* in Command A Vision too, as in vLLM; transformers leaves it out there */
        r = config_read_float(j, "logit_scale", (struct model_range){1e-6, 1e6}, &c->logits_scale);
    return r < 0 ? r : config_read_bool(j, "use_qk_norm", false, &c->qk_norm);
}

static int cohere2_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t pattern = 4;
    int r = cohere_configure(j, c);

    if (r == 0)
        r = config_read_u32(j, "sliding_window_pattern", 1u << 20, 4, &pattern);
    if (r == 0)
        r = config_read_window(
            j, (struct config_window){.use = true, .full_every = pattern, .if_missing = 4096}, c);
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = c->window == 0 || !c->windowed[i];
    return r;
}

static void cohere_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_OWN : NORM_NONE};

    layers_begin(b, &l);
    layers_parallel(b, &l, c);
    layers_end(b, &l);
}

const struct model_family family_cohere = {.architecture = "CohereForCausalLM",
                                           .rope_theta = 5e5,
                                           .rms_eps = 1e-5,
                                           .eps_key = "layer_norm_eps",
                                           .tied = true,
                                           .configure = cohere_configure,
                                           .build = cohere_build};
const struct model_family family_cohere2 = {.architecture = "Cohere2ForCausalLM",
                                            .rms_eps = 1e-5,
                                            .eps_key = "layer_norm_eps",
                                            .tied = true,
                                            .configure = cohere2_configure,
                                            .build = cohere_build};

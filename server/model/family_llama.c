/*
 * LlamaForCausalLM, MistralForCausalLM and MinistralForCausalLM: pre-norm, grouped-query attention
 * with rotary positions, gated feed-forward. Llama may have biases, the others a sliding window
 * (Ministral in some layers).
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int llama_configure(const struct model_json *j, struct model_config *c)
{
    bool bias = false;
    int r = config_read_bool(j, "attention_bias", false, &bias);
    c->qkv_bias = bias;
    c->o_bias = bias;
    return r < 0 ? r : config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
}

static int mistral_configure(const struct model_json *j, struct model_config *c)
{
    return config_read_window(j, (struct config_window){.use = true}, c);
}

static int seed_oss_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", true, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "attention_out_bias", false, &c->o_bias);
    return r < 0 ? r : config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
}

/* Queries grow with the position, which rope_parameters tell. */
static int ministral3_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *inner = json_object_get(j->object, "rope_parameters");
    if (!json_is_object(inner))
        inner = json_object_get(j->object, "rope_scaling");
    const struct model_json rope = {.file = j->file, .object = inner, .fault = j->fault};
    uint32_t every = c->max_model_len;
    int r =
        config_read_float(&rope, "llama_4_scaling_beta", (struct model_range){0, 100}, &c->warm);
    if (r == 0)
        r = config_read_u32(&rope, "original_max_position_embeddings", 1u << 26, every, &every);
    c->warm_every = c->warm > 0 ? every : 0;
    return r < 0 ? r : mistral_configure(j, c);
}

static void llama_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_write(b, &l, c);
}

const struct model_family family_llama = {
    .architecture = "LlamaForCausalLM", .configure = llama_configure, .build = llama_build};
const struct model_family family_mistral = {
    .architecture = "MistralForCausalLM", .configure = mistral_configure, .build = llama_build};
const struct model_family family_ministral = {
    .architecture = "MinistralForCausalLM", .configure = mistral_configure, .build = llama_build};
const struct model_family family_ministral3 = {.architecture = "Ministral3ForCausalLM",
                                               .head_dim = 128,
                                               .rope_theta = 1e6,
                                               .rms_eps = 1e-5,
                                               .configure = ministral3_configure,
                                               .build = llama_build};
const struct model_family family_seed_oss = {.architecture = "SeedOssForCausalLM",
                                             .head_dim = 128,
                                             .configure = seed_oss_configure,
                                             .build = llama_build};

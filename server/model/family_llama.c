/*
 * LlamaForCausalLM, MistralForCausalLM and MinistralForCausalLM: pre-norm, grouped-query attention
 * with rotary positions, gated feed-forward. Llama may have biases, the others a sliding window
 * (Ministral in some layers).
 */
#include "server/model/config.h"
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

static void llama_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_pre_norm(b, &l, i);
    layers_end(b, &l);
}

const struct model_family family_llama = {
    .architecture = "LlamaForCausalLM", .configure = llama_configure, .build = llama_build};
const struct model_family family_mistral = {
    .architecture = "MistralForCausalLM", .configure = mistral_configure, .build = llama_build};
const struct model_family family_ministral = {
    .architecture = "MinistralForCausalLM", .configure = mistral_configure, .build = llama_build};

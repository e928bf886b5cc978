/*
 * LlamaForCausalLM, MistralForCausalLM and MinistralForCausalLM: pre-norm, grouped-query attention
 * with rotary positions, gated feed-forward. Llama may have biases, the others a sliding window
 * (Ministral in some layers). CwmForCausalLM: a window in all but every fourth layer.
 * ArceeForCausalLM (AFM): the feed-forward has no gate, its activation is max(x, 0) squared.
 * HeliumForCausalLM (Helium 1): rotary pairs of neighbours, and no bias after attention.
 * IQuestCoderForCausalLM and InternLM3ForCausalLM are Llama's, the second with other names for its
 * biases.
 */
#include "common/err.h"
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

static int helium_configure(const struct model_json *j, struct model_config *c)
{
    int r = llama_configure(j, c);
    c->o_bias = false;
    c->neighbours = true;
    return r;
}

/* `qkv_bias` for q, k and v, `bias` for all else. What transformers writes of such a model has
 * Llama's class and keys. */
static int internlm3_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "qkv_bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "bias", false, &c->mlp_bias);
    c->o_bias = c->mlp_bias;
    return r;
}

/* Llama's, with keys of Qwen 2's window and of OLMo's bound on q, k and v that are not in use. */
static int iquestcoder_configure(const struct model_json *j, struct model_config *c)
{
    bool window = false;
    int r = config_read_bool(j, "use_sliding_window", false, &window);
    if (r == 0 && window)
        return ek_fault_set(j->fault, "use_sliding_window",
                            "%s: use_sliding_window is not supported for IQuestCoder; it must be "
                            "false",
                            j->file);
    if (r == 0)
        r = config_refuse_clip(j);
    return r < 0 ? r : llama_configure(j, c);
}

static int cwm_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    int r = config_read_window(j, (struct config_window){.use = true, .if_missing = 8192}, c);

    for (uint32_t i = 0; r == 0 && i < c->layers && !json_is_array(types); i++)
        c->windowed[i] = i % 4 != 0;
    return r;
}

static int ministral3_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_warm(j, c);

    return r < 0 ? r : mistral_configure(j, c);
}

static void llama_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_write(b, &l, c);
}

static void arcee_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.ungated = true, .of_itself = EK_GATE_RELU};

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
const struct model_family family_cwm = {.architecture = "CwmForCausalLM",
                                        .head_dim = 128,
                                        .rope_theta = 1e6,
                                        .rms_eps = 1e-5,
                                        .configure = cwm_configure,
                                        .build = llama_build};
const struct model_family family_iquestcoder = {.architecture = "IQuestCoderForCausalLM",
                                                .head_dim = 128,
                                                .rms_eps = 1e-5,
                                                .configure = iquestcoder_configure,
                                                .build = llama_build};
const struct model_family family_internlm3 = {.architecture = "InternLM3ForCausalLM",
                                              .head_dim = 128,
                                              .rms_eps = 1e-5,
                                              .configure = internlm3_configure,
                                              .build = llama_build};
const struct model_family family_helium = {.architecture = "HeliumForCausalLM",
                                           .head_dim = 128,
                                           .rope_theta = 1e5,
                                           .rms_eps = 1e-8,
                                           .configure = helium_configure,
                                           .build = llama_build};
const struct model_family family_arcee = {.architecture = "ArceeForCausalLM",
                                          .rms_eps = 1e-5,
                                          .act = "relu2",
                                          .act_key = "hidden_act",
                                          .configure = llama_configure,
                                          .build = arcee_build};

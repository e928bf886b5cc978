/*
 * Qwen2ForCausalLM (biases on q, k, v) and Qwen3ForCausalLM (norms on each head of q and k before
 * they are rotated). Both may have a sliding window in the layers from max_window_layers on.
 * MiMoForCausalLM (MiMo 7B) is Qwen2's; its layers for drafts are left in the files.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int window_configure(const struct model_json *j, struct model_config *c)
{
    bool use = false, given = false;
    int64_t first = 28;
    int r = config_read_bool(j, "use_sliding_window", false, &use);
    if (r == 0)
        r = model_json_int(j, "max_window_layers", (struct model_range){0, 1u << 20}, &first,
                           &given);
    const struct config_window w = {.use = use, .first_layer = (uint32_t)first, .if_missing = 4096};
    return r < 0 ? r : config_read_window(j, w, c);
}

static int qwen2_configure(const struct model_json *j, struct model_config *c)
{
    c->qkv_bias = true;
    return window_configure(j, c);
}

static int qwen3_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r < 0 ? r : window_configure(j, c);
}

static void qwen2_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_write(b, &l, c);
}

static void qwen3_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS};

    layers_write(b, &l, c);
}

const struct model_family family_qwen2 = {
    .architecture = "Qwen2ForCausalLM", .configure = qwen2_configure, .build = qwen2_build};
const struct model_family family_mimo = {
    .architecture = "MiMoForCausalLM", .configure = qwen2_configure, .build = qwen2_build};
const struct model_family family_qwen3 = {.architecture = "Qwen3ForCausalLM",
                                          .head_dim = 128,
                                          .configure = qwen3_configure,
                                          .build = qwen3_build};

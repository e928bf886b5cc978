/*
 * Mixtures of experts in place of the feed-forward: MixtralForCausalLM, Qwen2MoeForCausalLM (with a
 * shared expert that is gated by one number for each token) and Qwen3MoeForCausalLM (some layers
 * may be plain in both), OlmoeForCausalLM (norms over all heads of q and k), GraniteMoeForCausalLM
 * (experts in one tensor, and Granite's multipliers), MiniMaxM2ForCausalLM (sigmoid scores with a
 * correction of the choice, norms over all heads of q and k, heads that turn in part) and
 * MellumForCausalLM (as Qwen3's, with windows whose layers have frequencies of their own).
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int mixtral_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_experts(j, "intermediate_size", c);
    c->routing.normalise = true;
    return r < 0 ? r : config_read_window(j, (struct config_window){.use = true}, c);
}

static int qwen2_moe_configure(const struct model_json *j, struct model_config *c)
{
    bool window = false;
    int64_t first = 28;
    bool given = false;
    int r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", false, &c->routing.normalise);
    if (r == 0)
        r = config_read_bool(j, "qkv_bias", true, &c->qkv_bias);
    if (r == 0)
        r = config_read_u32(j, "shared_expert_intermediate_size", 1u << 20, 5632,
                            &c->shared_intermediate);
    if (r == 0)
        r = config_read_bool(j, "use_sliding_window", false, &window);
    if (r == 0)
        r = model_json_int(j, "max_window_layers", (struct model_range){0, 1u << 20}, &first,
                           &given);
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = window, .if_missing = 4096}, c);
    const json_t *types = json_object_get(j->object, "layer_types");
    for (uint32_t i = 0; (!types || json_is_null(types)) && i < c->layers; i++)
        c->windowed[i] = i % 2 == 0 && i < first; /* every other one of the first */
    c->shared_gate = true;
    return r < 0 ? r : config_read_plain(j, c);
}

static int qwen3_moe_configure(const struct model_json *j, struct model_config *c)
{
    /* the text part of Qwen3-VL: shares always sum to 1, and experts lie transposed */
    const char *type = json_string_value(json_object_get(j->object, "model_type"));
    const bool sees = type && strcmp(type, "qwen3_vl_moe_text") == 0;
    bool window = false;
    int r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", sees, &c->routing.normalise);
    c->routing.normalise = c->routing.normalise || sees;
    c->turned = sees;
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "use_sliding_window", false, &window);
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = window, .if_missing = 4096}, c);
    return r < 0 ? r : config_read_plain(j, c);
}

static int mellum_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    const bool use = types && !json_is_null(types);
    int r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", true, &c->routing.normalise);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = use, .if_missing = 1024}, c);
    return r < 0 ? r : config_read_mlp_types(j, c);
}

static int olmoe_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_clip(j, c);
    if (r == 0)
        r = config_read_experts(j, "intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", false, &c->routing.normalise);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r;
}

static int granite_moe_configure(const struct model_json *j, struct model_config *c)
{
    int r = family_granite.configure(j, c);
    c->routing.normalise = true;
    return r < 0 ? r : config_read_experts(j, "intermediate_size", c);
}

static int minimax_m2_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t dims = c->rope.dims; /* which its own files tell so */
    int r = config_read_experts(j, "intermediate_size", c);
    c->routing.score = EK_SCORE_SIGMOID;
    c->routing.normalise = true;
    if (r == 0)
        r = config_read_u32(j, "rotary_dim", c->head_dim, dims, &dims);
    if (r == 0 && dims % 2 != 0)
        r = ek_fault_set(j->fault, "rotary_dim",
                         "%s: rotary_dim is %u; it must be even, correct it", j->file, dims);
    c->rope.dims = dims;
    return r;
}

static void moe_build(struct graph_builder *b, const struct model_config *c, struct layers l)
{
    layers_write(b, &l, c);
}

static void mixtral_build(struct graph_builder *b, const struct model_config *c)
{
    moe_build(b, c,
              (struct layers){.experts = {.router = "block_sparse_moe.gate",
                                          .gate = "block_sparse_moe.experts.%u.w1",
                                          .up = "block_sparse_moe.experts.%u.w3",
                                          .down = "block_sparse_moe.experts.%u.w2",
                                          .apart = "block_sparse_moe.experts"}});
}

static void minimax_m2_build(struct graph_builder *b, const struct model_config *c)
{
    moe_build(b, c,
              (struct layers){.qk_norm = NORM_WHOLE,
                              .experts = {.router = "block_sparse_moe.gate",
                                          .correction = "block_sparse_moe.e_score_correction_bias",
                                          .gate = "block_sparse_moe.experts.%u.w1",
                                          .up = "block_sparse_moe.experts.%u.w3",
                                          .down = "block_sparse_moe.experts.%u.w2",
                                          .apart = "block_sparse_moe.experts"}});
}

#define EXPERTS                                                                                    \
    {                                                                                              \
        .router = "mlp.gate", GRAPH_MLP_EXPERTS                                                    \
    }

static void qwen3_moe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS, .experts = EXPERTS};

    l.experts.turned = c->turned;
    moe_build(b, c, l);
}

static void qwen2_moe_build(struct graph_builder *b, const struct model_config *c)
{
    moe_build(b, c, (struct layers){.shared = "mlp.shared_expert", .experts = EXPERTS});
}

static void olmoe_build(struct graph_builder *b, const struct model_config *c)
{
    moe_build(b, c, (struct layers){.qk_norm = NORM_WHOLE, .experts = EXPERTS});
}

static void granite_moe_build(struct graph_builder *b, const struct model_config *c)
{
    moe_build(b, c,
              (struct layers){.experts = {.router = "block_sparse_moe.router.layer",
                                          .apart = "block_sparse_moe.experts",
                                          .all_in = "block_sparse_moe.input_linear",
                                          .all_out = "block_sparse_moe.output_linear"}});
}

const struct model_family family_mixtral = {.architecture = "MixtralForCausalLM",
                                            .rope_theta = 1e6,
                                            .rms_eps = 1e-5,
                                            .configure = mixtral_configure,
                                            .build = mixtral_build};
const struct model_family family_qwen2_moe = {.architecture = "Qwen2MoeForCausalLM",
                                              .configure = qwen2_moe_configure,
                                              .build = qwen2_moe_build};
const struct model_family family_qwen3_moe = {.architecture = "Qwen3MoeForCausalLM",
                                              .configure = qwen3_moe_configure,
                                              .build = qwen3_moe_build};
const struct model_family family_mellum = {.architecture = "MellumForCausalLM",
                                           .head_dim = 128,
                                           .rope_theta = 5e5,
                                           .local_rope = true,
                                           .local_theta = 1e4,
                                           .configure = mellum_configure,
                                           .build = qwen3_moe_build};
const struct model_family family_olmoe = {.architecture = "OlmoeForCausalLM",
                                          .rms_eps = 1e-5,
                                          .configure = olmoe_configure,
                                          .build = olmoe_build};
const struct model_family family_granite_moe = {.architecture = "GraniteMoeForCausalLM",
                                                .configure = granite_moe_configure,
                                                .build = granite_moe_build};
const struct model_family family_minimax_m2 = {.architecture = "MiniMaxM2ForCausalLM",
                                               .head_dim = 128,
                                               .rope_theta = 5e6,
                                               .partial_rotary = true,
                                               .configure = minimax_m2_configure,
                                               .build = minimax_m2_build};

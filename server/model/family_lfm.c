/*
 * Lfm2ForCausalLM and Lfm2MoeForCausalLM: most layers have a short convolution instead of
 * attention, gated before and after it: in_proj gives B, C and x, then out_proj(C * conv(B * x)).
 * The others have attention with norms on each head. Mixtures choose by sigmoids with a correction,
 * but for the first layers, which are plain.
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

/* Older files name the layers that attend. */
static int read_attending(const struct model_json *j, struct model_config *c)
{
    const bool named = json_is_array(json_object_get(j->object, "full_attn_idxs"));
    for (uint32_t i = 0; i < c->layers; i++)
        c->recurrent[i] = named;
    return config_read_layers(j, "full_attn_idxs", false, c, c->recurrent);
}

static int read_kinds(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    uint32_t attend = 0;
    const bool named = types && !json_is_null(types);
    int r =
        named ? config_read_kinds(j, "layer_types", (const char *const[]){"full_attention", "conv"},
                                  1, c, c->recurrent)
              : read_attending(j, c);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++)
        attend += !c->recurrent[i];
    if (r == 0 && attend == 0)
        r = ek_fault_set(j->fault, "layer_types", "%s: no layer has attention; correct layer_types",
                         j->file);
    return r;
}

static int lfm_configure(const struct model_json *j, struct model_config *c)
{
    bool given = false;
    c->act = EK_ACT_SILU; /* whatever hidden_act says */
    int r = model_json_float(j, "norm_eps", (struct model_range){0, 1}, &c->rms_eps, &given);
    if (r == 0)
        r = config_read_bool(j, "tie_embedding", c->tied, &c->tied);
    if (r == 0)
        r = config_read_bool(j, "conv_bias", false, &c->delta.conv_bias);
    if (r == 0)
        r = config_read_u32(j, "conv_L_cache", EK_MOST_CONV, 3, &c->delta.kernel);
    if (r == 0 && c->delta.kernel < 2)
        r = ek_fault_set(j->fault, "conv_L_cache", "%s: conv_L_cache is %u; it must be 2 to %u",
                         j->file, c->delta.kernel, EK_MOST_CONV);
    return r < 0 ? r : read_kinds(j, c);
}

/* The width of the feed-forward follows from what the file says by this rule: two thirds; unless
 * the factor is null, times it and up to a multiple. */
static int lfm2_configure(const struct model_json *j, struct model_config *c)
{
    const bool whole = json_is_null(json_object_get(j->object, "block_ffn_dim_multiplier"));
    double factor = 1;
    bool adjust = true, given = false;
    uint32_t multiple = 256;
    int r = config_read_bool(j, "block_auto_adjust_ff_dim", true, &adjust);
    if (r == 0)
        r = config_read_u32(j, "block_multiple_of", 1u << 16, 256, &multiple);
    if (r == 0)
        r = model_json_float(j, "block_ffn_dim_multiplier", (struct model_range){1e-3, 64}, &factor,
                             &given);
    if (r < 0)
        return r;
    const uint32_t part = 2 * c->intermediate / 3;
    uint32_t width = adjust ? part : c->intermediate;
    if (adjust && !whole)
        width = ((uint32_t)(factor * part) + multiple - 1) / multiple * multiple;
    if (width == 0)
        return ek_fault_set(j->fault, "intermediate_size",
                            "%s: intermediate_size %u becomes 0 by block_auto_adjust_ff_dim; "
                            "correct one of them",
                            j->file, c->intermediate);
    c->intermediate = width;
    return lfm_configure(j, c);
}

static int lfm2_moe_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t plain = 2;
    int64_t n = 2;
    bool given = false;
    int r = lfm_configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", true, &c->routing.normalise);
    if (r == 0)
        r = config_read_bool(j, "use_expert_bias", true, &c->corrected);
    if (r == 0)
        r = config_read_float(j, "routed_scaling_factor", (struct model_range){1e-6, 1e6},
                              &c->routing.scale);
    if (r == 0)
        r = model_json_int(j, "num_dense_layers", (struct model_range){0, CONFIG_LAYERS_MOST}, &n,
                           &given);
    plain = (uint32_t)n;
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = i < plain;
    c->routing.score = EK_SCORE_SIGMOID;
    return r;
}

struct short_conv { /* values */
    uint16_t in, gated, out;
};

static void short_conv(struct graph_builder *b, const struct layers *l, const struct short_conv *v)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->hidden;
    const struct graph_part in = {"conv.in_proj", 3 * n}, out = {"conv.out_proj", n};
    const struct graph_conv conv = {
        .name = "conv.conv", .kernel = c->delta.kernel, .bias = c->delta.conv_bias};

    graph_linear(b, v->in, l->side, &in, 1, c->delta.conv_bias);
    graph_take(b, v->gated, v->in, (struct graph_run){2 * n, 0, n, 1, 0});
    graph_gate(b, v->gated, v->in, EK_GATE_TIMES, (struct graph_run){.step = n, .group = n});
    graph_convolve(b, v->out, v->gated, &conv);
    graph_gate(b, v->out, v->in, EK_GATE_TIMES,
               (struct graph_run){.first = n, .step = n, .group = n});
    graph_linear(b, l->side, v->out, &out, 1, c->delta.conv_bias);
}

static void lfm_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS,
                       .q_norm = "self_attn.q_layernorm",
                       .k_norm = "self_attn.k_layernorm",
                       .o_proj = "self_attn.out_proj",
                       .mlp = "feed_forward",
                       .gate = "w1",
                       .up = "w3",
                       .down = "w2",
                       .experts = {.router = "feed_forward.gate",
                                   .gate = "feed_forward.experts.%u.w1",
                                   .up = "feed_forward.experts.%u.w3",
                                   .down = "feed_forward.experts.%u.w2",
                                   .apart = "feed_forward.experts",
                                   .all_in = "feed_forward.experts.gate_up_proj",
                                   .all_out = "feed_forward.experts.down_proj"}};
    struct short_conv v;

    if (c->corrected)
        l.experts.correction = "feed_forward.expert_bias";
    layers_begin(b, &l);
    v.in = graph_value(b, 3 * c->hidden);
    v.gated = graph_value(b, c->hidden);
    v.out = graph_value(b, c->hidden);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "operator_norm");
        if (c->recurrent[i])
            short_conv(b, &l, &v);
        else
            layers_attention(b, &l, i);
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "ffn_norm");
        layers_mixed(b, &l, i);
    }
    graph_head(b, l.stream, "model.embedding_norm", "model.embed_tokens");
}

const struct model_family family_lfm2 = {.architecture = "Lfm2ForCausalLM",
                                         .rope_theta = 1e6,
                                         .rms_eps = 1e-5,
                                         .keys = {{"intermediate_size", "block_ff_dim"}},
                                         .tied = true,
                                         .configure = lfm2_configure,
                                         .build = lfm_build};
const struct model_family family_lfm2_moe = {.architecture = "Lfm2MoeForCausalLM",
                                             .rope_theta = 1e6,
                                             .rms_eps = 1e-5,
                                             .tied = true,
                                             .configure = lfm2_moe_configure,
                                             .build = lfm_build};

/*
 * GemmaForCausalLM, Gemma2ForCausalLM and Gemma3ForCausalLM (text only): norms that multiply by
 * 1 + weight, an embedding scaled by sqrt(hidden_size), tied. From 2 on, a norm also after
 * attention and feed-forward, a scale of its own for queries, soft caps, and a window in every
 * second layer; in 3 in five of six, with frequencies of their own there, and norms on the heads of
 * q and k. VaultGemmaForCausalLM is 2 without the norms that come after.
 */
#include <math.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int gemma_configure(const struct model_json *j, struct model_config *c)
{
    c->norm_offset = 1.0f;
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    return r;
}

/* The keys of 2 and 3. `full_every`: one layer in so many has no window. */
static int later_configure(const struct model_json *j, uint32_t full_every, struct model_config *c)
{
    const struct model_range caps = {1e-3, 1e6};
    bool both_ways = false;
    float scalar = 256.0f;
    int r = gemma_configure(j, c);
    if (r == 0)
        r = config_read_bool(j, "use_bidirectional_attention", false, &both_ways);
    if (r == 0 && both_ways)
        return ek_fault_set(j->fault, "use_bidirectional_attention",
                            "%s: use_bidirectional_attention is for embedding models, which are "
                            "not supported",
                            j->file);
    if (r == 0)
        r = config_read_float(j, "query_pre_attn_scalar", (struct model_range){1e-3, 1e6}, &scalar);
    if (r == 0)
        r = config_read_float(j, "attn_logit_softcapping", caps, &c->attention_softcap);
    if (r == 0)
        r = config_read_float(j, "final_logit_softcapping", caps, &c->logit_softcap);
    c->attention_scale = 1.0f / sqrtf(scalar);
    return r < 0 ? r
                 : config_read_window(
                       j, (struct config_window){.use = true, .full_every = full_every}, c);
}

static int gemma2_configure(const struct model_json *j, struct model_config *c)
{
    return later_configure(j, 2, c);
}

static int gemma3_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t pattern = 6;
    int r = config_read_u32(j, "sliding_window_pattern", 1u << 20, 6, &pattern);
    return r < 0 ? r : later_configure(j, pattern, c);
}

static void gemma_begin(struct graph_builder *b, struct layers *l)
{
    l->embed_scale = layers_root(b->graph->dtype, b->config->hidden);
    layers_begin(b, l);
}

static void gemma_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    gemma_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_pre_norm(b, &l, i);
    layers_end(b, &l);
}

static void build_with(struct graph_builder *b, const struct model_config *c,
                       const struct layer_norms *names)
{
    struct layers l = {.qk_norm = c->family == &family_gemma3 ? NORM_HEADS : NORM_NONE};

    gemma_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++)
        layers_both_norms(b, &l, names, i);
    layers_end(b, &l);
}

static void later_build(struct graph_builder *b, const struct model_config *c)
{
    static const struct layer_norms names = {.after_attention = "post_attention_layernorm",
                                             .before_mlp = "pre_feedforward_layernorm",
                                             .after_mlp = "post_feedforward_layernorm"};

    build_with(b, c, &names);
}

static void vaultgemma_build(struct graph_builder *b, const struct model_config *c)
{
    static const struct layer_norms names = {.before_mlp = "pre_feedforward_layernorm"};

    build_with(b, c, &names);
}

const struct model_family family_gemma = {.architecture = "GemmaForCausalLM",
                                          .head_dim = 256,
                                          .act = "gelu_pytorch_tanh",
                                          .tied = true,
                                          .configure = gemma_configure,
                                          .build = gemma_build};
const struct model_family family_gemma2 = {.architecture = "Gemma2ForCausalLM",
                                           .head_dim = 256,
                                           .act = "gelu_pytorch_tanh",
                                           .tied = true,
                                           .configure = gemma2_configure,
                                           .build = later_build};
const struct model_family family_vaultgemma = {.architecture = "VaultGemmaForCausalLM",
                                               .head_dim = 256,
                                               .act = "gelu_pytorch_tanh",
                                               .tied = true,
                                               .configure = gemma2_configure,
                                               .build = vaultgemma_build};
const struct model_family family_gemma3 = {.architecture = "Gemma3ForCausalLM",
                                           .head_dim = 256,
                                           .rope_theta = 1e6,
                                           .local_theta = 1e4,
                                           .local_rope = true,
                                           .act = "gelu_pytorch_tanh",
                                           .tied = true,
                                           .configure = gemma3_configure,
                                           .build = later_build};

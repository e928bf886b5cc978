/*
 * Qwen3NextForCausalLM, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM (Qwen3.5, 3.6; also the text
 * part of their ...ForConditionalGeneration): most layers have linear attention with a recurrent
 * state (delta.c), every fourth has attention whose output is gated. Norms are of 1 + weight. The
 * shared expert is gated by one number for each token. Layers for drafts (mtp.) are passed over.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int hybrid_configure(const struct model_json *j, struct model_config *c)
{
    if (c->act != EK_ACT_SILU) /* which the convolution has, too */
        return ek_fault_set(j->fault, "hidden_act", "%s: hidden_act must be silu for %s", j->file,
                            c->family->architecture);
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "attn_output_gate", true, &c->output_gate);
    if (r == 0)
        r = config_read_delta_layers(j, c);
    if (r == 0)
        r = config_read_delta(
            j, (struct config_delta){.k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128}, c);
    c->o_bias = c->qkv_bias;
    c->norm_offset = 1;
    return r;
}

static int hybrid_moe_configure(const struct model_json *j, struct model_config *c)
{
    int r = hybrid_configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_u32(j, "shared_expert_intermediate_size", 1u << 20, 512,
                            &c->shared_intermediate);
    c->shared_gate = true;
    c->routing.normalise = true; /* whatever a file says: Qwen3.5's have no such key,
                                  * and none for plain layers */
    return r;
}

static int next_configure(const struct model_json *j, struct model_config *c)
{
    int r = hybrid_moe_configure(j, c);

    if (r == 0)
        r = config_read_plain(j, c);
    return r == 0 ? config_read_bool(j, "norm_topk_prob", true, &c->routing.normalise) : r;
}

static void hybrid_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS,
                       .shared = "mlp.shared_expert",
                       .experts = {.router = "mlp.gate", GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

static void next_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS,
                       .delta_by_heads = true,
                       .shared = "mlp.shared_expert",
                       .experts = {.router = "mlp.gate", GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

const struct model_family family_qwen3_next = {.architecture = "Qwen3NextForCausalLM",
                                               .head_dim = 256,
                                               .partial_rotary = true,
                                               .partial = 0.25,
                                               .configure = next_configure,
                                               .build = next_build};
const struct model_family family_qwen3_5 = {.architecture = "Qwen3_5ForCausalLM",
                                            .head_dim = 256,
                                            .partial_rotary = true,
                                            .partial = 0.25,
                                            .configure = hybrid_configure,
                                            .build = hybrid_build};
const struct model_family family_qwen3_5_moe = {
    .architecture = "Qwen3_5MoeForCausalLM",
    .head_dim = 256,
    .keys = {{"intermediate_size", "moe_intermediate_size"}},
    .partial_rotary = true,
    .partial = 0.25,
    .configure = hybrid_moe_configure,
    .build = hybrid_build};

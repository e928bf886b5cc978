/*
 * Qwen3NextForCausalLM, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM (Qwen3.5, 3.6; also the text
 * part of their ...ForConditionalGeneration): most layers have linear attention with a recurrent
 * state (delta.c), every fourth has attention whose output is gated. Norms are of 1 + weight. The
 * shared expert is gated by one number for each token. Layers for drafts (mtp.) are passed over.
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

#define HYBRID_HEADS_MOST 1024u
#define HYBRID_DIM_MOST   1024u

/* layer_types, or every full_attention_interval-th layer attends. */
static int read_kinds(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    uint32_t every = 4, attend = 0;
    int r = config_read_u32(j, "full_attention_interval", CONFIG_LAYERS_MOST, 4, &every);
    const bool named = types && !json_is_null(types);
    if (r == 0 && named && json_array_size(types) != c->layers)
        return ek_fault_set(j->fault, "layer_types",
                            "%s: layer_types must name the kind of each of the %u layers; correct "
                            "it",
                            j->file, c->layers);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++) {
        const char *type = (i + 1) % every != 0 ? "linear_attention" : "full_attention";
        if (named)
            type = json_string_value(json_array_get(types, i));
        c->recurrent[i] = type && strcmp(type, "linear_attention") == 0;
        if (!c->recurrent[i] && (!type || strcmp(type, "full_attention") != 0))
            r = ek_fault_set(j->fault, "layer_types",
                             "%s: layer_types has '%.32s'; supported are full_attention and "
                             "linear_attention",
                             j->file, type ? type : "something that is no text");
        attend += !c->recurrent[i];
    }
    if (r == 0 && attend == 0)
        r = ek_fault_set(j->fault, "layer_types",
                         "%s: no layer of layer_types is full_attention; correct it", j->file);
    return r;
}

static int read_delta(const struct model_json *j, struct model_config *c)
{
    struct config_delta *t = &c->delta;
    int r = config_read_u32(j, "linear_num_key_heads", HYBRID_HEADS_MOST, 16, &t->k_heads);
    if (r == 0)
        r = config_read_u32(j, "linear_num_value_heads", HYBRID_HEADS_MOST, 32, &t->v_heads);
    if (r == 0)
        r = config_read_u32(j, "linear_key_head_dim", HYBRID_DIM_MOST, 128, &t->k_dim);
    if (r == 0)
        r = config_read_u32(j, "linear_value_head_dim", HYBRID_DIM_MOST, 128, &t->v_dim);
    if (r == 0)
        r = config_read_u32(j, "linear_conv_kernel_dim", EK_MOST_CONV, 4, &t->kernel);
    if (r == 0 && t->kernel < 2)
        r = ek_fault_set(j->fault, "linear_conv_kernel_dim",
                         "%s: linear_conv_kernel_dim is %u; it must be 2 to %u", j->file, t->kernel,
                         EK_MOST_CONV);
    if (r == 0 && t->v_heads % t->k_heads != 0)
        r = ek_fault_set(j->fault, "linear_num_value_heads",
                         "%s: linear_num_value_heads %u is no multiple of linear_num_key_heads %u; "
                         "correct one of them",
                         j->file, t->v_heads, t->k_heads);
    return r;
}

static int hybrid_configure(const struct model_json *j, struct model_config *c)
{
    if (c->act != EK_ACT_SILU) /* which the convolution has, too */
        return ek_fault_set(j->fault, "hidden_act", "%s: hidden_act must be silu for %s", j->file,
                            c->family->architecture);
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "attn_output_gate", true, &c->output_gate);
    if (r == 0)
        r = read_kinds(j, c);
    if (r == 0)
        r = read_delta(j, c);
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
const struct model_family family_qwen3_5_moe = {.architecture = "Qwen3_5MoeForCausalLM",
                                                .head_dim = 256,
                                                .intermediate = "moe_intermediate_size",
                                                .partial_rotary = true,
                                                .partial = 0.25,
                                                .configure = hybrid_moe_configure,
                                                .build = hybrid_build};

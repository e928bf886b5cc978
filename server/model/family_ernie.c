/*
 * Ernie4_5ForCausalLM and Ernie4_5_MoeForCausalLM: as Llama, with rotary pairs of neighbours. In
 * the second, mixtures in some layers: shares of the softmax, a correction of the choice, experts
 * that all tokens share. Of ERNIE 4.5 VL, whose layers have further experts for pictures, the text
 * part: its router lies transposed.
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int ernie_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "use_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    c->mlp_bias = c->qkv_bias;
    c->neighbours = true;
    return r;
}

/* Every interval-th layer from the first to the last is a mixture. */
static int read_plain(const struct model_json *j, struct model_config *c)
{
    int64_t first = 1, last = -1;
    uint32_t interval = 1;
    bool given = false;
    int r = config_read_u32(j, "moe_layer_interval", 1u << 20, 1, &interval);
    if (r == 0)
        r = model_json_int(j, "moe_layer_start_index", (struct model_range){0, 1u << 20}, &first,
                           &given);
    if (r == 0)
        r = model_json_int(j, "moe_layer_end_index", (struct model_range){-1, 1u << 20}, &last,
                           &given);
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = (i + 1) % interval != 0 || i < first || (last >= 0 && i > last);
    return r;
}

static int ernie_moe_configure(const struct model_json *j, struct model_config *c)
{
    int64_t shared = 2;
    bool given = false;
    int r = ernie_configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = model_json_int(j, "moe_num_shared_experts", (struct model_range){0, 64}, &shared,
                           &given);
    c->routing.normalise = true;
    c->routing.least = 1e-12f;
    if (r == 0)
        r = config_read_float(j, "moe_norm_min", (struct model_range){0, 1}, &c->routing.least);
    c->shared_intermediate = (uint32_t)shared * c->expert_intermediate;
    if (r == 0)
        r = read_plain(j, c);
    return r < 0 ? r : config_read_mlp_types(j, c);
}

/* Whether a layer has a router for pictures beside the one for text. */
static bool sees(const struct graph_builder *b)
{
    bool found = false;
    for (uint32_t i = 0; i < b->tensors->count && b->config->text_part && !found; i++)
        found = strstr(b->tensors->tensor[i].name, ".mlp.gate.weight_1") != NULL;
    return found;
}

static void ernie_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate",
                                   .correction = "mlp.moe_statics.e_score_correction_bias",
                                   GRAPH_MLP_EXPERTS}};
    /* as the class that sees has them in memory, and saves them if it is told to */
    const struct graph_expert_names joined = {
        .router = "mlp.text_moe.gate",
        .correction = "mlp.text_moe.gate.moe_statics.e_score_correction_bias",
        .all_in = "mlp.text_moe.experts.gate_up_proj",
        .all_out = "mlp.text_moe.experts.down_proj",
        .apart = "mlp.text_moe.experts"};

    l.experts.paired = sees(b);
    if (c->text_part && !l.experts.paired)
        l.experts = joined;
    layers_write(b, &l, c);
}

const struct model_family family_ernie = {.architecture = "Ernie4_5ForCausalLM",
                                          .head_dim = 128,
                                          .rms_eps = 1e-5,
                                          .rope_theta = 5e5,
                                          .tied = true,
                                          .configure = ernie_configure,
                                          .build = ernie_build};
const struct model_family family_ernie_moe = {.architecture = "Ernie4_5_MoeForCausalLM",
                                              .rms_eps = 1e-5,
                                              .rope_theta = 5e5,
                                              .tied = true,
                                              .configure = ernie_moe_configure,
                                              .build = ernie_build};

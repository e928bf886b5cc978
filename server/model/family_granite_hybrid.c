/*
 * GraniteMoeHybridForCausalLM (Granite 4): most layers have Mamba 2 instead of attention (mamba.c),
 * the others attend, with rotary positions or without. Behind either comes a feed-forward that all
 * tokens take (shared_mlp), beside experts where num_local_experts is not 0. Granite's multipliers.
 * GraniteMoeSharedForCausalLM is that with attention and positions in all layers,
 * GraniteMoeSWAForCausalLM with the windows and sinks of family_granite.c.
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/graph_weights.h"
#include "server/model/layers.h"
#include "server/model/mamba.h"

static bool is_one_of(const char *text, const char *a, const char *b)
{
    return text && (strcmp(text, a) == 0 || strcmp(text, b) == 0);
}

/* Older files say mamba and attention. */
static int granite_kinds(const struct model_json *j, struct model_config *c)
{
    const char *key = "layer_types";
    uint32_t attend = 0;
    if (json_is_array(json_object_get(j->object, "layers_block_type")))
        key = "layers_block_type";
    const json_t *types = json_object_get(j->object, key);
    if (json_array_size(types) != c->layers)
        return ek_fault_set(j->fault, key,
                            "%s: %s must name the kind of each of the %u layers; correct it",
                            j->file, key, c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        c->recurrent[i] = is_one_of(type, "mamba", "linear_attention");
        if (!c->recurrent[i] && !is_one_of(type, "attention", "full_attention"))
            return ek_fault_set(j->fault, key,
                                "%s: %s has '%.32s'; supported are mamba (linear_attention) and "
                                "attention (full_attention)",
                                j->file, key, type ? type : "something that is no text");
        attend += !c->recurrent[i];
    }
    if (attend == 0)
        return ek_fault_set(j->fault, key, "%s: no layer of %s has attention; correct it", j->file,
                            key);
    return 0;
}

static int granite_positions(const struct model_json *j, struct model_config *c)
{
    const char *type = "nope";
    bool given = false;
    int r = model_json_string(j, "position_embedding_type", &type, &given);
    if (r == 0 && !is_one_of(type, "nope", "rope"))
        r = ek_fault_set(j->fault, "position_embedding_type",
                         "%s: position_embedding_type '%.32s' is not supported; supported are rope "
                         "and nope",
                         j->file, type);
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = strcmp(type, "rope") != 0;
    return r;
}

static int granite_scan(const struct model_json *j, struct model_config *c)
{
    const struct mamba_keys keys = {"mamba_n_heads",   "mamba_n_groups",  "mamba_d_state",
                                    "mamba_d_conv",    "mamba_conv_bias", "mamba_proj_bias",
                                    .usual_groups = 1, .usual_state = 256};
    const json_t *dim = json_object_get(j->object, "mamba_d_head");
    uint32_t expand = 2;
    int r = mamba_configure(j, &keys, c);
    if (r == 0)
        r = config_read_u32(j, "mamba_expand", 64, 2, &expand);
    if (r < 0)
        return r;
    const uint32_t inner = expand * c->hidden;
    c->scan.head_dim = inner / c->scan.heads;
    if (!is_one_of(json_string_value(dim), "auto", "auto"))
        r = config_read_u32(j, "mamba_d_head", 1u << 16, c->scan.head_dim + !c->scan.head_dim,
                            &c->scan.head_dim);
    if (r == 0 && (uint64_t)c->scan.head_dim * c->scan.heads != inner)
        r = ek_fault_set(j->fault, "mamba_n_heads",
                         "%s: mamba_n_heads %u of mamba_d_head %u are not mamba_expand %u times "
                         "hidden_size %u; correct one of them",
                         j->file, c->scan.heads, c->scan.head_dim, expand, c->hidden);
    return r;
}

static int granite_hybrid_configure(const struct model_json *j, struct model_config *c)
{
    const json_t *experts = json_object_get(j->object, "num_local_experts");
    uint32_t width = 1024;
    if (c->act != EK_ACT_SILU) /* which the convolution has, too */
        return ek_fault_set(j->fault, "hidden_act", "%s: hidden_act must be silu for %s", j->file,
                            c->family->architecture);
    int r = family_granite.configure(j, c);
    if (r == 0)
        r = granite_kinds(j, c);
    if (r == 0)
        r = granite_positions(j, c);
    if (r == 0)
        r = granite_scan(j, c);
    if (r == 0)
        r = config_read_u32(j, "shared_intermediate_size", 1u << 20, 1024, &width);
    if (r == 0 && !(json_is_integer(experts) && json_integer_value(experts) == 0))
        r = config_read_experts(j, "intermediate_size", c);
    c->routing.normalise = true;
    if (c->experts > 0)
        c->shared_intermediate = width;
    else
        c->intermediate = width;
    return r;
}

static int granite_shared_configure(const struct model_json *j, struct model_config *c)
{
    const bool windows = c->family == &family_granite_moe_swa;
    int64_t width = 0;
    bool given = false;
    int r = (windows ? family_granite_swa : family_granite).configure(j, c);
    if (r == 0)
        r = config_read_experts(j, "intermediate_size", c);
    if (r == 0)
        r = model_json_int(j, "shared_intermediate_size", (struct model_range){0, 1u << 20}, &width,
                           &given);
    c->routing.normalise = true;
    c->shared_intermediate = (uint32_t)width;
    return r;
}

/* From `side` to the stream. */
static void granite_mlp(struct graph_builder *b, const struct layers *l)
{
    const bool mixed = b->config->experts > 0;
    const uint16_t gate_up = mixed ? l->shared_gate_up : l->gate_up;
    const uint16_t inner = mixed ? l->shared_inner : l->inner;
    const struct graph_part in = {"shared_mlp.input_linear", graph_width(b, gate_up)};
    const struct graph_part out = {"shared_mlp.output_linear", b->config->hidden};

    if (mixed) {
        graph_experts(b, l->mixed, l->side, l->router, &l->experts);
        graph_add(b, l->stream, l->mixed);
    }
    if (mixed && b->config->shared_intermediate == 0)
        return;
    graph_linear(b, gate_up, l->side, &in, 1, false);
    graph_glu(b, inner, gate_up);
    graph_linear(b, l->side, inner, &out, 1, false);
    graph_add(b, l->stream, l->side);
}

static void granite_hybrid_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.experts = {.router = "block_sparse_moe.router.layer",
                                   .apart = "block_sparse_moe.experts",
                                   .all_in = "block_sparse_moe.input_linear",
                                   .all_out = "block_sparse_moe.output_linear"}};
    struct mamba_values v;

    if (c->family == &family_granite_moe_swa) { /* saved as it is in memory */
        l.experts.router = "block_sparse_moe.router";
        l.experts.all_in = "block_sparse_moe.experts.gate_up_proj";
        l.experts.all_out = "block_sparse_moe.experts.down_proj";
    }
    layers_begin(b, &l);
    if (c->scan.heads > 0)
        mamba_begin(b, &v);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "input_layernorm");
        if (c->recurrent[i])
            mamba_mixer(b, &v, l.side, "mamba");
        else
            layers_attention(b, &l, i);
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "post_attention_layernorm");
        granite_mlp(b, &l);
    }
    layers_end(b, &l);
}

const struct model_family family_granite_hybrid = {.architecture = "GraniteMoeHybridForCausalLM",
                                                   .configure = granite_hybrid_configure,
                                                   .build = granite_hybrid_build};
const struct model_family family_granite_shared = {.architecture = "GraniteMoeSharedForCausalLM",
                                                   .configure = granite_shared_configure,
                                                   .build = granite_hybrid_build};
const struct model_family family_granite_moe_swa = {.architecture = "GraniteMoeSWAForCausalLM",
                                                    .configure = granite_shared_configure,
                                                    .build = granite_hybrid_build};

/*
 * AfmoeForCausalLM (Arcee's Trinity): norms before and after each half and on the heads of q and k;
 * what attention gives is gated by the sigmoid of a product of its own; layers without a window
 * have no rotary positions. All but the first layers are mixtures with sigmoid scores, a correction
 * of the choice and experts that all tokens take.
 */
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

/* What the code that was published beside the first weights could do otherwise. */
static int afmoe_usual(const struct model_json *j)
{
    const char *score = "sigmoid";
    bool given = false, normed = true;
    uint32_t groups = 1;
    int r = model_json_string(j, "score_func", &score, &given);

    if (r == 0)
        r = config_read_bool(j, "route_norm", true, &normed);
    if (r == 0)
        r = config_read_u32(j, "n_group", 1, 1, &groups);
    if (r < 0 || (normed && strcmp(score, "sigmoid") == 0))
        return r;
    return ek_fault_set(j->fault, "score_func",
                        "%s: score_func must be sigmoid and route_norm true; take another model",
                        j->file);
}

static int afmoe_experts(const struct model_json *j, struct model_config *c)
{
    int64_t dense = 1;
    uint32_t shared = 2;
    bool given = false;
    int r = config_read_experts(j, "moe_intermediate_size", c);

    c->routing.score = EK_SCORE_SIGMOID;
    c->routing.normalise = true;
    if (r == 0)
        r = config_read_float(j, "route_scale", (struct model_range){1e-6, 1e6}, &c->routing.scale);
    if (r == 0)
        r = config_read_u32(j, "num_shared_experts", 64, 2, &shared);
    if (r == 0)
        r = model_json_int(j, "num_dense_layers", (struct model_range){0, 1u << 20}, &dense,
                           &given);
    c->shared_intermediate = shared * c->expert_intermediate;
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = i < dense;
    return r;
}

static int afmoe_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t every = 4;
    bool scaled = false;
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "mup_enabled", false, &scaled);
    if (scaled)
        c->embed_scale = sqrtf((float)c->hidden);
    if (r == 0)
        r = config_read_u32(j, "global_attn_every_n_layers", 1u << 20, 4, &every);
    if (r == 0)
        r = config_read_window(
            j, (struct config_window){.use = true, .full_every = every, .if_missing = 1024}, c);
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = !c->windowed[i];
    if (r == 0)
        r = afmoe_usual(j);
    return r < 0 ? r : afmoe_experts(j, c);
}

/* From `side` to `side`: what all tokens take, and the chosen experts. */
static void afmoe_mixture(struct graph_builder *b, const struct layers *l)
{
    graph_experts(b, l->mixed, l->side, l->router, &l->experts);
    layers_shared_of(b, l, l->side);
    graph_add(b, l->side, l->mixed);
}

static void afmoe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS,
                       .gate_proj = "self_attn.gate_proj",
                       .shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.router.gate",
                                   .correction = "mlp.expert_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "input_layernorm");
        layers_attention(b, &l, i);
        graph_norm(b, l.side, l.side, "post_attention_layernorm");
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "pre_mlp_layernorm");
        if (c->plain[i])
            layers_feed_forward(b, &l);
        else
            afmoe_mixture(b, &l);
        graph_norm(b, l.side, l.side, "post_mlp_layernorm");
        graph_add(b, l.stream, l.side);
    }
    layers_end(b, &l);
}

const struct model_family family_afmoe = {.architecture = "AfmoeForCausalLM",
                                          .head_dim = 128,
                                          .rms_eps = 1e-5,
                                          .configure = afmoe_configure,
                                          .build = afmoe_build};

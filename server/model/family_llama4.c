/*
 * Llama4ForCausalLM (the text part of Llama 4): rotary pairs of neighbours, and norms without
 * weights behind them; such layers see the running chunk of the context alone. Every fourth layer
 * has no rotary positions, sees everything, and its queries grow with the position. Mixtures in
 * all or some layers: the sigmoid of a chosen logit multiplies what the expert is given; all
 * tokens share one more. All experts of a layer lie transposed in one tensor.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

/* Numbers for each layer, 0 where it does not turn; none: every fourth does not. */
static int read_turning(const struct model_json *j, struct model_config *c)
{
    const json_t *list = json_object_get(j->object, "no_rope_layers");
    const bool given = json_array_size(list) > 0;
    uint32_t every = 4;
    int r = config_read_u32(j, "no_rope_layer_interval", 1u << 20, 4, &every);
    bool ok = !given || json_array_size(list) >= c->layers;
    for (uint32_t i = 0; ok && i < c->layers; i++) {
        const json_t *v = json_array_get(list, i);
        ok = !given || json_is_integer(v);
        c->unrotated[i] = given ? json_integer_value(v) == 0 : (i + 1) % every == 0;
    }
    if (r == 0 && !ok)
        r = ek_fault_set(j->fault, "no_rope_layers",
                         "%s: no_rope_layers must have 0 or 1 for each of the %u layers; correct "
                         "it",
                         j->file, c->layers);
    return r;
}

static int read_mixtures(const struct model_json *j, struct model_config *c)
{
    const json_t *list = json_object_get(j->object, "moe_layers"), *v;
    uint32_t step = 1;
    size_t at;
    int r = config_read_u32(j, "interleave_moe_layer_step", 1u << 20, 1, &step);
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = json_is_array(list) || (i + 1) % step != 0;
    json_array_foreach(list, at, v)
    {
        json_int_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= (json_int_t)c->layers)
            return ek_fault_set(j->fault, "moe_layers",
                                "%s: moe_layers must be numbers of layers from 0 to %u; correct it",
                                j->file, c->layers - 1);
        c->plain[layer] = false;
    }
    return r;
}

/* Older files have a number for the switch. */
static int read_warm(const struct model_json *j, struct model_config *c)
{
    const json_t *is = json_object_get(j->object, "attn_temperature_tuning");
    uint32_t every = 8192;
    int r = config_read_u32(j, "floor_scale", 1u << 26, 8192, &every);
    c->warm = 0.1f;
    c->warm_from = 1;
    c->warm_unrotated = true;
    if (r == 0)
        r = config_read_float(j, "attn_scale", (struct model_range){0, 100}, &c->warm);
    const bool off = json_is_false(is) || (json_is_integer(is) && json_integer_value(is) == 0);
    c->warm_every = off ? 0 : every;
    return r;
}

static int read_chunks(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    c->chunks = true;
    int r = config_read_window(j, (struct config_window){.use = true}, c);
    if (!json_object_get(j->object, "attention_chunk_size"))
        c->window = 8192;
    for (uint32_t i = 0; i < c->layers && !json_is_array(types); i++)
        c->windowed[i] = !c->unrotated[i];
    return r;
}

static int family_llama4_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_experts(j, "intermediate_size", c);
    c->neighbours = true;
    c->routing.score = EK_SCORE_SIGMOID;
    c->routing.share_in = true;
    c->shared_intermediate = c->expert_intermediate;
    if (r == 0)
        r = config_read_u32(j, "intermediate_size_mlp", 1u << 20, 16384, &c->intermediate);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "use_qk_norm", true, &c->qk_norm);
    if (r == 0)
        r = read_turning(j, c);
    if (r == 0)
        r = read_mixtures(j, c);
    if (r == 0)
        r = read_warm(j, c);
    return r < 0 ? r : read_chunks(j, c);
}

static void llama4_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_BARE : NORM_NONE,
                       .mlp = "feed_forward",
                       .shared = "feed_forward.shared_expert",
                       .experts = {.router = "feed_forward.router",
                                   .gate = "feed_forward.experts.%u.gate_proj",
                                   .up = "feed_forward.experts.%u.up_proj",
                                   .down = "feed_forward.experts.%u.down_proj",
                                   .all_in = "feed_forward.experts.gate_up_proj",
                                   .all_out = "feed_forward.experts.down_proj",
                                   .turned = true}};

    layers_write(b, &l, c);
}

const struct model_family family_llama4 = {.architecture = "Llama4ForCausalLM",
                                           .head_dim = 128,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 5e5,
                                           .configure = family_llama4_configure,
                                           .build = llama4_build};

/*
 * Decoders that learned a vector for each position, which is added to that of the token: nothing
 * turns, and texts end where the table does. LayerNorms with biases, feed-forwards without a gate,
 * tied logits. GPT2LMHeadModel (GPT-2, DistilGPT2, Cerebras-GPT): matrices lie transposed.
 * GPTBigCodeForCausalLM (StarCoder, SantaCoder): one head of keys, or q, k and v of each head side
 * by side. GPTNeoForCausalLM: every other layer has a window, scores are not scaled. OPTForCausalLM
 * (OPT, Galactica): ReLU or GELU; the 350M model norms after each half of a layer and has an
 * embedding narrower than its layers.
 */
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

#define OPT_SKIP 2u /* rows of OPT's table before that of position 0 */

static void learned(struct model_config *c, bool bias)
{
    c->qkv_bias = bias;
    c->o_bias = bias;
    c->mlp_bias = bias;
    c->norm_centred = true;
    c->norm_bias = true;
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = true;
}

static int refuse_cross(const struct model_json *j)
{
    bool cross = false;
    int r = config_read_bool(j, "add_cross_attention", false, &cross);
    return r < 0 || !cross
               ? r
               : ek_fault_set(j->fault, "add_cross_attention",
                              "%s: add_cross_attention: attention to another model's states is not "
                              "supported; take another model",
                              j->file);
}

static int gpt2_configure(const struct model_json *j, struct model_config *c)
{
    bool scaled = true, by_layer = false;
    int r = config_read_bool(j, "scale_attn_weights", true, &scaled);
    if (r == 0)
        r = config_read_bool(j, "scale_attn_by_inverse_layer_idx", false, &by_layer);
    learned(c, true);
    c->attention_scale = scaled ? 0.0f : 1.0f;
    c->layer_scale = by_layer ? 1.0f : 0.0f;
    return r < 0 ? r : refuse_cross(j);
}

static int bigcode_configure(const struct model_json *j, struct model_config *c)
{
    bool scaled = true, one = true;
    int r = config_read_bool(j, "scale_attn_weights", true, &scaled);
    if (r == 0)
        r = config_read_bool(j, "multi_query", true, &one);
    learned(c, true);
    c->attention_scale = scaled ? 0.0f : 1.0f;
    c->kv_heads = one ? 1 : c->q_heads;
    return r < 0 ? r : refuse_cross(j);
}

static int gpt_neo_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_u32(j, "window_size", 1u << 26, 256, &c->window);

    learned(c, false);
    c->o_bias = true;
    c->mlp_bias = true;
    c->attention_scale = 1.0f;
    return r < 0 ? r
                 : config_read_kinds(j, "attention_layers",
                                     (const char *const[]){"global", "local"}, 1, c, c->windowed);
}

static int opt_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t width = c->hidden;
    bool bias = true, weights = true, before = true, bare = false;
    int r = config_read_bool(j, "enable_bias", true, &bias);
    if (r == 0)
        r = config_read_bool(j, "layer_norm_elementwise_affine", true, &weights);
    if (r == 0)
        r = config_read_bool(j, "do_layer_norm_before", true, &before);
    if (r == 0)
        r = config_read_bool(j, "_remove_final_layer_norm", false, &bare);
    if (r == 0)
        r = config_read_u32(j, "word_embed_proj_dim", 1u << 16, c->hidden, &width);
    learned(c, bias);
    c->norm_bare = !weights;
    c->post_norms_alone = !before;
    c->no_last_norm = !before || bare;
    c->embed_width = width != c->hidden ? width : 0;
    if (r == 0 && c->embed_width > 0 && !c->no_last_norm)
        return ek_fault_set(j->fault, "word_embed_proj_dim",
                            "%s: a norm behind the last layer is served with word_embed_proj_dim "
                            "%u alone, which is hidden_size",
                            j->file, c->hidden);
    return r;
}

/* All layers of a decoder whose parts have GPT-2's names, and its logits. */
static void gpt2_write(struct graph_builder *b, struct layers *l, const struct model_config *c,
                       bool turned)
{
    const struct graph_head_names names = {
        .norm = "transformer.ln_f", .embedding = "transformer.wte", .output = "lm_head"};

    l->layer = "transformer.h";
    l->norm = "ln_1";
    l->mlp_norm = "ln_2";
    l->embedding = names.embedding;
    l->positions = "transformer.wpe";
    l->ungated = true;
    l->of_itself = layers_gate_of(c);
    l->up = "c_fc";
    l->down = "c_proj";
    layers_begin(b, l);
    b->turned = turned;
    layers_pre_norms(b, l, c);
    b->turned = false;
    graph_head_of(b, l->stream, &names);
}

static void gpt2_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.fused_qkv = true, .qkv_proj = "attn.c_attn", .o_proj = "attn.c_proj"};

    gpt2_write(b, &l, c, true);
}

static void bigcode_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qkv_by_group = "attn.c_attn", .o_proj = "attn.c_proj"};

    gpt2_write(b, &l, c, false);
}

static void gpt_neo_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.attention = "attn.attention", .o_proj = "attn.attention.out_proj"};

    gpt2_write(b, &l, c, false);
}

/* A layer of the 350M model. */
static void opt_after(struct graph_builder *b, const struct layers *l, uint32_t layer)
{
    layers_prefix(b, l, layer);
    layers_attention_of(b, l, l->stream, layer);
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->stream, l->stream, l->norm);
    layers_feed_forward_of(b, l, l->stream);
    graph_add(b, l->stream, l->side);
    graph_norm(b, l->stream, l->stream, l->mlp_norm);
}

static void opt_build(struct graph_builder *b, const struct model_config *c)
{
    const struct graph_head_names names = {.norm = "model.decoder.final_layer_norm",
                                           .embedding = "model.decoder.embed_tokens",
                                           .output = "lm_head",
                                           .project = "model.decoder.project_out"};
    struct layers l = {.layer = "model.decoder.layers",
                       .norm = "self_attn_layer_norm",
                       .mlp_norm = "final_layer_norm",
                       .embedding = names.embedding,
                       .project = "model.decoder.project_in",
                       .positions = "model.decoder.embed_positions",
                       .positions_skip = OPT_SKIP,
                       .o_proj = "self_attn.out_proj",
                       .mlp = "",
                       .ungated = true,
                       .of_itself = layers_gate_of(c),
                       .up = "fc1",
                       .down = "fc2"};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers && c->post_norms_alone; i++)
        opt_after(b, &l, i);
    if (!c->post_norms_alone)
        layers_pre_norms(b, &l, c);
    graph_head_of(b, l.stream, &names);
}

const struct model_family family_gpt2 = {.architecture = "GPT2LMHeadModel",
                                         .keys = GPT2_KEYS,
                                         .four_times = true,
                                         .relu = true,
                                         .rms_eps = 1e-5,
                                         .eps_key = "layer_norm_epsilon",
                                         .act = "gelu_new",
                                         .tied = true,
                                         .configure = gpt2_configure,
                                         .build = gpt2_build};
const struct model_family family_gpt_bigcode = {.architecture = "GPTBigCodeForCausalLM",
                                                .keys = GPT2_KEYS,
                                                .four_times = true,
                                                .rms_eps = 1e-5,
                                                .eps_key = "layer_norm_epsilon",
                                                .act = "gelu_pytorch_tanh",
                                                .tied = true,
                                                .configure = bigcode_configure,
                                                .build = bigcode_build};
const struct model_family family_gpt_neo = {.architecture = "GPTNeoForCausalLM",
                                            .keys = {{"num_hidden_layers", "num_layers"},
                                                     {"num_attention_heads", "num_heads"},
                                                     {"hidden_act", "activation_function"}},
                                            .four_times = true,
                                            .rms_eps = 1e-5,
                                            .eps_key = "layer_norm_epsilon",
                                            .act = "gelu_new",
                                            .tied = true,
                                            .configure = gpt_neo_configure,
                                            .build = gpt_neo_build};
const struct model_family family_opt = {
    .architecture = "OPTForCausalLM",
    .keys = {{"intermediate_size", "ffn_dim"}, {"hidden_act", "activation_function"}},
    .relu = true,
    .rms_eps = 1e-5,
    .eps_key = "layer_norm_eps", /* which none has */
    .act = "relu",
    .tied = true,
    .configure = opt_configure,
    .build = opt_build};

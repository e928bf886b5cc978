/*
 * Pre-norm decoders whose feed-forward has no gate. ApertusForCausalLM: xIELU, whose numbers each
 * layer has in its tensors, and norms of each head of q and k. Starcoder2ForCausalLM: GELU, biases,
 * LayerNorm. NemotronForCausalLM (Nemotron-4, Minitron): max(x, 0) squared, LayerNorm with weights
 * around 0, half of each head turns. Jais2ForCausalLM (Jais 2): max(x, 0) squared, biases,
 * LayerNorm. NanoChatForCausalLM: max(x, 0) squared, norms without weights, one of the embedding,
 * too, and of heads that turned backwards.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int apertus_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    return r;
}

static int starcoder2_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "use_bias", true, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->mlp_bias = c->qkv_bias;
    c->norm_centred = true;
    c->norm_bias = true;
    return r < 0 ? r : config_read_window(j, (struct config_window){.use = true}, c);
}

static int nemotron_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->norm_centred = true;
    c->norm_bias = true;
    c->norm_offset = 1;
    return r < 0 ? r : config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
}

static int jais2_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", true, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->norm_centred = true;
    c->norm_bias = true;
    return r < 0 ? r : config_read_bool(j, "mlp_bias", true, &c->mlp_bias);
}

static int nanochat_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->norm_bare = true;
    c->rope.backwards = true;
    c->logit_softcap = 15;
    if (r == 0 && c->rope.type == ROPE_DYNAMIC)
        return ek_fault_set(j->fault, "rope_scaling",
                            "%s: dynamic frequencies are not supported where rotation runs "
                            "backwards; remove rope_scaling",
                            j->file);
    return r < 0 ? r
                 : config_read_float(j, "final_logit_softcapping", (struct model_range){0, 1e6},
                                     &c->logit_softcap);
}

static void apertus_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_HEADS, .ungated = true, .of_itself = EK_GATE_XIELU};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "attention_layernorm");
        layers_attention(b, &l, i);
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "feedforward_layernorm");
        layers_feed_forward(b, &l);
        graph_add(b, l.stream, l.side);
    }
    layers_end(b, &l);
}

static void starcoder2_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {
        .ungated = true, .of_itself = layers_gate_of(c), .up = "c_fc", .down = "c_proj"};

    layers_write(b, &l, c);
}

/* Nemotron's and Jais 2's. */
static void relu2_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.ungated = true, .of_itself = EK_GATE_RELU};

    layers_write(b, &l, c);
}

static void nanochat_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_BARE,
                       .ungated = true,
                       .of_itself = EK_GATE_RELU,
                       .up = "fc1",
                       .down = "fc2"};

    layers_begin(b, &l);
    graph_norm(b, l.stream, l.stream, "");
    layers_pre_norms(b, &l, c);
    layers_end(b, &l);
}

const struct model_family family_nanochat = {.architecture = "NanoChatForCausalLM",
                                             .act = "relu2",
                                             .act_key = "hidden_act",
                                             .configure = nanochat_configure,
                                             .build = nanochat_build};
const struct model_family family_apertus = {.architecture = "ApertusForCausalLM",
                                            .rope_theta = 12e6,
                                            .rms_eps = 1e-5,
                                            .act = "xielu",
                                            .act_key = "hidden_act",
                                            .configure = apertus_configure,
                                            .build = apertus_build};
const struct model_family family_starcoder2 = {.architecture = "Starcoder2ForCausalLM",
                                               .rms_eps = 1e-5,
                                               .eps_key = "norm_epsilon",
                                               .act = "gelu_pytorch_tanh",
                                               .tied = true,
                                               .configure = starcoder2_configure,
                                               .build = starcoder2_build};
const struct model_family family_nemotron = {.architecture = "NemotronForCausalLM",
                                             .rms_eps = 1e-5,
                                             .eps_key = "norm_eps",
                                             .act = "relu2",
                                             .act_key = "hidden_act",
                                             .partial_rotary = true,
                                             .partial = 0.5,
                                             .configure = nemotron_configure,
                                             .build = relu2_build};
const struct model_family family_jais2 = {.architecture = "Jais2ForCausalLM",
                                          .rms_eps = 1e-5,
                                          .eps_key = "layer_norm_eps",
                                          .act = "relu2",
                                          .act_key = "hidden_act",
                                          .configure = jais2_configure,
                                          .build = relu2_build};

/*
 * GptOssForCausalLM (gpt-oss-20b and -120b): attention with a sink for each head and a window in
 * every other layer, mixtures of experts with biases and a clamped activation. Experts lie in one
 * tensor of each kind, transposed, or as blocks of MXFP4, which is how they are published; gate and
 * up are their even and odd columns.
 */
#include <math.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

/* A number that the activation has built in. */
static int read_fixed(const struct model_json *j, const char *key, float value)
{
    float is = value;
    int r = config_read_float(j, key, (struct model_range){0, 1e6}, &is);
    if (r < 0 || fabsf(is - value) <= 1e-6f * value)
        return r;
    return ek_fault_set(j->fault, key, "%s: %s %g is not supported; it must be %g", j->file, key,
                        (double)is, (double)value);
}

static int family_gptoss_configure(const struct model_json *j, struct model_config *c)
{
    if (c->act != EK_ACT_SILU)
        return ek_fault_set(j->fault, "hidden_act", "%s: hidden_act must be silu for %s", j->file,
                            c->family->architecture);
    if (!json_is_object(json_object_get(j->object, "rope_parameters")) &&
        !json_is_object(json_object_get(j->object, "rope_scaling")))
        return ek_fault_set(j->fault, "rope_scaling",
                            "%s: rope_scaling is missing; download the file again", j->file);
    c->act = EK_ACT_SWIGLU_CLAMPED;
    c->sinks = true;
    c->routing.normalise = true; /* the softmax is of the chosen ones */
    int r = read_fixed(j, "swiglu_limit", EK_SWIGLU_MOST);
    if (r == 0)
        r = read_fixed(j, "swiglu_alpha", EK_SWIGLU_ALPHA);
    if (r == 0)
        r = config_read_experts(j, "intermediate_size", c);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", true, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = true, .full_every = 2}, c);
    if (r == 0 && !json_object_get(j->object, "sliding_window"))
        c->window = 128;
    return r;
}

static void gptoss_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.experts = {.router = "mlp.router",
                                   .all_in = "mlp.experts.gate_up_proj",
                                   .all_out = "mlp.experts.down_proj",
                                   .woven = true}};

    layers_write(b, &l, c);
}

const struct model_family family_gpt_oss = {.architecture = "GptOssForCausalLM",
                                            .head_dim = 64,
                                            .rope_theta = 150000,
                                            .rms_eps = 1e-5,
                                            .configure = family_gptoss_configure,
                                            .build = gptoss_build};

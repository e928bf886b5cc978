/*
 * Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4, Phi-4-mini): as Llama, with q, k, v and gate, up each
 * stored as one matrix; heads may turn in part, by the frequencies of longrope.
 */
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int phi3_configure(const struct model_json *j, struct model_config *c)
{
    return config_read_window(j, (struct config_window){.use = true}, c);
}

static void phi3_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.fused_qkv = true, .fused_gate_up = true};

    layers_write(b, &l, c);
}

const struct model_family family_phi3 = {.architecture = "Phi3ForCausalLM",
                                         .rms_eps = 1e-5,
                                         .partial_rotary = true,
                                         .configure = phi3_configure,
                                         .build = phi3_build};

/*
 * SmolLM3ForCausalLM: as Llama, but every fourth layer (or those that no_rope_layers names with 0)
 * has no rotary positions, and with use_sliding_window these have a window. SmolLM and SmolLM2 are
 * Llama models by name, too.
 */
#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int read_unrotated(const struct model_json *j, struct model_config *c)
{
    const json_t *list = json_object_get(j->object, "no_rope_layers");
    uint32_t every = 4;
    int r = config_read_u32(j, "no_rope_layer_interval", 1u << 20, 4, &every);
    if (r < 0)
        return r;
    bool given = list && !json_is_null(list), ok = !given || json_array_size(list) == c->layers;
    for (uint32_t i = 0; ok && i < c->layers; i++) {
        const json_t *rotates = json_array_get(list, i);
        ok = !given || json_is_integer(rotates) || json_is_boolean(rotates);
        c->unrotated[i] = given ? json_is_false(rotates) ||
                                      (json_is_integer(rotates) && json_integer_value(rotates) == 0)
                                : (i + 1) % every == 0;
    }
    if (ok)
        return 0;
    return ek_fault_set(j->fault, "no_rope_layers",
                        "%s: no_rope_layers must have 0 or 1 for each of the %u layers; correct it",
                        j->file, c->layers);
}

static int smollm3_configure(const struct model_json *j, struct model_config *c)
{
    bool window = false;
    const json_t *types = json_object_get(j->object, "layer_types");
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r == 0)
        r = config_read_bool(j, "use_sliding_window", false, &window);
    if (r == 0)
        r = read_unrotated(j, c);
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = window}, c);
    for (uint32_t i = 0; r == 0 && i < c->layers && !json_is_array(types); i++)
        c->windowed[i] = c->unrotated[i];
    return r;
}

static void smollm3_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = NORM_NONE};

    layers_write(b, &l, c);
}

const struct model_family family_smollm3 = {.architecture = "SmolLM3ForCausalLM",
                                            .rope_theta = 2e6,
                                            .tied = true,
                                            .configure = smollm3_configure,
                                            .build = smollm3_build};

/* Keys of linear attention in config.json (config_keys.h). Called by the families that have it. */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"

#define HYBRID_HEADS_MOST 1024u
#define HYBRID_DIM_MOST   1024u

int config_read_delta_layers(const struct model_json *j, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    uint32_t every = 4, attend = 0;
    int r = config_read_u32(j, "full_attention_interval", CONFIG_LAYERS_MOST, 4, &every);
    const bool named = types && !json_is_null(types);
    if (r == 0 && named)
        r = config_read_kinds(j, "layer_types",
                              (const char *const[]){"full_attention", "linear_attention"}, 1, c,
                              c->recurrent);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++) {
        if (!named)
            c->recurrent[i] = (i + 1) % every != 0;
        attend += !c->recurrent[i];
    }
    if (r == 0 && attend == 0)
        r = ek_fault_set(j->fault, "layer_types",
                         "%s: no layer of layer_types is full_attention; correct it", j->file);
    return r;
}

int config_read_delta(const struct model_json *j, struct config_delta usual, struct model_config *c)
{
    struct config_delta *t = &c->delta;
    int r =
        config_read_u32(j, "linear_num_key_heads", HYBRID_HEADS_MOST, usual.k_heads, &t->k_heads);
    if (r == 0)
        r = config_read_u32(j, "linear_num_value_heads", HYBRID_HEADS_MOST, usual.v_heads,
                            &t->v_heads);
    if (r == 0)
        r = config_read_u32(j, "linear_key_head_dim", HYBRID_DIM_MOST, usual.k_dim, &t->k_dim);
    if (r == 0)
        r = config_read_u32(j, "linear_value_head_dim", HYBRID_DIM_MOST, usual.v_dim, &t->v_dim);
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

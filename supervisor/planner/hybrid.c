/* Models whose layers are of several kinds, some with a state of a fixed size instead of KV. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "supervisor/planner/reader.h"
#include "supervisor/planner/shape.h"

/* LFM2: layers of a short convolution, and a feed-forward whose width follows by a rule. */
static void read_short(struct plan_reader *r, struct plan_shape *s)
{
    const json_t *types = json_object_get(r->j, "layer_types");
    const size_t attend = json_array_size(json_object_get(r->j, "full_attn_idxs"));
    const uint32_t given = NUMBER(r, "block_ff_dim"), step = NUMBER(r, "block_multiple_of");
    const uint32_t multiple = step ? step : 256;
    s->conv = NUMBER(r, "conv_L_cache");
    s->conv = s->conv ? s->conv : 3;
    s->conv_bias = s->mixer_bias = s->mixer_out_bias = reader_truth(r->j, "conv_bias", false);
    s->recurrent_layers = reader_kinds(types, "conv", s->layers);
    if (!json_is_array(types) && attend > 0 && attend < s->layers)
        s->recurrent_layers = s->layers - (uint32_t)attend;
    s->tied = reader_truth(r->j, "tie_embedding", reader_truth(r->j, "tie_word_embeddings", true));
    s->intermediate = given ? given : s->intermediate;
    s->dense_layers = s->experts ? NUMBER(r, "num_dense_layers") : 0;
    if (!s->experts && reader_truth(r->j, "block_auto_adjust_ff_dim", true)) {
        const double by = json_number_value(json_object_get(r->j, "block_ffn_dim_multiplier"));
        const double inner = (by > 0 && by < 64 ? by : 1) * (2 * (double)s->intermediate / 3);
        const double whole = ceil(floor(inner) / multiple) * multiple;
        s->intermediate = (uint32_t)fmin(whole, READER_MOST);
    }
}

/* Mamba 2 as Granite 4 and Falcon H1 spell it; `wide`: elements of all its heads. */
static void read_mamba(struct plan_reader *r, struct plan_shape *s, double wide)
{
    s->v_heads = NUMBER(r, "mamba_n_heads");
    s->k_heads = NUMBER(r, "mamba_n_groups");
    s->k_dim = NUMBER(r, "mamba_d_state");
    s->conv = NUMBER(r, "mamba_d_conv");
    s->v_heads = s->v_heads ? s->v_heads : 128;
    s->k_heads = s->k_heads ? s->k_heads : 1;
    s->k_dim = s->k_dim ? s->k_dim : 256;
    s->conv = s->conv ? s->conv : 4;
    s->v_dim = (uint32_t)fmin(wide / s->v_heads, READER_MOST);
    s->gates = s->v_heads;
    s->scan = true;
    s->conv_bias = reader_truth(r->j, "mamba_conv_bias", true);
    s->mixer_bias = s->mixer_out_bias = reader_truth(r->j, "mamba_proj_bias", false);
}

/* What its heads have together where they are so many times as wide as the model. */
static double mamba_expanded(struct plan_reader *r, const struct plan_shape *s)
{
    const uint32_t expand = NUMBER(r, "mamba_expand");
    return (expand ? expand : 2) * (double)s->hidden;
}

/* Granite 4: a feed-forward that all tokens take, beside experts or alone; Mamba 2 keeps for each
 * of its heads what a delta rule keeps, with groups of B and C in place of heads of keys. */
static void read_granite4(struct plan_reader *r, struct plan_shape *s)
{
    const uint32_t shared = NUMBER(r, "shared_intermediate_size");
    const json_t *types = json_object_get(r->j, "layer_types");
    if (!json_is_array(types))
        types = json_object_get(r->j, "layers_block_type");
    read_mamba(r, s, mamba_expanded(r, s));
    s->recurrent_layers = reader_kinds(types, "mamba", s->layers) +
                          reader_kinds(types, "linear_attention", s->layers);
    if (s->recurrent_layers > s->layers || !json_is_array(types))
        s->recurrent_layers = s->layers;
    if (s->experts)
        s->shared_intermediate = shared ? shared : 1024;
    else
        s->intermediate = shared ? shared : 1024;
}

/* Falcon H1: in each layer Mamba 2 and attention read the same. */
static void read_falcon(struct plan_reader *r, struct plan_shape *s)
{
    const uint32_t given = NUMBER(r, "mamba_d_ssm");
    const bool none = json_is_null(json_object_get(r->j, "mamba_d_ssm"));
    read_mamba(r, s, none ? mamba_expanded(r, s) : given ? given : 1024);
    s->beside = true;
    s->unnormed = !reader_truth(r->j, "mamba_rms_norm", false);
    s->mixer_out_bias = reader_truth(r->j, "projectors_bias", false);
    s->recurrent_layers = s->layers;
}

/* What Nemotron-H names its layers: the list, or the text with a letter for each. */
static const json_t *nemotron_list(const struct plan_reader *r, const char **ret_letters)
{
    const json_t *types = json_object_get(r->j, "layers_block_type");
    *ret_letters = NULL;
    if (!json_is_array(types))
        types = json_object_get(r->j, "layer_types");
    if (!json_is_array(types))
        *ret_letters = json_string_value(json_object_get(r->j, "hybrid_override_pattern"));
    return types;
}

static uint32_t nemotron_kinds(const struct plan_reader *r, char letter, const char *name,
                               const char *other, uint32_t most)
{
    const char *letters;
    const json_t *types = nemotron_list(r, &letters);
    uint32_t n = 0;
    if (!letters)
        return reader_kinds(types, name, most) + (other ? reader_kinds(types, other, most) : 0);
    for (; *letters && n < most; letters++)
        n += *letters == letter;
    return n;
}

uint32_t plan_count_layers(struct plan_reader *r)
{
    const uint32_t n = NUMBER(r, "num_hidden_layers", "n_layer", "num_layers");
    const char *type = json_string_value(json_object_get(r->j, "model_type")), *letters;
    if (n > 0 || !type || strcmp(type, "nemotron_h") != 0)
        return n;
    const json_t *types = nemotron_list(r, &letters);
    return (uint32_t)fmin((double)(letters ? strlen(letters) : json_array_size(types)),
                          READER_MOST);
}

/* Each layer is one mixer. What a file says of experts counts where a layer has them. */
static void read_nemotron(struct plan_reader *r, struct plan_shape *s)
{
    const uint32_t mixed = nemotron_kinds(r, 'E', "moe", NULL, s->layers);
    const uint32_t dense = nemotron_kinds(r, '-', "mlp", NULL, s->layers - mixed);
    s->single = true;
    s->norms = 1;
    s->gated = false;
    s->qkv_bias = s->out_bias = reader_truth(r->j, "attention_bias", false);
    s->tied = false; /* it has an output layer of its own whatever the file says */
    s->dense_layers = dense;
    s->forward_layers = mixed + dense;
    s->recurrent_layers = nemotron_kinds(r, 'M', "mamba", "linear_attention", s->layers);
    if (s->recurrent_layers > s->layers - s->forward_layers)
        s->recurrent_layers = s->layers - s->forward_layers;
    if (mixed == 0) {
        s->experts = s->shared_intermediate = 0;
    } else {
        s->shared_intermediate = NUMBER(r, "moe_shared_expert_intermediate_size");
        s->expert_latent = NUMBER(r, "moe_latent_size");
    }
    s->v_heads = NUMBER(r, "mamba_num_heads");
    s->v_dim = NUMBER(r, "mamba_head_dim");
    s->k_heads = NUMBER(r, "n_groups");
    s->k_dim = NUMBER(r, "ssm_state_size");
    s->conv = NUMBER(r, "conv_kernel");
    s->v_heads = s->v_heads ? s->v_heads : 128;
    s->v_dim = s->v_dim ? s->v_dim : 64;
    s->k_heads = s->k_heads ? s->k_heads : 8;
    s->k_dim = s->k_dim ? s->k_dim : 128;
    s->conv = s->conv ? s->conv : 4;
    s->gates = s->v_heads;
    s->scan = true;
    s->conv_bias = reader_truth(r->j, "use_conv_bias", true);
    s->mixer_bias = s->mixer_out_bias = reader_truth(r->j, "use_bias", false);
}

void plan_read_recurrent(struct plan_reader *r, struct plan_shape *s)
{
    const json_t *types = json_object_get(r->j, "layer_types");
    const bool next = strcmp(s->family, "qwen3_next") == 0;
    if (strncmp(s->family, "lfm2", 4) == 0)
        read_short(r, s);
    if (strcmp(s->family, "granitemoehybrid") == 0) {
        read_granite4(r, s);
        return;
    }
    if (strcmp(s->family, "nemotron_h") == 0) {
        read_nemotron(r, s);
        return;
    }
    if (strcmp(s->family, "falcon_h1") == 0) {
        read_falcon(r, s);
        return;
    }
    const bool olmo = strcmp(s->family, "olmo_hybrid") == 0;
    s->v_heads = NUMBER(r, "linear_num_value_heads");
    if (s->v_heads == 0 && olmo)
        s->v_heads = s->heads;
    if (s->v_heads == 0)
        return;
    s->gates = s->v_heads <= READER_MOST / 2 ? 2 * s->v_heads : s->v_heads;
    s->k_heads = NUMBER(r, "linear_num_key_heads");
    s->k_dim = NUMBER(r, "linear_key_head_dim");
    s->v_dim = NUMBER(r, "linear_value_head_dim");
    s->conv_apart = olmo;
    if (olmo && s->heads > 0) {
        s->k_heads = s->k_heads ? s->k_heads : s->heads;
        s->k_dim = s->k_dim ? s->k_dim : 3 * (s->hidden / 4) / s->heads;
        s->v_dim = s->v_dim ? s->v_dim : 2 * s->k_dim;
    }
    s->conv = NUMBER(r, "linear_conv_kernel_dim");
    s->conv = s->conv ? s->conv : 4;
    s->output_gate =
        reader_truth(r->j, "attn_output_gate", next || strncmp(s->family, "qwen3_5", 7) == 0);
    const uint32_t every = NUMBER(r, "full_attention_interval");
    s->recurrent_layers = s->layers - s->layers / (every ? every : 4);
    if (json_is_array(types))
        s->recurrent_layers = reader_kinds(types, "linear_attention", s->layers);
}

#include "supervisor/planner/shape.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/families.h"
#include "common/file.h"
#include "common/json.h"
#include "common/textpart.h"

#define FILE_MOST      (4u << 20)
#define VALUE_MOST     100000000.0
#define LAYERS_COUNTED 4096u /* whose kinds are looked at */
#define BYTES_MOST     1e18  /* of weights, or of one request */

struct reader {
    const json_t *j;
    struct ek_fault *fault;
    bool bad;
};

/* The first of the spellings (ended by NULL) that is a number; 0 if none is. */
static uint32_t shape_number(struct reader *r, const char *const *keys)
{
    for (; *keys; keys++) {
        const json_t *v = json_object_get(r->j, *keys);
        if (json_is_string(v)) { /* a number that is none or does not fit */
            ek_fault_write(r->fault, *keys, "%s is %.40s; it must be a number from 0 to %.0f",
                           *keys, json_string_value(v), VALUE_MOST);
            r->bad = true;
            return 0;
        }
        if (!json_is_number(v))
            continue;
        double n = json_number_value(v);
        if (!(n >= 0 && n <= VALUE_MOST)) {
            ek_fault_write(r->fault, *keys, "%s is %g; it must be from 0 to %.0f", *keys, n,
                           VALUE_MOST);
            r->bad = true;
            return 0;
        }
        return (uint32_t)n;
    }
    return 0;
}
#define NUMBER(r, ...) shape_number((r), (const char *const[]){__VA_ARGS__, NULL})

static uint32_t needed(struct reader *r, const char *name, uint32_t value)
{
    if (value == 0 && !r->bad) {
        ek_fault_write(r->fault, name, "config.json has no %s; is it of a language model?", name);
        r->bad = true;
    }
    return value;
}

static bool truth(const json_t *j, const char *key, bool if_missing)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : if_missing;
}

static uint32_t bits_of(const json_t *j)
{
    const json_t *q = json_object_get(j, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const char *dtype = json_string_value(json_object_get(j, "torch_dtype"));
    if (!dtype)
        dtype = json_string_value(json_object_get(j, "dtype"));
    json_int_t bits = json_integer_value(json_object_get(q, "bits"));
    if (bits == 4 || bits == 8)
        return (uint32_t)bits;
    if (method && (strstr(method, "fp8") || strstr(method, "int8")))
        return 8;
    if (method &&
        (strcmp(method, "awq") == 0 || strcmp(method, "gptq") == 0 || strcmp(method, "mxfp4") == 0))
        return 4;
    if (method && strcmp(method, "compressed-tensors") == 0) {
        char *text = json_dumps(q, JSON_COMPACT);
        uint32_t n = text && strstr(text, "\"num_bits\":4") ? 4 : 8;
        free(text);
        return n;
    }
    return dtype && strcmp(dtype, "float32") == 0 ? 32 : 16;
}

/* Layers that are no mixtures, as Ernie 4.5 spells them: all but every so many from one to another.
 */
static uint32_t ernie_dense(struct reader *r, const struct plan_shape *s)
{
    uint32_t first = NUMBER(r, "moe_layer_start_index"), last = s->layers - 1, dense = 0;
    uint32_t every = NUMBER(r, "moe_layer_interval");
    const json_t *end = json_object_get(r->j, "moe_layer_end_index");
    if (json_is_integer(end) && json_integer_value(end) >= 0)
        last = NUMBER(r, "moe_layer_end_index");
    for (uint32_t i = 0; i < s->layers && i < LAYERS_COUNTED; i++)
        dense += i < first || i > last || (every > 1 && (i + 1) % every != 0);
    return dense;
}

/* Llama 4: plain layers have another width, and every mixture an expert that all tokens share. */
static void llama4_experts(struct reader *r, struct plan_shape *s)
{
    const json_t *mixed = json_object_get(r->j, "moe_layers");
    uint32_t every = NUMBER(r, "interleave_moe_layer_step");
    s->expert_intermediate = s->shared_intermediate = s->intermediate;
    s->intermediate = NUMBER(r, "intermediate_size_mlp");
    s->dense_layers = s->layers - s->layers / (every ? every : 1);
    if (json_is_array(mixed) && json_array_size(mixed) <= s->layers)
        s->dense_layers = s->layers - (uint32_t)json_array_size(mixed);
}

static void read_experts(struct reader *r, struct plan_shape *s)
{
    s->experts =
        NUMBER(r, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts");
    if (s->experts == 0)
        return;
    s->experts_used =
        NUMBER(r, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k");
    s->expert_intermediate = NUMBER(r, "moe_intermediate_size", "expert_ffn_hidden_size");
    if (s->expert_intermediate == 0)
        s->expert_intermediate = s->intermediate;
    s->shared_intermediate = NUMBER(r, "shared_expert_intermediate_size");
    if (s->shared_intermediate == 0)
        s->shared_intermediate =
            NUMBER(r, "n_shared_experts", "moe_num_shared_experts") * s->expert_intermediate;
    s->dense_layers = NUMBER(r, "first_k_dense_replace");
    if (strncmp(s->family, "ernie4_5", 8) == 0)
        s->dense_layers = ernie_dense(r, s);
    if (strncmp(s->family, "llama4", 6) == 0)
        llama4_experts(r, s);
    if (s->experts_used == 0 || s->experts_used > s->experts)
        s->experts_used = s->experts_used ? s->experts : 1;
    if (s->dense_layers > s->layers)
        s->dense_layers = s->layers;
}

/* Layers that have the window where the file names none: as the class says. */
static uint32_t usual_windows(struct reader *r, const struct plan_shape *s)
{
    if (strcmp(s->family, "gemma2") == 0)
        return s->layers - s->layers / 2;
    if (strncmp(s->family, "gemma3", 6) == 0) {
        uint32_t every = NUMBER(r, "sliding_window_pattern");
        return s->layers - s->layers / (every ? every : 6);
    }
    if (strncmp(s->family, "gemma4", 6) == 0) /* the last sees all, too */
        return s->layers - s->layers / 6 - (s->layers % 6 != 0);
    if (strncmp(s->family, "llama4", 6) == 0) /* every fourth sees all */
        return s->layers - s->layers / 4;
    if (strcmp(s->family, "exaone4") == 0) {
        uint32_t every = NUMBER(r, "sliding_window_pattern");
        return s->layers - s->layers / (every ? every : 4);
    }
    return strcmp(s->family, "mistral") == 0 || strcmp(s->family, "phi3") == 0 ||
                   strcmp(s->family, "mixtral") == 0
               ? s->layers
               : 0;
}

static void read_window(struct reader *r, struct plan_shape *s)
{
    const json_t *types = json_object_get(r->j, "layer_types");
    s->window = NUMBER(r, "sliding_window");
    if (!truth(r->j, "use_sliding_window", true))
        s->window = 0;
    if (strncmp(s->family, "gemma4", 6) == 0) { /* its kinds differ whether there is one or not */
        const uint32_t usual = strncmp(s->family, "gemma4_unified", 14) == 0 ? 1024 : 512;
        s->window = json_object_get(r->j, "sliding_window") ? NUMBER(r, "sliding_window") : usual;
        s->window = s->window ? s->window : s->max_len;
    }
    if (strncmp(s->family, "llama4", 6) == 0)
        s->window = NUMBER(r, "attention_chunk_size");
    if (s->window == 0)
        return;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *t = json_string_value(json_array_get(types, i));
        s->windowed_layers +=
            t && (strcmp(t, "sliding_attention") == 0 || strcmp(t, "chunked_attention") == 0);
    }
    if (!json_is_array(types))
        s->windowed_layers = usual_windows(r, s);
    if (s->windowed_layers > s->layers)
        s->windowed_layers = s->layers;
}

/* What the last `shared` layers are, by the kinds of all. The last layer of Gemma 4 sees all,
 * whatever the file says. */
static void read_kinds(const json_t *types, struct plan_shape *s)
{
    const size_t n = json_array_size(types);
    for (size_t i = 0; i < n && i < s->layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        const bool windowed = t && strcmp(t, "sliding_attention") == 0;
        if (windowed && i + 1 == s->layers && s->windowed_layers > 0)
            s->windowed_layers--;
        s->shared_windowed += windowed && i + 1 < s->layers && i + s->shared_layers >= s->layers;
    }
    for (uint32_t i = s->layers - s->shared_layers; n == 0 && i + 1 < s->layers; i++)
        s->shared_windowed += (i + 1) % 6 != 0;
}

/* Gemma 4, its heads by either spelling: keys of their own, or those of a layer that differs. */
static void read_gemma4(struct reader *r, struct plan_shape *s)
{
    const json_t *each = json_object_get(r->j, "per_layer_config"), *v;
    const char *name;
    if (strncmp(s->family, "gemma4", 6) != 0)
        return;
    s->keys_as_values = truth(r->j, "attention_k_eq_v", false);
    s->full_head_dim = NUMBER(r, "global_head_dim");
    s->full_head_dim = s->full_head_dim ? s->full_head_dim : each ? s->head_dim : 512;
    s->full_kv_heads = s->keys_as_values ? NUMBER(r, "num_global_key_value_heads") : 0;
    json_object_foreach((json_t *)(uintptr_t)each, name, v)
    {
        struct reader inner = {v, r->fault, r->bad};
        const uint32_t dim = NUMBER(&inner, "head_dim");
        const uint32_t heads = NUMBER(&inner, "num_key_value_heads");
        s->full_head_dim = dim ? dim : s->full_head_dim;
        s->full_kv_heads = heads ? heads : s->full_kv_heads;
        r->bad = inner.bad;
    }
    s->full_kv_heads = s->full_kv_heads ? s->full_kv_heads : s->kv_heads;
    s->shared_layers = NUMBER(r, "num_kv_shared_layers");
    s->shared_layers = s->shared_layers < s->layers ? s->shared_layers : s->layers - !!s->layers;
    s->shared_wide = truth(r->j, "use_double_wide_mlp", false);
    s->layer_input = NUMBER(r, "hidden_size_per_layer_input");
    if (!json_object_get(r->j, "hidden_size_per_layer_input"))
        s->layer_input = strncmp(s->family, "gemma4_unified", 14) == 0 ? 0 : 256;
    if (!truth(r->j, "enable_moe_block", false)) {
        s->experts = s->shared_intermediate = 0;
    } else { /* the feed-forward is beside them */
        const uint32_t used = NUMBER(r, "top_k_experts");
        s->experts_used = used > 0 && used < s->experts ? used : s->experts;
        s->shared_intermediate = s->intermediate;
    }
    read_kinds(json_object_get(r->j, "layer_types"), s);
}

static void read_latent(struct reader *r, struct plan_shape *s)
{
    s->latent = NUMBER(r, "kv_lora_rank");
    if (s->latent == 0)
        return;
    s->latent_rope = NUMBER(r, "qk_rope_head_dim");
    s->q_latent = NUMBER(r, "q_lora_rank");
    s->nope_dim = NUMBER(r, "qk_nope_head_dim");
    s->value_dim = NUMBER(r, "v_head_dim");
    s->kv_heads = 1; /* what is kept: one vector for all heads */
    s->head_dim = s->latent + s->latent_rope;
}

/* How many layers are of a kind. */
static uint32_t kinds(const json_t *types, const char *kind, uint32_t most)
{
    uint32_t n = 0;
    for (size_t i = 0; i < json_array_size(types) && n < most; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        n += t && strcmp(t, kind) == 0;
    }
    return n;
}

/* LFM2: layers of a short convolution, and a feed-forward whose width follows by a rule. */
static void read_short(struct reader *r, struct plan_shape *s)
{
    const json_t *types = json_object_get(r->j, "layer_types");
    const size_t attend = json_array_size(json_object_get(r->j, "full_attn_idxs"));
    const uint32_t given = NUMBER(r, "block_ff_dim"), step = NUMBER(r, "block_multiple_of");
    const uint32_t multiple = step ? step : 256;
    s->conv = NUMBER(r, "conv_L_cache");
    s->conv = s->conv ? s->conv : 3;
    s->recurrent_layers = kinds(types, "conv", s->layers);
    if (!json_is_array(types) && attend > 0 && attend < s->layers)
        s->recurrent_layers = s->layers - (uint32_t)attend;
    s->tied = truth(r->j, "tie_embedding", truth(r->j, "tie_word_embeddings", true));
    s->intermediate = given ? given : s->intermediate;
    s->dense_layers = s->experts ? NUMBER(r, "num_dense_layers") : 0;
    if (!s->experts && truth(r->j, "block_auto_adjust_ff_dim", true)) {
        const double by = json_number_value(json_object_get(r->j, "block_ffn_dim_multiplier"));
        const double inner = (by > 0 && by < 64 ? by : 1) * (2 * (double)s->intermediate / 3);
        const double whole = ceil(floor(inner) / multiple) * multiple;
        s->intermediate = (uint32_t)fmin(whole, VALUE_MOST);
    }
}

/* Granite 4: a feed-forward that all tokens take, beside experts or alone; Mamba 2 keeps for each
 * of its heads what a delta rule keeps, with groups of B and C in place of heads of keys. */
static void read_granite4(struct reader *r, struct plan_shape *s)
{
    const uint32_t shared = NUMBER(r, "shared_intermediate_size");
    const json_t *types = json_object_get(r->j, "layer_types");
    if (!json_is_array(types))
        types = json_object_get(r->j, "layers_block_type");
    s->v_heads = NUMBER(r, "mamba_n_heads");
    s->k_heads = NUMBER(r, "mamba_n_groups");
    s->k_dim = NUMBER(r, "mamba_d_state");
    s->conv = NUMBER(r, "mamba_d_conv");
    const uint32_t expand = NUMBER(r, "mamba_expand");
    s->v_heads = s->v_heads ? s->v_heads : 128;
    s->k_heads = s->k_heads ? s->k_heads : 1;
    s->k_dim = s->k_dim ? s->k_dim : 256;
    s->conv = s->conv ? s->conv : 4;
    s->v_dim = (uint32_t)fmin((expand ? expand : 2) * (double)s->hidden / s->v_heads, VALUE_MOST);
    s->gates = s->v_heads;
    s->recurrent_layers =
        kinds(types, "mamba", s->layers) + kinds(types, "linear_attention", s->layers);
    if (s->recurrent_layers > s->layers || !json_is_array(types))
        s->recurrent_layers = s->layers;
    if (s->experts)
        s->shared_intermediate = shared ? shared : 1024;
    else
        s->intermediate = shared ? shared : 1024;
}

/* What Nemotron-H names its layers: the list, or the text with a letter for each. */
static const json_t *nemotron_list(const struct reader *r, const char **ret_letters)
{
    const json_t *types = json_object_get(r->j, "layers_block_type");
    *ret_letters = NULL;
    if (!json_is_array(types))
        types = json_object_get(r->j, "layer_types");
    if (!json_is_array(types))
        *ret_letters = json_string_value(json_object_get(r->j, "hybrid_override_pattern"));
    return types;
}

static uint32_t nemotron_kinds(const struct reader *r, char letter, const char *name,
                               const char *other, uint32_t most)
{
    const char *letters;
    const json_t *types = nemotron_list(r, &letters);
    uint32_t n = 0;
    if (!letters)
        return kinds(types, name, most) + (other ? kinds(types, other, most) : 0);
    for (; *letters && n < most; letters++)
        n += *letters == letter;
    return n;
}

static uint32_t count_layers(struct reader *r)
{
    const uint32_t n = NUMBER(r, "num_hidden_layers", "n_layer", "num_layers");
    const char *type = json_string_value(json_object_get(r->j, "model_type")), *letters;
    if (n > 0 || !type || strcmp(type, "nemotron_h") != 0)
        return n;
    const json_t *types = nemotron_list(r, &letters);
    return (uint32_t)fmin((double)(letters ? strlen(letters) : json_array_size(types)), VALUE_MOST);
}

/* Each layer is one mixer. What a file says of experts counts where a layer has them. */
static void read_nemotron(struct reader *r, struct plan_shape *s)
{
    const uint32_t mixed = nemotron_kinds(r, 'E', "moe", NULL, s->layers);
    const uint32_t dense = nemotron_kinds(r, '-', "mlp", NULL, s->layers - mixed);
    s->single = true;
    s->norms = 1;
    s->gated = false;
    s->qkv_bias = truth(r->j, "attention_bias", false);
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
}

static void read_recurrent(struct reader *r, struct plan_shape *s)
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
    s->v_heads = NUMBER(r, "linear_num_value_heads");
    if (s->v_heads == 0)
        return;
    s->gates = s->v_heads <= VALUE_MOST / 2 ? 2 * s->v_heads : s->v_heads;
    s->k_heads = NUMBER(r, "linear_num_key_heads");
    s->k_dim = NUMBER(r, "linear_key_head_dim");
    s->v_dim = NUMBER(r, "linear_value_head_dim");
    s->conv = NUMBER(r, "linear_conv_kernel_dim");
    s->conv = s->conv ? s->conv : 4;
    s->output_gate = truth(r->j, "attn_output_gate", next || strncmp(s->family, "qwen3_5", 7) == 0);
    const uint32_t every = NUMBER(r, "full_attention_interval");
    s->recurrent_layers = s->layers - s->layers / (every ? every : 4);
    if (json_is_array(types))
        s->recurrent_layers = kinds(types, "linear_attention", s->layers);
}

static void read_vectors(struct reader *r, struct plan_shape *s)
{
    static const char *const head_norms[] = {"qwen3", "gemma3", "gemma4", "exaone4",
                                             "hunyuan_v1_dense"};
    bool four = strncmp(s->family, "gemma2", 6) == 0 || strncmp(s->family, "gemma3", 6) == 0 ||
                strncmp(s->family, "gemma4", 6) == 0 || strcmp(s->family, "glm4") == 0;
    s->norms = four ? 4 : 2;
    s->head_norms = strcmp(s->family, "glm4_moe") == 0 && truth(r->j, "use_qk_norm", false);
    for (size_t i = 0; i < sizeof(head_norms) / sizeof(head_norms[0]); i++)
        s->head_norms |= strncmp(s->family, head_norms[i], strlen(head_norms[i])) == 0;
    bool usual = strncmp(s->family, "qwen2", 5) == 0 || strcmp(s->family, "seed_oss") == 0 ||
                 strcmp(s->family, "glm") == 0;
    s->qkv_bias = truth(r->j, "attention_bias", usual) || truth(r->j, "use_bias", false);
}

/* What a class has where the file does not say, as server/model/family_*.c. */
struct usual {
    const char *type; /* model_type, or its beginning */
    uint32_t head_dim;
    bool tied;
};

static struct usual usual_of(const char *family)
{
    static const struct usual table[] = {
        {"ernie4_5_moe", 0, true},  {"ernie4_5", 128, true},    {"gemma", 256, true},
        {"glm4_moe", 0, false},     {"glm", 128, false},        {"gpt_oss", 64, false},
        {"llama4", 128, false},     {"ministral3", 128, false}, {"nemotron_h", 128, false},
        {"qwen3_5", 256, false},    {"qwen3_next", 256, false}, {"qwen3_moe", 0, false},
        {"qwen3_vl_moe", 0, false}, {"qwen3", 128, false},      {"seed_oss", 128, false},
        {"smollm3", 0, true},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strncmp(family, table[i].type, strlen(table[i].type)) == 0)
            return table[i];
    return (struct usual){.type = ""};
}

static void read_shape(struct reader *r, struct plan_shape *s)
{
    static const char *const plain[] = {"gpt2", "opt",        "gpt_neox",    "falcon", "bloom",
                                        "phi",  "starcoder2", "gpt_bigcode", "mpt"};
    const char *family = json_string_value(json_object_get(r->j, "model_type"));
    (void)snprintf(s->family, sizeof(s->family), "%.47s", family ? family : "model");
    s->hidden = needed(r, "hidden_size", NUMBER(r, "hidden_size", "n_embd", "d_model"));
    s->layers = needed(r, "num_hidden_layers", count_layers(r));
    s->heads =
        needed(r, "num_attention_heads", NUMBER(r, "num_attention_heads", "n_head", "num_heads"));
    s->vocab = needed(r, "vocab_size", NUMBER(r, "vocab_size"));
    s->kv_heads = NUMBER(r, "num_key_value_heads", "num_kv_heads");
    if (s->kv_heads == 0)
        s->kv_heads = truth(r->j, "multi_query", false) ? 1 : s->heads;
    s->head_dim = NUMBER(r, "head_dim", "attention_head_dim");
    const struct usual of = usual_of(s->family);
    if (s->head_dim == 0)
        s->head_dim = of.head_dim;
    if (s->head_dim == 0 && s->heads > 0)
        s->head_dim = s->hidden / s->heads;
    s->intermediate = NUMBER(r, "intermediate_size", "n_inner", "ffn_dim");
    if (s->intermediate == 0)
        s->intermediate = 4 * s->hidden;
    s->max_len = NUMBER(r, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len");
    if (s->max_len == 0)
        s->max_len = 2048;
    s->tied = truth(r->j, "tie_word_embeddings", of.tied);
    s->gated = true;
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        s->gated &= strcmp(s->family, plain[i]) != 0;
    read_vectors(r, s);
    read_experts(r, s);
    read_window(r, s);
    read_gemma4(r, s);
    read_latent(r, s);
    read_recurrent(r, s);
    /* published so: only the experts of gpt-oss */
    s->experts_only = strcmp(s->family, "gpt_oss") == 0;
    if (s->experts_only)
        s->qkv_bias = truth(r->j, "attention_bias", true);
}

int plan_shape_parse(const char *text, size_t len, struct plan_shape *ret_shape,
                     struct ek_fault *fault)
{
    json_error_t where;
    struct plan_shape s = {0};
    json_t *root = ek_json_parse(text, len, 0, &where);
    if (!root)
        return ek_fault_set(fault, "config.json", "config.json line %d: %s", where.line,
                            where.text);
    json_t *part = NULL; /* of models that see, too: as evenkeel-server reads it, if it does */
    if (json_is_object(root) && ek_text_part(root, &part) < 0) {
        json_decref(root);
        return -ENOMEM;
    }
    json_t *inner = part ? part : json_object_get(root, "text_config");
    struct reader r = {json_is_object(inner) ? inner : root, fault, false};
    if (!json_is_object(root)) {
        ek_fault_write(fault, "config.json", "config.json is no JSON object");
        r.bad = true;
    } else {
        const struct ek_family_name name = ek_family_of(part ? part : root);
        if (!name.family)
            (void)snprintf(s.refused, sizeof(s.refused), "%s", name.first);
        read_shape(&r, &s);
        s.weight_bits = bits_of(root);
        if (s.weight_bits == 16)
            s.weight_bits = bits_of(r.j);
    }
    json_decref(part);
    json_decref(root);
    if (r.bad)
        return -EBADMSG;
    if (plan_parameters(&s) * 4 > BYTES_MOST ||
        plan_kv_request_bytes(&s, 1, 32, s.max_len) > BYTES_MOST)
        return ek_fault_set(fault, "config.json",
                            "config.json describes %.3g parameters in %u layers for up to %u "
                            "tokens, which no machine holds; download it again",
                            plan_parameters(&s), s.layers, s.max_len);
    *ret_shape = s;
    return 0;
}

int plan_shape_loads(const struct plan_shape *s, struct ek_fault *fault)
{
    const char *near = ek_family_nearest(s->refused);
    if (!s->refused[0])
        return 0;
    return ek_fault_set(fault, "architectures",
                        "evenkeel-server does not load the architecture '%s'%s%s%s", s->refused,
                        near ? " (the nearest that it does: " : "", near ? near : "",
                        near ? ")" : ", nor one that is like it");
}

/* Bytes of the weight files in the directory. */
static double measure(const char *dir)
{
    double sum = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        char path[4352];
        struct stat st;
        if (n < 12 || strcmp(e->d_name + n - 12, ".safetensors") != 0)
            continue;
        int w = snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (w > 0 && (size_t)w < sizeof(path) && stat(path, &st) == 0)
            sum += (double)st.st_size;
    }
    if (d)
        (void)closedir(d);
    return sum;
}

int plan_shape_read(const char *path, struct plan_shape *ret_shape, struct ek_fault *fault)
{
    char file[4352];
    struct stat st;
    struct ek_buf text = {0};
    bool dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(file, sizeof(file), dir ? "%s/config.json" : "%s", path);
    if (n < 0 || (size_t)n >= sizeof(file))
        return ek_fault_set(fault, "model", "the path is longer than %zu bytes", sizeof(file) - 1);
    int r = ek_file_read("the model", file, FILE_MOST, &text, fault);
    if (r == 0)
        r = plan_shape_parse(text.data ? text.data : "", text.len, ret_shape, fault);
    ek_buf_done(&text);
    if (r == 0 && dir)
        ret_shape->file_bytes = measure(path);
    return r;
}

/* ---- what follows from the numbers ---- */

uint32_t plan_attending(const struct plan_shape *s)
{
    return s->layers - s->recurrent_layers - s->forward_layers;
}

uint32_t plan_forwarding(const struct plan_shape *s)
{
    return s->single ? s->forward_layers : s->layers;
}

uint32_t plan_heads_of(const struct plan_shape *s, struct plan_heads ret_heads[2])
{
    const double all = plan_attending(s);
    const double windowed = s->window ? s->windowed_layers : 0;
    if (s->full_head_dim == 0) {
        ret_heads[0] = (struct plan_heads){
            .layers = all, .keeping = all, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
        return 1;
    }
    ret_heads[0] = (struct plan_heads){.layers = windowed,
                                       .keeping = windowed - s->shared_windowed,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim,
                                       .windowed = true};
    ret_heads[1] = (struct plan_heads){.layers = all - windowed,
                                       .keeping = all - windowed -
                                                  ((double)s->shared_layers - s->shared_windowed),
                                       .kv_heads = s->full_kv_heads,
                                       .head_dim = s->full_head_dim,
                                       .keys_as_values = s->keys_as_values};
    return 2;
}

/* All that attend. */
static double attention(const struct plan_shape *s)
{
    struct plan_heads of[2];
    const uint32_t kinds = plan_heads_of(s, of);
    double sum = 0;
    double h = s->hidden, heads = s->heads;
    if (s->latent > 0) {
        double q = s->nope_dim + s->latent_rope;
        double from = s->q_latent ? s->q_latent * (h + heads * q) : h * heads * q;
        return of[0].layers *
               (from + h * (s->latent + s->latent_rope) +
                s->latent * heads * (s->nope_dim + s->value_dim) + heads * s->value_dim * h);
    }
    for (uint32_t i = 0; i < kinds; i++)
        sum += of[i].layers * ((s->output_gate ? 3 : 2) * h * heads * of[i].head_dim) +
               of[i].keeping *
                   ((of[i].keys_as_values ? 1 : 2) * h * (double)of[i].kv_heads * of[i].head_dim);
    return sum;
}

/* A wider feed-forward in some layers, and what brings the second embedding into each. */
static double extras(const struct plan_shape *s)
{
    return (s->shared_wide ? s->shared_layers * 3.0 * s->hidden * s->intermediate : 0) +
           3.0 * s->hidden * s->layer_input * s->layers;
}

/* Linear attention: products of q, k, v, what gates it, and b and a; a convolution; the output. */
static double linear_attention(const struct plan_shape *s)
{
    double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    if (s->v_heads == 0) /* a short convolution between two gates */
        return s->hidden * (4.0 * s->hidden + s->conv);
    return s->hidden * (2 * keys + 3 * values + s->gates) + (2 * keys + values) * s->conv;
}

static double forward(const struct plan_shape *s, double inner)
{
    return (s->gated ? 3 : 2) * (double)s->hidden * inner;
}

static double mixture(const struct plan_shape *s, double used)
{
    const double wide = s->hidden, takes = s->expert_latent ? s->expert_latent : wide;
    return used * (s->gated ? 3 : 2) * takes * s->expert_intermediate +
           2 * wide * s->expert_latent + forward(s, s->shared_intermediate) + wide * s->experts;
}

/* All layers; `used` experts of each mixture. */
static double layers(const struct plan_shape *s, double used)
{
    double mixed = s->experts ? (double)plan_forwarding(s) - s->dense_layers : 0;
    double plain = plan_forwarding(s) - mixed;
    return attention(s) + extras(s) + s->recurrent_layers * linear_attention(s) +
           (s->single ? 1.0 : 2.0) * s->layers * s->hidden + plain * forward(s, s->intermediate) +
           mixed * mixture(s, used);
}

static double tables(const struct plan_shape *s)
{
    return (double)s->vocab *
           (s->hidden * (s->tied ? 1.0 : 2.0) + (double)s->layers * s->layer_input);
}

double plan_parameters(const struct plan_shape *s)
{
    return layers(s, s->experts) + tables(s);
}

double plan_active_parameters(const struct plan_shape *s)
{
    return layers(s, s->experts_used) + (double)s->vocab * s->hidden;
}

double plan_weight_bytes(const struct plan_shape *s, uint32_t bits)
{
    if (bits == 0 && s->file_bytes > 0)
        return s->file_bytes;
    uint32_t b = bits ? bits : s->weight_bits;
    double each = b == 4 ? 4.25 / 8 : b / 8.0;
    if (s->experts_only && bits == 0 && b < 16) {
        double experts = (double)s->layers * s->experts * forward(s, s->expert_intermediate);
        return experts * each + (layers(s, s->experts) - experts + tables(s)) * 2;
    }
    return layers(s, s->experts) * each + tables(s) * (b == 32 ? 4 : 2);
}

double plan_kv_token_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits)
{
    double each = bits / 8.0;
    if (s->latent > 0) /* every card keeps the whole */
        return s->layers * (s->latent + (double)s->latent_rope) * each;
    struct plan_heads of[2];
    double sum = 0;
    for (uint32_t n = plan_heads_of(s, of), i = 0; i < n; i++) {
        double heads = of[i].kv_heads > split ? (double)of[i].kv_heads / split : 1;
        sum += 2.0 * of[i].keeping * heads * of[i].head_dim * each;
    }
    return sum;
}

double plan_state_bytes(const struct plan_shape *s)
{
    double keys = (double)s->k_heads * s->k_dim, values = (double)s->v_heads * s->v_dim;
    double conv = (s->v_heads ? 2 * keys + values : s->hidden) * (s->conv > 0 ? s->conv - 1.0 : 0);
    return s->recurrent_layers * (conv + values * s->k_dim) * sizeof(float);
}

double plan_kv_request_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits, double len)
{
    double token = plan_kv_token_bytes(s, split, bits);
    double attend = plan_attending(s);
    double windowed = attend > 0 ? s->windowed_layers / attend : 0;
    double kept = s->window && len > s->window ? s->window : len, sum = 0;
    struct plan_heads of[2];
    const uint32_t kinds = plan_heads_of(s, of);
    for (uint32_t i = 0; kinds > 1 && i < kinds; i++) {
        double heads = of[i].kv_heads > split ? (double)of[i].kv_heads / split : 1;
        sum += 2.0 * of[i].keeping * heads * of[i].head_dim * bits / 8.0 *
               (of[i].windowed ? kept : len);
    }
    if (kinds > 1)
        return sum;
    return token * ((1 - windowed) * len + windowed * kept);
}

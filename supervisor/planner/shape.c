/*
 * Reads config.json for the planner (advise.c, ctl/verb_plan.c). It is more lenient than
 * server/model/config.c, as it plans for vLLM too: families differ in spellings and in what a class
 * has by itself, and each such difference is a small function here; norms and biases
 * are in vectors.c, hybrids in hybrid.c, parameters counted in counts.c.
 */
#include "supervisor/planner/shape.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/families.h"
#include "common/file.h"
#include "common/json.h"
#include "common/textpart.h"
#include "supervisor/planner/reader.h"

#define FILE_MOST      (4u << 20)
#define INDEX_TOKENS   2048  /* index_topk where it is not said */
#define LAYERS_COUNTED 4096u /* whose kinds are looked at */
#define BYTES_MOST     1e18  /* of weights, or of one request */

static uint32_t needed(struct plan_reader *r, const char *name, uint32_t value)
{
    if (value == 0 && !r->bad) {
        ek_fault_write(r->fault, name, "config.json has no %s; is it of a language model?", name);
        r->bad = true;
    }
    return value;
}

/* 4 where its compact text has these words, else 8. */
static uint32_t bits_told(const json_t *j, const char *four)
{
    char *text = json_dumps(j, JSON_COMPACT);
    uint32_t n = text && strstr(text, four) ? 4 : 8;
    free(text);
    return n;
}

static uint32_t bits_of(const json_t *j)
{
    const json_t *q = json_object_get(j, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const char *dtype = json_string_value(json_object_get(j, "torch_dtype"));
    if (!method && json_object_get(q, "quant_algo"))
        method = "modelopt"; /* whose older files name no method */
    if (!dtype)
        dtype = json_string_value(json_object_get(j, "dtype"));
    json_int_t bits = json_integer_value(json_object_get(q, "bits"));
    if (bits == 4 || bits == 8)
        return (uint32_t)bits;
    if (method && (strstr(method, "fp8") || strstr(method, "int8")))
        return 8;
    if (method && strcmp(method, "quark") == 0)
        return bits_told(json_object_get(q, "global_quant_config"), "\"dtype\":\"fp4\"");
    if (method && strncmp(method, "modelopt", 8) == 0) {
        const char *algorithm = json_string_value(json_object_get(q, "quant_algo"));
        return algorithm && strstr(algorithm, "NVFP4") ? 4 : 8;
    }
    if (method && (strcmp(method, "awq") == 0 || strcmp(method, "gptq") == 0 ||
                   strcmp(method, "mxfp4") == 0 || strcmp(method, "auto-round") == 0))
        return 4;
    if (method && strcmp(method, "compressed-tensors") == 0)
        return bits_told(q, "\"num_bits\":4");
    return dtype && strcmp(dtype, "float32") == 0 ? 32 : 16;
}

/* Layers that are no mixtures, as Ernie 4.5 spells them: all but every so many from one to another.
 */
static uint32_t ernie_dense(struct plan_reader *r, const struct plan_shape *s)
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

/* Qwen: those that mlp_only_layers names, and all but every decoder_sparse_step-th. */
static uint32_t qwen_dense(struct plan_reader *r, const struct plan_shape *s)
{
    const json_t *plain = json_object_get(r->j, "mlp_only_layers");
    const uint32_t step = NUMBER(r, "decoder_sparse_step");
    uint32_t dense = 0;
    for (uint32_t i = 0; i < s->layers && i < LAYERS_COUNTED; i++) {
        bool named = false;
        for (size_t k = 0; k < json_array_size(plain) && !named; k++)
            named = json_integer_value(json_array_get(plain, k)) == (json_int_t)i;
        dense += named || (step > 1 && (i + 1) % step != 0);
    }
    return dense;
}

/* A count, or the same one for each layer, as Hunyuan writes it. */
static uint32_t each_number(struct plan_reader *r, const char *key)
{
    const json_t *list = json_object_get(r->j, key);
    if (!json_is_array(list))
        return NUMBER(r, key);
    const json_int_t n = json_integer_value(json_array_get(list, 0));
    return n > 0 && n <= (json_int_t)READER_MOST ? (uint32_t)n : 0;
}

/* Experts that all tokens take, beside those that are chosen. */
static uint32_t shared_experts(struct plan_reader *r, const struct plan_shape *s)
{
    static const char *const keys[] = {"n_shared_experts", "moe_num_shared_experts",
                                       "num_shared_experts", "num_shared_expert"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_object_get(r->j, keys[i]))
            return each_number(r, keys[i]);
    if (strcmp(s->family, "afmoe") == 0)
        return 2;
    return strcmp(s->family, "hunyuan_v1_moe") == 0 || strcmp(s->family, "exaone_moe") == 0 ||
           strcmp(s->family, "hy_v3") == 0;
}

/* Llama 4: plain layers have another width, and every mixture an expert that all tokens share. */
static void llama4_experts(struct plan_reader *r, struct plan_shape *s)
{
    const json_t *mixed = json_object_get(r->j, "moe_layers");
    uint32_t every = NUMBER(r, "interleave_moe_layer_step");
    s->expert_intermediate = s->shared_intermediate = s->intermediate;
    s->intermediate = NUMBER(r, "intermediate_size_mlp");
    s->dense_layers = s->layers - s->layers / (every ? every : 1);
    if (json_is_array(mixed) && json_array_size(mixed) <= s->layers)
        s->dense_layers = s->layers - (uint32_t)json_array_size(mixed);
}

static void read_experts(struct plan_reader *r, struct plan_shape *s)
{
    s->experts =
        NUMBER(r, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts");
    if (s->experts == 0)
        return;
    s->experts_used = NUMBER(r, "num_experts_per_tok", "num_experts_per_token", "moe_k");
    if (s->experts_used == 0)
        s->experts_used = each_number(r, "moe_topk");
    s->expert_intermediate =
        NUMBER(r, "moe_intermediate_size", "expert_ffn_hidden_size", "expert_hidden_dim");
    if (s->expert_intermediate == 0)
        s->expert_intermediate = s->intermediate;
    s->shared_intermediate = NUMBER(r, "shared_expert_intermediate_size");
    if (s->shared_intermediate == 0)
        s->shared_intermediate = shared_experts(r, s) * s->expert_intermediate;
    if (strcmp(s->family, "granitemoeshared") == 0 || strcmp(s->family, "granitemoe_swa") == 0)
        s->shared_intermediate = NUMBER(r, "shared_intermediate_size");
    const bool one = strcmp(s->family, "hy_v3") == 0 || strcmp(s->family, "axk1") == 0;
    s->dense_layers = reader_number_or(r, "first_k_dense_replace", one);
    if (json_is_array(json_object_get(r->j, "mlp_layer_types")))
        s->dense_layers =
            reader_kinds(json_object_get(r->j, "mlp_layer_types"), "dense", s->layers);
    if (strncmp(s->family, "qwen", 4) == 0)
        s->dense_layers = qwen_dense(r, s);
    if (strcmp(s->family, "afmoe") == 0)
        s->dense_layers = reader_number_or(r, "num_dense_layers", 1);
    if (strncmp(s->family, "ernie4_5", 8) == 0)
        s->dense_layers = json_is_array(json_object_get(r->j, "mlp_layer_types"))
                              ? s->dense_layers
                              : ernie_dense(r, s);
    if (strcmp(s->family, "cohere2_moe") == 0 && NUMBER(r, "prefix_dense_intermediate_size") > 0)
        s->intermediate = NUMBER(r, "prefix_dense_intermediate_size");
    if (strncmp(s->family, "llama4", 6) == 0)
        llama4_experts(r, s);
    if (s->experts_used == 0 || s->experts_used > s->experts)
        s->experts_used = s->experts_used ? s->experts : 1;
    if (s->dense_layers > s->layers)
        s->dense_layers = s->layers;
}

/* Every fourth of Cohere's mixtures has none, and of the plain ones before them every one that its
 * own number says. */
static uint32_t cohere_moe_windows(struct plan_reader *r, const struct plan_shape *s)
{
    const uint32_t every = NUMBER(r, "sliding_window_pattern");
    const uint32_t own = NUMBER(r, "prefix_dense_sliding_window_pattern");
    const uint32_t first = NUMBER(r, "first_k_dense_replace");
    const uint32_t behind = s->layers > first ? s->layers - first : 0;
    return s->layers - behind / (every ? every : 4) - first / (own ? own : 1);
}

/* Layers that have the window where the file names none: as the class says. */
static uint32_t usual_windows(struct plan_reader *r, const struct plan_shape *s)
{
    if (strcmp(s->family, "gemma2") == 0 || strcmp(s->family, "vaultgemma") == 0)
        return s->layers - s->layers / 2;
    if (strncmp(s->family, "gemma3n", 7) == 0)
        return s->layers - s->layers / 5;
    if (strncmp(s->family, "gemma3", 6) == 0) {
        uint32_t every = NUMBER(r, "sliding_window_pattern");
        return s->layers - s->layers / (every ? every : 6);
    }
    if (strncmp(s->family, "gemma4", 6) == 0) /* the last sees all, too */
        return s->layers - s->layers / 6 - (s->layers % 6 != 0);
    if (strncmp(s->family, "llama4", 6) == 0) /* every fourth sees all */
        return s->layers - s->layers / 4;
    if (plan_granite_swa(s)) /* so, from the first on */
        return s->layers - s->layers / 4 - (s->layers % 4 != 0);
    if (strcmp(s->family, "exaone4") == 0 || strcmp(s->family, "cohere2") == 0 ||
        strcmp(s->family, "afmoe") == 0) {
        uint32_t every = NUMBER(r, "sliding_window_pattern", "global_attn_every_n_layers");
        return s->layers - s->layers / (every ? every : 4);
    }
    if (strcmp(s->family, "cohere2_moe") == 0)
        return cohere_moe_windows(r, s);
    return strcmp(s->family, "mistral") == 0 || strcmp(s->family, "phi3") == 0 ||
                   strcmp(s->family, "mixtral") == 0 || strcmp(s->family, "starcoder2") == 0
               ? s->layers
               : 0;
}

static void read_window(struct plan_reader *r, struct plan_shape *s)
{
    const json_t *types = json_object_get(r->j, "layer_types");
    if (strcmp(s->family, "gpt_neo") == 0) {
        s->window = reader_number_or(r, "window_size", 256);
        s->windowed_layers =
            reader_kinds(json_object_get(r->j, "attention_layers"), "local", s->layers);
        return;
    }
    s->window = NUMBER(r, "sliding_window");
    if (!json_object_get(r->j, "sliding_window") && strncmp(s->family, "cohere2", 7) == 0)
        s->window = 4096;
    if (!json_object_get(r->j, "sliding_window") && strcmp(s->family, "afmoe") == 0)
        s->window = 1024;
    if (!json_object_get(r->j, "sliding_window") && plan_granite_swa(s))
        s->window = 128;
    if (!json_object_get(r->j, "sliding_window") && strcmp(s->family, "mellum") == 0)
        s->window = 1024;
    if (!reader_truth(r->j, "use_sliding_window", true))
        s->window = 0;
    if (!json_object_get(r->j, "sliding_window") && strncmp(s->family, "gemma3n", 7) == 0)
        s->window = 512;
    if (strncmp(s->family, "gemma4", 6) == 0) { /* its kinds differ whether there is one or not */
        const uint32_t usual = strncmp(s->family, "gemma4_unified", 14) == 0 ? 1024 : 512;
        s->window = reader_number_or(r, "sliding_window", usual);
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

/* Gemma 3n: streams beside each other, and what Gemma 4's small sizes have, too. */
static void read_gemma3n(struct plan_reader *r, struct plan_shape *s)
{
    if (strncmp(s->family, "gemma3n", 7) != 0)
        return;
    s->full_head_dim = s->head_dim; /* its kinds are counted apart, for those that read */
    s->full_kv_heads = s->kv_heads;
    s->streams = NUMBER(r, "altup_num_inputs");
    s->streams = s->streams ? s->streams : 4;
    s->streams_scaled = reader_truth(r->j, "altup_correct_scale", true);
    s->laurel = NUMBER(r, "laurel_rank");
    s->laurel = s->laurel ? s->laurel : 64;
    s->layer_input = NUMBER(r, "hidden_size_per_layer_input");
    s->layer_input = s->layer_input ? s->layer_input : 256;
    s->input_rows = NUMBER(r, "vocab_size_per_layer_input");
    s->input_rows = s->input_rows ? s->input_rows : 262144;
    s->input_rows = s->input_rows < s->vocab ? s->input_rows : s->vocab;
    s->shared_layers = reader_number_or(r, "num_kv_shared_layers", 15);
    s->shared_layers = s->shared_layers < s->layers ? s->shared_layers : s->layers - !!s->layers;
    const json_t *types = json_object_get(r->j, "layer_types");
    for (uint32_t i = s->layers - s->shared_layers; i < s->layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        s->shared_windowed +=
            json_is_array(types) ? t && strcmp(t, "sliding_attention") == 0 : (i + 1) % 5 != 0;
    }
}

/* Gemma 4, its heads by either spelling: keys of their own, or those of a layer that differs. */
static void read_gemma4(struct plan_reader *r, struct plan_shape *s)
{
    const json_t *each = json_object_get(r->j, "per_layer_config"), *v;
    const char *name;
    if (strncmp(s->family, "gemma4", 6) != 0)
        return;
    s->keys_as_values = reader_truth(r->j, "attention_k_eq_v", false);
    s->full_head_dim = NUMBER(r, "global_head_dim");
    s->full_head_dim = s->full_head_dim ? s->full_head_dim : each ? s->head_dim : 512;
    s->full_kv_heads = s->keys_as_values ? NUMBER(r, "num_global_key_value_heads") : 0;
    json_object_foreach((json_t *)(uintptr_t)each, name, v)
    {
        struct plan_reader inner = {v, r->fault, r->bad};
        const uint32_t dim = NUMBER(&inner, "head_dim");
        const uint32_t heads = NUMBER(&inner, "num_key_value_heads");
        s->full_head_dim = dim ? dim : s->full_head_dim;
        s->full_kv_heads = heads ? heads : s->full_kv_heads;
        r->bad = inner.bad;
    }
    s->full_kv_heads = s->full_kv_heads ? s->full_kv_heads : s->kv_heads;
    s->shared_layers = NUMBER(r, "num_kv_shared_layers");
    s->shared_layers = s->shared_layers < s->layers ? s->shared_layers : s->layers - !!s->layers;
    s->shared_wide = reader_truth(r->j, "use_double_wide_mlp", false);
    s->layer_input = NUMBER(r, "hidden_size_per_layer_input");
    if (!json_object_get(r->j, "hidden_size_per_layer_input"))
        s->layer_input = strncmp(s->family, "gemma4_unified", 14) == 0 ? 0 : 256;
    if (!reader_truth(r->j, "enable_moe_block", false)) {
        s->experts = s->shared_intermediate = 0;
    } else { /* the feed-forward is beside them */
        const uint32_t used = NUMBER(r, "top_k_experts");
        s->experts_used = used > 0 && used < s->experts ? used : s->experts;
        s->shared_intermediate = s->intermediate;
    }
    read_kinds(json_object_get(r->j, "layer_types"), s);
}

static void read_latent(struct plan_reader *r, struct plan_shape *s)
{
    const bool minicpm3 = strcmp(s->family, "minicpm3") == 0;
    s->latent = reader_number_or(r, "kv_lora_rank", minicpm3 ? 256 : 0);
    if (s->latent == 0)
        return;
    s->latent_rope = reader_number_or(r, "qk_rope_head_dim", minicpm3 ? 32 : 64);
    s->q_latent = reader_number_or(r, "q_lora_rank", minicpm3 ? 768 : 0);
    s->nope_dim = reader_number_or(r, "qk_nope_head_dim", minicpm3 ? 64 : 128);
    s->value_dim = NUMBER(r, "v_head_dim");
    if (s->value_dim == 0 && s->heads > 0)
        s->value_dim = minicpm3 ? s->hidden / s->heads : 128;
    s->index_heads = NUMBER(r, "index_n_heads");
    s->index_dim = NUMBER(r, "index_head_dim");
    s->indexers = s->layers;
    if (strcmp(s->family, "deepseek_v32") == 0 || strcmp(s->family, "glm_moe_dsa") == 0)
        s->index_tokens = reader_number_or(r, "index_topk", INDEX_TOKENS);
    if (json_is_array(json_object_get(r->j, "indexer_types")))
        s->indexers = reader_kinds(json_object_get(r->j, "indexer_types"), "full", s->layers);
    s->kv_heads = 1; /* what is kept: one vector for all heads */
    s->head_dim = s->latent + s->latent_rope;
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
        {"afmoe", 128, false},        {"cohere2_moe", 128, true}, {"iquestcoder", 128, false},
        {"internlm3", 128, false},    {"vaultgemma", 256, true},  {"cohere", 0, true},
        {"starcoder2", 0, true},      {"ernie4_5_moe", 0, true},  {"ernie4_5_vl", 0, true},
        {"ernie4_5", 128, true},      {"gemma", 256, true},       {"glm4_moe", 0, false},
        {"glm", 128, false},          {"gpt_oss", 64, false},     {"llama4", 128, false},
        {"ministral3", 128, false},   {"nemotron_h", 128, false}, {"qwen3_5", 256, false},
        {"qwen3_next", 256, false},   {"qwen3_moe", 0, false},    {"qwen3_vl_moe", 0, false},
        {"qwen3_omni_moe", 0, false}, {"qwen3", 128, false},      {"seed_oss", 128, false},
        {"smollm3", 0, true},         {"hy_v3", 128, false},      {"youtu", 0, true},
        {"granite_swa", 0, true},     {"mellum", 128, false},     {"helium", 128, false},
        {"minicpm3", 32, true},       {"gpt2", 0, true},          {"opt", 0, true},
        {"gpt_bigcode", 0, true},     {"gpt_neox", 0, false},     {"gpt_neo", 0, true},
        {"falcon_h1", 0, false},      {"falcon", 0, true},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strncmp(family, table[i].type, strlen(table[i].type)) == 0)
            return table[i];
    return (struct usual){.type = ""};
}

static void read_shape(struct plan_reader *r, struct plan_shape *s)
{
    static const char *const plain[] = {"gpt2",    "opt",        "gpt_neox",    "falcon", "bloom",
                                        "phi",     "starcoder2", "gpt_bigcode", "mpt",    "arcee",
                                        "apertus", "nemotron",   "jais2",       "gptj",   "codegen",
                                        "gpt_neo", "persimmon",  "nanochat"};
    const char *family = json_string_value(json_object_get(r->j, "model_type"));
    (void)snprintf(s->family, sizeof(s->family), "%.47s", family ? family : "model");
    for (char *c = s->family; *c; c++) /* A.X K1's first files say AXK1 */
        *c = (char)tolower((unsigned char)*c);
    s->hidden = needed(r, "hidden_size", NUMBER(r, "hidden_size", "n_embd", "d_model", "n_embed"));
    s->layers = needed(r, "num_hidden_layers", plan_count_layers(r));
    s->heads =
        needed(r, "num_attention_heads", NUMBER(r, "num_attention_heads", "n_head", "num_heads"));
    s->vocab = needed(r, "vocab_size", NUMBER(r, "vocab_size"));
    s->kv_heads = NUMBER(r, "num_key_value_heads", "num_kv_heads");
    const bool bigcode = strcmp(s->family, "gpt_bigcode") == 0; /* multi_query alone counts there */
    if (s->kv_heads == 0 || bigcode)
        s->kv_heads = reader_truth(r->j, "multi_query", bigcode) ? 1 : s->heads;
    s->head_dim = NUMBER(r, "head_dim", "attention_head_dim");
    const struct usual of = usual_of(s->family);
    if (s->head_dim == 0)
        s->head_dim = of.head_dim;
    if (s->head_dim == 0 && s->heads > 0)
        s->head_dim = s->hidden / s->heads;
    s->intermediate = each_number(r, "intermediate_size"); /* Gemma 3n has one for each layer */
    if (s->intermediate == 0)
        s->intermediate = NUMBER(r, "n_inner", "ffn_dim", "ffn_hidden_size");
    if (s->intermediate == 0)
        s->intermediate = 4 * s->hidden;
    s->max_len = NUMBER(r, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len");
    if (s->max_len == 0)
        s->max_len = 2048;
    s->tied = reader_truth(r->j, "tie_word_embeddings", of.tied);
    s->gated = true;
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        s->gated &= strcmp(s->family, plain[i]) != 0;
    plan_read_vectors(r, s);
    read_experts(r, s);
    read_window(r, s);
    read_gemma3n(r, s);
    read_gemma4(r, s);
    read_latent(r, s);
    plan_read_recurrent(r, s);
    /* published so: only the experts of gpt-oss */
    s->experts_only = strcmp(s->family, "gpt_oss") == 0;
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
    struct plan_reader r = {json_is_object(inner) ? inner : root, fault, false};
    if (!json_is_object(root)) {
        ek_fault_write(fault, "config.json", "config.json is no JSON object");
        r.bad = true;
    } else {
        const struct ek_family_name name = ek_family_of(part ? part : root);
        if (!name.family)
            (void)snprintf(s.refused, sizeof(s.refused), "%s", name.first);
        read_shape(&r, &s);
        /* classes and embeddings have no output layer; of a text part either may say it */
        s.tied = s.tied || name.use != EK_FAMILY_TEXT ||
                 (part && reader_truth(root, "tie_word_embeddings", false));
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
static double shape_measure(const char *dir)
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
    if (access(file, F_OK) < 0 && errno == ENOENT)
        return ek_fault_set(fault, "model",
                            "there is no %.300s; name a model's directory or its config.json "
                            "(nothing is fetched from a hub)",
                            file);
    int r = ek_file_read_linked(file, FILE_MOST, &text);
    if (r < 0 && r != -ENOMEM)
        r = ek_fault_set(fault, "model", "%.300s cannot be read: %s", file,
                         r == -EINVAL  ? "it is no regular file"
                         : r == -EFBIG ? "it is larger than a model's config.json"
                                       : ek_strerror(r));
    if (r == 0)
        r = plan_shape_parse(text.data ? text.data : "", text.len, ret_shape, fault);
    ek_buf_done(&text);
    if (r == 0 && dir)
        ret_shape->file_bytes = shape_measure(path);
    return r;
}

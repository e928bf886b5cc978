/*
 * transformers writes models that see in two ways. A configuration of its own for each part:
 *
 *   {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"model_type":
 *    "gemma3_text", ...}, "vision_config": {...}, "eos_token_id": ..., "torch_dtype": ...}
 *
 * or, in the first Qwen2-VL and 2.5-VL, the text part's keys beside vision_config. A text_config
 * (Nemotron: llm_config) may leave out what the class has as default, which published checkpoints
 * do: the numbers below.
 *
 * Positions in three dimensions (mrope) are one and the same for text, which is rope as usual.
 */
#include "common/textpart.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/families.h"

enum { DEFAULTS = 10 };

static const char *const keys[DEFAULTS] = {
    "hidden_size",         "intermediate_size",  "num_hidden_layers",       "num_attention_heads",
    "num_key_value_heads", "vocab_size",         "max_position_embeddings", "moe_intermediate_size",
    "num_experts",         "num_experts_per_tok"};

static const struct part {
    const char *type, *architecture;
    uint32_t numbers[DEFAULTS]; /* by `keys`; 0: must be in the file */
} parts[] = {
    {"cohere2", "Cohere2ForCausalLM", {8192, 22528, 40, 64, 0, 256000, 8192}},
    {"deepseek_v3", "DeepseekV3ForCausalLM", {0}},
    {"ernie4_5_vl_moe_text", "Ernie4_5_MoeForCausalLM", {2560, 12288, 28, 20, 4, 103424, 131072}},
    {"exaone4", "Exaone4ForCausalLM", {0}},
    {"exaone4_5_text", "Exaone4ForCausalLM", {0}},
    {"gemma3_text", "Gemma3ForCausalLM", {2304, 9216, 26, 8, 4, 262208, 131072}},
    {"gemma3n_text", "Gemma3nForCausalLM", {2048, 16384, 35, 8, 2, 262400, 32768}},
    {"gemma4_text", "Gemma4ForCausalLM", {2304, 9216, 30, 8, 4, 262144, 131072}},
    {"gemma4_unified_text", "Gemma4UnifiedForCausalLM", {2304, 9216, 30, 8, 4, 262144, 262144}},
    {"glm4v_text", "Glm4ForCausalLM", {0}},
    {"glm4v_moe_text", "Glm4MoeForCausalLM", {0}},
    {"glm_ocr_text", "Glm4ForCausalLM", {1024, 4096, 16, 16, 8, 59392, 131072}},
    {"granite", "GraniteForCausalLM", {0}},
    {"granite4_vision_text", "GraniteForCausalLM", {0}},
    {"granite_docling_text", "GraniteForCausalLM", {0}},
    {"hunyuan_vl_text", "HunYuanDenseV1ForCausalLM", {0}},
    {"kimi_k2", "DeepseekV3ForCausalLM", {0}},
    {"lfm2", "Lfm2ForCausalLM", {0}},
    {"llama", "LlamaForCausalLM", {4096, 11008, 32, 32, 0, 32000, 2048}},
    {"llama4_text", "Llama4ForCausalLM", {5120, 8192, 48, 40, 8, 202048, 131072}},
    {"ministral3", "Ministral3ForCausalLM", {4096, 14336, 34, 32, 8, 131072, 262144}},
    {"mistral", "MistralForCausalLM", {4096, 14336, 32, 32, 8, 32000, 131072}},
    {"nemotron_h", "NemotronHForCausalLM", {0}},
    {"paddleocr_vl_text", "LlamaForCausalLM", {0}}, /* ERNIE's names, but pairs as Llama's turn */
    {"phi3", "Phi3ForCausalLM", {0}},
    {"qwen2", "Qwen2ForCausalLM", {0}},
    {"qwen2_5_omni_text", "Qwen2ForCausalLM", {0}},
    {"qwen2_5_vl_text", "Qwen2ForCausalLM", {0}},
    {"qwen2_vl_text", "Qwen2ForCausalLM", {0}},
    {"qwen3", "Qwen3ForCausalLM", {0}},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {2048, 0, 40, 16, 2, 248320, 32768, 512, 256, 8}},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", {4096, 12288, 32, 16, 4, 248320, 32768}},
    {"qwen3_omni_moe_text", "Qwen3MoeForCausalLM", {0}},
    {"qwen3_vl_moe_text", "Qwen3MoeForCausalLM", {0}},
    {"qwen3_vl_text", "Qwen3ForCausalLM", {0}},
    {"smollm3", "SmolLM3ForCausalLM", {0}},
    /* one configuration for all */
    {"qwen2_vl", "Qwen2ForCausalLM", {0}},
    {"qwen2_5_vl", "Qwen2ForCausalLM", {0}},
    {"paddleocr_vl", "LlamaForCausalLM", {0}},
    {"ernie4_5_moe_vl", "Ernie4_5_MoeForCausalLM", {0}},
};

static const char *textpart_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static const struct part *part_find(const char *type)
{
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(parts[i].type, type) == 0)
            return &parts[i];
    return NULL;
}

static bool is_text_model(const json_t *root)
{
    const json_t *list = json_object_get(root, "architectures");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && ek_family_loads(name))
            return true;
    }
    return false;
}

/* What holds for the whole: the type that the weights have and the tokens that end a text are the
 * outer ones, where both say something; packing and tying where the inner says nothing. Where one
 * says that the output layer is not tied, a tensor of it counts: transformers went by the inner
 * one, and from version 5 on by the outer one. */
static int add_outer(json_t *config, const json_t *root)
{
    static const char tie[] = "tie_word_embeddings";
    static const char *const outer[] = {"dtype", "torch_dtype", "eos_token_id", "bos_token_id"};
    static const char *const missing[] = {"quantization_config", "tie_word_embeddings"};
    int r = 0;
    for (size_t i = 0; i < sizeof(outer) / sizeof(outer[0]); i++) {
        json_t *v = json_object_get(root, outer[i]);
        if (v && !json_is_null(v))
            r |= json_object_set(config, outer[i], v);
    }
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        json_t *v = json_object_get(root, missing[i]);
        if (v && !json_object_get(config, missing[i]))
            r |= json_object_set(config, missing[i], v);
    }
    if (json_is_false(json_object_get(root, tie)))
        r |= json_object_set_new(config, tie, json_false());
    return r;
}

/* The text model's class, or that of classes where the whole is one (Qwen3_5ForSequence...). */
static json_t *architectures_of(const struct part *p, const json_t *root)
{
    static const char classes[] = "ForSequenceClassification";
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const size_t len = name ? strlen(name) : 0, n = sizeof(classes) - 1;
    const size_t family = strlen(p->architecture) - strlen("ForCausalLM");
    char text[96];
    if (len <= n || strcmp(name + len - n, classes) != 0)
        return json_pack("[s]", p->architecture);
    (void)snprintf(text, sizeof(text), "%.*s%s", (int)family, p->architecture, classes);
    return json_pack("[s]", text);
}

/* For text, positions in three dimensions are those in one. */
static int drop_mrope(json_t *config)
{
    const json_t *scaling = json_object_get(config, "rope_scaling");
    if (strcmp(textpart_text_of(scaling, "type"), "mrope") == 0 ||
        strcmp(textpart_text_of(scaling, "rope_type"), "mrope") == 0)
        return json_object_set_new(config, "rope_scaling", json_null());
    return 0;
}

/* GLM-4.1V has heads of this size, and biases, whatever the file says; GLM-OCR has heads of this
 * size where the file says nothing. */
static int fix_glm4v(json_t *config)
{
    const json_int_t hidden = json_integer_value(json_object_get(config, "hidden_size"));
    const json_int_t heads = json_integer_value(json_object_get(config, "num_attention_heads"));
    const bool reads = strcmp(textpart_text_of(config, "model_type"), "glm_ocr_text") == 0;
    if (!reads && strcmp(textpart_text_of(config, "model_type"), "glm4v_text") != 0)
        return 0;
    if (reads && json_object_get(config, "head_dim"))
        return 0;
    return json_object_set_new(config, "attention_bias", json_boolean(!reads)) |
           (heads > 0 ? json_object_set_new(config, "head_dim", json_integer(hidden / heads)) : 0);
}

/* ERNIE 4.5 VL has experts for text and others for pictures; numbers of both are pairs. */
static int fix_ernie_vl(json_t *config)
{
    static const char *const pairs[] = {"moe_intermediate_size", "moe_num_experts",
                                        "moe_layer_start_index", "moe_layer_end_index"};
    const char *type = textpart_text_of(config, "model_type");
    int r = 0;
    if (strcmp(type, "ernie4_5_vl_moe_text") != 0 && strcmp(type, "ernie4_5_moe_vl") != 0)
        return 0;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        json_t *first = json_array_get(json_object_get(config, pairs[i]), 0);
        if (first)
            r |= json_object_set(config, pairs[i], first);
    }
    return r;
}

int ek_text_part(const json_t *root, json_t **ret_config)
{
    json_t *inner = json_object_get(root, "text_config");
    if (!inner) /* Nemotron's models that see have it so */
        inner = json_object_get(root, "llm_config");
    const json_t *thinks = json_object_get(root, "thinker_config"); /* Qwen's that speak, too */
    if (!inner)
        inner = json_object_get(thinks, "text_config");
    const bool nested = json_is_object(inner), sees = json_object_get(root, "vision_config");
    *ret_config = NULL;
    const struct part *p = part_find(textpart_text_of(nested ? inner : root, "model_type"));
    if ((!nested && !sees) || !p || is_text_model(root))
        return 0;
    json_t *config = nested ? json_copy(inner) : json_copy((json_t *)(uintptr_t)root);
    int r = config ? add_outer(config, root) : -1;
    if (r == 0 && thinks)
        r = add_outer(config, thinks);
    for (size_t i = 0; r == 0 && nested && i < DEFAULTS; i++)
        if (p->numbers[i] > 0 && !json_object_get(config, keys[i]))
            r = json_object_set_new(config, keys[i], json_integer(p->numbers[i]));
    if (r == 0)
        r = drop_mrope(config);
    if (r == 0)
        r = fix_glm4v(config);
    if (r == 0)
        r = fix_ernie_vl(config);
    if (r == 0)
        r = json_object_set_new(config, "architectures", architectures_of(p, root));
    if (r != 0) {
        json_decref(config);
        return -ENOMEM;
    }
    *ret_config = config;
    return 0;
}

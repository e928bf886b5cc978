/*
 * Model families. A family is a row: the name in config.json, what it alone reads from there, and
 * a function that writes its operations with the helpers of graph.h. See docs/adding-a-model.md.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/model/json.h"
#include "server/model/parameters.h"

struct graph_builder;

struct model_family {
    const char *architecture;
    /* When config.json does not say: 0 = hidden_size / num_attention_heads, 10000, 1e-6, "silu". */
    uint32_t head_dim;
    double rope_theta, rms_eps;
    const char *act;
    const char *act_key;      /* key of the one activation that it has, if hidden_act is not it */
    const char *intermediate; /* key of the feed-forward's width, if intermediate_size is not it */
    bool tied;                /* tie_word_embeddings, too */
    bool partial_rotary;      /* whether its heads may turn in part */
    double partial;           /* which part, where config.json does not say; 0 = all */
    bool rope_alpha; /* rope type dynamic with an `alpha` is a base that is larger for good */
    /* Whether layers with a window have frequencies of their own; theta of those where the old
     * spelling lacks rope_local_base_freq, 0 = as the other layers. */
    bool local_rope;
    double local_theta;
    /* How many layers a list names, where num_hidden_layers may be missing; 0 = none does. */
    uint64_t (*count)(const struct model_json *j);
    /* Keys of its own, after the common ones were read. -EBADMSG with a fault. */
    int (*configure)(const struct model_json *j, struct model_config *c);
    /* Writes the operations; errors stick to the builder. */
    void (*build)(struct graph_builder *b, const struct model_config *c);
};

extern const struct model_family family_arcee, family_cwm, family_deepseek_v2, family_deepseek_v3,
    family_dots1, family_ernie, family_ernie_moe, family_exaone4, family_exaone_moe,
    family_exaone_moe_hub, family_falcon_h1, family_gemma, family_gemma2, family_gemma3,
    family_gemma4, family_gemma4_unified, family_glm, family_glm4, family_glm4_moe,
    family_glm4_moe_lite, family_gpt_oss, family_granite, family_granite_hybrid, family_granite_moe,
    family_granite_shared, family_hunyuan, family_hunyuan_moe, family_lfm2, family_lfm2_moe,
    family_llama, family_llama4, family_minimax_m2, family_ministral, family_ministral3,
    family_mistral, family_mistral4, family_mixtral, family_nemotron_h, family_olmo2, family_olmo3,
    family_olmoe, family_phi3, family_qwen2, family_qwen2_moe, family_qwen3, family_qwen3_5,
    family_qwen3_5_moe, family_qwen3_moe, family_qwen3_next, family_seed_oss, family_smollm3,
    family_solar_open;

const struct model_family *model_family_find(const char *architecture); /* NULL: not supported */
/* The one whose name begins most alike, at least by four letters; NULL: none does. */
const struct model_family *model_family_nearest(const char *architecture);

/*
 * The model classes that evenkeel-server loads, by name. Its table of families is made of this
 * list, and evenkeelctl knows by it what the server refuses. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* X(row, class): the class is family_<row> of server/model/family.h. */
#define EK_FAMILIES(X)                                                                             \
    X(afmoe, "AfmoeForCausalLM")                                                                   \
    X(apertus, "ApertusForCausalLM")                                                               \
    X(axk1, "AXK1ForCausalLM")                                                                     \
    X(arcee, "ArceeForCausalLM")                                                                   \
    X(codegen, "CodeGenForCausalLM")                                                               \
    X(cohere, "CohereForCausalLM")                                                                 \
    X(cohere2, "Cohere2ForCausalLM")                                                               \
    X(cohere2_moe, "Cohere2MoeForCausalLM")                                                        \
    X(cwm, "CwmForCausalLM")                                                                       \
    X(deepseek_v2, "DeepseekV2ForCausalLM")                                                        \
    X(deepseek_v3, "DeepseekV3ForCausalLM")                                                        \
    X(deepseek_v32, "DeepseekV32ForCausalLM")                                                      \
    X(dots1, "Dots1ForCausalLM")                                                                   \
    X(ernie, "Ernie4_5ForCausalLM")                                                                \
    X(ernie_moe, "Ernie4_5_MoeForCausalLM")                                                        \
    X(exaone4, "Exaone4ForCausalLM")                                                               \
    X(exaone_moe, "ExaoneMoeForCausalLM")                                                          \
    X(exaone_moe_hub, "ExaoneMoEForCausalLM")                                                      \
    X(falcon, "FalconForCausalLM")                                                                 \
    X(falcon_h1, "FalconH1ForCausalLM")                                                            \
    X(flex_olmo, "FlexOlmoForCausalLM")                                                            \
    X(gemma, "GemmaForCausalLM")                                                                   \
    X(gemma2, "Gemma2ForCausalLM")                                                                 \
    X(gemma3, "Gemma3ForCausalLM")                                                                 \
    X(gemma3n, "Gemma3nForCausalLM")                                                               \
    X(gemma4, "Gemma4ForCausalLM")                                                                 \
    X(gemma4_unified, "Gemma4UnifiedForCausalLM")                                                  \
    X(glm, "GlmForCausalLM")                                                                       \
    X(glm4, "Glm4ForCausalLM")                                                                     \
    X(glm4_moe, "Glm4MoeForCausalLM")                                                              \
    X(glm4_moe_lite, "Glm4MoeLiteForCausalLM")                                                     \
    X(glm_moe_dsa, "GlmMoeDsaForCausalLM")                                                         \
    X(gpt2, "GPT2LMHeadModel")                                                                     \
    X(gpt_bigcode, "GPTBigCodeForCausalLM")                                                        \
    X(gpt_neo, "GPTNeoForCausalLM")                                                                \
    X(gpt_neox, "GPTNeoXForCausalLM")                                                              \
    X(gpt_oss, "GptOssForCausalLM")                                                                \
    X(gptj, "GPTJForCausalLM")                                                                     \
    X(granite, "GraniteForCausalLM")                                                               \
    X(granite_hybrid, "GraniteMoeHybridForCausalLM")                                               \
    X(granite_moe, "GraniteMoeForCausalLM")                                                        \
    X(granite_moe_swa, "GraniteMoeSWAForCausalLM")                                                 \
    X(granite_shared, "GraniteMoeSharedForCausalLM")                                               \
    X(granite_swa, "GraniteSWAForCausalLM")                                                        \
    X(helium, "HeliumForCausalLM")                                                                 \
    X(hunyuan, "HunYuanDenseV1ForCausalLM")                                                        \
    X(hunyuan_moe, "HunYuanMoEV1ForCausalLM")                                                      \
    X(hy_v3, "HYV3ForCausalLM")                                                                    \
    X(hyperclovax, "HyperCLOVAXForCausalLM")                                                       \
    X(internlm3, "InternLM3ForCausalLM")                                                           \
    X(iquestcoder, "IQuestCoderForCausalLM")                                                       \
    X(jais2, "Jais2ForCausalLM")                                                                   \
    X(lfm2, "Lfm2ForCausalLM")                                                                     \
    X(lfm2_moe, "Lfm2MoeForCausalLM")                                                              \
    X(llama, "LlamaForCausalLM")                                                                   \
    X(llama4, "Llama4ForCausalLM")                                                                 \
    X(mellum, "MellumForCausalLM")                                                                 \
    X(mimo, "MiMoForCausalLM")                                                                     \
    X(minicpm3, "MiniCPM3ForCausalLM")                                                             \
    X(minimax_m2, "MiniMaxM2ForCausalLM")                                                          \
    X(ministral, "MinistralForCausalLM")                                                           \
    X(ministral3, "Ministral3ForCausalLM")                                                         \
    X(mistral, "MistralForCausalLM")                                                               \
    X(mistral4, "Mistral4ForCausalLM")                                                             \
    X(mixtral, "MixtralForCausalLM")                                                               \
    X(nanochat, "NanoChatForCausalLM")                                                             \
    X(nemotron, "NemotronForCausalLM")                                                             \
    X(nemotron_h, "NemotronHForCausalLM")                                                          \
    X(olmo, "OlmoForCausalLM")                                                                     \
    X(olmo2, "Olmo2ForCausalLM")                                                                   \
    X(olmo3, "Olmo3ForCausalLM")                                                                   \
    X(olmo_hybrid, "OlmoHybridForCausalLM")                                                        \
    X(olmoe, "OlmoeForCausalLM")                                                                   \
    X(opt, "OPTForCausalLM")                                                                       \
    X(persimmon, "PersimmonForCausalLM")                                                           \
    X(phi, "PhiForCausalLM")                                                                       \
    X(phi3, "Phi3ForCausalLM")                                                                     \
    X(qwen2, "Qwen2ForCausalLM")                                                                   \
    X(qwen2_moe, "Qwen2MoeForCausalLM")                                                            \
    X(qwen3, "Qwen3ForCausalLM")                                                                   \
    X(qwen3_5, "Qwen3_5ForCausalLM")                                                               \
    X(qwen3_5_moe, "Qwen3_5MoeForCausalLM")                                                        \
    X(qwen3_moe, "Qwen3MoeForCausalLM")                                                            \
    X(qwen3_next, "Qwen3NextForCausalLM")                                                          \
    X(seed_oss, "SeedOssForCausalLM")                                                              \
    X(smollm3, "SmolLM3ForCausalLM")                                                               \
    X(solar_open, "SolarOpenForCausalLM")                                                          \
    X(stablelm, "StableLmForCausalLM")                                                             \
    X(starcoder2, "Starcoder2ForCausalLM")                                                         \
    X(vaultgemma, "VaultGemmaForCausalLM")                                                         \
    X(youtu, "YoutuForCausalLM")

/* What the class is for, by the end of its name. */
enum ek_family_use {
    EK_FAMILY_TEXT,    /* ...ForCausalLM */
    EK_FAMILY_CLASSES, /* ...ForSequenceClassification */
    EK_FAMILY_STATES,  /* ...Model */
};

struct ek_family_name {
    const char *family; /* its row's class; NULL: none is loaded */
    const char *first;  /* what the configuration names first, for a refusal; "" = nothing */
    enum ek_family_use use;
};

/* The first class in `architectures` that is loaded. The names live as long as config. */
struct ek_family_name ek_family_of(const json_t *config);
bool ek_family_loads(const char *name); /* a row has exactly this name */
/* The row whose name is most like it among those that begin with the same word; NULL: none does. */
const char *ek_family_nearest(const char *name);

/* The table of families; a new one is a file family_<name>.c and a line here. */
#include "server/model/family.h"

#include <ctype.h>
#include <string.h>

static const struct model_family *const families[] = {
    &family_arcee,
    &family_cwm,
    &family_deepseek_v2,
    &family_deepseek_v3,
    &family_dots1,
    &family_ernie,
    &family_ernie_moe,
    &family_exaone4,
    &family_exaone_moe,
    &family_exaone_moe_hub,
    &family_falcon_h1,
    &family_gemma,
    &family_gemma2,
    &family_gemma3,
    &family_gemma4,
    &family_gemma4_unified,
    &family_glm,
    &family_glm4,
    &family_glm4_moe,
    &family_glm4_moe_lite,
    &family_gpt_oss,
    &family_granite,
    &family_granite_hybrid,
    &family_granite_moe,
    &family_granite_shared,
    &family_hunyuan,
    &family_hunyuan_moe,
    &family_lfm2,
    &family_lfm2_moe,
    &family_llama,
    &family_llama4,
    &family_minimax_m2,
    &family_ministral,
    &family_ministral3,
    &family_mistral,
    &family_mistral4,
    &family_mixtral,
    &family_nemotron_h,
    &family_olmo2,
    &family_olmo3,
    &family_olmoe,
    &family_phi3,
    &family_qwen2,
    &family_qwen2_moe,
    &family_qwen3,
    &family_qwen3_5,
    &family_qwen3_5_moe,
    &family_qwen3_moe,
    &family_qwen3_next,
    &family_seed_oss,
    &family_smollm3,
    &family_solar_open,
};
#define LETTERS_ALIKE 4u
#define FAMILIES      (sizeof(families) / sizeof(families[0]))

const struct model_family *model_family_find(const char *architecture)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i]->architecture, architecture) == 0)
            return families[i];
    return NULL;
}

const struct model_family *model_family_nearest(const char *architecture)
{
    const struct model_family *nearest = NULL;
    size_t most = LETTERS_ALIKE - 1;
    for (size_t i = 0; i < FAMILIES; i++) {
        const char *name = families[i]->architecture, *end = strstr(name, "ForCausalLM");
        size_t n = 0, stem = end ? (size_t)(end - name) : strlen(name);
        while (n < stem &&
               tolower((unsigned char)name[n]) == tolower((unsigned char)architecture[n]))
            n++;
        if (n < most || n < LETTERS_ALIKE || (n == most && nearest && n < stem))
            continue; /* of those that are alike as far, the one that ends there */
        nearest = families[i];
        most = n;
    }
    return nearest;
}

/* The nearest class is of the same make, and what a class is for is seen from its name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/families.h"

static void test_nearest(void **state)
{
    static const struct {
        const char *name, *nearest; /* without ForCausalLM; NULL: none */
    } cases[] = {
        {"DeepseekV4ForCausalLM", "DeepseekV3"},
        {"MiniMaxM3ForCausalLM", "MiniMaxM2"},
        {"MiniMaxForCausalLM", "MiniMaxM2"},
        {"MiniCPMForCausalLM", "MiniCPM3"},
        /* one word, two makes */
        {"MinistralForTokenClassification", "Ministral"},
        {"Ministral4ForCausalLM", "Ministral"},
        {"Mistral5ForCausalLM", "Mistral"},
        {"MixtralNextForCausalLM", "Mixtral"},
        {"Qwen4ForCausalLM", "Qwen3"},
        {"Qwen4MoeForCausalLM", "Qwen3Moe"},
        {"Qwen2_5_VLForConditionalGeneration", "Qwen2"},
        {"Glm4MoeLargeForCausalLM", "Glm4Moe"},
        {"Gemma3nForConditionalGeneration", "Gemma3n"},
        {"Phi3SmallForCausalLM", "Phi3"},
        {"LLaMAForCausalLM", "Llama"},
        {"Olmo4ForCausalLM", "Olmo"},
        {"HunYuanDenseV2ForCausalLM", "HunYuanDenseV1"},
        {"Exaone5ForCausalLM", "Exaone4"},
        {"BloomForCausalLM", NULL},
        {"MptForCausalLM", NULL},
        {"FalconMambaForCausalLM", "Falcon"},
        {"ForCausalLM", NULL},
        {"L", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *is = ek_family_nearest(cases[i].name), *want = cases[i].nearest;
        const char *end = is ? strstr(is, "ForCausalLM") : NULL;
        if (!want != !is ||
            (want && (strlen(want) != (size_t)(end - is) || strncmp(is, want, strlen(want)) != 0)))
            fail_msg("%s: %s instead of %s", cases[i].name, is ? is : "none", want ? want : "none");
    }
}

/* A name of any length is compared in its first letters. */
static void test_long(void **state)
{
    char name[4096] = "Llama";
    (void)state;
    memset(name + 5, 'X', sizeof(name) - 6);
    name[sizeof(name) - 1] = '\0';
    assert_string_equal(ek_family_nearest(name), "LlamaForCausalLM");
    memset(name, '\xff', sizeof(name) - 1);
    assert_null(ek_family_nearest(name));
}

static void test_use(void **state)
{
    static const struct {
        const char *list, *family, *first;
        enum ek_family_use use;
    } cases[] = {
        {"[\"LlamaForCausalLM\"]", "LlamaForCausalLM", "LlamaForCausalLM", EK_FAMILY_TEXT},
        {"[\"Odd\", \"Qwen3Model\"]", "Qwen3ForCausalLM", "Odd", EK_FAMILY_STATES},
        {"[\"Gemma3TextModel\"]", "Gemma3ForCausalLM", "Gemma3TextModel", EK_FAMILY_STATES},
        {"[\"Qwen2ForSequenceClassification\"]", "Qwen2ForCausalLM",
         "Qwen2ForSequenceClassification", EK_FAMILY_CLASSES},
        {"[5, \"Odd\"]", NULL, "Odd", EK_FAMILY_TEXT},
        {"5", NULL, "", EK_FAMILY_TEXT},
        {"[]", NULL, "", EK_FAMILY_TEXT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config =
            json_pack("{s:o}", "architectures", json_loads(cases[i].list, JSON_DECODE_ANY, NULL));
        assert_non_null(config);
        struct ek_family_name n = ek_family_of(config);
        assert_true(!n.family == !cases[i].family);
        if (n.family)
            assert_string_equal(n.family, cases[i].family);
        assert_string_equal(n.first, cases[i].first);
        assert_true(!n.family || n.use == cases[i].use);
        json_decref(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nearest), cmocka_unit_test(test_long),
                                       cmocka_unit_test(test_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

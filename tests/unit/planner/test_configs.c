/*
 * The plan reads what published models say of themselves as the loader does
 * (tests/fixtures/configs.json), and those that cannot be loaded, too. Run from the root of the
 * tree.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"
#include "supervisor/planner/fit.h"
#include "supervisor/planner/shape.h"

static void same(const char *model, const json_t *expect, const char *key, uint32_t is)
{
    json_int_t want = json_integer_value(json_object_get(expect, key));
    if (want != (json_int_t)is)
        fail_msg("%s: %s is %u instead of %lld", model, key, is, (long long)want);
}

static void read_one(const json_t *of)
{
    const char *model = json_string_value(json_object_get(of, "model"));
    const json_t *expect = json_object_get(of, "expect");
    char *text = json_dumps(json_object_get(of, "config"), 0);
    struct plan_shape s;
    struct ek_fault f = {.msg = ""};
    assert_true(model && text);
    if (plan_shape_parse(text, strlen(text), &s, &f) != 0)
        fail_msg("%s: %s", model, f.msg);
    free(text);
    if (!expect)
        return;
    same(model, expect, "layers", s.layers);
    same(model, expect, "kv_heads", s.kv_heads);
    same(model, expect, "head_dim", s.head_dim);
    same(model, expect, "vocab", s.vocab);
    same(model, expect, "max_model_len", s.max_len);
    same(model, expect, "windowed", s.window ? s.windowed_layers : 0);
}

static void test_published(void **state)
{
    json_error_t e;
    json_t *all = json_load_file("tests/fixtures/configs.json", 0, &e);
    (void)state;
    if (!all)
        fail_msg("line %d: %s", e.line, e.text);
    assert_true(json_array_size(all) >= 20);
    for (size_t i = 0; i < json_array_size(all); i++)
        read_one(json_array_get(all, i));
    json_decref(all);
}

/* A published model by its name. */
static struct plan_shape shape_of(const char *name)
{
    json_error_t e;
    json_t *all = json_load_file("tests/fixtures/configs.json", 0, &e);
    struct plan_shape s = {0};
    struct ek_fault f = {.msg = ""};
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *of = json_array_get(all, i);
        if (strcmp(json_string_value(json_object_get(of, "model")), name) != 0)
            continue;
        char *text = json_dumps(json_object_get(of, "config"), 0);
        assert_non_null(text);
        assert_int_equal(plan_shape_parse(text, strlen(text), &s, &f), 0);
        free(text);
    }
    json_decref(all);
    return s;
}

/* Of E2B's 35 layers the first 15 keep KV, 12 with a window of one head of 256 and 3 of one of 512.
 * Of 26B-A4B all do, 25 of 8 heads and 5 of 2; a token reads 8 of 128 experts. */
static void test_gemma4(void **state)
{
    (void)state;
    struct plan_shape s = shape_of("google/gemma-4-E2B-it");
    const double windowed = 12 * 2 * 256 * 2, full = 3 * 2 * 512 * 2;
    assert_int_equal(s.shared_layers, 20);
    assert_int_equal(s.shared_windowed, 16);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == windowed + full);
    assert_true(plan_kv_request_bytes(&s, 1, 16, 10000) == windowed * 512 + full * 10000);
    assert_true(plan_parameters(&s) > 4.6e9 && plan_parameters(&s) < 4.7e9);
    s = shape_of("google/gemma-4-26B-A4B-it");
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2);
    assert_true(plan_parameters(&s) > 25e9 && plan_parameters(&s) < 25.4e9);
    assert_true(plan_active_parameters(&s) > 3.7e9 && plan_active_parameters(&s) < 4e9);
}

/* As transformers saves it: a key for each layer whose heads differ. */
static void test_gemma4_saved(void **state)
{
    (void)state;
    struct plan_shape s;
    struct ek_fault f = {.msg = ""};
    assert_int_equal(plan_shape_read("tests/fixtures/models/gemma4", &s, &f), 0);
    assert_int_equal(s.windowed_layers, 3);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 3 * 2 * 2 * 8 * 2 + 2 * 2 * 1 * 16 * 2);
}

/* Biases of all products and norms, and of Phi's output layer: as many floats as the server counts
 * in these files. */
static void test_biases(void **state)
{
    static const struct {
        const char *dir;
        uint32_t norms;
        bool output_bias, head_norms;
    } cases[] = {{"gpt-neox", 2, false, false}, {"phi", 1, true, false},
                 {"phi-norms", 1, true, true},  {"gpt2", 2, false, false},
                 {"opt", 2, false, false},      {"persimmon", 2, false, true}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_shape s;
        struct ek_fault f = {.msg = ""};
        char dir[64];
        (void)snprintf(dir, sizeof(dir), "tests/fixtures/models/%s", cases[i].dir);
        assert_int_equal(plan_shape_read(dir, &s, &f), 0);
        assert_true(s.norm_bias && s.qkv_bias && s.out_bias && s.forward_bias && !s.gated);
        assert_int_equal(s.norms, cases[i].norms);
        assert_int_equal(s.output_bias, cases[i].output_bias);
        assert_int_equal(s.head_norms, cases[i].head_norms);
    }
}

/* What the server takes where a file of MiniCPM3 leaves it out; null is no rank at all. And the
 * files of ModelOpt that name no method. */
static void test_left_out(void **state)
{
#define LEFT_OUT(type)                                                                             \
    "{\"model_type\": \"" type "\", \"hidden_size\": 512, \"num_hidden_layers\": 3, "              \
    "\"num_attention_heads\": 8, \"intermediate_size\": 96, \"vocab_size\": 100"
    static const char missing[] = LEFT_OUT("minicpm3") "}";
    static const char null[] = LEFT_OUT("minicpm3") ", \"q_lora_rank\": null}";
    static const char packed[] = LEFT_OUT("qwen3") ", \"quantization_config\": {\"quant_algo\": "
                                                   "\"FP8\"}}";
    struct plan_shape s;
    struct ek_fault f = {.msg = ""};
    (void)state;
    assert_int_equal(plan_shape_parse(missing, strlen(missing), &s, &f), 0);
    assert_true(s.latent == 256 && s.latent_rope == 32 && s.q_latent == 768 && s.nope_dim == 64);
    assert_true(s.value_dim == 64 && s.tied);
    assert_int_equal(plan_shape_parse(null, strlen(null), &s, &f), 0);
    assert_int_equal(s.q_latent, 0);
    assert_int_equal(plan_shape_parse(packed, strlen(packed), &s, &f), 0);
    assert_int_equal(s.weight_bits, 8);
}

/* Of the three kinds of Qwen's hybrids: layers that attend have all the KV cache, the others a
 * state that does not grow. By hand: 48 x (48 x 128 x 128 + 3 x (2 x 16 x 128 + 48 x 128)) x 4 B.
 */
static void test_recurrent(void **state)
{
    (void)state;
    struct plan_shape s = shape_of("Qwen3.8-27B");
    assert_int_equal(s.recurrent_layers, 48);
    assert_true(s.output_gate);
    assert_true(plan_state_bytes(&s) == 156893184.0);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 16 * 2 * 4 * 256 * 2);
    assert_true(plan_parameters(&s) > 26.5e9 && plan_parameters(&s) < 27.5e9);
}

/* Granite 4: Mamba 2 beside attention. By hand: 28 x (48 x 32 x 128 + 3 x (2 x 128 + 48 x 32)) x
 * 4 B; parameters 28 x (768 x (2 x 1536 + 256 + 48) + 1536 x 768 + 4 x 1792) + 4 x 768 x (2 x 768 +
 * 2 x 256) + 32 x 3 x 768 x 2048 + 100352 x 768. */
static void test_mamba(void **state)
{
    const struct plan_shape s = shape_of("ibm-granite/granite-4.0-h-350m");
    (void)state;
    assert_int_equal(s.recurrent_layers, 28);
    assert_true(plan_state_bytes(&s) == 22622208.0);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 4 * 2 * 4 * 64 * 2);
    assert_true(plan_parameters(&s) > 340.1e6 && plan_parameters(&s) < 340.5e6);
}

/* A card's part of a state and of these layers: its heads; all of it where they do not divide (16
 * heads of k, 8 groups of B and C), or where groups are neither divided nor one. */
static void test_state_parts(void **state)
{
    static const struct {
        const char *model;
        uint32_t cards;
        double parts;
    } cases[] = {{"Qwen3.8-27B", 4, 4},
                 {"Qwen3.8-27B", 32, 1},
                 {"ibm-granite/granite-4.0-h-350m", 8, 8},
                 {"nvidia/Nemotron-H-8B-Base-8K", 8, 8},
                 {"nvidia/Nemotron-H-8B-Base-8K", 16, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan_shape s = shape_of(cases[i].model);
        const struct plan_setup u = {.memory_bytes = 80e9,
                                     .share = 0.9,
                                     .cards = cases[i].cards,
                                     .tokens = 2048,
                                     .seqs = 8,
                                     .block_size = 16,
                                     .kv_bits = 16,
                                     .graphs = true};
        const struct plan_fit f = plan_fit_of(&s, &u);
        const double all = plan_weight_bytes(&s, 0);
        assert_true(f.state_bytes == plan_state_bytes(&s) / cases[i].parts);
        assert_int_equal(f.weights > 1.5 * all / cases[i].cards, cases[i].parts == 1);
    }
}

/* Nemotron-H-8B, each layer one mixer. By hand: 24 x (128 x 64 x 128 + 3 x (2 x 8 x 128 + 128 x
 * 64)) x 4 B; parameters 24 x (4096 x (2 x 8192 + 2048 + 128) + 8192 x 4096 + 4 x 10240) + 4 x 4096
 * x (2 x 4096 + 2 x 1024) + 24 x 2 x 4096 x 21504 + 2 x 131072 x 4096 = 8.1 G. What transformers
 * saves has no number of layers and speaks of experts that no layer has. */
static void test_mixers(void **state)
{
    struct plan_shape s = shape_of("nvidia/Nemotron-H-8B-Base-8K");
    struct ek_fault f = {.msg = ""};
    (void)state;
    assert_int_equal(s.recurrent_layers, 24);
    assert_int_equal(s.forward_layers, 24);
    assert_true(plan_state_bytes(&s) == 103612416.0);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 4 * 2 * 8 * 128 * 2);
    assert_true(plan_parameters(&s) > 8.100e9 && plan_parameters(&s) < 8.102e9);
    assert_int_equal(plan_shape_read("tests/fixtures/models/nemotron-h", &s, &f), 0);
    assert_int_equal(s.layers, 5);
    assert_int_equal(s.experts, 0);
    assert_int_equal(plan_attending(&s), 1);
}

/* Nemotron 3: two matrices an expert, in Super between two products. By hand, Nano: 23 x (2688 x (2
 * x 4096 + 2048 + 64) + 4096 x 2688 + 4 x 6144) + 23 x (128 x 2 x 2688 x 1856 + 2 x 2688 x 3712 +
 * 2688 x 128) + 6 x 2688 x (2 x 4096 + 2 x 256) + 2 x 131072 x 2688 = 31.58 G; a token takes 6 of
 * 128 experts and no embedding: 3.23 G. Super likewise, its experts 2 x 1024 x 2688 and their
 * products 2 x 4096 x 1024: 120.67 G and 12.23 G. */
static void test_lone_experts(void **state)
{
    struct plan_shape s = shape_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16");
    struct ek_fault f = {.msg = ""};
    (void)state;
    assert_int_equal(s.forward_layers, 23);
    assert_true(plan_parameters(&s) > 31.577e9 && plan_parameters(&s) < 31.578e9);
    assert_true(plan_active_parameters(&s) > 3.227e9 && plan_active_parameters(&s) < 3.228e9);
    assert_true(plan_state_bytes(&s) == 49930240.0);
    assert_true(plan_kv_token_bytes(&s, 1, 16) == 6144);
    s = shape_of("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B");
    assert_int_equal(s.expert_latent, 1024);
    assert_true(plan_parameters(&s) > 120.66e9 && plan_parameters(&s) < 120.68e9);
    assert_true(plan_active_parameters(&s) > 12.23e9 && plan_active_parameters(&s) < 12.24e9);
    assert_true(plan_state_bytes(&s) == 172687360.0);
    assert_int_equal(plan_shape_read("tests/fixtures/models/nemotron-h-latent", &s, &f), 0);
    assert_int_equal(s.layers, 6);
    assert_int_equal(s.experts, 9);
    assert_int_equal(s.expert_latent, 12);
}

static void test_odd_numbers(void **state)
{
    static const char fine[] =
        "{\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"vocab_size\": 100, \"max_length\": 1000000000000000019884624838656, \"x\": [NaN, "
        "-Infinity, 1e999]}";
    static const char bad[] = "{\"hidden_size\": 64, \"num_hidden_layers\": 1e999}";
    struct plan_shape s;
    struct ek_fault f = {.msg = ""};
    (void)state;
    assert_int_equal(plan_shape_parse(fine, strlen(fine), &s, &f), 0);
    assert_int_equal(s.hidden, 64);
    assert_int_equal(plan_shape_parse(bad, strlen(bad), &s, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "num_hidden_layers is 1e999; it must be a number from 0"));

    /* each number may be, and all of them together not */
    static const char huge[] = "{\"hidden_size\": 100000000, \"num_hidden_layers\": 100000000, "
                               "\"num_attention_heads\": 4, \"vocab_size\": 100}";
    assert_int_equal(plan_shape_parse(huge, strlen(huge), &s, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "which no machine holds"));
}

/* A model's directory is foreign. */
static void test_pipe(void **state)
{
    (void)state;
    struct plan_shape s;
    struct ek_fault f = {.msg = ""};
    char dir[] = "/tmp/configs-XXXXXX", file[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/config.json", dir);
    assert_int_equal(mkfifo(file, 0600), 0);
    (void)alarm(20); /* without a writer it held for ever */
    assert_int_equal(plan_shape_read(dir, &s, &f), -EBADMSG);
    (void)alarm(0);
    assert_non_null(strstr(f.msg, "/config.json cannot be read: it is no regular file"));
    (void)unlink(file);
    (void)rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),   cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_mamba),       cmocka_unit_test(test_state_parts),
        cmocka_unit_test(test_mixers),      cmocka_unit_test(test_lone_experts),
        cmocka_unit_test(test_gemma4),      cmocka_unit_test(test_gemma4_saved),
        cmocka_unit_test(test_odd_numbers), cmocka_unit_test(test_biases),
        cmocka_unit_test(test_left_out),    cmocka_unit_test(test_pipe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

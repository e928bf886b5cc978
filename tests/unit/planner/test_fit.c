/* The planner's formulas against the examples of docs/planning.md and sums by hand. */
#include "supervisor/planner/fit.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/planner/advise.h"
#include "supervisor/planner/gpus.h"
#include "supervisor/planner/speed.h"
#include "supervisor/planner/trace.h"
#include "supervisor/planner/weights.h"

#define GIB 1073741824.0

static struct plan_shape parse(const char *text)
{
    struct plan_shape s = {0};
    assert_int_equal(plan_shape_parse(text, strlen(text), &s, NULL), 0);
    return s;
}

#define LLAMA_8B                                                                                   \
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "               \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 14336, "      \
    "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"torch_dtype\": \"bfloat16\"}"
#define LLAMA_70B                                                                                  \
    "{\"model_type\": \"llama\", \"hidden_size\": 8192, \"num_hidden_layers\": 80, "               \
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"intermediate_size\": 28672, "      \
    "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"dtype\": \"bfloat16\"}"
#define DEEPSEEK                                                                                   \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, \"num_hidden_layers\": 61, "         \
    "\"num_attention_heads\": 128, \"vocab_size\": 129280, \"kv_lora_rank\": 512, "                \
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"qk_nope_head_dim\": 128}"
#define GEMMA                                                                                      \
    "{\"model_type\": \"gemma2\", \"hidden_size\": 4608, \"num_hidden_layers\": 46, "              \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 16, \"head_dim\": 128, "                \
    "\"intermediate_size\": 36864, \"vocab_size\": 256000, \"max_position_embeddings\": 8192, "    \
    "\"sliding_window\": 4096}"

#define GPT_OSS_20B                                                                                \
    "{\"model_type\": \"gpt_oss\", \"hidden_size\": 2880, \"num_hidden_layers\": 24, "             \
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, "                  \
    "\"intermediate_size\": 2880, \"vocab_size\": 201088, \"num_local_experts\": 32, "             \
    "\"num_experts_per_tok\": 4, \"quantization_config\": {\"quant_method\": \"mxfp4\"}}"

static void near(double is, double want)
{
    if (fabs(is / want - 1) > 1e-6)
        fail_msg("%.3f, not %.3f", is, want);
}

static void test_kv(void **state)
{
    (void)state;
    struct plan_shape s = parse(LLAMA_70B);
    near(plan_kv_token_bytes(&s, 1, 16), 327680); /* 2 x 80 x 8 x 128 x 2 */
    near(plan_kv_token_bytes(&s, 4, 16), 81920);
    near(plan_kv_token_bytes(&s, 4, 8), 40960);
    near(plan_kv_token_bytes(&s, 16, 16), 40960); /* a head is not split: each card keeps one */
    s = parse(DEEPSEEK);
    near(plan_kv_token_bytes(&s, 1, 16), 70272); /* 61 x (512 + 64) x 2 */
    near(plan_kv_token_bytes(&s, 8, 16), 70272);
    s = parse(GEMMA); /* half of the layers keep 4,096 of 8,192 tokens */
    near(plan_kv_request_bytes(&s, 1, 16, 8192), plan_kv_token_bytes(&s, 1, 16) * 6144);
}

/* Billions of parameters, all and those that a token reads, as the models' pages say; without the
 * parts that see and the layers for drafts. */
#define BIG                                                                                        \
    "\"vocab_size\": 151552, \"num_attention_heads\": 96, \"num_key_value_heads\": 8, "            \
    "\"head_dim\": 128, \"attention_bias\": true, \"n_shared_experts\": 1, "                       \
    "\"num_experts_per_tok\": 8, "
#define LLAMA4                                                                                     \
    "{\"model_type\": \"llama4_text\", \"hidden_size\": 5120, \"intermediate_size\": 8192, "       \
    "\"intermediate_size_mlp\": 16384, \"num_hidden_layers\": 48, \"num_attention_heads\": 40, "   \
    "\"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 202048, "                      \
    "\"num_experts_per_tok\": 1, \"max_position_embeddings\": 32768, "                             \
    "\"attention_chunk_size\": 8192, "

static void test_mixtures(void **state)
{
    static const struct {
        const char *text;
        double all, active;
    } cases[] = {
        {"{\"model_type\": \"glm4_moe\", " BIG
         "\"hidden_size\": 4096, \"intermediate_size\": 10944, \"num_hidden_layers\": 46, "
         "\"moe_intermediate_size\": 1408, \"n_routed_experts\": 128, "
         "\"first_k_dense_replace\": 1}",
         106, 12},
        {"{\"model_type\": \"glm4_moe\", " BIG
         "\"hidden_size\": 5120, \"intermediate_size\": 12288, \"num_hidden_layers\": 92, "
         "\"moe_intermediate_size\": 1536, \"n_routed_experts\": 160, \"use_qk_norm\": true, "
         "\"first_k_dense_replace\": 3}",
         355, 32},
        {LLAMA4 "\"num_local_experts\": 16, \"interleave_moe_layer_step\": 1}", 109, 17},
        {LLAMA4 "\"num_local_experts\": 128, \"interleave_moe_layer_step\": 2}", 400, 17},
        {"{\"model_type\": \"ernie4_5_moe\", \"hidden_size\": 2560, \"intermediate_size\": 12288, "
         "\"num_hidden_layers\": 28, \"num_attention_heads\": 20, \"num_key_value_heads\": 4, "
         "\"vocab_size\": 103424, \"moe_intermediate_size\": 1536, \"moe_num_experts\": 64, "
         "\"moe_num_shared_experts\": 2, \"moe_k\": 6, \"moe_layer_start_index\": 1, "
         "\"moe_layer_end_index\": -1, \"tie_word_embeddings\": true}",
         21, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_shape s = parse(cases[i].text);
        const double all = plan_parameters(&s) / 1e9, active = plan_active_parameters(&s) / 1e9;
        if (fabs(all / cases[i].all - 1) > 0.05 || fabs(active / cases[i].active - 1) > 0.2)
            fail_msg("case %zu: %.2f B, of which %.2f B are read", i, all, active);
    }
    struct plan_shape s = parse(cases[2].text); /* three layers of four keep 8,192 of 32,768 */
    near(plan_kv_request_bytes(&s, 1, 16, 32768), plan_kv_token_bytes(&s, 1, 16) * 14336);
}

static void test_memory(void **state)
{
    (void)state;
    struct plan_shape s = parse(LLAMA_8B);
    struct plan_setup u = {.memory_bytes = 79.15 * GIB,
                           .share = 0.9,
                           .cards = 1,
                           .kv_bits = 16,
                           .tokens = 8192,
                           .seqs = 256,
                           .block_size = 16};
    struct plan_fit f = plan_fit_of(&s, &u);
    /* 8192 x (4 x 4096 + 2 x 14336 + 48 x 128) x 2 + 2 x 256 x 128256 x 4 */
    near(f.activations, 838860800.0 + 262668288.0);
    near(f.weights, plan_parameters(&s) * 2);
    assert_true(f.kv_tokens > 440000 && f.kv_tokens < 455000);
    assert_true(f.fits && f.longest == 131072);
    u.cards = 3;
    assert_false(plan_fit_of(&s, &u).splits);
    u.cards = 1;
    u.memory_bytes = 14.6 * GIB;
    f = plan_fit_of(&s, &u);
    assert_true(!f.fits && f.kv_bytes < 0);
    assert_int_equal(plan_cards_needed(&s, &u, 8192), 2);
}

#define QWEN                                                                                       \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 896, \"num_hidden_layers\": 24, "                \
    "\"num_attention_heads\": 14, \"num_key_value_heads\": 2, \"intermediate_size\": 4864, "       \
    "\"vocab_size\": 151936, \"max_position_embeddings\": 32768, \"torch_dtype\": \"bfloat16\", "  \
    "\"tie_word_embeddings\": true}"
#define MIXTRAL                                                                                    \
    "{\"model_type\": \"mixtral\", \"hidden_size\": 256, \"num_hidden_layers\": 2, "               \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 512, "         \
    "\"vocab_size\": 1000, \"num_local_experts\": 4, \"num_experts_per_tok\": 2}"

/* 80 layers of 1.594 GiB and two matrices of 1.957 GiB at the ends: of four stages those in the
 * middle have 21 layers, the others 19 and an end. */
static void test_stages(void **state)
{
    (void)state;
    struct plan_shape s = parse(LLAMA_70B);
    struct plan_setup u = {.memory_bytes = 44.4 * GIB,
                           .share = 0.92,
                           .cards = 1,
                           .kv_bits = 16,
                           .tokens = 8192,
                           .seqs = 256,
                           .block_size = 16,
                           .graphs = true};
    const double end = 128256.0 * 8192 * 2, all = plan_weight_bytes(&s, 0);
    const double layer = (all - 2 * end) / 80;
    struct plan_fit one = plan_fit_of(&s, &u);
    assert_true(!one.fits && one.layers == 80);
    near(one.weights, all);
    u.stages = 4;
    struct plan_fit four = plan_fit_of(&s, &u);
    assert_true(four.fits && four.layers == 21);
    near(four.weights, 21 * layer);
    near(four.token_bytes, 21 * 4096.0);
    near(four.graphs, 21 * 12.0 * 1048576);
    near(four.context, 0.9 * GIB);
    u.stages = 2; /* 40 layers and an end each */
    near(plan_fit_of(&s, &u).weights, 40 * layer + end);
    u.cards = 2;
    near(plan_fit_of(&s, &u).weights, 20 * layer + end / 2);
    u.stages = 80; /* a layer with an end is the most */
    near(plan_fit_of(&s, &u).weights, (layer + end) / 2);
    u.stages = 81;
    assert_true(!plan_fit_of(&s, &u).splits);
    s.tied = true; /* the same matrix, at both ends */
    u.stages = 2;
    near(plan_fit_of(&s, &u).weights, (plan_weight_bytes(&s, 0) + end) / 4);
    assert_int_equal(plan_cards_needed(&s, &u, 1024), 2);
}

static void test_layouts(void **state)
{
    (void)state;
    assert_true(plan_layout_fits(4, 1, 1, 4) && !plan_layout_fits(4, 1, 1, 2));
    assert_true(plan_layout_fits(2, 2, 2, 2) && plan_layout_fits(4, 2, 4, 2));
    assert_false(plan_layout_fits(2, 3, 2, 8)); /* a stage in parts of two machines */
    assert_false(plan_layout_fits(1, 3, 2, 8));
    assert_true(plan_layout_fits(2, 0, 0, 2));
}

/* Weights that evenkeel-server quantizes while it loads them (docs/planning.md): a panel of 32 rows
 * has its numbers and 32 scales of 4 bytes for each group. A layer of Qwen2.5-0.5B has 36 panels of
 * query, key and value, 28 of the output, 304 of gate and up, 28 of down; its head 4,748. */
static void test_own_weights(void **state)
{
    (void)state;
    struct plan_shape s = parse(QWEN);
    double vectors = 24 * (2 * 896 * 4 + 1152 * 4) + 896 * 4;
    double layer = (36 + 28 + 304) * (896 * 32 + 7 * 128) + 28 * (4864 * 32 + 38 * 128);
    double head = 4748 * (896 * 32 + 28 * 128);
    near(plan_own_weights(&s, 8), 24 * layer + head + vectors);
    near(plan_own_weights(&s, 8), 522446336);
    layer = (36 + 28 + 304) * (896 * 16 + 14 * 128) + 28 * (4864 * 16 + 76 * 128);
    near(plan_own_weights(&s, 4), 24 * layer + head + vectors);
    near(plan_own_weights(&s, 4), 354715136);
    near(plan_own_weights(&s, 16), 2 * 357826560.0 + 2.0 * 151936 * 896 + vectors);
    near(plan_own_weights(&s, 0), plan_own_weights(&s, 16));
    s = parse(LLAMA_8B); /* an embedding of its own stays in 16 bit */
    near(plan_own_weights(&s, 8), 8840167424);
    assert_true(plan_own_weights(&s, 8) < plan_weight_bytes(&s, 8) * 0.98);
    near(plan_weights_of(&s, 8, false), plan_weight_bytes(&s, 8));
    s = parse(
        MIXTRAL); /* the router, 4 x 256 in one panel, stays in 16; rows are filled up to 32 */
    layer = (16 + 8) * (256 * 32 + 2 * 128) +
            4 * (32 * (256 * 32 + 2 * 128) + 8 * (512 * 32 + 4 * 128)) + 256 * 32 * 2 + 2 * 256 * 4;
    near(plan_own_weights(&s, 8), 2 * layer + 32 * (256 * 32 + 8 * 128) + 1000 * 256 * 2 + 256 * 4);
}

/* One sequence decodes at the speed of reading the weights; a long prompt at that of computing. */
static void test_roofline(void **state)
{
    (void)state;
    struct plan_shape s = parse(LLAMA_8B);
    struct plan_engine e = {.shape = &s,
                            .device = {.read_bytes_s = 3350e9, .flops = 989e12},
                            .cards = 1,
                            .kv_bits = 16};
    enum plan_bound bound;
    double step = plan_decode_step(&e, 1, 1, &bound);
    assert_int_equal(bound, BOUND_BANDWIDTH);
    /* (16.06 GB - the embedding's 1.05 GB) / (3,350 GB/s x 0.72) + 2 ms */
    assert_true(step > 0.0080 && step < 0.0085);
    double prefill = plan_prefill(&e, 8192);
    assert_true(prefill > 0.24 && prefill < 0.32);
    (void)plan_decode_step(&e, 4096, 16, &bound);
    assert_int_equal(bound, BOUND_COMPUTE);
    e.weight_bits = 8;
    assert_true(plan_decode_step(&e, 1, 1, &bound) < step);
}

static void test_cpu(void **state)
{
    (void)state;
    struct plan_shape s = parse(QWEN);
    struct plan_engine e = {
        .shape = &s,
        .device = {.read_bytes_s = 44e9, .flops = 900e9, .flops8 = 1600e9, .own = true},
        .cards = 1,
        .kv_bits = 16};
    enum plan_bound bound;
    double plain = plan_decode_step(&e, 1, 1, &bound);
    assert_true(plain > 0.02245 && plain < 0.02265); /* 988.2 MB / 44 GB/s, and 40 us */
    double prefill = plan_prefill(&e, 512); /* 366 GFLOP at 0.8 of 900, 11.3 at 0.3 of 900 */
    assert_true(prefill > 0.545 && prefill < 0.555);
    e.weight_bits = 8;
    assert_true(plan_decode_step(&e, 1, 1, &bound) < plain * 0.535);
    assert_true(plan_prefill(&e, 512) < prefill * 0.8);
    e.weight_bits = 0;
    /* From a cache of twice the weights' size; not at all from one of theirs; between them less. */
    double steps[3];
    static const double times[] = {2, 1.5, 1};
    for (size_t i = 0; i < 3; i++) {
        e.device.cache_bytes = plan_own_weights(&s, 0) * times[i];
        e.device.cache_bytes_s = 150e9;
        steps[i] = plan_decode_step(&e, 1, 1, &bound);
    }
    assert_true(steps[0] < plain / 3 && steps[1] > steps[0] && steps[2] > steps[1]);
    assert_true(fabs(steps[2] / plain - 1) < 1e-3);
    /* Kept full: alone nobody's prompt comes between; with others each one's does once. */
    struct plan_load l = {.prompt = 512, .output = 65};
    struct plan_speed one = plan_speed_at(&e, &l, 1), eight = plan_speed_at(&e, &l, 8);
    assert_true(fabs(one.itl_s - one.step_s) < 1e-12 && one.ttft_s == one.prefill_s);
    assert_true(fabs(eight.itl_s - (eight.step_s + 7 * eight.prefill_s / 64)) < 1e-12);
}

static void test_trace(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t requests;
        double prompt, output;
    } cases[] = {
        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023,100,10\n2023,300,30\n", 2, 200, 20},
        {"num_prefill_tokens,num_decode_tokens\r\n5,7\r\nbad\r\n", 1, 5, 7},
        {"{\"input_length\": 8, \"output_length\": 2}\n{\"x\": 1}\n{half", 1, 8, 2},
        {"a,b\n1,2\n", 0, 0, 0},
        {"", 0, 0, 0},
        {"ContextTokens,GeneratedTokens\n-5,1\n1e300,1\n", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_trace t = {0};
        struct ek_fault fault = {0};
        int r = plan_trace_read(cases[i].text, strlen(cases[i].text), &t, &fault);
        assert_int_equal(r, cases[i].requests ? 0 : -EBADMSG);
        assert_int_equal(t.requests, cases[i].requests);
        assert_true(fabs(t.prompt_mean - cases[i].prompt) < 1e-9);
        assert_true(fabs(t.output_mean - cases[i].output) < 1e-9);
        assert_true((r < 0) == (fault.msg[0] != '\0'));
    }
}

/* Experts alone have 4 bits: the files of gpt-oss-20b take 13.76 GB, with biases. */
static void test_experts_only(void **state)
{
    (void)state;
    struct plan_shape s = parse(GPT_OSS_20B);
    const double experts = 24.0 * 32 * 3 * 2880 * 2880;
    const double rest = 24.0 * (2 * 2880 * (4096 + 512.0) + 2880 * 34) + 2 * 201088.0 * 2880;

    near(plan_parameters(&s), experts + rest);
    near(plan_weight_bytes(&s, 0), experts * 4.25 / 8 + rest * 2);
    near(plan_own_weights(&s, 0), plan_weight_bytes(&s, 0));
    assert_true(fabs(plan_weight_bytes(&s, 0) / 13.76e9 - 1) < 0.01);
    assert_true(plan_weight_bytes(&s, 16) > 41e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv),           cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_stages),
        cmocka_unit_test(test_layouts),      cmocka_unit_test(test_own_weights),
        cmocka_unit_test(test_roofline),     cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_experts_only), cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

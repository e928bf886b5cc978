/*
 * Gemma 4's config.json: heads of the two kinds of layers in both spellings, frequencies of a part
 * of a head, which layer's keys and values the last ones read, and by whose scales, and values that
 * are refused. Logits are compared in test_goldens.c.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/config.h"
#include "server/model/family.h"
#include "server/model/graph.h"
#include "server/model/rope.h"

#define WHOLE                                                                                      \
    "{\"architectures\": [\"Gemma4ForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": "    \
    "96, "                                                                                         \
    "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"vocab_size\": 100, \"max_position_embeddings\": 1024, \"head_dim\": 8"
#define TYPES                                                                                      \
    ", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", "       \
    "\"full_attention\", \"sliding_attention\", \"sliding_attention\"]"
#define GEMMA4(more) WHOLE ", \"hidden_size_per_layer_input\": 0" TYPES more "}"

static struct model_config read_ok(const char *text)
{
    struct model_config c = {0};
    struct ek_fault f = {0};
    if (config_parse(text, strlen(text), &c, &f) != 0)
        fail_msg("%s: %s", text, f.msg);
    return c;
}

static void check_kv(const struct model_config *c, uint32_t layer, struct graph_kv want)
{
    const struct graph_kv kv = graph_kv_of(c, layer);

    assert_int_equal(kv.heads, want.heads);
    assert_int_equal(kv.head_dim, want.head_dim);
    assert_int_equal(kv.layer, want.layer);
    assert_int_equal(kv.reads, want.reads);
}

static void test_heads(void **state)
{
    (void)state;
    struct model_config c = read_ok(GEMMA4(""));
    assert_ptr_equal(c.family, &family_gemma4);
    assert_true(c.tied && c.window == 512 && c.attention_scale == 1.0f);
    assert_false(c.windowed[5]); /* the last one sees all, whatever the file says */
    check_kv(&c, 0, (struct graph_kv){2, 8, 0, false});
    check_kv(&c, 1, (struct graph_kv){2, 512, 1, false});

    /* heads of keys of their own count where keys are values */
    c = read_ok(GEMMA4(", \"global_head_dim\": 16, \"num_global_key_value_heads\": 1"));
    check_kv(&c, 3, (struct graph_kv){2, 16, 3, false});
    c = read_ok(GEMMA4(", \"global_head_dim\": 16, \"num_global_key_value_heads\": 1, "
                       "\"attention_k_eq_v\": true"));
    check_kv(&c, 3, (struct graph_kv){1, 16, 3, false});
    c = read_ok(GEMMA4(", \"num_global_key_value_heads\": null, \"attention_k_eq_v\": true"));
    check_kv(&c, 3, (struct graph_kv){2, 512, 3, false});

    c = read_ok(
        GEMMA4(", \"per_layer_config\": {\"1\": {\"head_dim\": 16, \"num_key_value_heads\": 1}, "
               "\"3\": {\"head_dim\": 16, \"num_key_value_heads\": 1}, "
               "\"5\": {\"num_key_value_heads\": 1, \"head_dim\": 16}}"));
    check_kv(&c, 0, (struct graph_kv){2, 8, 0, false});
    check_kv(&c, 5, (struct graph_kv){1, 16, 5, false});
    assert_int_equal(c.rope.dims, 16);
    assert_int_equal(c.rope_local.dims, 8);
    c = read_ok(GEMMA4(", \"per_layer_config\": {}"));
    check_kv(&c, 5, (struct graph_kv){2, 8, 5, false});
}

/* Of 6 layers the last three read: a full one what layer 1 wrote, those with a window layer 2. */
static void test_shared(void **state)
{
    (void)state;
    struct model_config c = read_ok(GEMMA4(", \"num_kv_shared_layers\": 3"));
    check_kv(&c, 2, (struct graph_kv){2, 8, 2, false});
    check_kv(&c, 3, (struct graph_kv){2, 512, 1, true});
    check_kv(&c, 4, (struct graph_kv){2, 8, 2, true});
    check_kv(&c, 5, (struct graph_kv){2, 512, 1, true});
}

/* Numbers of an 8-bit cache are divided by what the layer that writes them says; scales that the
 * file has for one that reads count for nothing, nor do those of a writer of the other kind. */
static void test_scales_of_readers(void **state)
{
    (void)state;
    enum { SCALES = 6 };
    static const char *const names[SCALES] = {
        "model.layers.1.self_attn.k_scale", "model.layers.1.self_attn.v_scale",
        "model.layers.2.self_attn.k_scale", "model.layers.2.self_attn.v_scale",
        "model.layers.4.self_attn.k_scale", "model.layers.5.self_attn.v_scale"};
    static const float numbers[SCALES] = {0.5f, 0.25f, 3.0f, 5.0f, 7.0f, 9.0f};
    static const struct {
        float k, v;
    } want[6] = {{0, 0}, {0.5f, 0.25f}, {3, 5}, {0.5f, 0.25f}, {3, 5}, {0.5f, 0.25f}};
    struct st_tensor tensors[SCALES];
    struct ek_weight_file file = {.data = numbers, .size_bytes = sizeof(numbers)};
    struct st_set set = {.tensor = tensors, .count = SCALES, .file = &file, .files = 1};
    struct model_config c = read_ok(GEMMA4(", \"num_kv_shared_layers\": 3"));
    struct ek_graph g = {.dtype = EK_F32, .kv_f8 = true};
    struct ek_fault f = {0};
    struct graph_builder b = {.graph = &g, .tensors = &set, .config = &c, .fault = &f};
    for (uint32_t i = 0; i < SCALES; i++)
        tensors[i] = (struct st_tensor){.name = names[i],
                                        .usable = true,
                                        .dtype = EK_F32,
                                        .type = "F32",
                                        .begin = i * sizeof(float),
                                        .end = (i + 1) * sizeof(float)};
    for (uint32_t i = 0; i < c.layers; i++) {
        graph_prefix(&b, "model.layers.%u.", i);
        graph_attention(&b, 0, 0, i);
    }
    assert_int_equal(b.error, 0);
    for (uint32_t i = 0; i < c.layers; i++) {
        assert_true(g.ops[i].u.attention.k_scale == want[i].k);
        assert_true(g.ops[i].u.attention.v_scale == want[i].v);
        assert_int_equal(g.ops[i].u.attention.reads, i >= 3);
        assert_true(i == 0 || tensors[i].used); /* so that none is an unknown tensor */
    }
    ek_graph_free(&g);
}

/* A quarter of the frequencies of a head of 16, as if all of them turned; the others are 0. */
static void test_proportional(void **state)
{
    (void)state;
    float freq[8];
    struct model_config c = read_ok(GEMMA4(", \"global_head_dim\": 16"));
    for (int spelled = 0; spelled < 2; spelled++) {
        assert_int_equal(c.rope.type, ROPE_PROPORTIONAL);
        assert_true(config_rope_table(&c.rope, false, freq) == 1.0f);
        assert_true(freq[0] == 1.0f && fabsf(freq[1] - 0.177827941f) < 1e-7f);
        for (int i = 2; i < 8; i++)
            assert_true(freq[i] == 0.0f);
        c = read_ok(GEMMA4(
            ", \"global_head_dim\": 16, \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
            "\"proportional\", \"rope_theta\": 1000000.0, \"partial_rotary_factor\": 0.25}, "
            "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}, "
            "\"rope_theta\": null}"));
    }
    (void)config_rope_table(&c.rope_local, false, freq);
    assert_true(fabsf(freq[1] - 0.1f) < 1e-7f);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text, *field, *says;
    } cases[] = {
        {GEMMA4(", \"use_bidirectional_attention\": \"all\""), "use_bidirectional_attention",
         "attention to later tokens is not supported"},
        {GEMMA4(", \"global_head_dim\": 15"), "global_head_dim", "even"},
        {GEMMA4(", \"global_head_dim\": 2048"), "global_head_dim", "1024"},
        {GEMMA4(", \"num_global_key_value_heads\": 3, \"attention_k_eq_v\": true"),
         "num_global_key_value_heads", "no multiple of the 3"},
        {GEMMA4(", \"per_layer_config\": [1]"), "per_layer_config", "must be an object"},
        {GEMMA4(", \"per_layer_config\": {\"6\": {}}"), "per_layer_config", "layers 0 to 5"},
        {GEMMA4(", \"per_layer_config\": {\"x\": {}}"), "per_layer_config", "layers 0 to 5"},
        {GEMMA4(", \"per_layer_config\": {\"1\": 5}"), "per_layer_config", "layers 0 to 5"},
        {GEMMA4(", \"per_layer_config\": {\"1\": {\"head_dim\": 16}}"), "per_layer_config",
         "layers 1 and 3, which are of one kind"},
        {GEMMA4(", \"per_layer_config\": {\"1\": {\"skip\": [\"mlp\"]}}"), "per_layer_config",
         "has 'skip' for layer 1"},
        {GEMMA4(", \"per_layer_config\": {\"1\": {\"head_dim\": 0}}"), "head_dim", "from 1"},
        {GEMMA4(", \"num_kv_shared_layers\": 6"), "num_kv_shared_layers", "to 5"},
        {GEMMA4(", \"num_kv_shared_layers\": 5"), "num_kv_shared_layers",
         "an earlier full_attention layer, of which there is none"},
        {GEMMA4(", \"enable_moe_block\": true"), "num_experts", "is missing"},
        {GEMMA4(", \"enable_moe_block\": true, \"num_experts\": 2, \"top_k_experts\": 3, "
                "\"moe_intermediate_size\": 8"),
         "top_k_experts", "more than the 2 experts"},
        {WHOLE TYPES "}", "vocab_size_per_layer_input", "262144 differs from vocab_size 100"},
        {WHOLE TYPES ", \"hidden_size_per_layer_input\": 100000}", "hidden_size_per_layer_input",
         "16384"},
        {GEMMA4(", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", "
                "\"partial_rotary_factor\": 0.25}}"),
         "partial_rotary_factor", "must be 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_config c;
        struct ek_fault f = {.msg = ""};
        if (config_parse(cases[i].text, strlen(cases[i].text), &c, &f) != -EBADMSG ||
            strcmp(f.field, cases[i].field) != 0 || !strstr(f.msg, cases[i].says))
            fail_msg("%s: '%s' of %s", cases[i].text, f.msg, f.field);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_scales_of_readers),
                                       cmocka_unit_test(test_proportional),
                                       cmocka_unit_test(test_bad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Quantized checkpoints: which tensors make up a matrix, and what is refused. That their values are
 * right is the goldens' matter (test_goldens.c), that ranges are checked the backend's.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"
#include "server/model/model.h"
#include "tests/unit/model/make.h"

static void quantized(struct make *m, const char *method)
{
    json_object_set_new(m->config, "quantization_config",
                        json_pack("{s:s, s:i}", "quant_method", method, "group_size", 4));
}

/* Instead of the plain weights of one matrix [8, 8]. */
static void only(struct make *m)
{
    json_object_del(m->tensors, "model.layers.0.self_attn.o_proj.weight");
}

#define O "model.layers.0.self_attn.o_proj."

static void gptq_is(struct make *m)
{
    quantized(m, "gptq");
    only(m);
    make_typed(m, O "qweight", "I32", 1, 8);
    make_typed(m, O "qzeros", "I32", 2, 1);
    make_typed(m, O "scales", "F16", 2, 8);
    make_typed(m, O "g_idx", "I32", 8, 0);
    make_tensor(m, O "bias", 8, 0); /* zeros, as some tools write them */
}
static void awq_is(struct make *m)
{
    quantized(m, "awq");
    only(m);
    make_typed(m, O "qweight", "I32", 8, 1);
    make_typed(m, O "qzeros", "I32", 2, 1);
    make_typed(m, O "scales", "F16", 2, 8);
}
static void packed_is(struct make *m)
{
    quantized(m, "compressed-tensors");
    only(m);
    make_typed(m, O "weight_packed", "I32", 8, 1);
    make_tensor(m, O "weight_scale", 8, 2);
    make_typed(m, O "weight_zero_point", "I32", 1, 2);
    make_typed(m, O "weight_shape", "I32", 2, 0);
}
static void int8_plain(struct make *m)
{
    quantized(m, "compressed-tensors");
    make_typed(m, O "weight", "I8", 8, 8);
    make_tensor(m, O "weight_scale", 8, 1);
}
static void int8_is(struct make *m)
{
    int8_plain(m);
    make_typed(m, O "weight_zero_point", "I8", 8, 1);
}
static void fp8_is(struct make *m)
{
    quantized(m, "fp8");
    make_typed(m, O "weight", "F8_E4M3", 8, 8);
    make_typed(m, O "weight_scale", "F32", 1, 0);
    make_typed(m, O "input_scale", "F32", 1, 0);
}

static void nvfp4_numbers(struct make *m)
{
    only(m);
    make_typed(m, O "weight", "U8", 8, 4);
    make_typed(m, O "weight_scale", "F8_E4M3", 8, 1);
    make_typed(m, O "input_scale", "F32", 1, 0);
}
static void nvfp4_is(struct make *m)
{
    quantized(m, "modelopt_fp4");
    json_object_set_new(json_object_get(m->config, "quantization_config"), "quant_algo",
                        json_string("NVFP4"));
    nvfp4_numbers(m);
}
static void nvfp4_beside(struct make *m)
{
    make_text(m, "hf_quant_config.json", "{\"quantization\": {\"quant_algo\": \"NVFP4\"}}");
    nvfp4_numbers(m);
}
static void mxfp4_packed(struct make *m)
{
    quantized(m, "compressed-tensors");
    only(m);
    make_typed(m, O "weight_packed", "U8", 8, 4);
    make_typed(m, O "weight_scale", "U8", 8, 1);
}

static void test_quantized(void **state)
{
    (void)state;
    static const struct {
        void (*is)(struct make *m);
        enum ek_quant_kind kind;
        enum ek_dtype source, kept;
        uint32_t block_rows, block_cols, zero_add;
        bool zeros;
    } cases[] = {
        /* its g_idx are zeros: not one group after the other */
        {gptq_is, EK_QUANT_GPTQ, EK_I4, EK_BF16, 1, 4, 1, true},
        {awq_is, EK_QUANT_AWQ, EK_I4, EK_I4, 1, 4, 0, true},
        {packed_is, EK_QUANT_PACKED, EK_I4, EK_I4, 1, 4, 0, true},
        {int8_is, EK_QUANT_I8, EK_I8, EK_I8, 1, 8, 0, false}, /* zeros of 0 */
        {fp8_is, EK_QUANT_F8, EK_F8_E4M3, EK_F8_E4M3, 8, 8, 0, false},
        /* one group of columns would not tell them from powers of two */
        {nvfp4_is, EK_QUANT_NVFP4, EK_I4, EK_BF16, 1, 16, 0, false},
        {nvfp4_beside, EK_QUANT_NVFP4, EK_I4, EK_BF16, 1, 16, 0, false},
        {mxfp4_packed, EK_QUANT_MXFP4, EK_I4, EK_F4_E2M1, 1, 32, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        make_begin(&m, "LlamaForCausalLM");
        cases[i].is(&m);
        make_write(&m);
        if (model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f) < 0)
            fail_msg("case %zu: %s", i, f.msg);
        const struct ek_graph *g = &model->graph;
        const struct ek_weight *w = g->weights;
        while (strcmp(w->name, O "weight") != 0)
            w++;
        assert_true(w->quantized);
        assert_int_equal(w->source, cases[i].source);
        assert_int_equal(w->dtype, cases[i].kept);
        bool kept = w->dtype != EK_BF16;
        assert_int_equal(w->group, kept && cases[i].block_cols < 8 ? cases[i].block_cols : 0);
        assert_int_equal(model->weights.kept, kept);
        assert_int_equal(g->quant_count, 1);
        const struct ek_quant *q = &g->quants[w->quant];
        assert_int_equal(q->kind, cases[i].kind);
        assert_int_equal(q->block_rows, cases[i].block_rows);
        assert_int_equal(q->block_cols, cases[i].block_cols);
        assert_int_equal(q->zero_add, cases[i].zero_add);
        assert_int_equal(q->zeros.file != UINT32_MAX, cases[i].zeros);
        model_free(model);
        make_done(&m);
    }
}

static void no_scales(struct make *m)
{
    gptq_is(m);
    json_object_del(m->tensors, O "scales");
}
static void bent_qweight(struct make *m)
{
    gptq_is(m);
    make_typed(m, O "qweight", "I32", 2, 8);
}
static void whole_zeros(struct make *m)
{
    awq_is(m);
    make_typed(m, O "qzeros", "I8", 2, 1);
}
static void no_fp8_scale(struct make *m)
{
    fp8_is(m);
    json_object_del(m->tensors, O "weight_scale");
}
static void bent_fp8_scale(struct make *m)
{
    fp8_is(m);
    make_typed(m, O "weight_scale", "F32", 3, 3);
}
static void not_said(struct make *m)
{
    fp8_is(m);
    json_object_del(m->config, "quantization_config");
}
static void half_quantized(struct make *m)
{
    quantized(m, "fp8");
    make_typed(m, "model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 8, 8);
    make_typed(m, "model.layers.0.self_attn.q_proj.weight_scale", "F32", 1, 0);
}
static void bent_zeros(struct make *m)
{
    int8_is(m);
    make_typed(m, O "weight_zero_point", "I8", 8, 2);
}

static void quant_says(struct make *m, const char *key, json_t *value)
{
    json_object_set_new(json_object_get(m->config, "quantization_config"), key, value);
}
static void modelopt_is(struct make *m)
{
    fp8_is(m);
    quantized(m, "modelopt");
    quant_says(m, "quant_algo", json_string("FP8"));
}
static void modelopt_awq(struct make *m)
{
    modelopt_is(m);
    quant_says(m, "quant_algo", json_string("W4A8_AWQ"));
}
static void nvfp4_bent(struct make *m)
{
    nvfp4_is(m);
    make_typed(m, O "weight_scale", "F8_E4M3", 8, 2);
}
static void nvfp4_wide(struct make *m)
{
    nvfp4_is(m);
    make_typed(m, O "weight_scale", "F32", 8, 1);
}
static void nvfp4_zeros(struct make *m)
{
    nvfp4_is(m);
    make_typed(m, O "weight_zero_point", "U8", 8, 1);
}
static void nvfp4_nothing(struct make *m)
{
    nvfp4_is(m);
    make_typed(m, O "weight_scale_2", "F32", 1, 0); /* 0 */
}
static void hf_quant_bent(struct make *m)
{
    make_text(m, "hf_quant_config.json", "{\"producer\": {}}");
}

static void test_bad_quantized(void **state)
{
    (void)state;
    static const struct {
        void (*spoil)(struct make *m);
        const char *says;
    } cases[] = {
        {no_scales, "o_proj.scales' is missing beside its quantized weights"},
        {bent_qweight, "o_proj.qzeros' has a shape that does not fit for quantized weights of"},
        {whole_zeros, "o_proj.qzeros' has another type than is expected"},
        {no_fp8_scale, "o_proj.weight' is quantized but has no weight_scale beside it"},
        {bent_fp8_scale, "o_proj.weight_scale' has a shape that does not fit"},
        {not_said, "o_proj.weight' has type F8_E4M3; convert the model"},
        {half_quantized, "has type BF16, unlike 'model.layers.0.self_attn.q_proj.weight'"},
        {bent_zeros, "o_proj.weight_zero_point' has a type or shape that does not fit"},
        {modelopt_awq, "quantization_config has quant_algo 'W4A8_AWQ', which is not supported"},
        {nvfp4_bent, "o_proj.weight_scale' has a shape that does not fit"},
        {nvfp4_wide, "o_proj.weight_scale' has another type than is expected"},
        {nvfp4_zeros, "o_proj.weight' has zeros, which nothing here knows,"},
        {nvfp4_nothing, "o_proj.weight_scale_2' has no number that scales could be multiplied"},
        {hf_quant_bent, "hf_quant_config.json must hold an object `quantization`"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        make_begin(&m, "LlamaForCausalLM");
        cases[i].spoil(&m);
        make_write(&m);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu: %s", i, f.msg);
        make_done(&m);
    }
}

/* What the graph says of a matrix of a layer, of its output layer and embedding. */
static enum ek_dtype dtype_of(const struct model *m, const char *name)
{
    uint32_t i = 0;
    while (i < m->graph.weight_count && strcmp(m->graph.weights[i].name, name) != 0)
        i++;
    assert_in_range(i, 0, m->graph.weight_count - 1);
    return m->graph.weights[i].dtype;
}

static void test_choice(void **state)
{
    (void)state;
    static const struct {
        void (*is)(struct make *m);
        const char *asked;
        bool wide_groups;
        enum ek_dtype dtype; /* of o_proj */
        uint32_t kept, unpacked;
        const char *note, *refused;
    } cases[] = {
        {NULL, NULL, false, EK_BF16, 0, 0, "", NULL},
        {NULL, "auto", true, EK_BF16, 0, 0, "", NULL},
        {NULL, "int8", false, EK_I8, 9, 0, "int8, 9 matrices", NULL},
        {NULL, "int4", false, EK_I4, 9, 0, "int4, 9 matrices", NULL},
        {NULL, "fp8", false, EK_F8_E4M3, 9, 0, "fp8, 9 matrices", NULL},
        {NULL, "int4", true, EK_I4, 9, 0, "int4, 9 matrices", NULL},
        {NULL, "gptq", false, EK_BF16, 0, 0, NULL, "are not quantized with gptq"},
        {NULL, "int5", false, EK_BF16, 0, 0, NULL, "'int5' is not known; int8, int4 and fp8"},
        {awq_is, NULL, false, EK_I4, 1, 0, "awq, 1 of 8 matrices packed", NULL},
        {awq_is, NULL, true, EK_BF16, 0, 1, "awq, 0 of 8 matrices packed", NULL},
        {gptq_is, "gptq_marlin", false, EK_BF16, 0, 1, "gptq, 0 of 8 matrices packed", NULL},
        {gptq_is, "int8", false, EK_BF16, 0, 0, NULL, "quantized with gptq already"},
        {fp8_is, "fp8", false, EK_F8_E4M3, 1, 0, "fp8, 1 of 8 matrices packed", NULL},
        {awq_is, "gptq", false, EK_BF16, 0, 0, NULL, "quantized with awq already"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        char note[MODEL_NOTE_BYTES];
        const struct model_choice choice = {.quantization = cases[i].asked,
                                            .wide_groups = cases[i].wide_groups};
        make_begin(&m, "LlamaForCausalLM");
        if (cases[i].is)
            cases[i].is(&m);
        make_write(&m);
        int r = model_open_as(m.dir, &choice, &model, &f);
        make_done(&m);
        if (cases[i].refused) {
            assert_int_equal(r, -EBADMSG);
            if (!strstr(f.msg, cases[i].refused))
                fail_msg("case %zu: %s", i, f.msg);
            continue;
        }
        if (r < 0)
            fail_msg("case %zu: %s", i, f.msg);
        assert_int_equal(dtype_of(model, O "weight"), cases[i].dtype);
        assert_int_equal(dtype_of(model, "model.embed_tokens.weight"), EK_BF16);
        bool on_load = model->weights.on_load; /* the output layer takes at least 8 bits */
        enum ek_dtype head = cases[i].dtype == EK_I4 ? EK_I8 : cases[i].dtype;
        assert_int_equal(dtype_of(model, "lm_head.weight"), on_load ? head : EK_BF16);
        assert_int_equal(model->weights.kept, cases[i].kept);
        assert_int_equal(model->weights.unpacked, cases[i].unpacked);
        model_weights_note(model, false, note);
        assert_string_equal(note, cases[i].note);
        model_free(model);
    }
}

/* What compressed-tensors says of a group's inputs. */
static void inputs(struct make *m, const char *group, const char *type, const char *strategy,
                   bool dynamic)
{
    json_t *o = json_object_get(m->config, "quantization_config");
    json_t *groups = json_object_get(o, "config_groups");

    if (!groups) {
        groups = json_object();
        json_object_set_new(o, "config_groups", groups);
    }
    json_object_set_new(groups, group,
                        json_pack("{s:{s:i, s:s, s:s, s:b}}", "input_activations", "num_bits", 8,
                                  "type", type, "strategy", strategy, "dynamic", (int)dynamic));
}
static void a8_token(struct make *m)
{
    int8_plain(m);
    inputs(m, "group_0", "int", "token", true);
}
static void a8_offset(struct make *m)
{
    a8_token(m);
    make_typed(m, O "weight_zero_point", "I8", 8, 1);
}
static void a8_twice(struct make *m)
{
    a8_token(m);
    inputs(m, "group_1", "int", "token", true);
}
static void a8_mixed(struct make *m)
{
    a8_token(m);
    inputs(m, "group_1", "int", "tensor", false);
}
static void a8_tensor(struct make *m)
{
    int8_plain(m);
    inputs(m, "group_0", "int", "tensor", false);
    make_typed(m, O "input_scale", "BF16", 1, 0);
}
static void a8_no_scale(struct make *m)
{
    a8_tensor(m);
    json_object_del(m->tensors, O "input_scale");
}
static void a8_scales(struct make *m)
{
    a8_tensor(m);
    make_typed(m, O "input_scale", "F32", 2, 0);
}
static void a8_group(struct make *m)
{
    int8_plain(m);
    inputs(m, "group_0", "int", "group", true);
}
static void a8_tensor_now(struct make *m)
{
    int8_plain(m);
    inputs(m, "group_0", "int", "tensor", true);
}
static void a8_zeros(struct make *m)
{
    a8_token(m);
    json_t *g = json_object_get(json_object_get(m->config, "quantization_config"), "config_groups");
    json_object_set_new(json_object_get(json_object_get(g, "group_0"), "input_activations"),
                        "symmetric", json_false());
}
static void a8_float(struct make *m)
{
    fp8_is(m);
    quantized(m, "compressed-tensors");
    inputs(m, "group_0", "float", "token", true);
}
static void a8_float_tensor(struct make *m)
{
    fp8_is(m);
    quantized(m, "compressed-tensors");
    inputs(m, "group_0", "float", "tensor", false);
}
static void a8_float_group(struct make *m)
{
    a8_float(m);
    json_t *g = json_object_get(json_object_get(m->config, "quantization_config"), "config_groups");
    json_t *in = json_object_get(json_object_get(g, "group_0"), "input_activations");
    json_object_set_new(in, "strategy", json_string("group"));
    json_object_set_new(in, "group_size", json_integer(128));
}
static void a8_float_groups_of_64(struct make *m)
{
    a8_float_group(m);
    json_t *g = json_object_get(json_object_get(m->config, "quantization_config"), "config_groups");
    json_object_set_new(json_object_get(json_object_get(g, "group_0"), "input_activations"),
                        "group_size", json_integer(64));
}
static void fp8_static(struct make *m)
{
    fp8_is(m);
    quant_says(m, "activation_scheme", json_string("static"));
}
static void fp8_other(struct make *m)
{
    fp8_is(m);
    quant_says(m, "activation_scheme", json_string("weekly"));
}
static void fp8_blocks(struct make *m)
{
    fp8_is(m);
    quant_says(m, "weight_block_size", json_pack("[i, i]", 128, 128));
}
static void fp8_blocks_static(struct make *m)
{
    fp8_blocks(m);
    quant_says(m, "activation_scheme", json_string("static"));
}
static void fp8_small_blocks(struct make *m)
{
    fp8_is(m);
    quant_says(m, "weight_block_size", json_pack("[i, i]", 4, 4));
    make_typed(m, O "weight_scale", "F32", 2, 2);
}
static void round_fp8(struct make *m) /* by AutoRound: weights alone */
{
    fp8_is(m);
    quantized(m, "auto-round");
    quant_says(m, "packing_format", json_string("auto_round:fp8"));
    quant_says(m, "bits", json_integer(8));
}
static void round_fp8_16(struct make *m)
{
    round_fp8(m);
    quant_says(m, "act_bits", json_integer(16));
}
static void round_fp8_token(struct make *m)
{
    round_fp8(m);
    quant_says(m, "act_bits", json_integer(8));
}
static void round_fp8_static(struct make *m)
{
    round_fp8_token(m);
    quant_says(m, "act_dynamic", json_false());
}
static void fbgemm_is(struct make *m)
{
    fp8_is(m);
    quantized(m, "fbgemm_fp8");
    quant_says(m, "activation_scale_ub", json_real(1200.0));
    make_typed(m, O "weight_scale", "F32", 8, 1);
}
static void a8_int4(struct make *m)
{
    packed_is(m);
    inputs(m, "group_0", "int", "token", true);
}

/* All numbers of the model's file become of the bytes 0x3c: as float32 and bfloat16 0.0115. */
static void fill_numbers(const struct make *m)
{
    char path[128];
    uint64_t header;

    (void)snprintf(path, sizeof(path), "%s/model.safetensors", m->dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(&header, sizeof(header), 1, f), 1);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long left = ftell(f) - (long)header - 8;
    assert_int_equal(fseek(f, (long)header + 8, SEEK_SET), 0);
    for (; left > 0; left--)
        assert_int_equal(fputc(0x3c, f), 0x3c);
    assert_int_equal(fclose(f), 0);
}

/* Which checkpoints were made for inputs that are rounded too, and with what scales. */
static void test_inputs(void **state)
{
    (void)state;
    static const struct {
        void (*is)(struct make *m);
        bool filled, rounds, scaled;
    } cases[] = {
        {int8_is, true, false, false},
        {a8_token, true, true, false},
        {a8_twice, true, true, false},
        {a8_mixed, true, false, false},
        {a8_tensor, true, true, true},
        {a8_tensor, false, false, false}, /* a scale of 0 */
        {a8_no_scale, true, false, false},
        {a8_scales, true, false, false},
        {a8_group, true, false, false},
        {a8_tensor_now, true, false, false},
        {a8_zeros, true, false, false},
        {a8_float, true, true, false},
        {a8_int4, true, false, false},
        {a8_offset, true, false, false},
        {a8_offset, false, true, false}, /* zeros of 0 */
        {a8_float_tensor, true, true, true},
        {a8_float_group, true, true, false},
        {a8_float_groups_of_64, true, false, false},
        {fp8_is, true, true, false},
        {fp8_static, true, true, true},
        {fp8_static, false, false, false}, /* a scale of 0 */
        {fp8_other, true, false, false},
        {fp8_blocks, true, true, false},
        {fp8_blocks_static, true, false, false},
        {fp8_small_blocks, true, false, false},
        {fbgemm_is, true, true, false},
        {round_fp8, true, false, false},
        {round_fp8_16, true, false, false},
        {round_fp8_token, true, true, false},
        {round_fp8_static, true, true, true},
        {modelopt_is, true, true, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        make_begin(&m, "LlamaForCausalLM");
        cases[i].is(&m);
        make_write(&m);
        if (cases[i].filled)
            fill_numbers(&m);
        if (model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f) < 0)
            fail_msg("case %zu: %s", i, f.msg);
        const struct ek_weight *w = model->graph.weights;
        while (strcmp(w->name, O "weight") != 0)
            w++;
        assert_int_equal(model->weights.rounding, cases[i].rounds);
        if (w->rounds_input != cases[i].rounds)
            fail_msg("case %zu: inputs are %srounded", i, w->rounds_input ? "" : "not ");
        assert_true(cases[i].scaled ? fabsf(w->input_scale - 0.0115f) < 1e-3f
                                    : w->input_scale == 0.0f);
        assert_true(w->input_most == (cases[i].is == fbgemm_is ? 1200.0f : 0.0f));
        char note[MODEL_NOTE_BYTES], says[64];
        model_weights_note(model, true, note);
        (void)snprintf(says, sizeof(says), "on CUDA %s in 1 products, as the files say",
                       w->dtype == EK_F8_E4M3 ? "fp8" : "int8");
        assert_int_equal(strstr(note, says) != NULL, cases[i].rounds);
        model_free(model);
        make_done(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantized),
                                       cmocka_unit_test(test_choice), cmocka_unit_test(test_inputs),
                                       cmocka_unit_test(test_bad_quantized)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

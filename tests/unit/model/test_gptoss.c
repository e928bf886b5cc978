/*
 * gpt-oss: in which form its experts are kept, where gate, up and biases lie in their tensors, and
 * files that do not fit. That the numbers come out right is shown by test_goldens.c.
 */
#include <errno.h>

#include "common/err.h"
#include "kernels/quant.h"
#include "server/model/model.h"
#include "tests/unit/alloc.h"
#include "tests/unit/model/make.h"

#define P "model.layers.0.mlp.experts."

enum { HIDDEN = 8, INNER = 12, EXPERTS = 3, WIDE = 64, WIDE_INNER = 32 };

static void tensor(struct make *m, const char *name, const char *type, json_t *shape)
{
    for (int i = 0; i < 2; i++) {
        char full[128];
        (void)snprintf(full, sizeof(full), "model.layers.%d.%s", i, name);
        assert_int_equal(json_object_set(m->tensors, full, shape), 0);
        assert_int_equal(json_object_set_new(m->types, full, json_string(type)), 0);
    }
    json_decref(shape);
}

static void set(struct make *m, const char *key, json_t *value)
{
    assert_int_equal(json_object_set_new(m->config, key, value), 0);
}

static void drop(struct make *m, const char *name)
{
    for (int i = 0; i < 2; i++) {
        char full[128];
        (void)snprintf(full, sizeof(full), "model.layers.%d.%s", i, name);
        (void)json_object_del(m->tensors, full);
    }
}

/* What both have; `h` and `n` elements wide outside and inside. */
static void begin(struct make *m, int h, int n)
{
    make_begin(m, "GptOssForCausalLM");
    set(m, "hidden_size", json_integer(h));
    set(m, "intermediate_size", json_integer(n));
    set(m, "num_local_experts", json_integer(EXPERTS));
    set(m, "num_experts_per_tok", json_integer(2));
    set(m, "sliding_window", json_integer(7));
    set(m, "rope_scaling", json_pack("{s:s}", "rope_type", "default"));
    make_tensor(m, "model.embed_tokens.weight", 10, (uint32_t)h);
    make_tensor(m, "lm_head.weight", 10, (uint32_t)h);
    make_tensor(m, "model.norm.weight", (uint32_t)h, 0);
    make_layers(m, "input_layernorm.weight", (uint32_t)h, 0);
    make_layers(m, "post_attention_layernorm.weight", (uint32_t)h, 0);
    static const char *const heads[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "self_attn.%s_proj.weight", heads[i]);
        make_layers(m, name, i == 0 ? 8 : 4, (uint32_t)h);
        (void)snprintf(name, sizeof(name), "self_attn.%s_proj.bias", heads[i]);
        make_layers(m, name, i == 0 ? 8 : 4, 0);
    }
    make_layers(m, "self_attn.o_proj.weight", (uint32_t)h, 8);
    make_layers(m, "self_attn.o_proj.bias", (uint32_t)h, 0);
    make_layers(m, "self_attn.sinks", 2, 0);
    make_layers(m, "mlp.router.weight", EXPERTS, (uint32_t)h);
    make_layers(m, "mlp.router.bias", EXPERTS, 0);
    drop(m, "mlp.gate_proj.weight");
    drop(m, "mlp.up_proj.weight");
    drop(m, "mlp.down_proj.weight");
    make_layers(m, "mlp.experts.gate_up_proj_bias", EXPERTS, 2 * (uint32_t)n);
    make_layers(m, "mlp.experts.down_proj_bias", EXPERTS, (uint32_t)h);
}

static void begin_plain(struct make *m)
{
    begin(m, HIDDEN, INNER);
    tensor(m, "mlp.experts.gate_up_proj", "BF16",
           json_pack("[i, i, i]", EXPERTS, HIDDEN, 2 * INNER));
    tensor(m, "mlp.experts.down_proj", "BF16", json_pack("[i, i, i]", EXPERTS, INNER, HIDDEN));
}

static void begin_blocks(struct make *m)
{
    begin(m, WIDE, WIDE_INNER);
    set(m, "quantization_config", json_pack("{s:s}", "quant_method", "mxfp4"));
    tensor(m, "mlp.experts.gate_up_proj_blocks", "U8",
           json_pack("[i, i, i, i]", EXPERTS, 2 * WIDE_INNER, WIDE / 32, 16));
    tensor(m, "mlp.experts.gate_up_proj_scales", "U8",
           json_pack("[i, i, i]", EXPERTS, 2 * WIDE_INNER, WIDE / 32));
    tensor(m, "mlp.experts.down_proj_blocks", "U8",
           json_pack("[i, i, i, i]", EXPERTS, WIDE, WIDE_INNER / 32, 16));
    tensor(m, "mlp.experts.down_proj_scales", "U8",
           json_pack("[i, i, i]", EXPERTS, WIDE, WIDE_INNER / 32));
}

static const struct ek_op *first(const struct ek_graph *g, enum ek_op_kind kind, uint32_t skip)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == kind && skip-- == 0)
            return &g->ops[i];
    fail_msg("no operation %d", (int)kind);
    return g->ops;
}

static struct model *open_as(struct make *m, const struct model_choice *choice)
{
    struct model *model = NULL;
    struct ek_fault f = {.msg = ""};

    make_write(m);
    if (model_open_as(m->dir, choice, &model, &f) < 0)
        fail_msg("%s", f.msg);
    return model;
}

static void test_plain(void **state)
{
    struct make m;
    (void)state;

    begin_plain(&m);
    struct model *model = open_as(&m, &(struct model_choice){.dtype = MODEL_DTYPE_AUTO});
    const struct ek_graph *g = &model->graph;
    const struct ek_op *op = first(g, EK_OP_EXPERTS, 0), *a = first(g, EK_OP_ATTENTION, 0);
    const struct ek_weight *gate = &g->weights[op->weight], *up = &g->weights[op->u.experts.up];
    const struct ek_weight *down = &g->weights[op->u.experts.down + 2];

    assert_int_equal(a->u.attention.window, 7); /* every other layer, the first one too */
    assert_int_equal(first(g, EK_OP_ATTENTION, 1)->u.attention.window, 0);
    assert_int_equal(g->weights[a->bias].rows, 2);
    assert_int_equal(g->weights[a->bias].dtype, EK_F32);
    assert_true(op->u.experts.routing.normalise && op->u.experts.act == EK_ACT_SWIGLU_CLAMPED);
    assert_true(gate->rows == INNER && gate->cols == HIDDEN && gate->dtype == EK_BF16);
    assert_true(gate->row_step == 2 && gate->col_step == 2 * INNER);
    assert_int_equal(up->part[0].offset_bytes, gate->part[0].offset_bytes + 2);
    assert_true(down->row_step == 1 && down->col_step == HIDDEN && down->rows == HIDDEN);
    assert_int_equal(down->part[0].offset_bytes,
                     down[-2].part[0].offset_bytes + 2 * 2 * HIDDEN * INNER);
    const struct ek_weight *bias = &g->weights[op->u.experts.up_bias];
    assert_true(bias->rows == EXPERTS && bias->cols == INNER && bias->dtype == EK_F32);
    assert_true(bias->row_step == 2 * INNER && bias->col_step == 2);
    assert_int_equal(bias->part[0].offset_bytes, g->weights[op->bias].part[0].offset_bytes + 2);
    model_free(model);
    model = open_as(&m, &(struct model_choice){.quantization = "int8"});
    assert_int_equal(model->graph.weights[first(&model->graph, EK_OP_EXPERTS, 0)->weight].dtype,
                     EK_I8);
    model_free(model);
    make_done(&m);
}

static void test_blocks(void **state)
{
    struct make m;
    (void)state;

    begin_blocks(&m);
    for (int wide = 0; wide < 2; wide++) {
        struct model *model = open_as(&m, &(struct model_choice){.wide_groups = wide});
        const struct ek_graph *g = &model->graph;
        const struct ek_op *op = first(g, EK_OP_EXPERTS, 1);
        const struct ek_weight *up = &g->weights[op->u.experts.up + 1];
        const struct ek_weight *down = &g->weights[op->u.experts.down];
        const struct ek_quant *q = &g->quants[up->quant], *gate = q - EXPERTS;
        char note[MODEL_NOTE_BYTES];
        assert_true(up->quantized && ek_dtype_packed(up->dtype) && up->group == 32);
        assert_true(wide || up->dtype == EK_F4_E2M1);
        assert_true(down->quantized && down->group == 0); /* one block: a scale for the row */
        assert_true(q->kind == EK_QUANT_MXFP4 && q->row_step == 2);
        assert_true(q->rows == WIDE_INNER && q->cols == WIDE);
        assert_int_equal(q->numbers.offset_bytes, gate->numbers.offset_bytes + WIDE / 2);
        assert_int_equal(q->scales.offset_bytes, gate->scales.offset_bytes + WIDE / 32);
        assert_int_equal(q->numbers.offset_bytes - q[-1].numbers.offset_bytes,
                         2 * WIDE_INNER * WIDE / 2);
        model_weights_note(model, false, note);
        assert_string_equal(note, "mxfp4, 18 of 22 matrices packed");
        model_free(model);
    }
    make_done(&m);
}

static void no_blocks(struct make *m)
{
    drop(m, "mlp.experts.down_proj_blocks");
}
static void no_scales(struct make *m)
{
    drop(m, "mlp.experts.gate_up_proj_scales");
}
static void other_type(struct make *m)
{
    tensor(m, "mlp.experts.down_proj_blocks", "I8",
           json_pack("[i, i, i, i]", EXPERTS, WIDE, WIDE_INNER / 32, 16));
}
static void other_shape(struct make *m)
{
    tensor(m, "mlp.experts.down_proj_scales", "U8", json_pack("[i, i, i]", EXPERTS, 1, WIDE));
}
static void no_sinks(struct make *m)
{
    drop(m, "self_attn.sinks");
}
static void no_biases(struct make *m)
{
    drop(m, "mlp.experts.down_proj_bias");
}
static void odd_blocks(struct make *m)
{
    set(m, "intermediate_size", json_integer(WIDE_INNER + 8));
}
static void unsaid(struct make *m)
{
    (void)json_object_del(m->config, "quantization_config");
}

static void test_refused(void **state)
{
    static const struct {
        void (*spoil)(struct make *m);
        const char *says;
    } cases[] = {
        {no_blocks, "'" P "down_proj_blocks' is missing"},
        {no_scales, "'" P "gate_up_proj_scales' is missing"},
        {other_type, "'" P "down_proj_blocks' has type I8, but blocks of MXFP4"},
        {other_shape, "'" P "down_proj_scales' has shape [3, 1, 64] but config.json asks for"},
        {no_sinks, "'model.layers.0.self_attn.sinks' is missing"},
        {no_biases, "'" P "down_proj_bias' is missing"},
        {odd_blocks, "has shape"},
        {unsaid, "'" P "gate_up_proj' is missing"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {.msg = ""};
        begin_blocks(&m);
        cases[i].spoil(&m);
        make_write(&m);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu: %s", i, f.msg);
        make_done(&m);
    }
}

static void test_alloc(void **state)
{
    struct make m;
    (void)state;

    begin_blocks(&m);
    make_write(&m);
    for (long n = 1;; n++) {
        struct model *model = NULL;
        alloc_fail_at(n);
        int r = model_open(m.dir, MODEL_DTYPE_AUTO, &model, NULL);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        if (!failed) {
            assert_int_equal(r, 0);
            model_free(model);
            break;
        }
        assert_true(r < 0 && !model);
    }
    make_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_alloc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

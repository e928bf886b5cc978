/*
 * Models with a vector for each position (family_gpt2.c): tensors by the names that the hub's files
 * have, the rows of their tables, and matrices that lie transposed, alone and for ranks.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/shard.h"
#include "server/model/model.h"
#include "tests/unit/model/make.h"

struct vectors {
    const char *name; /* of a matrix without ".weight", or of a norm */
    uint32_t rows, cols, bias;
};

static void tensor_pair(struct make *m, const char *before, const struct vectors *v)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%s%s.weight", before, v->name);
    make_tensor(m, name, v->rows, v->cols);
    (void)snprintf(name, sizeof(name), "%s%s.bias", before, v->name);
    if (v->bias > 0)
        make_tensor(m, name, v->bias, 0);
}

/* GPT-2 as the hub has it: no "transformer.", no output layer, a mask in each layer. */
static void gpt2_begin(struct make *m)
{
    static const struct vectors parts[] = {{"ln_1", 8, 0, 8},          {"ln_2", 8, 0, 8},
                                           {"attn.c_attn", 8, 24, 24}, {"attn.c_proj", 8, 8, 8},
                                           {"mlp.c_fc", 8, 12, 12},    {"mlp.c_proj", 12, 8, 8}};

    make_begin(m, "GPT2LMHeadModel");
    json_object_clear(m->tensors);
    assert_int_equal(json_object_del(m->config, "num_key_value_heads"), 0);
    make_tensor(m, "wte.weight", 10, 8);
    make_tensor(m, "wpe.weight", 64, 8);
    tensor_pair(m, "", &(struct vectors){"ln_f", 8, 0, 8});
    for (int i = 0; i < 2; i++) {
        char before[32], name[64];
        (void)snprintf(before, sizeof(before), "h.%d.", i);
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
            tensor_pair(m, before, &parts[k]);
        (void)snprintf(name, sizeof(name), "h.%d.attn.bias", i);
        assert_int_equal(
            json_object_set_new(m->tensors, name, json_pack("[i, i, i, i]", 1, 1, 64, 64)), 0);
        assert_int_equal(json_object_set_new(m->types, name, json_string("F32")), 0);
    }
}

static struct model *opened(struct make *m)
{
    struct model *model = NULL;
    struct ek_fault f = {.msg = ""};
    make_write(m);
    if (model_open(m->dir, MODEL_DTYPE_AUTO, &model, &f) != 0)
        fail_msg("%s", f.msg);
    return model;
}

static const struct ek_weight *weight_named(const struct ek_graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->weight_count; i++)
        if (strcmp(g->weights[i].name, name) == 0)
            return &g->weights[i];
    fail_msg("no %s", name);
    return NULL;
}

static void test_gpt2(void **state)
{
    struct make m;
    (void)state;
    gpt2_begin(&m);
    struct model *model = opened(&m);
    const struct ek_graph *g = &model->graph;

    assert_false(model->textless);
    assert_true(g->ops[0].kind == EK_OP_EMBED && !g->ops[0].u.embed.by_position);
    assert_true(g->ops[1].kind == EK_OP_EMBED && g->ops[1].u.embed.by_position);
    assert_int_equal(g->weights[g->ops[1].weight].rows, 64);
    assert_int_equal(g->ops[g->op_count - 1].weight, g->ops[0].weight); /* tied */
    const struct ek_weight *w = weight_named(g, "transformer.h.1.attn.c_attn.weight");
    assert_true(w->rows == 24 && w->cols == 8 && w->row_step == 1 && w->col_step == 24);
    assert_int_equal(weight_named(g, "transformer.wte.weight")->row_step, 0);

    /* The second of two ranks: its head of q, k and v, and all positions. */
    struct ek_graph part;
    assert_int_equal(ek_shard(g, 1, 2, &part, NULL), 0);
    w = weight_named(&part, "transformer.h.1.attn.c_attn.weight");
    assert_true(w->rows == 12 && w->parts == 3 && w->col_step == 24);
    assert_true(w->part[0].skip == 4 && w->part[1].skip == 12 && w->part[2].skip == 20);
    w = weight_named(&part, "transformer.h.1.attn.c_proj.weight");
    assert_true(w->rows == 8 && w->cols == 4 && w->first_col == 4);
    assert_int_equal(weight_named(&part, "transformer.wpe.weight")->rows, 64);
    ek_graph_free(&part);
    model_free(model);
    make_done(&m);
}

/* Every position that can be asked for has a row; of a table with fewer nothing is read. */
static void test_rows(void **state)
{
    struct make m;
    struct model *model = NULL;
    struct ek_fault f = {.msg = ""};
    (void)state;
    gpt2_begin(&m);
    make_tensor(&m, "wpe.weight", 63, 8);
    make_write(&m);
    assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "has shape [63, 8] but config.json asks for [64, 8]"));
    make_tensor(&m, "wpe.weight", 64, 8);
    model = opened(&m);
    model->graph.max_position = 65;
    assert_int_equal(ek_graph_check(&model->graph, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "table of positions"));
    model_free(model);
    make_done(&m);
}

/* OPT's first two rows are those of no position. */
static void test_opt(void **state)
{
    static const struct vectors parts[] = {{"self_attn.q_proj", 8, 8, 8},
                                           {"self_attn.k_proj", 8, 8, 8},
                                           {"self_attn.v_proj", 8, 8, 8},
                                           {"self_attn.out_proj", 8, 8, 8},
                                           {"self_attn_layer_norm", 8, 0, 8},
                                           {"final_layer_norm", 8, 0, 8},
                                           {"fc1", 12, 8, 12},
                                           {"fc2", 8, 12, 8}};
    struct make m;
    (void)state;
    make_begin(&m, "OPTForCausalLM");
    json_object_clear(m.tensors);
    assert_int_equal(json_object_del(m.config, "num_key_value_heads"), 0);
    make_tensor(&m, "decoder.embed_tokens.weight", 10, 8);
    make_tensor(&m, "decoder.embed_positions.weight", 66, 8);
    tensor_pair(&m, "decoder.", &(struct vectors){"final_layer_norm", 8, 0, 8});
    for (int i = 0; i < 2; i++) {
        char before[32];
        (void)snprintf(before, sizeof(before), "decoder.layers.%d.", i);
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
            tensor_pair(&m, before, &parts[k]);
    }
    struct model *model = opened(&m);
    const struct ek_weight *w = &model->graph.weights[model->graph.ops[1].weight];
    assert_false(model->textless);
    assert_true(w->rows == 64 && w->part[0].skip == 2 && w->part[0].rows == 64);
    model_free(model);
    make_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_opt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Opening model directories: the embedded model as it is, then copies of it with one thing wrong,
 * each of which must be refused with a sentence that names file, place and remedy.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"
#include "server/model/model.h"
#include "tests/unit/alloc.h"
#include "tests/unit/model/make.h"

#define TINY "models/evenkeel-tiny"

/* ---- the embedded model ---- */

static void test_tiny(void **state)
{
    (void)state;
    struct ek_fault f = {0};
    struct model *m = NULL;
    assert_int_equal(model_open(TINY, MODEL_DTYPE_AUTO, &m, &f), 0);
    assert_string_equal(m->dir, TINY);
    assert_string_equal(m->family, "llama");
    assert_int_equal(m->max_model_len, 2048);
    assert_int_equal(m->eos_count, 2);
    assert_int_equal(m->eos[0], 2);
    assert_int_equal(m->eos[1], 0);
    assert_int_equal(m->bos, -1);
    assert_true(m->defaults.sampling.temperature == 0.7f);
    assert_true(m->defaults.sampling.top_p == 0.9f);
    assert_true(m->defaults.sampling.min_p == 0);
    assert_int_equal(m->defaults.sampling.top_k, 0);
    assert_int_equal(m->files.count, 1);
    assert_int_equal(m->weight_file_bytes, 10973600);
    /* The file is the header and two bytes for each element, each used once. */
    assert_int_equal(m->parameters, (10973600 - 8 - 6040) / 2);

    const struct ek_graph *g = &m->graph;
    assert_int_equal(g->dtype, EK_BF16);
    assert_int_equal(g->layers, 6);
    assert_int_equal(g->kv_heads, 2);
    assert_int_equal(g->head_dim, 64);
    assert_int_equal(g->hidden, 256);
    assert_int_equal(g->vocab, 4128);
    assert_int_equal(g->max_position, 2048);
    assert_int_equal(g->rope_count, 1);
    assert_int_equal(g->ropes[0].count, 32);
    assert_true(g->ropes[0].inv_freq[0] == 1.0f && g->ropes[0].factor == 1.0f);
    /* 10000^(-2/64) */
    assert_true(fabsf(g->ropes[0].inv_freq[1] - 0.74989421f) < 1e-7f);
    model_free(m);
}

static void test_tiny_ops(void **state)
{
    (void)state;
    static const enum ek_op_kind layer[] = {EK_OP_NORM,      EK_OP_LINEAR, EK_OP_ROPE,   EK_OP_ROPE,
                                            EK_OP_ATTENTION, EK_OP_LINEAR, EK_OP_ADD,    EK_OP_NORM,
                                            EK_OP_LINEAR,    EK_OP_GLU,    EK_OP_LINEAR, EK_OP_ADD};
    struct model *m = NULL;
    assert_int_equal(model_open(TINY, MODEL_DTYPE_F32, &m, NULL), 0);
    const struct ek_graph *g = &m->graph;
    assert_int_equal(g->dtype, EK_F32);
    assert_int_equal(g->op_count, 1 + 6 * 12 + 3);
    assert_int_equal(g->ops[0].kind, EK_OP_EMBED);
    for (uint32_t i = 0; i < 72; i++)
        assert_int_equal(g->ops[1 + i].kind, layer[i % 12]);
    assert_int_equal(g->ops[73].kind, EK_OP_PICK);
    assert_int_equal(g->ops[74].kind, EK_OP_NORM);
    assert_int_equal(g->ops[75].kind, EK_OP_LOGITS);
    assert_int_equal(g->ops[75].weight, g->ops[0].weight); /* tied */

    const struct ek_op *attention = &g->ops[1 + 12 * 5 + 4];
    assert_int_equal(attention->layer, 5);
    assert_int_equal(attention->u.attention.q_heads, 4);
    assert_int_equal(attention->u.attention.window, 0);
    assert_true(attention->u.attention.scale == 0.125f);
    const struct ek_op *rope_k = &g->ops[1 + 3];
    assert_int_equal(rope_k->u.rope.first_col, 256);
    assert_int_equal(rope_k->u.rope.heads, 2);
    assert_int_equal(g->value_width[rope_k->dst], 512);
    model_free(m);
}

static void test_tiny_weights(void **state)
{
    (void)state;
    struct model *m = NULL;
    assert_int_equal(model_open(TINY, MODEL_DTYPE_AUTO, &m, NULL), 0);
    const struct ek_graph *g = &m->graph;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->weight_count; i++) {
        const struct ek_weight *w = &g->weights[i];
        uint32_t rows = 0;
        for (uint32_t p = 0; p < w->parts; p++) {
            uint64_t size = (uint64_t)w->part[p].rows * w->cols * ek_dtype_bits(w->source) / 8;
            assert_true(w->part[p].file < m->files.count);
            assert_true(w->part[p].offset_bytes >= 8 + 6040);
            assert_true(w->part[p].offset_bytes + size <= m->files.file[0].size_bytes);
            rows += w->part[p].rows;
            bytes += size;
        }
        assert_int_equal(rows, w->rows);
        assert_int_equal(w->source, EK_BF16);
        assert_int_equal(w->dtype, w->rows == 1 ? EK_F32 : EK_BF16);
    }
    assert_int_equal(bytes + 8 + 6040, m->weight_file_bytes);
    const struct ek_weight *qkv = &g->weights[g->ops[2].weight];
    assert_string_equal(qkv->name, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(qkv->rows, 512);
    assert_int_equal(qkv->cols, 256);
    assert_int_equal(qkv->parts, 3);
    assert_int_equal(qkv->part[0].offset_bytes, 8 + 6040 + 3392512);
    assert_int_equal(qkv->part[1].offset_bytes, 8 + 6040 + 3195904);
    assert_int_equal(qkv->part[2].rows, 128);

    model_close_files(m);
    assert_int_equal(m->files.count, 0);
    model_close_files(m); /* twice is fine */
    model_free(m);
    model_free(NULL);
}

/* ---- small models of each family ---- */

/* The nth operation of a kind, empty when there is none. */
static struct ek_op op_of(const struct ek_graph *g, enum ek_op_kind kind, uint32_t nth)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == kind && nth-- == 0)
            return g->ops[i];
    fail_msg("there is no operation %u of kind %d", nth, (int)kind);
    return (struct ek_op){.kind = kind};
}

static void open_ok(struct make *m, struct model **ret_model)
{
    struct ek_fault f = {0};
    make_write(m);
    int r = model_open(m->dir, MODEL_DTYPE_AUTO, ret_model, &f);
    if (r < 0)
        fail_msg("%d: %s", r, f.msg);
    assert_int_equal(ek_graph_check(&(*ret_model)->graph, &f), 0);
}

static void test_llama_biases(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    make_begin(&m, "LlamaForCausalLM");
    json_object_set_new(m.config, "attention_bias", json_true());
    json_object_set_new(m.config, "mlp_bias", json_true());
    make_layers(&m, "self_attn.q_proj.bias", 8, 0);
    make_layers(&m, "self_attn.k_proj.bias", 4, 0);
    make_layers(&m, "self_attn.v_proj.bias", 4, 0);
    make_layers(&m, "self_attn.o_proj.bias", 8, 0);
    make_layers(&m, "mlp.gate_proj.bias", 12, 0);
    make_layers(&m, "mlp.up_proj.bias", 12, 0);
    make_layers(&m, "mlp.down_proj.bias", 8, 0);
    make_layers(&m, "self_attn.rotary_emb.inv_freq", 2, 0); /* harmless */
    open_ok(&m, &model);
    const struct ek_graph *g = &model->graph;
    assert_int_equal(g->dtype, EK_BF16);
    const struct ek_weight *bias = &g->weights[op_of(g, EK_OP_LINEAR, 0).bias];
    assert_int_equal(bias->rows, 16);
    assert_int_equal(bias->cols, 1);
    assert_int_equal(bias->parts, 3);
    assert_int_equal(bias->dtype, EK_F32);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_not_equal(op_of(g, EK_OP_LINEAR, i).bias, EK_NO_WEIGHT);
    /* Not tied: the last weight is its own. */
    assert_int_not_equal(op_of(g, EK_OP_LOGITS, 0).weight, g->ops[0].weight);
    assert_string_equal(g->weights[op_of(g, EK_OP_LOGITS, 0).weight].name, "lm_head.weight");
    assert_true(model->defaults.sampling.temperature == 1); /* no generation_config.json */
    model_free(model);
    make_done(&m);
}

static void test_mistral_window(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    make_begin(&m, "MistralForCausalLM");
    json_object_set_new(m.config, "sliding_window", json_integer(16));
    json_object_set_new(m.config, "tie_word_embeddings", json_true()); /* lm_head: harmless */
    open_ok(&m, &model);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(op_of(&model->graph, EK_OP_ATTENTION, i).u.attention.window, 16);
    model_free(model);
    make_done(&m);
}

static void test_qwen2(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    make_begin(&m, "Qwen2ForCausalLM");
    json_object_set_new(m.config, "sliding_window", json_integer(16));
    json_object_set_new(m.config, "use_sliding_window", json_true());
    json_object_set_new(m.config, "max_window_layers", json_integer(1));
    make_layers(&m, "self_attn.q_proj.bias", 8, 0);
    make_layers(&m, "self_attn.k_proj.bias", 4, 0);
    make_layers(&m, "self_attn.v_proj.bias", 4, 0);
    open_ok(&m, &model);
    const struct ek_graph *g = &model->graph;
    assert_int_equal(op_of(g, EK_OP_ATTENTION, 0).u.attention.window, 0);
    assert_int_equal(op_of(g, EK_OP_ATTENTION, 1).u.attention.window, 16);
    assert_int_not_equal(op_of(g, EK_OP_LINEAR, 0).bias, EK_NO_WEIGHT);
    assert_int_equal(op_of(g, EK_OP_LINEAR, 1).bias, EK_NO_WEIGHT);
    model_free(model);
    make_done(&m);
}

static void test_qwen3(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    make_begin(&m, "Qwen3ForCausalLM");
    json_object_set_new(m.config, "sliding_window", json_integer(16)); /* not in use */
    make_layers(&m, "self_attn.q_norm.weight", 4, 0);
    make_layers(&m, "self_attn.k_norm.weight", 4, 0);
    open_ok(&m, &model);
    struct ek_op k = op_of(&model->graph, EK_OP_NORM, 2);
    assert_int_equal(k.u.norm.group, 4);
    assert_int_equal(k.u.norm.first, 8);
    assert_int_equal(k.u.norm.heads, 1);
    assert_int_equal(op_of(&model->graph, EK_OP_ATTENTION, 1).u.attention.window, 0);
    model_free(model);
    make_done(&m);
}

/* Sampling defaults come from the model's file, or from another directory's. */
static void test_generation(void **state)
{
    (void)state;
    struct make m, other;
    struct model *model = NULL;
    struct ek_fault f = {.msg = ""};
    struct model_choice choice = {.dtype = MODEL_DTYPE_AUTO};

    make_begin(&m, "LlamaForCausalLM");
    make_begin(&other, "LlamaForCausalLM");
    make_write(&m);
    make_text(&m, "generation_config.json", "{\"temperature\": 0.5, \"eos_token_id\": [3, 4]}");
    make_text(&other, "generation_config.json", "{\"temperature\": 0.25, \"top_k\": 7}");
    assert_int_equal(model_open_as(m.dir, &choice, &model, &f), 0);
    assert_true(model->defaults.sampling.temperature == 0.5f &&
                model->defaults.sampling.top_k == 0);
    assert_int_equal(model->eos[0], 3);
    model_free(model);
    choice.generation = other.dir;
    assert_int_equal(model_open_as(m.dir, &choice, &model, &f), 0);
    assert_true(model->defaults.sampling.temperature == 0.25f &&
                model->defaults.sampling.top_k == 7);
    model_free(model);
    choice.generation = "/nonexistent";
    assert_int_equal(model_open_as(m.dir, &choice, &model, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "generation_config.json: there is no such file in /nonexistent"));
    make_done(&other);
    make_done(&m);
}

/* ---- shards ---- */

static void write_index(struct make *m, const char *instead_of_second)
{
    json_t *map = json_object();
    const char *name;
    json_t *shape;
    size_t i = 0;
    json_object_foreach(m->tensors, name, shape)
    {
        json_object_set_new(map, name, json_string(i % 2 ? instead_of_second : "a.safetensors"));
        i++;
    }
    json_t *root = json_pack("{s:o}", "weight_map", map);
    char *text = json_dumps(root, 0);
    make_text(m, "model.safetensors.index.json", text);
    free(text);
    json_decref(root);
}

static void test_shards(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    make_begin(&m, "LlamaForCausalLM");
    make_config(&m);
    make_shard(&m, "a.safetensors", 0, 2);
    make_shard(&m, "b.safetensors", 1, 2);
    write_index(&m, "b.safetensors");
    assert_int_equal(model_open(m.dir, MODEL_DTYPE_F16, &model, NULL), 0);
    assert_int_equal(model->files.count, 2);
    assert_int_equal(model->graph.dtype, EK_F16);
    uint32_t second = 0;
    for (uint32_t i = 0; i < model->graph.weight_count; i++)
        for (uint32_t p = 0; p < model->graph.weights[i].parts; p++)
            second += model->graph.weights[i].part[p].file == 1;
    assert_int_equal(second, json_object_size(m.tensors) / 2);
    model_free(model);
    make_done(&m);
}

static void test_bad_index(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"../b.safetensors", "only plain names of files in the model directory are allowed"},
        {"/etc/passwd", "only plain names"},
        {"sub/b.safetensors", "only plain names"},
        {"..", "only plain names"},
        {".hidden", "only plain names"},
        {"", "only plain names"},
        {"b\\c", "only plain names"},
        {"b\nc", "only plain names"},
        {"missing.safetensors", "missing.safetensors: there is no such file"},
        {"a.safetensors", "is in a.safetensors, but it is not there"},
        {"c.safetensors",
         "c.safetensors: tensor 'lm_head.weight' is in a.safetensors too; keep one"},
    };
    struct make m;
    make_begin(&m, "LlamaForCausalLM");
    make_config(&m);
    make_shard(&m, "a.safetensors", 0, 2);
    make_shard(&m, "b.safetensors", 1, 2);
    make_shard(&m, "c.safetensors", 0, 1); /* all of them */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *model = NULL;
        struct ek_fault f = {0};
        write_index(&m, cases[i].name);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        assert_null(model);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("'%s': %s", cases[i].name, f.msg);
    }
    static const char *const texts[] = {
        "{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": 3}", "{\"weight_map\": {\"x\": 3}}",
        "{",  ""};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct model *model = NULL;
        struct ek_fault f = {0};
        make_text(&m, "model.safetensors.index.json", texts[i]);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        assert_non_null(strstr(f.msg, "model.safetensors.index.json"));
    }
    make_done(&m);
}

/* ---- what is wrong with a directory ---- */

static void drop_norm(struct make *m)
{
    json_object_del(m->tensors, "model.norm.weight");
}
static void drop_k(struct make *m)
{
    json_object_del(m->tensors, "model.layers.1.self_attn.k_proj.weight");
}
static void bend_up(struct make *m)
{
    make_tensor(m, "model.layers.1.mlp.up_proj.weight", 8, 12);
}
static void bend_norm(struct make *m)
{
    make_tensor(m, "model.norm.weight", 8, 1);
}
static void add_layer(struct make *m)
{
    make_tensor(m, "model.layers.2.input_layernorm.weight", 8, 0);
}
static void add_bias(struct make *m)
{
    make_layers(m, "self_attn.q_proj.bias", 8, 0);
}
static void mamba(struct make *m)
{
    json_object_set_new(m->config, "architectures", json_pack("[s]", "MambaForCausalLM"));
}
static void more_layers(struct make *m)
{
    json_object_set_new(m->config, "num_hidden_layers", json_integer(3));
}

static void test_bad_models(void **state)
{
    (void)state;
    static const struct {
        void (*spoil)(struct make *m);
        const char *says;
    } cases[] = {
        {drop_norm, "model.safetensors: tensor 'model.norm.weight' is missing; download"},
        {drop_k, "tensor 'model.layers.1.self_attn.k_proj.weight' is missing"},
        {bend_up, "tensor 'model.layers.1.mlp.up_proj.weight' has shape [8, 12] but config.json "
                  "asks for [12, 8]; use"},
        {bend_norm, "tensor 'model.norm.weight' has shape [8, 1] but config.json asks for [8]"},
        {add_layer, "tensor 'model.layers.2.input_layernorm.weight' (one of 1) has no place"},
        {add_bias, "tensor 'model.layers.0.self_attn.q_proj.bias' (one of 2) has no place"},
        {mamba, "config.json: architecture 'MambaForCausalLM' is not supported; take another "
                "model, of which the README lists the classes"},
        {more_layers, "tensor 'model.layers.2.input_layernorm.weight' is missing"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        make_begin(&m, "LlamaForCausalLM");
        cases[i].spoil(&m);
        make_write(&m);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        assert_null(model);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu: %s", i, f.msg);
        make_done(&m);
    }
}

static void test_missing_files(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    struct ek_fault f = {0};
    assert_int_equal(model_open("/nonexistent/x", MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_string_equal(f.msg, "config.json: there is no such file in /nonexistent/x; download the "
                               "model again or name another directory");
    assert_string_equal(f.field, "config.json");
    assert_int_equal(model_open("", MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    char longest[5000];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(model_open(longest, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "must have 1 to 4095 bytes"));

    make_begin(&m, "LlamaForCausalLM");
    make_config(&m);
    assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_non_null(
        strstr(f.msg, "model.safetensors: neither it nor model.safetensors.index.json"));
    make_text(&m, "model.safetensors", "");
    assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "model.safetensors: has 0 bytes; download it again"));
    make_shard(&m, "model.safetensors", 0, 1);
    make_text(&m, "generation_config.json", "{\"temperature\": NaN}");
    assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
    assert_non_null(strstr(f.msg,
                           "generation_config.json: temperature must be a number from 0 to 100, "
                           "but is NaN; correct it"));
    assert_null(model);
    make_done(&m);
}

/* Every length of a valid file but the whole is refused as truncated or damaged. */
static void test_truncated(void **state)
{
    (void)state;
    struct make m;
    char path[128];
    make_begin(&m, "LlamaForCausalLM");
    make_write(&m);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", m.dir);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (off_t size = st.st_size - 1; size >= 0; size -= size > 3000 ? 37 : 5) {
        struct model *model = NULL;
        struct ek_fault f = {0};
        assert_int_equal(truncate(path, size), 0);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        assert_non_null(strstr(f.msg, "download it again"));
    }
    make_done(&m);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    struct make m;
    make_begin(&m, "LlamaForCausalLM");
    make_config(&m);
    make_text(&m, "generation_config.json", "{\"eos_token_id\": [1, 2], \"top_k\": 5}");
    make_shard(&m, "a.safetensors", 0, 2);
    make_shard(&m, "b.safetensors", 1, 2);
    write_index(&m, "b.safetensors");
    /* Not inside jansson, which calls some of its own failures syntax errors (json.c). */
    for (long n = 1;; n++) {
        struct model *model = NULL;
        struct ek_fault f = {0};
        alloc_fail_at(n);
        int r = model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            assert_true(n > 10);
            assert_int_equal(model->eos_count, 2);
            model_free(model);
            break;
        }
        if (r != -ENOMEM)
            fail_msg("allocation %ld: %d %s", n, r, f.msg);
        assert_null(model);
    }
    make_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),           cmocka_unit_test(test_tiny_ops),
        cmocka_unit_test(test_tiny_weights),   cmocka_unit_test(test_llama_biases),
        cmocka_unit_test(test_mistral_window), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),          cmocka_unit_test(test_generation),
        cmocka_unit_test(test_shards),         cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_bad_models),     cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_truncated),      cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
    assert_true(fabs(m->defaults.temperature - 0.7) < 1e-12);
    assert_true(fabs(m->defaults.top_p - 0.9) < 1e-12);
    assert_true(isnan(m->defaults.min_p));
    assert_int_equal(m->defaults.top_k, -1);
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
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_tiny_ops),
        cmocka_unit_test(test_tiny_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

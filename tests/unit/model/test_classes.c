/* Classes of a checkpoint and of tokens, names without "model.", and what sentence-transformers
 * says. */
#include <errno.h>
#include <sys/stat.h>

#include "common/err.h"
#include "server/model/model.h"
#include "server/model/sentence.h"
#include "tests/unit/alloc.h"
#include "tests/unit/model/make.h"

static void begin_classes(struct make *m, uint32_t rows)
{
    make_begin(m, "LlamaForCausalLM");
    json_object_set_new(m->config, "architectures",
                        json_pack("[s]", "LlamaForSequenceClassification"));
    json_object_set_new(m->config, "id2label", json_pack("{s:s, s:s}", "0", "low", "1", "high"));
    json_object_del(m->tensors, "lm_head.weight");
    if (rows)
        make_tensor(m, "score.weight", rows, 8);
}

static void test_rows_and_names(void **state)
{
    (void)state;
    struct make m;
    struct model *model = NULL;
    struct ek_fault f = {0};
    begin_classes(&m, 3);
    json_object_set_new(m.config, "problem_type", json_string("regression"));
    make_write(&m);
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_not_equal(r, 0);
        assert_null(model);
    }
    alloc_fail_at(0);
    const struct model_classes *k = &model->classes;
    assert_true(model->textless && !model->embeds && k->rows == 3 && k->width == 8);
    assert_true(k->weight && !k->bias && !k->two_way && k->act == CLASSES_AS_THEY_ARE);
    assert_string_equal(k->label[1], "high");
    assert_null(k->label[2]);
    const int32_t ids[2] = {3, 9};
    assert_int_equal(
        classes_of_tokens(&model->graph, &model->files, ids, 2, true, &model->classes, &f), 0);
    assert_true(k->rows == 2 && k->two_way && !k->label[0] && k->act == CLASSES_BY_COUNT);
    model_free(model);
    make_done(&m);
}

static void test_bad_classes(void **state)
{
    (void)state;
    static const struct {
        uint32_t rows, cols;
        const char *type, *says;
    } cases[] = {{0, 8, NULL, "no file has the tensor score.weight"},
                 {2, 9, NULL, "score.weight must be 1 to 1024 rows of 8 plain numbers"},
                 {1025, 8, NULL, "score.weight must be 1 to 1024 rows"},
                 {2, 8, "I8", "score.weight must be"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        begin_classes(&m, 0);
        if (cases[i].type)
            make_typed(&m, "score.weight", cases[i].type, cases[i].rows, cases[i].cols);
        else if (cases[i].rows)
            make_tensor(&m, "score.weight", cases[i].rows, cases[i].cols);
        make_write(&m);
        assert_int_equal(model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f), -EBADMSG);
        assert_null(model);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu: %s", i, f.msg);
        make_done(&m);
    }
}

/* The text part of a model that sees, which has classes instead of an output layer. */
static void test_text_part(void **state)
{
    (void)state;
    for (int scored = 0; scored < 2; scored++) {
        struct make m;
        struct model *model = NULL;
        struct ek_fault f = {0};
        begin_classes(&m, scored ? 3 : 0);
        json_t *text = m.config;
        json_object_set_new(text, "model_type", json_string("llama"));
        m.config =
            json_pack("{s:[s], s:{}, s:o}", "architectures", "GreatForSequenceClassification",
                      "vision_config", "text_config", text);
        make_tensor(&m, "model.visual.x.weight", 3, 3);
        make_write(&m);
        int r = model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f);
        assert_int_equal(r, scored ? 0 : -EBADMSG);
        if (scored)
            assert_true(model->textless && model->classes.rows == 3);
        else
            assert_non_null(strstr(f.msg, "score.weight"));
        model_free(model);

        /* As a generator its classes are left over. */
        json_object_set_new(m.config, "architectures",
                            json_pack("[s]", "GreatForConditionalGeneration"));
        make_config(&m);
        model = NULL;
        r = model_open(m.dir, MODEL_DTYPE_AUTO, &model, &f);
        assert_int_equal(r, scored ? -EBADMSG : 0);
        model_free(model);
        make_done(&m);
    }
}

static void in_folder(const char *dir, char path[300])
{
    assert_true(snprintf(path, 300, "%s/1_Pooling", dir) < 300);
}

static void test_pooling(void **state)
{
    (void)state;
    static const char modules[] =
        "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"sentence_transformers.models."
        "Transformer\"},{\"idx\":1,\"name\":\"1\",\"path\":\"1_Pooling\",\"type\":"
        "\"sentence_transformers.models.Pooling\"}]";
    static const struct {
        const char *modules, *pooling;
        int r;
        enum sentence_pooling is;
    } cases[] = {{NULL, NULL, 0, SENTENCE_NONE},
                 {"[]", NULL, 0, SENTENCE_NONE},
                 {modules, "{\"pooling_mode_lasttoken\":true}", 0, SENTENCE_LAST},
                 {modules, "{\"pooling_mode\":\"lasttoken\"}", 0, SENTENCE_LAST},
                 {modules, "{\"pooling_mode_mean_tokens\":true}", 0, SENTENCE_OTHER},
                 {modules, NULL, -EBADMSG, SENTENCE_NONE},
                 {"{}", NULL, -EBADMSG, SENTENCE_NONE},
                 {"[{\"type\":\"x.Pooling\",\"path\":\"../up\"}]", NULL, -EBADMSG, SENTENCE_NONE}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct make m, inner;
        struct ek_fault f = {0};
        enum sentence_pooling is = SENTENCE_OTHER;
        char folder[300];
        make_begin(&m, "LlamaForCausalLM");
        make_write(&m);
        in_folder(m.dir, folder);
        if (cases[i].modules)
            make_text(&m, "modules.json", cases[i].modules);
        if (cases[i].pooling) {
            assert_int_equal(mkdir(folder, 0700), 0);
            assert_true(snprintf(inner.dir, sizeof(inner.dir), "%s/1_Pooling", m.dir) <
                        (int)sizeof(inner.dir));
            make_text(&inner, "config.json", cases[i].pooling);
        }
        int r = sentence_read(NULL, m.dir, &is, &f);
        if (r != cases[i].r || (r == 0 && is != cases[i].is))
            fail_msg("case %zu: %d, %d: %s", i, r, is, f.msg);
        if (cases[i].pooling) {
            make_remove(&inner, "config.json");
            assert_int_equal(rmdir(folder), 0);
        }
        make_done(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_names), cmocka_unit_test(test_bad_classes),
        cmocka_unit_test(test_text_part), cmocka_unit_test(test_pooling)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

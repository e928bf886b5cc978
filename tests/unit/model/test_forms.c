/*
 * Families in the forms in which they are published quantized. The products of a model as
 * transformers wrote it (tests/fixtures/models) are rounded and stored in each form, by the names
 * and shapes that its tools write; the same model with the rounded values as plain floats must give
 * the same logits, and every matrix that was packed must be read as such. What plain models give is
 * test_goldens' subject, what the bytes of a form mean is test_quant's (kernels) and the packers'.
 * Run from the root of the tree; FORMS=word takes models and forms with the word in their names,
 * and a share of the pairs otherwise (tests/share.h).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/num.h"
#include "kernels/registry.h"
#include "server/model/files.h"
#include "server/model/model.h"
#include "server/model/safetensors.h"
#include "tests/share.h"
#include "tests/unit/model/make.h"
#include "tests/unit/model/published_forms.h"

#define MODELS    "tests/fixtures/models/"
#define TOLERANCE 1e-4f /* of the largest logit: sums in another order */

enum { TOKENS = 24, BLOCK = 8, BLOCKS = TOKENS / BLOCK };

/* ---- files ---- */

static void out_write(struct form_out *o, const struct make *m)
{
    struct ek_buf all = {0};
    char *head = json_dumps(o->head, JSON_COMPACT);
    const uint64_t len = strlen(head);
    assert_int_equal(ek_buf_add(&all, &len, 8), 0);
    assert_int_equal(ek_buf_puts(&all, head), 0);
    assert_int_equal(ek_buf_add(&all, o->data.data, o->data.len), 0);
    make_file(m, "model.safetensors", all.data, all.len);
    free(head);
    ek_buf_done(&all);
    ek_buf_done(&o->data);
    json_decref(o->head);
}

/* ---- a model in a form ---- */

/* Products of layers, by the ends of their names. */
static bool is_product(const char *name)
{
    static const char *const ends[] = {"_proj.weight",
                                       "_proj_with_mqa.weight",
                                       "in_proj_qkv.weight",
                                       "in_proj_z.weight",
                                       "in_proj_qkvz.weight",
                                       ".w1.weight",
                                       ".w2.weight",
                                       ".w3.weight",
                                       "mlp.input_linear.weight",
                                       "mlp.output_linear.weight"};
    const size_t len = strlen(name);
    if (strstr(name, "vision") || strstr(name, "projector"))
        return false;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (len > strlen(ends[i]) && strcmp(name + len - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static void plain_put(struct form_out *o, const struct st_tensor *t, const void *data)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < t->dims; i++)
        assert_int_equal(json_array_append_new(shape, json_integer((json_int_t)t->shape[i])), 0);
    form_put(o, t->name, "F32", shape, data, (t->end - t->begin) * 2);
}

/* The experts of one tensor as a matrix each, as llm-compressor takes them apart. */
static void apart(struct form_out *o, const struct st_tensor *t, float *w, const struct form *f)
{
    const uint32_t rows = (uint32_t)t->shape[1], cols = (uint32_t)t->shape[2];
    const bool both = ends_with(t->name, "gate_up_proj");
    const int stem = (int)(strrchr(t->name, '.') - t->name);
    for (uint32_t e = 0; e < t->shape[0]; e++)
        for (uint32_t half = 0; half < (both ? 2 : 1); half++) {
            char name[128];
            struct form_matrix m = {name, w + (size_t)e * rows * cols, both ? rows / 2 : rows,
                                    cols};
            m.w += (size_t)half * m.rows * cols;
            (void)snprintf(name, sizeof(name), "%.*s.%u.%s", stem, t->name, e,
                           !both  ? "down_proj"
                           : half ? "up_proj"
                                  : "gate_proj");
            if (f->pack(o, &m, f)) {
                o->packed++;
                continue;
            }
            char whole[144];
            (void)snprintf(whole, sizeof(whole), "%s.weight", name);
            form_put(o, whole, "F32", form_shape2(m.rows, m.cols), m.w,
                     (size_t)m.rows * m.cols * 4);
        }
}

/* One tensor: into `packed` as the form has it, into `plain` as the values that it then has. */
static void convert(const struct st_tensor *t, float *w, const struct form *f,
                    struct form_out *packed, struct form_out *plain)
{
    char name[128];
    struct form_matrix m = {name, w, (uint32_t)t->shape[0],
                            (uint32_t)(t->dims > 1 ? t->shape[1] : 1)};
    struct form_cube c = {t->name, w, m.rows, m.cols, (uint32_t)(t->dims > 2 ? t->shape[2] : 1)};
    const bool experts = t->dims == 3 && (ends_with(t->name, "experts.gate_up_proj") ||
                                          ends_with(t->name, "experts.down_proj"));
    const bool turned = experts && strstr(t->name, "feed_forward") != NULL; /* Llama 4's */
    bool done = false;

    (void)snprintf(name, sizeof(name), "%.*s",
                   (int)(strlen(t->name) - (ends_with(t->name, ".weight") ? 7 : 0)), t->name);
    if (t->dims == 2 && is_product(t->name)) {
        done = f->pack(packed, &m, f);
    } else if (experts && f->joined) {
        done = form_cube_pack(packed, &c, f, turned);
    } else if (experts && !turned) {
        apart(packed, t, w, f);
        plain_put(plain, t, w);
        return;
    }
    packed->packed += done;
    if (!done)
        plain_put(packed, t, w);
    plain_put(plain, t, w);
}

static void config_copy(const struct make *m, const char *model, const char *quantization)
{
    char path[160], *text;
    (void)snprintf(path, sizeof(path), MODELS "%s/config.json", model);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (quantization) {
        json_t *q = json_loads(quantization, 0, NULL);
        assert_non_null(q);
        assert_int_equal(json_object_set_new(config, "quantization_config", q), 0);
    }
    text = json_dumps(config, 0);
    make_text(m, "config.json", text);
    free(text);
    json_decref(config);
}

/* Writes both directories; how many matrices are packed. */
static uint32_t write_both(const char *model, const struct form *f, const struct make *packed_dir,
                           const struct make *plain_dir)
{
    char dir[128];
    struct ek_fault fault = {.msg = ""};
    struct ek_weight_file file;
    struct st_set set = {0};
    struct form_out packed = {.head = json_object()}, plain = {.head = json_object()};

    (void)snprintf(dir, sizeof(dir), MODELS "%s", model);
    if (model_file_map(dir, "model.safetensors", &file, NULL, &fault) < 0 ||
        st_parse(&set, "model.safetensors", file.data, file.size_bytes, &fault) < 0)
        fail_msg("%s: %s", model, fault.msg);
    for (uint32_t i = 0; i < set.count; i++) {
        const struct st_tensor *t = &set.tensor[i];
        const size_t elements = (t->end - t->begin) / 2;
        const uint16_t *from = (const uint16_t *)((const char *)file.data + t->begin);
        float *w = malloc((elements + 1) * sizeof(float));
        assert_string_equal(t->type, "BF16");
        for (size_t k = 0; k < elements; k++)
            w[k] = cpu_from_bf16(from[k]);
        convert(t, w, f, &packed, &plain);
        free(w);
    }
    const uint32_t count = packed.packed;
    out_write(&packed, packed_dir);
    out_write(&plain, plain_dir);
    config_copy(packed_dir, model, f->config);
    config_copy(plain_dir, model, NULL);
    st_done(&set);
    model_file_unmap(&file);
    return count;
}

/* ---- computing ---- */

/* What follows each of some tokens; how many weights were quantized. */
static uint32_t compute(const char *dir, const char *what, struct ek_result_seq *ret_results)
{
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    const struct ek_open_params open = {.threads = 1};
    const struct ek_kv_params kv = {1 + BLOCKS, 0, BLOCK, 1};
    const struct ek_step_ceiling ceiling = {.rows = TOKENS, .seqs = 1, .entries = BLOCKS};
    struct ek_fault fault = {.msg = ""};
    struct ek_device *d;
    struct model *m = NULL;

    if (model_open(dir, MODEL_DTYPE_F32, &m, &fault) < 0)
        fail_msg("%s: %s", what, fault.msg);
    const uint32_t quants = m->graph.quant_count;
    model_serve(m, m->max_model_len);
    struct ek_plan_request q = {
        .graph = &m->graph, .ceiling = ceiling, .logit_rows = 1, .block_size = BLOCK};
    assert_int_equal(b->open(&open, &d, &fault), 0);
    if (b->load(d, &q, &m->files, NULL, NULL, &fault) < 0)
        fail_msg("%s: %s", what, fault.msg);
    assert_int_equal(b->kv_open(d, &kv), 0);
    struct ek_step *s = calloc(1, ek_step_size(&ceiling));
    struct ek_result *r = calloc(1, ek_result_size(1));
    for (uint32_t at = 0; at < TOKENS; at++) {
        ek_step_layout(s, &ceiling);
        if (at == 0)
            ek_step_sets(s)[s->sets++] =
                (struct ek_slot_set){.sampling.top_p = 1.0f, .top = EK_TOP_MOST};
        ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.rows = 1,
                                                          .context = at + 1,
                                                          .blocks = at / BLOCK + 1,
                                                          .prompt = TOKENS,
                                                          .sample = true};
        s->logit_rows = s->rows = 1;
        for (uint32_t i = 0; i <= at / BLOCK; i++)
            ek_step_tables(s)[s->entries++] = 1 + i;
        ek_step_tokens(s)[0] = (int32_t)(3 + at * 7 % 50);
        ek_step_positions(s)[0] = at;
        ek_step_kv_slots(s)[0] = BLOCK + at;
        s->id = at + 1;
        assert_int_equal(b->forward(d, s), 0);
        assert_int_equal(b->sample(d, s, NULL), 0);
        assert_int_equal(b->wait(d, s->id, r, ek_result_size(1), 60000000), 0);
        assert_int_equal(r->error, 0);
        ret_results[at] = r->seq[0];
    }
    b->close(d);
    free(s);
    free(r);
    model_free(m);
    return quants;
}

static void check(const char *model, const struct form *f)
{
    static struct ek_result_seq is[TOKENS], should[TOKENS];
    struct make packed = {.dir = ""}, plain = {.dir = ""};
    char what[96];
    float worst = 0;

    (void)snprintf(what, sizeof(what), "%s, %s", model, f->name);
    (void)snprintf(packed.dir, sizeof(packed.dir), "/tmp/evenkeel-forms-XXXXXX");
    (void)snprintf(plain.dir, sizeof(plain.dir), "/tmp/evenkeel-forms-XXXXXX");
    assert_non_null(mkdtemp(packed.dir));
    assert_non_null(mkdtemp(plain.dir));
    const uint32_t matrices = write_both(model, f, &packed, &plain);
    const uint32_t quants = compute(packed.dir, what, is);
    (void)compute(plain.dir, what, should);
    if (matrices < 4 || quants < matrices)
        fail_msg("%s: %u matrices are packed, %u are read as such", what, matrices, quants);
    for (uint32_t at = 0; at < TOKENS; at++) {
        float most = fabsf(should[at].lse);
        for (uint32_t i = 0; i < should[at].top; i++)
            most = fmaxf(most, fabsf(should[at].top_logit[i]));
        assert_int_equal(is[at].top, should[at].top);
        float off = fabsf(is[at].lse - should[at].lse) / most;
        for (uint32_t i = 0; i < is[at].top; i++)
            off = fmaxf(off, fabsf(is[at].top_logit[i] - should[at].top_logit[i]) / most);
        if (!(off <= TOLERANCE))
            fail_msg("%s: off by %g of the largest logit at position %u", what, (double)off, at);
        worst = fmaxf(worst, off);
    }
    print_message("%-40s %3u matrices, off by at most %.1e\n", what, matrices, (double)worst);
    make_done(&packed);
    make_done(&plain);
}

static const char *const models[] = {"qwen3-next",
                                     "qwen3.5",
                                     "qwen3.5-moe",
                                     "sees-qwen3.5",
                                     "gemma4",
                                     "gemma4-moe",
                                     "sees-gemma4",
                                     "glm4",
                                     "glm4-moe",
                                     "glm4-moe-lite",
                                     "deepseek-v2",
                                     "deepseek-v3",
                                     "granite-hybrid",
                                     "granite-hybrid-dense",
                                     "nemotron-h",
                                     "nemotron-h-moe",
                                     "nemotron-h-latent",
                                     "lfm2",
                                     "lfm2-moe",
                                     "llama4",
                                     "ministral3",
                                     "sees-ministral3",
                                     "seed-oss",
                                     "ernie",
                                     "ernie-moe",
                                     "exaone4",
                                     "exaone-moe",
                                     "hunyuan",
                                     "hunyuan-moe",
                                     "minimax-m2"};

static void test_forms(void **state)
{
    (void)state;
    const char *word = getenv("FORMS");
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        for (size_t k = 0; k < PUBLISHED_FORMS; k++)
            if (word ? strstr(models[i], word) || strstr(published_forms[k].name, word)
                     : share_takes(i + k))
                check(models[i], &published_forms[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

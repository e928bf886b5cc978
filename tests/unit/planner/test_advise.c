/* Public configurations with known outcome: parameters counted right, what fits fits, and what does
 * not gets a reason and a way out. */
#include "supervisor/planner/advise.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/err.h"

#define GIB 1073741824.0

static json_t *known;

static int open_known(void **state)
{
    (void)state;
    known = json_load_file("tests/fixtures/plans.json", 0, NULL);
    return known ? 0 : -1;
}

static int close_known(void **state)
{
    (void)state;
    json_decref(known);
    return 0;
}

static struct plan_shape shape_of(const char *model)
{
    struct plan_shape s = {0};
    struct ek_fault fault = {0};
    char *text = json_dumps(
        json_object_get(json_object_get(json_object_get(known, "models"), model), "config"),
        JSON_COMPACT);
    assert_non_null(text);
    if (plan_shape_parse(text, strlen(text), &s, &fault) < 0)
        fail_msg("%s: %s", model, fault.msg);
    free(text);
    return s;
}

static void test_parameters(void **state)
{
    (void)state;
    const char *name;
    json_t *m;
    json_object_foreach(json_object_get(known, "models"), name, m)
    {
        struct plan_shape s = shape_of(name);
        double want = json_number_value(json_object_get(m, "billions")) * 1e9;
        double off = plan_parameters(&s) / want - 1;
        if (fabs(off) > 0.02)
            fail_msg("%s: %.3f B, %.1f %% off", name, plan_parameters(&s) * 1e-9, off * 100);
    }
}

static uint32_t number(const json_t *c, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(c, key));
}

static struct plan_question question(const char *model, const char *gpu, uint32_t cards)
{
    const struct plan_gpu *g = plan_gpu_find(gpu);
    assert_non_null(g);
    return (struct plan_question){.shape = shape_of(model),
                                  .device = g->text,
                                  .memory_bytes = g->memory_gib * GIB,
                                  .speed = plan_gpu_speed(g),
                                  .cards = cards,
                                  .cards_each = cards,
                                  .share = 0.92,
                                  .kv_bits = 16,
                                  .gpu = true,
                                  .load = {.prompt = 512, .output = 128}};
}

static void test_outcomes(void **state)
{
    (void)state;
    size_t i, wrong = 0;
    json_t *c;
    const json_t *cases = json_object_get(known, "cases");
    assert_true(json_array_size(cases) >= 20);
    json_array_foreach(cases, i, c)
    {
        const char *model = json_string_value(json_object_get(c, "model"));
        const char *gpu = json_string_value(json_object_get(c, "gpu"));
        struct plan_question q = question(model, gpu, number(c, "gpus"));
        struct plan_answer a;
        /* As it stands: a copy of fewer bits is another question. */
        q.weight_bits = number(c, "weight_bits") ? number(c, "weight_bits") : q.shape.weight_bits;
        q.max_len = number(c, "max_model_len");
        q.tokens = number(c, "tokens");
        q.seqs = number(c, "seqs");
        if (json_object_get(c, "share"))
            q.share = json_number_value(json_object_get(c, "share"));
        plan_advise(&q, &a);
        bool want = json_is_true(json_object_get(c, "fits"));
        if (a.fits != want) {
            print_error("%s on %u x %s: %s (%s)\n", model, q.cards, gpu,
                        a.fits ? "fits" : "does not fit", a.why);
            wrong++;
        }
        assert_true(a.why[0] != '\0');
        if (!a.fits)
            assert_true(a.what_count > 0);
        else
            assert_true(a.seqs >= 1 && a.max_len >= 1 && a.full.itl_s > 0);
    }
    assert_int_equal(wrong, 0);
}

/* The classical questions, as somebody would ask them: all the machine's cards, any copy. */
static void test_classical(void **state)
{
    (void)state;
    struct plan_answer a;
    struct plan_question q = question("llama-2-70b", "a100-40", 1);
    q.cards_each = 0;
    q.weight_bits = 16;
    plan_advise(&q, &a);
    assert_false(a.fits);
    assert_non_null(strstr(a.why, "weights alone take 128"));
    assert_true(a.cards_needed == 4);
    assert_non_null(strstr(a.what[0], "4 cards of this kind"));
    for (uint32_t i = 0; i < a.what_count; i++) /* most of them would have to leave the card */
        assert_null(strstr(a.what[i], "--cpu-offload-gb"));

    q = question("llama-3.1-8b", "t4", 1); /* 15 GiB of weights on 14.6 */
    q.weight_bits = 16;
    plan_advise(&q, &a);
    assert_false(a.fits);
    assert_non_null(strstr(a.what[a.what_count - 1], "the card here with --cpu-offload-gb "));

    q = question("llama-2-70b", "a100-80", 2);
    q.cards_each = 0;
    plan_advise(&q, &a);
    assert_true(a.fits && a.chosen.setup.cards == 2 && a.chosen.setup.weight_bits == 0);
    assert_int_equal(a.tokens, 16384);

    q = question("llama-2-7b", "rtx4090", 1);
    plan_advise(&q, &a);
    assert_int_equal(a.tokens, 4096);
    q = question("llama-2-7b", "a100-40", 1);
    plan_advise(&q, &a);
    assert_int_equal(a.tokens, 8192);
}

/* A promise bounds the sequences; a load beyond one replica needs more; more cards cost more. */
static void test_load(void **state)
{
    (void)state;
    struct plan_answer free, kept, busy;
    struct plan_question q = question("llama-3.1-8b", "h100", 1);
    plan_advise(&q, &free);
    q.load.itl_s = free.full.itl_s / 2;
    plan_advise(&q, &kept);
    assert_true(kept.seqs < free.seqs && kept.full.itl_s <= q.load.itl_s);
    q.load.rate = kept.full.requests_s * 10;
    q.price_hour = 2.5;
    plan_advise(&q, &busy);
    assert_true(busy.replicas >= 11 && busy.replicas <= 13);
    assert_true(busy.cost_million > 0);
    q.load.itl_s = 1e-6;
    plan_advise(&q, &busy);
    assert_int_equal(busy.replicas, 0);
}

/* What was changed is said first; a promise that cannot be kept is no plan, and what would keep it
 * is said; more cards are taken where they keep it. */
static void test_said(void **state)
{
    (void)state;
    struct plan_answer a;
    struct plan_question q = question("llama-3.1-405b", "h100", 8);
    plan_advise(&q, &a);
    assert_true(a.fits && a.chosen.setup.weight_bits == 8);
    assert_non_null(strstr(a.note, "94.5 GiB of weights on each card"));
    q = question("llama-2-70b", "a100-80", 2);
    q.cards_each = 0;
    plan_advise(&q, &a);
    assert_true(a.fits && a.promise_kept && a.note[0] == '\0');
    assert_true(a.knee >= 1 && a.knee <= a.seqs);
    assert_true(a.at_knee.output_tokens_s >= 0.95 * a.full.output_tokens_s);
    q.load.itl_s = 0.04; /* two cards need 52 ms */
    plan_advise(&q, &a);
    assert_true(a.fits && !a.promise_kept && a.what_count >= 2);
    assert_non_null(strstr(a.why, "does not keep the promise"));
    assert_non_null(strstr(a.what[0], "weights of 8 bit"));
    q.cards = 4;
    plan_advise(&q, &a);
    assert_true(a.promise_kept && a.chosen.setup.cards == 4 && a.chosen.setup.weight_bits == 0);
    q.load.itl_s = 0;
    plan_advise(&q, &a);
    assert_true(a.chosen.setup.cards == 2);
}

/* A CPU's cache of 8 bits has scales: 32 x 8 x (128 + 128 + 8) bytes a token, not 32 x 8 x 256. */
static void test_small_cache(void **state)
{
    (void)state;
    struct plan_answer a;
    struct plan_question q = question("llama-3.1-8b", "h100", 1);
    q.gpu = false;
    q.speed = plan_gpu_speed(NULL);
    q.kv_bits = 8;
    plan_advise(&q, &a);
    assert_true(a.fits && a.chosen.setup.own && a.chosen.setup.kv_bits == 8);
    assert_true(fabs(a.chosen.fit.token_bytes - 67584) < 1);
    assert_true(a.chosen.fit.kv_bytes <= 4 * GIB && a.chosen.fit.kv_bytes > 3.99 * GIB);
}

/* Where either cache may be taken, that of latent attention stays as it is: the server has no
 * other.
 */
static void test_latent_cache(void **state)
{
    (void)state;
    static const char *const models[] = {"deepseek-v3", "deepseek-v2-lite", "llama-3.1-8b"};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct plan_answer a;
        struct plan_question q = question(models[i], "h200", 8);
        uint32_t small = 0;
        q.kv_bits = 0;
        plan_advise(&q, &a);
        assert_true(a.choice_count > 0);
        for (uint32_t n = 0; n < a.choice_count; n++)
            small += a.choices[n].setup.kv_bits == 8;
        assert_true((small > 0) == (q.shape.latent == 0));
        q.kv_bits = 8;
        plan_advise(&q, &a);
        assert_true(a.choice_count > 0 && a.choices[0].setup.kv_bits == 8);
    }
}

static void test_bad_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "line"},
        {"[]", "no JSON object"},
        {"{}", "hidden_size"},
        {"{\"hidden_size\": 8}", "num_hidden_layers"},
        {"{\"hidden_size\": -8}", "must be from 0"},
        {"{\"hidden_size\": 1e30}", "must be from 0"},
        {"{\"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": 2}",
         "vocab_size"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan_shape s;
        struct ek_fault fault = {0};
        assert_int_equal(plan_shape_parse(cases[i].text, strlen(cases[i].text), &s, &fault),
                         -EBADMSG);
        if (!strstr(fault.msg, cases[i].says))
            fail_msg("%s: %s", cases[i].text, fault.msg);
    }
    assert_null(plan_gpu_find("h1000"));
    assert_non_null(plan_gpu_find("A100_80"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),   cmocka_unit_test(test_outcomes),
        cmocka_unit_test(test_classical),    cmocka_unit_test(test_load),
        cmocka_unit_test(test_said),         cmocka_unit_test(test_small_cache),
        cmocka_unit_test(test_latent_cache), cmocka_unit_test(test_bad_config)};
    return cmocka_run_group_tests(tests, open_known, close_known);
}

/*
 * The forms of products: which one is taken of what was measured, that every shape of a graph gets
 * one, that a table is used as it is, and that the form of a shape leaves the bits of a sequence
 * independent of how its rows are computed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/form_choice.h"
#include "kernels/cpu/tier.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/tiny_device.h"

enum { PROMPT = 24, BLOCK = 16 };

/* Roundings: 0 floats, 1 pairs, 3 whole numbers. */
static void test_best(void **state)
{
    static const struct {
        double times[4];
        uint32_t rounding[4], count, best;
    } cases[] = {
        {{1, 1.01}, {0, 0}, 2, 0},                 /* noise */
        {{1, 1.03}, {0, 0}, 2, 1},                 /* the same bits */
        {{1, 1.05}, {1, 0}, 2, 0},                 /* others have to be clearly faster */
        {{1, 1.2}, {1, 0}, 2, 1},                  /* rounded less */
        {{1, 1.3}, {0, 1}, 2, 0},                  /* rounded more */
        {{1, 1.9}, {0, 1}, 2, 1},                  /* and worth it */
        {{1, 1.05, 1.3, 0.5}, {0, 0, 1, 3}, 4, 1}, /* the fastest is not worth its rounding */
        {{1, 1.05, 1.5, 1.45}, {0, 0, 1, 3}, 4, 2},
        {{1}, {0}, 1, 0},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (cpu_forms_best(cases[i].times, cases[i].rounding, cases[i].count) != cases[i].best)
            fail_msg("case %zu", i);
}

#define MODEL(type, weights)                                                                       \
    {                                                                                              \
        .dtype = (type), .layers = 2, .hidden = 64, .q_heads = 4, .kv_heads = 2, .head_dim = 16,   \
        .rotary = 16, .ffn = 96, .vocab = 100, .kept = (weights)                                   \
    }
static const struct tiny_params models[] = {MODEL(EK_F32, EK_F32), MODEL(EK_BF16, EK_F32),
                                            MODEL(EK_BF16, EK_I8)};
#define MODELS (sizeof(models) / sizeof(models[0]))

static void test_choose(void **state)
{
    (void)state;
    const struct ek_backend *b = ek_backend_find("cpu", NULL);

    for (uint32_t which = 0; which < MODELS; which++) {
        const struct ek_open_params open = {0};
        struct ek_forms forms = {0};

        struct tiny *t = tiny_new(&models[which]);
        assert_non_null(t);
        assert_int_equal(b->choose(&open, &t->g, &forms, NULL), 0);
        assert_true(forms.used > 0 && forms.used == forms.count);
        for (uint32_t i = 0; i < forms.used; i++) {
            const struct ek_form *f = &forms.form[i];
            char tier[EK_FORM_NAME];
            (void)snprintf(tier, sizeof(tier), "%.*s", (int)strcspn(f->name, "-"), f->name);
            assert_non_null(cpu_tier_find(tier, NULL));
            assert_true(f->times >= 1 && f->rows > 0 && f->cols > 0 && f->graph == t->g.dtype);
            for (uint32_t k = 0; k < i; k++)
                assert_true(f->rows != forms.form[k].rows || f->cols != forms.form[k].cols ||
                            f->dtype != forms.form[k].dtype || f->group != forms.form[k].group);
        }
        /* What is there stays, in its place if it is used, behind them if not. */
        struct ek_forms again = forms;
        again.used = 0;
        for (uint32_t i = 0; i < again.count; i++)
            again.form[i].times = 7;
        for (uint32_t i = again.count; i < EK_MOST_FORMS; i++)
            again.form[i] = (struct ek_form){.rows = i + 1, .cols = 3, .times = 9, .name = "avx2"};
        again.count = EK_MOST_FORMS;
        again.form[0].rows += 12345; /* one is not known, and there is no room */
        assert_int_equal(b->choose(&open, &t->g, &again, NULL), 0);
        assert_int_equal(again.used, forms.used);
        assert_int_equal(again.measured, forms.measured + 1);
        assert_int_equal(again.count, EK_MOST_FORMS);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < again.used; i++)
            kept += again.form[i].times == 7.0;
        assert_int_equal(kept, forms.used - 1);
        /* A name that this machine does not know is measured again, in its place. */
        again = forms;
        again.used = again.measured = 0;
        (void)snprintf(again.form[0].name, sizeof(again.form[0].name), "sse9");
        for (uint32_t i = 0; i < again.count; i++)
            again.form[i].times = 7;
        assert_int_equal(b->choose(&open, &t->g, &again, NULL), 0);
        assert_true(again.measured == 1 && again.used == forms.used && again.count == forms.used);
        for (uint32_t i = 0; i < again.used; i++)
            assert_true(strcmp(again.form[i].name, "sse9") != 0);
        tiny_free(t);
    }
}

/* Without memory nothing is chosen that was not measured, and nothing is lost. */
static void test_no_memory(void **state)
{
    struct tiny *t = tiny_new(&models[1]);
    struct ek_forms whole = {0};
    (void)state;

    assert_non_null(t);
    assert_int_equal(cpu_forms_choose(cpu_tier_find(NULL, NULL), &t->g, &whole), 0);
    for (long n = 1;; n++) {
        struct ek_forms forms = {0};
        alloc_fail_at(n);
        int r = cpu_forms_choose(cpu_tier_find("ref", NULL), &t->g, &forms);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        if (!failed) {
            assert_int_equal(r, 0);
            assert_int_equal(forms.used, whole.used);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_true(forms.used < whole.used && forms.count == forms.used);
    }
    tiny_free(t);
}

/* The prompt's last logits, in `pieces` steps. */
static void logits_of(const struct tiny *t, const struct ek_forms *forms, uint32_t pieces,
                      struct ek_result_seq *ret_seq)
{
    const struct ek_open_params open = {.threads = 2, .forms = forms};
    const uint32_t table[] = {1, 2, 3};
    struct tiny_device x;
    int32_t tokens[PROMPT];

    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (int32_t)(i * 7 % 50 + 1);
    assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, BLOCK, 8, &x), 0);
    const struct ek_slot_set set = {.slot = 0, .top = 8, .sampling = {.top_p = 1}};
    tiny_set(&x, &set);
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t from = PROMPT * i / pieces, end = PROMPT * (i + 1) / pieces;
        tiny_add(&x, 0, tokens, from, end - from, table, i + 1 == pieces);
        assert_int_equal(tiny_run(&x, NULL), 0);
    }
    assert_int_equal(x.result->seqs, 1);
    *ret_seq = x.result->seq[0];
    tiny_close(&x);
}

static void test_apply(void **state)
{
    (void)state;
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t which = 0; which < MODELS; which++) {
        const struct ek_open_params open = {0};
        struct ek_forms forms = {0};
        struct ek_result_seq own, once, apart;
        bool differs = false;

        struct tiny *t = tiny_new(&models[which]);
        assert_non_null(t);
        assert_int_equal(b->choose(&open, &t->g, &forms, NULL), 0);
        logits_of(t, NULL, 1, &own);
        for (uint32_t k = 0; tiers[k]; k++) {
            for (uint32_t i = 0; i < forms.used; i++)
                (void)snprintf(forms.form[i].name, sizeof(forms.form[i].name), "%s",
                               tiers[k]->name);
            logits_of(t, &forms, 1, &once);
            logits_of(t, &forms, PROMPT, &apart);
            assert_int_equal(once.top, 8);
            assert_memory_equal(once.top_logit, apart.top_logit, 8 * sizeof(float));
            assert_memory_equal(once.top_id, apart.top_id, 8 * sizeof(int32_t));
            for (uint32_t i = 0; i < 8; i++)
                assert_true(once.top_logit[i] > own.top_logit[i] - 0.2f &&
                            once.top_logit[i] < own.top_logit[i] + 0.2f);
            for (uint32_t i = 0; i < 8; i++)
                differs = differs || once.top_logit[i] < own.top_logit[i] ||
                          once.top_logit[i] > own.top_logit[i];
        }
        /* Plain C multiplies and adds apart: the table was obeyed. */
        assert_true(differs || tiers[0] == &cpu_ops_ref);
        for (uint32_t i = 0; i < forms.used; i++) /* of another machine: as if it were not there */
            (void)snprintf(forms.form[i].name, sizeof(forms.form[i].name), "sse9");
        logits_of(t, &forms, 1, &once);
        assert_memory_equal(once.top_logit, own.top_logit, 8 * sizeof(float));
        tiny_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_apply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

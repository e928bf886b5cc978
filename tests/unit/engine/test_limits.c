/* Live limits: bounds, all or nothing, generations, expiry. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/engine/limits.h"

#define BIT(id) (1u << (id))

static struct limits start(void)
{
    struct limits l = {.generation = 7};
    l.value[LIMIT_RUNNING_SEQS] = l.start[LIMIT_RUNNING_SEQS] = 64;
    l.value[LIMIT_BATCHED_TOKENS] = l.start[LIMIT_BATCHED_TOKENS] = 512;
    l.ceiling[LIMIT_RUNNING_SEQS] = 64;
    l.ceiling[LIMIT_BATCHED_TOKENS] = 512;
    l.ceiling[LIMIT_WATERMARK] = 500000;
    l.floor[LIMIT_RUNNING_SEQS] = 1;
    l.floor[LIMIT_BATCHED_TOKENS] = 1;
    return l;
}

static void applies_a_change(void **state)
{
    (void)state;
    struct limits l = start();
    struct limits_change c = {.set = BIT(LIMIT_RUNNING_SEQS) | BIT(LIMIT_WATERMARK),
                              .generation = 7,
                              .origin = "test",
                              .reason = "pressure"};
    c.value[LIMIT_RUNNING_SEQS] = 16;
    c.value[LIMIT_WATERMARK] = 10000;
    assert_int_equal(limits_apply(&l, &c, 5000, NULL), 0);
    assert_int_equal(l.value[LIMIT_RUNNING_SEQS], 16);
    assert_int_equal(l.value[LIMIT_WATERMARK], 10000);
    assert_int_equal(l.value[LIMIT_BATCHED_TOKENS], 512);
    assert_int_equal(l.generation, 8);
    assert_int_equal(l.changed_us[LIMIT_RUNNING_SEQS], 5000);
    assert_int_equal(l.changed_us[LIMIT_BATCHED_TOKENS], 0);
    assert_string_equal(l.origin, "test");
    assert_string_equal(l.reason, "pressure");
}

static void refuses_as_a_whole(void **state)
{
    (void)state;
    static const struct {
        uint32_t set;
        uint64_t seqs, tokens, watermark, generation;
        int code;
        const char *field, *says;
    } cases[] = {
        {BIT(0) | BIT(1), 32, 513, 0, 0, -EBADMSG, "max_num_batched_tokens", "ceiling 512"},
        {BIT(0), 65, 0, 0, 0, -EBADMSG, "max_num_running_seqs", "ceiling 64"},
        {BIT(0), 0, 0, 0, 0, -EBADMSG, "max_num_running_seqs", "least value 1"},
        {BIT(0), UINT64_MAX, 0, 0, 0, -EBADMSG, "max_num_running_seqs", "ceiling"},
        {BIT(1), 0, 63, 0, 0, -EBADMSG, "max_num_batched_tokens", "max_num_running_seqs 64"},
        {BIT(LIMIT_WATERMARK), 0, 0, 600000, 0, -EBADMSG, "watermark", "0.6"},
        {BIT(0), 32, 0, 0, 6, EK_ESTALE, "generation", "7"},
        {0, 0, 0, 0, 0, -EBADMSG, "", "no limit"},
        {BIT(LIMIT_COUNT), 0, 0, 0, 0, -EBADMSG, "", "no limit"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct limits l = start(), before = start();
        struct limits_change c = {.set = cases[i].set, .generation = cases[i].generation};
        struct ek_fault fault = {0};
        c.value[LIMIT_RUNNING_SEQS] = cases[i].seqs;
        c.value[LIMIT_BATCHED_TOKENS] = cases[i].tokens;
        c.value[LIMIT_WATERMARK] = cases[i].watermark;
        assert_int_equal(limits_apply(&l, &c, 1, &fault), cases[i].code);
        assert_string_equal(fault.field, cases[i].field);
        assert_non_null(strstr(fault.msg, cases[i].says));
        assert_memory_equal(&l, &before, sizeof(l));
    }
}

static void expires(void **state)
{
    (void)state;
    struct limits l = start();
    struct limits_change c = {.set = BIT(LIMIT_RUNNING_SEQS), .expires_in_us = 1000};
    c.value[LIMIT_RUNNING_SEQS] = 8;
    assert_int_equal(limits_apply(&l, &c, 500, NULL), 0);
    assert_false(limits_expire(&l, 1499));
    assert_true(limits_expire(&l, 1500));
    assert_int_equal(l.value[LIMIT_RUNNING_SEQS], 64);
    assert_int_equal(l.generation, 9);
    assert_false(limits_expire(&l, 9999));

    c.expires_in_us = UINT64_MAX; /* does not wrap around */
    assert_int_equal(limits_apply(&l, &c, 500, NULL), 0);
    assert_false(limits_expire(&l, 100000));
    c.expires_in_us = 0; /* for good: the earlier expiry is gone */
    assert_int_equal(limits_apply(&l, &c, 500, NULL), 0);
    assert_int_equal(limits_next_expiry(&l), 0);
}

/* A change of one limit says nothing about how long another's change lasts. */
static int sets(struct limits *l, uint64_t tokens, uint64_t now_us, uint64_t expires_in_us)
{
    struct limits_change c = {.set = BIT(LIMIT_BATCHED_TOKENS), .expires_in_us = expires_in_us};
    c.value[LIMIT_BATCHED_TOKENS] = tokens;
    return limits_apply(l, &c, now_us, NULL);
}

static void expires_to_what_held(void **state)
{
    (void)state;
    static const struct {
        struct {
            uint64_t tokens, now_us, expires_in_us;
        } set[3]; /* after 400 for good at 1 */
        struct {
            uint64_t now_us, tokens, expires_us;
        } then[3];
    } cases[] = {
        {{{200, 10, 100}}, {{109, 200, 110}, {110, 400, 0}}},
        {{{200, 10, 100}, {100, 20, 100}}, {{119, 100, 120}, {120, 400, 0}}}, /* both ran out */
        {{{300, 10, 500}, {200, 20, 100}}, {{120, 300, 510}, {510, 400, 0}}}, /* it has time left */
        {{{300, 10, 500}, {200, 20, 100}}, {{600, 400, 0}}},
        {{{300, 10, 500}, {200, 20, 100}, {100, 30, 200}},
         {{120, 100, 230}, {230, 300, 510}, {510, 400, 0}}},
        {{{300, 10, 500}, {250, 20, 0}}, {{600, 250, 0}}}, /* for good */
        {{{300, 10, 500}, {250, 20, 0}, {200, 30, 100}}, {{130, 250, 0}, {600, 250, 0}}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct limits l = start();
        l.value[LIMIT_RUNNING_SEQS] = 1;
        assert_int_equal(sets(&l, 400, 1, 0), 0);
        for (int k = 0; k < 3 && cases[i].set[k].tokens; k++)
            assert_int_equal(sets(&l, cases[i].set[k].tokens, cases[i].set[k].now_us,
                                  cases[i].set[k].expires_in_us),
                             0);
        for (int k = 0; k < 3 && cases[i].then[k].now_us; k++) {
            (void)limits_expire(&l, cases[i].then[k].now_us);
            assert_int_equal(l.value[LIMIT_BATCHED_TOKENS], cases[i].then[k].tokens);
            assert_int_equal(l.expires_us[LIMIT_BATCHED_TOKENS], cases[i].then[k].expires_us);
        }
    }
}

static void expires_one_by_one(void **state)
{
    (void)state;
    struct limits l = start();
    struct limits_change seqs = {.set = BIT(LIMIT_RUNNING_SEQS), .expires_in_us = 1000};
    struct limits_change mark = {.set = BIT(LIMIT_WATERMARK), .expires_in_us = 5000};
    struct limits_change tokens = {.set = BIT(LIMIT_BATCHED_TOKENS)};
    seqs.value[LIMIT_RUNNING_SEQS] = 8;
    mark.value[LIMIT_WATERMARK] = 20000;
    tokens.value[LIMIT_BATCHED_TOKENS] = 16;
    assert_int_equal(limits_apply(&l, &seqs, 100, NULL), 0);
    assert_int_equal(limits_apply(&l, &mark, 200, NULL), 0);
    assert_int_equal(limits_apply(&l, &tokens, 300, NULL), 0);
    assert_int_equal(limits_next_expiry(&l), 1100);
    assert_true(limits_expire(&l, 1100));
    assert_int_equal(l.value[LIMIT_RUNNING_SEQS], 16); /* 64 would be more than the tokens */
    assert_int_equal(l.value[LIMIT_WATERMARK], 20000);
    assert_int_equal(l.value[LIMIT_BATCHED_TOKENS], 16);
    assert_int_equal(limits_next_expiry(&l), 5200);
    assert_true(limits_expire(&l, 9000));
    assert_int_equal(l.value[LIMIT_WATERMARK], 0);
    assert_int_equal(limits_next_expiry(&l), 0);
}

static void keeps_marks_in_order(void **state)
{
    (void)state;
    struct limits l = start();
    struct ek_fault fault;
    struct limits_change c = {.set = BIT(LIMIT_ADMISSION_LOW), .origin = "operator"};
    c.value[LIMIT_ADMISSION_LOW] = 800000;
    assert_int_equal(limits_apply(&l, &c, 10, &fault), 0); /* it is off: any low mark will do */
    c.set = BIT(LIMIT_ADMISSION_HIGH);
    c.value[LIMIT_ADMISSION_HIGH] = 700000;
    assert_int_equal(limits_apply(&l, &c, 20, &fault), -EBADMSG);
    assert_string_equal(fault.field, "admission_low");
    assert_non_null(strstr(fault.msg, "0.7"));
    c.value[LIMIT_ADMISSION_HIGH] = 900000;
    snprintf(c.origin, sizeof(c.origin), "policy");
    c.expires_in_us = 100;
    assert_int_equal(limits_apply(&l, &c, 30, &fault), 0);
    assert_string_equal(l.changed_by[LIMIT_ADMISSION_HIGH], "policy");
    assert_string_equal(l.changed_by[LIMIT_ADMISSION_LOW], "operator");
    assert_string_equal(l.changed_by[LIMIT_WATERMARK], "");
    assert_true(limits_expire(&l, 130));
    assert_string_equal(l.changed_by[LIMIT_ADMISSION_HIGH], "expired");
    assert_int_equal(l.value[LIMIT_ADMISSION_HIGH], 0);
}

static void names_every_limit(void **state)
{
    (void)state;
    for (int i = 0; i < LIMIT_COUNT; i++) {
        assert_non_null(limit_table[i].name);
        assert_non_null(limit_table[i].help);
        assert_true(limit_table[i].scale >= 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(applies_a_change),
        cmocka_unit_test(refuses_as_a_whole),
        cmocka_unit_test(expires),
        cmocka_unit_test(expires_to_what_held),
        cmocka_unit_test(keeps_marks_in_order),
        cmocka_unit_test(expires_one_by_one),
        cmocka_unit_test(names_every_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

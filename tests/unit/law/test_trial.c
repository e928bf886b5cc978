/* What an operator may try: three settings, nothing else, behind the flags of the configuration. */
#include "supervisor/law/trial.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/law/remedy.h"
#include "tests/unit/alloc.h"

static void test_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *body, *says; /* NULL: fine */
        struct trial trial;
    } cases[] = {
        {"", NULL, {.share = 0}},
        {"{}", NULL, {.share = 0}},
        {"{\"trial\": {}}", NULL, {.share = 0}},
        {"{\"trial\": {\"block_size\": 32, \"dtype\": \"bfloat16\"}}",
         NULL,
         {.block_size = 32, .dtype = "bfloat16"}},
        {"{\"trial\": {\"block_size\": 32.0}}", NULL, {.block_size = 32}},
        {"{\"trial\": {\"gpu_memory_utilization\": 0.85}}", NULL, {.share = 0.85}},
        {"{\"trial\": {\"gpu_memory_utilization\": 2}}", "from 0.05 to 1", {.share = 0}},
        {"{\"trial\": {\"gpu_memory_utilization\": \"0.9\"}}", "from 0.05 to 1", {.share = 0}},
        {"{\"trial\": {\"block_size\": 1.5}}", "whole number", {.share = 0}},
        {"{\"trial\": {\"dtype\": \"int4; reboot\"}}", "bfloat16", {.share = 0}},
        {"{\"trial\": {\"dtype\": 7}}", "bfloat16", {.share = 0}},
        {"{\"trial\": {\"api-key\": \"x\"}}", "cannot be tried", {.share = 0}},
        {"{\"trial\": 5}", "must be empty", {.share = 0}},
        {"{\"other\": {}}", "must be empty", {.share = 0}},
        {"[]", "must be empty", {.share = 0}},
        {"{", "must be empty", {.share = 0}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trial t;
        char text[200] = "";
        const char *field;
        memset(&t, 0x55, sizeof(t));
        int r = trial_parse(cases[i].body, strlen(cases[i].body), &t, text, sizeof(text), &field);
        assert_int_equal(r, cases[i].says ? -EBADMSG : 0);
        if (cases[i].says && !strstr(text, cases[i].says))
            fail_msg("%s: %s", cases[i].body, text);
        if (cases[i].says)
            continue;
        assert_true(t.share >= cases[i].trial.share && t.share <= cases[i].trial.share);
        assert_int_equal(t.block_size, cases[i].trial.block_size);
        assert_string_equal(t.dtype, cases[i].trial.dtype);
    }
}

static void test_flags(void **state)
{
    (void)state;
    char program[] = "server", flag[] = "--block-size", value[] = "16";
    char *argv[] = {program, flag, value, NULL}, **out = NULL;
    const struct trial t = {.share = 0.85, .block_size = 32, .dtype = "float32"};
    static const char *const want[] = {"server", "--block-size", "16", "--gpu-memory-utilization",
                                       "0.8500", "--block-size", "32", "--dtype",
                                       "float32"};
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = trial_argv(&t, argv, &out);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(out);
    }
    for (size_t i = 0; i < 9; i++)
        assert_string_equal(out[i], want[i]);
    assert_null(out[9]);
    remedy_free(out);
    assert_int_equal(trial_argv(&(struct trial){0}, argv, &out), 0);
    assert_null(out[3]);
    remedy_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bodies), cmocka_unit_test(test_flags)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What an operator may try: five settings, nothing else, behind the flags of the configuration. */
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
        {"{\"trial\": {\"max_num_seqs\": 16, \"max_num_batched_tokens\": 8192, "
         "\"gpu_memory_utilization\": 0.75, \"at_most\": true}}",
         NULL,
         {.share = 0.75, .seqs = 16, .tokens = 8192, .at_most = true}},
        {"{\"trial\": {\"max_num_seqs\": 1, \"at_most\": false}}", NULL, {.seqs = 1}},
        {"{\"trial\": {\"max_num_seqs\": 0}}", "1 to 65536", {.share = 0}},
        {"{\"trial\": {\"max_num_seqs\": 65537}}", "1 to 65536", {.share = 0}},
        {"{\"trial\": {\"max_num_seqs\": \"16\"}}", "1 to 65536", {.share = 0}},
        {"{\"trial\": {\"max_num_batched_tokens\": -1}}", "1 to 1048576", {.share = 0}},
        {"{\"trial\": {\"max_num_batched_tokens\": 1e18}}", "1 to 1048576", {.share = 0}},
        {"{\"trial\": {\"at_most\": 1}}", "true or false", {.share = 0}},
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
        assert_int_equal(t.seqs, cases[i].trial.seqs);
        assert_int_equal(t.tokens, cases[i].trial.tokens);
        assert_int_equal(t.at_most, cases[i].trial.at_most);
        assert_int_equal(t.block_size, cases[i].trial.block_size);
        assert_string_equal(t.dtype, cases[i].trial.dtype);
    }
}

static void test_flags(void **state)
{
    (void)state;
    char program[] = "server", flag[] = "--block-size", value[] = "16";
    char *argv[] = {program, flag, value, NULL}, **out = NULL;
    const struct trial t = {
        .share = 0.85, .seqs = 16, .tokens = 8192, .block_size = 32, .dtype = "float32"};
    static const char *const want[] = {"server", "--block-size",   "16", "--gpu-memory-utilization",
                                       "0.8500", "--max-num-seqs", "16", "--max-num-batched-tokens",
                                       "8192",   "--block-size",   "32", "--dtype",
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
    for (size_t i = 0; i < 13; i++)
        assert_string_equal(out[i], want[i]);
    assert_null(out[13]);
    remedy_free(out);
    assert_int_equal(trial_argv(&(struct trial){0}, argv, &out), 0);
    assert_null(out[3]);
    remedy_free(out);
}

/* A cap is the most, never the value: what the operator's own command has lower stays. */
static void test_at_most(void **state)
{
    (void)state;
    const struct trial low = {.share = 0.75, .seqs = 16, .tokens = 8192, .at_most = true};
    static const struct {
        struct remedy_settings has;
        double share;
        uint32_t seqs, tokens; /* that are flags then */
    } cases[] = {
        {{.share = 0}, 0.75, 16, 8192}, /* it says nothing */
        {{.share = 0.9, .seqs = 256, .tokens = 16384}, 0.75, 16, 8192},
        {{.share = 0.5, .seqs = 8, .tokens = 2048}, 0, 0, 0},
        {{.share = 0.75, .seqs = 16, .tokens = 8192}, 0, 0, 0},
        {{.seqs = 4}, 0.75, 0, 8192},
        {{.tokens = 512}, 0.75, 16, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trial t = trial_within(&low, &cases[i].has);
        assert_true(t.share >= cases[i].share && t.share <= cases[i].share);
        assert_int_equal(t.seqs, cases[i].seqs);
        assert_int_equal(t.tokens, cases[i].tokens);
        assert_int_equal(trial_is_none(&t), !(cases[i].share > 0));
    }
    const struct trial exact = {.share = 0.95, .seqs = 512};
    struct trial t = trial_within(&exact, &(struct remedy_settings){.share = 0.5, .seqs = 8});
    assert_true(t.share > 0.9 && t.seqs == 512);
    assert_true(trial_is_none(&(struct trial){.at_most = true}));
    assert_false(trial_is_none(&(struct trial){.tokens = 1}));
    assert_false(trial_is_none(&(struct trial){.dtype = "auto"}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bodies), cmocka_unit_test(test_flags),
                                       cmocka_unit_test(test_at_most)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

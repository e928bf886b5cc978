/* Replay: the same recording gives the same bytes (I23), a damaged one a position. */
#include "supervisor/replay.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/dialect.h"
#include "tests/unit/alloc.h"

static FILE *text_file(const char *text, size_t len)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    rewind(f);
    return f;
}

/* 100 s of calm, then 60 s of pressure, then 60 s without answers. */
static FILE *recording(void)
{
    FILE *f = tmpfile();
    char page[1024];
    assert_non_null(f);
    for (int t = 1; t <= 220; t++) {
        int hard = t > 100 ? t - 100 : 0;
        int n = snprintf(page, sizeof(page),
                         "vllm:kv_cache_usage_perc %s\nvllm:num_requests_running 16\n"
                         "vllm:num_requests_waiting 4\nvllm:num_preemptions_total %d\n"
                         "vllm:generation_tokens_total %d\nevenkeel_recomputed_tokens_total %d\n"
                         "evenkeel_limit{limit=\"max_num_running_seqs\"} 16\n",
                         hard ? "0.97" : "0.5", hard * 3, t * 100, hard * 80);
        assert_int_equal(replay_write(f, (uint64_t)t * 1000000, t > 160 ? NULL : page, (size_t)n),
                         0);
    }
    rewind(f);
    return f;
}

static char *run(const struct replay_setup *setup, FILE *in, int want)
{
    struct ek_fault fault = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    assert_int_equal(replay_run(setup, in, out, &fault), want);
    (void)fclose(out);
    (void)fclose(in);
    if (want == -EBADMSG)
        assert_true(fault.msg[0] != '\0');
    return text;
}

static struct replay_setup make_setup(void)
{
    struct replay_setup setup = {.dialect = dialect_find("evenkeel"), .server = "s1"};
    policy_defaults(&setup.params);
    setup.params.seqs_max = 16;
    return setup;
}

static void test_same_bytes(void **state)
{
    (void)state;
    struct replay_setup setup = make_setup();
    char *a = run(&setup, recording(), 0), *b = run(&setup, recording(), 0);
    assert_string_equal(a, b);
    assert_non_null(strstr(a, "\"action\":\"lower\",\"reason\":\"LOWER_KV_HARM\""));
    assert_non_null(strstr(a, "\"from\":16,\"to\":12"));
    assert_non_null(strstr(a, "SIGNAL_DEGRADED"));
    free(a);
    free(b);
    setup.params.mode = MODE_OBSERVE;
    a = run(&setup, recording(), 0);
    assert_null(strstr(a, "lower"));
    free(a);
}

static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int want;
    } cases[] = {
        {"", 0},
        {"@1 0\n", 0},
        {"@1 4\na 1\n@2 4\nb 2\n", 0},
        {"@1 5\na 1\n", -EBADMSG},
        {"@1 99999999\n", -EBADMSG},
        {"@99999999999999999999999 1\nx", -EBADMSG},
        {"a 1\n", -EBADMSG},
        {"@ 1\nx", -EBADMSG},
        {"@1\n", -EBADMSG},
        {"@1 4 \na 1\n", -EBADMSG},
    };
    struct replay_setup setup = make_setup();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        free(run(&setup, text_file(cases[i].text, strlen(cases[i].text)), cases[i].want));
}

static void test_allocation(void **state)
{
    (void)state;
    struct replay_setup setup = make_setup();
    FILE *out = tmpfile();
    assert_non_null(out);
    for (long n = 1;; n++) {
        FILE *in = recording();
        (void)getc(in); /* stdio takes its buffer now */
        rewind(in);
        alloc_fail_at(n);
        int r = replay_run(&setup, in, out, NULL);
        bool failed = alloc_failed();
        (void)fclose(in);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    (void)fclose(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Replay: the same recording gives the same bytes (I23), a damaged one a position. */
#include "supervisor/servers/replay.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/servers/record.h"
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
        assert_int_equal(record_write(f, (uint64_t)t * 1000000, t > 160 ? NULL : page, (size_t)n),
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

/* What record_poll() writes, replay_run() reads: constants, bounds, a restart, a changed mode. */
static void test_heads(void **state)
{
    (void)state;
    char path[] = "/tmp/evenkeel-record-XXXXXX", page[400];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct record *r = NULL;
    assert_int_equal(record_open(path, 200000, &r), 0);
    struct record_head head = {.engine = "evenkeel", .server = "x"};
    policy_defaults(&head.params);
    head.params.seqs_max = 32;
    head.params.window_s = 12.5;
    head.params.raise_step = 7;
    int result = 0;
    for (int t = 1; t <= 300 && result == 0; t++) {
        int n = snprintf(page, sizeof(page),
                         "vllm:kv_cache_usage_perc 0.97\nvllm:num_requests_running 16\n"
                         "vllm:num_requests_waiting 4\nvllm:num_preemptions_total %d\n"
                         "vllm:generation_tokens_total %d\nevenkeel_recomputed_tokens_total %d\n"
                         "evenkeel_limit{limit=\"max_num_running_seqs\"} 32\n",
                         t * 3, t * 100, t * 80);
        if (t == 150)
            record_ready(r, 150000000);
        head.params.mode = t < 100 ? MODE_OBSERVE : MODE_ACT;
        result = record_poll(r, &head, (uint64_t)t * 1000000, page, (size_t)n);
    }
    assert_int_equal(result, 0);
    record_close(r);
    struct replay_setup setup = {.dialect = dialect_find("vllm")};
    char *text = run(&setup, fopen(path, "r"), 0);
    const char *cut = strstr(text, "LOWER_KV_HARM");
    assert_non_null(cut);
    assert_non_null(strstr(text, "{\"server\":\"x\",\"at_s\":100.0"));   /* when it may act */
    assert_non_null(strstr(cut + 1, "\"server\":\"x\",\"at_s\":210.0")); /* warm again */
    free(text);
    assert_int_equal(record_open(path, 65536, &r), 0);
    while ((result = record_poll(r, &head, 301000000, page, 300)) == 0)
        ;
    assert_int_equal(result, -EFBIG);
    record_close(r);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(record_open("/nonexistent/x", 1, &r), -ENOENT);
    assert_int_equal(record_open("/dev/null", 1, &r), -EINVAL);
}

static void test_bad_heads(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "# {}\n",
        "#\n",
        "# {\"version\":1,\"limits\":{}}\n",
        "# {\"version\":1,\"engine\":\"none\",\"server\":\"x\",\"policy\":{},\"limits\":{}}\n",
        "# {\"version\":1,\"engine\":\"vllm\",\"server\":\"x\",\"policy\":{\"window-s\":\"-1\"},"
        "\"limits\":{}}\n",
        "# {\"version\":1,\"engine\":\"vllm\",\"server\":\"x\",\"policy\":{\"window-s\":5},"
        "\"limits\":{}}\n",
        "# {\"version\":1,\"engine\":\"vllm\",\"server\":\"x\",\"policy\":{\"port\":\"x\"},"
        "\"limits\":{}}\n",
        "# {\"version\":1",
    };
    struct replay_setup setup = make_setup();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        free(run(&setup, text_file(cases[i], strlen(cases[i])), -EBADMSG));
    static const char good[] =
        "# {\"version\":1,\"engine\":\"vllm\",\"server\":\"x\",\"policy\":{},"
        "\"limits\":{\"seqs_min\":9,\"seqs_max\":4}}\n@5 0\n";
    free(run(&setup, text_file(good, sizeof(good) - 1), 0));
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
        cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_heads),      cmocka_unit_test(test_bad_heads),
        cmocka_unit_test(test_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Samples: the dialects' names, sums over engines, and each flag. */
#include "supervisor/engines/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/engines/dialect.h"

static struct sample read_page(const char *dialect, const char *page, uint64_t at_us)
{
    struct sample s;
    sample_parse(dialect_find(dialect), page, strlen(page), at_us, &s);
    return s;
}

static void test_vllm_page(void **state)
{
    (void)state;
    static char page[65536];
    FILE *f = fopen("tests/fixtures/metrics/vllm-0.32.txt", "r");
    assert_non_null(f);
    size_t n = fread(page, 1, sizeof(page) - 1, f);
    (void)fclose(f);
    page[n] = '\0';

    struct sample s = read_page("vllm", page, 5);
    static const struct {
        enum signal_id i;
        double value;
    } want[] = {
        {SIG_KV_USAGE, 0.8955223880597015},
        {SIG_RUNNING, 5},
        {SIG_WAITING, 3},
        {SIG_WAITING_CAPACITY, 3},
        {SIG_PREEMPTIONS, 0},
        {SIG_PROMPT_TOKENS, 800},
        {SIG_GEN_TOKENS, 1871},
        {SIG_PREFIX_HITS, 0},
        {SIG_PREFIX_QUERIES, 0},
        {SIG_START_TIME, 1.79522561192e9},
        {SIG_FINISHED, 0},
    };
    assert_true(s.good);
    assert_int_equal(s.at_us, 5);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_true(sample_has(&s, want[i].i));
        assert_true(s.value[want[i].i] == want[i].value);
    }
    assert_false(sample_has(&s, SIG_STEPS));
    assert_int_equal(s.flags[SIG_STEPS], SAMPLE_MISSING);
    assert_int_equal(s.ttft.count, 23);
    assert_int_equal(s.itl.count, 20);
    assert_true(s.ttft.bound[8] == 0.25 && s.ttft.hits[8] == 8);
    assert_true(s.itl.hits[19] == 1863);

    /* A truncated page gives nothing that decisions may use. */
    page[n / 2] = '\0';
    s = read_page("vllm", page, 5);
    assert_true(s.good);
    for (int i = 0; i < SIG_COUNT; i++)
        assert_false(sample_has(&s, (enum signal_id)i));
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *dialect, *page;
        enum signal_id i;
        double value;
        int flags;
    } cases[] = {
        {"vllm", "vllm:gpu_cache_usage_perc 0.5\n", SIG_KV_USAGE, 0.5, 0},
        {"vllm", "vllm_kv_cache_usage_perc 0.5\n", SIG_KV_USAGE, 0.5, 0},
        {"vllm", "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n", SIG_KV_USAGE, 0.5,
         0},
        {"vllm", "vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.9\n", SIG_KV_USAGE, 0.5,
         0},
        {"vllm",
         "vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\n"
         "vllm:kv_cache_usage_perc{engine=\"1\"} 0.7\n",
         SIG_KV_USAGE, 0.7, 0},
        {"vllm",
         "vllm:num_requests_running{engine=\"0\"} 2\n"
         "vllm:num_requests_running{engine=\"1\"} 7\n",
         SIG_RUNNING, 9, 0},
        {"vllm",
         "vllm:num_requests_running{engine=\"0\",m=\"x\"} 2\n"
         "vllm:num_requests_running{m=\"x\",engine=\"0\"} 2\n",
         SIG_RUNNING, 2, 0}, /* written twice */
        {"vllm", "vllm:kv_cache_usage_perc 45\n", SIG_KV_USAGE, 0, SAMPLE_RANGE},
        {"vllm", "vllm:kv_cache_usage_perc -0.1\n", SIG_KV_USAGE, 0, SAMPLE_RANGE},
        {"vllm", "vllm:kv_cache_usage_perc NaN\n", SIG_KV_USAGE, 0, SAMPLE_NAN},
        {"vllm", "vllm:num_requests_running +Inf\n", SIG_RUNNING, 0, SAMPLE_RANGE},
        {"vllm", "vllm:generation_tokens_total 1e308\n", SIG_GEN_TOKENS, 0, SAMPLE_RANGE},
        {"evenkeel",
         "evenkeel_limit{limit=\"max_num_running_seqs\"} 16\n"
         "evenkeel_limit{limit=\"max_num_batched_tokens\"} 512\n",
         SIG_LIMIT_SEQS, 16, 0},
        {"evenkeel",
         "evenkeel_kv_blocks{state=\"total\"} 64\n"
         "evenkeel_kv_blocks{state=\"cached\"} 5\n",
         SIG_BLOCKS_CACHED, 5, 0},
        {"evenkeel", "evenkeel_recomputed_tokens_total 12\n", SIG_RECOMPUTED, 12, 0},
        {"vllm", "a 1\n", SIG_KV_USAGE, 0, SAMPLE_MISSING},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample s = read_page(cases[i].dialect, cases[i].page, 1);
        assert_true(s.good);
        assert_int_equal(s.flags[cases[i].i], cases[i].flags);
        if (!cases[i].flags)
            assert_true(s.value[cases[i].i] == cases[i].value);
    }
}

static void test_no_exposition(void **state)
{
    (void)state;
    static const char *const pages[] = {"", "<html>\n<body>\nx 1\n</html>\n", "\n\n",
                                        "Internal Server Error", "{\"a\": 1}\n"};
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        struct sample s = read_page("vllm", pages[i], 1);
        assert_false(s.good);
        assert_int_equal(s.flags[SIG_KV_USAGE], SAMPLE_MISSING);
    }
}

static void test_histogram(void **state)
{
    (void)state;
    struct sample s =
        read_page("vllm",
                  "vllm:time_per_output_token_seconds_bucket{le=\"+Inf\"} 9\n"
                  "vllm:time_per_output_token_seconds_bucket{le=\"0.1\"} 9\n"
                  "vllm:time_to_first_token_seconds_bucket{le=\"1\",engine=\"0\"} 3\n"
                  "vllm:time_to_first_token_seconds_bucket{le=\"0.5\",engine=\"0\"} 1\n"
                  "vllm:time_to_first_token_seconds_bucket{le=\"0.5\",engine=\"1\"} 1\n"
                  "vllm:time_to_first_token_seconds_bucket{le=\"1.0\",engine=\"1\"} 4\n",
                  1);
    assert_int_equal(s.ttft.count, 2);
    assert_true(s.ttft.bound[0] == 0.5 && s.ttft.hits[0] == 2);
    assert_true(s.ttft.bound[1] == 1 && s.ttft.hits[1] == 7);
    assert_int_equal(s.itl.count, 2);

    s = read_page("vllm",
                  "vllm:time_to_first_token_seconds_bucket{le=\"1\"} 3\n"
                  "vllm:time_to_first_token_seconds_bucket{le=\"2\"} 2\n",
                  1);
    assert_int_equal(s.ttft.count, 0); /* not monotone */

    char page[8192] = "";
    for (int i = 1; i <= 40; i++) {
        size_t at = strlen(page);
        (void)snprintf(page + at, sizeof(page) - at,
                       "vllm:time_to_first_token_seconds_bucket{le=\"%d\"} %d\n", i, i);
    }
    strcat(page, "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 50\n");
    s = read_page("vllm", page, 1);
    assert_int_equal(s.ttft.count, SAMPLE_BUCKETS);
    assert_true(s.ttft.hits[SAMPLE_BUCKETS - 1] == 50);
}

static void test_compare(void **state)
{
    (void)state;
    static const char before[] = "process_start_time_seconds 100\n"
                                 "vllm:num_requests_running{engine=\"0\"} 1\n"
                                 "vllm:num_requests_running{engine=\"1\"} 1\n"
                                 "vllm:generation_tokens_total 50\nvllm:prompt_tokens_total 9\n";
    static const struct {
        const char *page;
        enum signal_id i;
        int flags;
    } cases[] = {
        {"process_start_time_seconds 100\nvllm:num_requests_running{engine=\"0\"} 1\n"
         "vllm:num_requests_running{engine=\"1\"} 1\nvllm:generation_tokens_total 60\n",
         SIG_GEN_TOKENS, 0},
        {"process_start_time_seconds 100\nvllm:generation_tokens_total 40\n", SIG_GEN_TOKENS,
         SAMPLE_RESET},
        {"process_start_time_seconds 200\nvllm:generation_tokens_total 60\n", SIG_GEN_TOKENS,
         SAMPLE_RESET},
        {"process_start_time_seconds 100\nvllm:num_requests_running{engine=\"0\"} 1\n"
         "vllm:generation_tokens_total 60\n",
         SIG_RUNNING, SAMPLE_MISSING},
    };
    struct sample prev = read_page("vllm", before, 1000000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sample s = read_page("vllm", cases[i].page, 2000000);
        sample_compare(&s, &prev);
        assert_int_equal(s.flags[cases[i].i], cases[i].flags);
    }
    struct sample s = prev;
    sample_compare(&s, NULL);
    assert_int_equal(s.flags[SIG_GEN_TOKENS], 0);
}

static void test_stale(void **state)
{
    (void)state;
    static const char busy[] = "vllm:num_requests_running 1\nvllm:generation_tokens_total 50\n";
    struct sample prev = read_page("vllm", busy, 1000000);
    for (uint64_t t = 2; t <= 20; t++) {
        struct sample s = read_page("vllm", busy, t * 1000000);
        sample_compare(&s, &prev);
        assert_int_equal(!!(s.flags[SIG_RUNNING] & SAMPLE_STALE), t - 1 >= SAMPLE_STALE_S);
        prev = s;
    }
    struct sample s = read_page(
        "vllm", "vllm:num_requests_running 1\nvllm:generation_tokens_total 51\n", 21000000);
    sample_compare(&s, &prev);
    assert_int_equal(s.flags[SIG_RUNNING], 0);

    static const char idle[] = "vllm:num_requests_running 0\nvllm:generation_tokens_total 50\n";
    prev = read_page("vllm", idle, 1000000);
    for (uint64_t t = 2; t <= 40; t++) {
        s = read_page("vllm", idle, t * 1000000);
        sample_compare(&s, &prev);
        assert_int_equal(s.flags[SIG_RUNNING], 0);
        prev = s;
    }
}

static void test_tables(void **state)
{
    (void)state;
    for (int i = 0; i < SIG_COUNT; i++)
        assert_non_null(signal_name((enum signal_id)i));
    char choices[200] = "";
    for (uint32_t i = 0; dialect_at(i); i++) {
        const struct dialect *d = dialect_at(i);
        assert_ptr_equal(dialect_find(d->name), d->only_read ? NULL : d);
        assert_non_null(d->hists);
        if (!d->only_read && !d->companion)
            (void)snprintf(choices + strlen(choices), sizeof(choices) - strlen(choices), "%s%s",
                           choices[0] ? "|" : "", d->name);
    }
    assert_string_equal(choices, dialect_choices);
    assert_null(dialect_find("no-such-engine"));
}

static void test_gone_flags(void **state)
{
    (void)state;
    char *argv[] = {(char[]){"vllm"},
                    (char[]){"serve"},
                    (char[]){"--swap-space=8"},
                    (char[]){"--swap-spaces"},
                    (char[]){"--device"},
                    (char[]){"cuda"},
                    NULL};
    size_t at = 0;
    const struct dialect *d = dialect_find("vllm");
    assert_string_equal(dialect_gone(d, argv, &at)->flag, "--swap-space");
    assert_string_equal(dialect_gone(d, argv, &at)->flag, "--device");
    assert_null(dialect_gone(d, argv, &at));
    at = 0;
    assert_null(dialect_gone(dialect_find("evenkeel"), argv, &at)); /* it warns by itself */
    assert_null(dialect_gone(d, NULL, &at));
}

/* Two engines whose numbers are no number together: the sum is not used. */
static void test_sums_beyond_numbers(void **state)
{
    (void)state;
    struct sample s = read_page("vllm",
                                "vllm:generation_tokens_total{engine=\"0\"} 1e308\n"
                                "vllm:generation_tokens_total{engine=\"1\"} 1e308\n"
                                "vllm:num_requests_running{engine=\"0\"} 7\n",
                                1);
    assert_true(s.good);
    assert_false(sample_has(&s, SIG_GEN_TOKENS));
    assert_int_equal(s.flags[SIG_GEN_TOKENS], SAMPLE_RANGE);
    assert_true(sample_has(&s, SIG_RUNNING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gone_flags),
        cmocka_unit_test(test_vllm_page),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_exposition),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_sums_beyond_numbers),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* evenkeelctl's text: columns, what is missing, widths, and no control bytes from outside. */
#include "supervisor/ctl/show.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/buf.h"

static const char SERVERS[] =
    "{\"servers\":[{\"name\":\"s1\",\"engine\":\"evenkeel\",\"state\":\"ready\",\"pid\":7,"
    "\"uptime_s\":723,\"ready\":true,\"mode\":\"act\",\"policy_state\":\"hold\",\"restarts\":1,"
    "\"limits\":{\"max_num_running_seqs\":{\"value\":12,\"ceiling\":16,\"min\":2,\"pinned\":true},"
    "\"max_num_batched_tokens\":{\"value\":512,\"ceiling\":512,\"min\":64,\"pinned\":false}},"
    "\"signals\":{\"kv_usage\":0.87,\"running\":12,\"waiting\":4,\"ttft_p99_s\":null,"
    "\"blocks_total\":128,\"blocks_cached\":12},"
    "\"last_decision\":{\"at_s\":1.5e9,\"reason\":\"LOWER_KV_HARM\",\"why\":\"lo\\u001b[31mw\"}},"
    "{\"name\":\"empty\"}]}";
static const char DECISIONS[] =
    "{\"decisions\":[{\"at_s\":1.5e9,\"action\":\"raise\",\"knob\":\"max_num_running_seqs\","
    "\"from\":12,\"to\":16,\"reason\":\"RAISE_HEADROOM\",\"applied\":false,\"why\":\"new\"},"
    "{\"at_s\":1.4e9,\"action\":\"note\",\"reason\":\"SAT_LOW\",\"measured\":0.97,\"limit\":0.92,"
    "\"held_s\":30,\"why\":\"old\"}]}";

static json_t *load(const char *text)
{
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    return j;
}

static void test_lists(void **state)
{
    (void)state;
    json_t *servers = load(SERVERS), *decisions = load(DECISIONS);
    struct ek_buf out = {0};
    show_status(servers, NULL, 0, &out);
    assert_non_null(
        strstr(out.data, "s1          evenkeel  ready         act      hold      12m 3s"));
    assert_non_null(strstr(out.data, "87%   12/16"));
    assert_non_null(strstr(out.data, "LOWER_KV_HARM: lo?[31mw"));
    assert_non_null(strstr(out.data, "\nempty       -"));
    assert_null(strchr(out.data, '\033'));
    ek_buf_clear(&out);
    show_status(servers, "empty", 0, &out);
    assert_null(strstr(out.data, "s1"));
    ek_buf_clear(&out);
    show_limits(servers, "s1", &out);
    assert_non_null(strstr(out.data, "max_num_running_seqs      12      16       2      yes"));
    assert_non_null(strstr(out.data, "max_num_batched_tokens    512     512      64     no"));
    ek_buf_clear(&out);
    show_decisions(decisions, NULL, NULL, 0, &out);
    const char *old = strstr(out.data, "old"), *new = strstr(out.data, "new");
    assert_true(old && new &&old < new);
    assert_non_null(
        strstr(out.data, "max_num_running_seqs 12 -> 16  RAISE_HEADROOM  (not applied)"));
    assert_non_null(strstr(out.data, "KV usage 97 %, threshold 92 %, held 30 s"));
    assert_int_equal(strncmp(out.data, "2014-05-1", 9), 0); /* long ago: with its day */
    ek_buf_clear(&out);
    json_t *crash =
        load("{\"decisions\":[{\"at_s\":2e9,\"reason\":\"READY\",\"why\":\"(a-b): x\"},"
             "{\"at_s\":1e9,\"reason\":\"CRASH\",\"signature\":\"hub-not-found\",\"why\":\"x\"}]}");
    show_decisions(crash, NULL, NULL, 0, &out);
    assert_non_null(strstr(out.data, "\nmore  evenkeelctl diagnose --explain hub-not-found\n"));
    (void)json_object_del(json_array_get(json_object_get(crash, "decisions"), 1), "signature");
    ek_buf_clear(&out);
    show_decisions(crash, NULL, NULL, 0, &out);
    assert_null(strstr(out.data, "more  "));
    json_decref(crash);
    ek_buf_clear(&out);
    json_t *now = load("{\"name\":\"s1\",\"waiting_why\":\"16 wait: 9 fit\","
                       "\"waits_for\":{\"why\":\"no raise\"}}");
    show_decisions(decisions, now, NULL, 0, &out);
    assert_non_null(strstr(out.data, "\nnow  16 wait: 9 fit\n     no raise\n"));
    ek_buf_clear(&out);
    json_t *one = json_pack("{s:[O]}", "servers", now);
    show_status(one, NULL, 0, &out);
    assert_non_null(strstr(out.data, "\n    16 wait: 9 fit\n"));
    json_decref(one);
    json_decref(now);
    ek_buf_clear(&out);
    json_t *nothing = load("[]");
    show_decisions(nothing, NULL, NULL, 0, &out);
    show_status(nothing, NULL, 0, &out);
    show_limits(nothing, NULL, &out);
    json_decref(nothing);
    ek_buf_done(&out);
    json_decref(servers);
    json_decref(decisions);
}

static size_t longest(const char *text)
{
    size_t most = 0, n = 0;
    for (; *text; text++) {
        n = *text == '\n' ? 0 : n + (((unsigned char)*text & 0xC0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

/* On a terminal lines fit; what matters most is there whatever its width. */
static void test_widths(void **state)
{
    static const char LONG[] =
        "{\"servers\":[{\"name\":\"qwen3-\u00e4\",\"engine\":\"evenkeel\",\"state\":\"ready\","
        "\"pid\":7,\"uptime_s\":273723,\"mode\":\"act\",\"policy_state\":\"recover\","
        "\"restarts\":12,\"limits\":{\"max_num_running_seqs\":{\"value\":112,\"ceiling\":256}},"
        "\"signals\":{\"kv_usage\":1,\"running\":112,\"waiting\":1400,"
        "\"generation_tokens_per_s\":14962},\"last_decision\":{\"at_s\":1.5e9,\"reason\":"
        "\"LOWER_KV_HARM\",\"why\":\"lowered max_num_running_seqs from 256 to 112 (200 ran): KV "
        "usage "
        "1.00 above 0.85 for 4 s with 17 preemptions/s and 0.31 recomputed tokens per new one\"}},"
        "{\"name\":\"b\",\"state\":\"restarting\"}]}";
    static const char EVENT[] =
        "{\"at_s\":1.5e9,\"action\":\"lower\",\"knob\":\"max_num_batched_tokens\",\"from\":2048,"
        "\"to\":1024,\"reason\":\"LOWER_TOKEN_BUDGET\",\"server\":\"qwen3\",\"applied\":false,"
        "\"why\":\"a reason that is long enough to be wrapped, since it takes more than the eighty "
        "columns that most terminals have\",\"questions\":[{\"question\":\"Did the machine run out "
        "of memory, and who was it that asked for the last of "
        "it?\",\"answer\":\"Yes\",\"rests_on\":"
        "\"the exit file\",\"then\":\"Lower --gpu-memory-utilization, since nothing else makes "
        "room "
        "where nothing is left to be taken.\"}]}";
    json_t *servers = load(LONG), *event = load(EVENT);
    json_t *decisions = json_pack("{s:[O]}", "decisions", event);
    struct ek_buf out = {0};
    (void)state;
    for (uint32_t cols = 60; cols <= 200; cols++) {
        ek_buf_clear(&out);
        show_status(servers, NULL, cols, &out);
        if (longest(out.data) > cols)
            fail_msg("%u columns:\n%s", cols, out.data);
        assert_non_null(strstr(out.data, "STATE"));
        assert_true(strstr(out.data, "112/256") && strstr(out.data, "100%") &&
                    strstr(out.data, "1400"));
        assert_true((strstr(out.data, "ENGINE") != NULL) >= (cols >= 120));
        ek_buf_clear(&out);
        show_event(event, cols, &out);
        show_decisions(decisions, NULL, NULL, cols, &out);
        if (longest(out.data) > cols)
            fail_msg("%u columns:\n%s", cols, out.data);
    }
    ek_buf_clear(&out);
    show_status(servers, NULL, 80, &out);
    assert_int_equal(strncmp(out.data, "SERVER   STATE ", 15), 0);
    assert_non_null(strstr(out.data, "RUN  WAIT  KV    LIMIT"));
    /* without a terminal: lines as long as they are */
    ek_buf_clear(&out);
    show_event(event, 0, &out);
    assert_true(longest(out.data) > 100);
    ek_buf_done(&out);
    json_decref(decisions);
    json_decref(event);
    json_decref(servers);
}

static void test_parts(void **state)
{
    (void)state;
    static const struct {
        double part, limit, whole;
        const char *want;
    } bars[] = {
        {0, 0, 10, "[..........]"},   {5, 5, 10, "[#####.....]"}, {3, 7, 10, "[###----...]"},
        {20, 20, 10, "[##########]"}, {1, 1, 0, "[..........]"},  {-1, 4, 10, "[----......]"},
    };
    struct ek_buf out = {0};
    for (size_t i = 0; i < sizeof(bars) / sizeof(bars[0]); i++) {
        ek_buf_clear(&out);
        show_bar(&out, bars[i].part, bars[i].limit, bars[i].whole, 10);
        assert_string_equal(out.data, bars[i].want);
    }
    static const struct {
        double seconds;
        const char *want;
    } times[] = {{-1, "-"},       {1.54, "1.5s"},  {42, "42s"},
                 {723, "12m 3s"}, {7260, "2h 1m"}, {270000, "3d 3h"}};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        ek_buf_clear(&out);
        show_duration(&out, times[i].seconds);
        assert_string_equal(out.data, times[i].want);
    }
    ek_buf_clear(&out);
    show_clock(&out, (double)time(NULL));
    assert_int_equal(strlen(out.data), 8);
    ek_buf_clear(&out);
    show_clock(&out, 0);
    assert_string_equal(out.data, "--:--:--");
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_widths),
                                       cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
    show_status(servers, NULL, &out);
    assert_non_null(
        strstr(out.data, "s1          evenkeel  ready         act      hold      12m 3s"));
    assert_non_null(strstr(out.data, "87%   12/16"));
    assert_non_null(strstr(out.data, "LOWER_KV_HARM: lo?[31mw"));
    assert_non_null(strstr(out.data, "\nempty       -"));
    assert_null(strchr(out.data, '\033'));
    ek_buf_clear(&out);
    show_status(servers, "empty", &out);
    assert_null(strstr(out.data, "s1"));
    ek_buf_clear(&out);
    show_limits(servers, "s1", &out);
    assert_non_null(strstr(out.data, "max_num_running_seqs      12      16       2      yes"));
    assert_non_null(strstr(out.data, "max_num_batched_tokens    512     512      64     no"));
    ek_buf_clear(&out);
    show_decisions(decisions, &out);
    const char *old = strstr(out.data, "old"), *new = strstr(out.data, "new");
    assert_true(old && new &&old < new);
    assert_non_null(
        strstr(out.data, "max_num_running_seqs 12 -> 16  RAISE_HEADROOM  (not applied)"));
    assert_non_null(strstr(out.data, "measured 0.97, threshold 0.92, held 30 s"));
    assert_int_equal(strncmp(out.data, "2014-05-1", 9), 0); /* long ago: with its day */
    ek_buf_clear(&out);
    json_t *nothing = load("[]");
    show_decisions(nothing, &out);
    show_status(nothing, NULL, &out);
    show_limits(nothing, NULL, &out);
    json_decref(nothing);
    ek_buf_done(&out);
    json_decref(servers);
    json_decref(decisions);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

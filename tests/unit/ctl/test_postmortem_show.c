/* Lines that fit a terminal, dashes for what is not there, and no control characters. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/ctl/postmortem_show.h"

static const char *const answer =
    "{\"ends\":[{\"at_s\":1795000004.1,\"class\":\"SIGNAL\"},{\"at_s\":1795000000,\"class\":\"A"
    "\\u001b\"}],\"end\":{\"at_s\":1795000004.1,\"pid\":42,\"uptime_s\":90,\"class\":\"SIGNAL\","
    "\"why\":\"Signal 9\\u001b[2J ended it.\",\"summary\":[\"Blocks ran out 2.1 s before.\",7],"
    "\"seconds\":[{\"at_s\":1795000001,\"steps\":123,\"prefill_tokens\":2048,\"decode_rows\":999,"
    "\"waiting\":5,\"blocks_used\":90,\"blocks_free\":5,\"blocks_cached\":5,\"step_p50_us\":1200,"
    "\"step_max_us\":33100,\"limit_seqs\":64,\"limit_tokens\":2048,\"resident_mib\":null},"
    "{\"at_s\":1795000004}]}}";

static void test_table(void **state)
{
    (void)state;
    json_t *j = json_loads(answer, 0, NULL);
    struct ek_buf out = {0};
    assert_non_null(j);
    postmortem_show(j, "s1", 1, 80, &out);
    assert_non_null(strstr(out.data, "s1 ended at 2026-11-18 "));
    assert_non_null(strstr(out.data, "SIGNAL: Signal 9?[2J ended it.\n"));
    assert_non_null(strstr(out.data, "\n- Blocks ran out 2.1 s before.\n- -\n"));
    assert_non_null(strstr(out.data, "   123   2048    999     5     90     10   1.2   33.1   64"
                                     "   2048     -\n     ...\n"));
    assert_non_null(strstr(out.data, "* 1  2026-11-18"));
    assert_null(strchr(out.data, '\x1b'));
    for (const char *line = out.data; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 80);
    ek_buf_done(&out);
    json_decref(j);
}

static void test_none(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"ends\":[],\"end\":null}", "No end of s1 is kept"},
        {"{}", "No end of s1 is kept"},
        {"{\"ends\":[{}],\"end\":null}", "There is no end 2 of s1."},
        {"{\"end\":{}}", "s1 ended at -"},
        {"{\"end\":{\"samples\":{\"columns\":[7],\"rows\":[[],7]}}}", "99 % s"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *j = json_loads(cases[i][0], 0, NULL);
        struct ek_buf out = {0};
        postmortem_show(j, "s1", 2, 0, &out);
        if (!out.data || !strstr(out.data, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], out.data ? out.data : "");
        ek_buf_done(&out);
        json_decref(j);
    }
}

int main(void)
{
    (void)setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

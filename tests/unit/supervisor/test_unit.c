/* What goes into a unit's environment file comes out of systemd's two layers of quotes as it was.
 */
#include "supervisor/io/unit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "tests/unit/alloc.h"

static const struct {
    const char *words[4], *line;
} cases[] = {
    {{NULL}, "X=\"\"\n"},
    {{"--model", "/m", NULL}, "X=\"--model /m\"\n"},
    {{"a b", "", NULL}, "X=\"a\\\\ b ''\"\n"},
    {{"it's", "\"q\"", NULL}, "X=\"it\\\\'s \\\\\\\"q\\\\\\\"\"\n"},
    {{"$HOME", "`x`", "a\\b", NULL}, "X=\"\\$HOME \\`x\\` a\\\\\\\\b\"\n"},
};

static int put(size_t i, struct ek_buf *line)
{
    struct ek_buf words = {0};
    int r = 0;
    for (size_t k = 0; cases[i].words[k] && r == 0; k++)
        r = unit_put_word(&words, cases[i].words[k]);
    if (r == 0)
        r = unit_put_line(line, "X", words.data ? words.data : "");
    ek_buf_done(&words);
    return r;
}

static void test_command_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf line = {0};
        assert_int_equal(put(i, &line), 0);
        assert_string_equal(line.data, cases[i].line);
        ek_buf_done(&line);
    }
    struct ek_buf out = {0};
    assert_int_equal(unit_put_word(&out, "a\nb"), -EBADMSG);
    assert_int_equal(unit_put_line(&out, "X", "\x1b"), -EBADMSG);
    ek_buf_done(&out);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct ek_buf line = {0};
        alloc_fail_at(n);
        int r = put(4, &line);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed)
            assert_string_equal(line.data, cases[4].line);
        ek_buf_done(&line);
        if (!failed)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_command_line),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

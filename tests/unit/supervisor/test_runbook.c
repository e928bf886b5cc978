/* The runbook as a page: what its Markdown becomes, and that nothing of it becomes markup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/web/runbook.h"

static const struct {
    const char *in, *want;
} cases[] = {
    {"", ""},
    {"one\ntwo\n\nthree", "<p>one\ntwo</p>\n<p>three</p>\n"},
    {"# A Title\ntext", "<h1 id=\"a-title\">A Title</h1>\n<p>text</p>\n"},
    {"text\n## EvenkeelX\n", "<p>text</p>\n<h2 id=\"evenkeelx\">EvenkeelX</h2>\n"},
    {"a\n```sh\nx | y  # <z>\n\n# no heading\n```\nb",
     "<p>a</p>\n<pre>x | y  # &lt;z&gt;\n\n# no heading\n</pre>\n<p>b</p>\n"},
    {"```\nopen", "<pre>open\n</pre>\n"},
    {"type `a <b>` now", "<p>type <code>a &lt;b&gt;</code> now</p>\n"},
    {"one ` alone", "<p>one ` alone</p>\n"},
    {"see [control.md](control.md), [or] (not", "<p>see control.md, [or] (not</p>\n"},
    {"[a](b", "<p>[a](b</p>\n"},
    {"[a]", "<p>[a]</p>\n"},
    {"<script>\"&'", "<p>&lt;script&gt;&quot;&amp;&#39;</p>\n"},
};

static void test_cases(void **state)
{
    struct ek_buf out = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ek_buf_clear(&out);
        runbook_body(cases[i].in, &out);
        assert_string_equal(out.data ? out.data : "", cases[i].want);
    }
    ek_buf_done(&out);
}

static void test_page(void **state)
{
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(runbook_write("0123", &out), 0);
    assert_non_null(strstr(out.data, "<style nonce=\"0123\">"));
    assert_non_null(strstr(out.data, "<h2 id=\"evenkeelkvpressure\">EvenkeelKvPressure</h2>"));
    assert_non_null(strstr(out.data, "<pre>evenkeelctl explain\n"));
    assert_null(strstr(out.data, "<script"));
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

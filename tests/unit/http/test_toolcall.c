/* Tool calls in text: every case whole and cut at every byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/http/toolcall.h"
#include "tests/unit/alloc.h"

#define CALL(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"

/* `want` is the text, then "|name:args" for each call. */
static const struct {
    const char *in, *want;
} cases[] = {
    {"", ""},
    {"no call", "no call"},
    {"  \n", "  \n"},
    {"a < b <tool_ cal", "a < b <tool_ cal"},
    {"ends with <tool_call", "ends with <tool_call"},
    {CALL("{\"city\": \"Sofia\"}"), "|f:{\"city\": \"Sofia\"}"},
    {"\n" CALL("{}") "\n", "|f:{}"},
    {"Look:\n" CALL("{}"), "Look:\n|f:{}"},
    {CALL("{\"n\":1}") "\n" CALL("{\"n\":2}"), "|f:{\"n\":1}|f:{\"n\":2}"},
    {CALL("{}") " and " CALL("{}") " end", " and  end|f:{}|f:{}"},
    {"<tool_call>{\"arguments\":{\"a\":[{\"b\":\"}\\\"]\"}]} ,\"name\":\"g\"}</tool_call>",
     "|g:{\"a\":[{\"b\":\"}\\\"]\"}]}"},
    /* numbers stay as they were written */
    {CALL("{\"x\": 0.1, \"y\": 123456789012345678901}"),
     "|f:{\"x\": 0.1, \"y\": 123456789012345678901}"},
    /* only the end marker is missing */
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}", "|f:{}"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_", "<tool_call>{\"name\":\"f\","
                                                            "\"arguments\":{}}</tool_"},
    /* not calls: they stay text */
    {"<tool_call>{\"name\":\"f\",\"argum", "<tool_call>{\"name\":\"f\",\"argum"},
    {"<tool_call>", "<tool_call>"},
    {"<tool_call></tool_call>", "<tool_call></tool_call>"},
    {CALL("[1]"), CALL("[1]")},
    {CALL("\"{}\""), CALL("\"{}\"")},
    {CALL("{\"a\":1,\"a\":2}"), CALL("{\"a\":1,\"a\":2}")},
    {"<tool_call>{\"arguments\":{}}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"a\\u0000b\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"a\\u0000b\",\"arguments\":{}}</tool_call>"},
    {"<tool_call>oh</tool_call>" CALL("{}"), "<tool_call>oh</tool_call>|f:{}"},
};

static void show(const struct toolcalls *t, struct ek_buf *out)
{
    for (uint32_t i = 0; i < t->count; i++)
        (void)ek_buf_printf(out, "|%s:%s", t->call[i].name, t->call[i].args);
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        size_t len = strlen(cases[c].in);
        for (size_t piece = 1; piece <= len + 1; piece++) {
            struct toolcalls t = {0};
            struct ek_buf out = {0};
            for (size_t at = 0; at < len; at += piece) {
                size_t n = len - at < piece ? len - at : piece;
                assert_int_equal(toolcalls_push(&t, cases[c].in + at, n, &out), 0);
            }
            assert_int_equal(toolcalls_end(&t, &out), 0);
            show(&t, &out);
            assert_string_equal(out.data ? out.data : "", cases[c].want);
            toolcalls_done(&t);
            ek_buf_done(&out);
        }
    }
}

static void test_text_is_not_held(void **state)
{
    struct toolcalls t = {0};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(toolcalls_push(&t, "Hello <to", 9, &out), 0);
    assert_string_equal(out.data, "Hello ");
    assert_int_equal(toolcalls_push(&t, "ken>", 4, &out), 0);
    assert_string_equal(out.data, "Hello <token>");
    toolcalls_done(&t);
    ek_buf_done(&out);
}

static void test_too_many(void **state)
{
    struct toolcalls t = {0};
    struct ek_buf out = {0};
    (void)state;
    for (unsigned i = 0; i <= TOOLCALL_MOST; i++)
        assert_int_equal(toolcalls_push(&t, CALL("{}"), strlen(CALL("{}")), &out), 0);
    assert_int_equal(t.count, TOOLCALL_MOST);
    assert_string_equal(out.data, CALL("{}"));
    toolcalls_done(&t);
    ek_buf_done(&out);
}

static void test_out_of_memory(void **state)
{
    static const char in[] = "a " CALL("{\"n\":1}") CALL("{}") CALL("{}");
    (void)state;
    for (long n = 1;; n++) {
        struct toolcalls t = {0};
        struct ek_buf out = {0};
        alloc_fail_at(n);
        int r = toolcalls_push(&t, in, sizeof(in) - 1, &out);
        if (r == 0)
            r = toolcalls_end(&t, &out);
        bool hit = alloc_failed();
        alloc_fail_at(0);
        assert_true(r == 0 || r == -ENOMEM);
        assert_true(hit || t.count == 3);
        toolcalls_done(&t);
        ek_buf_done(&out);
        if (!hit)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_text_is_not_held),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* One form of JSON: what becomes of a text, what is refused, and that a parser reads the same of
 * both. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/jsonform.h"
#include "tests/unit/alloc.h"

static const struct {
    const char *text, *form; /* NULL = it is refused */
} cases[] = {
    {"{}", "{}"},
    {" \t\r\n{ \"a\" : [ 1 , true,false , null ] }\n", "\n{\"a\":[1,true,false,null]}\n"},
    {"{\r\n \"a\"\n:\n\n 1 \n, \"b\": [\n]}", "{\n\"a\"\n:\n\n1\n,\"b\":[\n]}"},
    {"[[],{},[{}],\"\"]", "[[],{},[{}],\"\"]"},
    {"{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"}, /* who parses it says what that means */
    {"[-0, 1.50, 1e+05, 1E-7, 123456789012345678901234567890]",
     "[-0,1.50,1e+05,1E-7,123456789012345678901234567890]"},
    {"[NaN, Infinity , -Infinity]", "[NaN,Infinity,-Infinity]"},
    {"[\"\\/\\\"\\\\\\b\\f\\n\\r\\t\"]", "[\"/\\\"\\\\\\b\\f\\n\\r\\t\"]"},
    {"[\"\\u0041\\u00e4\\u20AC\\ud83D\\uDE00\"]", "[\"A\u00e4\u20ac\U0001F600\"]"},
    {"[\"\\u000A\\u001F\\u0022\\u005c\\u0000\\u007f\"]", "[\"\\n\\u001f\\\"\\\\\\u0000\x7f\"]"},
    {"[\"\u00e4\u20ac\U0001F600\"]", "[\"\u00e4\u20ac\U0001F600\"]"},
    {"1", "1"}, /* no object and no list: for who parses it, too */
    {"", NULL},
    {"  ", NULL},
    {"{", NULL},
    {"}", NULL},
    {"[1", NULL},
    {"[1,]", NULL},
    {"[,1]", NULL},
    {"{\"a\"}", NULL},
    {"{\"a\":}", NULL},
    {"{\"a\":1,}", NULL},
    {"{a:1}", NULL},
    {"{1:1}", NULL},
    {"[1}", NULL},
    {"{\"a\":1]", NULL},
    {"[1] 2", NULL},
    {"[1][2]", NULL},
    {"[1 2]", NULL},
    {"[01]", NULL},
    {"[-]", NULL},
    {"[+1]", NULL},
    {"[1.]", NULL},
    {"[.5]", NULL},
    {"[1e]", NULL},
    {"[0x10]", NULL},
    {"[True]", NULL},
    {"[nul]", NULL},
    {"[nulll]", NULL},
    {"['a']", NULL},
    {"[\"a]", NULL},
    {"[\"a\n\"]", NULL},
    {"[\"\\", NULL},
    {"[\"\\x\"]", NULL},
    {"[\"\\u12\"]", NULL},
    {"[\"\\u12g4\"]", NULL},
    {"[\"\\udc00\"]", NULL},
    {"[\"\\ud800\"]", NULL},
    {"[\"\\ud800\\u0041\"]", NULL},
    {"[\"\xff\"]", NULL},
    {"[\"\xc0\x80\"]", NULL},
    {"[\"\xed\xa0\x80\"]", NULL},
    {"[\"\xe2\x82\"]", NULL},
    {"\xef\xbb\xbf{}", NULL},
    {"/* */{}", NULL},
};

static void test_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *text = cases[i].text, *form = cases[i].form;
        struct ek_buf out = {0};
        int r = ek_json_form(text, strlen(text), &out);
        if (r != (form ? 0 : -EBADMSG) || (form && strcmp(out.data, form) != 0))
            fail_msg("%s: %d, %s", text, r, out.data ? out.data : "");
        assert_int_equal(ek_json_has_form(text, strlen(text)), form && strcmp(text, form) == 0);
        if (form)
            assert_true(ek_json_has_form(form, strlen(form)));
        ek_buf_done(&out);
    }
}

/* Every text above that jansson takes says the same in its form. */
static void test_same_values(void **state)
{
    uint32_t taken = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        json_error_t e;
        json_t *was = ek_json_parse(cases[i].text, strlen(cases[i].text), JSON_ALLOW_NUL, &e);
        if (was) {
            assert_int_equal(ek_json_form(cases[i].text, strlen(cases[i].text), &out), 0);
            json_t *is = ek_json_parse(out.data, out.len, JSON_ALLOW_NUL, &e);
            assert_true(json_equal(was, is));
            json_decref(is);
            taken++;
        }
        json_decref(was);
        ek_buf_done(&out);
    }
    assert_true(taken >= 9);
}

static void test_depth(void **state)
{
    char text[2 * (EK_JSON_DEPTH_MOST + 1)];
    (void)state;
    for (size_t depth = EK_JSON_DEPTH_MOST; depth <= EK_JSON_DEPTH_MOST + 1; depth++) {
        struct ek_buf out = {0};
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        int r = ek_json_form(text, 2 * depth, &out);
        assert_int_equal(r, depth == EK_JSON_DEPTH_MOST ? 0 : -EBADMSG);
        ek_buf_done(&out);
    }
}

static void test_no_memory(void **state)
{
    static const char text[] = "{\"a\": [1,\n\"\\u0041\"]}\n\n\n\n\n\n";
    (void)state;
    for (long n = 1;; n++) {
        struct ek_buf out = {0};
        alloc_fail_at(n);
        int r = ek_json_form(text, strlen(text), &out);
        bool failed = alloc_failed();
        ek_buf_done(&out);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_form),
        cmocka_unit_test(test_same_values),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

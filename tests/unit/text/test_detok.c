/* Tokens to text: whole characters only, stop strings over token borders, nothing lost at the end.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"
#include "tests/unit/alloc.h"

static struct tokenizer *g_tok; /* made once for the group */

static int setup(void **state)
{
    (void)state;
    return tokenizer_load("models/evenkeel-tiny", &g_tok, NULL);
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(g_tok);
    return 0;
}

static void test_answers(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/fixtures/expected.json", 0, NULL), *c, *id;
    size_t i, k, seen = 0;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const char *text = json_string_value(json_object_get(c, "output_text"));
        struct detok d;
        struct ek_buf out = {0};
        if (!text)
            continue;
        detok_init(&d, g_tok);
        d.skip_specials = true;
        (void)ek_buf_puts(&out, ""); /* so that data is a string */
        json_array_foreach(json_object_get(c, "output_token_ids"), k, id)
        {
            assert_int_equal(detok_push(&d, (int32_t)json_integer_value(id), &out), 0);
            assert_int_equal(utf8_valid(out.data, out.len), out.len);
        }
        assert_int_equal(detok_flush(&d, &out), 0);
        assert_string_equal(out.data, text);
        detok_done(&d);
        ek_buf_done(&out);
        seen++;
    }
    assert_true(seen >= 10);
    json_decref(root);
}

static const struct {
    const char *text; /* encoded, then pushed token by token */
    const char *stop[3];
    bool include;
    const char *out;
    int hit;
} stops[] = {
    {"Hello world", {NULL}, false, "Hello world", -1},
    {"Hello world", {"lo wo"}, false, "Hel", 0},
    {"Hello world", {"lo wo"}, true, "Hello wo", 0},
    {"Hello world", {"zzz", "w"}, false, "Hello ", 1},
    {"Hello world", {"world!"}, false, "Hello world", -1},
    {"Hello world", {""}, false, "Hello world", -1},
    {"ababababc", {"ababc"}, false, "abab", 0},
    {"aaaaaaab", {"aab"}, false, "aaaaa", 0},
    {"aaaaaaaa", {"aab"}, false, "aaaaaaaa", -1},
    {"one\n\ntwo", {"\n\n"}, false, "one", 0},
    {"xyz", {"yz", "xyz"}, false, "", 1},
    {"caf\xC3\xA9 \xF0\x9F\x98\x80!", {"\xF0\x9F\x98\x80"}, false, "caf\xC3\xA9 ", 0},
    {"\xF0\x9F\x98\x80\xF0\x9F\x98\x81",
     {"\xF0\x9F\x98\x81"},
     true,
     "\xF0\x9F\x98\x80\xF0\x9F\x98\x81",
     0},
    {"\xF0\x9F\x98\x80\xF0\x9F\x98\x82",
     {"\xF0\x9F\x98\x81"},
     true,
     "\xF0\x9F\x98\x80\xF0\x9F\x98\x82",
     -1},
    {"a<|im_end|>b", {NULL}, false, "ab", -1},
};

static void test_stops(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        struct detok d;
        struct ek_buf out = {0};
        struct token_vec v = {0};
        int r = 0;
        detok_init(&d, g_tok);
        d.skip_specials = true;
        d.include_stop = stops[i].include;
        while (d.stops < 3 && stops[i].stop[d.stops]) {
            d.stop[d.stops] = stops[i].stop[d.stops];
            d.stops++;
        }
        (void)ek_buf_puts(&out, ""); /* so that data is a string */
        assert_int_equal(tokenizer_encode(g_tok, stops[i].text, strlen(stops[i].text), true, 0, &v),
                         0);
        for (size_t k = 0; k < v.count && r == 0; k++) {
            r = detok_push(&d, v.at[k], &out);
            assert_true(r >= 0);
            assert_int_equal(utf8_valid(out.data, out.len), out.len);
        }
        assert_int_equal(detok_flush(&d, &out), 0);
        assert_string_equal(out.data, stops[i].out);
        assert_int_equal(d.hit, stops[i].hit);
        detok_done(&d);
        token_vec_done(&v);
        ek_buf_done(&out);
    }
}

/* Pushes the tokens of single bytes. */
static void push_bytes(struct detok *d, const char *s, struct ek_buf *out)
{
    for (; *s; s++) {
        char name[UTF8_MOST + 1] = "";
        (void)utf8_put(name, utf8_from_byte((uint8_t)*s));
        int32_t id = tokenizer_find(g_tok, name);
        assert_true(id >= 0);
        assert_int_equal(detok_push(d, id, out), 0);
        assert_int_equal(utf8_valid(out->data, out->len), out->len);
    }
}

static void test_bad_bytes(void **state)
{
    static const struct {
        const char *bytes, *early, *out;
    } cases[] = {
        {"\xE2\x82", "", "\xEF\xBF\xBD"},
        {"\xE2\x82\xAC", "\xE2\x82\xAC", "\xE2\x82\xAC"},
        {"\xE2\x82x", "\xEF\xBF\xBDx", "\xEF\xBF\xBDx"},
        {"\xFF\xFEz", "\xEF\xBF\xBD\xEF\xBF\xBDz", "\xEF\xBF\xBD\xEF\xBF\xBDz"},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80",
         "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct detok d;
        struct ek_buf out = {0};
        detok_init(&d, g_tok);
        (void)ek_buf_puts(&out, ""); /* so that data is a string */
        push_bytes(&d, cases[i].bytes, &out);
        assert_string_equal(out.data, cases[i].early);
        assert_int_equal(detok_flush(&d, &out), 0);
        assert_string_equal(out.data, cases[i].out);
        detok_done(&d);
        ek_buf_done(&out);
    }
}

/* What may become a stop string is held, what cannot any more is let go at once. */
static void test_hold(void **state)
{
    (void)state;
    struct detok d;
    struct ek_buf out = {0};
    detok_init(&d, g_tok);
    d.stop[d.stops++] = "END";
    (void)ek_buf_puts(&out, ""); /* so that data is a string */
    push_bytes(&d, "xE", &out);
    assert_string_equal(out.data, "x");
    push_bytes(&d, "N", &out);
    assert_string_equal(out.data, "x");
    push_bytes(&d, "E", &out);
    assert_string_equal(out.data, "xEN");
    assert_int_equal(detok_push(&d, -5, &out), 0); /* no such token: no text */
    assert_int_equal(detok_flush(&d, &out), 0);
    assert_string_equal(out.data, "xENE");
    detok_done(&d);
    ek_buf_done(&out);
}

static void test_alloc(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct detok d;
        struct ek_buf out = {0};
        detok_init(&d, g_tok);
        alloc_fail_at(n);
        int r = detok_push(&d, 262, &out);
        if (r == 0)
            r = detok_flush(&d, &out);
        bool failed = alloc_failed();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        detok_done(&d);
        ek_buf_done(&out);
        if (!failed)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),   cmocka_unit_test(test_stops),
        cmocka_unit_test(test_bad_bytes), cmocka_unit_test(test_hold),
        cmocka_unit_test(test_alloc),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

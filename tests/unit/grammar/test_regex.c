/*
 * Patterns: what they match and do not match, byte by byte and by masks over a vocabulary; what is
 * refused, with its place.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/grammar/expr.h"
#include "server/grammar/grammar.h"
#include "server/grammar/regex.h"
#include "tests/unit/alloc.h"
#include "tests/unit/grammar/words.h"

static int make(const char *pattern, enum regex_form form, uint32_t least, uint32_t most,
                struct grammar **ret_grammar, struct ek_fault *fault)
{
    struct expr_set set;
    struct automaton a;
    uint32_t e = EXPR_EMPTY;
    expr_init(&set);
    uint32_t root = expr_rule_new(&set, "root");
    int r = regex_read(&set, pattern, strlen(pattern), form, least, most, &e, fault);
    expr_rule_set(&set, root, e);
    if (r == 0)
        r = automaton_make(&set, root, lexicon->longest, &a, fault);
    expr_done(&set);
    return r < 0 ? r : grammar_new(&a, root, lexicon, NULL, ret_grammar);
}

/* Whether the text, spelled in bytes, matches; each byte must be in the mask or not accordingly. */
static bool matches(struct grammar *g, const char *text)
{
    struct matcher m;
    uint32_t bits[(WORDS_COUNT + 31) / 32];
    int32_t token[256];
    uint32_t n = (uint32_t)strlen(text);
    matcher_init(&m, g);
    for (uint32_t i = 0; i < n; i++) {
        token[i] = (unsigned char)text[i];
        assert_true(matcher_follow(&m, token, sizeof(*token), i));
        (void)matcher_mask(&m, false, MATCHER_MANY, bits);
        bool allowed = bits[token[i] / 32] >> (token[i] % 32) & 1;
        if (allowed != matcher_follow(&m, token, sizeof(*token), i + 1))
            fail_msg("'%s': the mask at %u says %d", text, i, allowed);
        if (!allowed)
            return false;
    }
    assert_true(matcher_follow(&m, token, sizeof(*token), n));
    uint32_t count = matcher_mask(&m, false, MATCHER_MANY, bits);
    bool end = bits[WORDS_END / 32] >> (WORDS_END % 32) & 1;
    assert_true(count > 0 && end == matcher_complete(&m));
    return end;
}

struct text_case {
    const char *pattern, *yes[5], *no[6];
};

static const struct text_case text_cases[] = {
    {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
    {"", {""}, {"a"}},
    {"a|bc|", {"a", "bc", ""}, {"ab", "b", "c"}},
    {"a*b+c?", {"b", "abc", "aabb"}, {"", "a", "ac", "abcc"}},
    {"a{2}", {"aa"}, {"a", "aaa"}},
    {"a{2,}", {"aa", "aaaaa"}, {"a", ""}},
    {"a{,2}", {"", "a", "aa"}, {"aaa"}},
    {"a{1,3}b", {"ab", "aaab"}, {"b", "aaaab"}},
    {"a{x}", {"a{x}"}, {"a"}},
    {"{a}", {"{a}"}, {"a"}},
    {"(a|b)(c|d)", {"ac", "bd"}, {"ab", "cd"}},
    {"(?:ab)+", {"ab", "abab"}, {"aba", ""}},
    {"(?P<year>\\d{4})-(?<month>\\d\\d)", {"2024-05"}, {"2024-5", "20245-05"}},
    {"^abc$", {"abc"}, {"abcd"}},
    {"^a$|^b$", {"a", "b"}, {"ab", "c"}},
    {"\\Aab\\Z", {"ab"}, {"a"}},
    {"[a-c]", {"a", "b", "c"}, {"d", "-", ""}},
    {"[^a-c]", {"d", "\xc3\xa9", "\xf0\x9f\x98\x80", "\n"}, {"a", "dd", "\xc3", "\xff"}},
    {"[]a]", {"]", "a"}, {"b"}},
    {"[a-]", {"-", "a"}, {"b"}},
    {"[\\]\\\\^]", {"]", "\\", "^"}, {"a"}},
    {"[\\d_]", {"1", "_"}, {"a"}},
    {"[^\\w]", {" ", "-"}, {"a", "1", "\xc3\xa9"}},
    {".", {"a", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"\n", "\xc3", "\xc0\x80", "\xed\xa0\x80"}},
    {"\\d\\D\\w\\W\\s\\S", {"1aa- x", "1-_-\tx"}, {"11a- x", "\xc3\xa9"}},
    {"\\.\\*\\+\\?\\(\\)\\[\\]\\{\\}\\|\\/\\^\\$", {".*+?()[]{}|/^$"}, {"x"}},
    {"\\t\\n\\r\\x41\\u0042\\u{43}", {"\t\n\rABC"}, {"tnrABC"}},
    {"\\ud83d\\ude00", {"\xf0\x9f\x98\x80"}, {"\xf0\x9f\x98\x81"}},
    {"\xc3\xa9+", {"\xc3\xa9", "\xc3\xa9\xc3\xa9"}, {"\xc3", "e"}},
    {"[\\u0100-\\uffff]",
     {"\xc4\x80", "\xe2\x82\xac", "\xef\xbf\xbf"},
     {"a", "\xc3\xa9", "\xf0\x9f\x98\x80"}},
    {"[\\u{10000}-\\u{10ffff}]",
     {"\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"},
     {"\xf4\x90\x80\x80", "a"}},
    {"a*?b+?c??", {"b", "aabc"}, {"a"}},
    {"((a))", {"a"}, {"b"}},
    {"(a*)*", {"", "aaa"}, {"b"}},
    {"(a|a)*b", {"aab"}, {"a"}},
    {"(foo|foobar|ab|abcd)", {"foo", "foobar", "abcd"}, {"foob", "abc"}},
    {"a{0}b", {"b"}, {"ab"}},
    {"(?i)a[b-c][^d]", {"aBe", "ACE"}, {"abd", "abD"}},
    {"a(?i:b.)c(?s:.)", {"aBxc\n", "abXcx"}, {"Abxcx", "ab\ncx", "abxCx"}},
};

static void test_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(text_cases) / sizeof(text_cases[0]); i++) {
        const struct text_case *c = &text_cases[i];
        struct grammar *g;
        struct ek_fault f = {0};
        int r = make(c->pattern, REGEX_TEXT, 0, EXPR_MANY, &g, &f);
        if (r != 0)
            fail_msg("%s: %d %s", c->pattern, r, f.msg);
        for (int k = 0; k < 5 && (c->yes[k] || k == 0); k++)
            if (c->yes[k] && !matches(g, c->yes[k]))
                fail_msg("%s does not match '%s'", c->pattern, c->yes[k]);
        for (int k = 0; k < 6 && c->no[k]; k++)
            if (matches(g, c->no[k]))
                fail_msg("%s matches '%s'", c->pattern, c->no[k]);
        grammar_unref(g);
    }
}

/* As the inside of a JSON string, found anywhere. */
static const struct text_case json_cases[] = {
    {"^a\"b$", {"a\\\"b"}, {"a\"b", "ab"}},
    {"^\\\\$", {"\\\\"}, {"\\"}},
    {"^\\n\\t$", {"\\n\\t"}, {"\n\t", "\\u000a\\t"}},
    {"^\\x01$", {"\\u0001"}, {"\x01"}},
    {"b",
     {"b", "abc", "\\nb\\\"",
      "\xc3\xa9"
      "b"},
     {"", "a", "\"b", "\\b"}},
    {"^b", {"b", "bcc"}, {"ab"}},
    {"b$", {"b", "aab"}, {"ba"}},
    {"^a|b$", {"axx", "xxb"}, {"xax"}},
    {"^.$", {"x", "\\\"", "\\\\"}, {"\"", "\\n", "xx"}},
    {"^[^\"]$", {"x", "\\n"}, {"\\\"", "\""}},
};

static void test_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(json_cases) / sizeof(json_cases[0]); i++) {
        const struct text_case *c = &json_cases[i];
        struct grammar *g;
        struct ek_fault f = {0};
        int r = make(c->pattern, REGEX_JSON, 0, EXPR_MANY, &g, &f);
        if (r != 0)
            fail_msg("%s: %d %s", c->pattern, r, f.msg);
        for (int k = 0; k < 5 && c->yes[k]; k++)
            if (!matches(g, c->yes[k]))
                fail_msg("%s does not match '%s'", c->pattern, c->yes[k]);
        for (int k = 0; k < 6 && c->no[k]; k++)
            if (matches(g, c->no[k]))
                fail_msg("%s matches '%s'", c->pattern, c->no[k]);
        grammar_unref(g);
    }
    struct grammar *g; /* with a length */
    assert_int_equal(make("^[a-z]+$", REGEX_JSON, 2, 3, &g, NULL), 0);
    assert_true(matches(g, "ab") && matches(g, "abc"));
    assert_false(matches(g, "a") || matches(g, "abcd"));
    grammar_unref(g);
}

static void test_refused(void **state)
{
    static const struct {
        const char *pattern;
        uint64_t at;
        const char *says;
    } cases[] = {
        {"a(b", 1, "not closed"},
        {"ab)", 2, "never opened"},
        {"a[b", 1, "not closed"},
        {"a\\", 1, "backslash"},
        {"*a", 0, "nothing before"},
        {"a**", 2, "possessive"},
        {"a++", 2, "possessive"},
        {"(?=a)b", 0, "no text at all"},
        {"a(?=b)", 1, "look-around"},
        {"(?:(?=a)b)", 3, "look-around"},
        {"(?=(?=a)b)c", 3, "look-around"},
        {"^(?=a", 1, "not closed"},
        {"^(?=a$b)", 5, "anchors"},
        {"^(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)(?!)", 65, "16"},
        {"(?<!a)b", 0, "look-around"},
        {"(?x)a", 0, "flags"},
        {"a(?i)b", 1, "flags"},
        {"(a)\\1", 3, "back references"},
        {"(?P<x>a)(?P=x)", 8, "look-around"},
        {"a\\bc", 1, "anchors"},
        {"a^b", 1, "anchors"},
        {"a$b", 1, "anchors"},
        {"(a$)b", 2, "anchors"},
        {"\\p{L}", 0, "Unicode properties"},
        {"\\q", 0, "not offered"},
        {"\\x4", 3, "hexadecimal"},
        {"\\ud800", 6, "surrogate"},
        {"[z-a]", 1, "backwards"},
        {"[a-\\d]", 1, "end in a class"},
        {"[[:alpha:]]", 1, "not offered"},
        {"a{3,2}", 1, "wrong order"},
        {"a{20000}", 1, "10000"},
        {"(?P<x", 0, "name"},
        {"\xff", 0, "UTF-8"},
        {"[^\\u0000-\\u{10ffff}]", 0, "no text at all"},
        {"((((a{1000}){100}){100}))", 0, "too large"},
        {"(a|b)*a(a|b){40}", 0, "too large"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault f = {0};
        struct grammar *g;
        int r = make(cases[i].pattern, REGEX_TEXT, 0, EXPR_MANY, &g, &f);
        if (r != -EBADMSG || !strstr(f.msg, cases[i].says) || f.at != cases[i].at)
            fail_msg("%s: %d at %d: %s", cases[i].pattern, r, (int)f.at, f.msg);
    }
}

/* What a text must and must not begin with, and how long it is: automata side by side. */
static void test_ahead(void **state)
{
    static const struct {
        const char *pattern;
        enum regex_form form;
        uint32_t least, most;
        const char *yes[4], *no[5];
    } cases[] = {
        {"^(?=.*[A-Z])(?=.*\\d).{8,}$",
         REGEX_TEXT,
         0,
         EXPR_MANY,
         {"abcdefG1", "1bcdefgG\xc3\xa9"},
         {"abcdefg1", "ABCDEFGH", "A1", "Abcdef\n1"}},
        {"^(?!.*foo)(?!ab$)[a-z]{2,5}$",
         REGEX_TEXT,
         0,
         EXPR_MANY,
         {"abc", "fofo", "zz"},
         {"ab", "afoo", "foo", "a"}},
        {"(?=a|b)[a-c]|(?!x)[w-z]", REGEX_TEXT, 0, EXPR_MANY, {"a", "b", "y"}, {"c", "x", ""}},
        {"(?!.b)(?!\\d)(?![^\\d]c).+",
         REGEX_TEXT,
         0,
         EXPR_MANY,
         {"bd", "b", "x"},
         {"ab", "1", "xc", "\xd9\xa3",
          "\xc3\xa9"
          "c"}},
        {"(?=^a$)\\w+", REGEX_TEXT, 0, EXPR_MANY, {"a"}, {"ab", "b"}},
        {"^(?!\\s*$)", REGEX_JSON, 0, EXPR_MANY, {"a", " a", "a\\n"}, {"", " ", "\\n"}},
        {"(?=\\d)[0-5]", REGEX_JSON, 0, EXPR_MANY, {"a3b", "5"}, {"", "a", "9"}},
        {"^a+b$", REGEX_JSON, 2, 3, {"ab", "aab"}, {"b", "aaab"}},
        {"a", REGEX_JSON, 2, 3, {"a\xc3\xa9", "xa", "\\na\\\""}, {"a", "xyz", "xyza"}},
        {"^(?=.*x)[x-z]+$", REGEX_JSON, 3, EXPR_MANY, {"xyz", "zzzx"}, {"x", "yyy", "xx"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault f = {0};
        struct grammar *g;
        if (make(cases[i].pattern, cases[i].form, cases[i].least, cases[i].most, &g, &f) < 0)
            fail_msg("%s: %s", cases[i].pattern, f.msg);
        for (int k = 0; k < 4 && cases[i].yes[k]; k++)
            if (!matches(g, cases[i].yes[k]))
                fail_msg("%s leaves out '%s'", cases[i].pattern, cases[i].yes[k]);
        for (int k = 0; k < 5 && cases[i].no[k]; k++)
            if (matches(g, cases[i].no[k]))
                fail_msg("%s lets in '%s'", cases[i].pattern, cases[i].no[k]);
        grammar_unref(g);
    }
}

/* Masks against the truth, token by token, at random places; with all memory forgotten now and
 * then, and without. */
static void test_masks(void **state)
{
    static const char *const patterns[] = {
        "(\"[a-z\\xe9]*\": ?([0-9]+|true|false|null|\\{\\}|\\[\\[)(, ?|\n  ))*",
        "([^\"]|\\\\.)*\"",
        "(foo|foobar|ab|abc|abcd|a\"b)+(12|123|2024)?",
        ".{0,40}",
    };
    uint64_t x = 88172645463325252ull;
    (void)state;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct grammar *g;
        assert_int_equal(make(patterns[i], REGEX_TEXT, 0, EXPR_MANY, &g, NULL), 0);
        grammar_warm(g, NULL);
        for (int text = 0; text < 20; text++) {
            struct matcher m, try;
            int32_t token[40];
            uint32_t bits[(WORDS_COUNT + 31) / 32], n = 0;
            matcher_init(&m, g);
            for (; n < 40; n++) {
                assert_true(matcher_follow(&m, token, sizeof(*token), n));
                uint32_t count = matcher_mask(&m, false, MATCHER_MANY, bits), real = 0, pick = 0;
                if (count == 0)
                    break;
                for (int32_t t = 0; t < (int32_t)WORDS_COUNT; t++) {
                    try = m;
                    token[n] = t;
                    bool fits = matcher_follow(&try, token, sizeof(*token), n + 1);
                    real += fits;
                    if (fits != (bits[t / 32] >> (t % 32) & 1))
                        fail_msg("pattern %zu: token %d at %u", i, (int)t, n);
                }
                assert_int_equal(real, count);
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                pick = (uint32_t)(x % count);
                for (token[n] = 0; token[n] < (int32_t)WORDS_COUNT; token[n]++)
                    if (bits[token[n] / 32] >> (token[n] % 32) & 1 && pick-- == 0)
                        break;
                if (token[n] == WORDS_END)
                    break;
            }
        }
        struct grammar_stats st;
        grammar_stats(g, &st);
        assert_true(st.states > 2 && st.masks > 0);
        grammar_unref(g);
    }
}

/* An end that is unwanted comes only where nothing else is left; after it only ends follow. */
static void test_ends(void **state)
{
    struct grammar *g;
    struct matcher m;
    uint32_t bits[(WORDS_COUNT + 31) / 32];
    const int32_t text[] = {'a', 'a', WORDS_END, WORDS_END, 'a'};
    (void)state;
    assert_int_equal(make("a{1,2}", REGEX_TEXT, 0, EXPR_MANY, &g, NULL), 0);
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, text, sizeof(*text), 0));
    assert_false(matcher_complete(&m));
    assert_true(matcher_follow(&m, text, sizeof(*text), 1));
    assert_int_equal(matcher_mask(&m, true, MATCHER_MANY, bits), 1);
    assert_int_equal(matcher_mask(&m, false, MATCHER_MANY, bits), 2);
    assert_true(matcher_follow(&m, text, sizeof(*text), 2));
    assert_int_equal(matcher_mask(&m, true, MATCHER_MANY, bits), 1);
    assert_true(bits[WORDS_END / 32] >> (WORDS_END % 32) & 1);
    assert_true(matcher_follow(&m, text, sizeof(*text), 4));
    assert_int_equal(matcher_mask(&m, false, MATCHER_MANY, bits), 1);
    assert_false(matcher_follow(&m, text, sizeof(*text), 5));
    grammar_unref(g);
}

static void test_allocations(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct grammar *g;
        struct ek_fault f = {0};
        alloc_fail_at(n);
        int r = make("^(a[b-z]+|\\d{2,5})*$", REGEX_TEXT, 0, EXPR_MANY, &g, &f);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            grammar_unref(g);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),    cmocka_unit_test(test_json),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_ends),    cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_ahead),
    };
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}

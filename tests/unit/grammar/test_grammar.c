/*
 * What all kinds of grammars share: how each is named and refused, the cache, the bounds of memory,
 * and allocations that fail.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/grammar/words.h"

/* Texts of each kind of grammar, with answers that it lets in and others that it does not. */
static const struct kind_case {
    enum grammar_kind kind;
    const char *text, *yes[3], *no[3];
} kinds[] = {
    {GRAMMAR_JSON, "", {"{}", "{\"a\": [1, 2.5]}"}, {"1", "[]", "\"x\""}},
    {GRAMMAR_CHOICE,
     "[\"yes\",\"no\",\"yesterday\"]",
     {"yes", "no", "yesterday"},
     {"", "yester", "maybe"}},
    {GRAMMAR_CALLS,
     "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"$ref\":\"#/$defs/"
     "x\",\"$defs\":{"
     "\"x\":{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}}},{"
     "\"function\":{"
     "\"name\":\"g\"}}],\"name\":null,\"most\":2}",
     {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
      "<tool_call>\n{\"name\": \"g\", \"arguments\": "
      "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", "
      "\"arguments\": {\"a\":2}}\n</tool_call>"},
     {"", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
      "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>"}},
    {GRAMMAR_REGEX, "[a-z]{2}", {"ab"}, {"a", "abc"}},
    {GRAMMAR_EBNF,
     "root ::= \"a\" b* # comment\nb ::= [0-9x-z] | \"\\n\" | (\"c\" | 'd')+",
     {"a", "a1z", "a\ncd"},
     {"", "b", "ab"}},
    {GRAMMAR_EBNF,
     "root ::= e\ne ::= t (\"+\" t)*\nt ::= \"(\" e \")\" | [0-9]{1,3}",
     {"1", "(1+22)+333"},
     {"1+", "(1", "4444"}},
    {GRAMMAR_EBNF,
     "root ::= root \"a\" | x \"c\" | \"b\"\nx ::= root \"d\" | y?\ny ::= x \"e\" | \"f\"",
     {"ba", "bdca", "fec"},
     {"a", "bd", "dc"}},
    {GRAMMAR_EBNF,
     "// Lark\n?start: start \"+\" N | N -> n\nN: /[0-9]{1,2}/\n%ignore \" \"+",
     {"1", " 1 +22 + 3 "},
     {"1+", "+1", "222"}},
    /* as guidance 0.3.1 sends select(), gen() and json() to a vLLM */
    {GRAMMAR_EBNF,
     "%llguidance {}\n\nstart: s\ns[capture]: S\n\nS: \"a\"\n     | \"b\"\n\n",
     {"a", "b"},
     {"", "ab"}},
    {GRAMMAR_EBNF,
     "%llguidance {}\n\nstart: \"A \" a \" B \" z\na[capture=\"__LIST_APPEND:a\"]: A\nA: "
     "/[0-9]+/\nz[capture]: Z\n\nZ: \"x\"\n     | \"y\"\n\n",
     {"A 1 B x", "A 27 B y"},
     {"A  B x", "A 1 B"}},
    {GRAMMAR_EBNF,
     "%llguidance {}\n\nstart: x\nx[capture, max_tokens=10, stop=\"q\"]: X\nX: /(?s:.*)/\n",
     {"q", "ab\nq"},
     {"", "ab", "qq"}},
    {GRAMMAR_EBNF,
     "start: x X{2} X{0,1}\nx[suffix=/[0-9]/]: X{1,}\nX: /[a-z]/",
     {"a1bc", "abc2bcd"},
     {"1bc", "a1b", "a12bc"}},
    {GRAMMAR_EBNF,
     "%llguidance {}\n\nstart: x\n\nx[capture]: %json {\n  \"type\": \"object\",\n  "
     "\"properties\": {\n    \"n\": {\n      \"type\": \"integer\"\n    },\n \"m\": {}\n  },\n "
     " "
     "\"required\": [\n    \"n\"\n  ],\n  \"x-guidance\": {\n    \"whitespace_flexible\": "
     "false,\n "
     "   \"whitespace_pattern\": null,\n    \"item_separator\": \", \",\n    "
     "\"key_separator\": "
     "\": \",\n    \"coerce_one_of\": true,\n    \"lenient\": false\n  }\n}\n\n",
     {"{\"n\": 5}", "{\"n\": 5, \"m\": [1, {\"a\": 2}]}"},
     {"{\"n\":5}", "{ \"n\": 5}", "{\"n\": 5,\"m\": 1}"}},
    {GRAMMAR_EBNF, "start: \"<\" %json {\"type\": \"integer\"} \">\"", {"<5>"}, {"<>", "<\"5\">"}},
    {GRAMMAR_EBNF,
     "root ::= .{2} | [^a-z] \"\\u00e9\" | \"\"",
     {"ab", "1\xc3\xa9", ""},
     {"a", "a\n"}},
};

/* Texts that are refused, and a part of what is said. */
static const struct bad_text {
    enum grammar_kind kind;
    const char *text, *says;
} bad_texts[] = {
    {GRAMMAR_CHOICE, "[]", "1 to"},
    {GRAMMAR_CHOICE, "[\"\"]", "empty"},
    {GRAMMAR_CHOICE, "[1]", "no string"},
    {GRAMMAR_CHOICE, "{}", "list"},
    {GRAMMAR_EBNF, "", "`root` is used"},
    {GRAMMAR_EBNF, "a ::= \"x\"", "`root` is used"},
    {GRAMMAR_EBNF, "root ::= b", "`b` is used"},
    {GRAMMAR_EBNF, "root = \"a\"", "line 1"},
    {GRAMMAR_EBNF, "root ::= \"a\nx ::= \"b\"", "not closed"},
    {GRAMMAR_EBNF, "root ::= (\"a\"", "not closed"},
    {GRAMMAR_EBNF, "root ::= \"a\")", "never opened"},
    {GRAMMAR_EBNF, "root ::= [z-a]", "backwards"},
    {GRAMMAR_EBNF, "root ::= \"a\"{3,1}", "in order"},
    {GRAMMAR_EBNF, "root ::= \"\\q\"", "escape"},
    {GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", "second time"},
    {GRAMMAR_EBNF, "root ::= root \"a\" | root", "no text at all"},
    {GRAMMAR_EBNF, "root ::= root* \"a\" | ", "`root` can begin with itself"},
    {GRAMMAR_EBNF, "root ::= a? root | \"b\"\na ::= \"x\"", "`root` can begin with itself"},
    {GRAMMAR_EBNF, "root ::= a\na ::= \"x\" a", "no text at all"},
    {GRAMMAR_EBNF, "start: x \"a\"\nx[max_tokens=3]: \"b\"+", "the whole answer"},
    {GRAMMAR_EBNF, "start[max_tokens=3]: x\nx[max_tokens=3]: \"b\"+", "once, max_tokens"},
    {GRAMMAR_EBNF, "start[max_tokens=0]: \"b\"+", "must be 1 to"},
    {GRAMMAR_EBNF, "start[temperature=0.5]: \"b\"+", "field of the request"},
    {GRAMMAR_EBNF, "start[capture=x]: \"b\"+", "no name in quotes"},
    {GRAMMAR_EBNF, "start[capture: \"b\"", "not closed"},
    {GRAMMAR_EBNF, "start[stop=\"a\"]: x\nx: \"(\" x? \")\"", "terminals alone"},
    {GRAMMAR_EBNF, "start[stop=x]: \"a\"\nx: \"b\"", "a terminal uses the rule"},
    {GRAMMAR_EBNF, "start: \"a\"{3,1}", "in order"},
    {GRAMMAR_EBNF, "start: \"a\"{3", "not closed"},
    {GRAMMAR_EBNF, "start: %json nothing", "a JSON schema"},
    {GRAMMAR_EBNF, "start: %json {\"x-guidance\": {\"whitespace_pattern\": \"a\"}}", "not offered"},
    {GRAMMAR_EBNF,
     "start: %json {\"x-guidance\": {\"whitespace_flexible\": false, \"item_separator\": "
     "\";\"}}",
     "no comma"},
};

static void test_kinds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct grammar *g;
        struct ek_fault f = {0};
        if (grammar_compile(kinds[i].kind, kinds[i].text, strlen(kinds[i].text), lexicon, NULL, &g,
                            &f))
            fail_msg("%s: %s", kinds[i].text, f.msg);
        for (int k = 0; k < 3 && kinds[i].yes[k]; k++)
            if (words_fit(g, kinds[i].yes[k]) != 2)
                fail_msg("%s leaves out '%s'", kinds[i].text, kinds[i].yes[k]);
        for (int k = 0; k < 3 && kinds[i].no[k]; k++)
            if (words_fit(g, kinds[i].no[k]) == 2)
                fail_msg("%s lets in '%s'", kinds[i].text, kinds[i].no[k]);
        grammar_unref(g);
    }
    for (size_t i = 0; i < sizeof(bad_texts) / sizeof(bad_texts[0]); i++) {
        struct grammar *g;
        struct ek_fault f = {0};
        int r = grammar_compile(bad_texts[i].kind, bad_texts[i].text, strlen(bad_texts[i].text),
                                lexicon, NULL, &g, &f);
        if (r != -EBADMSG || !strstr(f.msg, bad_texts[i].says))
            fail_msg("%s: %d %s", bad_texts[i].text, r, f.msg);
    }
}

/* Rules that only name the next one: that is no loop, but too deep to be followed. */
static void test_chain_of_rules(void **state)
{
    struct ek_buf text = {0};
    struct ek_fault f = {0};
    struct grammar *g;
    (void)state;
    (void)ek_buf_puts(&text, "root ::= r0\n");
    for (uint32_t i = 0; i < 600; i++)
        (void)ek_buf_printf(&text, "r%u ::= r%u\n", i, i + 1);
    (void)ek_buf_puts(&text, "r600 ::= \"x\"\n");
    assert_true(ek_buf_ok(&text));
    assert_int_equal(grammar_compile(GRAMMAR_EBNF, text.data, text.len, lexicon, NULL, &g, &f),
                     -EBADMSG);
    assert_non_null(strstr(f.msg, "more than 512 rules call one another"));
    ek_buf_done(&text);
}

static int get(struct grammar_cache *c, uint32_t owner, enum grammar_kind kind, const char *text,
               struct grammar **ret_grammar, struct ek_fault *fault)
{
    const struct grammar_from from = {kind, text, strlen(text), owner};
    return grammar_cache_get(c, &from, NULL, ret_grammar, fault);
}

static void test_cache(void **state)
{
    struct grammar_cache *c;
    struct grammar_cache_stats st;
    struct grammar *a, *b;
    char text[64];
    (void)state;
    assert_int_equal(grammar_cache_new(lexicon, GRAMMAR_ROOM, &c), 0);
    assert_null(grammar_cache_find(c, GRAMMAR_REGEX, "a+", 2));
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "a+", &a, NULL), 0);
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "a+", &b, NULL), 0);
    assert_ptr_equal(a, b);
    grammar_unref(b);
    b = grammar_cache_find(c, GRAMMAR_REGEX, "a+", 2);
    assert_ptr_equal(a, b);
    grammar_unref(b);
    assert_int_equal(get(c, 0, GRAMMAR_EBNF, "a+", &b, NULL), -EBADMSG);
    for (uint32_t i = 0; i < GRAMMAR_KEPT + 5; i++) {
        (void)snprintf(text, sizeof(text), "b{%u}", i + 1);
        assert_int_equal(get(c, 0, GRAMMAR_REGEX, text, &b, NULL), 0);
        grammar_unref(b);
    }
    grammar_cache_stats(c, &st);
    assert_int_equal(st.kept, GRAMMAR_KEPT);
    assert_int_equal(st.hits, 2);
    assert_int_equal(st.refused, 1);
    assert_int_equal(st.misses, GRAMMAR_KEPT + 7);
    assert_int_equal(st.made, GRAMMAR_KEPT + 6);
    assert_true(st.bytes > 0);
    assert_int_equal(words_fit(a, "aa"), 2); /* what is in use lives on */
    grammar_cache_free(c);
    assert_int_equal(words_fit(a, "aaa"), 2);
    grammar_unref(a);
}

/* All that are alive share a room: what nobody uses makes way, then a new one is refused. */
static void test_room_of_all(void **state)
{
    struct grammar_cache *c;
    struct grammar_cache_stats st;
    struct grammar *in_use[3], *more;
    struct ek_fault f = {0};
    char text[16];
    (void)state;
    assert_int_equal(grammar_compile(GRAMMAR_REGEX, "b{1}", 4, lexicon, NULL, &more, NULL), 0);
    uint64_t one = grammar_bytes(more);
    grammar_unref(more);
    assert_int_equal(grammar_cache_new(lexicon, 7 * one / 2, &c), 0); /* three and a half */
    for (uint32_t i = 0; i < 6; i++) { /* nobody uses them: the older ones go */
        (void)snprintf(text, sizeof(text), "a{%u}", i + 1);
        assert_int_equal(get(c, 0, GRAMMAR_REGEX, text, &more, NULL), 0);
        grammar_unref(more);
    }
    grammar_cache_stats(c, &st);
    assert_int_equal(st.kept, 3);
    for (uint32_t i = 0; i < 3; i++) {
        (void)snprintf(text, sizeof(text), "b{%u}", i + 1);
        assert_int_equal(get(c, 0, GRAMMAR_REGEX, text, &in_use[i], NULL), 0);
    }
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "c", &more, &f), -EBUSY);
    assert_non_null(strstr(f.msg, "try again later"));
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "b{2}", &more, NULL), 0); /* is there */
    grammar_unref(more);
    grammar_unref(in_use[0]);
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "c", &more, NULL), 0);
    grammar_cache_free(c); /* those in use live on */
    assert_int_equal(words_fit(in_use[1], "bb"), 2);
    grammar_unref(in_use[1]);
    grammar_unref(in_use[2]);
    grammar_unref(more);
}

/* An owner has half of the room at most, in use or kept, and what is full of its own forms keeps
 * those of others. */
static void test_share_of_one(void **state)
{
    struct grammar_cache *c;
    struct grammar *mine[3], *other, *more;
    struct ek_fault f = {0};
    char text[16];
    (void)state;
    assert_int_equal(grammar_compile(GRAMMAR_REGEX, "b{1}", 4, lexicon, NULL, &more, NULL), 0);
    uint64_t one = grammar_bytes(more);
    grammar_unref(more);
    assert_int_equal(grammar_cache_new(lexicon, 13 * one / 2, &c), 0); /* six, so three of one */
    assert_int_equal(get(c, 2, GRAMMAR_REGEX, "x", &other, NULL), 0);
    grammar_unref(other);
    for (uint32_t i = 0; i < 9; i++) { /* nobody uses them: its own older ones go */
        (void)snprintf(text, sizeof(text), "a{%u}", i + 1);
        assert_int_equal(get(c, 1, GRAMMAR_REGEX, text, &more, NULL), 0);
        grammar_unref(more);
    }
    other = grammar_cache_find(c, GRAMMAR_REGEX, "x", 1);
    assert_non_null(other);
    grammar_unref(other);
    for (uint32_t i = 0; i < 3; i++) {
        (void)snprintf(text, sizeof(text), "b{%u}", i + 1);
        assert_int_equal(get(c, 1, GRAMMAR_REGEX, text, &mine[i], NULL), 0);
    }
    assert_int_equal(get(c, 1, GRAMMAR_REGEX, "c", &more, &f), -EBUSY);
    assert_non_null(strstr(f.msg, "this key's open requests"));
    assert_int_equal(get(c, 1, GRAMMAR_REGEX, "x", &more, NULL), 0); /* is there */
    grammar_unref(more);
    assert_int_equal(get(c, 2, GRAMMAR_REGEX, "c", &more, NULL), 0);
    grammar_unref(more);
    assert_int_equal(get(c, 0, GRAMMAR_REGEX, "d", &more, NULL), 0);
    grammar_unref(more);
    grammar_unref(mine[0]);
    assert_int_equal(get(c, 1, GRAMMAR_REGEX, "e", &more, NULL), 0);
    grammar_unref(more);
    grammar_unref(mine[1]);
    grammar_unref(mine[2]);
    grammar_cache_free(c);
}

/* Nor has it more than half of the list. */
static void test_share_of_the_list(void **state)
{
    struct grammar_cache *c;
    struct grammar_cache_stats st;
    struct grammar *g;
    char text[16];
    (void)state;
    assert_int_equal(grammar_cache_new(lexicon, GRAMMAR_ROOM, &c), 0);
    for (uint32_t i = 0; i < GRAMMAR_KEPT / 2; i++) {
        (void)snprintf(text, sizeof(text), "x{%u}", i + 1);
        assert_int_equal(get(c, 2, GRAMMAR_REGEX, text, &g, NULL), 0);
        grammar_unref(g);
    }
    for (uint32_t i = 0; i < 2 * GRAMMAR_KEPT; i++) {
        (void)snprintf(text, sizeof(text), "a{%u}", i + 1);
        assert_int_equal(get(c, 1, GRAMMAR_REGEX, text, &g, NULL), 0);
        grammar_unref(g);
    }
    grammar_cache_stats(c, &st);
    assert_int_equal(st.kept, GRAMMAR_KEPT);
    for (uint32_t i = 0; i < GRAMMAR_KEPT / 2; i++) {
        (void)snprintf(text, sizeof(text), "x{%u}", i + 1);
        g = grammar_cache_find(c, GRAMMAR_REGEX, text, strlen(text));
        assert_non_null(g);
        grammar_unref(g);
    }
    grammar_cache_free(c);
}

/* Without end into the deep: states are forgotten, the place is found again. */
static void test_memory(void **state)
{
    struct grammar *g;
    struct grammar_stats st;
    struct matcher m;
    const uint32_t n = 40000;
    uint32_t bits[(WORDS_COUNT + 31) / 32];
    (void)state;
    int32_t *token = calloc(2 * n, sizeof(*token));
    assert_non_null(token);
    assert_int_equal(
        grammar_compile(GRAMMAR_SCHEMA, "{\"type\":\"array\"}", 16, lexicon, NULL, &g, NULL), 0);
    matcher_init(&m, g);
    for (uint32_t i = 0; i < 2 * n; i++)
        token[i] = i < n ? '[' : ']';
    for (uint32_t i = 0; i < 2 * n; i += 1000) {
        if (!matcher_follow(&m, token, sizeof(*token), i))
            break; /* deeper than the memory allows: it says so and goes no further */
        assert_true(matcher_mask(&m, false, MATCHER_MANY, bits) > 0);
    }
    grammar_stats(g, &st);
    assert_true(st.forgotten > 0);
    matcher_init(&m, g); /* others go on */
    assert_true(matcher_follow(&m, token, sizeof(*token), 500));
    assert_true(matcher_mask(&m, false, MATCHER_MANY, bits) > 0);
    grammar_unref(g);
    free(token);
}

static const struct {
    enum grammar_kind kind;
    const char *text;
} wanting[] = {
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a+$\"},"
     "\"b\":{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":1}}},"
     "\"additionalProperties\":true}"},
    {GRAMMAR_SCHEMA,
     "{\"properties\":{\"a\":{\"enum\":[1,2]},\"b\":{\"type\":[\"string\",\"integer\"],\"not\":{"
     "\"enum\":[\"x\",3]}}},\"if\":{\"properties\":{\"a\":{\"const\":1}}},\"then\":{\"required\":["
     "\"b\"]},\"dependentRequired\":{\"b\":[\"a\"]}}"},
    {GRAMMAR_SCHEMA, "{\"patternProperties\":{\"^a\":{\"uniqueItems\":true,\"items\":{\"enum\":[1,"
                     "2]}},\"^b$\":true}}"},
    {GRAMMAR_TAGS,
     "{\"style\":\"qwen3_coder\",\"one\":false,\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":"
     "true,\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}}}}}]}"},
    {GRAMMAR_TAGS,
     "{\"style\":\"pythonic\",\"one\":false,\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":"
     "true,\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}}}}}]}"},
    {GRAMMAR_EBNF, "start: a \"x\" | B\na: start \"y\"i | /c+?d/\nB: \"b\"~2 C\nC: /e+?f/\n"
                   "%import common.LF\n%ignore LF\n%ignore /#+/\n"},
    {GRAMMAR_EBNF, "start[max_tokens=9]: a \"x\" %json {\"type\": \"object\"}\n"
                   "a[capture=\"b\", stop=/y+/]: /z*/\n"},
    {GRAMMAR_EITHER,
     "{\"style\":\"mistral\",\"one\":false,\"most\":2,\"tools\":[{\"function\":{\"name\":\"f\"}}],"
     "\"form\":{\"kind\":3,\"text\":\"[\\\"a\\\",\\\"b\\\"]\"}}"},
    {GRAMMAR_STRUCTURE,
     "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":\"a\"},"
     "{\"type\":\"triggered_tags\",\"triggers\":[\"<\"],\"at_least_one\":true,\"tags\":[{\"begin\":"
     "\"<f>\",\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"uniqueItems\":true}},"
     "\"end\":["
     "\"</f>\"]}]}]}}"},
};

/* The first, the second, ... allocation fails: it says so, and nothing is lost. */
static void allocate(enum grammar_kind kind, const char *text)
{
    for (long n = (long)share_next(1);; n = (long)share_next((uint64_t)n + 1)) {
        struct grammar *g;
        struct ek_fault f = {0};
        alloc_fail_at(n);
        int r = grammar_compile(kind, text, strlen(text), lexicon, NULL, &g, &f);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            grammar_unref(g);
            break;
        }
        if (r == 0) /* whether names meet is "perhaps" then */
            grammar_unref(g);
        else
            assert_true(r == -ENOMEM || strstr(text, "patternProperties"));
    }
}

static void test_allocations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wanting) / sizeof(wanting[0]); i++)
        allocate(wanting[i].kind, wanting[i].text);
    for (long n = 1;; n++) {
        struct lexicon *l;
        alloc_fail_at(n);
        int r = lexicon_new(WORDS_COUNT, words_bytes, NULL, NULL, 0, &l);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            lexicon_free(l);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_chain_of_rules),
        cmocka_unit_test(test_cache),        cmocka_unit_test(test_room_of_all),
        cmocka_unit_test(test_share_of_one), cmocka_unit_test(test_share_of_the_list),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}

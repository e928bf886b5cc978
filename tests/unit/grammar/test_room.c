/*
 * Texts that have to end within some tokens: what the shortest one takes, that nothing is begun
 * which does not fit, and that an answer without room for any text is not hurried. And the tokens
 * that come without a choice.
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

#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "tests/unit/grammar/words.h"

#define MASK_WORDS ((WORDS_COUNT + 31) / 32)

static struct grammar *compile(enum grammar_kind kind, const char *text, const struct lexicon *l)
{
    struct grammar *g = NULL;
    struct ek_fault f = {0};
    if (grammar_compile(kind, text, strlen(text), l, NULL, &g, &f) < 0)
        fail_msg("%s: %s", text, f.msg);
    return g;
}

static bool allowed(const uint32_t *bits, int32_t token)
{
    return bits[token / 32] >> (token % 32) & 1;
}

static const struct {
    enum grammar_kind kind;
    const char *text;
    uint32_t needs; /* tokens with the end */
} shortest[] = {
    {GRAMMAR_REGEX, "a", 2},
    {GRAMMAR_REGEX, "a*", 1},
    {GRAMMAR_REGEX, "foobar", 2},
    {GRAMMAR_REGEX, "foobarx|abcdab", 3},
    {GRAMMAR_REGEX, "(abc|x)(true){2}y?", 4},
    {GRAMMAR_REGEX, "[0-9]{3}", 4}, /* the way is 000, of which only 0 is a token */
    {GRAMMAR_EBNF, "root ::= \"(\" root \")\" | \"foobar\"", 2},
    {GRAMMAR_EBNF, "root ::= x x\nx ::= y \"ab\"\ny ::= \"abcd\"", 5},
    {GRAMMAR_SCHEMA, "{\"type\":\"boolean\"}", 2},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\"}", 2},
    {GRAMMAR_SCHEMA, "{\"type\":\"array\",\"items\":{\"const\":\"abcd\"},\"minItems\":2}", 10},
    {GRAMMAR_SCHEMA, "{\"type\":\"object\"}", 2},
};

static void test_shortest(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shortest) / sizeof(shortest[0]); i++) {
        struct grammar *g = compile(shortest[i].kind, shortest[i].text, lexicon);
        struct matcher m;
        int32_t none = 0;
        matcher_init(&m, g);
        assert_true(matcher_follow(&m, &none, sizeof(none), 0));
        if (matcher_left(&m) != shortest[i].needs)
            fail_msg("%s: %u", shortest[i].text, matcher_left(&m));
        grammar_unref(g);
    }
}

static const char *const forms[] = {
    "{\"type\":\"string\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\"}}",
    "{\"type\":\"object\",\"properties\":{\"a\":{},\"foo\":{\"type\":\"number\"}},\"required\":["
    "\"foo\"]}",
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\""
    ":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]},\"s\":{\"type\":\"string\",\"minLength\":2}},"
    "\"required\":[\"n\",\"s\"]}}}",
    "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"minItems\":40,\"items\":{\"const\":"
    "1}}]}",
};

/* Tokens drawn evenly, with `spare` more than the shortest text takes: it ends by itself. */
static void draw(struct grammar *g, uint32_t spare, uint32_t seed, bool more)
{
    struct matcher m;
    uint32_t bits[MASK_WORDS], room = 1;
    int32_t token[256];

    matcher_init(&m, g);
    for (uint32_t n = 0; n < room; n++) {
        assert_true(matcher_follow(&m, token, sizeof(*token), n));
        if (n == 0)
            room = matcher_left(&m) + spare;
        assert_true(room < 256);
        uint32_t count = matcher_mask(&m, more, room - n, bits);
        assert_true(count > 0);
        seed = seed * 1103515245u + 12345u;
        uint32_t pick = (seed >> 16) % count;
        for (token[n] = 0; !allowed(bits, token[n]) || pick-- > 0;)
            token[n]++;
        if (token[n] == WORDS_END)
            return;
    }
    fail_msg("not ended within %u", room);
}

static void test_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct grammar *g = compile(GRAMMAR_SCHEMA, forms[i], lexicon);
        for (uint32_t seed = 0; seed < 300; seed++)
            draw(g, seed % 40, seed, seed % 3 == 0);
        grammar_unref(g);
    }
}

/* The last token is the end; a token that needs more than is left is not allowed. */
static void test_room(void **state)
{
    struct grammar *g = compile(GRAMMAR_REGEX, "(ab|foo.{9}|c)*", lexicon);
    struct matcher m;
    uint32_t bits[MASK_WORDS];
    int32_t token = 'a';

    (void)state;
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, &token, sizeof(token), 0));
    assert_int_equal(matcher_mask(&m, false, 1, bits), 1);
    assert_true(allowed(bits, WORDS_END));
    assert_true(matcher_mask(&m, false, 2, bits) > 1);
    assert_true(allowed(bits, 'c') && !allowed(bits, 'a') && !allowed(bits, 'f'));
    (void)matcher_mask(&m, false, 3, bits);
    assert_true(allowed(bits, 'a') && !allowed(bits, 'f'));
    (void)matcher_mask(&m, false, MATCHER_MANY, bits);
    assert_true(allowed(bits, 'f'));
    /* wished longer, but there is no room */
    assert_int_equal(matcher_mask(&m, true, 1, bits), 1);
    assert_true(allowed(bits, WORDS_END));
    assert_true(matcher_follow(&m, &token, sizeof(token), 1));
    /* there is room for nothing: all that fits may come */
    assert_true(matcher_mask(&m, false, 1, bits) > 0);
    assert_true(allowed(bits, 'b'));
    grammar_unref(g);
}

static const char *few_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    static const char *const few[] = {"a", "b", "xy", "\""};
    (void)ctx;
    *ret_len = token < 4 ? strlen(few[token]) : 0;
    return token < 4 ? few[token] : NULL;
}

/* A vocabulary that lacks bytes: ways that cannot be written are not counted on. */
static void test_few_tokens(void **state)
{
    const int32_t end = 4;
    struct lexicon *l = NULL;
    struct matcher m;
    uint32_t bits[1];
    int32_t none = 0;
    (void)state;
    assert_int_equal(lexicon_new(5, few_bytes, NULL, &end, 1, &l), 0);
    struct grammar *g = compile(GRAMMAR_REGEX, "x|aab|(xy){5}", l);
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, &none, sizeof(none), 0));
    assert_int_equal(matcher_left(&m), 4);
    assert_int_equal(matcher_mask(&m, false, 4, bits), 1);
    assert_int_equal(bits[0], 1);
    grammar_unref(g);
    g = compile(GRAMMAR_REGEX, "a?x", l);
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, &none, sizeof(none), 0));
    assert_true(matcher_left(&m) == MATCHER_MANY);
    assert_int_equal(matcher_mask(&m, false, 2, bits), 1);
    grammar_unref(g);
    lexicon_free(l);
}

static const struct {
    const char *pattern, *begin;
    uint32_t room, count;
    const char *tokens[6]; /* NULL = the end */
} forced[] = {
    {"foobar", "", MATCHER_MANY, 2, {"foobar", NULL}},
    {"foobar", "f", MATCHER_MANY, 6, {"o", "o", "b", "a", "r", NULL}},
    {"abcab", "", MATCHER_MANY, 3, {"abc", "ab", NULL}},
    {"abc[0-9]", "", MATCHER_MANY, 1, {"abc"}},
    /* what follows decides between foo and foobar */
    {"foo(bar|x)", "", MATCHER_MANY, 0, {NULL}},
    {"xfoo(bar|x)", "", MATCHER_MANY, 1, {"x"}},
    {"x(a|b)", "", MATCHER_MANY, 1, {"x"}},
    {"(a|b)x", "", MATCHER_MANY, 0, {NULL}},
    {"(a|b)x", "a", MATCHER_MANY, 2, {"x", NULL}},
    /* it may end here */
    {"a*", "", MATCHER_MANY, 0, {NULL}},
    {"ax*", "a", MATCHER_MANY, 0, {NULL}},
    {"a", "a", MATCHER_MANY, 1, {NULL}},
    {"a", "a", 0, 0, {NULL}},
    {"foobarx", "", 2, 2, {"foobar", "x"}},
    {"foobarx", "", 1, 1, {"foobar"}},
    {"\\[{}\\]", "", MATCHER_MANY, 3, {"[{", "}]", NULL}},
};

static void test_forced(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(forced) / sizeof(forced[0]); i++) {
        struct grammar *g = compile(GRAMMAR_REGEX, forced[i].pattern, lexicon);
        struct matcher m;
        int32_t token[16];
        size_t n = strlen(forced[i].begin);
        for (size_t k = 0; k < n; k++)
            token[k] = (unsigned char)forced[i].begin[k];
        matcher_init(&m, g);
        assert_true(matcher_follow(&m, token, sizeof(*token), (uint32_t)n));
        uint32_t count = matcher_jump_forward(&m, forced[i].room, token + n, 8);
        if (count != forced[i].count)
            fail_msg("%s: %u tokens", forced[i].pattern, count);
        for (uint32_t k = 0; k < count; k++) {
            const char *want = forced[i].tokens[k];
            size_t len = 0;
            assert_int_equal(token[n + k] == WORDS_END, want == NULL);
            const char *got = words_bytes(NULL, token[n + k], &len);
            assert_true(!want || (len == strlen(want) && memcmp(got, want, len) == 0));
        }
        assert_true(matcher_follow(&m, token, sizeof(*token), (uint32_t)n + count));
        grammar_unref(g);
    }
}

/* At most so many; and what is long goes on from there. */
static void test_forced_most(void **state)
{
    struct grammar *g = compile(GRAMMAR_REGEX, "(a|b)x{700}", lexicon);
    struct matcher m;
    int32_t token[800] = {'a'};
    uint32_t n = 1, rounds = 0;

    (void)state;
    matcher_init(&m, g);
    for (; n < 702; rounds++) {
        assert_true(matcher_follow(&m, token, sizeof(*token), n));
        uint32_t more = matcher_jump_forward(&m, MATCHER_MANY, token + n, 32);
        assert_true(more > 0 && more <= 32);
        n += more;
    }
    assert_int_equal(n, 702);
    assert_int_equal(token[701], WORDS_END);
    assert_true(rounds >= 22);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shortest), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_room),     cmocka_unit_test(test_few_tokens),
        cmocka_unit_test(test_forced),   cmocka_unit_test(test_forced_most),
    };
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}

/*
 * Forms that were written to take long: whatever they say, compiling one takes no more than its
 * fuel, and says so; what is merely repetitive is cheap. And masks that are found a little at a
 * time are those that are found at once.
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
#include "common/work.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "tests/share.h"
#include "tests/unit/grammar/words.h"

#define MASK_WORDS ((WORDS_COUNT + 31) / 32)

/* The units it took; *ret_code what came of it. */
static uint64_t cost(enum grammar_kind kind, const struct ek_buf *text, int *ret_code,
                     struct ek_fault *fault)
{
    struct ek_work work = {.fuel = GRAMMAR_FUEL};
    struct grammar *g = NULL;

    *fault = (struct ek_fault){0};
    assert_true(ek_buf_ok(text));
    *ret_code = grammar_compile(kind, text->data, text->len, lexicon, &work, &g, fault);
    if (*ret_code == 0)
        grammar_unref(g);
    else
        assert_int_equal(*ret_code, -EBADMSG);
    assert_true(work.used <= GRAMMAR_FUEL);
    assert_int_equal(work.fuel + work.used <= GRAMMAR_FUEL, 1);
    return work.used;
}

/* ---- schemas ---- */

/* Each level refers ten times to the next one. */
static void write_refs(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{");
    for (uint32_t i = 0; i < n; i++) {
        (void)ek_buf_printf(b, "\"a%u\":{\"allOf\":[", i);
        for (int k = 0; k < 10; k++)
            (void)ek_buf_printf(b, "%s{\"$ref\":\"#/$defs/a%u\"}", k ? "," : "", i + 1);
        (void)ek_buf_puts(b, "]},");
    }
    (void)ek_buf_printf(b, "\"a%u\":{\"type\":\"object\",\"properties\":{\"x\":{\"const\":1}}}}}",
                        n);
}

/* Two schemas whose properties are both again, so that what both say doubles at each level. */
static void write_both(struct ek_buf *b, uint32_t n)
{
    (void)n;
    (void)ek_buf_puts(b, "{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}],"
                         "\"$defs\":{");
    for (int c = 'a'; c <= 'b'; c++)
        (void)ek_buf_printf(b,
                            "%s\"%c\":{\"properties\":{\"x\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{"
                            "\"$ref\":\"#/$defs/b\"},{\"title\":\"%c\"}]},\"y\":{\"allOf\":[{"
                            "\"$ref\":\"#/$defs/b\"},{\"$ref\":\"#/$defs/a\"}]}}}",
                            c == 'b' ? "," : "", c, c);
    (void)ek_buf_puts(b, "}}");
}

static void write_patterns(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"type\":\"object\",\"patternProperties\":{");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, "%s\"^(a|b|ab){1,9}%u[a-z]{1,20}$\":{\"const\":%u}", i ? "," : "", i,
                            i);
    (void)ek_buf_puts(b, "}}");
}

static void write_enums(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"allOf\":[");
    for (int side = 0; side < 2; side++) {
        (void)ek_buf_printf(b, "%s{\"enum\":[", side ? "," : "");
        for (uint32_t i = 0; i < n; i++)
            (void)ek_buf_printf(b, "%s%u", i ? "," : "", side ? n - i : i);
        (void)ek_buf_puts(b, "]}");
    }
    (void)ek_buf_puts(b, "]}");
}

static void write_required(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"type\":\"object\",\"required\":[");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, "%s\"p%u\"", i ? "," : "", i);
    (void)ek_buf_puts(b, "],\"additionalProperties\":{\"type\":\"integer\"}}");
}

static void write_one_of(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"oneOf\":[");
    for (uint32_t i = 0; i < n; i++) {
        (void)ek_buf_printf(b, "%s{\"type\":\"object\",\"required\":[\"k\"],\"properties\":{",
                            i ? "," : "");
        for (uint32_t k = 0; k < 20; k++)
            (void)ek_buf_printf(b, "\"p%u\":{\"type\":\"string\"},", k);
        (void)ek_buf_printf(b, "\"k\":{\"const\":%u}}}", i);
    }
    (void)ek_buf_puts(b, "]}");
}

static void write_if(struct ek_buf *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, "{\"if\":{\"properties\":{\"p%u\":{\"const\":1}}},\"then\":", i);
    (void)ek_buf_puts(b, "{\"type\":\"object\"}");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_puts(b, ",\"else\":{\"type\":\"object\"}}");
}

/* ---- the others ---- */

/* Each rule is known to match something only when the one behind it is. */
static void write_chain(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "root ::= r0\n");
    for (uint32_t i = 0; i + 1 < n; i++)
        (void)ek_buf_printf(b, "r%u ::= \"x\" r%u\n", i, i + 1);
    (void)ek_buf_printf(b, "r%u ::= \"x\"\n", n - 1);
}

static void write_names(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "root ::=");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, " r%u", i % 1900);
    (void)ek_buf_puts(b, "\n");
    for (uint32_t i = 0; i < 1900; i++)
        (void)ek_buf_printf(b, "r%u ::= \"%u\"\n", i, i);
}

/* Rules that begin with each other, each with one alternative more. */
static void write_left(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "start: r0\n");
    for (uint32_t i = 0; i < n; i++) {
        (void)ek_buf_printf(b, "r%u: \"x\"", i);
        for (uint32_t k = 0; k < n; k++)
            (void)ek_buf_printf(b, "| r%u \"%u\"", k, i);
        (void)ek_buf_puts(b, "\n");
    }
}

/* Terminals each of which has the next one twice, with a lazy count. */
static void write_terminals(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "start: T0\n");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, "T%u: T%u T%u\n", i, i + 1, i + 1);
    (void)ek_buf_printf(b, "T%u: /a.*?b/\n%%ignore T0\n", n);
}

static void write_counts(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "(a|b)*a");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_puts(b, "(a|b|ab?){0,9}");
}

static void write_choice(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "[");
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_printf(b, "%s\"a rather long choice that begins like the others %u\"",
                            i ? "," : "", i);
    (void)ek_buf_puts(b, "]");
}

/* As many triggers as are offered, with tags that hold the like. */
static void write_triggers(struct ek_buf *b, uint32_t n)
{
    (void)ek_buf_puts(b, "{\"format\":");
    for (uint32_t depth = 0; depth < 8; depth++) {
        (void)ek_buf_puts(b, "{\"type\":\"triggered_tags\",\"triggers\":[");
        for (uint32_t i = 0; i < n; i++)
            (void)ek_buf_printf(b, "%s\"<%u-trigger>\"", i ? "," : "", 10 + i);
        (void)ek_buf_puts(b, "],\"tags\":[");
        for (uint32_t i = 1; i < n; i++)
            (void)ek_buf_printf(b,
                                "{\"begin\":\"<%u-trigger>\",\"content\":{\"type\":\"any_text\"},"
                                "\"end\":\"</%u>\"},",
                                10 + i, i);
        (void)ek_buf_puts(b, "{\"begin\":\"<10-trigger>\",\"content\":");
    }
    (void)ek_buf_puts(b, "{\"type\":\"any_text\"}");
    for (uint32_t depth = 0; depth < 8; depth++)
        (void)ek_buf_printf(b, ",\"end\":\"</%u0>\"}]}", depth);
    (void)ek_buf_puts(b, "}");
}

static const struct {
    const char *name;
    enum grammar_kind kind;
    void (*write)(struct ek_buf *b, uint32_t n);
    uint32_t from, to;
    uint64_t most; /* units at the largest size, 0 = its fuel */
} forms[] = {
    {"refs", GRAMMAR_SCHEMA, write_refs, 5, 20, 1u << 18},
    {"both", GRAMMAR_SCHEMA, write_both, 1, 1, 0},
    {"patterns", GRAMMAR_SCHEMA, write_patterns, 25, 400, 0},
    {"enums", GRAMMAR_SCHEMA, write_enums, 1000, 16000, 0},
    {"required", GRAMMAR_SCHEMA, write_required, 1000, 4000, 0},
    {"oneOf", GRAMMAR_SCHEMA, write_one_of, 31, 500, 0},
    {"if", GRAMMAR_SCHEMA, write_if, 2, 32, 0},
    {"chain", GRAMMAR_EBNF, write_chain, 100, 1600, 0},
    {"names", GRAMMAR_EBNF, write_names, 2000, 32000, 1u << 24},
    {"left", GRAMMAR_EBNF, write_left, 3, 200, 0},
    {"terminals", GRAMMAR_EBNF, write_terminals, 4, 400, 0},
    {"counts", GRAMMAR_REGEX, write_counts, 10, 40, 0},
    {"choice", GRAMMAR_CHOICE, write_choice, 500, 4000, 0},
    {"triggers", GRAMMAR_STRUCTURE, write_triggers, 4, 64, 0},
};

static void test_bounded(void **state)
{
    (void)state;
    for (size_t i = share_next(0); i < sizeof(forms) / sizeof(forms[0]); i = share_next(i + 1)) {
        uint64_t units = 0;
        struct ek_fault f;
        int code = 0;
        for (uint32_t n = forms[i].from; n <= forms[i].to; n *= 4) {
            struct ek_buf text = {0};
            forms[i].write(&text, n);
            units = cost(forms[i].kind, &text, &code, &f);
            print_message("%s %u: %zu bytes, %llu units%s%s\n", forms[i].name, n, text.len,
                          (unsigned long long)units, code ? ", " : "", code ? f.msg : "");
            ek_buf_done(&text);
        }
        if (forms[i].most != 0 && (code != 0 || units > forms[i].most))
            fail_msg("%s: %llu units, %d %s", forms[i].name, (unsigned long long)units, code,
                     f.msg);
    }
}

/* Spent fuel has a sentence of its own, whatever the readers made of it. */
static void test_spent(void **state)
{
    static const uint64_t fuels[] = {0, 1, 10, 100, 1000, 10000, 30000};
    struct ek_buf text = {0};
    (void)state;
    write_refs(&text, 20);
    for (size_t i = 0; i < sizeof(fuels) / sizeof(fuels[0]); i++) {
        struct ek_work work = {.fuel = fuels[i]};
        struct grammar *g = NULL;
        struct ek_fault f = {0};
        int r = grammar_compile(GRAMMAR_SCHEMA, text.data, text.len, lexicon, &work, &g, &f);
        if (r == 0) {
            grammar_unref(g);
            continue;
        }
        assert_int_equal(r, -EBADMSG);
        assert_non_null(strstr(f.msg, "more work than is offered"));
    }
    atomic_bool gone = true;
    struct ek_work work = {.fuel = GRAMMAR_FUEL, .cancelled = &gone};
    struct grammar *g = NULL;
    assert_int_equal(grammar_compile(GRAMMAR_SCHEMA, text.data, text.len, lexicon, &work, &g, NULL),
                     -ECANCELED);
    work = (struct ek_work){.fuel = GRAMMAR_FUEL, .deadline_us = 1};
    assert_int_equal(grammar_compile(GRAMMAR_SCHEMA, text.data, text.len, lexicon, &work, &g, NULL),
                     -ETIMEDOUT);
    ek_buf_done(&text);
}

/* Small forms of each kind, given up at each unit of what they cost, which is some thousands at
 * most; the sanitizers look at what was half made. */
static void test_given_up(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } given[] = {
        {GRAMMAR_REGEX, "|"}, /* one state, which accepts */
        {GRAMMAR_REGEX, "(?!b)a{0,9}[^\\x00-\\x7f]"},
        {GRAMMAR_CHOICE, "[\"a\",\"ab\"]"},
        {GRAMMAR_EBNF, "root ::= a | \"x\" root\na ::= [a-z]* \"y\"?"},
        {GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},"
                         "\"patternProperties\":{\"^b\":{\"type\":\"integer\",\"minimum\":3}}}"},
        {GRAMMAR_SCHEMA, "{\"allOf\":[{\"enum\":[1,\"a\"]},{\"type\":\"string\"}]}"},
        {GRAMMAR_CALLS, "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                        "\"name\":null,\"most\":2}"},
        {GRAMMAR_TAGS, "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                       "\"style\":\"hermes\",\"one\":true}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        struct ek_work work = {.fuel = GRAMMAR_FUEL};
        struct grammar *g = NULL;
        struct ek_fault f = {0};
        const size_t len = strlen(given[i].text);
        int r = grammar_compile(given[i].kind, given[i].text, len, lexicon, &work, &g, &f);
        if (r != 0)
            fail_msg("%s: %s", given[i].text, f.msg);
        grammar_unref(g);
        const uint64_t all = work.used, step = all / 1000 + 1;
        for (uint64_t fuel = 0; fuel < all; fuel += step) {
            work = (struct ek_work){.fuel = fuel};
            r = grammar_compile(given[i].kind, given[i].text, len, lexicon, &work, &g, &f);
            if (r == 0) /* it ended with what nobody waits for */
                grammar_unref(g);
            else
                assert_int_equal(r, -EBADMSG);
        }
    }
}

/* ---- masks ---- */

static const struct {
    enum grammar_kind kind;
    const char *text;
} masked[] = {
    {GRAMMAR_SCHEMA, "{\"type\":\"object\"}"},
    {GRAMMAR_REGEX, "(\"[a-z\\xe9]*\": ?([0-9]+|true|false|null|\\{\\}|\\[\\[)(, ?|\n  ))*"},
    {GRAMMAR_EBNF, "root ::= (a | b)* \"x\"\na ::= \"a\" [a-z]* a?\nb ::= [a-z]+ | a b?"},
};

/* Both matchers at the same place: one that pays, a little more with each try, and one that does
 * not. Returns how many tries it took, and how many tokens there are. */
static uint32_t compare_masks(struct matcher *slow, struct matcher *fast, const int32_t *token,
                              uint32_t n, uint32_t room, uint32_t *bits, uint32_t *ret_count)
{
    uint32_t other[MASK_WORDS], tries = 0, count;

    for (uint64_t fuel = 30;; fuel += 30, tries++) {
        struct ek_work work = {.fuel = fuel};
        slow->work = &work;
        bool fits = matcher_follow(slow, token, sizeof(*token), n);
        if (ek_work_stopped(&work))
            continue;
        assert_true(fits);
        count = matcher_mask(slow, false, room, bits);
        if (!ek_work_stopped(&work))
            break;
    }
    assert_true(matcher_follow(fast, token, sizeof(*token), n));
    *ret_count = matcher_mask(fast, false, room, other);
    assert_int_equal(*ret_count, count);
    assert_memory_equal(other, bits, sizeof(other));
    return tries;
}

static void test_masks(void **state)
{
    uint64_t x = 88172645463325252ull;
    (void)state;
    for (size_t i = 0; i < sizeof(masked) / sizeof(masked[0]); i++) {
        struct grammar *g, *same;
        uint32_t tries = 0;
        size_t len = strlen(masked[i].text);
        assert_int_equal(
            grammar_compile(masked[i].kind, masked[i].text, len, lexicon, NULL, &g, NULL), 0);
        assert_int_equal(
            grammar_compile(masked[i].kind, masked[i].text, len, lexicon, NULL, &same, NULL), 0);
        for (int text = 0; text < 10; text++) {
            struct matcher slow, fast;
            int32_t token[40];
            uint32_t bits[MASK_WORDS], count;
            matcher_init(&slow, g);
            matcher_init(&fast, same);
            for (uint32_t n = 0; n < 40; n++) {
                tries += compare_masks(&slow, &fast, token, n, text % 2 ? MATCHER_MANY : 45 - n,
                                       bits, &count);
                if (count == 0)
                    break;
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                uint32_t pick = (uint32_t)(x % count);
                for (token[n] = 0; token[n] < (int32_t)WORDS_COUNT; token[n]++)
                    if (bits[token[n] / 32] >> (token[n] % 32) & 1 && pick-- == 0)
                        break;
                if (token[n] == WORDS_END)
                    break;
            }
        }
        assert_true(tries > 10);
        struct grammar_stats st;
        grammar_stats(g, &st);
        assert_int_equal(st.left_out, 0);
        grammar_unref(g);
        grammar_unref(same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_spent),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, words_setup, words_teardown);
}

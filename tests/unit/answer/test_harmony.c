/* Harmony taken apart: every case whole and cut at every byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fuzz/harmony_feed.h"
#include "tests/unit/alloc.h"

#define S           "<|start|>assistant"
#define THINK(text) "<|channel|>analysis<|message|>" text
#define FINAL(text) "<|channel|>final<|message|>" text
#define SAY(text)   "<|channel|>commentary<|message|>" text
#define CALL(name, text)                                                                           \
    "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>" text
#define E "<|end|>"
#define C "<|call|>"
#define R "<|return|>"

/* `want` is "thought|text" and "|name:args" for each call. */
static const struct {
    const char *prompt, *in, *want;
} cases[] = {
    {S, "", "|"},
    {S, THINK("Hm.") E S FINAL("Yes.") R, "Hm.|Yes."},
    {S, FINAL("Yes."), "|Yes."},
    {S, THINK("cut o"), "cut o|"},
    {S, THINK("Hm.") E S FINAL(""), "Hm.|"},
    {S, THINK("one") E S THINK("two") E S FINAL("a") E S FINAL("b"), "one\ntwo|a\nb"},
    /* calls: the recipient behind the channel, before it, with or without a form */
    {S, CALL("f", "{\"a\": 1}") C, "||f:{\"a\": 1}"},
    {S, " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}" C, "||f:{}"},
    {S, "<|channel|>commentary to=functions.f json<|message|>{}", "||f:{}"},
    {S, "<|channel|>commentary to=functions.f<|message|>{}", "||f:{}"},
    {S, " to=functions.f<|message|>{}", "||f:{}"},
    {S, "<|channel|>analysis to=functions.a.b code<|message|>{}", "||a.b:{}"},
    {S, THINK("t") E S SAY("Let me look.") E S CALL("f", "{}") C, "t|Let me look.|f:{}"},
    {S, CALL("f", "{\"n\":1}") C S CALL("g", "{\"n\":2}") C, "||f:{\"n\":1}|g:{\"n\":2}"},
    {S, CALL("f", "\n { \"a\" : \" \" } \n") C, "||f:{ \"a\" : \" \" }"},
    {S, CALL("f", " ") C, "||f:{}"},
    {S, CALL("f", "{\"a\": \"b"), "||f:{\"a\": \"b"},
    {S, CALL("f", "") C "rest", "||f:{}"},
    /* who was not offered is thought about */
    {S, "<|channel|>analysis to=python code<|message|>1+1" C, "1+1|"},
    {S, "<|channel|>commentary to=browser.search<|message|>{}" C, "{}|"},
    {S, "<|channel|>commentary to=functions. <|message|>{}" C, "{}|"},
    /* a channel of another name, and none */
    {S, "<|channel|>poem<|message|>Roses", "|Roses"},
    {S, "<|message|>Roses", "|Roses"},
    {S, "<|channel|><|message|>Roses", "|Roses"},
    /* marks left out, doubled, in the wrong place */
    {S, THINK("a") FINAL("b") R, "a|b"},
    {S, THINK("a") E "assistant" FINAL("b") R, "a|b"},
    {S, THINK("a") S FINAL("b") R, "a|b"},
    {S, FINAL("a<|message|>b<|constrain|>c") R E, "|abc"},
    {S, "<|channel|>analysis" FINAL("b") R, "|b"},
    {S, THINK("a") E "<|start|>assist", "a|"},
    {S, THINK("a") E S "<|channel|>fin", "a|"},
    /* no harmony: the text as it is */
    {S, "Hello", "|Hello"},
    {S, " \n to Sofia", "| \n to Sofia"},
    {S, "t", "|t"},
    {S, " to=functions.f", "|"},
    {"", "Hello <|end", "|Hello <|end"},
    {"", THINK("a") E S FINAL("b") R, "a|b"},
    /* the prompt has begun the message */
    {S FINAL("Once"), " more." R, "| more."},
    {S THINK(""), "Hm." E S FINAL("Yes") R, "Hm.|Yes"},
    {S CALL("f", ""), "{\"a\": 1}" C, "||f:{\"a\": 1}"},
};

static void show(const struct harmony_seen *seen, struct ek_buf *out)
{
    ek_buf_clear(out);
    (void)ek_buf_add(out, seen->thought.data ? seen->thought.data : "", seen->thought.len);
    (void)ek_buf_puts(out, "|");
    (void)ek_buf_add(out, seen->text.data ? seen->text.data : "", seen->text.len);
    for (uint32_t i = 0; i < seen->calls.count; i++)
        (void)ek_buf_printf(out, "|%s:%s", seen->calls.call[i].name, seen->calls.call[i].args.data);
}

static int read_case(const char *prompt, const char *in, bool offered, size_t piece,
                     struct harmony_seen *seen)
{
    struct harmony h;
    harmony_begin(&h, offered);
    int r = harmony_feed(&h, prompt, strlen(prompt), 99, seen);
    ek_buf_clear(&seen->thought);
    ek_buf_clear(&seen->text);
    harmony_open(&h);
    if (r == 0)
        r = harmony_feed(&h, in, strlen(in), piece, seen);
    return r < 0 ? r : harmony_over(&h, seen);
}

static void test_cases(void **state)
{
    struct ek_buf got = {0};
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (size_t piece = 1; piece <= strlen(cases[c].in) + 1; piece++) {
            struct harmony_seen seen = {0};
            assert_int_equal(read_case(cases[c].prompt, cases[c].in, true, piece, &seen), 0);
            show(&seen, &got);
            if (strcmp(got.data, cases[c].want) != 0)
                fail_msg("%s in pieces of %zu: %s, not %s", cases[c].in, piece, got.data,
                         cases[c].want);
            harmony_unsee(&seen);
        }
    }
    ek_buf_done(&got);
}

/* What is certain is passed on at once. */
static void test_at_once(void **state)
{
    struct harmony_seen seen = {0};
    struct harmony h;
    (void)state;
    harmony_begin(&h, true);
    assert_int_equal(harmony_feed(&h, S, strlen(S), 99, &seen), 0);
    harmony_open(&h);
    const char *in = THINK("Hm");
    assert_int_equal(harmony_feed(&h, in, strlen(in), 99, &seen), 0);
    assert_string_equal(seen.thought.data, "Hm");
    in = E S FINAL("Ye");
    assert_int_equal(harmony_feed(&h, in, strlen(in), 99, &seen), 0);
    assert_string_equal(seen.text.data, "Ye");
    in = E S CALL("f", "{\"a\"");
    assert_int_equal(harmony_feed(&h, in, strlen(in), 99, &seen), 0);
    assert_true(seen.calls.count == 1 && seen.calls.open);
    assert_string_equal(seen.calls.call[0].args.data, "{\"a\"");
    assert_int_equal(harmony_over(&h, &seen), 0);
    harmony_unsee(&seen);
}

static void test_not_offered(void **state)
{
    struct harmony_seen seen = {0};
    struct ek_buf got = {0};
    (void)state;
    assert_int_equal(read_case(S, CALL("f", "{}") C S FINAL("No.") R, false, 99, &seen), 0);
    show(&seen, &got);
    assert_string_equal(got.data, "{}|No.");
    harmony_unsee(&seen);
    ek_buf_done(&got);
}

/* Heads without an end, names that are too long, more calls than there may be. */
static void test_bounds(void **state)
{
    struct harmony_seen seen = {0};
    struct ek_buf in = {0};
    (void)state;
    (void)ek_buf_puts(&in, " to=functions.");
    for (int i = 0; i < 1000; i++)
        (void)ek_buf_puts(&in, "ab");
    assert_int_equal(read_case(S, in.data, true, 7, &seen), 0);
    assert_true(seen.text.len == in.len && memcmp(seen.text.data, in.data, in.len) == 0);
    harmony_unsee(&seen);
    seen = (struct harmony_seen){0};

    ek_buf_clear(&in);
    (void)ek_buf_puts(&in, "<|channel|>commentary to=functions.");
    for (int i = 0; i < 1000; i++)
        (void)ek_buf_puts(&in, "ab");
    (void)ek_buf_puts(&in, "<|message|>{}<|call|>");
    for (uint32_t i = 0; i < TOOLCALL_MOST + 2; i++)
        (void)ek_buf_puts(&in, S CALL("f", "{}") C);
    assert_int_equal(read_case(S, in.data, true, 7, &seen), 0);
    assert_true(seen.calls.count == TOOLCALL_MOST);
    assert_string_equal(seen.thought.data, "{}\n{}\n{}");
    harmony_unsee(&seen);
    ek_buf_done(&in);
}

static void test_out_of_memory(void **state)
{
    const char *in = THINK("a") E S SAY("b") E S CALL("f", "{\"a\": 1} ") C S FINAL("c") R;
    (void)state;
    for (long n = 1;; n++) {
        struct harmony_seen seen = {0};
        alloc_fail_at(n);
        int r = read_case(S, in, true, 3, &seen);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        harmony_unsee(&seen);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),         cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_not_offered),   cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

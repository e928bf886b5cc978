/* What a restart would change, by flags in whatever order and spelling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/law/changes.h"

#define WORDS 12

static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *now[WORDS], *next[WORDS], *text;
    } cases[] = {
        {{NULL}, {NULL}, ""},
        {{"--a", "1", "--b"}, {"--b", "--a=1"}, ""},
        {{"--a", "1"}, {"--a", "2"}, "--a 2 instead of 1"},
        {{"--a", "1"}, {"--a", "1", "--b"}, "--b"},
        {{"--a", "1", "--b", "x"}, {"--a", "1"}, "no --b"},
        {{"--temp", "-1"}, {"--temp", "-2"}, "--temp -2 instead of -1"},
        {{"/m", "--a"}, {"/n", "--a"}, "/n instead of /m"},
        {{"--h", "x", "--h", "y"}, {"--h", "x", "--h", "z"}, "--h z instead of y"},
        {{"--h", "x", "--h", "y"}, {"--h", "x"}, "no --h"},
        {{"--ab", "1"}, {"--a", "1"}, "--a 1, no --ab"},
        {{"--a", ""}, {"--a", "1"}, "--a 1 instead of "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[CHANGES_TEXT];
        bool differs = changes_text((char *const *)(uintptr_t)cases[i].now,
                                    (char *const *)(uintptr_t)cases[i].next, text, sizeof(text));
        assert_string_equal(text, cases[i].text);
        assert_int_equal(differs, cases[i].text[0] != '\0');
    }
}

static void test_many_are_cut(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    char words[64][64], *next[65], text[CHANGES_TEXT];
    for (int i = 0; i < 64; i++) {
        memset(words[i], 'a' + i % 26, sizeof(words[i]));
        memcpy(words[i], "--", 2);
        words[i][63] = '\0';
        next[i] = words[i];
    }
    next[64] = NULL;
    assert_true(changes_text((char *const *)(uintptr_t)none, next, text, sizeof(text)));
    assert_int_equal(strlen(text), CHANGES_TEXT - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),
                                       cmocka_unit_test(test_many_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

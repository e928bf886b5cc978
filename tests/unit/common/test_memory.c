/* Buffers and arenas: growth, limits, JSON escapes, allocation failures. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/arena.h"
#include "common/buf.h"
#include "tests/unit/alloc.h"

static void json_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } cases[] = {
        {"a\"b\\c\nd\x01", 8, "a\\\"b\\\\c\\nd\\u0001"},
        {"\xC3\xA9\xF0\x9F\x99\x82", 6, "\xC3\xA9\xF0\x9F\x99\x82"},
        {"\xFFz", 2, "\xEF\xBF\xBDz"},
        {"\xE2\x82", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* cut short */
        {"\xC0\xAF", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong */
        {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* surrogate */
        {"\0", 1, "\\u0000"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf b = {0};
        assert_int_equal(ek_buf_json(&b, cases[i].in, cases[i].len), 0);
        assert_string_equal(b.data, cases[i].out);
        ek_buf_done(&b);
    }
}

static void limits_and_drop(void **state)
{
    (void)state;
    struct ek_buf b = {.limit = 4};
    assert_int_equal(ek_buf_puts(&b, "abcd"), 0);
    assert_int_equal(ek_buf_puts(&b, "e"), -ENOMEM);
    assert_false(ek_buf_ok(&b));
    ek_buf_clear(&b);
    assert_int_equal(ek_buf_printf(&b, "%d", 123), 0);
    ek_buf_drop(&b, 2);
    assert_string_equal(b.data, "3");
    assert_int_equal(ek_buf_reserve(&b, SIZE_MAX), -ENOMEM);
    ek_buf_done(&b);
    alloc_fail_at(1);
    assert_int_equal(ek_buf_puts(&b, "x"), -ENOMEM);
    assert_true(alloc_failed());
    ek_buf_done(&b);
}

static long resident_pages(void)
{
    long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &all, &resident), 2);
    (void)fclose(f);
    return resident;
}

/* Room that nobody writes to takes no memory; what is written does. */
static void arenas_take_what_is_used(void **state)
{
    (void)state;
    struct ek_arena a = {0};
    const size_t size = 256u << 20;
    long before = resident_pages();
    char *p = ek_arena_array(&a, size / 16, 16);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    assert_true(p[0] == 0 && p[size - 1] == 0);
    assert_true((resident_pages() - before) * 4096 < 16l << 20);
    memset(p, 1, 64u << 20);
    char *small = ek_arena_take(&a, 100);
    assert_true(small && small[0] == 0);
    assert_true((resident_pages() - before) * 4096 >= 60l << 20);
    ek_arena_done(&a);
    assert_true((resident_pages() - before) * 4096 < 16l << 20);
}

static void arenas(void **state)
{
    (void)state;
    struct ek_arena a = {.limit_bytes = 100000};
    char *s = ek_arena_copy(&a, "hello", 5);
    assert_string_equal(s, "hello");
    assert_null(ek_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(ek_arena_take(&a, 200000));
    for (int i = 0; i < 50; i++)
        assert_non_null(ek_arena_take(&a, 1000));
    assert_string_equal(s, "hello");
    ek_arena_done(&a);
    assert_int_equal(a.used_bytes, 0);
    alloc_fail_at(1);
    assert_null(ek_arena_take(&a, 1));
    assert_true(alloc_failed());
    ek_arena_done(&a);
}

static void test_wrap(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", "\n"},
        {"one two", "one two\n"},
        {"one two three four", "one two\n  three four\n"},
        {"a-word-beyond-the-width x", "a-word-beyond-the-width\n  x\n"},
        /* Chinese: two columns each, broken anywhere but before closing marks */
        {"一二三 四五 six", "一二三 四\n  五 six\n"},
        {"一二三四五，六", "一二三四\n  五，六\n"},
        {"ab  cd", "ab  cd\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf b = {0};
        ek_buf_wrap(&b, cases[i].in, 2, 12);
        assert_string_equal(b.data, cases[i].out);
        ek_buf_done(&b);
    }
}

static void test_reflow(void **state)
{
    (void)state;
    struct ek_buf b = {0};
    ek_buf_reflow(&b, "short\n\n   2. one two three four\n  one two three\nno break", 16);
    assert_string_equal(b.data, "short\n\n   2. one two\n      three four\n  one two three\n"
                                "no break\n");
    ek_buf_done(&b);
    ek_buf_reflow(&b, "", 16);
    assert_int_equal(b.len, 0);
    ek_buf_reflow(&b, "            so far in that it stays\n", 16);
    assert_string_equal(b.data, "            so far in that it stays\n");
    ek_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap),    cmocka_unit_test(test_reflow),
        cmocka_unit_test(json_escapes), cmocka_unit_test(limits_and_drop),
        cmocka_unit_test(arenas),       cmocka_unit_test(arenas_take_what_is_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Reasons and actions: names that are found again, and what the page is given. The style rules and
 * marks that are expected here are those that the page had before it took them from the table.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/law/reasons.h"

static void test_names(void **state)
{
    (void)state;
    for (int r = 0; r < REASON_COUNT; r++)
        assert_int_equal(reason_find(reason_name((enum reason)r)), r);
    for (int k = 0; k < ACTION_COUNT; k++)
        assert_int_equal(action_find(action_name((enum action_kind)k)), k);
    assert_int_equal(reason_find("NO_SUCH"), REASON_COUNT);
    assert_int_equal(reason_find("UNKNOWN"), REASON_COUNT);
    assert_int_equal(action_find("no such"), ACTION_COUNT);
    assert_string_equal(reason_name(REASON_COUNT), "UNKNOWN");
    assert_string_equal(reason_name((enum reason)1000), "UNKNOWN");
    assert_string_equal(action_name((enum action_kind)1000), "unknown");
    assert_false(action_is_change((enum action_kind)1000));
}

/* Each part of a rule's list of selectors, however ordered. */
static void has_all(const char *text, const char *begin, const char *end,
                    const char *const *selectors)
{
    const char *from = strstr(text, begin), *to = from ? strstr(from, end) : NULL;
    assert_non_null(to);
    size_t listed = 0, at = 0;
    for (const char *c = from; c < to; c++)
        listed += *c == '[';
    for (; selectors[at]; at++) {
        const char *found = strstr(from, selectors[at]);
        assert_true(found && found < to);
    }
    assert_int_equal(listed, at);
}

static void test_colours(void **state)
{
    (void)state;
    struct ek_buf b = {0};
    assert_int_equal(reasons_style(&b), 0);
    has_all(b.data, "tr:is(", ") b { color: var(--amber); }",
            (const char *const[]){"[data-kind=lower]", "[data-reason=RESERVE_MORE]",
                                  "[data-reason=SHED_ON]", NULL});
    has_all(strstr(b.data, "--amber"), "tr:is(", ") b { color: var(--green); }",
            (const char *const[]){"[data-kind=raise]", "[data-kind=revert]",
                                  "[data-reason=RESERVE_LESS]", "[data-reason=SHED_OFF]", NULL});
    has_all(strstr(b.data, "--green"), "tr:is(", ") b { color: var(--red); }",
            (const char *const[]){"[data-kind=restart]", "[data-reason=CRASH]",
                                  "[data-reason=BREAKER_OPEN]", "[data-reason=HANG_NOPROGRESS]",
                                  NULL});
    ek_buf_done(&b);
}

static void test_marks(void **state)
{
    (void)state;
    static const char *const was[] = {
        "lower: \"--amber\"",        "raise: \"--green\"",      "revert: \"--green\"",
        "restart: \"--red\"",        "BREAKER_OPEN: \"--red\"", "RESERVE_MORE: \"--amber\"",
        "RESERVE_LESS: \"--green\"", "SHED_ON: \"--amber\"",    "SHED_OFF: \"--green\""};
    struct ek_buf b = {0};
    assert_int_equal(reasons_marks(&b), 0);
    size_t rows = 1;
    for (const char *c = b.data; *c; c++)
        rows += *c == ',';
    assert_int_equal(rows, sizeof(was) / sizeof(was[0]));
    for (size_t i = 0; i < rows; i++)
        assert_non_null(strstr(b.data, was[i]));
    assert_int_equal(b.data[0], '{');
    assert_int_equal(b.data[b.len - 1], '}');
    ek_buf_done(&b);
}

/* What a person reads is there for each, but where "it happened" says it all. */
static void test_texts(void **state)
{
    (void)state;
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const struct reason_info *r = reason_info((enum reason)i);
        assert_true(r->meaning[0] && r->subject[0]);
        assert_null(strstr(r->meaning, "\n"));
        assert_null(strstr(r->text, "\n\n"));
        assert_true(r->level >= EK_LOG_ERR && r->level <= EK_LOG_INFO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_colours),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

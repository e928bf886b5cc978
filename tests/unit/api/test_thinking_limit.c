/* The engine's bound on thinking from a model's marks: what it is, and that it is there whole or
 * not at all. The tokenizer is the embedded model's, for which a mark is several tokens. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/api/thinking_limit.h"
#include "tests/unit/alloc.h"

#define MODEL "models/evenkeel-tiny"

static struct tokenizer *tok;

static int load(void **state)
{
    struct ek_fault fault = {0};

    (void)state;
    return tokenizer_load(MODEL, &tok, &fault);
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    return 0;
}

static void test_marks(void **state)
{
    static const struct {
        const char *prompt;
        int64_t most;
        enum thinkstyle style;
        bool on, inside;
    } cases[] = {
        {"<think>", 8, THINK_TAGS, true, true},
        {"", 8, THINK_TAGS, true, false},
        {"<think>", -1, THINK_TAGS, false, true},
        {"", 8, THINK_NONE, false, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reasoning r = {0};
        struct thinking_limit l;
        reasoning_begin(&r, cases[i].style, cases[i].prompt, strlen(cases[i].prompt));
        assert_int_equal(thinking_limit(tok, &r, cases[i].most, &l), 0);
        assert_int_equal(l.on, cases[i].on);
        assert_int_equal(l.inside, cases[i].inside);
        assert_int_equal(l.most, cases[i].on ? 8 : 0);
        assert_int_equal(l.close.count > 0, cases[i].on);
        reasoning_done(&r);
    }
}

/* What the caller had stays as it was when there is no memory. */
static void test_allocations(void **state)
{
    struct thinking_limit was, l, good;
    struct reasoning r = {0};

    (void)state;
    reasoning_begin(&r, THINK_TAGS, "<think>", 7);
    assert_int_equal(thinking_limit(tok, &r, 8, &good), 0);
    memset(&was, 0x5a, sizeof(was));
    for (long n = 1;; n++) {
        memcpy(&l, &was, sizeof(l));
        alloc_fail_at(n);
        int code = thinking_limit(tok, &r, 8, &l);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(code, 0);
            assert_int_equal(l.close.count, good.close.count);
            assert_true(n > 1);
            break;
        }
        assert_int_equal(code, -ENOMEM);
        assert_memory_equal(&l, &was, sizeof(l));
    }
    reasoning_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_allocations),
    };

    return cmocka_run_group_tests(tests, load, unload);
}

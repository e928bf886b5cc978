/*
 * Templates that want too much: steps, output, memory, depth, and the stack. Each must end soon,
 * with a message, and without harm. Then the allocation loop, and many renderings at once.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/jinja/jinja.h"
#include "tests/unit/alloc.h"

static int render(const char *source, size_t len, const json_t *context, struct ek_buf *out,
                  struct ek_fault *fault)
{
    struct jinja *t = NULL;
    struct jinja_env env = {.context = context};
    int r = jinja_parse(source, len, &t, fault);
    if (r == 0)
        r = jinja_render(t, &env, out, fault);
    jinja_free(t);
    return r;
}

static void refuses(const char *source, size_t len, const char *message)
{
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    int r = render(source, len, NULL, &out, &fault);
    if (r != -EBADMSG || !strstr(fault.msg, message))
        fail_msg("%.80s\n  want %s\n  got  %d %s", source, message, r, fault.msg);
    assert_int_equal(out.len, 0);
    ek_buf_done(&out);
}

static void test_run_limits(void **state)
{
    static const struct {
        const char *source, *message;
    } cases[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
         "{% endfor %}{% endfor %}{% endfor %}",
         "takes more than 1000000 steps"},
        {"{% for a in range(99999) %}{{ 'x' * 100 }}{% endfor %}", "longer than 4194304 bytes"},
        {"{{ 'x' * 1000000000000 }}", "steps"},
        {"{{ [0] * 1000000000000 }}", "steps"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}",
         "of memory"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}"
         "{% endfor %}{{ ns.l }}",
         "nested deeper than 400"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
         "{% endfor %}{{ ns.l }}",
         "longer than 4194304 bytes"},
        {"{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(60) %}"
         "{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}",
         "steps"},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested deeper than 400"},
        {"{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me == [ns] }}{{ ns.me | tojson }}",
         "not JSON serializable"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls are nested deeper than 48"},
        {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
         "calls are nested deeper than 48"},
        {"{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}", "calls are nested deeper than 48"},
        {"{{ ('a' * 4000000) | replace('', 'aaaa') }}", "longer than 4194304 bytes"},
        {"{{ 2 ** 100000000000 }}", "integer overflow"},
        {"{{ ('a' * 50000).strip('b' * 50000 + 'a') }}", "steps"},
        {"{{ ('a' * 50000) | trim('b' * 50000 + 'a') }}", "steps"},
        {"{{ ('a' * 500000).rfind('a' * 250000 + 'b') }}", "steps"},
        {"{{ ('a' * 500000).rpartition('a' * 250000 + 'b') }}", "steps"},
        {"{{ ('a' * 500000).rsplit('a' * 250000 + 'b', 1) }}", "steps"},
        {"{{ '%999s' % ('%999s' % 1) * 9999 }}", "longer than"},
        {"{{ '%99999s' % 1 }}", "unsupported format character"},
        {"{{ [1] | tojson(indent=99) }}", "indents by at most"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        refuses(cases[i].source, strlen(cases[i].source), cases[i].message);
}

/* One piece, many times: nothing may recurse as deep as the source is long. */
static void test_parse_depth(void **state)
{
    static const struct {
        const char *before, *piece, *message;
    } cases[] = {
        {"{{ ", "(", "nested deeper than 64"},      {"{{ ", "[", "nested deeper than 64"},
        {"{{ ", "{1:", "nested deeper than 64"},    {"{{ ", "not ", "nested deeper than 64"},
        {"{{ ", "-", "nested deeper than 64"},      {"{{ a", ".a", "parts in a row"},
        {"{{ a", "[0]", "parts in a row"},          {"{{ a", "()", "parts in a row"},
        {"{{ a", "|e", "parts in a row"},           {"{{ a", " if a", "conditions in a row"},
        {"{{ a", " if a else a", "deeper than 64"}, {"", "{% if a %}", "nested deeper than 64"},
        {"", "{% for a in b %}", "deeper than 64"}, {"{{ a", "(a", "nested deeper than 64"},
        {"{{ a", "[a", "nested deeper than 64"},    {"{% set ", "(", "nested deeper than 64"},
        {"", "{% macro a() %}", "deeper than 64"},  {"", "{% set a %}", "nested deeper than 64"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ek_buf source = {0};
        assert_int_equal(ek_buf_puts(&source, cases[i].before), 0);
        for (int n = 0; n < 5000; n++)
            assert_int_equal(ek_buf_puts(&source, cases[i].piece), 0);
        refuses(source.data, source.len, cases[i].message);
        ek_buf_done(&source);
    }
}

/* Long but flat is no reason to refuse. */
static void test_long_chains(void **state)
{
    static const char *const cases[][3] = {{"{{ 1", " + 1", " }}"},
                                           {"{{ 'a'", " ~ 'a'", " }}"},
                                           {"{{ 0", " or 0", " }}"},
                                           {"{{ 1", " < 2 > 1", " }}"},
                                           {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
                                           {"{{ [0", ", 0", "] }}"},
                                           {"", "{{ 1 }}{% set a = 1 %}{# #}", ""},
                                           {"{{ 'a'", "'a'", " }}"}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ek_buf source = {0}, out = {0};
        struct ek_fault fault = {0};
        assert_int_equal(ek_buf_puts(&source, cases[i][0]), 0);
        for (int n = 0; n < 3000; n++)
            assert_int_equal(ek_buf_puts(&source, cases[i][1]), 0);
        assert_int_equal(ek_buf_puts(&source, cases[i][2]), 0);
        int r = render(source.data, source.len, NULL, &out, &fault);
        if (r != 0)
            fail_msg("%s...: %s", cases[i][0], fault.msg);
        ek_buf_done(&source);
        ek_buf_done(&out);
    }
}

static void test_deep_data(void **state)
{
    (void)state;
    struct ek_buf text = {0}, out = {0};
    struct ek_fault fault = {0};
    assert_int_equal(ek_buf_puts(&text, "{\"x\": "), 0);
    for (int n = 0; n < 1000; n++)
        assert_int_equal(ek_buf_puts(&text, "["), 0);
    for (int n = 0; n < 1000; n++)
        assert_int_equal(ek_buf_puts(&text, "]"), 0);
    assert_int_equal(ek_buf_puts(&text, "}"), 0);
    json_t *context = json_loadb(text.data, text.len, 0, NULL);
    assert_non_null(context);
    assert_int_equal(render("{{ x }}", 7, context, &out, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "nested deeper than 400"));
    json_decref(context);
    ek_buf_done(&text);
}

/* Text that grows piece by piece costs what it is long, not its square. */
static void test_growing_text(void **state)
{
    static const char source[] = "{% set ns = namespace(s='') %}{% for i in range(40000) %}"
                                 "{% set ns.s = ns.s + '0123456789' %}{% endfor %}"
                                 "{% set t = ns.s + 'x' %}{% set u = ns.s + 'y' %}"
                                 "{{ ns.s | length }} {{ t[-1] }}{{ u[-1] }}";
    (void)state;
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    assert_int_equal(render(source, sizeof(source) - 1, NULL, &out, &fault), 0);
    assert_string_equal(out.data, "400000 xy");
    ek_buf_done(&out);
}

static const char all_kinds[] =
    "{% macro m(a, b='x') %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}"
    "{% set ns = namespace(n=0, l=[]) %}{% for k, v in d.items() if v %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.l = ns.l + [k ~ loop.index] %}{{ m(k, b=v) }}{% endfor %}"
    "{% call m(1) %}{{ ns.l | join(',') | upper }}{% endcall %}{% filter trim %} {{ d | tojson }} "
    "{% endfilter %}{{ d | dictsort }}{{ 'a b'.split() | map('title') | list | sort }}{{ '%s' % 1 "
    "}}"
    "{{ ns.l[::-1] }}{{ 'xyz'[::-2] }}{{ dict(a=1, **d) }}{{ '<' | e + '>' }}{{ 1.5 }}";

static void test_allocation_failures(void **state)
{
    (void)state;
    struct ek_fault fault = {0};
    struct jinja *t = NULL;
    json_t *context = json_pack("{s:{s:i, s:s}}", "d", "one", 1, "two", "zwei");
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = jinja_parse(all_kinds, sizeof(all_kinds) - 1, &t, &fault);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(t);
    }
    struct jinja_env env = {.context = context};
    for (long n = 1;; n++) {
        struct ek_buf out = {0};
        alloc_fail_at(n);
        int r = jinja_render(t, &env, &out, &fault);
        bool failed = alloc_failed();
        if (r != (failed ? -ENOMEM : 0))
            fail_msg("%d %s", r, fault.msg);
        assert_int_equal(out.len == 0, failed);
        ek_buf_done(&out);
        if (!failed)
            break;
    }
    jinja_free(t);
    json_decref(context);
}

struct at_once {
    const struct jinja *t;
    const json_t *context;
    const char *expected;
    int wrong;
};

static void *render_often(void *arg)
{
    struct at_once *a = arg;
    struct jinja_env env = {.context = a->context};
    for (int i = 0; i < 200; i++) {
        struct ek_buf out = {0};
        if (jinja_render(a->t, &env, &out, NULL) != 0 || strcmp(out.data, a->expected) != 0)
            a->wrong++;
        ek_buf_done(&out);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct jinja *t = NULL;
    struct ek_buf out = {0};
    json_t *context = json_pack("{s:{s:i, s:s}}", "d", "one", 1, "two", "zwei");
    struct jinja_env env = {.context = context};
    assert_int_equal(jinja_parse(all_kinds, sizeof(all_kinds) - 1, &t, NULL), 0);
    assert_int_equal(jinja_render(t, &env, &out, NULL), 0);
    struct at_once a[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        a[i] = (struct at_once){t, context, out.data, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &a[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(a[i].wrong, 0);
    }
    ek_buf_done(&out);
    jinja_free(t);
    json_decref(context);
}

/* Many variables cost what each costs, whatever their number; each is found, the last value wins,
 * and they are paid for. */
static void test_many_variables(void **state)
{
    static const char source[] = "{{ k7 }} {{ k99999 }} {{ nobody is defined }}"
                                 "{% for i in range(3) %}{% set k7 = i %}{{ k7 }}{% endfor %}";
    json_t *context = json_object();
    struct ek_buf out = {0};
    struct jinja *t;
    char name[32];
    (void)state;
    for (int i = 0; i < 100000; i++) {
        (void)snprintf(name, sizeof(name), "k%d", i);
        assert_int_equal(json_object_set_new(context, name, json_integer(i)), 0);
    }
    struct jinja_limits limits = jinja_limits;
    struct jinja_env env = {.context = context, .limits = &limits};
    assert_int_equal(jinja_parse(source, sizeof(source) - 1, &t, NULL), 0);
    assert_int_equal(jinja_render(t, &env, &out, NULL), 0);
    assert_string_equal(out.data, "7 99999 False012");
    limits.fuel = 5000;
    assert_int_equal(jinja_render(t, &env, &out, NULL), -EBADMSG);
    ek_buf_done(&out);
    jinja_free(t);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_limits),   cmocka_unit_test(test_parse_depth),
        cmocka_unit_test(test_long_chains),  cmocka_unit_test(test_deep_data),
        cmocka_unit_test(test_growing_text), cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_many_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The built-in catalog on logs: each signature is found where it must be and not where it is only
 * near; and what is wrong in a site's file is named with its line. */
#include "supervisor/doctor/catalog.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/doctor/scan.h"
#include "supervisor/doctor/selftest.h"
#include "tests/unit/alloc.h"

static struct doctor_catalog *catalog;
static uint32_t wrong; /* logs; all are looked at before the test fails */

static int open_catalog(void **state)
{
    (void)state;
    struct ek_fault fault = {0};
    int r = doctor_catalog_new(NULL, NULL, 0, &catalog, &fault);
    if (r < 0)
        print_error("%s\n", fault.msg);
    return r;
}

static int close_catalog(void **state)
{
    (void)state;
    doctor_catalog_free(catalog);
    return 0;
}

/* The main finding's id, or the count of those that are `id` if it is given. */
static const char *scan(const char *text, const char *id, uint32_t *ret_of_id)
{
    static char main_id[64];
    struct doctor_scan *s;
    const struct doctor_finding *f;
    uint32_t count;
    assert_int_equal(doctor_scan_new(catalog, &s), 0);
    doctor_scan_feed(s, text, strlen(text));
    assert_int_equal(doctor_scan_finish(s, &f, &count), 0);
    *ret_of_id = 0;
    for (uint32_t i = 0; i < count; i++)
        *ret_of_id += strcmp(f[i].signature->id, id) == 0;
    (void)snprintf(main_id, sizeof(main_id), "%s", count ? f[0].signature->id : "");
    doctor_scan_free(s);
    return main_id;
}

static void check_case(const char *id, const char *yes, const char *no)
{
    uint32_t found;
    if (!doctor_catalog_find(catalog, id))
        fail_msg("%s: no such signature", id);
    if (!*yes || !*no)
        fail_msg("%s: has no log of its own or no near miss", id);
    const char *main_id = scan(yes, id, &found);
    if (strcmp(main_id, id) != 0) {
        print_error("%s: found as '%s' in %s", id, main_id, yes);
        wrong++;
    }
    (void)scan(no, id, &found);
    if (found) {
        print_error("%s: found in %s", id, no);
        wrong++;
    }
}

static void test_logs(void **state)
{
    (void)state;
    static char yes[8192], no[8192];
    char line[2048], id[64] = "";
    uint32_t cases = 0;
    FILE *f = fopen("tests/fixtures/signatures.txt", "r");
    assert_non_null(f);
    for (bool more = true; more;) {
        more = fgets(line, sizeof(line), f) != NULL;
        if (!more || strncmp(line, "== ", 3) == 0) {
            if (*id)
                check_case(id, yes, no);
            cases += *id != '\0';
            yes[0] = no[0] = '\0';
            if (more)
                (void)snprintf(id, sizeof(id), "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
        } else if (*line == '+' || *line == '-') {
            char *to = *line == '+' ? yes : no;
            (void)snprintf(to + strlen(to), sizeof(yes) - strlen(to), "%s", line + 1);
        }
    }
    (void)fclose(f);
    assert_int_equal(wrong, 0);
    for (uint32_t i = 0; i < catalog->signature_count; i++) /* each has its logs */
        assert_true(catalog->signatures[i].example_count > 0);
    assert_true(cases >= 60);
}

static void note_example(void *ctx, const struct selftest_result *r)
{
    uint32_t *count = ctx;
    ++*count;
    if (r->right)
        return;
    print_error("%s: an example of %s is named %s: %s\n", r->of->id, r->example->version,
                r->named ? r->named->id : "by nothing", r->example->log);
    wrong++;
}

/* Each example is named by its own entry and by no neighbour. */
static void test_examples(void **state)
{
    (void)state;
    uint32_t examples = 0;
    wrong = 0;
    assert_int_equal(doctor_selftest(catalog, note_example, &examples), 0);
    assert_int_equal(wrong, 0);
    assert_true(examples >= 400);
    assert_true(catalog->pattern_count >= 600);
}

/* A site's file: replaces by id, adds, and is refused with its line. */
static void test_own(void **state)
{
    (void)state;
#define TEXTS "  title: {en: a, zh: b}\n  cause: {en: a, zh: b}\n  sources: [here]\n"
    static const struct {
        const char *text, *says;
        int grows;
    } cases[] = {
        {"signatures:\n- id: port-in-use\n  class: PORT\n  re: ['Port is mine']\n" TEXTS, NULL, 0},
        {"signatures:\n- id: mine\n  class: CONFIG\n  re: ['my own failure']\n" TEXTS, NULL, 1},
        {"", NULL, 0},
        {"signatures:\n- id: mine\n  class: NOTHING\n" TEXTS, "line 2: there is no class", 0},
        {"signatures:\n- id: mine\n  class: PORT\n  colour: red\n" TEXTS, "unknown key 'colour'",
         0},
        {"signatures:\n- id: mine\n  class: PORT\n  re: ['(abc|def)']\n" TEXTS, "no literal", 0},
        {"signatures:\n- id: mine\n  class: PORT\n  re: ['abcdef(']\n" TEXTS, "is no expression",
         0},
        {"signatures:\n- id: mine\n  class: PORT\n  title: {zh: a}\n", "'en' is missing", 0},
        {"signatures:\n- id: mine\n  class: PORT\n  rank: 900\n" TEXTS, "from 1 to 100", 0},
        {"signatures:\n- id: mine\n  class: PORT\n  do: [{en: a, zh: b, value: '1 +'}]\n" TEXTS,
         "cannot be computed", 0},
        {"signatures:\n- id: mine\n  class: PORT\n  re: ['first of both']\n" TEXTS
         "- id: mine\n  class: PORT\n  re: ['second of both']\n" TEXTS,
         "'mine' is there twice", 0},
        {"signatures: [", "did not find", 0},
        {"- a\n", "expected {key: value", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct doctor_catalog *c = NULL;
        struct ek_fault fault = {0};
        int r = doctor_catalog_new("own.yaml", cases[i].text, strlen(cases[i].text), &c, &fault);
        if (!cases[i].says) {
            assert_int_equal(r, 0);
            assert_int_equal(c->signature_count,
                             catalog->signature_count + (uint32_t)cases[i].grows);
            doctor_catalog_free(c);
        } else {
            assert_int_equal(r, -EBADMSG);
            assert_null(c);
            if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, "own.yaml line"))
                fail_msg("%zu: %s", i, fault.msg);
        }
    }
}

static void test_allocations(void **state)
{
    (void)state;
    static const char text[] =
        "facts: ['tokens of (?<tokens>{num})']\nsignatures:\n- id: mine\n  class: PORT\n"
        "  re: ['my own failure']\n  do: [{en: a, zh: b, value: '1'}]\n" TEXTS;
    for (long n = 1;; n++) {
        struct doctor_catalog *c = NULL;
        alloc_fail_at(n);
        int r = doctor_catalog_parse("own.yaml", text, strlen(text), &c, NULL);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            doctor_catalog_free(c);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logs), cmocka_unit_test(test_examples),
                                       cmocka_unit_test(test_own),
                                       cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}

/* Lists of checksums: what is read, what is refused and how it is said; files that are what the
 * list says, and such that are not, are missing or are not on it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/checksum.h"
#include "tests/unit/alloc.h"
#include "tests/unit/model/make.h"

/* SHA-256 of "abc", and of "abd". */
#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define ABD "a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t count;
        const char *refused;
    } cases[] = {
        {ABC "  a.safetensors\n", 1, NULL},
        {"# of a model\n\n" ABC " *a.safetensors\r\n" ABD "  b", 2, NULL},
        {"BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD  a", 1, NULL},
        {"", 0, "has no checksums"},
        {"\n# nothing\n", 0, "has no checksums"},
        {ABC "  a\n" ABC " b\n", 0, "line 2 is not a SHA-256"},
        {"x" ABC "  a\n", 0, "line 1 is not"},
        {ABC "  ../a\n", 0, "line 1 is not"},
        {ABC "  /etc/passwd\n", 0, "line 1 is not"},
        {ABC "  \n", 0, "line 1 is not"},
        {"SHA256 (a) = " ABC "\n", 0, "line 1 is not"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct checksum_list list = {0};
        struct ek_fault f = {.msg = ""};
        int r = checksum_parse("list", cases[i].text, strlen(cases[i].text), &list, &f);
        assert_int_equal(r, cases[i].refused ? -EBADMSG : 0);
        assert_int_equal(list.count, cases[i].count);
        if (cases[i].refused && !strstr(f.msg, cases[i].refused))
            fail_msg("case %zu: %s", i, f.msg);
        if (r == 0) {
            assert_int_equal(list.at[0].hash[0], 0xba);
            assert_int_equal(list.at[0].hash[31], 0xad);
        }
        checksum_done(&list);
    }
}

static void test_verify(void **state)
{
    (void)state;
    static const struct {
        const char *list; /* NULL: none */
        uint32_t files;
        const char *refused;
    } cases[] = {
        {NULL, 0, NULL},
        {ABC "  model.safetensors\n", 1, NULL},
        {ABC "  model.safetensors\n" ABD "  extra.json\n", 2, NULL},
        {ABD "  model.safetensors\n", 0, "model.safetensors: is not the file that the list"},
        {ABD "  extra.json\n", 0, "model.safetensors: is not on the list SHA256SUMS"},
        {ABC "  model.safetensors\n" ABC "  gone.json\n", 0, "gone.json: there is no such file"},
        {"rubbish\n", 0, "SHA256SUMS: line 1 is not"},
    };
    struct make m;
    make_begin(&m, "LlamaForCausalLM");
    make_text(&m, "model.safetensors", "abc");
    make_text(&m, "extra.json", "abd");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault f = {.msg = ""};
        uint32_t files = 0;
        uint64_t bytes = 0;
        if (cases[i].list)
            make_text(&m, CHECKSUM_FILE, cases[i].list);
        int r = checksum_verify(NULL, m.dir, NULL, &files, &bytes, &f);
        assert_int_equal(r, cases[i].refused ? -EBADMSG : 0);
        assert_int_equal(files, cases[i].files);
        assert_int_equal(bytes, 3 * cases[i].files);
        if (cases[i].refused && !strstr(f.msg, cases[i].refused))
            fail_msg("case %zu: %s", i, f.msg);
    }
    /* A list of another place goes before that of the directory. */
    char path[128];
    struct ek_fault f = {.msg = ""};
    uint32_t files = 0;
    uint64_t bytes = 0;
    make_text(&m, "other", ABC "  model.safetensors\n");
    (void)snprintf(path, sizeof(path), "%s/other", m.dir);
    assert_int_equal(checksum_verify(NULL, m.dir, path, &files, &bytes, &f), 0);
    assert_int_equal(files, 1);
    assert_int_equal(checksum_verify(NULL, m.dir, "/nonexistent/list", &files, &bytes, &f),
                     -EBADMSG);
    assert_non_null(strstr(f.msg, "list: there is no such file"));
    make_done(&m);
}

static void test_allocations(void **state)
{
    (void)state;
    static const char text[] = ABC "  a\n";
    struct checksum_list list = {0};
    int r = -ENOMEM;
    for (int n = 1; r == -ENOMEM; n++) {
        alloc_fail_at(n);
        r = checksum_parse("list", text, sizeof(text) - 1, &list, NULL);
        alloc_fail_at(0);
        assert_true(r == 0 || (r == -ENOMEM && !list.at));
    }
    checksum_done(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse), cmocka_unit_test(test_verify),
                                       cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

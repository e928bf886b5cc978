/* Lists of checksums: what is read, what is refused and how it is said; files that are what the
 * list says, and such that are not, are missing or are not on it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "server/model/checksum.h"
#include "server/model/files.h"
#include "server/model/model.h"
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
    const struct checksum_of of = {.dir = m.dir};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault f = {.msg = ""};
        uint32_t files = 0;
        uint64_t bytes = 0;
        if (cases[i].list)
            make_text(&m, CHECKSUM_FILE, cases[i].list);
        int r = checksum_verify(&of, NULL, &files, &bytes, &f);
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
    assert_int_equal(checksum_verify(&of, path, &files, &bytes, &f), 0);
    assert_int_equal(files, 1);
    assert_int_equal(checksum_verify(&of, "/nonexistent/list", &files, &bytes, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "list: there is no such file"));
    make_done(&m);
}

/* A new file at that name; the old one stays for who has it. */
static void put_another(const struct make *m, const char *file, const char *text)
{
    make_remove(m, file);
    make_text(m, file, text);
}

/* Weights are compared as they are mapped, and what was read before must be the same file. */
static void test_the_files_that_were_read(void **state)
{
    (void)state;
    struct make m;
    struct ek_fault f = {.msg = ""};
    uint32_t files = 0;
    uint64_t bytes = 0;
    char name[1][MODEL_FILE_NAME_BYTES] = {"weights.bin"};
    struct ek_weight_file mapped = {0};
    struct ek_bundle *b = NULL;
    struct ek_buf text = {0};
    int fd = ek_bundle_make();
    make_begin(&m, "LlamaForCausalLM");
    make_text(&m, "weights.bin", "abc");
    make_text(&m, "extra.json", "{}");
    assert_int_equal(model_file_map(m.dir, "weights.bin", &mapped, NULL, &f), 0);
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_int_equal(model_file_read(b, m.dir, "extra.json", 100, &text, &f), 0);
    struct model model = {.files = {.file = &mapped, .count = 1}, .file_name = name};
    const struct checksum_of of = {.dir = m.dir, .model = &model, .texts = b};

    make_text(&m, CHECKSUM_FILE,
              "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
              "  extra.json\n");
    assert_int_equal(checksum_verify(&of, NULL, &files, &bytes, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "weights.bin: is not on the list"));

    /* Another file at the name of the weights is not looked at. */
    put_another(&m, "weights.bin", "abd");
    make_text(&m, CHECKSUM_FILE, ABC "  weights.bin\n");
    assert_int_equal(checksum_verify(&of, NULL, &files, &bytes, &f), 0);
    make_text(&m, CHECKSUM_FILE, ABD "  weights.bin\n");
    assert_int_equal(checksum_verify(&of, NULL, &files, &bytes, &f), -EBADMSG);

    /* One that the list means, but not the one that was read. */
    put_another(&m, "extra.json", "abd");
    make_text(&m, CHECKSUM_FILE, ABC "  weights.bin\n" ABD "  extra.json\n");
    assert_int_equal(checksum_verify(&of, NULL, &files, &bytes, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "extra.json: is not the file that it was"));

    model_file_unmap(&mapped);
    ek_bundle_free(b);
    ek_buf_done(&text);
    assert_int_equal(close(fd), 0);
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
                                       cmocka_unit_test(test_the_files_that_were_read),
                                       cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

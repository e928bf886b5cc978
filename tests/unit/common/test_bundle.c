/* What one process hands another one of files: all of it comes out as it was put in, and what was
 * not written by the same code is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "tests/unit/alloc.h"

#define MOST 100u

static struct ek_bundle_read reading(const char *name, bool is_json)
{
    return (struct ek_bundle_read){.path = name,
                                   .what = name,
                                   .field = "field",
                                   .is_json = is_json,
                                   .most_bytes = MOST,
                                   .at = 12,
                                   .file = {.inode = 5}};
}

static int keep(struct ek_bundle *b, const char *name, const char *text, bool is_json)
{
    const struct ek_bundle_read read = reading(name, is_json);
    struct ek_fault f = {0};
    struct ek_buf buf = {0};
    int r = ek_buf_puts(&buf, text);
    if (r == 0)
        r = ek_bundle_keep(b, &read, 0, &buf, &f);
    ek_buf_done(&buf);
    return r;
}

/* Three files that were read, one that was no JSON, and one that could not be opened. */
static int fill(struct ek_bundle *b)
{
    struct ek_fault f = {.msg = "d/e: cannot be\nopened"};
    const struct ek_bundle_read closed = reading("d/e", false);
    struct ek_buf none = {0};
    int r = keep(b, "d/a.json", "{ \"x\" : \"\\u0041\" }", true);
    if (r == 0)
        r = keep(b, "d/b", "as it\n is ", false);
    if (r == 0)
        r = keep(b, "d/c", "", false);
    if (r == 0)
        r = keep(b, "d/d.json", "{\n\"x\": }", true) == -EBADMSG ? 0 : -ENOMEM;
    if (r == 0)
        r = ek_bundle_keep(b, &closed, -EBADMSG, &none, &f) == -EBADMSG ? 0 : -ENOMEM;
    return r;
}

static int made(void)
{
    struct ek_bundle *b = NULL;
    int fd = ek_bundle_make();
    assert_true(fd >= 0);
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_int_equal(fill(b), 0);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);
    return fd;
}

static void says(const struct ek_bundle *b, const char *name, bool is_json, int code,
                 const char *text)
{
    const struct ek_bundle_read read = reading(name, is_json);
    struct ek_buf out = {0};
    struct ek_fault f = {0};
    int r = ek_bundle_take(b, &read, &out, &f);
    const char *is = r == -EBADMSG ? f.msg : out.data ? out.data : "";
    if (r != code || !strstr(is, text) || (r == 0 && strcmp(is, text) != 0))
        fail_msg("%s: %d: %s", name, r, is);
    ek_buf_done(&out);
}

static void says_all(const struct ek_bundle *b)
{
    says(b, "d/a.json", true, 0, "{\"x\":\"A\"}");
    says(b, "d/b", false, 0, "as it\n is ");
    says(b, "d/c", false, 0, "");
    says(b, "d/d.json", true, -EBADMSG, "d/d.json: line 2: ");
    says(b, "d/e", false, -EBADMSG, "d/e: cannot be opened"); /* nothing moves a terminal */
    says(b, "d/f", false, -ENOENT, "");
    says(b, "d/", false, -ENOENT, "");
}

static void test_both_sides(void **state)
{
    struct ek_bundle *b = NULL;
    (void)state;
    int fd = ek_bundle_make();
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_true(ek_bundle_is_open(b));
    assert_int_equal(fill(b), 0);
    says_all(b);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);

    assert_int_equal(ek_bundle_open(fd, &b), -EBADMSG); /* it could still be changed */
    assert_int_equal(ek_bundle_seal(fd), 0);
    assert_int_equal(ek_bundle_open(fd, &b), 0);
    assert_false(ek_bundle_is_open(b));
    says_all(b);
    assert_int_equal(ek_bundle_find(b, "d/a.json")->at, 12);
    assert_int_equal(ek_bundle_find(b, "d/a.json")->file.inode, 5);
    assert_true(pwrite(fd, "x", 1, 0) < 0 && errno == EPERM);
    assert_true(ftruncate(fd, 3) < 0 && errno == EPERM);
    ek_bundle_free(b);
    (void)close(fd);
}

/* JSON that is JSON, but not as it should have been handed back; and more of it than may be. */
static void test_other_form(void **state)
{
    char text[MOST + 2];
    struct ek_bundle *b = NULL;
    int fd = ek_bundle_make();
    (void)state;
    memset(text, ' ', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_int_equal(keep(b, "a.json", "{ }", false), 0);
    assert_int_equal(keep(b, "b.json", "{\"a\":\"\\u0041\"}", false), 0);
    assert_int_equal(keep(b, "c.json", "{\"a\":1} ", false), 0);
    assert_int_equal(keep(b, "d.json", "{\"a\":", false), 0);
    assert_int_equal(keep(b, "e.json", "", false), 0);
    assert_int_equal(keep(b, "large", text, false), 0);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);
    assert_int_equal(ek_bundle_seal(fd), 0);
    assert_int_equal(ek_bundle_open(fd, &b), 0);
    for (char name[] = "a.json"; name[0] <= 'e'; name[0]++)
        says(b, name, true, -EBADMSG, "not handed it back in the form");
    says(b, "large", false, -EBADMSG, "101 bytes");
    ek_bundle_free(b);
    (void)close(fd);
}

/* The same bytes, changed, in a sealed memfd. */
static int open_changed(const char *bytes, size_t len, struct ek_bundle **ret_bundle)
{
    int fd = ek_bundle_make();
    assert_true(fd >= 0 && write(fd, bytes, len) == (ssize_t)len);
    assert_int_equal(ek_bundle_seal(fd), 0);
    int r = ek_bundle_open(fd, ret_bundle);
    (void)close(fd);
    return r;
}

static size_t bytes_of(int fd, char *to, size_t most)
{
    ssize_t n = pread(fd, to, most, 0);
    assert_true(n > 0 && (size_t)n < most);
    return (size_t)n;
}

static void test_cut(void **state)
{
    char bytes[2048];
    struct ek_bundle *b = NULL;
    int fd = made();
    size_t len = bytes_of(fd, bytes, sizeof(bytes));
    (void)state;
    for (size_t n = 0; n < len; n++)
        assert_int_equal(open_changed(bytes, n, &b), -EBADMSG);
    assert_int_equal(open_changed(bytes, len + 1, &b), -EBADMSG);
    assert_int_equal(open_changed(bytes, len, &b), 0);
    ek_bundle_free(b);
    (void)close(fd);
}

/* Whatever is in a length, a name or a text, it is refused or lies within the bytes. */
static void test_changed(void **state)
{
    static const unsigned char values[] = {0, 1, 0x0a, 0x1b, 0x7f, 0x80, 0xff};
    char bytes[2048];
    uint32_t refused = 0;
    int fd = made();
    size_t len = bytes_of(fd, bytes, sizeof(bytes));
    (void)state;
    for (size_t i = 0; i < len; i++)
        for (size_t v = 0; v < sizeof(values); v++) {
            struct ek_bundle *b = NULL;
            struct ek_buf out = {0};
            char was = bytes[i];
            const struct ek_bundle_read read = reading("d/a.json", true);
            bytes[i] = (char)values[v];
            int r = open_changed(bytes, len, &b);
            assert_true(r == 0 || r == -EBADMSG);
            refused += r < 0;
            if (r == 0)
                (void)ek_bundle_take(b, &read, &out, NULL);
            assert_true(out.len <= MOST);
            ek_buf_done(&out);
            ek_bundle_free(b);
            bytes[i] = was;
        }
    assert_true(refused > len); /* lengths, ends and the word at the beginning */
    (void)close(fd);
}

static void test_names(void **state)
{
    static char long_name[5000], bytes[2048];
    static const char *const names[] = {"a\nb", "a\x1b[2J", "a\x7f", "\xff", long_name};
    struct ek_bundle *b = NULL;
    (void)state;
    memset(long_name, 'a', sizeof(long_name) - 1);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int fd = ek_bundle_make();
        assert_int_equal(ek_bundle_begin(fd, &b), 0);
        int r = ek_bundle_add(b, &(struct ek_bundle_part){.name = names[i], .text = ""});
        assert_int_equal(r, names[i] == long_name ? -EFBIG : 0);
        assert_int_equal(ek_bundle_end(b), 0);
        ek_bundle_free(b);
        assert_int_equal(ek_bundle_seal(fd), 0);
        assert_int_equal(ek_bundle_open(fd, &b), 0);
        assert_int_equal(ek_bundle_find(b, names[i]) != NULL, r == 0);
        ek_bundle_free(b);
        (void)close(fd);
    }
    int whole = made();
    size_t len = bytes_of(whole, bytes, sizeof(bytes));
    char *name = memmem(bytes, len, "d/", 2);
    assert_non_null(name);
    name[1] = '\0'; /* not where its length says */
    assert_int_equal(open_changed(bytes, len, &b), -EBADMSG);
    (void)close(whole);
    int fd = ek_bundle_make();
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_int_equal(ek_bundle_add(b, &(struct ek_bundle_part){.name = "a", .text = ""}), 0);
    assert_int_equal(ek_bundle_add(b, &(struct ek_bundle_part){.name = "a", .text = ""}), 0);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);
    assert_int_equal(ek_bundle_seal(fd), 0);
    assert_int_equal(ek_bundle_open(fd, &b), -EBADMSG); /* twice the same */
    (void)close(fd);
}

static void test_room(void **state)
{
    struct ek_bundle *b = NULL;
    char name[16];
    int fd = ek_bundle_make();
    (void)state;
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    /* the text is not looked at: there is no room for it */
    assert_int_equal(
        ek_bundle_add(
            b, &(struct ek_bundle_part){.name = "a", .text = "", .len = EK_BUNDLE_MOST_BYTES}),
        -EFBIG);
    for (uint32_t i = 0; i < EK_BUNDLE_MOST_PARTS; i++) {
        (void)snprintf(name, sizeof(name), "%u", i);
        assert_int_equal(ek_bundle_add(b, &(struct ek_bundle_part){.name = name, .text = ""}), 0);
    }
    assert_int_equal(ek_bundle_add(b, &(struct ek_bundle_part){.name = "a", .text = ""}), -EFBIG);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);
    assert_int_equal(ek_bundle_seal(fd), 0);
    assert_int_equal(ek_bundle_open(fd, &b), 0);
    ek_bundle_free(b);
    (void)close(fd);
}

static void test_no_memory(void **state)
{
    struct ek_bundle *b = NULL;
    (void)state;
    for (long n = 1;; n++) {
        int fd = ek_bundle_make();
        alloc_fail_at(n);
        int r = ek_bundle_begin(fd, &b);
        if (r == 0)
            r = keep(b, "a.json", "{\"a\": [1, 2]}", true);
        bool failed = alloc_failed();
        ek_bundle_free(b);
        b = NULL;
        (void)close(fd);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    int fd = made();
    assert_int_equal(ek_bundle_seal(fd), 0);
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = ek_bundle_open(fd, &b);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    ek_bundle_free(b);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_sides), cmocka_unit_test(test_other_form),
        cmocka_unit_test(test_cut),        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_room),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

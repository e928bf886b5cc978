/* Lines out of bytes: cut anywhere, in UTF-8 and UTF-16, of one file and of several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/split.h"

struct told {
    char text[256]; /* each line and a '|' */
    size_t len;
};

static void take(void *ctx, const char *line, size_t len)
{
    struct told *t = ctx;
    assert_true(t->len + len + 1 < sizeof(t->text));
    memcpy(t->text + t->len, line, len);
    t->len += len;
    t->text[t->len++] = '|';
}

static void assert_split(const char *const *files, const size_t *lens, size_t count,
                         const char *lines)
{
    for (size_t piece = 1; piece < 9; piece++) {
        struct doctor_split s = {.wide = false};
        struct told t = {.len = 0};
        for (size_t i = 0; i < count; i++) {
            for (size_t at = 0; at < lens[i]; at += piece) {
                size_t n = lens[i] - at < piece ? lens[i] - at : piece;
                doctor_split_feed(&s, files[i] + at, n, take, &t);
            }
            assert_int_equal(doctor_split_end(&s, take, &t), 0);
        }
        assert_string_equal(t.text, lines);
        doctor_split_done(&s);
    }
}

#define ONE(bytes, lines)                                                                          \
    do {                                                                                           \
        static const char file[] = bytes;                                                          \
        const char *files[] = {file};                                                              \
        const size_t lens[] = {sizeof(file) - 1};                                                  \
        assert_split(files, lens, 1, lines);                                                       \
    } while (0)

static void test_plain(void **state)
{
    (void)state;
    ONE("tide\n\nebb", "tide||ebb|");
    ONE("\xff", "\xff|"); /* half a mark is none */
    ONE("\xff\xff"
        "tide\n",
        "\xff\xff"
        "tide|");
    ONE("\xe6\xbd\xae\n", "\xe6\xbd\xae|");
}

static void test_wide(void **state)
{
    (void)state;
    ONE("\xff\xfet\0i\0\n\0e\0b\0b\0", "ti|ebb|");
    ONE("\xfe\xff\0t\0i\0\n\0e\0b\0b", "ti|ebb|");
    ONE("\xff\xfet\0\n\0e", "t|"); /* half a unit ends it */
    ONE("\xff\xfe", "");
    /* Units that hold the bytes of a newline, a quote and a brace, and a pair. */
    ONE("\xff\xfe\x0aN\"N{N\n\0a\0", "\xe4\xb8\x8a\xe4\xb8\xa2\xe4\xb9\xbb|a|");
    ONE("\xfe\xff\x01\x0a\x00\xe9\0\n", "\xc4\x8a\xc3\xa9|");
    ONE("\xff\xfe=\xd8\x0a\xdc"
        "a\0",
        "?a|");
}

/* Bytes of UTF-8 that were appended to UTF-16, behind a newline and within a line. */
static void test_seam(void **state)
{
    (void)state;
    ONE("\xff\xfet\0\n\0The tide goes out at noon, as it is used to.\nebb\xc3\xa9\n",
        "t|The tide goes out at noon, as it is used to.|ebb\xc3\xa9|");
    ONE("\xfe\xff\0t\0\n\0uThe tide\tgoes out\r\nat noon, as it is used to.\n",
        "t|uThe tide\tgoes out\r|at noon, as it is used to.|");
    /* Units whose bytes are letters, in a text that has others between them: no seam. */
    ONE("\xff\xfeinninninninnin\x08ninninninninninni\n\0a\0",
        "\xe6\xb9\xa9\xe6\xa5\xae\xe6\xb9\xae\xe6\xb9\xa9\xe6\xa5\xae\xe6\xb9\xae"
        "\xe6\xb9\xa9\xe6\xb8\x88\xe6\xb9\xa9\xe6\xa5\xae\xe6\xb9\xae\xe6\xb9\xa9"
        "\xe6\xa5\xae\xe6\xb9\xae\xe6\xb9\xa9\xe6\xa5\xae"
        "|a|");
    /* Rules, whose units are two letters each and all alike, as long as a seam is looked for. */
    ONE("\xff\xfeP%P%P%P%P%P%P%P%P%P%P%P%P%P%P%P%P%P%P%P%\n\0a\0",
        "\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550"
        "\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550\u2550|a|");
    ONE("\xfe\xffN-N-N-N-N-N-N-N-N-N-N-N-N-N-N-N-N-N-\0\n\0a",
        "\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d"
        "\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d|a|");
    /* The same in what was appended as UTF-8: the words behind it tell. */
    ONE("\xff\xfet\0\n\0====================\nThe tide goes out at noon, as it is used to.\n",
        "t|\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d\u3d3d"
        "|The tide goes out at noon, as it is used to.|");
}

static void test_files(void **state)
{
    (void)state;
    static const char wide[] = "\xff\xfet\0\n\0", big[] = "\xfe\xff\0u";
    const char *files[] = {wide, "ebb\n", big, "tide"};
    const size_t lens[] = {sizeof(wide) - 1, 4, sizeof(big) - 1, 4};
    assert_split(files, lens, 4, "t|ebb|u|tide|");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_seam), cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

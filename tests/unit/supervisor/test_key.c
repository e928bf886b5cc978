/* API keys out of files: what counts as one, what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/io/key.h"

static void test_lines(void **state)
{
    static const struct {
        const char *text, *key; /* NULL: refused */
    } cases[] = {
        {"sk-1\n", "sk-1"},
        {"sk-1", "sk-1"},
        {"\n\n# ours\r\n  sk-2  \r\nsk-3\n", "sk-2"},
        {"gateway sk-4 max-concurrency=4\n", "sk-4"},
        {"", NULL},
        {"# nothing\n\n", NULL},
        {"sha256:0123\n", NULL},
        {"name sha256:0123\n", NULL},
        {"k\xc3\xa9y\n", NULL},
        {"a\001b\n", NULL},
    };
    char key[KEY_MOST], longest[KEY_MOST + 2];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = key_parse(cases[i].text, key, sizeof(key));
        assert_int_equal(r, cases[i].key ? 0 : -EBADMSG);
        if (cases[i].key)
            assert_string_equal(key, cases[i].key);
    }
    memset(longest, 'x', sizeof(longest));
    longest[KEY_MOST] = '\0';
    assert_int_equal(key_parse(longest, key, sizeof(key)), -EFBIG);
    longest[KEY_MOST - 1] = '\0';
    assert_int_equal(key_parse(longest, key, sizeof(key)), 0);
}

static void test_flags(void **state)
{
    static const struct {
        const char *text, *key; /* NULL: refused */
    } cases[] = {
        {"api-key: sk-abc\n", "sk-abc"},
        {"# of main\nport: 8001\napi-key:   sk-a:b#c  \r\nseed: 1\n", "sk-a:b#c"},
        {"sk-abc\n", NULL},
        {"api-key sk-abc\n", NULL},
        {"api-key:sk-abc\n", NULL},
        {"  api-key: sk-abc\n", NULL},
        {"api-key: \"sk-abc\"\n", NULL},
        {"api-key: [sk-abc]\n", NULL},
        {"api-key:\n  - sk-abc\n", NULL},
        {"api-key: sk-abc # ours\n", NULL},
        {"api-key: sk-abc:\n", NULL},
        {"api-key: 0123456\n", NULL},
        {"api-key: false\n", NULL},
        {"api-key: \n", NULL},
        {"api-key:", NULL},
        {"", NULL},
    };
    char key[KEY_MOST];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(key_parse_flags(cases[i].text, key, sizeof(key)),
                         cases[i].key ? 0 : -EBADMSG);
        if (cases[i].key)
            assert_string_equal(key, cases[i].key);
    }
    assert_true(key_in_flags("/etc/evenkeel/main.yaml") && key_in_flags("./k.yml"));
    assert_false(key_in_flags("main.yaml") || key_in_flags("/etc/y.yaml/key") ||
                 key_in_flags("/etc/yaml") || key_in_flags(NULL));
}

static void test_files(void **state)
{
    char dir[] = "/tmp/evenkeel-key-XXXXXX", path[64], key[KEY_MOST] = "before";
    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/api", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "sk-5\n", 5) == 5);
    close(fd);
    assert_int_equal(key_read(path, key, sizeof(key)), 0);
    assert_string_equal(key, "sk-5");
    assert_int_equal(key_read("/no/such", key, sizeof(key)), -ENOENT);
    assert_int_equal(key_read(dir, key, sizeof(key)), -EINVAL);
    assert_string_equal(key, "sk-5"); /* untouched */
    assert_int_equal(setenv("CREDENTIALS_DIRECTORY", dir, 1), 0);
    key[0] = '\0';
    assert_int_equal(key_read("api", key, sizeof(key)), 0);
    assert_string_equal(key, "sk-5");
    assert_int_equal(unsetenv("CREDENTIALS_DIRECTORY"), 0);
    assert_int_equal(key_read(NULL, key, sizeof(key)), 0);
    assert_string_equal(key, "");
    (void)unlink(path);
    (void)rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_flags),
                                       cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

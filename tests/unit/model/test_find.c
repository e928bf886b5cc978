/* From what --model says to a directory: paths as they are, ids by a cache that the test writes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/find.h"

static char g_base[64];

static void put(const char *path, const char *text)
{
    char full[200];
    (void)snprintf(full, sizeof(full), "%s/%s", g_base, path);
    if (!text) {
        assert_int_equal(mkdir(full, 0700), 0);
        return;
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void forget(const char *path)
{
    char full[200];
    (void)snprintf(full, sizeof(full), "%s%s%s", g_base, *path ? "/" : "", path);
    assert_int_equal(remove(full), 0);
}

static void test_paths(void **state)
{
    (void)state;
    static const char *const names[] = {
        "models/evenkeel-tiny", "/nonexistent/x", "./a/b", "a", "../x", "a/b/c", "a/.b", "a b/c"};
    char dir[4096];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(model_find(names[i], dir, sizeof(dir), NULL), 0);
        assert_string_equal(dir, names[i]);
    }
    struct ek_fault f = {0};
    assert_int_equal(model_find("", dir, sizeof(dir), &f), -EBADMSG);
    assert_int_equal(model_find("/abcdefgh", dir, 8, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "must have 1 to 7 bytes"));
}

static void test_cache(void **state)
{
    (void)state;
    char dir[4096], want[200];
    struct ek_fault f = {0};
    (void)snprintf(g_base, sizeof(g_base), "/tmp/evenkeel-find-XXXXXX");
    assert_non_null(mkdtemp(g_base));
    assert_int_equal(setenv("HF_HUB_CACHE", g_base, 1), 0);

    assert_int_equal(model_find("org/name", dir, sizeof(dir), &f), -EBADMSG);
    assert_non_null(
        strstr(f.msg, "org/name is neither a directory nor a model in the cache /tmp/"));
    assert_non_null(strstr(f.msg, "download it with: hf download org/name"));

    put("models--org--name", NULL);
    put("models--org--name/refs", NULL);
    put("models--org--name/snapshots", NULL);
    put("models--org--name/refs/main", "abc123\n");
    assert_int_equal(model_find("org/name", dir, sizeof(dir), &f), -EBADMSG); /* not complete */
    put("models--org--name/snapshots/abc123", NULL);
    assert_int_equal(model_find("org/name", dir, sizeof(dir), &f), 0);
    (void)snprintf(want, sizeof(want), "%s/models--org--name/snapshots/abc123", g_base);
    assert_string_equal(dir, want);
    put("models--org--name/refs/main", "../../..");
    assert_int_equal(model_find("org/name", dir, sizeof(dir), &f), -EBADMSG);

    forget("models--org--name/snapshots/abc123");
    forget("models--org--name/refs/main");
    forget("models--org--name/snapshots");
    forget("models--org--name/refs");
    forget("models--org--name");
    assert_int_equal(unsetenv("HF_HUB_CACHE"), 0);
    assert_int_equal(setenv("HF_HOME", g_base, 1), 0);
    put("hub", NULL);
    put("hub/models--a--b", NULL);
    assert_int_equal(model_find("a/b", dir, sizeof(dir), &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "/hub; download"));
    forget("hub/models--a--b");
    forget("hub");
    forget("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_paths), cmocka_unit_test(test_cache)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

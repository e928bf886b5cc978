/* API keys: files, limits, reload. */
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
#include "server/net/auth.h"
#include "tests/unit/alloc.h"

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
/* SHA-256 of "secret" */
#define SECRET "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

static int parse(const char *text, struct key_line *lines, uint32_t *count, struct ek_fault *f)
{
    const struct key_line defaults = {.concurrency = 7, .queue_share = 0.5, .last = INT32_MAX};
    *count = 0;
    memset(f, 0, sizeof(*f));
    return keyfile_parse("--api-key-file", "keys", text, strlen(text), &defaults, lines, count, f);
}

static void test_lines(void **state)
{
    struct key_line l[KEY_LINES_MOST];
    struct ek_fault f;
    uint32_t n;
    uint8_t digest[KEY_DIGEST];
    (void)state;
    assert_int_equal(
        parse("# keys\n\nsecret\n team-a\tsk-1  max-concurrency=3 queue-share=0.25 weight=2.5\r\n"
              "b sha256:" ZEROS " cache-group=team\n"
              "c sk-2 max-concurrency=3 queue-share=1 cache-group=x priority=-5..10",
              l, &n, &f),
        0);
    assert_int_equal(n, 4);
    assert_true(l[2].first == 0 && l[2].last == INT32_MAX); /* nobody goes ahead by asking */
    assert_true(l[3].first == -5 && l[3].last == 10);
    assert_string_equal(l[0].name, "key-1");
    assert_int_equal(l[0].concurrency, 7);
    assert_true(l[0].queue_share > 0.49 && l[0].queue_share < 0.51);
    assert_int_equal(key_digest("secret", 6, digest), 0);
    assert_memory_equal(l[0].digest, digest, KEY_DIGEST);
    assert_string_equal(l[1].name, "team-a");
    assert_int_equal(l[1].concurrency, 3);
    assert_true(l[1].queue_share > 0.24 && l[1].queue_share < 0.26);
    assert_true(l[1].weight > 2.49 && l[1].weight < 2.51);
    assert_string_equal(l[2].group, "team");
    assert_int_equal(l[2].digest[0], 0);
    assert_int_equal(parse("sha256:" SECRET, l, &n, &f), 0);
    assert_memory_equal(l[0].digest, digest, KEY_DIGEST);
}

static void test_wrong_lines(void **state)
{
    static const struct {
        const char *text, *says;
        unsigned line;
    } cases[] = {
        {"", "there is no key", 0},
        {"# only a comment\n\n", "there is no key", 0},
        {"a\nb\na\n", "this key is there already", 3},
        {"x k1\nx k2\n", "this name is there already", 2},
        {"key-2 k1\nk2\n", "this name is there already", 2},
        {"secret\nsha256:" SECRET "\n", "this key is there already", 2},
        {"sha256:12\n", "64 hex digits", 1},
        {"sha256:" ZEROS "0\n", "64 hex digits", 1},
        {"sha256:g000000000000000000000000000000000000000000000000000000000000000", "64 hex", 1},
        {"k\x01y\n", "visible ASCII", 1},
        {"k\xc3\xa4y\n", "visible ASCII", 1},
        {"na/me key\n", "a name is", 1},
        {"name-that-is-longer-than-thirty-two-bytes key\n", "a name is", 1},
        {"a b c\n", "after the key come", 1},
        {"a b =\n", "after the key come", 1},
        {"a b max-concurrency=\n", "max-concurrency is", 1},
        {"a b max-concurrency=0\n", "max-concurrency is", 1},
        {"a b max-concurrency=-1\n", "max-concurrency is", 1},
        {"a b max-concurrency=1.5\n", "max-concurrency is", 1},
        {"a b max-concurrency=1000001\n", "max-concurrency is", 1},
        {"a b max-concurrency=99999999999999999999999999\n", "max-concurrency is", 1},
        {"a b queue-share=0\n", "queue-share is", 1},
        {"a b queue-share=1.01\n", "queue-share is", 1},
        {"a b queue-share=nan\n", "queue-share is", 1},
        {"a b queue-share=1e-3\n", "queue-share is", 1},
        {"a b weight=0.009\n", "weight is", 1},
        {"a b weight=101\n", "weight is", 1},
        {"a b weight=\n", "weight is", 1},
        {"a b weights=1\n", "after the key come", 1},
        {"a b cache-group=\n", "a name is", 1},
        {"a b max-concurrency=1 queue-share=1 cache-group=x y\n", "after the key come", 1},
        {"a b max-concurrency=1 queue-share=1 weight=1 cache-group=x priority=1..1 z\n",
         "at most a name", 1},
        {"a b priority=\n", "priority is a range", 1},
        {"a b priority=5\n", "priority is a range", 1},
        {"a b priority=2..1\n", "priority is a range", 1},
        {"a b priority=..1\n", "priority is a range", 1},
        {"a b priority=1..\n", "priority is a range", 1},
        {"a b priority=1..2..3\n", "priority is a range", 1},
        {"a b priority=0..2147483648\n", "priority is a range", 1},
        {"a b priority=-99999999999999999999..0\n", "priority is a range", 1},
        {"a b priority=0x1..2\n", "priority is a range", 1},
    };
    struct key_line l[KEY_LINES_MOST];
    struct ek_fault f;
    uint32_t n;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(parse(cases[i].text, l, &n, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says) || f.at != cases[i].line)
            fail_msg("case %zu: %s (line %u)", i, f.msg, (unsigned)f.at);
        assert_null(strstr(f.msg, "secret"));
    }
}

static void test_too_many(void **state)
{
    struct key_line l[KEY_LINES_MOST];
    struct ek_fault f;
    char text[1024] = "", long_key[600];
    uint32_t n;
    (void)state;
    for (int i = 0; i < 64; i++)
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "k%d\n", i);
    assert_int_equal(parse(text, l, &n, &f), 0);
    assert_int_equal(n, 64);
    (void)strcat(text, "last\n");
    assert_int_equal(parse(text, l, &n, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "more than 64"));
    memset(long_key, 'k', sizeof(long_key));
    long_key[512] = '\0';
    assert_int_equal(parse(long_key, l, &n, &f), 0);
    long_key[512] = 'k';
    long_key[513] = '\0';
    assert_int_equal(parse(long_key, l, &n, &f), -EBADMSG);
}

static struct auth *make(const char *const *keys, size_t count, const char *const *file)
{
    const struct auth_source src = {.keys = keys,
                                    .key_count = count,
                                    .files = file,
                                    .file_count = file ? 1 : 0,
                                    .queue_share = 0.5};
    struct ek_fault f = {0};
    struct auth *a = NULL;
    assert_int_equal(auth_new(&src, &a, &f), 0);
    return a;
}

static void test_find(void **state)
{
    static const char *const keys[] = {"alpha", "beta"};
    struct auth *a = make(keys, 2, NULL);
    (void)state;
    assert_int_equal(auth_count(a), 2);
    int x = auth_find(a, "alpha", 5), y = auth_find(a, "beta", 4);
    assert_true(x >= 0 && y >= 0 && x != y);
    static const char *const wrong[] = {"", "alph", "alphaa", "Alpha", "beta ", "gamma"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(auth_find(a, wrong[i], strlen(wrong[i])), -EACCES);
    assert_int_equal(auth_find(a, keys[0], 100000), -EACCES);
    assert_true(auth_owner(a, x) != auth_owner(a, y) && auth_owner(a, x) != 0);
    assert_true(auth_salt(a, x, 0) == auth_owner(a, x));
    assert_true(auth_salt(a, x, 5) != auth_salt(a, y, 5));
    assert_true(auth_salt(a, x, 5) != auth_salt(a, x, 6));
    assert_true(auth_salt(a, AUTH_NOBODY, 5) == 5 && auth_owner(a, AUTH_NOBODY) == 0);
    auth_drop(a, x);
    auth_drop(a, y);
    auth_free(a);
    struct auth *none = make(NULL, 0, NULL);
    assert_int_equal(auth_count(none), 0);
    assert_int_equal(auth_find(none, "alpha", 5), -EACCES);
    auth_free(none);
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_limits(void **state)
{
    char path[] = "/tmp/ek-keys-XXXXXX";
    const char *const file = path;
    struct ek_fault f = {0};
    (void)state;
    (void)close(mkstemp(path));
    write_file(path, "few k1 max-concurrency=2\nqueue k2 queue-share=0.3\n");
    struct auth *a = make(NULL, 0, &file);
    int few = auth_find(a, "k1", 2), queue = auth_find(a, "k2", 2);
    assert_int_equal(auth_begin(a, few, 10, &f), 0);
    assert_int_equal(auth_begin(a, few, 10, &f), 0);
    assert_int_equal(auth_begin(a, few, 10, &f), -EBUSY);
    assert_non_null(strstr(f.msg, "key few has 2 requests open"));
    auth_started(a, few);
    assert_int_equal(auth_begin(a, few, 10, &f), -EBUSY);
    auth_end(a, few, false);
    assert_int_equal(auth_begin(a, few, 10, &f), 0);
    auth_end(a, few, true);
    auth_end(a, few, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(auth_begin(a, queue, 10, &f), 0);
    assert_int_equal(auth_begin(a, queue, 10, &f), -EBUSY);
    assert_non_null(strstr(f.msg, "3 requests waiting"));
    auth_started(a, queue);
    assert_int_equal(auth_begin(a, queue, 10, &f), 0);
    struct auth_stat s;
    assert_true(auth_stat(a, (uint32_t)queue, &s));
    assert_string_equal(s.name, "queue");
    assert_int_equal(s.active, 4);
    assert_int_equal(s.waiting, 3);
    assert_int_equal(s.requests, 4);
    assert_int_equal(s.refused_queue, 1);
    /* further answers of a request wait beside it, and have no place beyond the share */
    assert_int_equal(auth_wait(a, queue, 10, &f), -EBUSY);
    assert_non_null(strstr(f.msg, "3 requests waiting"));
    auth_started(a, queue);
    assert_int_equal(auth_wait(a, queue, 10, &f), 0);
    assert_int_equal(auth_begin(a, queue, 10, &f), -EBUSY);
    assert_int_equal(auth_wait(a, AUTH_NOBODY, 10, &f), 0);
    assert_true(auth_stat(a, (uint32_t)queue, &s));
    assert_true(s.waiting == 3 && s.requests == 4 && s.refused_queue == 2);
    /* a share is at least one place */
    assert_int_equal(auth_begin(a, few, 1, &f), 0);
    assert_false(auth_stat(a, AUTH_SLOTS, &s));
    auth_free(a);
    (void)unlink(path);
}

static void test_reload(void **state)
{
    static const char *const fixed[] = {"always"};
    char path[] = "/tmp/ek-keys-XXXXXX";
    const char *const file = path;
    struct ek_fault f = {0};
    (void)state;
    (void)close(mkstemp(path));
    write_file(path, "old k1\nboth k2 cache-group=g\nthird k3 cache-group=g\n");
    struct auth *a = make(fixed, 1, &file);
    int old = auth_find(a, "k1", 2), both = auth_find(a, "k2", 2), third = auth_find(a, "k3", 2);
    uint64_t owner = auth_owner(a, both);
    assert_true(owner == auth_owner(a, third)); /* one cache for the group */
    assert_int_equal(auth_begin(a, old, 8, &f), 0);
    write_file(path, "new k9\nboth k2 cache-group=g max-concurrency=1\n");
    assert_int_equal(auth_reload(a, &f), 0);
    assert_int_equal(auth_count(a), 3);
    assert_int_equal(auth_find(a, "k1", 2), -EACCES);
    assert_true(auth_find(a, "k9", 2) >= 0 && auth_find(a, "k9", 2) != old);
    assert_int_equal(auth_find(a, "k2", 2), both);
    assert_true(auth_owner(a, both) == owner);
    assert_true(auth_find(a, "always", 6) >= 0);
    auth_end(a, old, true); /* the request of a key that is gone ends in peace */
    auth_drop(a, old);
    write_file(path, "new k9\nbroken\x01\n");
    assert_int_equal(auth_reload(a, &f), -EBADMSG);
    assert_int_equal(f.at, 2);
    assert_true(auth_find(a, "k2", 2) == both); /* nothing has changed */
    (void)unlink(path);
    assert_int_equal(auth_reload(a, &f), -EBADMSG);
    assert_int_equal(auth_count(a), 3);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)alarm(20); /* without a writer it held the thread that ends the server */
    assert_int_equal(auth_reload(a, &f), -EBADMSG);
    (void)alarm(0);
    assert_non_null(strstr(f.msg, "is a pipe"));
    assert_int_equal(auth_count(a), 3);
    (void)unlink(path);
    auth_free(a);
}

/* Keys that change faster than requests end do not take the place of those in use. */
static void test_many_reloads(void **state)
{
    char path[] = "/tmp/ek-keys-XXXXXX", key[32];
    const char *const file = path;
    struct ek_fault f = {0};
    int refused = 0;
    (void)state;
    (void)close(mkstemp(path));
    write_file(path, "k-first\n");
    struct auth *a = make(NULL, 0, &file);
    for (int i = 0; i < 200; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        write_file(path, key);
        int r = auth_reload(a, &f);
        refused += r < 0;
        if (r == 0)
            assert_true(auth_find(a, key, strlen(key)) >= 0); /* held for ever */
        assert_int_equal(auth_count(a), 1);
    }
    assert_int_equal(refused, 200 - (int)AUTH_SLOTS);
    auth_free(a);
    (void)unlink(path);
}

static void test_allocations(void **state)
{
    static const char *const keys[] = {"alpha"};
    const struct auth_source src = {.keys = keys, .key_count = 1, .queue_share = 1};
    (void)state;
    for (long n = 1;; n++) {
        struct auth *a = NULL;
        struct ek_fault f = {0};
        alloc_fail_at(n);
        int r = auth_new(&src, &a, &f);
        if (!alloc_failed()) {
            alloc_fail_at(0);
            assert_int_equal(r, 0);
            auth_free(a);
            break;
        }
        assert_true(r == -ENOMEM || r == -EBADMSG); /* or the library has no SHA-256 */
        assert_null(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_too_many),     cmocka_unit_test(test_find),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_reload),
        cmocka_unit_test(test_many_reloads), cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Ends that are kept: the newest of each kind, of each server for itself; foreign names are no
 * ends and stay. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "supervisor/io/ends.h"

static void test_keeps(void **state)
{
    (void)state;
    char dir[] = "/tmp/ek-ends-XXXXXX", path[256];
    struct ends_entry e[ENDS_MOST + 3];
    struct ek_buf out = {0};
    struct stat st;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(ends_list(dir, "s1", e, ENDS_MOST), 0);
    static const struct {
        uint64_t at_ms;
        enum ends_kind kind;
        const char *server, *cls;
    } rows[] = {{1000, ENDS_SERVING, "s1", "SIGNAL"},   {2000, ENDS_SERVING, "s1", "BURST_OOM"},
                {3000, ENDS_SERVING, "s1", "SIGNAL"},   {4000, ENDS_SERVING, "s1", "DEVICE"},
                {5000, ENDS_STARTING, "s1", "CONFIG"},  {6000, ENDS_STARTING, "s1", "PORT"},
                {7000, ENDS_ASKED, "s1", "CLEAN_EXIT"}, {8000, ENDS_ASKED, "s1", "CLEAN_EXIT"},
                {9000, ENDS_SERVING, "s1-2", "SIGNAL"}, {10000, ENDS_SERVING, "s", "SIGNAL"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(
            ends_write(dir, rows[i].server, rows[i].at_ms, rows[i].kind, rows[i].cls, "{}", 2), 0);
    assert_int_equal(ends_list(dir, "s1", e, ENDS_MOST + 3), 5);
    static const uint64_t want[] = {8000, 6000, 4000, 3000, 2000};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(e[i].at_ms, want[i]);
    assert_string_equal(e[1].cls, "PORT");
    assert_int_equal(e[1].kind, ENDS_STARTING);
    assert_int_equal(ends_read(dir, &e[1], &out), 0);
    assert_int_equal(out.len, 2);
    (void)snprintf(path, sizeof(path), "%s/ends/%s", dir, e[0].file);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(ends_list(dir, "s1", e, 2), 2);
    assert_int_equal(ends_list(dir, "s", e, ENDS_MOST), 1);

    /* what is there and is no file of ours */
    static const char *const others[] = {"s1.1.serving.x.json", "s1..serving.SIGNAL.json",
                                         "s1.2.SIGNAL.json", "s1.3.asked.SIGNAL.json.new",
                                         "s1.9999999999999999999.asked.SIGNAL.json"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/ends/%s", dir, others[i]);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        (void)fclose(f);
    }
    assert_int_equal(ends_list(dir, "s1", e, ENDS_MOST + 3), 5);
    (void)snprintf(path, sizeof(path), "%s/ends/%s", dir, e[0].file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(ends_read(dir, &e[0], &out), -ELOOP);
    assert_int_equal(ends_write(dir, "s1", 1, ENDS_ASKED, "X", "", (size_t)ENDS_BYTES + 1), -EFBIG);
    assert_int_equal(ends_write("/nonexistent", "s1", 1, ENDS_ASKED, "X", "", 0), -ENOENT);
    ek_buf_done(&out);
    (void)snprintf(path, sizeof(path), "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

static uint32_t count(const char *dir)
{
    char path[128];
    uint32_t n = 0;
    (void)snprintf(path, sizeof(path), "%s/ends", dir);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

/* The wall clock was set back: what is written last is kept all the same. */
static void test_clock_back(void **state)
{
    (void)state;
    char dir[] = "/tmp/ek-ends-XXXXXX", path[256];
    struct ends_entry e[ENDS_MOST];
    assert_non_null(mkdtemp(dir));
    for (uint64_t at = 5000; at <= 8000; at += 1000)
        assert_int_equal(ends_write(dir, "s1", at, ENDS_SERVING, "SIGNAL", "{}", 2), 0);
    assert_int_equal(ends_write(dir, "s1", 1000, ENDS_SERVING, "DEVICE", "{}", 2), 0);
    assert_int_equal(ends_list(dir, "s1", e, ENDS_MOST), 3);
    assert_int_equal(e[0].at_ms, 8000);
    assert_int_equal(e[1].at_ms, 7000);
    assert_string_equal(e[2].cls, "DEVICE");

    /* What was cut short goes, unless it may still be written or is another's. */
    static const struct {
        const char *name;
        time_t age_s;
    } parts[] = {{"s1.3.asked.SIGNAL.json.new", 3600},
                 {"s1.4.asked.SIGNAL.json.new", -3600},
                 {"s1.5.asked.SIGNAL.json.new", 5},
                 {"s2.3.asked.SIGNAL.json.new", 3600},
                 {"s1.note.new", 3600}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct timespec at = {.tv_sec = time(NULL) - parts[i].age_s};
        (void)snprintf(path, sizeof(path), "%s/ends/%s", dir, parts[i].name);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(futimens(fd, (struct timespec[]){at, at}), 0);
        close(fd);
    }
    assert_int_equal(count(dir), 3 + 5);
    assert_int_equal(ends_write(dir, "s1", 9000, ENDS_SERVING, "SIGNAL", "{}", 2), 0);
    assert_int_equal(count(dir), 3 + 3);
    (void)snprintf(path, sizeof(path), "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keeps),
                                       cmocka_unit_test(test_clock_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

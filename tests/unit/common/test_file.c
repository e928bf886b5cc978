/* A small file replaced at once: what is left behind by each way to fail, and modes. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"

static char dir[] = "/tmp/file-XXXXXX";
static char path[64], part[80];

static void holds(const char *file, const char *text)
{
    char is[64] = {0};
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    assert_true(fd >= 0);
    assert_true(read(fd, is, sizeof(is) - 1) >= 0);
    assert_int_equal(close(fd), 0);
    assert_string_equal(is, text);
}

static int start(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(part);
    return 0;
}

static void test_replaced(void **state)
{
    (void)state;
    struct stat st;
    mode_t mask = umask(0);
    assert_int_equal(ek_file_replace(path, "old", 3, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(ek_file_replace(path, "newer", 5, 0640, EK_FILE_SYNC), 0);
    (void)umask(mask);
    holds(path, "newer");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_equal(ek_file_replace(path, NULL, 0, 0600, EK_FILE_SYNC), 0);
    holds(path, "");
}

static void test_new(void **state)
{
    (void)state;
    assert_int_equal(ek_file_replace(path, "mine", 4, 0600, EK_FILE_NEW), 0);
    assert_int_equal(ek_file_replace(path, "other", 5, 0600, EK_FILE_NEW), -EEXIST);
    holds(path, "mine");
    assert_int_not_equal(access(part, F_OK), 0);
}

/* Somebody who may write to the directory puts a link there: its target is not written. */
static void test_symlink(void **state)
{
    (void)state;
    char victim[80];
    (void)snprintf(victim, sizeof(victim), "%s/victim", dir);
    assert_int_equal(ek_file_replace(victim, "dear", 4, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(symlink(victim, part), 0);
    assert_int_equal(symlink(victim, path), 0);
    assert_int_equal(ek_file_replace(path, "text", 4, 0600, EK_FILE_PLAIN), 0);
    holds(path, "text");
    holds(victim, "dear");
    (void)unlink(victim);
}

/* A file system that takes only part of it: a limit on the size of files. */
static void test_full(void **state)
{
    (void)state;
    struct rlimit was, small;
    char big[8192];
    memset(big, 'x', sizeof(big));
    assert_int_equal(ek_file_replace(path, "old", 3, 0600, EK_FILE_SYNC), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = was.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int r = ek_file_replace(path, big, sizeof(big), 0600, EK_FILE_SYNC);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(r, -EFBIG);
    holds(path, "old");
    assert_int_not_equal(access(part, F_OK), 0);
}

static void test_no_way(void **state)
{
    (void)state;
    char far[4500], none[80];
    memset(far, 'a', sizeof(far) - 1);
    far[sizeof(far) - 1] = '\0';
    (void)snprintf(none, sizeof(none), "%s/none/x", dir);
    assert_int_equal(ek_file_replace(far, "", 0, 0600, EK_FILE_PLAIN), -ENAMETOOLONG);
    assert_int_equal(ek_file_replace(none, "", 0, 0600, EK_FILE_PLAIN), -ENOENT);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(ek_file_replace(path, "a", 1, 0600, EK_FILE_PLAIN), -EISDIR);
    assert_int_not_equal(access(part, F_OK), 0);
    assert_int_equal(rmdir(path), 0);
}

/* An ek_file_fill_fn: ctx is what it says in the end. */
static int fill_half(void *ctx, int fd)
{
    assert_int_equal(write(fd, "half", 4), 4);
    return *(const int *)ctx;
}

/* A file that is written piece by piece is there as a whole or not at all. */
static void test_filled(void **state)
{
    (void)state;
    int says = -ECANCELED;
    assert_int_equal(ek_file_replace(path, "old", 3, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(ek_file_replace_by(path, 0600, EK_FILE_PLAIN, fill_half, &says), -ECANCELED);
    holds(path, "old");
    assert_int_not_equal(access(part, F_OK), 0);
    says = 0;
    assert_int_equal(ek_file_replace_by(path, 0600, EK_FILE_SYNC, fill_half, &says), 0);
    holds(path, "half");
    assert_int_equal(ek_file_replace(part, "cut", 3, 0600, EK_FILE_PLAIN), 0);
    ek_file_drop_part(path);
    assert_int_not_equal(access(part, F_OK), 0);
    holds(path, "half");
}

/* What somebody may have put where a file is expected; a FIFO without a writer is not waited for.
 */
static void test_what_is_no_file(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int regular, linked; /* what reading it says */
    } cases[] = {
        {"text", 0, 0},           {"to-text", -ELOOP, 0},       {"fifo", -EINVAL, -EINVAL},
        {".", -EINVAL, -EINVAL},  {"to-fifo", -ELOOP, -EINVAL}, {"none", -ENOENT, -ENOENT},
        {"long", -EFBIG, -EFBIG},
    };
    static const char *const made[] = {"text", "to-text", "fifo", "to-fifo", "long"};
    char name[80];
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(ek_file_replace("text", "text", 4, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(ek_file_replace("long", "longer", 6, 0600, EK_FILE_PLAIN), 0);
    assert_int_equal(symlink("text", "to-text"), 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "to-fifo"), 0);
    (void)alarm(20);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0}, again = {0};
        (void)snprintf(name, sizeof(name), "%s/%s", dir, cases[i].name);
        assert_int_equal(ek_file_read_regular(name, 4, &out), cases[i].regular);
        assert_int_equal(ek_file_read_linked(name, 4, &again), cases[i].linked);
        if (cases[i].linked == 0)
            assert_string_equal(again.data, "text");
        ek_buf_done(&out);
        ek_buf_done(&again);
    }
    (void)alarm(0);
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        (void)unlink(made[i]);
    assert_int_equal(chdir("/"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_replaced, start), cmocka_unit_test_setup(test_new, start),
        cmocka_unit_test_setup(test_symlink, start),  cmocka_unit_test_setup(test_full, start),
        cmocka_unit_test_setup(test_no_way, start),   cmocka_unit_test_setup(test_filled, start),
        cmocka_unit_test(test_what_is_no_file),
    };
    if (!mkdtemp(dir))
        return 1;
    (void)snprintf(path, sizeof(path), "%s/file", dir);
    (void)snprintf(part, sizeof(part), "%s.new", path);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    (void)unlink(part);
    (void)rmdir(dir);
    return failed;
}

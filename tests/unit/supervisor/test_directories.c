/* Whose directories evenkeeld uses: another user could replace what it keeps there. */
#include "supervisor/directories.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/config/options.h"

#define OURS    12345 /* user ids */
#define ANOTHER 12346

static char dir[] = "/tmp/directories-XXXXXX";

/* What a process of that user says of the directory. */
static int open_as(uid_t uid, const char *name)
{
    char path[64];
    int status = 0;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    const struct config c = {.run_dir = path, .state_dir = path};
    pid_t child = fork();
    if (child == 0) {
        _exit(setresuid(uid, uid, uid) < 0 ? 99 : directories_open(&c) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

static void make(const char *name, uid_t owner, const char *target)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(target ? symlink(target, path) : mkdir(path, 0755), 0);
    assert_int_equal(lchown(path, owner, owner), 0);
}

static void test_owners(void **state)
{
    (void)state;
    static const struct {
        const char *name, *target; /* NULL: a directory */
        uid_t owner;
        int said; /* of the user */
    } cases[] = {
        {"own", NULL, OURS, 0},     {"others", NULL, ANOTHER, 1},  {"own-link", "own", OURS, 0},
        {"root-link", "own", 0, 0}, {"placed", "own", ANOTHER, 1}, {"away", "others", OURS, 1},
    };
    enum { CASES = sizeof(cases) / sizeof(cases[0]) };
    char path[64];
    if (geteuid() != 0)
        skip();
    for (size_t i = 0; i < CASES; i++)
        make(cases[i].name, cases[i].owner, cases[i].target);
    for (size_t i = 0; i < CASES; i++) {
        if (open_as(OURS, cases[i].name) != cases[i].said)
            fail_msg("%s", cases[i].name);
        assert_int_equal(open_as(0, cases[i].name), 0); /* root takes what it is told */
    }
    /* An end that has the system follow the link tells the owner of the directory, not of the link.
     */
    assert_int_equal(open_as(OURS, "placed/"), 1);
    assert_int_equal(open_as(OURS, "placed//"), 1);
    assert_int_equal(open_as(OURS, "placed/."), 1);
    assert_int_equal(open_as(OURS, "own-link/"), 0);
    for (size_t i = 0; i < CASES; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, cases[i].name);
        (void)remove(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners)};
    if (!mkdtemp(dir) || chmod(dir, 0755) < 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(dir);
    return failed;
}

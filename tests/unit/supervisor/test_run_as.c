/* Whom evenkeeld believes on a Unix socket, by who owns and who can write the socket's directory.
 * As root also with a real process of another user. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/fdpass.h"
#include "supervisor/io/run_as.h"

#define OTHER 65534 /* nobody */

struct run_as_place {
    char dir[64], path[80];
    struct sockaddr_un at;
};

static void place_make(struct run_as_place *p, mode_t mode, uid_t owner)
{
    (void)snprintf(p->dir, sizeof(p->dir), "/tmp/evenkeel-run-as-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(p->path, sizeof(p->path), "%s/socket", p->dir);
    p->at = (struct sockaddr_un){.sun_family = AF_UNIX};
    (void)snprintf(p->at.sun_path, sizeof(p->at.sun_path), "%s", p->path);
    assert_int_equal(chmod(p->dir, mode), 0);
    if (owner != geteuid())
        assert_int_equal(chown(p->dir, owner, (gid_t)-1), 0);
}

static void place_done(const struct run_as_place *p)
{
    (void)unlink(p->path);
    assert_int_equal(rmdir(p->dir), 0);
}

/* A process of `user` listens there; what the function says of it. */
static bool answers(const struct run_as_place *p, uid_t user)
{
    int ready[2], done[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(done), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(done[1]);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(fd, (const struct sockaddr *)&p->at, sizeof(p->at)) < 0 ||
            chmod(p->path, 0666) < 0 || (user != geteuid() && setuid(user) < 0) ||
            listen(fd, 1) < 0 || write(ready[1], &byte, 1) != 1)
            _exit(1);
        _exit(read(done[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ready[1]);
    close(done[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&p->at, sizeof(p->at)), 0);
    bool yes = run_as_owner_answers(fd, p->path);
    int status = 0;
    close(fd);
    close(done[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(ready[0]);
    assert_int_equal(unlink(p->path), 0);
    return yes;
}

static void test_own_user(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct run_as_place p;
        place_make(&p, i ? 01777 : 0700, geteuid());
        assert_true(answers(&p, geteuid()));
        place_done(&p);
    }
}

static void test_other_user(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    static const struct {
        mode_t mode;
        uid_t owner, user;
        bool believed;
    } cases[] = {
        {0755, 0, OTHER, true},   /* only root could make or change what is in it */
        {01777, 0, OTHER, false}, /* as /tmp: anybody could */
        {0775, 0, OTHER, false},  {0700, OTHER, OTHER, true}, {0700, OTHER, OTHER - 1, false},
        {0700, OTHER, 0, false}, /* a link of its to a socket of root's */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct run_as_place p;
        place_make(&p, cases[i].mode, cases[i].owner);
        bool yes = answers(&p, cases[i].user);
        if (yes != cases[i].believed)
            fail_msg("case %zu: %s", i, yes ? "believed" : "not believed");
        place_done(&p);
    }
}

/* A unit's directory: everybody may write in it, nobody else gets there, and who answers there has
 * listened there. */
static void test_closed(void **state)
{
    char run[] = "/tmp/evenkeel-closed-XXXXXX", path[200], other[200], text[64];
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(run));
    (void)snprintf(path, sizeof(path), "%s/a", run);
    assert_int_equal(mkdir(path, 0700), 0); /* as an earlier version made it, with a file */
    (void)snprintf(path, sizeof(path), "%s/a/file", run);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    for (int i = 0; i < 2; i++) { /* again, as at every start */
        assert_int_equal(run_as_closed_dir(run, "a"), 0);
        (void)snprintf(path, sizeof(path), "%s/a", run);
        assert_int_equal(readlink(path, text, sizeof(text)), 8);
        assert_memory_equal(text, ".units/a", 8);
        assert_true(stat(path, &st) == 0 && (st.st_mode & 07777) == 0777);
        (void)snprintf(path, sizeof(path), "%s/.units", run);
        assert_true(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
        (void)snprintf(path, sizeof(path), "%s/a/file", run);
        assert_int_equal(access(path, F_OK), 0);
    }
    assert_int_equal(run_as_closed_dir(run, "b"), 0);
    struct run_as_place p = {.at = {.sun_family = AF_UNIX}};
    (void)snprintf(p.path, sizeof(p.path), "%s/a/sock", run);
    memcpy(p.at.sun_path, p.path, strlen(p.path) + 1);
    assert_true(answers(&p, geteuid() == 0 ? OTHER : geteuid()));
    /* a link to a sibling's socket: what answers has another name */
    (void)snprintf(other, sizeof(other), "%s/b/sock", run);
    int listener = ek_listen_unix(other, 0600, 1);
    assert_true(listener >= 0);
    assert_int_equal(symlink(other, p.path), 0);
    int to = ek_connect_unix(p.path, 1000);
    assert_true(to >= 0);
    assert_false(run_as_owner_answers(to, p.path));
    assert_true(run_as_owner_answers(to, other));
    /* who may pass there may have put anything there */
    (void)snprintf(path, sizeof(path), "%s/.units", run);
    assert_int_equal(chmod(path, 0711), 0);
    assert_int_equal(unlink(p.path), 0);
    if (geteuid() == 0)
        assert_false(answers(&p, OTHER));
    assert_int_equal(run_as_closed_dir(run, "a"), -EPERM);
    assert_int_equal(chmod(path, 0700), 0);
    close(to);
    close(listener);
    static const char *const left[] = {"/a/file",   "/b/sock",   "/a",      "/b",
                                       "/.units/a", "/.units/b", "/.units", ""};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", run, left[i]);
        assert_int_equal(remove(path), 0);
    }
}

/* With a user of its own again, evenkeeld's link makes place for a directory. */
static void test_closed_and_back(void **state)
{
    char run[] = "/tmp/evenkeel-closed-XXXXXX", path[200];
    struct stat st;
    struct run_as self = {.set = true, .uid = geteuid(), .gid = getegid()};
    (void)state;
    assert_non_null(mkdtemp(run));
    assert_int_equal(run_as_closed_dir(run, "a"), 0);
    (void)snprintf(path, sizeof(path), "%s/a", run);
    assert_int_equal(run_as_own_dir(&self, path), 0);
    assert_true(lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_mode & 0777) == 0700);
    assert_int_equal(run_as_closed_dir(run, "a"), 0); /* over an empty one that is there */
    static const char *const left[] = {"/a", "/.units/a", "/.units", ""};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", run, left[i]);
        assert_int_equal(remove(path), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_user),
        cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_closed),
        cmocka_unit_test(test_closed_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

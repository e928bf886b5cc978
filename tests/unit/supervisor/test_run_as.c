/* Whom evenkeeld believes on a Unix socket, by who owns and who can write the socket's directory.
 * As root also with a real process of another user. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_user),
        cmocka_unit_test(test_other_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The engine's cgroup: what of the memory it may have, and with real groups, where this machine
 * lets us make them, that all in it ends with it and that what others left behind is removed.
 */
#include "server/engine_cgroup.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cgroup.h"

#define GIB (1ull << 30)
#define MIB (1ull << 20)

static void what_it_may_have(void **state)
{
    (void)state;
    static const struct {
        uint64_t want, above, most;
    } cases[] = {
        {0, UINT64_MAX, UINT64_MAX}, {0, 16 * MIB, 15 * MIB},     {0, 8 * GIB, 7680 * MIB},
        {0, 64 * GIB, 63 * GIB},     {3 * GIB, 8 * GIB, 3 * GIB}, {3 * GIB, UINT64_MAX, 3 * GIB},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(engine_cgroup_most(cases[i].want, cases[i].above), cases[i].most);
}

/* A group, or the test is left out with a sentence. */
static void make(struct engine_cgroup *g, uint64_t want_bytes)
{
    engine_cgroup_make(g, want_bytes);
    if (g->path[0])
        return;
    assert_true(g->why[0]);
    assert_int_equal(engine_cgroup_enter(g), 0); /* it stays where it is */
    assert_int_equal(engine_cgroup_clear(g), 0);
    print_message("left out, no cgroup can be made here: %s\n", g->why);
    skip();
}

static void done(struct engine_cgroup *g)
{
    char own[sizeof(g->path)], beside[sizeof(g->path) + 32];

    engine_cgroup_done(g);
    memcpy(own, g->path, sizeof(own));
    ek_cgroup_own(own);
    assert_string_not_equal(own, g->path);
    for (int i = 0; i < 1000 && rmdir(g->path) < 0 && errno == EBUSY; i++)
        (void)usleep(1000); /* the kernel counts a process for a moment longer */
    assert_int_equal(access(g->path, F_OK), -1);
    (void)snprintf(beside, sizeof(beside), "%s/" EK_CGROUP_BESIDE, own);
    (void)rmdir(beside);
}

/* As an engine: it has started another one, of a session of its own, that would outlive it. */
static void begin_two(int out)
{
    if (fork() == 0)
        (void)setsid();
    (void)write(out, "r", 1);
    for (;;)
        (void)pause();
}

/* As the launcher, which is in the group and outlives what it ends there. */
static void end_all_but_itself(const struct engine_cgroup *g)
{
    int ends[2], status;
    char byte;

    if (engine_cgroup_enter(g) < 0)
        _exit(1);
    for (int turn = 0; turn < 3; turn++) {
        if (pipe(ends) < 0)
            _exit(2);
        pid_t pid = fork();
        if (pid == 0) {
            (void)close(ends[0]);
            begin_two(ends[1]);
        }
        (void)close(ends[1]);
        for (int i = 0; i < 2; i++) /* both are there */
            if (read(ends[0], &byte, 1) != 1)
                _exit(3);
        if (kill(pid, SIGKILL) < 0 || waitpid(pid, &status, 0) != pid)
            _exit(4);
        if (engine_cgroup_clear(g) < 1) /* the one of the turn before may be listed for a moment */
            _exit(5);
        if (read(ends[0], &byte, 1) != 0) /* both are gone */
            _exit(6);
        (void)close(ends[0]);
    }
    _exit(0);
}

static void ends_what_it_started(void **state)
{
    (void)state;
    struct engine_cgroup g;
    int status;

    make(&g, 0);
    pid_t launcher = fork();
    if (launcher == 0)
        end_all_but_itself(&g);
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_int_equal(status, 0);
    done(&g);
}

/* Of a server that was killed; not of one that lives. */
static void removes_what_is_left(void **state)
{
    (void)state;
    struct engine_cgroup g;
    char own[sizeof(g.path)], gone[sizeof(g.path) + 32], kept[sizeof(g.path) + 32];

    make(&g, 0);
    memcpy(own, g.path, sizeof(own));
    ek_cgroup_own(own);
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)snprintf(gone, sizeof(gone), "%s/" EK_CGROUP_ENGINE "%d", own, (int)pid);
    (void)snprintf(kept, sizeof(kept), "%s/" EK_CGROUP_ENGINE "%d", own, (int)getppid());
    assert_int_equal(mkdir(gone, 0755), 0);
    assert_int_equal(mkdir(kept, 0755), 0);
    done(&g);
    make(&g, 0);
    assert_int_equal(access(gone, F_OK), -1);
    assert_int_equal(rmdir(kept), 0);
    done(&g);
}

/* What it takes above its limit ends it, and not us; and is counted as of this group. */
static void has_a_limit(void **state)
{
    (void)state;
    struct engine_cgroup g;
    int status;

    make(&g, 64 * MIB);
    if (g.most_bytes == UINT64_MAX) {
        print_message("left out, no limit can be set here: %s\n", g.why);
        done(&g);
        skip();
    }
    struct ek_cgroup_memory m;
    ek_cgroup_memory(g.path, &m);
    assert_int_equal(m.most_bytes, 64 * MIB);
    uint64_t before = ek_cgroup_oom_kills(g.dir);
    pid_t pid = fork();
    if (pid == 0) {
        if (engine_cgroup_enter(&g) < 0)
            _exit(1);
        for (;;)
            memset(malloc(MIB), 1, MIB);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(ek_cgroup_oom_kills(g.dir) > before);
    done(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_may_have),
        cmocka_unit_test(ends_what_it_started),
        cmocka_unit_test(removes_what_is_left),
        cmocka_unit_test(has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* An engine that a command starts: what is run, and what its end means. */
#include "server/engine_command.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/options.h"

/* mpirun's code for a process that a signal ended is that signal's. */
static void test_status(void **state)
{
    const struct {
        int status, want;
    } cases[] = {{W_EXITCODE(0, 0), W_EXITCODE(0, 0)},
                 {W_EXITCODE(73, 0), W_EXITCODE(73, 0)},
                 {W_EXITCODE(128, 0), W_EXITCODE(128, 0)},
                 {W_EXITCODE(137, 0), W_EXITCODE(0, SIGKILL)},
                 {W_EXITCODE(139, 0), W_EXITCODE(0, SIGSEGV)},
                 {W_EXITCODE(255, 0), W_EXITCODE(255, 0)},
                 {W_EXITCODE(0, SIGKILL), W_EXITCODE(0, SIGKILL)}};
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(engine_command_status(cases[i].status), cases[i].want);
}

/* Its output, with the memory's descriptor below the name that it was told. */
static void test_run(void **state)
{
    static char command[] = "  /bin/echo\tone  two ", program[] = "server", flag[] = "--port",
                value[] = "1 2";
    char *argv[] = {program, flag, value, NULL};
    const struct options o = {.engine_command = command, .argv = argv};
    char said[512] = "", path[256];
    int ends[2], status = 0, memory = memfd_create("a test", MFD_CLOEXEC);
    (void)state;

    assert_true(memory >= 0 && pipe2(ends, O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)engine_command_run(&o, memory, "avx2");
        _exit(1);
    }
    (void)close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_true(read(ends[0], said, sizeof(said) - 1) > 0);
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    assert_true(n > 0);
    path[n] = '\0';
    assert_int_equal(strncmp(said, "one two ", 8), 0);
    assert_int_equal(strncmp(said + 8, path, (size_t)n), 0);
    assert_string_equal(said + 8 + n, " --cpu-isa avx2 --port 1 2\n");
    (void)close(ends[0]);
    (void)close(memory);
}

static void test_nothing_to_run(void **state)
{
    static char command[] = "/nowhere/mpirun -n 2", program[] = "server";
    char *argv[] = {program, NULL};
    const struct options o = {.engine_command = command, .argv = argv};
    int status = 0;
    (void)state;

    pid_t pid = fork();
    if (pid == 0)
        _exit(engine_command_run(&o, STDIN_FILENO, "") == -ENOENT ? 9 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, W_EXITCODE(9, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_status), cmocka_unit_test(test_run),
                                       cmocka_unit_test(test_nothing_to_run)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

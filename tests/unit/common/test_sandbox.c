/* A process that has given its rights away, in a fork: what it could do before fails after. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/sandbox.h"

#define SKIPPED 99

/* Runs in a process of its own; 0, the number of the step that failed, or SKIPPED. */
static int in_child(int (*fn)(const char *dir), const char *dir)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fn(dir));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void expect_good(int code)
{
    if (code == SKIPPED)
        skip();
    if (code != 0)
        fail_msg("step %d", code);
}

static bool opens(const char *dir, const char *name, int flags)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s%s", dir, name);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

static int files(const char *dir)
{
    char path[512], other[512];
    struct ek_sandbox *s = NULL;
    int r = ek_sandbox_new(true, &s);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    (void)snprintf(path, sizeof(path), "%s/read", dir);
    (void)snprintf(other, sizeof(other), "%s/own", dir);
    if (r < 0 || ek_sandbox_allow(s, path, EK_MAY_READ) < 0 ||
        ek_sandbox_allow(s, other, EK_MAY_READ | EK_MAY_WRITE | EK_MAY_CREATE) < 0 ||
        ek_sandbox_allow(s, "/nonexistent/path", EK_MAY_READ) < 0)
        return 1;
    int before = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    if (before < 0 || !opens(dir, "/secret", O_RDONLY))
        return 2;
    if (ek_sandbox_enter(s) < 0)
        return 3;
    ek_sandbox_free(s);
    if (opens("", "/etc/passwd", O_RDONLY) || opens(dir, "/secret", O_RDONLY) ||
        opens(dir, "/link", O_RDONLY))
        return 4;
    if (!opens(dir, "/read/file", O_RDONLY) || opens(dir, "/read/file", O_WRONLY) ||
        opens(dir, "/read/new", O_WRONLY | O_CREAT))
        return 5;
    if (!opens(dir, "/own/new", O_RDWR | O_CREAT))
        return 6;
    (void)snprintf(path, sizeof(path), "%s/own/new", dir);
    (void)snprintf(other, sizeof(other), "%s/own/newer", dir);
    if (rename(path, other) < 0 || unlink(other) < 0)
        return 7;
    char one;
    if (read(before, &one, 1) != 1) /* what is open stays so */
        return 8;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(1)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int c = connect(fd, (struct sockaddr *)&a, sizeof(a));
    if (c == 0 || (ek_sandbox_version() >= 4 && errno != EACCES))
        return 9;
    return 0;
}

static void test_files(void **state)
{
    char dir[] = "/tmp/evenkeel-sandbox-XXXXXX", path[600];
    static const char *const folders[] = {"/read", "/own"};
    static const char *const names[] = {"/secret", "/read/file"};
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s%s", dir, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < 2; i++)
        assert_true(opens(dir, names[i], O_WRONLY | O_CREAT));
    (void)snprintf(path, sizeof(path), "%s/link", dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    int code = in_child(files, dir);
    static const char *const left[] = {"/link", "/read/file", "/secret", "/read", "/own", ""};
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", dir, left[i]);
        assert_int_equal(remove(path), 0);
    }
    expect_good(code);
}

static void *run_nothing(void *arg)
{
    return arg;
}

static int calls(const char *dir)
{
    pthread_t thread;
    (void)dir;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = ek_sandbox_filter(0);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    if (r < 0)
        return 1;
    char *const argv[] = {(char *)(uintptr_t) "/bin/true", NULL};
    if (execv(argv[0], argv) == 0 || errno != EPERM)
        return 2;
    if (fork() >= 0 || errno != EPERM)
        return 3;
    if (listen(listener, 1) == 0 || errno != EPERM)
        return 4;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 || errno != EPERM)
        return 5;
    if (kill(getppid(), 0) == 0 || errno != EPERM)
        return 6;
    if (kill(getpid(), 0) < 0 || raise(0) != 0)
        return 7;
    struct rlimit own;
    if (prlimit(getppid(), RLIMIT_CPU, NULL, &own) == 0 || errno != EPERM)
        return 14;
    if (prlimit(getpid(), RLIMIT_CPU, NULL, &own) < 0 || setrlimit(RLIMIT_CPU, &own) < 0)
        return 15;
    if (socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0) >= 0 || errno != EAFNOSUPPORT)
        return 8;
    if (socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0) < 0 && errno == EPERM)
        return 9;
    if (syscall(425, 1, NULL) >= 0 || errno != EPERM) /* io_uring_setup */
        return 10;
    if (pthread_create(&thread, NULL, run_nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 11;
    if (setuid(0) == 0 || errno != EPERM)
        return 12;
    if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        return 13;
    return 0;
}

static void test_calls(void **state)
{
    (void)state;
    expect_good(in_child(calls, ""));
}

static atomic_int g_stage;

/* A thread that was there before has the filter too. */
static void *run_old(void *arg)
{
    (void)arg;
    while (atomic_load(&g_stage) == 0)
        (void)usleep(1000);
    char *const argv[] = {(char *)(uintptr_t) "/bin/true", NULL};
    bool refused = execv(argv[0], argv) < 0 && errno == EPERM;
    return refused ? arg : NULL;
}

static int old_threads(const char *dir)
{
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, NULL, run_old, (void *)(uintptr_t)dir) != 0)
        return 1;
    int r = ek_sandbox_filter(0);
    atomic_store(&g_stage, 1);
    if (pthread_join(thread, &result) != 0 || (r == 0 && !result))
        return 2;
    return r == -EOPNOTSUPP ? SKIPPED : r < 0 ? 3 : 0;
}

static void test_old_threads(void **state)
{
    (void)state;
    expect_good(in_child(old_threads, "x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_old_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

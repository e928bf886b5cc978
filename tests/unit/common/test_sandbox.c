/* A process that has given its rights away, in a fork: what it could do before fails after. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/select.h>
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

/* Really made, with arguments that the kernel would look at: who is not refused by the filter gets
 * another error, or no error. */
static const struct refused_call {
    const char *name;
    long number, a, b, c;
} refused_calls[] = {
    {"execveat", SYS_execveat, -1, 0, 0},
    {"ptrace", SYS_ptrace, PTRACE_PEEKDATA, 0, 0},
    {"process_vm_readv", SYS_process_vm_readv, 1, 0, 0},
    {"process_vm_writev", SYS_process_vm_writev, 1, 0, 0},
    {"kcmp", SYS_kcmp, 1, 1, 0},
    {"pidfd_getfd", 438, -1, 0, 0},
    {"pidfd_send_signal", 424, -1, 0, 0},
    {"process_madvise", 440, -1, 0, 0},
    {"process_mrelease", 448, -1, 0, 0},
    {"migrate_pages", SYS_migrate_pages, 1, 0, 0},
    {"mount", SYS_mount, 0, 0, 0},
    {"umount2", SYS_umount2, 0, 0, 0},
    {"pivot_root", SYS_pivot_root, 0, 0, 0},
    {"chroot", SYS_chroot, 0, 0, 0},
    {"open_tree", 428, -1, 0, 0},
    {"move_mount", 429, -1, 0, -1},
    {"fsopen", 430, 0, 0, 0},
    {"fsconfig", 431, -1, 0, 0},
    {"fsmount", 432, -1, 0, 0},
    {"fspick", 433, -1, 0, 0},
    {"mount_setattr", 442, -1, 0, 0},
    {"open_tree_attr", 467, -1, 0, 0},
    {"name_to_handle_at", SYS_name_to_handle_at, -1, 0, 0},
    {"open_by_handle_at", SYS_open_by_handle_at, -1, 0, 0},
    {"mknodat", SYS_mknodat, -1, 0, 0},
    {"quotactl_fd", 443, -1, 0, 0},
    {"fanotify_init", SYS_fanotify_init, -1, 0, 0},
    {"fanotify_mark", SYS_fanotify_mark, -1, 0, 0},
    {"setxattr", SYS_setxattr, 0, 0, 0},
    {"fsetxattr", SYS_fsetxattr, -1, 0, 0},
    {"lremovexattr", SYS_lremovexattr, 0, 0, 0},
    {"remap_file_pages", SYS_remap_file_pages, 0, 0, 0},
    {"memfd_secret", 447, -1, 0, 0},
    {"lsm_set_self_attr", 460, 0, 0, 0},
    {"mq_open", SYS_mq_open, 0, 0, 0},
    {"mq_unlink", SYS_mq_unlink, 0, 0, 0},
    {"swapon", SYS_swapon, 0, 0, 0},
    {"unshare", SYS_unshare, 0, 0, 0},
    {"setns", SYS_setns, -1, 0, 0},
    {"setresuid", SYS_setresuid, -1, -1, -1},
    {"setresgid", SYS_setresgid, -1, -1, -1},
    {"setgroups", SYS_setgroups, -1, 0, 0},
    {"capset", SYS_capset, 0, 0, 0},
    {"personality", SYS_personality, 0xffffffff, 0, 0},
    {"bpf", SYS_bpf, -1, 0, 0},
    {"perf_event_open", SYS_perf_event_open, 0, 0, 0},
    {"userfaultfd", SYS_userfaultfd, -1, 0, 0},
    {"io_uring_setup", 425, 1, 0, 0},
    {"io_uring_enter", 426, -1, 0, 0},
    {"io_uring_register", 427, -1, 0, 0},
    {"init_module", SYS_init_module, 0, 0, 0},
    {"finit_module", SYS_finit_module, -1, 0, -1},
    {"kexec_load", SYS_kexec_load, 0, 0, 0},
#ifdef SYS_kexec_file_load
    {"kexec_file_load", SYS_kexec_file_load, -1, -1, 0},
#endif
    {"syslog", SYS_syslog, -1, 0, 0},
    {"add_key", SYS_add_key, 0, 0, 0},
    {"request_key", SYS_request_key, 0, 0, 0},
    {"keyctl", SYS_keyctl, -1, 0, 0},
    {"clock_settime", SYS_clock_settime, -1, 0, 0},
    {"sethostname", SYS_sethostname, 0, -1, 0},
    {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, 0, 0, 0},
    {"ioctl TIOCSTI", SYS_ioctl, -1, TIOCSTI, 0},
    {"ioctl TIOCLINUX", SYS_ioctl, -1, TIOCLINUX, 0},
    {"prctl PR_SET_DUMPABLE", SYS_prctl, PR_SET_DUMPABLE, 0, 0},
    {"prctl PR_SET_MM", SYS_prctl, PR_SET_MM, -1, 0},
    {"clone of a process", SYS_clone, SIGCHLD, 0, 0},
    {"clone with a user namespace", SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0},
    {"clone with namespaces", SYS_clone, CLONE_THREAD | CLONE_NEWNS | CLONE_NEWPID, 0, 0},
};
/* These only by the list. */
static const struct refused_call unlisted_calls[] = {
    {"setsid", SYS_setsid, 0, 0, 0},        {"shmget", SYS_shmget, 0, 0, 0},
    {"io_setup", SYS_io_setup, 0, 0, 0},    {"inotify_init1", SYS_inotify_init1, -1, 0, 0},
    {"symlinkat", SYS_symlinkat, 0, -1, 0}, {"fchownat", SYS_fchownat, -1, 0, -1},
    {"io_setup", SYS_io_setup, 0, 0, 0},    {"landlock_create_ruleset", 444, 0, 0, 1},
    {"seccomp", SYS_seccomp, -1, 0, 0},     {"vmsplice", SYS_vmsplice, -1, 0, 0},
};

/* 0, or how many of them were not refused. */
static int not_refused(const struct refused_call *t, size_t n, bool say)
{
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        errno = 0;
        long r = syscall(t[i].number, t[i].a, t[i].b, t[i].c, 0L, 0L, 0L);
        if (r == 0 && strncmp(t[i].name, "clone", 5) == 0)
            _exit(1); /* the other one */
        if (r < 0 && errno == EPERM)
            continue;
        if (say)
            (void)fprintf(stderr, "%s: %ld, %s\n", t[i].name, r, strerror(errno));
        wrong++;
    }
    return wrong;
}
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static int families_refused(void)
{
    static const int families[] = {AF_NETLINK,   AF_PACKET, AF_ALG, AF_VSOCK, AF_KEY,
                                   AF_BLUETOOTH, AF_TIPC,   AF_RDS, AF_XDP,   AF_CAN};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (socket(families[i], SOCK_RAW, 0) >= 0 || errno != EAFNOSUPPORT)
            return (int)i + 1;
    }
    return 0;
}

static int all_refused(const char *dir)
{
    (void)dir;
    int r = ek_sandbox_filter(0);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    if (r < 0 || not_refused(refused_calls, COUNT(refused_calls), true) != 0)
        return 1;
    if (not_refused(unlisted_calls, COUNT(unlisted_calls), false) != (int)COUNT(unlisted_calls))
        return 2; /* a driver may need them */
    if (syscall(500) >= 0 || errno != ENOSYS)
        return 3;
    return families_refused() ? 4 : 0;
}

/* What a C library does for a program that works. */
static int uses(const char *dir)
{
    char path[512];
    pthread_t thread;
    int pair[2];
    (void)snprintf(path, sizeof(path), "%s/own", dir);
    FILE *f = fopen(path, "w+e");
    if (!f || fputs("text", f) < 0 || fflush(f) != 0 || fsync(fileno(f)) != 0 || fclose(f) != 0)
        return 1;
    struct stat st;
    if (stat(path, &st) < 0 || lstat(path, &st) < 0 || access(path, R_OK) < 0 || unlink(path) < 0)
        return 2;
    if (pthread_create(&thread, NULL, run_nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    char *big = malloc(8u << 20); /* mapped */
    if (!big)
        return 4;
    (void)memset(big, 1, 8u << 20);
    big = realloc(big, 32u << 20);
    free(big);
    if (!big || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 5;
    struct timeval tv = {.tv_usec = 1000};
    fd_set set;
    FD_ZERO(&set);
    if (send(pair[0], "x", 1, MSG_NOSIGNAL) != 1 || usleep(1) < 0 ||
        select(0, &set, NULL, NULL, &tv) < 0)
        return 6;
    (void)close(pair[0]);
    (void)close(pair[1]);
    struct sched_param own = {0};
    int policy = SCHED_OTHER; /* as threads of libzmq's do, which may begin after the filter */
    if (pthread_getschedparam(pthread_self(), &policy, &own) != 0 ||
        pthread_setschedparam(pthread_self(), policy, &own) != 0)
        return 8;
    struct addrinfo *found = NULL, hints = {.ai_flags = AI_NUMERICHOST | AI_ADDRCONFIG};
    int r = getaddrinfo("127.0.0.1", "80", &hints, &found);
    if (found)
        freeaddrinfo(found);
    return r == 0 && raise(0) == 0 && isatty(0) >= 0 && sysconf(_SC_NPROCESSORS_ONLN) > 0 ? 0 : 7;
}

static int listed_alone(const char *dir)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = ek_sandbox_filter(EK_CALLS_LISTED);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    if (r < 0 || not_refused(refused_calls, COUNT(refused_calls), true) != 0)
        return 10;
    if (not_refused(unlisted_calls, COUNT(unlisted_calls), true) != 0)
        return 11;
    if (syscall(500) >= 0 || errno != ENOSYS) /* a later C library falls back from it */
        return 12;
    if (syscall(435, NULL, 0) >= 0 || errno != ENOSYS) /* clone3 */
        return 13;
    if (families_refused() || listen(listener, 1) == 0 || errno != EPERM)
        return 14;
    return uses(dir);
}

/* MPI has a few more, and who serves its ranks may listen. */
static int listed_with_mpi(const char *dir)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = ek_sandbox_filter(EK_CALLS_LISTED | EK_CALLS_MPI | EK_CALLS_LISTEN);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    if (r < 0 || not_refused(refused_calls, COUNT(refused_calls), true) != 0)
        return 20;
    for (size_t i = 0; i < COUNT(unlisted_calls); i++) {
        const char *name = unlisted_calls[i].name;
        int more = strcmp(name, "shmget") == 0 || strcmp(name, "inotify_init1") == 0;
        if (not_refused(&unlisted_calls[i], 1, false) != more)
            return 21;
    }
    return listen(listener, 1) == 0 ? uses(dir) : 22;
}

static void test_each_call(void **state)
{
    char dir[] = "/tmp/evenkeel-sandbox-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    int refused = in_child(all_refused, dir), only = in_child(listed_alone, dir);
    int mpi = in_child(listed_with_mpi, dir);
    assert_int_equal(rmdir(dir), 0);
    expect_good(refused);
    expect_good(only);
    expect_good(mpi);
}

/* The lists hold where they are put on: a child that parses (no sockets) has both. */
static int no_socket(const char *dir)
{
    int r = ek_sandbox_filter(EK_CALLS_LISTED | EK_CALLS_NO_SOCKET);
    if (r == -EOPNOTSUPP)
        return SKIPPED;
    if (r < 0 || socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || errno != EPERM)
        return 1;
    return opens(dir, "/dev/null", O_RDONLY) ? 0 : 2;
}

static void test_no_socket(void **state)
{
    (void)state;
    expect_good(in_child(no_socket, ""));
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
        cmocka_unit_test(test_files),       cmocka_unit_test(test_calls),
        cmocka_unit_test(test_each_call),   cmocka_unit_test(test_no_socket),
        cmocka_unit_test(test_old_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

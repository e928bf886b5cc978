/* Processes: started with their environment, seen to end, killed, adopted; and their output. Waits
 * are for the process's own end. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/fnv.h"
#include "common/sandbox.h"
#include "supervisor/io/child.h"
#include "supervisor/io/exit_file.h"
#include "supervisor/io/logtail.h"
#include "supervisor/io/run_as.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"

static int start(struct child *c, const char *script, char *const *env, int out)
{
    char sh[] = "sh", flag[] = "-c", text[256];
    (void)snprintf(text, sizeof(text), "%s", script);
    char *argv[] = {sh, flag, text, NULL};
    struct child_spec spec = {.argv = argv, .env = env, .out_fd = out, .oom_score_adj = 100};
    return child_spawn(c, &spec);
}

static struct child_exit wait_exit(struct child *c)
{
    struct pollfd p = {.fd = c->pidfd, .events = POLLIN};
    struct child_exit e = {0};
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(child_reap(c, &e), 1);
    return e;
}

static int open_log(struct logtail *t)
{
    char path[] = "/tmp/evenkeel-log-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    *t = (struct logtail){.most_bytes = 100};
    (void)snprintf(t->path, sizeof(t->path), "%s", path);
    fd = logtail_open(t);
    assert_true(fd >= 0);
    return fd;
}

static int isolated_exit(const char *script)
{
    struct child c;
    char sh[] = "sh", flag[] = "-c", text[256];
    (void)snprintf(text, sizeof(text), "%s", script);
    char *argv[] = {sh, flag, text, NULL};
    int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct child_spec spec = {.argv = argv, .out_fd = out, .isolated = true};
    assert_int_equal(child_spawn(&c, &spec), 0);
    struct child_exit e = wait_exit(&c);
    child_done(&c);
    close(out);
    assert_true(e.known && !e.signaled);
    return e.code;
}

/* In a process of its own, for no_new_privs stays. Root reads any environment. 0, or what failed.
 */
static int isolated_or(void)
{
    char script[256], dir[] = "/tmp/evenkeel-isolated-XXXXXX";
    if ((geteuid() == 0 && setresuid(65534, 65534, 65534) < 0) ||
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || !mkdtemp(dir))
        return 1;
    (void)snprintf(script, sizeof(script), "kill -0 %d && cat /proc/%d/environ", (int)getpid(),
                   (int)getpid());
    if (isolated_exit(script) != 0) /* no_new_privs is not set: as before */
        return 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return 3;
    (void)snprintf(script, sizeof(script), "kill -0 %d", (int)getpid());
    if (isolated_exit(script) == 0)
        return 4;
    (void)snprintf(script, sizeof(script), "cat /proc/%d/environ", (int)getpid());
    if (isolated_exit(script) == 0)
        return 5;
    (void)snprintf(script, sizeof(script),
                   "cd %s && mkdir a b && touch a/x && mv a/x b/y && ln b/y a/z && rm -r a b && "
                   "rmdir %s",
                   dir, dir); /* what a cache of models does */
    if (isolated_exit(script) != 0)
        return 6;
    return isolated_exit("sleep 100 & cat /proc/$!/environ >/dev/null && kill $!") == 0 ? 0 : 7;
}

/* A server that has been taken over ends neither evenkeeld nor another server of the same user, and
 * reads no key in their environment; its own processes and files it has as ever. */
static void test_isolated(void **state)
{
    int status = 0;
    (void)state;
    if (ek_sandbox_version() < 6)
        skip();
    pid_t pid = fork();
    if (pid == 0)
        _exit(isolated_or());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Without a cgroup what was left behind is found by the session that was begun for it. */
static void test_left_behind(void **state)
{
    struct child c;
    char line[16] = {0};
    int out[2];
    (void)state;
    assert_int_equal(pipe(out), 0);
    assert_int_equal(start(&c, "sleep 1000 & echo $!; exit 0", NULL, out[1]), 0);
    struct child_exit e = wait_exit(&c);
    assert_true(e.known && e.code == 0);
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    pid_t left = (pid_t)strtol(line, NULL, 10);
    assert_int_equal(kill(left, 0), 0);
    assert_int_equal(child_clear(&c), 1);
    close(out[1]);
    assert_int_equal(read(out[0], line, sizeof(line)), 0); /* until nobody can write any more */
    for (int i = 0; i < 5000 && kill(left, 0) == 0; i++)
        (void)poll(NULL, 0, 1); /* its files are closed a moment before it is gone */
    assert_int_equal(child_clear(&c), 0);
    child_done(&c);
    close(out[0]);
}

static void put_into(const char *group, pid_t pid)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fprintf(f, "%d", (int)pid) > 0);
    assert_int_equal(fclose(f), 0);
}

/* A server that moved aside, and its engine in a group of its own: still one server, which ends as
 * a whole and leaves no group behind. */
static void test_groups_below(void **state)
{
    (void)state;
    struct child c;
    char sh[] = "sh", flag[] = "-c", text[] = "sleep 1000 & echo $!; wait", line[16] = {0},
         name[] = "evenkeel-test-child", whole[256], engine[300], beside[300], is[256];
    char *argv[] = {sh, flag, text, NULL};
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    struct child_spec spec = {.argv = argv, .out_fd = out[1], .cgroup_name = name};
    assert_int_equal(child_spawn(&c, &spec), 0);
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    if (c.cgroup < 0) {
        print_message("left out: no cgroup can be made here\n");
        (void)child_kill(&c);
        (void)wait_exit(&c);
        child_done(&c);
        skip();
    }
    memcpy(whole, c.cgroup_path, sizeof(whole));
    (void)snprintf(engine, sizeof(engine), "%s/evenkeel-engine.%d", whole, (int)c.pid);
    (void)snprintf(beside, sizeof(beside), "%s/evenkeel-main", whole);
    assert_int_equal(mkdir(engine, 0755), 0);
    assert_int_equal(mkdir(beside, 0755), 0);
    put_into(engine, (pid_t)strtol(line, NULL, 10));
    put_into(beside, c.pid);
    assert_int_equal(child_cgroup(&c, is, sizeof(is)), 0);
    assert_string_equal(is, whole);
    struct child again;
    assert_int_equal(child_adopt(&again, c.pid, name), 0);
    assert_true(again.cgroup >= 0);
    assert_string_equal(again.cgroup_path, whole);
    close(again.cgroup);
    close(again.pidfd);
    assert_int_equal(child_signal(&c, SIGKILL), 0);
    (void)wait_exit(&c);
    assert_int_equal(child_clear(&c), 1); /* the engine */
    close(out[1]);
    assert_int_equal(read(out[0], line, sizeof(line)), 0);
    child_done(&c);
    for (int i = 0; i < 5000 && !child_sweep(&c); i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(access(whole, F_OK), -1);
    close(out[0]);
}

static void test_exit_and_output(void **state)
{
    (void)state;
    struct logtail t;
    struct child c;
    struct ek_buf out = {0};
    char one[] = "EVENKEEL_TEST=seen", *env[] = {one, NULL};
    int fd = open_log(&t);
    assert_int_equal(setenv("NOTIFY_SOCKET", "/nowhere", 1), 0);
    assert_int_equal(
        start(&c, "echo $EVENKEEL_TEST \"$NOTIFY_SOCKET\"; echo err >&2; exit 7", env, fd), 0);
    struct child_exit e = wait_exit(&c);
    assert_true(e.known && !e.signaled);
    assert_int_equal(e.code, 7);
    child_done(&c);
    assert_int_equal(logtail_read(&t, 1000, &out), 0);
    assert_string_equal(out.data, "seen \nerr\n"); /* evenkeeld's own socket did not leak */
    ek_buf_done(&out);
    close(fd);
    assert_int_equal(unlink(t.path), 0);
}

static atomic_bool churn_over;

static void *churn_nothing(void *arg)
{
    free(malloc(64 + (uintptr_t)arg % 4096));
    return arg;
}

/* Threads that begin and end, as libcurl's resolver does beside evenkeeld's loop. */
static void *churn(void *arg)
{
    pthread_t t;
    for (uintptr_t i = 0; !atomic_load(&churn_over); i++) {
        if (pthread_create(&t, NULL, churn_nothing, (void *)(i + 1)) == 0)
            (void)pthread_join(t, NULL);
    }
    return arg;
}

/* As sd_listen_fds() looks for it, from whatever number it has here; without one nothing is said.
 */
static void test_has_its_listening_socket(void **state)
{
    (void)state;
    char sh[] = "sh", flag[] = "-c",
         said[] = "echo $LISTEN_FDS $LISTEN_FDNAMES $((LISTEN_PID - $$)); readlink /proc/$$/fd/3";
    char *argv[] = {sh, flag, said, NULL};
    int before = fcntl(3, F_DUPFD_CLOEXEC, 20); /* whatever there is, or -1 */
    for (int number = 3; number <= 17; number += 14) {
        struct child c;
        struct logtail t;
        struct ek_buf text = {0};
        struct stat st;
        char want[80];
        int out = open_log(&t), fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(fstat(fd, &st), 0);
        if (fd != number) {
            if (out == number)
                out = fcntl(out, F_DUPFD_CLOEXEC, 20);
            assert_int_equal(dup3(fd, number, O_CLOEXEC), number);
            close(fd);
        }
        struct child_spec spec = {.argv = argv, .out_fd = out, .listen_fd = number};
        assert_int_equal(child_spawn(&c, &spec), 0);
        assert_int_equal(wait_exit(&c).code, 0);
        child_done(&c);
        assert_int_equal(logtail_read(&t, 1000, &text), 0);
        (void)snprintf(want, sizeof(want), "1 evenkeel-listen 0\nsocket:[%lu]\n",
                       (unsigned long)st.st_ino);
        assert_string_equal(text.data, want);
        ek_buf_done(&text);
        close(number);
        close(out);
        (void)unlink(t.path);
    }
    if (before >= 0) {
        assert_int_equal(dup2(before, 3), 3);
        close(before);
    }
}

/* A copy of a process whose threads hold locks or are half begun: it waits for none of them. */
static void test_starts_beside_threads(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    /* Under a sanitizer a copy takes ten times as long. */
    const int turns = share_number("EVENKEEL_SHARE", 1) > 1 ? 60 : 300;
    pthread_t t[THREADS];
    struct run_as nobody;
    char sh[] = "true", *argv[] = {sh, NULL};
    bool able = run_as_able() && run_as_find("nobody", &nobody) == 0;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, churn, NULL), 0);
    for (int i = 0; i < turns; i++) {
        struct child c;
        struct child_spec spec = {.argv = argv,
                                  .out_fd = STDERR_FILENO,
                                  .oom_score_adj = 100,
                                  .user = able ? &nobody : NULL};
        assert_int_equal(child_spawn(&c, &spec), 0);
        struct pollfd p = {.fd = c.pidfd, .events = POLLIN};
        if (poll(&p, 1, 20000) != 1)
            (void)child_kill(&c); /* it must not outlive this */
        struct child_exit e = wait_exit(&c);
        assert_true(e.known && !e.signaled && e.code == 0);
        child_done(&c);
    }
    atomic_store(&churn_over, true);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
}

/* As systemd's RestrictNamespaces does: clone3 answers ENOSYS from now on. */
static int forbid_clone3(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? prctl(PR_SET_SECCOMP, 2, &prog) : -1;
}

static void test_starts_without_clone3(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) { /* the filter cannot be taken back: in a process of its own */
        struct child c;
        struct child_exit e = {0};
        if (forbid_clone3() < 0)
            _exit(2);
        if (start(&c, "exit 7", NULL, STDERR_FILENO) < 0)
            _exit(3);
        struct pollfd p = {.fd = c.pidfd, .events = POLLIN};
        if (poll(&p, 1, 20000) != 1 || child_reap(&c, &e) != 1 || !e.known || e.code != 7)
            _exit(4);
        child_done(&c);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_kill(void **state)
{
    (void)state;
    struct child c;
    struct child_exit e;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(start(&c, "sleep 100 & wait", NULL, null), 0);
    assert_int_equal(child_reap(&c, &e), 0);
    assert_true(child_run_state(&c) != 0);
    assert_int_equal(child_kill(&c), 0);
    e = wait_exit(&c);
    assert_true(e.known && e.signaled);
    assert_int_equal(e.code, SIGKILL);
    assert_int_equal(child_signal(&c, SIGTERM), -ESRCH);
    child_done(&c);
    close(null);
}

static void test_not_found(void **state)
{
    (void)state;
    struct child c;
    char name[] = "evenkeel-no-such-program", dir[] = "/etc", *argv[] = {name, NULL};
    char text[] = "/tmp/evenkeel-no-program-XXXXXX";
    struct child_spec spec = {.argv = argv, .out_fd = 1};
    assert_int_equal(child_spawn(&c, &spec), -ENOENT);
    argv[0] = dir; /* is there and may be entered, but not run */
    assert_int_equal(child_spawn(&c, &spec), -EISDIR);
    int fd = mkstemp(text);
    assert_true(fd >= 0 && write(fd, "\1\2\3\4", 4) == 4 && fchmod(fd, 0700) == 0);
    (void)close(fd);
    argv[0] = text; /* may be run, and is no program */
    assert_int_equal(child_spawn(&c, &spec), 0);
    assert_int_equal(wait_exit(&c).code, 127);
    child_done(&c);
    (void)unlink(text);
}

static void test_pid_file(void **state)
{
    (void)state;
    char path[] = "/tmp/evenkeel-pid-XXXXXX";
    struct child c, again;
    pid_t pid;
    int fd = mkstemp(path), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(start(&c, "sleep 100", NULL, null), 0);
    assert_int_equal(child_note_pid(&c, path), 0);
    assert_int_equal(child_find_pid(path, &pid), 0);
    assert_int_equal(pid, c.pid);
    assert_int_equal(child_adopt(&again, pid, NULL), 0);
    assert_int_equal(child_signal(&again, SIGKILL), 0);
    child_done(&again);
    assert_int_equal(waitid(P_PID, (id_t)c.pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    assert_int_equal(child_adopt(&again, c.pid, NULL), -ESRCH); /* nobody has waited for it */
    (void)wait_exit(&c);
    assert_int_equal(child_find_pid(path, &pid), -ENOENT); /* gone: another may get its number */
    child_done(&again);
    child_done(&c);
    assert_int_equal(unlink(path), 0);
    close(null);
}

/* One that is another process's child: it ends by SIGKILL, and its parent waits for it or not. */
static void end_a_strangers_child(bool waited, struct child_exit *ret_exit)
{
    int tell[2], go[2];
    char byte = 0;
    pid_t its = 0;
    struct child c;

    assert_int_equal(pipe(tell) | pipe(go), 0);
    pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        its = fork();
        if (its == 0)
            for (;;)
                (void)pause();
        (void)!write(tell[1], &its, sizeof(its));
        (void)!read(go[0], &byte, 1);
        if (waited)
            (void)waitpid(its, NULL, 0);
        (void)!write(tell[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    assert_int_equal(read(tell[0], &its, sizeof(its)), sizeof(its));
    assert_int_equal(child_adopt(&c, its, NULL), 0);
    assert_int_equal(child_reap(&c, ret_exit), 0);
    assert_int_equal(child_signal(&c, SIGKILL), 0);
    assert_int_equal(poll(&(struct pollfd){.fd = c.pidfd, .events = POLLIN}, 1, 10000), 1);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(read(tell[0], &byte, 1), 1);
    assert_int_equal(child_reap(&c, ret_exit), 1);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    child_done(&c);
    close(tell[0]);
    close(tell[1]);
    close(go[0]);
    close(go[1]);
}

/* The kernel tells whom it is not our child of, too; of one that its parent has waited for since
 * Linux 6.15. */
static void test_a_strangers_status(void **state)
{
    (void)state;
    struct child_exit e;

    end_a_strangers_child(false, &e);
    assert_true(e.known && e.signaled && e.code == SIGKILL);
    end_a_strangers_child(true, &e);
    assert_true(!e.known || (e.signaled && e.code == SIGKILL));
}

static void test_log_is_bounded(void **state)
{
    (void)state;
    struct logtail t;
    struct ek_buf out = {0};
    char old[300];
    int fd = open_log(&t);
    for (int i = 0; i < 30; i++)
        assert_int_equal(dprintf(fd, "line %02d\n", i), 8);
    assert_int_equal(logtail_read(&t, 20, &out), 0);
    assert_string_equal(out.data, "line 28\nline 29\n"); /* whole lines */
    assert_int_equal(logtail_bound(&t), 1);
    assert_int_equal(logtail_bound(&t), 0);
    assert_int_equal(dprintf(fd, "after\n"), 6); /* the writer goes on at the new end */
    ek_buf_clear(&out);
    assert_int_equal(logtail_read(&t, 1000, &out), 0);
    assert_string_equal(out.data, "after\n");
    ek_buf_done(&out);
    close(fd);
    (void)snprintf(old, sizeof(old), "%s.1", t.path);
    assert_int_equal(unlink(old), 0);
    assert_int_equal(unlink(t.path), 0);
}

static void test_repeated_traces_hide_no_cause(void **state)
{
    (void)state;
    struct ek_buf b = {0};
    static const char cause[] = "(EngineCore pid=8) torch.OutOfMemoryError: CUDA out of memory.\n";
    static const char trace[] =
        "(APIServer pid=7) ERROR 11-27 13:05:46 [serving.py:500] Traceback\n"
        "\n"
        "(APIServer pid=7) ERROR 11-27 13:05:46 [serving.py:500]   File x\n";
    logtail_squeeze(&b, 1000); /* nothing in, nothing out */
    assert_int_equal(b.len, 0);
    assert_int_equal(ek_buf_puts(&b, cause), 0);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(ek_buf_puts(&b, trace), 0);
        assert_int_equal(ek_buf_printf(&b, "INFO: 127.0.0.1:%d - \"POST\" 500\n", 40000 + i), 0);
    }
    logtail_squeeze(&b, 32768);
    assert_true(strncmp(b.data, cause, sizeof(cause) - 1) == 0);
    assert_non_null(strstr(b.data, trace));
    assert_non_null(strstr(b.data, "40499 - \"POST\" 500\n"));
    assert_int_equal(b.len, strlen(b.data));
    logtail_squeeze(&b, 40); /* the end, whole lines: of the trace a blank one is left */
    assert_string_equal(b.data, "\nINFO: 127.0.0.1:40499 - \"POST\" 500\n");
    ek_buf_clear(&b);
    assert_int_equal(ek_buf_puts(&b, "a line without its end, a line without its end"), 0);
    logtail_squeeze(&b, 10);
    assert_string_equal(b.data, "ut its end");
    ek_buf_done(&b);
}

/* Lines that a server chose so that a table of their hashes has them all at the same few places:
 * looking for one costs no more than for others, so the last ones are taken for new ones. */
static void test_lines_that_crowd_a_table(void **state)
{
    (void)state;
    struct ek_buf b = {0};
    char line[64];
    int count = 0;
    for (uint32_t i = 0; count < 300; i++) {
        int n = snprintf(line, sizeof(line), "a line that is no other one %u\n", i);
        if (((ek_fnv(EK_FNV_BEGIN, line, (size_t)n) | 1) >> 7) % (1u << 17) >= 64)
            continue;
        count++;
        assert_int_equal(ek_buf_puts(&b, line), 0);
    }
    assert_int_equal(ek_buf_puts(&b, line), 0); /* the last one again */
    size_t len = b.len;
    logtail_squeeze(&b, 1u << 20);
    assert_int_equal(b.len, len);
    ek_buf_done(&b);
}

/* Whatever a server puts in the place of what evenkeeld reads: no wait, nothing of it is taken. */
static void test_foreign_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/ek-foreign-XXXXXX", socket[64], path[64], other[64];
    struct child_exit e = {0};
    struct logtail t = {0};
    struct ek_buf out = {0};
    pid_t pid;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(socket, sizeof(socket), "%s/control.sock", dir);
    (void)snprintf(path, sizeof(path), "%s/exit.json", dir);
    (void)snprintf(other, sizeof(other), "%s/other", dir);
    (void)snprintf(t.path, sizeof(t.path), "%s", path);
    (void)alarm(20); /* a FIFO without a writer held for ever */

    assert_int_equal(mkfifo(path, 0600), 0);
    exit_file_read(socket, 77, &e);
    assert_int_equal(logtail_read(&t, 100, &out), -EINVAL);
    assert_int_equal(child_find_pid(path, &pid), -EINVAL);
    const struct child self = {.pid = getpid()};
    assert_int_equal(logtail_open(&t), -ENXIO);
    assert_int_equal(child_note_pid(&self, path), -ENXIO);
    assert_int_equal(unlink(path), 0);

    int fd = logtail_open(&t); /* where the one before it is kept */
    assert_true(fd >= 0 && (fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK)) == O_APPEND);
    assert_int_equal(dprintf(fd, "a line"), 6);
    assert_int_equal(close(fd), 0);
    (void)snprintf(other, sizeof(other), "%s/exit.json.1", dir);
    assert_int_equal(mkfifo(other, 0600), 0);
    t.most_bytes = 1;
    assert_int_equal(logtail_bound(&t), -ENXIO);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(other, sizeof(other), "%s/other", dir);

    assert_int_equal(mkdir(path, 0700), 0);
    exit_file_read(socket, 77, &e);
    assert_int_equal(logtail_read(&t, 100, &out), -EINVAL);
    assert_int_equal(rmdir(path), 0);

    FILE *f = fopen(other, "we");
    assert_non_null(f);
    assert_true(fputs("{\"pid\":77,\"code\":3}", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(symlink(other, path), 0);
    exit_file_read(socket, 77, &e);
    assert_false(e.known);
    assert_int_equal(unlink(path), 0);

    assert_int_equal(rename(other, path), 0);
    assert_int_equal(truncate(path, 1 << 30), 0); /* sparse */
    exit_file_read(socket, 77, &e);
    assert_false(e.known);
    assert_int_equal(truncate(path, 19), 0);
    exit_file_read(socket, 77, &e);
    assert_true(e.known);
    assert_int_equal(e.code, 3);
    (void)alarm(0);
    ek_buf_done(&out);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_allocation(void **state)
{
    (void)state;
    struct child c;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    alloc_fail_at(1);
    int r = start(&c, "true", NULL, null);
    assert_true(alloc_failed());
    alloc_fail_at(0);
    assert_int_equal(r, -ENOMEM);
    close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_below),
        cmocka_unit_test(test_isolated),
        cmocka_unit_test(test_left_behind),
        cmocka_unit_test(test_exit_and_output),
        cmocka_unit_test(test_has_its_listening_socket),
        cmocka_unit_test(test_starts_beside_threads),
        cmocka_unit_test(test_starts_without_clone3),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_pid_file),
        cmocka_unit_test(test_a_strangers_status),
        cmocka_unit_test(test_log_is_bounded),
        cmocka_unit_test(test_repeated_traces_hide_no_cause),
        cmocka_unit_test(test_lines_that_crowd_a_table),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

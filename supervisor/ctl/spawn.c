/*
 * Child processes of evenkeelctl: nvidia-smi, evenkeel-server --dry-run, evenkeel-bench.
 * spawn_read() waits for the end of both streams under one deadline; spawn_beside() leaves a
 * program running, as bench-fit does with its load. A child that was killed is not waited for: in a
 * driver that hangs it may never end, and init takes it.
 */
#include "supervisor/ctl/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"

bool spawn_find(const char *name, char *path, size_t size)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        int w = slash ? snprintf(path, size, "%.*s/%s", (int)(slash - self), self, name) : -1;
        if (w > 0 && (size_t)w < size && access(path, X_OK) == 0)
            return true;
    }
    for (const char *at = getenv("PATH"); at && *at;) {
        size_t len = strcspn(at, ":");
        int w = snprintf(path, size, "%.*s/%s", (int)len, at, name);
        if (len > 0 && w > 0 && (size_t)w < size && access(path, X_OK) == 0)
            return true;
        at += len + (at[len] == ':');
    }
    return false;
}

static int spawn_start(char *const *argv, int out, int err, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    int r = posix_spawn_file_actions_init(&actions);
    if (r != 0)
        return -r;
    r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, out, 1);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, err, 2);
    if (r == 0)
        r = posix_spawnp(ret_pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions); /* cannot fail for one that was made */
    return -r;
}

/* Both streams until their ends. False: the deadline came first. */
static bool drain(int fds[2], struct ek_buf *to[2], uint64_t until_us)
{
    struct pollfd p[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    char block[4096];
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        uint64_t now = ek_now_us();
        if (now >= until_us)
            return false;
        if (poll(p, 2, (int)((until_us - now) / 1000 + 1)) < 0 && errno != EINTR)
            return false;
        for (int i = 0; i < 2; i++) {
            if (p[i].fd < 0 || !p[i].revents)
                continue;
            ssize_t n = read(p[i].fd, block, sizeof(block));
            if (n > 0)
                (void)ek_buf_add(to[i], block, (size_t)n); /* cut at its limit */
            else
                p[i].fd = -1;
        }
    }
    return true;
}

static void close_pair(int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (fd[i] >= 0)
            (void)close(fd[i]);
        fd[i] = -1;
    }
}

int spawn_read(char *const *argv, double seconds, struct ek_buf *out, struct ek_buf *err,
               int *ret_status)
{
    int o[2] = {-1, -1}, e[2] = {-1, -1};
    pid_t pid = 0;
    int r = pipe2(o, O_CLOEXEC) < 0 || pipe2(e, O_CLOEXEC) < 0 ? -errno : 0;
    if (r == 0)
        r = spawn_start(argv, o[1], e[1], &pid);
    if (r == 0) {
        (void)close(o[1]);
        (void)close(e[1]);
        o[1] = e[1] = -1;
        bool whole = drain((int[2]){o[0], e[0]}, (struct ek_buf *[2]){out, err},
                           ek_now_us() + (uint64_t)(seconds * 1e6));
        if (!whole) {
            (void)kill(pid, SIGKILL); /* our own child, not yet reaped: the pid is its */
            r = -ETIMEDOUT;
        }
        /* One that hangs in a driver does not even die: it is left to init. */
        if (waitpid(pid, ret_status, whole ? 0 : WNOHANG) < 0)
            r = -errno;
    }
    close_pair(o);
    close_pair(e);
    return r;
}

int spawn_beside(char *const *argv, int err_fd, pid_t *ret_pid)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return -errno;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        bool ready = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent &&
                     dup2(null, 0) == 0 && dup2(null, 1) == 1 && dup2(err_fd, 2) == 2;
        if (ready)
            (void)execv(argv[0], argv);
        _exit(127);
    }
    (void)close(null);
    if (pid < 0)
        return -errno;
    *ret_pid = pid;
    return 0;
}

void spawn_end(pid_t *pid)
{
    if (*pid <= 0)
        return;
    (void)kill(*pid, SIGKILL); /* our own child, not yet reaped: the pid is its */
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *pid = 0;
}

bool spawn_ended(pid_t *pid, int *ret_status)
{
    if (*pid <= 0 || waitpid(*pid, ret_status, WNOHANG) != *pid)
        return false;
    *pid = 0;
    return true;
}

/*
 * Starts and ends server processes, for servers/launch.c and their kin. The order of a start
 * matters: the cgroup is made first, then clone3 puts the child into it and returns its pidfd in
 * the same call, so there is no moment in which the child could leave or its pid be another's.
 * Kernels and sandboxes without clone3 get fork() and the cgroup written by the child itself
 * (fork_with()). What the child does until exec is child_run.c.
 */
#include "supervisor/io/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/fdpass.h"
#include "common/file.h"
#include "common/log.h"
#include "supervisor/io/child_run.h"
#include "supervisor/io/exit_status.h"
#include "supervisor/io/process_tree.h"
#include "supervisor/io/strays.h"

#define START_FIELD 22 /* of /proc/PID/stat, see proc_pid_stat(5) */

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define CGROUP_TRIES 4

void child_init(struct child *c)
{
    *c = (struct child){.pidfd = -1, .cgroup = -1};
}

static int write_at(int dir, const char *file, const char *text)
{
    int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = write(fd, text, strlen(text)) < 0 ? -errno : 0;
    close(fd);
    return r;
}

static void forget_cgroup(struct child *c)
{
    if (c->cgroup >= 0)
        close(c->cgroup);
    if (c->cgroup_path[0])
        (void)ek_cgroup_remove(c->cgroup_path); /* not while something lives in it */
    c->cgroup = -1;
    c->cgroup_path[0] = '\0';
}

void child_done(struct child *c)
{
    char path[sizeof(c->cgroup_path)];
    memcpy(path, c->cgroup_path, sizeof(path));
    if (c->pidfd >= 0)
        close(c->pidfd);
    forget_cgroup(c);
    child_init(c);
    memcpy(c->stale_path, path, sizeof(path));
    (void)child_sweep(c); /* or later */
}

bool child_sweep(struct child *c)
{
    if (!c->stale_path[0] || ek_cgroup_remove(c->stale_path) != -EBUSY)
        c->stale_path[0] = '\0';
    return !c->stale_path[0];
}

int child_subreaper(void)
{
    return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int child_cgroup(const struct child *c, char *ret_path, size_t size)
{
    char file[64];
    (void)snprintf(file, sizeof(file), "/proc/%d/cgroup", (int)c->pid);
    int r = ek_cgroup_dir(file, ret_path, size);
    if (r == 0)
        ek_cgroup_own(ret_path); /* it may have moved aside, for its engine's */
    return r;
}

/*
 * Makes a new cgroup below our own. One that is still there holds leftovers of an earlier run: they
 * are killed, and the next name is taken, because a kernel may kill what is cloned into a cgroup
 * that was killed once. The process can do without one.
 */
static int make_cgroup(struct child *c, const char *name)
{
    char own[200];
    int r = ek_cgroup_dir(EK_CGROUP_SELF, own, sizeof(own));
    for (int i = 0; i < CGROUP_TRIES && r == 0; i++) {
        int n = snprintf(c->cgroup_path, sizeof(c->cgroup_path), "%s/%s.%d", own, name, i);
        if (n < 0 || (size_t)n >= sizeof(c->cgroup_path)) {
            r = -ENAMETOOLONG;
            break;
        }
        (void)ek_cgroup_remove(c->cgroup_path); /* an empty one of before */
        bool made = mkdir(c->cgroup_path, 0755) == 0;
        if (!made && errno != EEXIST) {
            r = -errno;
            break;
        }
        c->cgroup = open(c->cgroup_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (c->cgroup < 0) {
            r = -errno;
            break;
        }
        if (made)
            return 0;
        (void)write_at(c->cgroup, "cgroup.kill", "1"); /* not allowed: they are not ours */
        close(c->cgroup);
        c->cgroup = -1;
    }
    c->cgroup_path[0] = '\0';
    return r < 0 ? r : -EBUSY;
}

/* 0 if it may be run; a directory may be entered, which access() means by X_OK as well. */
static int can_run(const char *path)
{
    struct stat st;
    if (access(path, X_OK) < 0 || stat(path, &st) < 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? -EISDIR : 0;
}

int child_find_program(const char *argv0, char *ret_path, size_t size)
{
    if (strchr(argv0, '/')) {
        int n = snprintf(ret_path, size, "%s", argv0);
        if (n < 0 || (size_t)n >= size)
            return -ENAMETOOLONG;
        return can_run(ret_path);
    }
    const char *path = getenv("PATH");
    if (!path)
        path = "/usr/local/bin:/usr/bin:/bin";
    while (*path) {
        size_t len = strcspn(path, ":");
        int n = snprintf(ret_path, size, "%.*s/%s", (int)len, path, argv0);
        if (len > 0 && n > 0 && (size_t)n < size && can_run(ret_path) == 0)
            return 0;
        path += len + (path[len] == ':');
    }
    return -ENOENT;
}

static bool child_same_name(const char *a, const char *b)
{
    size_t len = strcspn(a, "=");
    return strncmp(a, b, len) == 0 && b[len] == '=';
}

static size_t count_of(char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

/* What belongs to evenkeeld alone and must not leak into a server. */
static bool is_private(const char *entry)
{
    static const char *const names[] = {
        "NOTIFY_SOCKET=", "WATCHDOG_USEC=",  "WATCHDOG_PID=",  "LISTEN_FDS=",
        "LISTEN_PID=",    "LISTEN_FDNAMES=", "JOURNAL_STREAM="};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    }
    return false;
}

static bool is_named(const char *entry, char *const *list)
{
    for (; list && *list; list++) {
        if (child_same_name(entry, *list))
            return true;
    }
    return false;
}

/* Pointers into environ, extra, user and listen_pid (NULL = no socket); free the array only. */
static char **merge_env(char *const *extra, char *const *user, bool level_prefix, char *listen_pid)
{
    static char prefix[] = EK_LOG_PREFIX_ENV "=1", fds[] = "LISTEN_FDS=1",
                names[] = "LISTEN_FDNAMES=" EK_LISTEN_NAME;
    size_t own = count_of(environ), add = count_of(extra), n = 0;
    char **env = calloc(own + add + count_of(user) + 5, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; i < own; i++) {
        if (!is_private(environ[i]) && !is_named(environ[i], extra) && !is_named(environ[i], user))
            env[n++] = environ[i];
    }
    for (; user && *user; user++) {
        if (!is_named(*user, extra))
            env[n++] = *user;
    }
    for (size_t k = 0; k < add; k++)
        env[n++] = extra[k];
    if (level_prefix)
        env[n++] = prefix;
    if (listen_pid) {
        env[n++] = fds;
        env[n++] = names;
        env[n++] = listen_pid;
    }
    return env;
}

/*
 * Where seccomp forbids clone3 (systemd's RestrictNamespaces does, with ENOSYS, since it cannot
 * look into its struct): the child goes into the cgroup itself, before it runs anything of the
 * server.
 */
static long fork_with(int *ret_pidfd, int cgroup)
{
    pid_t pid = fork();
    if (pid == 0 && cgroup >= 0)
        (void)write_at(cgroup, "cgroup.procs", "0"); /* without it it lives in ours */
    if (pid > 0)                                     /* not reaped yet, so the number is its own */
        *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return pid;
}

static long clone_with(uint64_t flags, int *ret_pidfd, int cgroup)
{
    struct clone_args args = {
        .flags = flags | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = cgroup < 0 ? 0 : (uint64_t)cgroup,
    };
    return syscall(SYS_clone3, &args, sizeof(args));
}

/* As fork(); with a cgroup of its own where there is a name for one and it can be made. */
static long begin_process(struct child *c, const char *cgroup_name, int *ret_pidfd)
{
    long pid = -1;
    if (cgroup_name && make_cgroup(c, cgroup_name) == 0)
        pid = clone_with(CLONE_INTO_CGROUP, ret_pidfd, c->cgroup);
    if (pid < 0 && errno == ENOSYS && c->cgroup >= 0) {
        pid = fork_with(ret_pidfd, c->cgroup);
    } else if (pid < 0) { /* no cgroup, or not allowed into it: live without */
        forget_cgroup(c);
        pid = clone_with(0, ret_pidfd, -1);
        if (pid < 0 && errno == ENOSYS)
            pid = fork_with(ret_pidfd, -1);
    }
    return pid;
}

int child_spawn(struct child *c, const struct child_spec *spec)
{
    char path[4096];
    int r = child_find_program(spec->argv[0], path, sizeof(path));
    if (r < 0)
        return r;
    struct child_user user;
    char listen_pid[CHILD_LISTEN_MOST] = CHILD_LISTEN_PID; /* the child adds its own */
    char **env = merge_env(spec->env, child_user_env(spec->user, &user), spec->level_prefix,
                           spec->listen_fd > 0 ? listen_pid : NULL);
    char **raised = env ? child_raised_words(spec) : NULL;
    if (!raised) {
        free(env);
        return -ENOMEM;
    }
    child_init(c);
    int pidfd = -1;
    long pid = begin_process(c, spec->cgroup_name, &pidfd);
    if (pid == 0)
        child_run(path, spec, raised, env, listen_pid);
    r = pid < 0 || pidfd < 0 ? -errno : 0;
    free(raised);
    free(env);
    if (r < 0) {
        if (pid > 0) { /* it cannot be watched */
            (void)kill((pid_t)pid, SIGKILL);
            (void)waitpid((pid_t)pid, NULL, 0);
        }
        child_done(c);
        return r;
    }
    c->pid = (pid_t)pid;
    c->pidfd = pidfd;
    c->ours = true;
    return 0;
}

/* Finds the cgroup that a process lives in, if it is one that we would have made under `name`. A
 * kill by cgroup must hit the server and nothing else. */
static void find_cgroup(struct child *c, const char *name)
{
    size_t len = strlen(name);
    const char *base = child_cgroup(c, c->cgroup_path, sizeof(c->cgroup_path)) == 0
                           ? strrchr(c->cgroup_path, '/')
                           : NULL;
    if (base && strncmp(base + 1, name, len) == 0 && base[1 + len] == '.')
        c->cgroup = open(c->cgroup_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->cgroup < 0)
        c->cgroup_path[0] = '\0';
}

int child_adopt(struct child *c, pid_t pid, const char *cgroup_name)
{
    child_init(c);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return -errno;
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    if (poll(&ended, 1, 0) > 0) { /* its parent has not waited for it yet */
        close(fd);
        return -ESRCH;
    }
    c->pid = pid;
    c->pidfd = fd;
    if (cgroup_name)
        find_cgroup(c, cgroup_name);
    return 0;
}

int child_signal(const struct child *c, int sig)
{
    if (c->pidfd < 0)
        return -ESRCH;
    return syscall(SYS_pidfd_send_signal, c->pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

int child_kill(const struct child *c)
{
    if (c->cgroup >= 0 && write_at(c->cgroup, "cgroup.kill", "1") == 0)
        return 0;
    /* The group first: once its leader is reaped, its number may belong to another process. */
    int r = child_signal(c, 0);
    if (r == 0 && getpgid(c->pid) == c->pid)
        (void)kill(-c->pid, SIGKILL); /* the leader is signalled again below */
    return child_signal(c, SIGKILL);
}

/* Of it alone, or of one of the groups below it. */
static unsigned count_in(int cgroup, const char *below)
{
    char line[32], name[300];
    unsigned n = 0;
    (void)snprintf(name, sizeof(name), "%s/cgroup.procs", below);
    int fd = openat(cgroup, name, O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    while (f && fgets(line, sizeof(line), f))
        n++;
    if (f)
        (void)fclose(f); /* read only */
    else if (fd >= 0)
        close(fd);
    return n;
}

/* With the groups that it made below its own. */
static unsigned count_in_cgroup(int cgroup)
{
    unsigned n = count_in(cgroup, ".");
    int fd = openat(cgroup, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (const struct dirent *e; d && (e = readdir(d));)
        n += e->d_type == DT_DIR && e->d_name[0] != '.' ? count_in(cgroup, e->d_name) : 0;
    if (d)
        (void)closedir(d);
    else if (fd >= 0)
        close(fd);
    return n;
}

unsigned child_clear(const struct child *c)
{
    if (c->cgroup < 0)
        return strays_of(c->pid, true);
    unsigned left = count_in_cgroup(c->cgroup);
    (void)child_kill(c);
    return left;
}

/* 1 with its status, 0 when it has none for us yet; negative errno, -ECHILD when it is not ours. */
static int wait_for_status(const struct child *c, struct child_exit *ret_exit)
{
    siginfo_t si = {0};
    if (waitid((idtype_t)P_PIDFD, (id_t)c->pidfd, &si, WEXITED | WNOHANG) < 0)
        return -errno;
    if (si.si_pid == 0)
        return 0;
    *ret_exit = (struct child_exit){.known = true,
                                    .signaled = si.si_code != CLD_EXITED,
                                    .core = si.si_code == CLD_DUMPED,
                                    .code = si.si_status};
    return 1;
}

int child_reap(struct child *c, struct child_exit *ret_exit)
{
    if (c->pidfd < 0)
        return -ESRCH;
    int r = wait_for_status(c, ret_exit);
    if (r != 0 && r != -ECHILD)
        return r;
    /* Also of a process that is not our child. */
    struct pollfd ended = {.fd = c->pidfd, .events = POLLIN};
    if (poll(&ended, 1, 0) <= 0)
        return 0;
    if (r == 0 && wait_for_status(c, ret_exit) == 1) /* it has ended between the two */
        return 1;
    /* Not ours; or a debugger traces it, which gets the status first and may keep it for long. */
    int status = 0;
    *ret_exit = (struct child_exit){.known = false};
    if (exit_status_of(c->pidfd, c->pid, &status))
        *ret_exit = (struct child_exit){.known = true,
                                        .signaled = WIFSIGNALED(status),
                                        .core = WIFSIGNALED(status) && WCOREDUMP(status),
                                        .code = WIFSIGNALED(status) ? WTERMSIG(status)
                                                                    : WEXITSTATUS(status)};
    return 1;
}

char child_run_state(const struct child *c)
{
    char text[PROCESS_STAT_BYTES];
    const char *state = process_stat_read(c->pid, text);

    return state ? *state : 0;
}

uint64_t child_oom_kills(const struct child *c)
{
    return ek_cgroup_oom_kills(c->cgroup);
}

/* Start time in ticks since boot, which with the pid names a process for good; 0 if unknown. */
static unsigned long long start_ticks(pid_t pid)
{
    char text[PROCESS_STAT_BYTES];
    const char *at = process_stat_read(pid, text);

    if (!at || *at == 'Z' || *at == 'X')
        return 0; /* it has ended, and is not reaped yet */
    at = process_stat_field(at, START_FIELD);
    return at ? strtoull(at, NULL, 10) : 0;
}

unsigned long long child_start_ticks(pid_t pid)
{
    return start_ticks(pid);
}

double child_age_s(const struct child *c)
{
    struct timespec now;
    unsigned long long ticks = start_ticks(c->pid);
    if (ticks == 0 || clock_gettime(CLOCK_BOOTTIME, &now) < 0)
        return 0;
    double age = (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
                 (double)ticks / (double)sysconf(_SC_CLK_TCK);
    return age > 0 ? age : 0;
}

int child_note_pid(const struct child *c, const char *path)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "%d %llu\n", (int)c->pid, start_ticks(c->pid));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -errno;
    int r = write(fd, text, (size_t)n) == n ? 0 : -EIO;
    close(fd);
    return r;
}

int child_find_pid(const char *path, pid_t *ret_pid)
{
    char text[64] = {0}, *end;
    int fd = ek_file_open_regular(path);
    if (fd < 0)
        return fd;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    long pid = n > 0 ? strtol(text, &end, 10) : 0;
    if (pid <= 1 || pid > 1 << 22)
        return -ENOENT;
    unsigned long long ticks = strtoull(end, NULL, 10);
    if (ticks == 0 || start_ticks((pid_t)pid) != ticks)
        return -ENOENT;
    *ret_pid = (pid_t)pid;
    return 0;
}

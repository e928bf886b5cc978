/*
 * Becoming another user, and what evenkeeld has to mind where a server is one: directories are
 * given to it and taken back, links in them are removed, and a socket's other end is checked.
 * child_run.c, handoff.c, client.c and the options use it.
 */
#include "supervisor/io/run_as.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"

#define REAP_TRIES 50 /* of a millisecond */

#define HAS(set, cap) (((set)[(cap) / 32].effective >> ((cap) % 32)) & 1u)

bool run_as_able(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct set[2] = {0};
    return geteuid() == 0 && syscall(SYS_capget, &head, set) == 0 && HAS(set, CAP_SETUID) &&
           HAS(set, CAP_SETGID) && HAS(set, CAP_CHOWN) && HAS(set, CAP_KILL) &&
           HAS(set, CAP_DAC_OVERRIDE);
}

static int look_up(const char *name, struct run_as *ret_user)
{
    struct passwd row, *found = NULL;
    struct run_as u = {.set = true, .groups = RUN_AS_GROUPS};
    char text[4096];
    int r = getpwnam_r(name, &row, text, sizeof(text), &found);
    if (r != 0 && r != ENOENT && r != ESRCH)
        return -r;
    if (!found)
        return -ENOENT;
    u.uid = row.pw_uid;
    u.gid = row.pw_gid;
    int n = snprintf(u.name, sizeof(u.name), "%s", row.pw_name);
    int m = snprintf(u.home, sizeof(u.home), "%s", row.pw_dir);
    if (n < 0 || (size_t)n >= sizeof(u.name) || m < 0 || (size_t)m >= sizeof(u.home))
        return -ENAMETOOLONG;
    if (getgrouplist(u.name, u.gid, u.group, &u.groups) < 0)
        return -E2BIG;
    *ret_user = u;
    return 0;
}

struct user_found {
    int error;
    struct run_as user;
};

/* The process of its own. What it holds of ours it closes: it may not end for a while. */
static void look_and_end(run_as_look look, const char *name, int to)
{
    struct user_found f = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (to > 3)
        (void)syscall(SYS_close_range, 3u, (unsigned)to - 1, 0u);
    (void)syscall(SYS_close_range, (unsigned)to + 1, ~0u, 0u);
    f.error = look(name, &f.user);
    _exit(write(to, &f, sizeof(f)) != (ssize_t)sizeof(f));
}

/* Its answer, which is shorter than what a pipe passes on in one piece. */
static int run_as_await(int from, uint32_t most_ms, struct run_as *ret_user)
{
    uint64_t end = ek_now_us() + most_ms * 1000ull, now;
    struct pollfd p = {.fd = from, .events = POLLIN};
    struct user_found f;
    while ((now = ek_now_us()) < end) {
        int n = poll(&p, 1, (int)((end - now) / 1000u) + 1);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n <= 0)
            continue;
        if (read(from, &f, sizeof(f)) != (ssize_t)sizeof(f))
            return -EIO;
        if (f.error == 0)
            *ret_user = f.user;
        return f.error;
    }
    return -ETIMEDOUT;
}

int run_as_ask(run_as_look look, const char *name, uint32_t most_ms, struct run_as *ret_user)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        look_and_end(look, name, ends[1]);
    int r = pid < 0 ? -errno : 0;
    close(ends[1]);
    if (r == 0)
        r = run_as_await(ends[0], most_ms, ret_user);
    close(ends[0]);
    if (pid > 0)
        (void)kill(pid, SIGKILL); /* it is not reaped meanwhile: the number is its own */
    /* One that a file system holds is left to the reaper of orphans (reap.h). */
    for (int i = 0; pid > 0 && i < REAP_TRIES && waitpid(pid, NULL, WNOHANG) == 0; i++)
        (void)usleep(1000);
    return r;
}

int run_as_find(const char *name, struct run_as *ret_user)
{
    return run_as_ask(look_up, name, RUN_AS_FIND_MS, ret_user);
}

/*
 * The kernel's own calls, which change this thread alone. The C library's tell every thread that
 * its list has, and in a process that clone3 made the list is still the parent's: one whose stack
 * lay there half made, or half gone, would be waited for and never answer.
 */
int run_as_become(const struct run_as *user)
{
    if (syscall(SYS_setgroups, (size_t)user->groups, user->group) < 0 ||
        syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0 ||
        syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0)
        return -errno;
    return syscall(SYS_setuid, 0) == 0 ? -EPERM : 0; /* there must be no way back */
}

/* Folders stay, and stay whose they are. */
static int clear_dir(int dir, bool links_only)
{
    int fd = dup(dir);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0)
            close(fd);
        return -errno;
    }
    int r = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_type == DT_DIR || (links_only && e->d_type != DT_LNK))
            continue;
        if (unlinkat(dir, e->d_name, 0) < 0 && errno != ENOENT && errno != EISDIR)
            r = -errno;
    }
    (void)closedir(d); /* it was only read */
    return r;
}

int run_as_own_dir(const struct run_as *user, const char *path)
{
    struct stat st;
    /* Of a unit before (run_as_closed_dir). Only evenkeeld makes links beside it. */
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid == geteuid())
        (void)unlink(path);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &st) < 0 ? -errno : 0;
    bool others = r == 0 && st.st_uid != user->uid;
    /* First ours: a process of that other user's could leave something behind the clearing. */
    if (others && (fchown(fd, geteuid(), (gid_t)-1) < 0 || fchmod(fd, 0700) < 0))
        r = -errno;
    if (r == 0)
        r = clear_dir(fd, !others);
    if (r == 0 && others && fchown(fd, user->uid, user->gid) < 0)
        r = -errno;
    if (r < 0 && others && fchown(fd, st.st_uid, (gid_t)-1) < 0) /* the next try clears it too */
        r = -errno;
    close(fd);
    return r;
}

int run_as_take_back(const char *path)
{
    struct stat st;
    struct run_as self = {.uid = geteuid(), .gid = getegid()};
    if (self.uid != 0 || lstat(path, &st) < 0 || st.st_uid == self.uid)
        return 0; /* only root may, and has to */
    return run_as_own_dir(&self, path);
}

/* ---- directories of units with a user of their own ---- */

/* A folder that only this user, and root, can pass. */
static bool is_closed(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 077);
}

/* What an earlier version made there moves along: a server that still has it open keeps it. */
static int move_in(const char *path, const char *inside)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (S_ISDIR(st.st_mode))
        return rename(path, inside) < 0 ? -errno : 0;
    return unlink(path) < 0 ? -errno : 0;
}

int run_as_closed_dir(const char *run_dir, const char *name)
{
    char closed[300], path[300], inside[360], to[80], is[80];
    int n = snprintf(closed, sizeof(closed), "%s/" RUN_AS_CLOSED, run_dir);
    int m = snprintf(path, sizeof(path), "%s/%s", run_dir, name);
    int l = snprintf(to, sizeof(to), RUN_AS_CLOSED "/%s", name);
    if (n < 0 || (size_t)n >= sizeof(closed) || m < 0 || (size_t)m >= sizeof(path) || l < 0 ||
        (size_t)l >= sizeof(to))
        return -ENAMETOOLONG;
    (void)snprintf(inside, sizeof(inside), "%s/%s", closed, name);
    if (mkdir(closed, 0700) < 0 && errno != EEXIST)
        return -errno;
    if (!is_closed(closed))
        return -EPERM;
    ssize_t k = readlink(path, is, sizeof(is));
    bool linked = k == l && memcmp(is, to, (size_t)l) == 0;
    int r = linked ? 0 : move_in(path, inside);
    if (r == 0 && mkdir(inside, 0700) < 0 && errno != EEXIST)
        r = -errno;
    int fd = r == 0 ? open(inside, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : r;
    if (fd < 0)
        return r == 0 ? -errno : r;
    if (fchmod(fd, 0777) < 0)
        r = -errno;
    close(fd);
    if (r == 0 && !linked && symlink(to, path) < 0)
        r = -errno;
    return r;
}

/* The name that the other end has listened at: a link that lies in the directory leads to one that
 * has another name. */
static bool has_name(int fd, const char *socket_path)
{
    struct sockaddr_un at = {0};
    socklen_t len = sizeof(at);
    return getpeername(fd, (struct sockaddr *)&at, &len) == 0 && at.sun_family == AF_UNIX &&
           strncmp(at.sun_path, socket_path, sizeof(at.sun_path)) == 0;
}

static bool lies_closed(const char *dir)
{
    char real[PATH_MAX];
    char *slash = realpath(dir, real) ? strrchr(real, '/') : NULL;
    if (!slash || slash == real)
        return false;
    *slash = '\0';
    return is_closed(real);
}

bool run_as_owner_answers(int fd, const char *socket_path)
{
    char dir[512];
    struct stat st;
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int n = snprintf(dir, sizeof(dir), "%s", socket_path);
    char *slash = n > 0 && (size_t)n < sizeof(dir) ? strrchr(dir, '/') : NULL;
    if (!slash || slash == dir)
        return true;
    *slash = '\0';
    if (stat(dir, &st) < 0)
        return false;
    bool trusted = st.st_uid == 0 || st.st_uid == geteuid();
    if (trusted && !(st.st_mode & (S_IWGRP | S_IWOTH)))
        return true;
    if (trusted && lies_closed(dir))
        return has_name(fd, socket_path);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return false;
    return cred.uid == st.st_uid || (trusted && (cred.uid == 0 || cred.uid == geteuid()));
}

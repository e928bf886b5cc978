/* Where evenkeeld keeps its sockets and its state, and the locks that it is alone; called by
 * loop.c. */
#include "supervisor/directories.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "supervisor/config/options.h"

#define LOCK_TRIES  500 /* 5 s in all */
#define LOCK_TRY_NS (10 * 1000 * 1000)

static int make_dirs(const char *path, mode_t mode)
{
    char part[512];
    int n = snprintf(part, sizeof(part), "%s", path);
    if (n < 0 || (size_t)n >= sizeof(part))
        return -ENAMETOOLONG;
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return mkdir(part, mode) < 0 && errno != EEXIST ? -errno : 0;
}

static bool is_ours(const struct stat *st)
{
    return st->st_uid == geteuid() || st->st_uid == 0 || geteuid() == 0;
}

/* The owner of a directory can replace the sockets in it, that of a link to it (the default of who
 * has no run directory lies in /tmp) the directory: it has to be root or this user. */
static int check_owner(const char *path)
{
    char bare[PATH_MAX]; /* behind a slash (or "/.") lstat() would follow the link */
    struct stat st, link;
    size_t n = strlen(path);
    if (n >= sizeof(bare))
        return -ENAMETOOLONG;
    while (n > 1 && (path[n - 1] == '/' || (path[n - 1] == '.' && path[n - 2] == '/')))
        n--;
    memcpy(bare, path, n);
    bare[n] = '\0';
    if (lstat(bare, &link) < 0 || stat(path, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        return -ENOTDIR;
    return !is_ours(&link) || !is_ours(&st) ? -EPERM : access(path, W_OK | X_OK) < 0 ? -errno : 0;
}

/* -EBADMSG with a sentence in the log: it is the configuration that has to change. */
int directories_open(const struct config *c)
{
    const struct {
        const char *name, *path;
    } dirs[] = {{"run_dir", c->run_dir}, {"state_dir", c->state_dir}};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        int r = make_dirs(dirs[i].path, 0755);
        if (r == 0)
            r = check_owner(dirs[i].path);
        if (r == -EROFS && i > 0) { /* a disk that failed: watching goes on */
            ek_log(EK_LOG_WARNING,
                   "%s is read-only: the state is kept in memory, and nothing is restarted by plan",
                   dirs[i].path);
            continue;
        }
        if (r < 0) {
            ek_log(EK_LOG_ERR,
                   "cannot use the directory %s: %s; set %s to one that belongs to this user",
                   dirs[i].path, r == -EPERM ? "it belongs to another user" : ek_strerror(r),
                   dirs[i].name);
            return -EBADMSG;
        }
    }
    return 0;
}

/* Takes a directory's lock; errno says why not. A server that has just been forked has the lock's
 * descriptor until it becomes its own program, also when the evenkeeld that forked it has ended
 * meanwhile: that is waited for. */
static bool lock_taken(int fd, char *ret_pid, size_t size)
{
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; tries++) {
        int error = errno;
        ssize_t n = pread(fd, ret_pid, size - 1, 0);
        ret_pid[n > 0 ? n : 0] = '\0';
        ret_pid[strcspn(ret_pid, "\n")] = '\0';
        long pid = strtol(ret_pid, NULL, 10);
        bool ended = pid > 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
        if (!ended || tries == LOCK_TRIES) {
            errno = error;
            return false;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_TRY_NS}, NULL);
    }
    return true;
}

/* key: of the configuration, that names the directory. */
static int take_lock(const char *dir, const char *file, const char *key, int *ret_fd)
{
    char path[512], pid[24];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return -errno;
    if (!lock_taken(fd, pid, sizeof(pid))) {
        int r = errno == EWOULDBLOCK ? -EBUSY : -errno;
        (void)close(fd);
        if (r == -EBUSY)
            ek_log(EK_LOG_ERR,
                   "another evenkeeld (process %s) runs with %s %s; end it, or give this one a %s "
                   "of its own",
                   pid, key, dir, key);
        return r;
    }
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) < 0)
        ek_log(EK_LOG_WARNING, "cannot write %s: %s", path, ek_strerror(-errno));
    *ret_fd = fd;
    return 0;
}

int directories_lock(const struct config *c, int *ret_run_fd, int *ret_state_fd)
{
    int r = take_lock(c->run_dir, "evenkeeld.lock", "run_dir", ret_run_fd);
    if (r < 0 && r != -EBUSY)
        ek_log(EK_LOG_ERR, "cannot lock run_dir %s: %s", c->run_dir, ek_strerror(r));
    if (r < 0)
        return r;
    /* A disk that is full, read-only or knows no locks: watching goes on. */
    return take_lock(c->state_dir, "state.lock", "state_dir", ret_state_fd) == -EBUSY ? -EBUSY : 0;
}

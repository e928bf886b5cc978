/* A cgroup of its own for the engine's process (engine_cgroup.h). Called by the launcher. */
#include "server/engine_cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/err.h"

#define ROOT "/sys/fs/cgroup"
/* Of the smallest limit above, for the server itself: requests, texts, sockets. */
#define SERVER_PART 16
#define SERVER_MOST (1ull << 30)
#define CLEAR_MOST  256 /* processes at once; an engine starts none itself */

/* ---- files of a group ---- */

static int write_in(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = write(fd, text, strlen(text)) < 0 ? -errno : 0;
    (void)close(fd); /* the kernel has answered in write() */
    return r;
}

static bool has_memory(const char *dir)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/memory.max", dir);
    return access(path, W_OK) == 0;
}

static bool offers_memory(const char *dir)
{
    char path[PATH_MAX], text[512] = {0};

    (void)snprintf(path, sizeof(path), "%s/cgroup.controllers", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd); /* read only */
    char *rest = NULL;
    for (char *w = n > 0 ? strtok_r(text, " \n", &rest) : NULL; w; w = strtok_r(NULL, " \n", &rest))
        if (strcmp(w, "memory") == 0)
            return true;
    return false;
}

/* Whether the group was given to us. Root may write anywhere, which says nothing. */
static bool is_delegated(const char *dir)
{
    static const char *const marks[] = {"user.delegate", "trusted.delegate"};
    struct stat st;
    char value[4];

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (getxattr(dir, marks[i], value, sizeof(value)) == 1 && value[0] == '1')
            return true;
    return geteuid() != 0 && stat(dir, &st) == 0 && st.st_uid == geteuid();
}

/* ---- the group ---- */

/* Those that servers which are gone have left. */
static void cgroup_sweep(const char *own)
{
    const size_t len = strlen(EK_CGROUP_ENGINE);
    char path[PATH_MAX], *end;
    DIR *d = opendir(own);

    for (const struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, EK_CGROUP_ENGINE, len) != 0)
            continue;
        long pid = strtol(e->d_name + len, &end, 10);
        if (*end || pid <= 0 || pid > INT_MAX || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        int n = snprintf(path, sizeof(path), "%s/%s", own, e->d_name);
        if (n > 0 && (size_t)n < sizeof(path))
            (void)rmdir(path); /* not while a process is in it */
    }
    if (d)
        (void)closedir(d);
}

/* Out of the way, so that `own` may hand the controller down. 0, or a negative errno and all is as
 * it was. */
static int step_aside(const char *own)
{
    char beside[PATH_MAX];

    (void)snprintf(beside, sizeof(beside), "%s/" EK_CGROUP_BESIDE, own);
    if (mkdir(beside, 0755) < 0 && errno != EEXIST)
        return -errno;
    int r = write_in(beside, "cgroup.procs", "0");
    if (r == 0) {
        r = write_in(own, "cgroup.subtree_control", "+memory");
        if (r < 0)
            (void)write_in(own, "cgroup.procs", "0");
    }
    if (r < 0)
        (void)rmdir(beside);
    return r;
}

static void limit_memory(struct engine_cgroup *g, const char *own, uint64_t want_bytes)
{
    uint64_t above, left;
    char text[32];
    int r = 0;

    ek_cgroup_left(EK_CGROUP_SELF, ROOT, &above, &left);
    const uint64_t most = engine_cgroup_most(want_bytes, above);
    if (most == UINT64_MAX) {
        (void)snprintf(g->why, sizeof(g->why),
                       "there is none above it, and --engine-memory-max names none");
        return;
    }
    if (!has_memory(g->path) && !offers_memory(own))
        (void)snprintf(g->why, sizeof(g->why), "%.120s offers no control of memory", own);
    else if (!has_memory(g->path) && !is_delegated(own))
        (void)snprintf(g->why, sizeof(g->why),
                       "%.120s was not given to the server (Delegate=yes in its unit)", own);
    else if (!has_memory(g->path) && (r = step_aside(own)) < 0)
        (void)snprintf(g->why, sizeof(g->why),
                       "%.120s cannot hand its control of memory down: %.60s", own,
                       r == -EBUSY ? "other processes are in it" : ek_strerror(r));
    if (g->why[0])
        return;
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)most);
    r = write_in(g->path, "memory.max", text);
    if (r < 0)
        (void)snprintf(g->why, sizeof(g->why), "memory.max cannot be written: %.100s",
                       ek_strerror(r));
    else
        g->most_bytes = most;
}

uint64_t engine_cgroup_most(uint64_t want_bytes, uint64_t limit_bytes)
{
    const uint64_t part = limit_bytes / SERVER_PART;

    if (want_bytes)
        return want_bytes;
    if (limit_bytes == UINT64_MAX)
        return UINT64_MAX;
    return limit_bytes - (part < SERVER_MOST ? part : SERVER_MOST);
}

/* 0, or why there is none. */
static int cgroup_make(struct engine_cgroup *g, char *own, size_t size)
{
    int r = ek_cgroup_dir(EK_CGROUP_SELF, own, size);
    if (r < 0)
        return r;
    ek_cgroup_own(own);
    cgroup_sweep(own);
    int n = snprintf(g->path, sizeof(g->path), "%s/" EK_CGROUP_ENGINE "%d", own, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof(g->path))
        return -ENAMETOOLONG;
    if (mkdir(g->path, 0755) < 0 && errno != EEXIST)
        return -errno;
    g->dir = open(g->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    g->procs = g->dir < 0 ? -1 : openat(g->dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return g->procs < 0 ? -errno : 0;
}

void engine_cgroup_make(struct engine_cgroup *g, uint64_t want_bytes)
{
    char own[384];

    *g = (struct engine_cgroup){.dir = -1, .procs = -1, .most_bytes = UINT64_MAX};
    int r = cgroup_make(g, own, sizeof(own));
    if (r == 0) {
        limit_memory(g, own, want_bytes);
        return;
    }
    engine_cgroup_done(g);
    if (g->path[0])
        (void)rmdir(g->path);
    g->path[0] = '\0';
    (void)snprintf(g->why, sizeof(g->why), "none can be made: %s", ek_strerror(r));
}

int engine_cgroup_enter(const struct engine_cgroup *g)
{
    return g->procs >= 0 && write(g->procs, "0", 1) < 0 ? -errno : 0;
}

/* Those that are in the group now, but for ourselves. */
static uint32_t list_others(int dir, pid_t *ret_pids, uint32_t most)
{
    char line[32];
    uint32_t count = 0;
    int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "re");

    while (f && count < most && fgets(line, sizeof(line), f)) {
        ret_pids[count] = (pid_t)strtol(line, NULL, 10);
        count += ret_pids[count] > 0 && ret_pids[count] != getpid();
    }
    if (f)
        (void)fclose(f); /* read only */
    else if (fd >= 0)
        (void)close(fd);
    return count;
}

static bool is_in(int dir, pid_t pid)
{
    pid_t pids[CLEAR_MOST];
    const uint32_t count = list_others(dir, pids, CLEAR_MOST);

    for (uint32_t i = 0; i < count; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

uint32_t engine_cgroup_clear(const struct engine_cgroup *g)
{
    pid_t pids[CLEAR_MOST];
    const uint32_t count = g->dir < 0 ? 0 : list_others(g->dir, pids, CLEAR_MOST);

    for (uint32_t i = 0; i < count; i++) {
        int fd = (int)syscall(SYS_pidfd_open, pids[i], 0);
        if (fd < 0)
            continue;
        if (is_in(g->dir, pids[i])) /* the number is not another process's by now */
            (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
        (void)close(fd);
    }
    return count;
}

void engine_cgroup_done(struct engine_cgroup *g)
{
    int *const files[] = {&g->dir, &g->procs};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (*files[i] >= 0)
            (void)close(*files[i]);
        *files[i] = -1;
    }
}

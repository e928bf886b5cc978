/*
 * Sums names, sizes and times of the files in a command line for servers/obstacle.c, which starts a
 * server early when something that kept it from starting has changed. The child closes all other
 * descriptors before its first look, and one that never returns costs a process and nothing else.
 */
#include "supervisor/io/traces.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/fnv.h"
#include "supervisor/io/child.h"

#define ENTRIES_MOST 1024u /* of one directory */

struct traces_call {
    int in, pidfd;
    sd_event_source *io;
    traces_fn cb;
    void *ctx;
};

static uint64_t traces_mix(uint64_t h, uint64_t v)
{
    return ek_fnv(h, &v, sizeof(v));
}

static uint64_t sum_of_name(const char *name)
{
    return ek_fnv(EK_FNV_BEGIN, name, strlen(name));
}

static uint64_t mix_stat(uint64_t h, int dir, const char *path)
{
    struct stat st;
    if (fstatat(dir, path, &st, 0) < 0)
        return traces_mix(h, (uint64_t)errno);
    h = traces_mix(traces_mix(h, st.st_dev), st.st_ino);
    h = traces_mix(traces_mix(h, (uint64_t)st.st_mtim.tv_sec), (uint64_t)st.st_mtim.tv_nsec);
    return traces_mix(h, S_ISDIR(st.st_mode) ? 0 : (uint64_t)st.st_size);
}

/* The sum of a path; of a directory with its entries, in whatever order they come. */
static uint64_t sum_of(const char *path)
{
    uint64_t sum = mix_stat(sum_of_name(path), AT_FDCWD, path);
    unsigned n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && n < ENTRIES_MOST && (d = readdir(dir)); n++)
        sum += mix_stat(sum_of_name(d->d_name), dirfd(dir), d->d_name);
    if (dir)
        (void)closedir(dir); /* read only */
    return sum;
}

static uint64_t sum_all(char *const *argv, const char *but_below)
{
    char program[4096];
    uint64_t sum = 0;
    size_t most = but_below ? strlen(but_below) : 0;
    if (argv[0] && child_find_program(argv[0], program, sizeof(program)) == 0)
        sum += sum_of(program);
    for (size_t i = 0; argv[i]; i++) {
        const char *path = argv[i][0] == '-' ? strchr(argv[i], '=') : argv[i];
        path = path && *path == '=' ? path + 1 : path;
        if (path && strchr(path, '/') && !(most && strncmp(path, but_below, most) == 0))
            sum += sum_of(path);
    }
    return sum;
}

/* In the child: nothing of evenkeeld's may be held by one that does not come back. */
static void traces_look(int out, char *const *argv, const char *but_below)
    __attribute__((noreturn));
static void traces_look(int out, char *const *argv, const char *but_below)
{
    if (dup2(out, 3) < 0)
        _exit(1);
    (void)syscall(SYS_close_range, 4u, ~0u, 0u); /* an older kernel: they are closed at the end */
    uint64_t sum = sum_all(argv, but_below);
    _exit(write(3, &sum, sizeof(sum)) == (ssize_t)sizeof(sum) ? 0 : 1);
}

void traces_cancel(struct traces_call *c)
{
    if (!c)
        return;
    sd_event_source_disable_unref(c->io);
    if (c->pidfd >= 0) {
        (void)syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0); /* gone is as good */
        close(c->pidfd);
    }
    if (c->in >= 0)
        close(c->in);
    free(c);
}

static int on_sum(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    struct traces_call *c = ctx;
    uint64_t sum = 0;
    (void)s;
    (void)revents;
    ssize_t n = read(fd, &sum, sizeof(sum)); /* the kernel writes so little whole */
    traces_fn cb = c->cb;
    void *to = c->ctx;
    traces_cancel(c);
    cb(to, n == (ssize_t)sizeof(sum) ? sum : 0);
    return 0;
}

int traces_ask(sd_event *event, char *const *argv, const char *but_below, traces_fn cb, void *ctx,
               struct traces_call **ret_call)
{
    int pipes[2] = {-1, -1}, r = -ENOMEM;
    struct traces_call *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    *c = (struct traces_call){.in = -1, .pidfd = -1, .cb = cb, .ctx = ctx};
    if (pipe2(pipes, O_CLOEXEC) < 0) {
        r = -errno;
        goto out;
    }
    c->in = pipes[0];
    pid_t pid = fork();
    if (pid == 0)
        traces_look(pipes[1], argv, but_below);
    if (pid < 0) {
        r = -errno;
        goto out;
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0u); /* -1: it ends by itself */
    r = sd_event_add_io(event, &c->io, c->in, EPOLLIN, on_sum, c);
    if (r < 0)
        goto out;
    *ret_call = c;
    c = NULL;
    r = 0;
out:
    if (pipes[1] >= 0)
        close(pipes[1]);
    traces_cancel(c);
    return r;
}

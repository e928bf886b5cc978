/*
 * Asks for the devices' state without risking the loop: dial() connects to the unit evenkeel-nvml,
 * and without systemd gpus_start() forks. Either way one report, smaller than a pipe and so never
 * in parts, comes through a descriptor that the loop watches, under a deadline. figures.c asks each
 * minute; prestart.c and obstacle.c before a start; dryrun.c waits for the answer (gpus_wait()).
 */
#include "supervisor/io/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "supervisor/io/nvml.h"

#define GIB 1073741824.0

struct gpus_call {
    pid_t pid;
    int pidfd; /* by which it is killed: the loop may have reaped it */
    int pipe;
    sd_event_source *io, *timer;
    gpus_fn cb;
    void *ctx;
};

static _Noreturn void gpus_help(int to)
{
    struct gpus g = {0};
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NAME, "evenkeeld-nvml");
    if (dup2(to, STDIN_FILENO) < 0)
        _exit(1);
    (void)close_range(3, ~0u, 0);
    nvml_read(&g);
    _exit(write(STDIN_FILENO, &g, sizeof(g)) != (ssize_t)sizeof(g));
}

/* evenkeel-nvml, where systemd listens for it. */
static int dial(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = NVML_SOCKET};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    int r = -errno;
    close(fd);
    return r;
}

/* A pid of 0: the answer comes from the unit. */
static int gpus_start(pid_t *ret_pid, int *ret_pipe)
{
    int ends[2], unit = dial();
    if (unit >= 0) {
        *ret_pid = 0;
        *ret_pipe = unit;
        return 0;
    }
    if (unit == -EAGAIN) /* it is blocked, and others wait already */
        return unit;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        gpus_help(ends[1]);
    int r = pid < 0 ? -errno : 0;
    close(ends[1]);
    if (r < 0) {
        close(ends[0]);
        return r;
    }
    *ret_pid = pid;
    *ret_pipe = ends[0];
    return 0;
}

static void read_report(int from, struct gpus *ret_gpus)
{
    *ret_gpus = (struct gpus){0}; /* smaller than a pipe: it comes whole or not at all */
    if (read(from, ret_gpus, sizeof(*ret_gpus)) == (ssize_t)sizeof(*ret_gpus) &&
        ret_gpus->count <= GPUS_MOST) {
        ret_gpus->text[sizeof(ret_gpus->text) - 1] = '\0';
        return;
    }
    *ret_gpus =
        (struct gpus){.error = -EIO, .text = "the helper that asks NVML ended without a word"};
}

static const struct gpus late = {.error = -ETIMEDOUT, .text = "NVML does not answer"};

/* The caller */

void gpus_cancel(struct gpus_call *c)
{
    if (!c)
        return;
    sd_event_source_disable_unref(c->io);
    sd_event_source_disable_unref(c->timer);
    close(c->pipe);
    if (c->pidfd >= 0) { /* ended is as good; the loop reaps it */
        (void)syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
        close(c->pidfd);
    }
    free(c);
}

static void gpus_finish(struct gpus_call *c, const struct gpus *g)
{
    gpus_fn cb = c->cb;
    void *ctx = c->ctx;
    gpus_cancel(c);
    cb(ctx, g);
}

static int on_report(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    struct gpus g;
    (void)s;
    (void)revents;
    read_report(fd, &g);
    gpus_finish(ctx, &g);
    return 0;
}

static int on_late(sd_event_source *s, uint64_t usec, void *ctx)
{
    (void)s;
    (void)usec;
    gpus_finish(ctx, &late);
    return 0;
}

int gpus_ask(sd_event *event, uint32_t timeout_ms, gpus_fn cb, void *ctx, struct gpus_call **ret)
{
    struct gpus_call *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    int r = gpus_start(&c->pid, &c->pipe);
    if (r < 0) {
        free(c);
        return r;
    }
    c->pidfd = c->pid > 0 ? (int)syscall(SYS_pidfd_open, c->pid, 0) : -1;
    c->cb = cb;
    c->ctx = ctx;
    r = sd_event_add_io(event, &c->io, c->pipe, EPOLLIN, on_report, c);
    if (r >= 0)
        r = sd_event_add_time(event, &c->timer, CLOCK_MONOTONIC, ek_now_us() + timeout_ms * 1000ull,
                              10000, on_late, c);
    if (r < 0) {
        gpus_cancel(c);
        return r;
    }
    *ret = c;
    return 0;
}

void gpus_wait(uint32_t timeout_ms, struct gpus *ret_gpus)
{
    pid_t pid;
    int from, r = gpus_start(&pid, &from);
    if (r < 0) {
        *ret_gpus = (struct gpus){.error = r, .text = "no helper can be started"};
        return;
    }
    struct pollfd p = {.fd = from, .events = POLLIN};
    if (poll(&p, 1, (int)timeout_ms) == 1)
        read_report(from, ret_gpus);
    else
        *ret_gpus = late;
    close(from);
    if (pid <= 0)
        return;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, ret_gpus->error == -ETIMEDOUT ? WNOHANG : 0);
}

/* What it means */

int gpus_parse(const char *list, uint32_t *ret_set)
{
    uint32_t set = 0;
    for (const char *c = list;; c++) {
        size_t digits = strspn(c, "0123456789");
        unsigned long v = digits > 0 && digits < 3 ? strtoul(c, NULL, 10) : GPUS_MOST;
        if (v >= GPUS_MOST || set & 1u << v)
            return -EBADMSG;
        set |= 1u << v;
        c += digits;
        if (*c == '\0')
            break;
        if (*c != ',')
            return -EBADMSG;
    }
    *ret_set = set;
    return 0;
}

bool gpus_are_free(const struct gpus *gpus, uint32_t set, double share, char *why, size_t size)
{
    for (uint32_t i = 0; i < GPUS_MOST; i++) {
        if (!(set & 1u << i))
            continue;
        if (i >= gpus->count) {
            (void)snprintf(why, size, "there is no device %u: NVML knows %u", i, gpus->count);
            return false;
        }
        const struct gpu *g = &gpus->at[i];
        if (g->lost) {
            (void)snprintf(why, size, "device %u does not answer: %s", i, gpus->text);
            return false;
        }
        uint64_t left = g->total > g->used ? g->total - g->used : 0;
        if ((double)left >= share * (double)g->total)
            continue;
        int n =
            snprintf(why, size, "device %u has %.1f of %.1f GiB free, less than the %.1f needed", i,
                     (double)left / GIB, (double)g->total / GIB, share * (double)g->total / GIB);
        if (g->processes > 0 && g->pid[0] > 0 && n > 0 && (size_t)n < size)
            (void)snprintf(why + n, size - (size_t)n, "; process %d has %.1f GiB", (int)g->pid[0],
                           (double)g->bytes[0] / GIB);
        return false;
    }
    return true;
}

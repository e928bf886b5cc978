/*
 * One timer a minute for the whole machine: it lists all processes once, sums the memory of each
 * server's tree from its cgroup or from statm, asks the helper for the devices (gpus.c) and tells
 * the servers. The kernel's log is read as it comes, for errors of devices (XID).
 * servers/memory_line.c and leaks.c use what it finds.
 */
#include "supervisor/io/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/clock.h"
#include "common/log.h"
#include "supervisor/io/child.h"

#define NVML_MS 5000u
#define FIRST_S 5.0 /* the first reading: servers have just begun */

struct figures {
    struct figures_setup setup;
    sd_event_source *timer, *log;
    struct gpus_call *asks;
    struct gpus gpus;
    int fd;
    struct xid xid;
    uint64_t xids;
    size_t len;
    char part[1024]; /* of a line that has not ended */
};

/* One process */

static double figures_known(uint64_t number)
{
    return number == UINT64_MAX ? (double)NAN : (double)number;
}

/* The directory of the process's cgroup, if it is not evenkeeld's own. */
static bool own_group(const struct child *c, char *path, size_t size)
{
    char own[256];
    if (ek_cgroup_dir(EK_CGROUP_SELF, own, sizeof(own)) < 0 || child_cgroup(c, path, size) < 0)
        return false;
    return strcmp(own, path) != 0;
}

/* "size resident shared ...", in pages. */
static bool read_statm(pid_t pid, double *ret_resident, double *ret_own)
{
    char path[40];
    unsigned long long size, resident, shared;
    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fscanf(file, "%llu %llu %llu", &size, &resident, &shared) == 3;
    (void)fclose(file); /* read only */
    if (got) {
        double page = (double)sysconf(_SC_PAGESIZE);
        *ret_resident = (double)resident * page;
        *ret_own = resident > shared ? (double)(resident - shared) * page : 0;
    }
    return got;
}

/* Those that have ended since they were listed have nothing. */
static void read_tree(const struct process_tree *t, struct memory_figures *f)
{
    double resident, own;
    if (t->root <= 0 || !read_statm(t->root, &f->resident, &f->own))
        return;
    f->others = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (read_statm(t->at[i], &resident, &own))
            f->others += own;
    }
    f->own += f->others;
}

void figures_read(const struct child *c, const struct process_tree *t,
                  struct memory_figures *ret_figures)
{
    char group[300];
    struct memory_figures f = MEMORY_UNKNOWN;
    read_tree(t, &f);
    if (c->pid > 0 && own_group(c, group, sizeof(group))) {
        struct ek_cgroup_memory m;
        ek_cgroup_memory(group, &m);
        const double anon = figures_known(m.anon_bytes);
        f.own = isfinite(anon) ? anon : f.own;
        f.cgroup = figures_known(m.used_bytes);
        f.files = (double)m.file_bytes;
        f.most = figures_known(m.most_bytes);
        f.stalled_s = figures_known(m.stalled_us) / 1e6;
    }
    *ret_figures = f;
}

bool figures_owns(const struct child *c, const struct process_tree *t, pid_t pid)
{
    char group[300], own[300];
    char self[40];
    if (process_tree_has(t, pid))
        return true;
    if (c->pid <= 0)
        return false;
    (void)snprintf(self, sizeof(self), "/proc/%d/cgroup", (int)pid);
    if (!own_group(c, group, sizeof(group)) || ek_cgroup_dir(self, own, sizeof(own)) < 0)
        return false;
    ek_cgroup_own(own);
    return strcmp(group, own) == 0;
}

/* The kernel's log: "... NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus." */

bool figures_parse_xid(const char *line, struct xid *ret_xid)
{
    const char *at = strstr(line, "NVRM: Xid (");
    if (!at)
        return false;
    at += strlen("NVRM: Xid (");
    size_t len = strcspn(at, ")\n");
    if (len == 0 || len >= sizeof(ret_xid->device) || strncmp(at + len, "): ", 3) != 0)
        return false;
    const char *number = at + len + 3;
    size_t digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 4)
        return false;
    *ret_xid = (struct xid){.number = (unsigned)strtoul(number, NULL, 10)};
    memcpy(ret_xid->device, at, len);
    return true;
}

bool figures_is_final(unsigned xid)
{
    static const unsigned lost[] = {48, 74, 79, 95};
    for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        if (lost[i] == xid)
            return true;
    }
    return false;
}

static void take_line(struct figures *f, const char *line)
{
    struct xid x;
    if (!figures_parse_xid(line, &x))
        return;
    x.at_us = ek_now_us();
    f->xid = x;
    f->xids++;
    ek_log(EK_LOG_ERR, "the kernel reports Xid %u of device %s%s", x.number, x.device,
           figures_is_final(x.number) ? ": it needs a person" : "");
}

/* /dev/kmsg gives one record a read; a file may give parts. */
static int on_log(sd_event_source *s, int fd, uint32_t revents, void *ctx)
{
    struct figures *f = ctx;
    (void)revents;
    ssize_t n = read(fd, f->part + f->len, sizeof(f->part) - 1 - f->len);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR && errno != EPIPE)) {
        (void)sd_event_source_set_enabled(s, SD_EVENT_OFF); /* it ended: live without */
        return 0;
    }
    if (n < 0)
        return 0; /* EPIPE: records were overwritten before they were read */
    f->len += (size_t)n;
    f->part[f->len] = '\0';
    char *line = f->part, *end;
    while ((end = strchr(line, '\n'))) {
        *end = '\0';
        take_line(f, line);
        line = end + 1;
    }
    f->len -= (size_t)(line - f->part);
    memmove(f->part, line, f->len + 1);
    if (f->len == sizeof(f->part) - 1)
        f->len = 0; /* longer than any that concerns us */
    return 0;
}

/* Not being allowed to read it is the usual case. */
static void open_log(struct figures *f)
{
    if (!f->setup.kernel_log)
        return;
    f->fd = open(f->setup.kernel_log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0) {
        ek_log(EK_LOG_DEBUG, "%s cannot be read: XIDs are not seen", f->setup.kernel_log);
        return;
    }
    (void)lseek(f->fd, 0, SEEK_END); /* what happened before we began is no evidence */
    if (sd_event_add_io(f->setup.event, &f->log, f->fd, EPOLLIN, on_log, f) < 0)
        ek_log(EK_LOG_WARNING, "%s cannot be watched: XIDs are not seen", f->setup.kernel_log);
}

/* Every minute */

static void rest(struct figures *f)
{
    (void)sd_event_source_set_time(f->timer, ek_now_us() + (uint64_t)(f->setup.every_s * 1e6));
    (void)sd_event_source_set_enabled(f->timer, SD_EVENT_ONESHOT);
}

static void on_gpus(void *ctx, const struct gpus *g)
{
    struct figures *f = ctx;
    f->asks = NULL;
    f->gpus = *g;
    f->setup.each(f->setup.ctx, f);
    rest(f);
}

static int figures_on_timer(sd_event_source *s, uint64_t usec, void *ctx)
{
    struct figures *f = ctx;
    (void)s;
    (void)usec;
    if (f->gpus.error != -ENOENT && /* no library was, so none will be */
        gpus_ask(f->setup.event, NVML_MS, on_gpus, f, &f->asks) == 0)
        return 0;
    f->setup.each(f->setup.ctx, f);
    rest(f);
    return 0;
}

int figures_new(const struct figures_setup *setup, struct figures **ret_figures)
{
    struct figures *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->setup = *setup;
    f->fd = -1;
    f->gpus.error = -EAGAIN;
    double first_s = setup->every_s < FIRST_S ? setup->every_s : FIRST_S;
    int r = sd_event_add_time(setup->event, &f->timer, CLOCK_MONOTONIC,
                              ek_now_us() + (uint64_t)(first_s * 1e6), 100000, figures_on_timer, f);
    if (r < 0) {
        figures_free(f);
        return r;
    }
    open_log(f);
    *ret_figures = f;
    return 0;
}

void figures_free(struct figures *f)
{
    if (!f)
        return;
    gpus_cancel(f->asks);
    sd_event_source_disable_unref(f->timer);
    sd_event_source_disable_unref(f->log);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

const struct gpus *figures_gpus(const struct figures *f)
{
    return &f->gpus;
}

struct xid figures_xid(const struct figures *f)
{
    return f->xid;
}

uint64_t figures_xids(const struct figures *f)
{
    return f->xids;
}

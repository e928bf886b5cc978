#include "supervisor/gpus.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"

#define GIB 1073741824.0

struct gpus_call {
    pid_t pid;
    int pidfd; /* by which it is killed: the loop may have reaped it */
    int pipe;
    sd_event_source *io, *timer;
    gpus_fn cb;
    void *ctx;
};

/* The helper: types of nvml.h, whose binary interface does not change within a version suffix. */

typedef struct nvmlDevice_st *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
#define NVML_SHORT         7 /* the array is too small */
#define NVML_UNCORRECTED   1
#define NVML_SINCE_POWERED 0

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *ret);
    int (*device)(unsigned index, nvml_device *ret);
    int (*memory)(nvml_device d, struct nvml_memory *ret);
    int (*processes)(nvml_device d, unsigned *count, struct nvml_process *list);
    int (*ecc)(nvml_device d, int kind, int counter, unsigned long long *ret);
    const char *(*error)(int code);
};

/* ISO C has no conversion from an object pointer to a function's. */
static bool find(void *lib, const char *name, void *to, size_t size)
{
    void *at = dlsym(lib, name);
    memcpy(to, &at, size);
    return at != NULL;
}

#define FIND(lib, name, to) find(lib, name, &(to), sizeof(to))

static int open_nvml(struct nvml *n, struct gpus *g)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!lib) {
        (void)snprintf(g->text, sizeof(g->text), "there is no libnvidia-ml.so.1");
        return -ENOENT;
    }
    bool all = FIND(lib, "nvmlInit_v2", n->init) && FIND(lib, "nvmlDeviceGetCount_v2", n->count) &&
               FIND(lib, "nvmlDeviceGetHandleByIndex_v2", n->device) &&
               FIND(lib, "nvmlDeviceGetMemoryInfo", n->memory) &&
               FIND(lib, "nvmlErrorString", n->error);
    if (!FIND(lib, "nvmlDeviceGetComputeRunningProcesses_v3", n->processes))
        (void)FIND(lib, "nvmlDeviceGetComputeRunningProcesses_v2", n->processes);
    (void)FIND(lib, "nvmlDeviceGetTotalEccErrors", n->ecc); /* not every device counts */
    if (all)
        return 0;
    (void)snprintf(g->text, sizeof(g->text),
                   "libnvidia-ml.so.1 lacks functions: update the driver");
    return -EIO;
}

static int read_device(const struct nvml *n, unsigned index, struct gpu *g)
{
    nvml_device d = NULL;
    struct nvml_memory m = {0};
    struct nvml_process list[64];
    unsigned count = sizeof(list) / sizeof(list[0]);
    int r = n->device(index, &d);
    if (r == 0)
        r = n->memory(d, &m);
    if (r != 0)
        return r;
    g->total = m.total;
    g->used = m.used;
    int said = n->processes ? n->processes(d, &count, list) : -1;
    if (said != 0 && said != NVML_SHORT)
        count = 0; /* not allowed to know */
    g->processes = count;
    for (unsigned i = 0; said == 0 && i < count && i < GPUS_PROCESSES; i++) {
        g->pid[i] = (pid_t)list[i].pid;
        g->bytes[i] = list[i].used == ~0ull ? 0 : list[i].used;
    }
    unsigned long long errors = 0;
    if (n->ecc && n->ecc(d, NVML_UNCORRECTED, NVML_SINCE_POWERED, &errors) == 0)
        g->ecc_errors = errors;
    return 0;
}

static void ask_nvml(struct gpus *g)
{
    struct nvml n = {0};
    unsigned count = 0;
    g->error = open_nvml(&n, g);
    if (g->error < 0)
        return;
    int r = n.init();
    if (r == 0)
        r = n.count(&count);
    for (unsigned i = 0; i < count && i < GPUS_MOST && r == 0; i++) {
        r = read_device(&n, i, &g->at[i]);
        g->count = i + 1;
    }
    if (r == 0)
        return;
    g->error = -EIO;
    (void)snprintf(g->text, sizeof(g->text), "NVML: %.100s", n.error(r));
}

static _Noreturn void help(int to)
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
    ask_nvml(&g);
    _exit(write(STDIN_FILENO, &g, sizeof(g)) != (ssize_t)sizeof(g));
}

static int start(pid_t *ret_pid, int *ret_pipe)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        help(ends[1]);
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
    if (read(from, ret_gpus, sizeof(*ret_gpus)) == (ssize_t)sizeof(*ret_gpus))
        return;
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

static void finish(struct gpus_call *c, const struct gpus *g)
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
    finish(ctx, &g);
    return 0;
}

static int on_late(sd_event_source *s, uint64_t usec, void *ctx)
{
    (void)s;
    (void)usec;
    finish(ctx, &late);
    return 0;
}

int gpus_ask(sd_event *event, uint32_t timeout_ms, gpus_fn cb, void *ctx, struct gpus_call **ret)
{
    struct gpus_call *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    int r = start(&c->pid, &c->pipe);
    if (r < 0) {
        free(c);
        return r;
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
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
    int from, r = start(&pid, &from);
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

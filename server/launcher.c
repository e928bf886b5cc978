/* Starts processes of engines (launcher.h). main.c forks it before the server has threads. */
#include "server/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bundle.h"
#include "common/cgroup.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/oom_window.h"
#include "kernels/registry.h"
#include "server/check.h"
#include "server/confine.h"
#include "server/engine_command.h"
#include "server/model/find.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/named.h"
#include "server/options.h"

#define OWN_FD       3 /* what it has besides the standard ones: socket, cgroup, the model's bundle */
#define KEPT_FDS     3
#define CHECK_MOST_S 5
/* Added to the score by which the kernel chooses whom to kill for memory: a fifth of what there is.
 * Requests survive the engine, and not the server. */
#define SCORE_MORE 200
#define SCORE_MOST 1000

struct launching {
    const struct options *o;
    int socket;
    int files;                      /* the memfd that models are read from, -1 = their own files */
    const char *dir;                /* where the model was then; NULL = as the options say */
    pid_t pid;                      /* its own */
    struct ek_apart_memory *memory; /* of the engine there is or was, NULL = none yet, */
    int memory_fd;                  /* and its descriptor */
    pid_t engine;                   /* 0 = none */
    int engine_fd;                  /* its pidfd */
    struct engine_cgroup cgroup;    /* for both of us, where one can be made; else the server's: */
    struct ek_oom_window ooms;      /* what was killed in it */
};

/* ---- the engine ---- */

/* The backend and the folder that this order is for. A plug-in is loaded here, in a child: a driver
 * outlives no fork. */
static int launcher_find(const struct launching *l, const struct ek_apart_order *order,
                         const struct ek_backend **ret_backend, char *ret_dir, size_t size,
                         struct ek_fault *fault)
{
    const struct ek_backend *b = ek_backend_find(order->backend, fault);
    int r = 0;
    if (!b)
        return -ENODEV;
    if (l->dir) /* what a name means may have changed since */
        (void)snprintf(ret_dir, size, "%s", l->dir);
    else
        r = model_find(l->o->model, ret_dir, size, fault);
    if (r == 0)
        r = named_same(ret_dir, order->stamp, fault);
    if (r == 0)
        *ret_backend = b;
    return r;
}

/* The model out of what the server has read, too. */
static int read_model(const struct launching *l, const char *dir, const struct ek_backend *b,
                      struct model **ret_model, struct ek_fault *fault)
{
    struct ek_bundle *files = NULL;
    int r = l->files < 0 ? 0 : ek_bundle_open(l->files, &files);
    if (r == -EBADMSG)
        r = ek_fault_set(fault, "model", "%s: what was read of its files is not there", dir);
    if (r == 0)
        r = named_model(l->o, dir, b, files, ret_model, fault);
    ek_bundle_free(files);
    return r;
}

static int launcher_load(const struct launching *l, const struct ek_backend **ret_b,
                         struct ek_device **ret_device, struct model **ret_model,
                         struct ek_fault *fault)
{
    struct ek_apart_memory *m = l->memory;
    const struct ek_apart_order *order = ek_apart_order(m);
    struct ek_open_params open = {.devices = order->cards ? order->card : NULL,
                                  .threads = order->threads,
                                  .reserve = order->reserve,
                                  .isa = order->isa[0] ? order->isa : NULL,
                                  .forms = &order->forms,
                                  .ranks = order->ranks,
                                  .stages = order->stages,
                                  .stall_us = order->stall_us};
    char dir[4096];
    const struct ek_backend *b = NULL;
    struct model *model = NULL;
    struct ek_device *d = NULL;

    int r = launcher_find(l, order, &open.each, dir, sizeof(dir), fault);
    if (r == 0)
        r = sigbus_watch(dir, EK_EXIT_CONFIG);
    if (r == 0)
        b = ek_apart_inner(&open);
    if (r == 0)
        r = read_model(l, dir, b, &model, fault);
    if (r == 0)
        r = b->open(&open, &d, fault);
    if (r < 0)
        return r;
    model_serve(model, order->plan.max_model_len);
    const struct ek_plan_request q = ek_apart_request(order, &model->graph);
    r = b->load(d, &q, &model->files, ek_apart_progress, m, fault);
    if (r == 0)
        r = named_unchanged(dir, order->stamp, fault);
    if (r < 0)
        return r;
    model_close_files(model);
    sigbus_done();
    *ret_b = b;
    *ret_device = d;
    *ret_model = model;
    return 0;
}

/* A fault of its own, or a signal from outside? That decides whether a request is suspected.
 * A handler has no other way to what it needs. */
static struct ek_apart_memory *g_ending;
static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
static struct sigaction g_before[sizeof(fatal) / sizeof(fatal[0])];

static void on_end(int sig, siginfo_t *info, void *context)
{
    (void)context;
    const bool sent = info->si_code <= 0 && info->si_pid != getpid();

    if (sent)
        ek_apart_sent(g_ending, info->si_pid);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        if (fatal[i] == sig)
            (void)sigaction(sig, &g_before[i], NULL);
    if (info->si_code <= 0)
        (void)raise(sig); /* else the instruction fails again */
}

static void watch_ends(struct ek_apart_memory *m)
{
    struct sigaction a = {.sa_sigaction = on_end, .sa_flags = SA_SIGINFO};

    g_ending = m;
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        (void)sigaction(fatal[i], &a, &g_before[i]); /* without it, it counts as its own */
}

/* The engine is what a command starts. */
static void run_command(const struct launching *l) __attribute__((noreturn));
static void run_command(const struct launching *l)
{
    struct ek_fault fault = {0};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != l->pid)
        _exit(EK_EXIT_INTERNAL);
    (void)close_range(OWN_FD, ~0u, CLOSE_RANGE_CLOEXEC); /* the memory's is made anew, without */
    const int r = engine_command_run(l->o, l->memory_fd, ek_apart_order(l->memory)->isa);
    ek_fault_write(&fault, "engine-command", "--engine-command %.200s cannot be run: %s",
                   l->o->engine_command, ek_strerror(r));
    ek_apart_failed(l->memory, -EBADMSG, &fault);
    _exit(EK_EXIT_CONFIG);
}

/* `mask`: of signals, from when its ends are watched. */
static void run_engine(const struct launching *l, const sigset_t *mask) __attribute__((noreturn));
static void run_engine(const struct launching *l, const sigset_t *mask)
{
    const struct ek_backend *backend = NULL;
    struct ek_device *device = NULL;
    struct model *model = NULL;
    struct confined c = {.off = !confine_is_on(l->o)};
    struct ek_fault fault = {0};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "evenkeel-engine");
    if (getppid() != l->pid)
        _exit(EK_EXIT_INTERNAL); /* the launcher ended before it could take this one along */
    (void)close(l->socket);
    if (l->cgroup.dir >= 0)
        (void)close(l->cgroup.dir);
    watch_ends(l->memory);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    if (confine_engine_itself(l->o))
        confine_files(l->o, &c);
    int r = launcher_load(l, &backend, &device, &model, &fault);
    if (r < 0) {
        ek_apart_failed(l->memory, r, &fault);
        _exit(EK_EXIT_INTERNAL);
    }
    confine_engine_calls(l->o, &c);
    ek_apart_serve(l->memory, l->memory_fd, backend, device, &model->graph);
}

/* ---- the launcher ---- */

static void end_engine(struct launching *l)
{
    int status = 0;
    siginfo_t is = {0};

    if (l->engine == 0)
        return;
    bool stopped = waitid(P_PID, (id_t)l->engine, &is, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
                   is.si_pid == l->engine;
    if (l->o->engine_command)
        engine_command_end(l->engine, l->engine_fd);
    (void)kill(l->engine, SIGKILL);
    while (waitpid(l->engine, &status, 0) < 0 && errno == EINTR)
        ;
    if (l->o->engine_command)
        engine_command_rest(l->engine);
    (void)engine_cgroup_clear(&l->cgroup); /* what it has started, too */
    (void)close(l->engine_fd);
    l->engine = 0;
    if (l->o->engine_command)
        status = engine_command_status(status);
    ek_apart_ended(l->memory, status, stopped,
                   ek_oom_window_kills(&l->ooms, ek_cgroup_oom_kills(l->cgroup.dir)));
}

static void launcher_answer(const struct launching *l, const struct ek_apart_answer *a)
{
    (void)send(l->socket, a, sizeof(*a), MSG_NOSIGNAL); /* if it has ended, so do we */
}

/* What a new engine would do first, in a process of its own: a backend that it looks at, or a disk
 * that hangs, must not be in the launcher's way. */
static void launcher_check(struct launching *l, uint32_t number)
{
    struct ek_apart_answer a = {.number = number};
    int status = 0;

    pid_t pid = l->memory ? fork() : -1;
    if (pid == 0) {
        const struct ek_backend *b = NULL;
        char dir[4096];
        struct model *model = NULL;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        (void)alarm(CHECK_MOST_S);
        if (confine_engine_itself(l->o))
            confine_files(l->o, &(struct confined){.off = !confine_is_on(l->o)});
        if (l->o->engine_command)
            a.code = engine_command_check(&a.fault);
        if (a.code == 0)
            a.code = launcher_find(l, ek_apart_order(l->memory), &b, dir, sizeof(dir), &a.fault);
        (void)sigbus_watch(NULL, CHECK_CUT_SHORT);
        if (a.code == 0)
            a.code = read_model(l, dir, b, &model, &a.fault);
        launcher_answer(l, &a);
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    const bool cut = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == CHECK_CUT_SHORT;
    a.code = pid < 0 ? -EAGAIN : cut ? -EBADMSG : -ETIMEDOUT;
    if (pid < 0)
        ek_fault_write(&a.fault, "engine-process", "No process can be made to look at the files");
    else if (cut)
        ek_fault_write(&a.fault, "engine-process", "A weight file was cut short");
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM)
        ek_fault_write(&a.fault, "engine-process",
                       "The process that looks at the model's files ended with signal %d",
                       WTERMSIG(status));
    else
        ek_fault_write(&a.fault, "engine-process",
                       "The model's files could not be looked at within %d s", CHECK_MOST_S);
    launcher_answer(l, &a);
}

/* A signal that is sent before the engine can tell so waits until it can. */
static pid_t fork_engine(const struct launching *l)
{
    sigset_t held, before;

    (void)sigemptyset(&held);
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        (void)sigaddset(&held, fatal[i]);
    (void)sigprocmask(SIG_BLOCK, &held, &before);
    pid_t pid = fork();
    if (pid == 0 && l->o->engine_command)
        run_command(l);
    if (pid == 0)
        run_engine(l, &before);
    const int code = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return pid;
}

static void start_engine(struct launching *l, int fd, uint32_t number)
{
    struct ek_apart_answer a = {.number = number};
    struct ek_apart_memory *m = NULL;

    end_engine(l);
    a.code = fd < 0 ? fd : ek_apart_map(fd, &m);
    if (a.code < 0) {
        ek_fault_write(&a.fault, "engine-process",
                       "The process that starts engines cannot use the server's memory: %s",
                       a.code == -EPROTO ? "it is of another version or build"
                                         : ek_strerror(a.code));
        if (fd >= 0)
            (void)close(fd);
        launcher_answer(l, &a);
        return;
    }
    ek_apart_unmap(l->memory);
    if (l->memory_fd >= 0)
        (void)close(l->memory_fd);
    l->memory = m;
    l->memory_fd = fd;
    ek_oom_window_begin(&l->ooms, ek_cgroup_oom_kills(l->cgroup.dir), ek_now_us());
    pid_t pid = fork_engine(l);
    l->engine_fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (pid > 0 && l->engine_fd < 0) { /* its end would not be seen */
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    if (pid < 0 || l->engine_fd < 0) {
        ek_fault_write(&a.fault, "engine-process", "No process can be made for the engine: %s",
                       strerror(errno));
        a.code = -EAGAIN;
        launcher_answer(l, &a);
        return;
    }
    l->engine = pid;
    ek_apart_began(m, pid);
    launcher_answer(l, &a);
}

/* One message of the server. False when it has ended. */
static bool take_message(struct launching *l)
{
    struct ek_apart_message order = {0};
    struct iovec part = {.iov_base = &order, .iov_len = sizeof(order)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } extra = {0};
    struct msghdr msg = {.msg_iov = &part,
                         .msg_iovlen = 1,
                         .msg_control = extra.room,
                         .msg_controllen = sizeof(extra.room)};
    int fd;

    if (recvmsg(l->socket, &msg, MSG_CMSG_CLOEXEC) <= 0)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    else
        fd = (msg.msg_flags & MSG_CTRUNC) != 0 ? -EMFILE : -EPROTO; /* no room for it, or none */
    switch ((enum ek_apart_what)order.what) {
    case EK_APART_START: start_engine(l, fd, order.number); break;
    case EK_APART_CHECK: launcher_check(l, order.number); break;
    case EK_APART_END: end_engine(l); break;
    }
    return true;
}

static void run_launcher(struct launching *l) __attribute__((noreturn));
static void run_launcher(struct launching *l)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "evenkeel-launch");
    l->pid = getpid();
    for (;;) {
        struct pollfd p[] = {{.fd = l->socket, .events = POLLIN},
                             {.fd = l->engine ? l->engine_fd : -1, .events = POLLIN}};
        int n = poll(p, 2, l->engine ? (int)(EK_OOM_STEP_US / 1000) : -1);
        if (n < 0)
            continue;
        if (n == 0)
            ek_oom_window_sample(&l->ooms, ek_cgroup_oom_kills(l->cgroup.dir), ek_now_us());
        if (p[1].revents)
            end_engine(l); /* it has ended: this is its status */
        if (p[0].revents && !take_message(l))
            break;
    }
    end_engine(l);
    _exit(0);
}

/* The descriptors that it keeps, from OWN_FD on; all others are closed. */
static bool keep_files(struct launching *l)
{
    int *const files[] = {&l->socket, &l->cgroup.dir, &l->files};
    int n = 0;

    for (int i = 0; i < KEPT_FDS; i++) /* first out of the way of each other */
        if (*files[i] >= 0 && (*files[i] = fcntl(*files[i], F_DUPFD, OWN_FD + KEPT_FDS)) < 0)
            return false;
    for (int i = 0; i < KEPT_FDS; i++) {
        if (*files[i] < 0)
            continue;
        if (dup2(*files[i], OWN_FD + n) < 0)
            return false;
        *files[i] = OWN_FD + n++;
    }
    (void)close_range((unsigned)(OWN_FD + n), ~0u, 0);
    return true;
}

/* Adds to the score, which processes inherit that are forked now. False: it is as it was. */
static bool set_score(int fd, int more, int *ret_before)
{
    char text[16] = {0};
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return false;
    const int score = (int)strtol(text, NULL, 10);
    const int now = score + more < SCORE_MOST ? score + more : SCORE_MOST;
    int len = snprintf(text, sizeof(text), "%d", now);
    *ret_before = score;
    return pwrite(fd, text, (size_t)len, 0) == len;
}

static void restore_score(int fd, int score)
{
    char text[16];
    int len = snprintf(text, sizeof(text), "%d", score);

    if (pwrite(fd, text, (size_t)len, 0) != len) /* one may always go back to what one had */
        ek_log(EK_LOG_WARNING, "cannot set the score of the kernel's OOM killer back to %d", score);
}

int launcher_score_open(void)
{
    return open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
}

int launcher_begin(struct launcher *l, const struct options *o, struct engine_cgroup *group,
                   int score, const struct check *check)
{
    int ends[2], before = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    const bool raised = set_score(score, SCORE_MORE, &before);
    pid_t pid = fork();
    if (pid == 0) {
        struct launching own = {
            .o = o, .socket = ends[1], .engine_fd = -1, .memory_fd = -1, .cgroup = *group};
        own.files = check->model_fd;
        own.dir = check->dir[0] ? check->dir : NULL;
        const int entered = engine_cgroup_enter(group);
        if (entered < 0) {
            ek_log(EK_LOG_WARNING, "The engine's process stays in the server's cgroup: %s",
                   ek_strerror(entered));
            own.cgroup.dir = -1;
        }
        if (!keep_files(&own)) {
            ek_log(EK_LOG_ERR, "The process that starts engines cannot begin: %s", strerror(errno));
            _exit(EK_EXIT_INTERNAL);
        }
        run_launcher(&own);
    }
    int r = pid < 0 ? -errno : 0;
    if (raised)
        restore_score(score, before);
    engine_cgroup_done(group);
    (void)close(ends[1]);
    if (r < 0) {
        (void)close(ends[0]);
        return r;
    }
    *l = (struct launcher){.apart = {.socket = ends[0]},
                           .pid = pid,
                           .most_bytes = group->most_bytes < UINT64_MAX ? group->most_bytes : 0};
    return 0;
}

/*
 * Short programs beside the loop: evenkeel-server --dry-run and --check-config for servers/prove.c,
 * repair.c and reload.c. Two sources follow a program, its output and its pidfd, and a timer; it is
 * finished when its process has ended, and what is in the pipe by then is read.
 */
#include "supervisor/io/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.h"
#include "supervisor/io/child.h"

#define READS_MOST 64u /* at once: a whole pipe, and not for ever */

struct subprocess {
    struct subprocess *next, **link; /* among those that run */
    struct child child;
    int pipe;
    sd_event_source *end_io, *pipe_io, *timer;
    subprocess_fn cb;
    void *ctx;
    size_t len;
    char text[SUBPROCESS_TEXT + 1];
};

static void subprocess_stop(struct subprocess *p)
{
    if (p->link)
        *p->link = p->next;
    if (p->next)
        p->next->link = p->link;
    sd_event_source_disable_unref(p->end_io);
    sd_event_source_disable_unref(p->pipe_io);
    sd_event_source_disable_unref(p->timer);
    if (p->child.pid > 0)
        (void)child_kill(&p->child); /* gone is as good; it is reaped with the orphans */
    child_done(&p->child);
    if (p->pipe >= 0)
        close(p->pipe);
}

void subprocess_cancel(struct subprocess *p)
{
    if (!p)
        return;
    subprocess_stop(p);
    free(p);
}

bool subprocess_owns(const struct subprocesses *all, pid_t pid)
{
    const struct subprocess *p = all->first;
    while (p && p->child.pid != pid)
        p = p->next;
    return p != NULL;
}

/* What is there; the rest of what is too much is read and forgotten, so that it is not held up. */
static void subprocess_read(struct subprocess *p)
{
    char rest[4096];
    for (unsigned i = 0; i < READS_MOST; i++) {
        size_t room = SUBPROCESS_TEXT - p->len;
        ssize_t n = room ? read(p->pipe, p->text + p->len, room < 4096 ? room : 4096)
                         : read(p->pipe, rest, sizeof(rest));
        if (n == 0) /* it is closed at the other end */
            (void)sd_event_source_set_enabled(p->pipe_io, SD_EVENT_OFF);
        if (n <= 0)
            return;
        p->len += room ? (size_t)n : 0;
    }
}

static void subprocess_finish(struct subprocess *p, int status)
{
    struct subprocess_result res = {.status = status, .text = p->text, .len = p->len};
    subprocess_stop(p);
    p->cb(p->ctx, &res);
    free(p);
}

static int on_end(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct subprocess *p = ctx;
    struct child_exit e = {0};
    (void)source;
    (void)fd;
    (void)revents;
    if (child_reap(&p->child, &e) != 1)
        return 0;
    p->child.pid = 0; /* nothing is left to kill */
    subprocess_read(p);
    subprocess_finish(p, !e.known || e.signaled ? -EIO : e.code);
    return 0;
}

static int on_text(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    (void)source;
    (void)fd;
    (void)revents;
    subprocess_read(ctx);
    return 0;
}

static int on_late(sd_event_source *source, uint64_t usec, void *ctx)
{
    (void)source;
    (void)usec;
    subprocess_finish(ctx, -ETIMEDOUT);
    return 0;
}

/* argv and what follows it, in one list to free; the words stay the caller's. */
static char **words_of(const struct subprocess_spec *spec)
{
    size_t n = 0, more = 0;
    while (spec->argv[n])
        n++;
    while (spec->flags && spec->flags[more])
        more++;
    char **words = calloc(n + more + 1, sizeof(*words));
    if (!words)
        return NULL;
    memcpy(words, spec->argv, n * sizeof(*words));
    if (more)
        memcpy(words + n, spec->flags, more * sizeof(*words));
    return words;
}

static int subprocess_begin(struct subprocess *p, sd_event *event,
                            const struct subprocess_spec *spec)
{
    int ends[2];
    char **words = words_of(spec);
    if (!words)
        return -ENOMEM;
    int r = pipe2(ends, O_CLOEXEC) < 0 ? -errno : 0;
    if (r == 0) {
        p->pipe = ends[0];
        struct child_spec child = {.argv = words, .env = spec->env, .out_fd = ends[1]};
        r = fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : child_spawn(&p->child, &child);
        close(ends[1]);
    }
    if (r >= 0)
        r = sd_event_add_io(event, &p->end_io, p->child.pidfd, EPOLLIN, on_end, p);
    if (r >= 0)
        r = sd_event_add_io(event, &p->pipe_io, p->pipe, EPOLLIN, on_text, p);
    if (r >= 0)
        r = sd_event_add_time(event, &p->timer, CLOCK_MONOTONIC,
                              ek_now_us() + spec->timeout_ms * 1000ull, 10000, on_late, p);
    free(words);
    return r < 0 ? r : 0;
}

int subprocess_run(struct subprocesses *all, sd_event *event, const struct subprocess_spec *spec,
                   subprocess_fn cb, void *ctx, struct subprocess **ret)
{
    struct subprocess *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->pipe = -1;
    p->cb = cb;
    p->ctx = ctx;
    child_init(&p->child);
    int r = subprocess_begin(p, event, spec);
    if (r < 0) {
        subprocess_cancel(p);
        return r;
    }
    p->next = all->first;
    p->link = &all->first;
    if (p->next)
        p->next->link = &p->next;
    all->first = p;
    *ret = p;
    return 0;
}

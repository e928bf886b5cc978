#include "supervisor/io/proof.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "supervisor/io/child.h"

#define ANSWER_MOST 16384u
#define MOST_US     (20 * EK_US_PER_S)

struct proof {
    struct child child;
    int out;
    sd_event_source *io, *timer;
    proof_fn cb;
    void *ctx;
};

void proof_cancel(struct proof *p)
{
    struct child_exit e;
    if (!p)
        return;
    sd_event_source_disable_unref(p->io);
    sd_event_source_disable_unref(p->timer);
    if (p->child.pid > 0)
        (void)child_kill(&p->child); /* gone is as good; the loop reaps what is left */
    (void)child_reap(&p->child, &e);
    child_done(&p->child);
    if (p->out >= 0)
        close(p->out);
    free(p);
}

void proof_sentence(const char *text, char *ret_said, unsigned size)
{
    static const char *const marks[] = {"evenkeel-server error: ", "evenkeel-server: "};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        for (const char *at = text; (at = strstr(at, marks[i]));) {
            at += strlen(marks[i]);
            if (!found || at > found)
                found = at;
        }
    }
    found = found ? found : "";
    (void)snprintf(ret_said, size, "%.*s", (int)strcspn(found, "\n"), found);
}

static void finish(struct proof *p, int status)
{
    char text[ANSWER_MOST + 1], said[400];
    ssize_t n = pread(p->out, text, ANSWER_MOST, 0);
    text[n > 0 ? n : 0] = '\0';
    proof_sentence(text, said, sizeof(said));
    proof_fn cb = p->cb;
    void *ctx = p->ctx;
    proof_cancel(p);
    cb(ctx, status, said);
}

void proof_look(struct proof *p)
{
    struct child_exit e = {0};
    if (!p || child_reap(&p->child, &e) != 1)
        return;
    p->child.pid = 0; /* it has ended: nothing is left to kill */
    finish(p, !e.known || e.signaled ? -EIO : e.code);
}

static int on_end(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    (void)source;
    (void)fd;
    (void)revents;
    proof_look(ctx);
    return 0;
}

static int on_late(sd_event_source *source, uint64_t usec, void *ctx)
{
    (void)source;
    (void)usec;
    finish(ctx, -ETIMEDOUT);
    return 0;
}

static int begin(struct proof *p, sd_event *event, char *const *words, char *const *env)
{
    p->out = memfd_create("proof", MFD_CLOEXEC);
    if (p->out < 0)
        return -errno;
    struct child_spec spec = {.argv = words, .env = env, .out_fd = p->out};
    int r = child_spawn(&p->child, &spec);
    if (r >= 0)
        r = sd_event_add_io(event, &p->io, p->child.pidfd, EPOLLIN, on_end, p);
    if (r >= 0)
        r = sd_event_add_time(event, &p->timer, CLOCK_MONOTONIC, ek_now_us() + MOST_US, 10000,
                              on_late, p);
    return r < 0 ? r : 0;
}

int proof_ask(sd_event *event, char *const *argv, char *const *env, const char *flag, proof_fn cb,
              void *ctx, struct proof **ret_proof)
{
    size_t n = 0;
    int r = -ENOMEM;
    while (argv[n])
        n++;
    char **words = calloc(n + 2, sizeof(*words)), *last = strdup(flag);
    struct proof *p = calloc(1, sizeof(*p));
    if (!words || !p || !last)
        goto out;
    memcpy(words, argv, n * sizeof(*words));
    words[n] = last;
    *p = (struct proof){.cb = cb, .ctx = ctx, .out = -1};
    child_init(&p->child);
    r = begin(p, event, words, env);
    if (r < 0) {
        proof_cancel(p);
    } else {
        *ret_proof = p;
    }
    p = NULL;
out:
    free(p);
    free(last);
    free(words);
    return r;
}

#include "supervisor/io/plan_ask.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "supervisor/io/child.h"
#include "supervisor/law/remedy.h"

#define ANSWER_MOST 16384u
#define GIB         1073741824.0

struct plan_ask {
    struct child child;
    int out;
    sd_event_source *io, *timer;
    plan_ask_fn cb;
    void *ctx;
};

bool plan_ask_can(char *const *argv)
{
    const char *base = argv && argv[0] ? strrchr(argv[0], '/') : NULL;
    base = base ? base + 1 : argv && argv[0] ? argv[0] : "";
    return strcmp(base, "evenkeel-server") == 0;
}

static uint32_t count_of(const json_t *root, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(root, key));
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

bool plan_ask_parse(const char *text, size_t len, struct remedy_facts *ret_facts)
{
    const char *begin = memchr(text, '{', len); /* warnings may stand before it */
    json_t *root =
        begin ? json_loadb(begin, len - (size_t)(begin - text), JSON_DISABLE_EOF_CHECK, NULL)
              : NULL;
    json_int_t bytes = json_integer_value(json_object_get(root, "total_bytes"));
    double swap = json_number_value(json_object_get(json_object_get(root, "bytes"), "swap_pool"));
    bool good = bytes > 0;
    if (good)
        *ret_facts = (struct remedy_facts){
            .known = true,
            .fits = true,
            .bytes = (uint64_t)bytes,
            .plans = {.tokens = count_of(root, "max_num_batched_tokens"),
                      .seqs = count_of(root, "max_num_seqs"),
                      .share = json_number_value(json_object_get(root, "utilization")),
                      .swap_gib = swap > 0 ? swap / GIB : 0}};
    json_decref(root);
    return good;
}

void plan_ask_cancel(struct plan_ask *a)
{
    struct child_exit e;
    if (!a)
        return;
    sd_event_source_disable_unref(a->io);
    sd_event_source_disable_unref(a->timer);
    if (a->child.pid > 0)
        (void)child_kill(&a->child); /* gone is as good; the loop reaps what is left */
    (void)child_reap(&a->child, &e);
    child_done(&a->child);
    close(a->out);
    free(a);
}

static void finish(struct plan_ask *a, const struct remedy_facts *facts)
{
    plan_ask_fn cb = a->cb;
    void *ctx = a->ctx;
    plan_ask_cancel(a);
    cb(ctx, facts);
}

void plan_ask_look(struct plan_ask *a)
{
    struct remedy_facts facts = {0};
    struct child_exit e = {0};
    char text[ANSWER_MOST];
    if (child_reap(&a->child, &e) != 1)
        return;
    ssize_t n = pread(a->out, text, sizeof(text), 0);
    bool ended = e.known && !e.signaled;
    a->child.pid = 0; /* it has ended: nothing is left to kill */
    if (ended && e.code == EK_EXIT_OK && n > 0)
        (void)plan_ask_parse(text, (size_t)n, &facts);
    else if (ended && (e.code == EK_EXIT_NO_FIT || e.code == EK_EXIT_USAGE))
        facts.known = true;
    finish(a, &facts);
}

static int on_end(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    (void)source;
    (void)fd;
    (void)revents;
    plan_ask_look(ctx);
    return 0;
}

static int on_late(sd_event_source *source, uint64_t usec, void *ctx)
{
    const struct remedy_facts none = {0};
    (void)source;
    (void)usec;
    finish(ctx, &none);
    return 0;
}

/* Words and two flags; the words stay the caller's. */
static char **with_flags(char *const *argv)
{
    static char dry[] = "--dry-run", json[] = "--json";
    size_t n = 0;
    while (argv[n])
        n++;
    char **out = calloc(n + 3, sizeof(*out));
    if (!out)
        return NULL;
    memcpy(out, argv, n * sizeof(*out));
    out[n] = dry;
    out[n + 1] = json;
    return out;
}

int plan_ask(sd_event *event, char *const *argv, char *const *env, uint32_t timeout_ms,
             plan_ask_fn cb, void *ctx, struct plan_ask **ret_ask)
{
    int r = -ENOMEM;
    char **words = with_flags(argv);
    struct plan_ask *a = calloc(1, sizeof(*a));
    if (!words || !a)
        goto out;
    *a = (struct plan_ask){.cb = cb, .ctx = ctx, .out = memfd_create("plan", MFD_CLOEXEC)};
    child_init(&a->child);
    r = a->out < 0 ? -errno : 0;
    if (r < 0)
        goto out;
    struct child_spec spec = {.argv = words, .env = env, .out_fd = a->out};
    r = child_spawn(&a->child, &spec);
    if (r >= 0)
        r = sd_event_add_io(event, &a->io, a->child.pidfd, EPOLLIN, on_end, a);
    if (r >= 0)
        r = sd_event_add_time(event, &a->timer, CLOCK_MONOTONIC, ek_now_us() + timeout_ms * 1000ull,
                              10000, on_late, a);
    if (r < 0) {
        plan_ask_cancel(a);
        a = NULL;
        goto out;
    }
    *ret_ask = a;
    a = NULL;
    r = 0;
out:
    free(words);
    free(a);
    return r;
}

/*
 * The child that parses a model's files first (check.h). Called by start.c before anything of the
 * model is read.
 */
#include "server/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bundle.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "server/confine.h"
#include "server/model/checksum.h"
#include "server/model/find.h"
#include "server/model/model.h"
#include "server/model/sentence.h"
#include "server/model/sigbus.h"
#include "server/named.h"
#include "server/options.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

#define STAGE_BYTES 128u
#define NO_MEMORY   3 /* exit code of the child */

static const struct check_limits model_limits = {
    .data_bytes = 4ull << 30, .cpu_s = 60, .wall_s = 300};

void check_stage(int fd, const char *what)
{
    char text[STAGE_BYTES] = "";
    (void)snprintf(text, sizeof(text), "%s", what);
    (void)!write(fd, text, sizeof(text)); /* a parent that is gone needs no answer */
}

/* For good: a child that was taken over cannot raise it again. The soft one may be far below what
 * it has to do. */
static void limit(int what, rlim_t most)
{
    struct rlimit l;
    if (getrlimit(what, &l) < 0)
        return;
    const rlim_t spare = what == RLIMIT_CPU; /* between the signal that has a name and SIGKILL */
    if (l.rlim_max == RLIM_INFINITY || l.rlim_max > most + spare)
        l.rlim_max = most + spare;
    l.rlim_cur = l.rlim_max < most ? l.rlim_max : most;
    (void)setrlimit(what, &l);
}

static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* All descriptors but the standard ones and these: sockets of clients and the server's files are no
 * business of a model's. */
static void keep_only(int fds[], size_t count)
{
    unsigned from = STDERR_FILENO + 1;
    qsort(fds, count, sizeof(fds[0]), by_number);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] < (int)from)
            continue;
        if ((unsigned)fds[i] > from)
            (void)close_range(from, (unsigned)fds[i] - 1, 0);
        from = (unsigned)fds[i] + 1;
    }
    (void)close_range(from, ~0u, 0);
}

int check_begin(struct check *c, void (*parse)(const void *ctx, int fd), const void *ctx,
                const struct check_limits *limits)
{
    int ends[2];
    c->pid = 0;
    c->fd = -1;
    c->wall_s = limits->wall_s;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid < 0) {
        int r = -errno;
        (void)close(ends[0]);
        (void)close(ends[1]);
        return r;
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        (void)close(ends[0]);
        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_DATA, limits->data_bytes);
        limit(RLIMIT_CPU, limits->cpu_s);
        limit(RLIMIT_FSIZE, EK_BUNDLE_MOST_BYTES + EK_BUNDLE_FAULT_BYTES);
        parse(ctx, ends[1]);
        _exit(0);
    }
    (void)close(ends[1]);
    c->pid = pid;
    c->fd = ends[0];
    return 0;
}

/* The last whole stage until the pipe ends; false when the time is up. */
static bool read_stages(const struct check *c, char stage[STAGE_BYTES])
{
    uint64_t until = ek_now_us() + c->wall_s * EK_US_PER_S;
    char text[STAGE_BYTES];
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        uint64_t now = ek_now_us();
        if (now >= until)
            return false;
        if (poll(&p, 1, (int)((until - now) / 1000 + 1)) <= 0)
            continue;
        ssize_t n = read(c->fd, text, sizeof(text)); /* writes of that size are one piece */
        if (n <= 0)
            return true;
        if (n == (ssize_t)sizeof(text)) {
            memcpy(stage, text, sizeof(text));
            stage[STAGE_BYTES - 1] = '\0';
        }
    }
}

int check_wait(struct check *c, const char *model, struct ek_fault *fault)
{
    char stage[STAGE_BYTES] = "its files", how[80];
    int status = 0;
    if (c->pid == 0)
        return 0;
    bool ended = read_stages(c, stage);
    (void)kill(
        c->pid,
        SIGKILL); /* one that closed the pipe and stayed, too; one that ends has its status */
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    (void)close(c->fd);
    c->pid = 0;
    if (!ended)
        (void)snprintf(how, sizeof(how), "took longer than %u s", c->wall_s);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
        (void)snprintf(how, sizeof(how), "took too much processor time");
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ)
        (void)snprintf(how, sizeof(how), "wrote more than the limit of file sizes allows");
    else if (WIFSIGNALED(status))
        (void)snprintf(how, sizeof(how), "ended with signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) == NO_MEMORY)
        (void)snprintf(how, sizeof(how), "took too much memory");
    else if (WEXITSTATUS(status) == CHECK_CUT_SHORT)
        return ek_fault_set(fault, "model",
                            "a weight file of %s was cut short while it was read, or could not be "
                            "read (the kernel's log says so then); download the model again and "
                            "start when it is complete",
                            model);
    else
        return 0;
    return ek_fault_set(fault, "model",
                        "%s: reading %s in a process of its own %s: the file is damaged or made "
                        "to do harm; get the model again from where it comes from, or, if you "
                        "trust it, report this",
                        model, stage, how);
}

/* What the child is given. */
struct checked {
    const struct options *o;
    const struct check *c;
};

/* Faults are kept in the bundles, or found again in what is in them. */
static int parse_weights(const struct checked *k, struct ek_bundle *b)
{
    struct model *model = NULL;
    struct checksum_list list = {0};
    enum sentence_pooling pooling;
    int r = named_model(k->o, k->c->dir, NULL, b, &model, NULL);
    if (r != -ENOMEM)
        r = sentence_read(b, k->c->dir, &pooling, NULL);
    if (r != -ENOMEM && strcmp(k->o->weights_checksums, "auto") == 0)
        r = checksum_read(b, k->c->dir, NULL, &list, NULL);
    return r;
}

static void parse_model(const void *ctx, int fd)
{
    const struct checked *k = ctx;
    const char *dir = k->c->dir;
    struct ek_bundle *model = NULL, *text = NULL;
    struct tokenizer *tok = NULL;
    struct chat *chat = NULL;
    keep_only((int[]){fd, k->c->model_fd, k->c->text_fd}, 3);
    (void)sigbus_watch(NULL, CHECK_CUT_SHORT);
    confine_check(k->o, dir);
    check_stage(fd, "config.json and the headers of the safetensors files");
    int r = ek_bundle_begin(k->c->model_fd, &model);
    if (r == 0)
        r = ek_bundle_begin(k->c->text_fd, &text);
    if (r < 0)
        _exit(NO_MEMORY);
    r = parse_weights(k, model);
    check_stage(fd, "tokenizer.json");
    if (r != -ENOMEM)
        r = tokenizer_load_from(text, dir, &tok, NULL);
    check_stage(fd, "the chat template");
    if (r != -ENOMEM)
        r = chat_load_from(text, dir, k->o->chat_template, &chat, NULL);
    if (r == -ENOMEM || ek_bundle_end(model) < 0 || ek_bundle_end(text) < 0)
        _exit(NO_MEMORY);
    _exit(0); /* nothing is freed: it ends */
}

void check_model(struct check *c, const struct options *o)
{
    const struct checked k = {.o = o, .c = c};
    *c = (struct check){.fd = -1, .model_fd = -1, .text_fd = -1};
    if (!confine_is_on(o) || model_find(o->model, c->dir, sizeof(c->dir), NULL) < 0) {
        c->dir[0] = '\0'; /* the loader says what is wrong with it */
        return;
    }
    c->model_fd = ek_bundle_make();
    c->text_fd = ek_bundle_make();
    if (c->model_fd >= 0 && c->text_fd >= 0 && check_begin(c, parse_model, &k, &model_limits) == 0)
        return;
    ek_log(EK_LOG_WARNING, "The model's files are read without a process that parses them first: "
                           "none could be made");
    check_done(c);
    c->dir[0] = '\0';
}

static int take_bundle(int fd, struct ek_bundle **ret_bundle)
{
    int r = ek_bundle_seal(fd);
    if (r == 0)
        r = ek_bundle_open(fd, ret_bundle);
    return r;
}

int check_take(struct check *c, struct ek_fault *fault)
{
    if (c->pid == 0)
        return 0;
    int r = check_wait(c, c->dir, fault);
    if (r < 0)
        return r;
    r = take_bundle(c->model_fd, &c->model);
    if (r == 0)
        r = take_bundle(c->text_fd, &c->text);
    if (r < 0 && r != -ENOMEM)
        r = ek_fault_set(fault, "model",
                         "%s: the process that parsed its files has not handed back what it should "
                         "have: do not use this model until you know why, and report it",
                         c->dir);
    return r;
}

static void bundle_done(int *fd, struct ek_bundle **b)
{
    ek_bundle_free(*b);
    if (*fd >= 0)
        (void)close(*fd);
    *b = NULL;
    *fd = -1;
}

void check_done_texts(struct check *c)
{
    if (c->dir[0])
        bundle_done(&c->text_fd, &c->text);
}

void check_done(struct check *c)
{
    check_done_texts(c);
    if (c->dir[0])
        bundle_done(&c->model_fd, &c->model);
}

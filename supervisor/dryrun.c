/*
 * `evenkeeld --dry-run`, called by main.c instead of the loop. It goes through the servers of the
 * configuration and prints for each the command, the bounds of its limits, and whether program,
 * port, memory, devices and plan are there; the first kind of trouble becomes the exit status. An
 * evenkeeld that runs on the same configuration is not disturbed: what it holds is no trouble.
 */
#include "supervisor/dryrun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "supervisor/config/options.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/child.h"
#include "supervisor/io/gpus.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/io/state.h"
#include "supervisor/law/trial.h"
#include "supervisor/servers/command_line.h"

#define PLAN_MS    60000
#define NVML_MS    5000u
#define NO_PACKAGE 9 /* a python's exit status, not one that it has by itself */

struct dryrun_run {
    const struct config *config;
    struct state state;
    bool others; /* an evenkeeld runs with this run_dir: ports are its servers' */
    int code;
};

static void good(const char *text)
{
    (void)printf("  ok    %s\n", text);
}

static void dryrun_bad(struct dryrun_run *r, int code, const char *text)
{
    (void)printf("  FAIL  %s\n", text);
    r->code = r->code ? r->code : code;
}

/* As a shell would take it. */
static void print_word(const char *word)
{
    if (*word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "@%_+=:,./-") == strlen(word)) {
        (void)printf(" %s", word);
        return;
    }
    (void)printf(" '");
    for (const char *c = word; *c; c++)
        (void)(*c == '\'' ? printf("'\\''") : putchar(*c));
    (void)printf("'");
}

static void print_words(const char *head, char *const *words)
{
    (void)printf("  %s", head);
    for (size_t i = 0; words[i]; i++)
        print_word(words[i]);
    (void)printf("\n");
}

static void print_bounds(enum knob k, uint64_t min, uint64_t max)
{
    uint64_t least = k == KNOB_TOKENS ? KNOB_TOKENS_LEAST : 1;
    char most[32] = "its ceiling";
    if (max)
        (void)snprintf(most, sizeof(most), "%llu", (unsigned long long)max);
    (void)printf("  limit: %s from %llu to %s\n", knob_name(k),
                 (unsigned long long)(min ? min : least), most);
}

static void check_port(struct dryrun_run *r, const struct server_config *s)
{
    char who[80], text[240];
    if (s->port == 0)
        return;
    bool is_free = port_owner_is_none(s->host, (unsigned)s->port, who, sizeof(who));
    (void)snprintf(text, sizeof(text), "port %u of %.60s is %s%s", (unsigned)s->port, s->host,
                   is_free ? "free" : "taken by ", is_free ? "" : who);
    if (is_free)
        good(text);
    else if (r->others)
        (void)printf("  note  %s; an evenkeeld runs with this run_dir\n", text);
    else
        dryrun_bad(r, EK_EXIT_CONFIG, text);
}

static void check_devices(struct dryrun_run *r, const struct server_config *s,
                          const struct remedy_settings *running)
{
    struct gpus g;
    char why[200];
    if (!s->device_set)
        return;
    gpus_wait(NVML_MS, &g);
    double share = running->share > 0 ? running->share : s->dialect->share_default;
    if (g.error == -ENOENT)
        (void)printf("  note  %s: devices are not looked at\n", g.text);
    else if (g.error < 0)
        dryrun_bad(r, EK_EXIT_CONFIG, g.text);
    else if (!gpus_are_free(&g, s->device_set, share, why, sizeof(why)))
        dryrun_bad(r, EK_EXIT_CONFIG, why);
    else
        good("the memory of its devices is free");
}

static void check_host(struct dryrun_run *r, const struct server_config *s)
{
    char text[160];
    uint64_t left = port_owner_memory_bytes();
    if (!s->host_memory_least || left == 0)
        return;
    (void)snprintf(text, sizeof(text), "%.1f GiB of host memory are free, %.1f are needed",
                   (double)left / 1073741824.0, (double)s->host_memory_least / 1073741824.0);
    if (left >= s->host_memory_least)
        good(text);
    else
        dryrun_bad(r, EK_EXIT_CONFIG, text);
}

/* What it wrote, each line behind a margin. */
static void print_output(int fd)
{
    char line[512];
    FILE *f = lseek(fd, 0, SEEK_SET) == 0 ? fdopen(dup(fd), "r") : NULL;
    while (f && fgets(line, sizeof(line), f))
        (void)printf("        %s%s", line, strchr(line, '\n') ? "" : "\n");
    if (f)
        (void)fclose(f); /* read only */
}

static bool is_ours(const struct server_config *s, const char *program)
{
    const char *base = strrchr(program, '/');
    return !s->unit && s->dialect->control_socket &&
           strcmp(base ? base + 1 : program, "evenkeel-server") == 0;
}

/* Status of `words flag` (NULL: without one) with its output in fd; -ETIMEDOUT or another negative
 * errno. */
static int dryrun_ask(char *const *words, char *const *env, char *flag, int fd)
{
    size_t n = 0;
    while (words[n])
        n++;
    char **argv = calloc(n + 2, sizeof(*argv));
    if (!argv)
        return -ENOMEM;
    memcpy(argv, words, n * sizeof(*argv));
    argv[n] = flag;
    struct child child;
    struct child_exit e = {0};
    struct child_spec spec = {.argv = argv, .env = env, .out_fd = fd};
    child_init(&child);
    int r = child_spawn(&child, &spec);
    free(argv);
    if (r < 0)
        return r;
    struct pollfd p = {.fd = child.pidfd, .events = POLLIN};
    r = poll(&p, 1, PLAN_MS) == 1 ? 0 : -ETIMEDOUT;
    if (r < 0) {
        (void)child_kill(&child);
        (void)poll(&p, 1, 1000);
    }
    if (child_reap(&child, &e) == 1 && r == 0)
        r = e.signaled ? -EIO : e.code;
    child_done(&child);
    return r;
}

/* evenkeel-server says itself what it will take; of other programs it is not known. */
static void check_plan(struct dryrun_run *r, const struct server_config *s, struct command_line *w)
{
    static char flag[] = "--dry-run";
    char text[200];
    if (!is_ours(s, w->argv[0]))
        return;
    int fd = memfd_create("plan", MFD_CLOEXEC);
    int status = fd < 0 ? -errno : dryrun_ask(w->argv, w->env, flag, fd);
    if (status == 0)
        good("its memory plan fits:");
    else {
        (void)snprintf(text, sizeof(text), "evenkeel-server --dry-run: %s %d%s",
                       status < 0 ? ek_strerror(status) : "exit status", abs(status),
                       status == EK_EXIT_NO_FIT ? ": its plan does not fit" : "");
        dryrun_bad(r, status == EK_EXIT_NO_FIT ? EK_EXIT_NO_FIT : EK_EXIT_CONFIG, text);
    }
    if (fd >= 0) {
        print_output(fd);
        close(fd);
    }
}

int dryrun_flags(const struct server_config *s)
{
    static char flag[] = "--check-config";
    if (!s->argv || !s->argv[0] || !is_ours(s, s->argv[0]))
        return 0;
    int fd = memfd_create("check", MFD_CLOEXEC);
    int status = fd < 0 ? -errno : dryrun_ask(s->argv, NULL, flag, fd);
    bool refused = status == EK_EXIT_USAGE || status == EK_EXIT_CONFIG;
    if (status != 0)
        (void)printf(refused ? "  FAIL  %s: evenkeel-server does not take its flags:\n"
                             : "  note  %s: its flags were not looked at, evenkeel-server did not "
                               "answer\n",
                     s->name);
    if (refused)
        print_output(fd);
    if (fd >= 0)
        close(fd);
    return refused ? EK_EXIT_CONFIG : 0;
}

static void check_program(struct dryrun_run *r, const struct server_config *s, const char *program)
{
    char path[4096], text[4200];
    int found = s->unit ? 0 : child_find_program(program, path, sizeof(path));
    if (s->unit) {
        (void)printf("  note  systemd runs the unit %s\n", s->unit);
    } else if (found < 0) {
        char what[280];
        command_line_cannot_run(s, program, found, what, sizeof(what));
        (void)snprintf(text, sizeof(text), "%s: %s", what, ek_strerror(found));
        dryrun_bad(r, EK_EXIT_CONFIG, text);
    } else {
        (void)snprintf(text, sizeof(text), "the program is %.4000s", path);
        good(text);
    }
}

/* The package of another engine, in the python that is to run it: which release that is. */
static void check_package(struct dryrun_run *r, const struct server_config *s,
                          struct command_line *w)
{
    char path[4096], code[240], text[400], release[64], dash_c[] = "-c";
    if (!s->dialect->module || s->command.count > 0 || s->unit || !w->argv[1] ||
        strcmp(w->argv[1], "-m") != 0 || child_find_program(w->argv[0], path, sizeof(path)) < 0)
        return;
    (void)snprintf(code, sizeof(code),
                   "import importlib.util as u, importlib.metadata as m, sys\n"
                   "if not u.find_spec('%s'): sys.exit(%d)\n"
                   "print(m.version(m.packages_distributions()['%s'][0]), end='')",
                   s->engine, NO_PACKAGE, s->engine);
    char *ask[] = {w->argv[0], dash_c, code, NULL};
    int fd = memfd_create("package", MFD_CLOEXEC);
    int status = fd < 0 ? -errno : dryrun_ask(ask, w->env, NULL, fd);
    ssize_t n = status == 0 ? pread(fd, release, sizeof(release) - 1, 0) : 0;
    if (n > 0) {
        release[n] = '\0';
        (void)snprintf(text, sizeof(text), "it has %s %s", s->engine, release);
        good(text);
    } else if (status == NO_PACKAGE) {
        (void)snprintf(text, sizeof(text),
                       "%.300s has no package %s: install it there, or name the python that has "
                       "it by `program`",
                       w->argv[0], s->engine);
        dryrun_bad(r, EK_EXIT_CONFIG, text);
    }
    if (fd >= 0)
        close(fd);
}

/* Of another engine, which says itself what it needs of the files: whether there is a directory. */
static void check_model(struct dryrun_run *r, const struct server_config *s)
{
    char text[400];
    struct stat st;
    if (!s->dialect->verb || !s->model || s->command.count > 0 || s->unit)
        return;
    int error = stat(s->model, &st) < 0 ? -errno : 0;
    bool path = strchr("/.~", s->model[0]) != NULL; /* names of the hub begin otherwise */
    if (error == 0) {
        (void)snprintf(text, sizeof(text), "the model is %.300s", s->model);
        good(text);
    } else if (path) {
        (void)snprintf(text, sizeof(text), "model %.300s: %s%s", s->model, ek_strerror(error),
                       s->model[0] == '~' ? "; write the path out, ~ is left as it is" : "");
        dryrun_bad(r, EK_EXIT_CONFIG, text);
    } else {
        (void)printf("  note  there is no directory %.300s here: %s takes it for a name of the "
                     "Hugging Face hub, from its cache or the network\n",
                     s->model, s->engine);
    }
}

static int show_server(struct dryrun_run *r, const struct server_config *s)
{
    struct command_line w;
    struct remedy_settings caps = {0};
    (void)printf("%s (%s, %s, %s)\n", s->name, s->engine, s->mode,
                 s->attach ? "attached" : s->launcher);
    if (s->attach) {
        (void)printf("  would watch %s and start nothing\n", s->attach);
        return 0;
    }
    struct state_server *row = state_of(&r->state, s->name);
    if (row)
        (void)remedy_expire(&row->remedy, ek_wall_us()); /* too old: its own flags */
    if (row && s->policy.mode == MODE_ACT)
        caps = row->remedy.caps;
    int error = command_line_make(s, &(struct trial){0}, &caps, &w);
    if (error < 0)
        return error;
    print_words(s->unit ? "would start:" : "would run:", w.argv);
    if (w.env[0])
        print_words("with in its environment:", w.env);
    if (row && row->remedy.until_us)
        (void)printf("  note  some flags are what running out of memory taught, for %.1f h more\n",
                     (double)(row->remedy.until_us - ek_wall_us()) / 3.6e9);
    print_bounds(KNOB_SEQS, s->seqs_min, s->seqs_max);
    print_bounds(KNOB_TOKENS, s->tokens_min, s->tokens_max);
    check_program(r, s, w.argv[0]);
    check_package(r, s, &w);
    check_model(r, s);
    check_port(r, s);
    check_host(r, s);
    check_devices(r, s, &w.running);
    check_plan(r, s, &w);
    command_line_done(&w);
    return 0;
}

static bool is_running(const struct config *c)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/evenkeeld.lock", c->run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool taken = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0;
    if (fd >= 0)
        close(fd);
    return taken;
}

int dryrun(const struct config *c)
{
    struct dryrun_run r = {.config = c, .others = is_running(c)};
    int error = state_peek(c->state_dir, &r.state);
    if (error < 0)
        (void)printf("note: the state in %s cannot be read: %s\n", c->state_dir,
                     ek_strerror(error));
    error = 0;
    for (size_t i = 0; i < c->count && error == 0; i++)
        error = show_server(&r, &c->servers[i]);
    state_free(&r.state);
    if (error == 0 && fflush(stdout) == 0)
        return r.code;
    (void)fprintf(stderr, "evenkeeld: %s\n", ek_strerror(error ? error : -errno));
    return EK_EXIT_INTERNAL;
}

/*
 * Before a healthy server is drained for a restart: its successor is proved. An evenkeel-server
 * says by a dry run whether its flags, files and plan are good; of other programs it is known
 * whether they are there. A unit of systemd's starts in an environment that is not ours, so nothing
 * is asked. Its port needs no proof: the socket is ours, or its own until it ends.
 *
 * And what that successor would have other than what runs, by what the process was really started
 * with, which /proc tells of an adopted one, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/subprocess.h"
#include "supervisor/law/changes.h"
#include "supervisor/law/dry_answer.h"
#include "supervisor/servers/command_line.h"
#include "supervisor/servers/server_inside.h"

#define CMDLINE_MOST 65536u
#define WORDS_MOST   1024u
#define PROOF_MS     20000u
#define PROGRAM_MOST 4u /* words before the program's own: an interpreter, its flags */

/* One question, with the receiver of its answer: what replaces it has its own. */
struct prove_ask {
    struct server *server;
    struct subprocess *run;
    prove_fn cb;
    struct prove_for whom;
};

/* Its answer, once; the server may ask the next question in it. */
static void prove_finish(struct prove_ask *ask, int error, const char *text)
{
    struct server *s = ask->server;
    if (s->prove.ask == ask)
        s->prove.ask = NULL;
    ask->cb(s, &ask->whom, error, text);
    free(ask);
}

static void on_proof(void *ctx, const struct subprocess_result *res)
{
    struct prove_ask *ask = ctx;
    const char *name = ask->server->config->name;
    char text[560], said[400];
    bool refused = dry_answer_refused(res->status);
    dry_answer_sentence(res->text, said, sizeof(said));
    if (!refused && res->status != 0) /* an older one, or a machine that is short of something */
        ek_log(EK_LOG_WARNING, "%s: its next start could not be tried (%s %d); it goes on", name,
               res->status < 0 ? ek_strerror(res->status) : "exit status", res->status);
    (void)snprintf(text, sizeof(text), "%s goes on as it is, its next start would fail: %s", name,
                   said[0] ? said : "evenkeel-server --dry-run says no");
    prove_finish(ask, refused ? -EBUSY : 0, refused ? text : "");
}

/* 0 and an ask that is under way, or a negative errno. */
static int prove_ask_new(struct server *s, prove_fn cb, const struct prove_for *whom)
{
    static char dry[] = "--dry-run", *flags[] = {dry, NULL};
    struct command_line words;
    struct prove_ask *ask = calloc(1, sizeof(*ask));
    int r = ask ? launch_words(s, &words) : -ENOMEM;
    if (r == 0) {
        *ask = (struct prove_ask){.server = s, .cb = cb, .whom = *whom};
        struct subprocess_spec spec = {
            .argv = words.argv, .flags = flags, .env = words.env, .timeout_ms = PROOF_MS};
        r = subprocess_run(s->with->subprocesses, s->with->event, &spec, on_proof, ask, &ask->run);
        command_line_done(&words);
    }
    if (r < 0)
        free(ask);
    else
        s->prove.ask = ask;
    return r;
}

int prove_next(struct server *s, prove_fn cb, const struct prove_for *whom, char *text, size_t size)
{
    char path[4096];
    char *const *argv = s->config->argv;
    prove_stop(s);
    if (s->unit.unit || !argv)
        return 0;
    int r = child_find_program(argv[0], path, sizeof(path));
    if (r < 0) {
        char what[280];
        command_line_cannot_run(s->config, argv[0], r, what, sizeof(what));
        (void)snprintf(text, size, "%s goes on as it is, its next start would fail: %s: %s",
                       s->config->name, what, ek_strerror(r));
        return -EBUSY;
    }
    /* What cannot be asked is no reason against it. */
    return dry_answer_can(argv) && prove_ask_new(s, cb, whom) == 0;
}

void prove_stop(struct server *s)
{
    struct prove_ask *ask = s->prove.ask;
    if (!ask)
        return;
    subprocess_cancel(ask->run);
    prove_finish(ask, -EBUSY, "something else happened to it meanwhile; try again");
}

void prove_free(struct server *s)
{
    if (!s->prove.ask)
        return;
    subprocess_cancel(s->prove.ask->run);
    free(s->prove.ask);
    s->prove.ask = NULL;
}

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The words of a process, in `text`; NULL when it cannot be read. Free the list alone. */
static char **cmdline_of(pid_t pid, char *text, size_t size)
{
    char path[64];
    size_t n = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, text, size - 1) : -1;
    if (fd >= 0)
        close(fd);
    char **words = len > 0 ? calloc(WORDS_MOST + 1, sizeof(*words)) : NULL;
    if (!words)
        return NULL;
    text[len] = '\0';
    for (char *at = text; at < text + len && n < WORDS_MOST; at += strlen(at) + 1)
        words[n++] = at;
    return words;
}

/* The file of its own that it reads, when that was written after it started; else NULL. */
static const char *newer_file(const struct server *s, char *const *argv)
{
    struct stat st;
    size_t i = 0;
    while (argv[i] && strcmp(argv[i], "--config") != 0)
        i++;
    if (!argv[i] || !argv[i + 1] || stat(argv[i + 1], &st) < 0)
        return NULL;
    double written_s = (double)st.st_mtim.tv_sec + (double)st.st_mtim.tv_nsec * 1e-9;
    double began_s =
        (double)ek_wall_us() * 1e-6 - (double)(ek_now_us() - s->process.started_us) * 1e-6;
    return written_s > began_s ? argv[i + 1] : NULL;
}

bool server_changes(const struct server *s, char *text, size_t size)
{
    struct command_line next;
    char *line = NULL, **now = NULL;
    bool known = false;
    text[0] = '\0';
    if (s->process.child.pid <= 0 || s->process.attached || !s->config->argv)
        return false;
    line = malloc(CMDLINE_MOST);
    if (line)
        now = cmdline_of(s->process.child.pid, line, CMDLINE_MOST);
    known = now && launch_words(s, &next) == 0;
    size_t own = 0;
    while (known && own < PROGRAM_MOST && now[own] &&
           strcmp(base(now[own]), base(next.argv[0])) != 0)
        own++;
    if (known && own < PROGRAM_MOST && now[own])
        (void)changes_text(now + own + 1, next.argv + 1, text, size);
    const char *file = known ? newer_file(s, next.argv) : NULL;
    size_t at = strlen(text);
    if (file)
        (void)snprintf(text + at, size - at, "%sits file %s, written since it started",
                       at ? ", " : "", file);
    if (known)
        command_line_done(&next);
    free(now);
    free(line);
    return text[0] != '\0';
}

void server_look_changes(struct server *s)
{
    (void)server_changes(s, s->prove.needs, sizeof(s->prove.needs));
}

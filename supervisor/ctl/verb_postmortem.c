/*
 * `evenkeelctl postmortem`: what a server did in the minute before it ended, whatever ended it;
 * with
 * --replay what the scheduler makes of that load under the same or other limits, for which it runs
 * evenkeel-bench.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/replay.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/postmortem_show.h"
#include "supervisor/ctl/spawn.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

#define REPLAY_FILE "/tmp/evenkeelctl-replay.XXXXXX"
#define REPLAY_S    120.0 /* a minute of load takes a second */
#define SAID_MOST   65536u

struct postmortem_options {
    char *server, *socket;
    uint64_t end, max_seqs, max_tokens, blocks;
    bool json, replay;
};

#define AT(field) offsetof(struct postmortem_options, field)
static const struct ek_opt table[] = {
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "The server, if it is not named behind the verb and there are several."},
    {.name = "end",
     .alias = "n",
     .type = OPT_UINT,
     .at = AT(end),
     .min = 1,
     .max = 1000,
     .def = "1",
     .help = "Which of the ends that are kept; 1 is the last one."},
    {.name = "json",
     .alias = "j",
     .type = OPT_BOOL,
     .at = AT(json),
     .help = "As evenkeeld keeps it, with the last steps and requests one by one."},
    {.name = "replay",
     .type = OPT_BOOL,
     .at = AT(replay),
     .help = "Run the scheduler over that load again, by evenkeel-bench replay; with:"},
    EK_REPLAY_ROWS("Another limit than the recorded one; 0: the same, here and below."),
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static int postmortem_print(const json_t *answer, const struct postmortem_options *o,
                            const char *name)
{
    struct ek_buf out = {0};
    bool none = !json_is_object(json_object_get(answer, "end"));
    if (o->json) {
        char *text = json_dumps(answer, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
        (void)ek_buf_puts(&out, text ? text : "null");
        (void)ek_buf_puts(&out, "\n");
        free(text);
    } else {
        postmortem_show(answer, name, (uint32_t)o->end, terminal_cols(), &out);
    }
    int code = verb_print_buf(&out);
    return none && o->end > 1 ? CTL_REFUSED : code;
}

/* Its own words go out as they are. */
static int run_replay(const char *path, const struct postmortem_options *o)
{
    char program[PATH_MAX], command[] = "replay", file[sizeof(REPLAY_FILE)];
    char seqs[48], tokens[48], blocks[56];
    struct ek_buf out = {.limit = SAID_MOST}, err = {.limit = SAID_MOST};
    int status = 0;
    if (!spawn_find("evenkeel-bench", program, sizeof(program))) {
        (void)fprintf(stderr,
                      "evenkeelctl: --replay needs evenkeel-bench, and it is neither beside "
                      "evenkeelctl nor in $PATH; install evenkeel-tools\n");
        return CTL_REFUSED;
    }
    (void)snprintf(file, sizeof(file), "%s", path);
    (void)snprintf(seqs, sizeof(seqs), "--max-num-seqs=%u", (unsigned)o->max_seqs);
    (void)snprintf(tokens, sizeof(tokens), "--max-num-batched-tokens=%u", (unsigned)o->max_tokens);
    (void)snprintf(blocks, sizeof(blocks), "--num-gpu-blocks-override=%u", (unsigned)o->blocks);
    char *const argv[] = {program, command, file, seqs, tokens, blocks, NULL};
    int r = spawn_read(argv, REPLAY_S, &out, &err, &status);
    const bool good = r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!good)
        (void)fprintf(stderr, "evenkeelctl: evenkeel-bench could not replay it: %s\n",
                      r < 0      ? ek_strerror(r)
                      : err.data ? err.data
                                 : "it was ended");
    ek_buf_done(&err);
    if (good)
        return verb_print_buf(&out);
    ek_buf_done(&out);
    return CTL_REFUSED;
}

static int postmortem_replay(const json_t *answer, const struct postmortem_options *o)
{
    char path[] = REPLAY_FILE;
    int fd = mkstemp(path);
    int r = fd < 0 ? -1 : json_dumpfd(answer, fd, JSON_COMPACT);
    if (r < 0)
        (void)fprintf(stderr, "evenkeelctl: %s cannot be written: %s\n", path, strerror(errno));
    int code = r < 0 ? CTL_REFUSED : run_replay(path, o);
    if (fd >= 0) {
        (void)close(fd); /* json_dumpfd() has written it */
        (void)unlink(path);
    }
    return code;
}

static int tell_end(struct api *a, const struct postmortem_options *o, const char *name)
{
    char what[40];
    json_t *answer = NULL;
    (void)snprintf(what, sizeof(what), "postmortem?end=%u", (unsigned)o->end); /* fits */
    int r = calls_server(a, "GET", name, what, NULL, &answer);
    int code = r < 0       ? calls_failed(a, r)
               : o->replay ? postmortem_replay(answer, o)
                           : postmortem_print(answer, o, name);
    json_decref(answer);
    return code;
}

static int postmortem_tell(struct api *a, const struct postmortem_options *o, const char *word)
{
    json_t *servers = NULL;
    const char *name = word ? word : o->server;
    int code = CTL_OK;
    if (!name) {
        int r = api_call(a, "GET", "/api/v1/servers", NULL, &servers);
        name = r < 0 ? NULL : calls_only(servers);
        code = r < 0 ? calls_failed(a, r) : name ? CTL_OK : CTL_USAGE;
    }
    if (name)
        code = tell_end(a, o, name);
    json_decref(servers);
    return code;
}

static int postmortem_run(void *options, char *word)
{
    const struct postmortem_options *o = options;
    struct api a;
    int r = api_open(&a, o->socket);
    const int code = r < 0 ? calls_failed(&a, r) : postmortem_tell(&a, o, word);

    api_close(&a);
    return code;
}

const struct verb verb_postmortem = {
    .name = "postmortem",
    .word = "[SERVER]",
    .about = "what a server did in the minute before it ended",
    .help =
        "Prints why a server ended and the last minute before that, second by second, from the\n"
        "flight recorder that evenkeel-server keeps in shared memory: steps, rows, blocks, times,\n"
        "limits, memory. It is there after a kill, too. Of another engine it prints what "
        "evenkeeld\n"
        "saw of its metrics. evenkeeld keeps the last three ends of a server that served, the "
        "last\n"
        "failed start and the last stop that was asked for. Never any text of a request.",
    .options = table,
    .options_bytes = sizeof(struct postmortem_options),
    .run = postmortem_run};

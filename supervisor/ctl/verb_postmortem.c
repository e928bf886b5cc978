/*
 * `evenkeelctl postmortem`: what a server did in the minute before it ended, whatever ended it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/postmortem_show.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

struct options {
    char *server, *socket;
    uint64_t end;
    bool json;
};

#define AT(field) offsetof(struct options, field)
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
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static int print(const json_t *answer, const struct options *o, const char *name)
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

static int tell_end(struct api *a, const struct options *o, const char *name)
{
    char what[40];
    json_t *answer = NULL;
    (void)snprintf(what, sizeof(what), "postmortem?end=%u", (unsigned)o->end); /* fits */
    int r = calls_server(a, "GET", name, what, NULL, &answer);
    int code = r < 0 ? calls_failed(a, r) : print(answer, o, name);
    json_decref(answer);
    return code;
}

static int postmortem_tell(struct api *a, const struct options *o, const char *word)
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

static int postmortem_run(int argc, char **argv)
{
    struct options o = {0};
    struct api a;
    char *word = NULL;
    int code = verb_parse(&verb_postmortem, &o, argc, argv, &word);
    if (code > 0) {
        code--;
    } else {
        int r = api_open(&a, o.socket);
        code = r < 0 ? calls_failed(&a, r) : postmortem_tell(&a, &o, word);
        api_close(&a);
    }
    ek_opt_free(table, &o);
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
    .run = postmortem_run};

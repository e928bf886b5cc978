/*
 * `evenkeelctl events`: the decisions of all servers in one line of time, once or as they come; and
 * `evenkeelctl oom`: those that have to do with memory that ran out. Both read what `explain`
 * reads.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/show.h"
#include "supervisor/ctl/since.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

#define EVENTS_MOST 4096 /* what evenkeeld gives of a server */
#define NEAR_S      5.0  /* from a failure to the decision that tells of it */

struct events_options {
    char *server, *socket;
    bool json, follow;
    uint64_t limit;
    char *since;
    uint64_t since_s; /* since 1970, 0 = as far as it is in memory */
};

#define AT(field) offsetof(struct events_options, field)
static const struct ek_opt events_table[] = {
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "Only those of this server."},
    {.name = "follow",
     .type = OPT_BOOL,
     .at = AT(follow),
     .help = "Go on and print each one as it comes, until interrupted."},
    {.name = "since",
     .type = OPT_STRING,
     .at = AT(since),
     .help = "Those from then on, of evenkeelds before this one, too: 2h, today, yesterday, 14:05, "
             "2026-11-22T14:05; 0 is from the beginning."},
    {.name = "limit",
     .alias = "n",
     .type = OPT_UINT,
     .at = AT(limit),
     .min = 1,
     .max = 4096,
     .def = "50",
     .help = "Most of what has been already; the newest count."},
    {.name = "json",
     .alias = "j",
     .type = OPT_BOOL,
     .at = AT(json),
     .help = "One JSON object a line."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static const struct ek_opt oom_table[] = {
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "Only those of this server."},
    {.name = "since",
     .type = OPT_STRING,
     .at = AT(since),
     .help =
         "Those from then on, of evenkeelds before this one, too: 24h, today, yesterday, 14:05, "
         "2026-11-22T14:05; 0 is from the beginning."},
    {.name = "limit",
     .alias = "n",
     .type = OPT_UINT,
     .at = AT(limit),
     .min = 1,
     .max = 4096,
     .def = "50",
     .help = "Most of them; the newest count."},
    {.name = "json",
     .alias = "j",
     .type = OPT_BOOL,
     .at = AT(json),
     .help = "One JSON object a line."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

static double at_of(const json_t *d)
{
    return json_number_value(json_object_get(d, "at_s"));
}

static int by_time(const void *a, const void *b)
{
    double x = at_of(*(json_t *const *)a), y = at_of(*(json_t *const *)b);
    return x < y ? -1 : x > y;
}

static bool about_memory(const json_t *d)
{
    const char *reason = json_string_value(json_object_get(d, "reason"));
    const char *why = json_string_value(json_object_get(d, "why"));
    return reason && why &&
           (strcmp(reason, "REMEDY") == 0 || strcmp(reason, "OOM_QUESTIONS") == 0 ||
            (strcmp(reason, "CRASH") == 0 && strstr(why, "_OOM") != NULL) ||
            strncmp(reason, "FRAG_", 5) == 0);
}

/* Puts the answers to the four questions, which evenkeeld keeps with its failures, into the
 * decision that tells of them. An evenkeeld before it kept them has only the sentence. */
static void add_questions(struct api *a, const char *name, json_t *decisions)
{
    char path[128];
    json_t *answer = NULL, *d, *f;
    size_t i, k;
    (void)snprintf(path, sizeof(path), "/api/v1/servers/%s/failures", name);
    if (api_call(a, "GET", path, NULL, &answer) < 0)
        return;
    json_array_foreach(decisions, i, d)
    {
        const char *reason = json_string_value(json_object_get(d, "reason"));
        json_t *best = NULL;
        if (!reason || strcmp(reason, "OOM_QUESTIONS") != 0)
            continue;
        json_array_foreach(json_object_get(answer, "failures"), k, f)
        {
            double apart = at_of(d) - at_of(f);
            if (apart >= 0 && apart < NEAR_S && (!best || at_of(f) > at_of(best)))
                best = f;
        }
        if (best) /* without it the sentence tells the same */
            (void)json_object_set(d, "questions", json_object_get(best, "questions"));
    }
    json_decref(answer);
}

/* Appends the decisions of all servers that are later than `after`. */
static int events_collect(struct api *a, const struct events_options *o, bool memory, double after,
                          json_t *list)
{
    json_t *servers = NULL, *server;
    size_t i, k, found = 0;
    int r = api_call(a, "GET", "/api/v1/servers", NULL, &servers);
    if (r < 0)
        return r;
    json_array_foreach(json_object_get(servers, "servers"), i, server)
    {
        const char *name = json_string_value(json_object_get(server, "name"));
        char path[128];
        json_t *answer = NULL, *d;
        if (!name || (o->server && strcmp(name, o->server) != 0))
            continue;
        found++; /* a name is 1 to 32 of a-z, 0-9 and - */
        (void)snprintf(path, sizeof(path), "/api/v1/servers/%s/decisions?limit=%d&since=%llu", name,
                       EVENTS_MOST, (unsigned long long)o->since_s);
        if ((r = api_call(a, "GET", path, NULL, &answer)) < 0)
            break;
        if (memory)
            add_questions(a, name, json_object_get(answer, "decisions"));
        json_array_foreach(json_object_get(answer, "decisions"), k, d)
        {
            if (at_of(d) > after && (!memory || about_memory(d)) && json_array_append(list, d) < 0)
                r = -ENOMEM;
        }
        json_decref(answer);
    }
    json_decref(servers);
    if (r == 0 && o->server && found == 0) {
        (void)snprintf(a->error, sizeof(a->error),
                       "There is no server '%s'; evenkeelctl status lists them.", o->server);
        r = -EBADMSG;
    }
    return r;
}

static int print_one(const json_t *d, bool json)
{
    struct ek_buf out = {0};
    if (json) {
        char *text = json_dumps(d, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
        if (!text)
            return CTL_REFUSED;
        (void)ek_buf_puts(&out, text);
        (void)ek_buf_puts(&out, "\n");
        free(text);
    } else {
        show_event(d, terminal_cols(), &out);
    }
    return verb_print_buf(&out);
}

/* Prints the newest `most` of the list in order of time; *last becomes the time of the last. */
static int print_list(json_t *list, uint64_t most, bool json, double *last)
{
    size_t n = json_array_size(list);
    json_t **order = calloc(n ? n : 1, sizeof(*order));
    int code = order ? CTL_OK : CTL_REFUSED;
    for (size_t i = 0; order && i < n; i++)
        order[i] = json_array_get(list, i);
    if (order)
        qsort(order, n, sizeof(*order), by_time);
    for (size_t i = n > most ? n - (size_t)most : 0; code == CTL_OK && i < n; i++)
        code = print_one(order[i], json);
    if (order && n > 0)
        *last = at_of(order[n - 1]);
    free(order);
    return code;
}

static int events_tell(struct api *a, const struct events_options *o, bool memory)
{
    double last = (double)o->since_s;
    uint64_t most = o->limit;
    for (;;) {
        json_t *list = json_array();
        int r = list ? events_collect(a, o, memory, last, list) : -ENOMEM;
        bool none = r == 0 && json_array_size(list) == 0;
        int code = r < 0 ? calls_failed(a, r) : print_list(list, most, o->json, &last);
        json_decref(list);
        /* While following, an evenkeeld that is being replaced is waited for. */
        if (!o->follow || (code != CTL_OK && code != CTL_UNREACHED)) {
            if (none && !o->json)
                (void)puts(memory ? "No memory ran out, as far as evenkeeld remembers."
                                  : "No decisions.");
            return code;
        }
        most = UINT64_MAX;
        (void)sleep(1);
    }
}

static int events_run(const struct verb *v, struct events_options *o, bool memory)
{
    struct ek_fault fault = {0};
    struct api a;

    if (o->since && since_parse(o->since, time(NULL), &o->since_s, &fault) < 0) {
        (void)fprintf(stderr, "evenkeelctl %s: %s\n", v->name, fault.msg);
        return CTL_USAGE;
    }
    o->since_s = o->since && o->since_s == 0 ? 1 : o->since_s;
    int r = api_open(&a, o->socket);
    const int code = r < 0 ? calls_failed(&a, r) : events_tell(&a, o, memory);
    api_close(&a);
    return code;
}

static int run_events(void *options, char *word)
{
    (void)word; /* it takes none */
    return events_run(&verb_events, options, false);
}

static int run_oom(void *options, char *word)
{
    (void)word; /* it takes none */
    return events_run(&verb_oom, options, true);
}

const struct verb verb_events = {
    .name = "events",
    .about = "what was decided for all servers; --follow goes on",
    .help = "Prints the decisions of all servers, the oldest first, with their numbers. Without\n"
            "--since those are the last 256 of each server.",
    .options = events_table,
    .options_bytes = sizeof(struct events_options),
    .run = run_events};

const struct verb verb_oom = {
    .name = "oom",
    .about = "when memory ran out, and what was done about it",
    .help =
        "Prints each time that memory ran out or wore out: the class with its evidence, the\n"
        "questions start-up, burst, fragmentation, prefix cache in their order with the answers\n"
        "found, the remedy that the next start had, trims and restarts for fragmentation.",
    .options = oom_table,
    .options_bytes = sizeof(struct events_options),
    .run = run_oom};

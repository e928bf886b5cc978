/*
 * evenkeelctl: what an operator types. Each command is one or two calls of evenkeeld's API and some
 * text; nothing is decided here.
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/complete.h"
#include "supervisor/ctl/show.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"
#include "supervisor/ctl/wait.h"

static int print_json(const json_t *answer)
{
    int r =
        json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    return r == 0 && putchar('\n') != EOF && fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
}

/* Names the server that a command means: --server, or the only one there is. Borrowed from answer.
 * NULL after saying why. */
static const char *choose_server(const json_t *answer, const struct ctl_args *args)
{
    if (!args->server)
        return calls_only(answer);
    if (calls_find(answer, args->server))
        return args->server;
    (void)fprintf(stderr,
                  "evenkeelctl: There is no server '%s'; evenkeelctl status lists "
                  "them.\n",
                  args->server);
    return NULL;
}

/* The body of PATCH .../limits. A pin without a value keeps the present one. NULL after noting why
 * in a->error. */
static json_t *limits_body(struct api *a, const struct ctl_args *args, const json_t *server)
{
    json_t *body = json_object();
    (void)snprintf(a->error, sizeof(a->error), "Out of memory.");
    for (int k = 0; body && k < CTL_KNOBS; k++) {
        if (!args->knob[k].named)
            continue;
        const json_t *now = json_object_get(
            json_object_get(json_object_get(server, "limits"), args_knob(k)), "value");
        json_int_t v = args->knob[k].value;
        if (v == 0)
            v = (json_int_t)json_number_value(now);
        if (v <= 0) {
            (void)snprintf(a->error, sizeof(a->error),
                           "The present value of %s is not known; give one: %s=N.", args_knob(k),
                           args_knob(k));
            json_decref(body);
            return NULL;
        }
        (void)json_object_set_new(body, args_knob(k), json_integer(v));
    }
    if (args->command == CMD_LIMITS_UNPIN)
        (void)json_object_set_new(body, "pin", json_false());
    else if (args->command == CMD_LIMITS_PIN || args->pin)
        (void)json_object_set_new(body, "pin", json_true());
    if (args->reason)
        (void)json_object_set_new(body, "reason", json_string(args->reason));
    return body;
}

static int show_answer(const struct ctl_args *args, const json_t *answer, const char *said)
{
    if (args->json)
        return print_json(answer);
    return printf("%s\n", said) < 0 || fflush(stdout) != 0 ? CTL_REFUSED : CTL_OK;
}

static int change_limits(struct api *a, const struct ctl_args *args, const json_t *servers,
                         const char *name)
{
    json_t *answer = NULL, *after = NULL;
    json_t *body = limits_body(a, args, calls_find(servers, name));
    int r = body ? calls_server(a, "PATCH", name, "limits", body, &answer) : -EBADMSG;
    int code = CTL_OK;
    if (r < 0) {
        code = calls_failed(a, r);
    } else if (args->json) {
        code = print_json(answer);
    } else if ((r = api_call(a, "GET", "/api/v1/servers", NULL, &after)) < 0) {
        code = calls_failed(a, r);
    } else {
        struct ek_buf out = {0};
        show_limits(after, name, &out);
        code = verb_print_buf(&out);
    }
    json_decref(body);
    json_decref(answer);
    json_decref(after);
    return code;
}

static int explain(struct api *a, const struct ctl_args *args, const json_t *server,
                   const char *name)
{
    char what[64];
    json_t *answer = NULL;
    (void)snprintf(what, sizeof(what), "decisions?limit=%u&since=%llu", args->count,
                   args->since ? (unsigned long long)(args->since_s ? args->since_s : 1)
                               : 0ull); /* fits */
    int r = calls_server(a, "GET", name, what, NULL, &answer);
    if (r < 0)
        return calls_failed(a, r);
    int code;
    if (args->json) {
        code = print_json(answer);
    } else {
        struct ek_buf out = {0};
        json_t *keys = NULL;
        if (calls_server(a, "GET", name, "keys", NULL, &keys) < 0)
            keys = NULL; /* an older evenkeeld */
        show_decisions(answer, server, keys, terminal_cols(), &out);
        code = verb_print_buf(&out);
        json_decref(keys);
    }
    json_decref(answer);
    return code;
}

static int main_post(struct api *a, const struct ctl_args *args, const json_t *before,
                     const char *what, const char *said)
{
    const char *name = json_string_value(json_object_get(before, "name"));
    struct wait w;
    json_t *answer = NULL;
    wait_begin(&w, args->command, before);
    int r = calls_server(a, "POST", name, what, NULL, &answer);
    if (r < 0)
        return calls_failed(a, r);
    const char *with = json_string_value(json_object_get(answer, "needs_restart"));
    const char *state = json_string_value(json_object_get(before, "state"));
    if (args->command == CMD_RESTART && json_object_get(answer, "restart_waits"))
        said = "Restarting when it is ready.";
    else if (args->command == CMD_RESTART && state &&
             (!strcmp(state, "breaker_open") || !strcmp(state, "backoff") ||
              !strcmp(state, "stopped")))
        said = "Starting it now.";
    char text[560];
    (void)snprintf(text, sizeof(text), "%.*s with %.400s.", (int)strlen(said) - 1, said,
                   with ? with : "");
    bool restarts = args->command == CMD_RESTART || args->command == CMD_ROLL;
    int code = args->wait ? wait_for(a, args, name, &w)
                          : show_answer(args, answer, with && restarts ? text : said);
    json_decref(answer);
    return code;
}

/* The answer with this server alone, NULL = with all. */
static int print_some(const json_t *answer, const char *name)
{
    json_t *some = json_copy((json_t *)(uintptr_t)answer), *list = json_array();
    if (name)
        (void)json_array_append(list, (json_t *)(uintptr_t)calls_find(answer, name));
    if (name)
        (void)json_object_set(some, "servers", list);
    int code = some && list ? print_json(some) : CTL_REFUSED;
    json_decref(list);
    json_decref(some);
    return code;
}

static int show_all(const struct ctl_args *args, const json_t *servers)
{
    if (args->server && !choose_server(servers, args))
        return CTL_REFUSED;
    if (args->json)
        return print_some(servers, args->server);
    struct ek_buf out = {0};
    if (args->command == CMD_STATUS)
        show_status(servers, args->server, terminal_cols(), &out);
    else
        show_limits(servers, args->server, &out);
    return verb_print_buf(&out);
}

static int steer(struct api *a, const struct ctl_args *args, const json_t *servers)
{
    const char *name = choose_server(servers, args);
    if (!name)
        return args->server ? CTL_REFUSED : CTL_USAGE;
    const json_t *server = calls_find(servers, name);
    switch (args->command) {
    case CMD_LIMITS_SET:
    case CMD_LIMITS_PIN:
    case CMD_LIMITS_UNPIN: return change_limits(a, args, servers, name);
    case CMD_DRAIN:
        return main_post(a, args, server, "drain",
                         "Draining: what runs finishes, nothing new is accepted.");
    case CMD_RESUME: return main_post(a, args, server, "resume", "Accepting requests again.");
    case CMD_RESTART:
        return main_post(a, args, server, "restart", "Draining, then starting again.");
    case CMD_ROLL: return main_post(a, args, server, "roll", "Restarting in its turn.");
    case CMD_ENGINE_RESTART:
        return main_post(a, args, server, "engine-restart",
                         "The engine's process is started again.");
    case CMD_ENGINE_RELEASE:
        return main_post(a, args, server, "engine-release", "The engine's process is ended.");
    case CMD_ENGINE_ACQUIRE:
        return main_post(a, args, server, "engine-acquire", "The engine's process is started.");
    case CMD_EXPLAIN: return explain(a, args, server, name);
    case CMD_HELP:
    case CMD_VERSION:
    case CMD_STATUS:
    case CMD_RELOAD:
    case CMD_LIMITS_GET: break;
    }
    return CTL_USAGE;
}

static int main_reload(struct api *a, const struct ctl_args *args)
{
    json_t *answer = NULL;
    int r = api_call(a, "POST", "/api/v1/reload", NULL, &answer);
    if (r < 0)
        return calls_failed(a, r);
    int code = show_answer(args, answer, "The configuration was read again.");
    const json_t *list = json_object_get(answer, "restart"), *one;
    for (size_t i = 0; !args->json && (one = json_array_get(list, i)); i++)
        (void)printf("%s needs a restart for %s: evenkeelctl -s %s restart\n",
                     show_word(one, "server"), show_word(one, "for"), show_word(one, "server"));
    json_decref(answer);
    return code;
}

static int ctl_run(struct api *a, const struct ctl_args *args)
{
    json_t *servers = NULL;
    if (args->command == CMD_RELOAD)
        return main_reload(a, args);
    int r = api_call(a, "GET", "/api/v1/servers", NULL, &servers);
    if (r < 0)
        return calls_failed(a, r);
    bool all = args->command == CMD_STATUS || args->command == CMD_LIMITS_GET;
    int code = all ? show_all(args, servers) : steer(a, args, servers);
    json_decref(servers);
    return code;
}

/* What tools/reference.sh puts into the man page and docs/options.md. */
static int print_options(const char *format)
{
    struct ek_buf out = {0};
    verb_print(ek_opt_format(format), &out);
    return verb_print_buf(&out);
}

/* What tools/reference.sh puts into packaging/completions. */
static int print_completion(const char *shell)
{
    struct ek_buf out = {0};
    if (complete_write(shell, &out) < 0) {
        (void)fprintf(stderr, "evenkeelctl: --print-completion takes bash, zsh or fish.\n");
        ek_buf_done(&out);
        return CTL_USAGE;
    }
    return verb_print_buf(&out);
}

int main(int argc, char **argv)
{
    struct ctl_args args;
    struct ek_fault fault = {0};
    const struct verb *verb = verb_find(&argc, argv);
    if (verb)
        return verb_run(verb, argc - 1, argv + 1);
    if (argc == 3 && strcmp(argv[1], "--print-options") == 0)
        return print_options(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--print-completion") == 0)
        return print_completion(argv[2]);
    if (args_parse(argc, argv, &args, &fault) < 0) {
        (void)fprintf(stderr, "evenkeelctl: %s\n", fault.msg);
        return CTL_USAGE;
    }
    if (args.command == CMD_HELP) {
        struct ek_buf out = {0};
        args_help(args.topic, &out);
        return verb_print_buf(&out);
    }
    if (args.command == CMD_VERSION) {
        (void)puts("evenkeelctl " EK_VERSION);
        return CTL_OK;
    }
    struct api a;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return CTL_REFUSED;
    int r = api_open(&a, args.socket);
    int code = r < 0 ? calls_failed(&a, r) : ctl_run(&a, &args);
    api_close(&a);
    curl_global_cleanup();
    return code;
}

/*
 * Decides while the configuration is read (options_server.c) whether a vLLM gets the companion, and
 * adds the words for it to the command line that evenkeeld will run. Left alone are servers that
 * evenkeeld does not start from a model by itself (command, unit, attach), and flags that the
 * operator has set. Without the package the server starts as it would, and a line says what is
 * missing.
 */
#include "supervisor/config/options_companion.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/options.h"
#include "supervisor/config/options_table.h"
#include "supervisor/config/server_file.h"
#include "supervisor/engines/dialect.h"

#define PYTHON_PATH "PYTHONPATH="
#define API_SOCKET  "api.sock" /* beside the control socket, as the companion expects it */

static bool is_there(const char *dir)
{
    char path[4400];
    int n = snprintf(path, sizeof(path), "%s/evenkeel_vllm/__init__.py", dir);
    return n > 0 && (size_t)n < sizeof(path) && access(path, R_OK) == 0;
}

/* Beside our own binary as it was built, or where it was installed; false when it is nowhere. */
static bool find_companion(char *ret_dir, size_t size)
{
    static const char *const places[] = {"companion", "../lib/evenkeel/companion"};
    char self[4096];
    ssize_t got = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (got <= 0)
        return false;
    self[got] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int n = snprintf(ret_dir, size, "%s/%s", self, places[i]);
        if (n > 0 && (size_t)n < size && is_there(ret_dir))
            return true;
    }
    return false;
}

/* Whether its command line or the file of its --config says so, with any value or this one. */
static bool is_its_own(const struct server_config *s, const char *flag, const char *value)
{
    const char *text;
    for (size_t i = 0; i < s->args.count; i++) {
        if (!ek_opt_is(s->args.at[i], flag, &text))
            continue;
        if (!text && i + 1 < s->args.count)
            text = s->args.at[i + 1];
        if (!value || (text && strcmp(text, value) == 0))
            return true;
    }
    return server_file_has(ek_opt_last(s->args.at, s->args.count, "--config"), flag, value);
}

void companion_choose(struct server_config *s)
{
    const struct dialect *with = dialect_companion(s->dialect);
    char dir[4200];
    if (!with || strcmp(s->companion, "off") == 0)
        return;
    if (s->attach) { /* it was put there by hand, and the configuration says where it answers */
        if (s->control_socket)
            s->dialect = with;
        return;
    }
    if (!s->model || s->command.count > 0 || s->unit || s->next_start)
        return;
    if (is_its_own(s, "--uds", NULL)) {
        ek_log(EK_LOG_INFO,
               "%s: it listens at a socket of its own (uds), which the companion would replace: no "
               "live limits",
               s->name);
        return;
    }
    if (find_companion(dir, sizeof(dir)))
        s->dialect = with;
    else
        ek_log(EK_LOG_INFO,
               "%s: the companion for its engine is not installed (package evenkeel-vllm): no "
               "live limits",
               s->name);
}

static int add_env(struct server_config *s, const char *name, const char *value, const char *tail)
{
    char **more = realloc(s->env.at, (s->env.count + 1) * sizeof(*more));
    char *text = NULL;
    if (!more)
        return -ENOMEM;
    s->env.at = more;
    if (asprintf(&text, "%s%s%s%s", name, value, tail && *tail ? ":" : "", tail ? tail : "") < 0)
        return -ENOMEM;
    s->env.at[s->env.count++] = text;
    return 0;
}

/* Ours first, then what the configuration or evenkeeld's own environment has. */
static int add_python_path(struct server_config *s, const char *dir)
{
    const size_t len = sizeof(PYTHON_PATH) - 1;
    for (size_t i = 0; i < s->env.count; i++) {
        char *text = NULL;
        if (strncmp(s->env.at[i], PYTHON_PATH, len) != 0)
            continue;
        if (asprintf(&text, PYTHON_PATH "%s:%s", dir, s->env.at[i] + len) < 0)
            return -ENOMEM;
        free(s->env.at[i]);
        s->env.at[i] = text;
        return 0;
    }
    return add_env(s, PYTHON_PATH, dir, getenv("PYTHONPATH"));
}

int companion_add(struct server_config *s, size_t *n)
{
    static const char *const flags[][2] = {
        {"--scheduler-cls", "evenkeel_vllm.scheduler.build"},
        {"--middleware", "evenkeel_vllm.front.Admission"},
        {"--worker-extension-cls", "evenkeel_vllm.worker.Worker"}};
    char dir[4200], run[256], socket[280];
    if (!s->dialect->companion || s->attach || !find_companion(dir, sizeof(dir)))
        return 0;
    const char *slash = strrchr(s->control_socket, '/');
    (void)snprintf(run, sizeof(run), "%.*s", slash ? (int)(slash - s->control_socket) : 1,
                   slash ? s->control_socket : ".");
    (void)snprintf(socket, sizeof(socket), "%s/" API_SOCKET, run);
    int r = add_env(s, "EVENKEEL_COMPANION_DIR=", run, NULL);
    if (r == 0)
        r = add_env(s, "EVENKEEL_COMPANION_SUPERVISED=", "1", NULL);
    if (r == 0)
        r = add_python_path(s, dir);
    if (r == 0)
        r = config_append(&s->argv, n, "--uds");
    if (r == 0)
        r = config_append(&s->argv, n, socket);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && r == 0; i++) {
        bool many = i == 1; /* of middleware vLLM takes all that are named */
        if (is_its_own(s, flags[i][0], many ? flags[i][1] : NULL))
            continue;
        r = config_append(&s->argv, n, flags[i][0]);
        if (r == 0)
            r = config_append(&s->argv, n, flags[i][1]);
    }
    return r;
}

/* One server's configuration made whole: its fields checked against each other, then its argv. */
#include "supervisor/config/options_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/options.h"
#include "supervisor/config/options_address.h"
#include "supervisor/config/options_companion.h"
#include "supervisor/config/options_user.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/gpus.h"
#include "supervisor/io/key.h"
#include "supervisor/law/planned.h"

/* StateDirectory= of packaging/systemd/evenkeel-managed@.service.in, without its %i. */
#define MANAGED_STATE "/var/lib/evenkeel-managed"

#define FRAG_HARD 0.85 /* above it fragmentation counts whatever its trend */

int config_append(char ***list, size_t *n, const char *text)
{
    char **more = realloc(*list, (*n + 2) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    *list = more;
    more[*n] = strdup(text);
    if (!more[*n])
        return -ENOMEM;
    more[++*n] = NULL;
    return 0;
}

/* A program beside our own binary, else by PATH. */
static void find_beside(const char *name, char *ret_path, size_t size)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        if (slash) {
            *slash = '\0';
            int len = snprintf(ret_path, size, "%s/%s", self, name);
            if (len > 0 && (size_t)len < size && access(ret_path, X_OK) == 0)
                return;
        }
    }
    (void)snprintf(ret_path, size, "%s", name);
}

static bool has_arg(char *const *argv, const char *flag)
{
    for (size_t i = 0; argv && argv[i]; i++) {
        if (ek_opt_is(argv[i], flag, NULL))
            return true;
    }
    return false;
}

bool config_has_string(const struct ek_strings *list, const char *flag)
{
    for (size_t i = 0; i < list->count; i++) {
        if (ek_opt_is(list->at[i], flag, NULL))
            return true;
    }
    return false;
}

void config_law_defaults(struct server_config *s)
{
    policy_defaults(&s->policy);
    s->raise_step = s->policy.raise_step;
    s->panic_count = s->policy.panic_count;
    s->osc_damp = s->policy.osc_damp;
    s->osc_freeze = s->policy.osc_freeze;
}

void config_policy_finish(struct server_config *s)
{
    s->policy.mode = strcmp(s->mode, "observe") == 0  ? MODE_OBSERVE
                     : strcmp(s->mode, "advise") == 0 ? MODE_ADVISE
                                                      : MODE_ACT;
    s->policy.raise_step = (uint32_t)s->raise_step;
    s->policy.panic_count = (uint32_t)s->panic_count;
    s->policy.osc_damp = (uint32_t)s->osc_damp;
    s->policy.osc_freeze = (uint32_t)s->osc_freeze;
}

/* A foreign engine, of which there is no more than the model and what follows it. */
static int build_foreign(struct server_config *s, size_t *n)
{
    const struct dialect *d = s->dialect;
    const char *program = s->program ? s->program : d->program, *base = strrchr(program, '/');
    bool python = strncmp(base ? base + 1 : program, "python", 6) == 0;
    const char *const by_python[] = {program, "-m", d->module, "--model", s->model, NULL};
    const char *const by_command[] = {program, d->verb, s->model, NULL};
    char port[16], drain[16];
    (void)snprintf(port, sizeof(port), "%u", (unsigned)s->port);
    (void)snprintf(drain, sizeof(drain), "%.0f", s->drain_deadline_s);
    const char *const flags[][2] = {
        {"--host", *s->host ? s->host : "0.0.0.0"}, {"--port", port}, {d->drain_flag, drain}};
    int r = 0;
    for (const char *const *a = python ? by_python : by_command; *a && r == 0; a++)
        r = config_append(&s->argv, n, *a);
    for (size_t i = 0; i < 3 && r == 0; i++) {
        if (!flags[i][0] || config_has_string(&s->args, flags[i][0]))
            continue;
        r = config_append(&s->argv, n, flags[i][0]);
        if (r == 0)
            r = config_append(&s->argv, n, flags[i][1]);
    }
    return r;
}

/* The unit of the packages, which has a folder of its own. */
static void managed_unit(const struct server_config *s, char ret_unit[80])
{
    (void)snprintf(ret_unit, 80, "evenkeel-managed@%.40s.service", s->name);
}

/* Where cached prefixes outlive a planned restart, for the program of this package: another one
 * that speaks as it does need not know the flag, and another unit may have no such folder. */
static int find_prefix_file(const struct config *c, struct server_config *s)
{
    char unit[80];
    managed_unit(s, unit);
    if (s->attach || !s->warm_restart || (s->unit && strcmp(s->unit, unit) != 0))
        return 0;
    return s->unit ? config_default_path(&s->prefix_file, MANAGED_STATE, s->name, "/cache")
                   : config_default_path(&s->prefix_file, c->state_dir, s->name, ".prefixes/cache");
}

static int add_prefix_file(struct server_config *s, size_t *n)
{
    const struct dialect *d = s->dialect;
    const char *slash = s->argv[0] ? strrchr(s->argv[0], '/') : NULL;

    if (!s->prefix_file || !d->prefix_flag || has_arg(s->argv, d->prefix_flag) ||
        (!s->unit && strcmp(slash ? slash + 1 : s->argv[0], d->program) != 0))
        return 0;
    int r = config_append(&s->argv, n, d->prefix_flag);
    return r < 0 ? r : config_append(&s->argv, n, s->prefix_file);
}

static int build_argv(struct server_config *s)
{
    const struct dialect *d = s->dialect;
    size_t n = 0;
    int r = 0;
    bool foreign = d->verb && s->model && s->command.count == 0 && !s->unit;
    for (size_t i = 0; i < s->command.count && r == 0; i++)
        r = config_append(&s->argv, &n, s->command.at[i]);
    if (s->unit) { /* what runs is the unit's; only what follows is passed */
        r = config_append(&s->argv, &n, s->unit);
    } else if (foreign) {
        r = build_foreign(s, &n);
    } else if (s->program && s->command.count == 0) {
        r = config_append(&s->argv, &n, s->program);
    } else if (s->command.count == 0) {
        char path[4200];
        find_beside(d->program, path, sizeof(path));
        r = config_append(&s->argv, &n, path);
    }
    if (r == 0 && s->file && s->command.count == 0) {
        r = config_append(&s->argv, &n, "--config");
        if (r == 0)
            r = config_append(&s->argv, &n, s->file);
    }
    if (r == 0 && foreign)
        r = companion_add(s, &n);
    if (r == 0 && s->model && d->model_flag && !has_arg(s->argv, d->model_flag)) {
        r = config_append(&s->argv, &n, d->model_flag);
        if (r == 0)
            r = config_append(&s->argv, &n, s->model);
    }
    for (size_t i = 0; i < s->args.count && r == 0; i++)
        r = config_append(&s->argv, &n, s->args.at[i]);
    if (r == 0 && d->key_env && key_in_flags(s->api_key_file)) {
        r = config_append(&s->argv, &n, d->flags_flag);
        if (r == 0)
            r = config_append(&s->argv, &n, s->api_key_file);
    }
    if (r == 0 && d->control_flag && !has_arg(s->argv, d->control_flag)) {
        r = config_append(&s->argv, &n, d->control_flag);
        if (r == 0)
            r = config_append(&s->argv, &n, s->control_socket);
        if (r == 0)
            r = config_append(&s->argv, &n, d->listen_flag);
    }
    return r < 0 ? r : add_prefix_file(s, &n);
}

/* Also the words without a companion, for when that cannot be had. */
static int build_both(struct server_config *s)
{
    const struct dialect *with = s->dialect;
    if (!with->companion)
        return build_argv(s);
    s->dialect = dialect_find(s->engine);
    int r = build_argv(s);
    s->plain_argv = s->argv;
    s->plain_env = s->env.count;
    s->argv = NULL;
    s->dialect = with;
    return r < 0 ? r : build_argv(s);
}

static int check_actuator(struct server_config *s, struct ek_fault *fault)
{
    s->next_start = strcmp(s->actuator, "restart") == 0;
    if (s->next_start && (s->dialect->live_limits || s->edge || s->attach))
        return ek_fault_set(
            fault, "actuator",
            "server '%s': actuator restart is for an engine that evenkeeld starts and "
            "whose limits nothing else can change; leave it out%s",
            s->name, s->edge ? ", or edge" : "");
    return 0;
}

static int check_devices(struct server_config *s, struct ek_fault *fault)
{
    if (!s->devices)
        return 0;
    if (s->attach)
        return ek_fault_set(fault, "devices",
                            "server '%s': attach starts nothing: leave out devices", s->name);
    return gpus_parse(s->devices, &s->device_set) == 0
               ? 0
               : ek_fault_set(
                     fault, "devices",
                     "server '%s': devices '%.60s': write numbers from 0 to %d with commas "
                     "between, each once",
                     s->name, s->devices, GPUS_MOST - 1);
}

/* With launcher systemd: which unit, and nothing that is the unit's to say. */
static int check_launcher(struct server_config *s, struct ek_fault *fault)
{
    char name[80];
    managed_unit(s, name);
    if (strcmp(s->launcher, "systemd") != 0)
        return !s->unit ? 0
                        : ek_fault_set(fault, "unit", "server '%s': unit needs launcher: systemd",
                                       s->name);
    if (s->attach || s->command.count > 0)
        return ek_fault_set(fault, "launcher",
                            "server '%s': launcher systemd runs what its unit says; leave out %s",
                            s->name, s->attach ? "attach" : "command");
    if (!s->unit) {
        s->unit = strdup(name);
        if (!s->unit)
            return -ENOMEM;
    }
    size_t len = strlen(s->unit);
    if (len < 9 || len > 120 || strcmp(s->unit + len - 8, ".service") != 0 || strchr(s->unit, '/'))
        return ek_fault_set(fault, "unit", "server '%s': unit '%.60s' is no name of a .service",
                            s->name, s->unit);
    return 0;
}

static int check_foreign(const struct server_config *s, struct ek_fault *fault)
{
    char key[KEY_MOST];
    if (s->dialect->verb && !s->attach && s->command.count == 0 && !s->unit &&
        (!s->model || s->port == 0))
        return ek_fault_set(fault, s->model ? "port" : "command", "server '%s': engine %s needs %s",
                            s->name, s->engine,
                            s->model ? "a `port`: it cannot tell which free one it took"
                                     : "a `model` or a `command`");
    if (s->program && (s->command.count > 0 || s->unit || s->attach))
        return ek_fault_set(fault, "program",
                            "server '%s': program is for a server with a model; leave it out or "
                            "leave out command, unit and attach",
                            s->name);
    if (s->dialect->key_env && key_in_flags(s->api_key_file) &&
        (config_has_string(&s->args, s->dialect->flags_flag) ||
         config_has_string(&s->command, s->dialect->flags_flag)))
        return ek_fault_set(fault, "api_key_file",
                            "server '%s': api_key_file %.200s is passed by %s, which is among its "
                            "arguments already; put the other flags into that file, or leave them "
                            "in `args`",
                            s->name, s->api_key_file, s->dialect->flags_flag);
    int r = key_read(s->api_key_file, key, sizeof(key));
    explicit_bzero(key, sizeof(key));
    if (r == -ENOMEM || r == 0)
        return r;
    return ek_fault_set(fault, "api_key_file", "server '%s': api_key_file %.200s: %s", s->name,
                        s->api_key_file,
                        r == -EBADMSG ? "there is no key in it that can be sent" : ek_strerror(r));
}

/* A flag and its value in one word, as a shell would have parted them: no engine takes
 * that. In a `command` it may be the word of a wrapper that parts it. */
static int check_words(const struct server_config *s, struct ek_fault *fault)
{
    for (size_t i = 0; i < s->args.count; i++) {
        const char *word = s->args.at[i];
        size_t name = strcspn(word, " \t=");
        if (strncmp(word, "--", 2) != 0 || name < 3 || (word[name] != ' ' && word[name] != '\t'))
            continue;
        const char *value = word + name + strspn(word + name, " \t");
        int len = (int)(name < 60 ? name : 60);
        return ek_fault_set(fault, "args",
                            "server '%s': args has '%.80s' as one word; write two, [%.*s, "
                            "\"%.60s\"], or %.*s=%.60s",
                            s->name, word, len, word, value, len, word, value);
    }
    return 0;
}

/* Bounds and hours that contradict one another or themselves. */
static int check_values(struct server_config *s, struct ek_fault *fault)
{
    if ((s->seqs_max && s->seqs_min > s->seqs_max) ||
        (s->tokens_max && s->tokens_min > s->tokens_max))
        return ek_fault_set(fault, "limits", "server '%s': min is above max in `limits`", s->name);
    config_policy_finish(s);
    s->chronic.frag_hard = FRAG_HARD;
    s->chronic.least_bytes = (double)s->frag_least_bytes;
    if (planned_hours(s->restart_hours, 0, NULL) < 0)
        return ek_fault_set(fault, "restart_hours",
                            "server '%s': restart_hours '%.60s': write any, never, or "
                            "HH:MM-HH:MM with commas between, as 02:00-05:30,22:00-24:00",
                            s->name, s->restart_hours);
    int r = address_check(s->host, "host", s->name, fault);
    if (r == 0)
        r = address_edge(s, fault);
    if (r == 0 && s->policy.usage_release >= s->policy.usage_high)
        r = ek_fault_set(fault, "usage_release",
                         "server '%s': usage_release %.2f must be below usage_high %.2f", s->name,
                         s->policy.usage_release, s->policy.usage_high);
    return r;
}

static int find_control_socket(const struct config *c, struct server_config *s,
                               struct ek_fault *fault)
{
    int r = s->attach
                ? 0
                : config_default_path(&s->control_socket, c->run_dir, s->name, "/control.sock");
    if (r == 0 && s->control_socket && strlen(s->control_socket) >= 108)
        r = -ENAMETOOLONG;
    return r != -ENAMETOOLONG ? r
                              : ek_fault_set(fault, "run_dir",
                                             "server '%s': the path of its control socket is "
                                             "longer than 107 bytes; set a shorter run_dir",
                                             s->name);
}

int server_config_finish(const struct config *c, struct server_config *s, struct ek_fault *fault)
{
    s->dialect = dialect_find(s->engine);
    if (!s->dialect)
        return ek_fault_set(fault, "engine", "server '%s': engine '%s' is not known", s->name,
                            s->engine);
    int r = check_launcher(s, fault);
    if (r == 0)
        r = user_check(c, s, fault);
    if (r == 0)
        r = check_devices(s, fault);
    if (r == 0)
        r = check_actuator(s, fault);
    if (r < 0)
        return r;
    if (s->attach) {
        int attached = address_attach(s, fault);
        if (attached < 0)
            return attached;
    } else if (s->command.count == 0 && !s->model && !s->file && !s->unit)
        return ek_fault_set(fault, "model",
                            "server '%s' has neither `model` (a model directory) nor `command`",
                            s->name);
    r = check_foreign(s, fault);
    if (r == 0)
        r = check_words(s, fault);
    if (r == 0)
        companion_choose(s);
    if (r == 0)
        r = address_command(s, fault);
    if (r == 0)
        r = check_values(s, fault);
    if (r == 0)
        r = find_control_socket(c, s, fault);
    if (r == 0)
        r = find_prefix_file(c, s);
    return r < 0 || s->attach ? r : build_both(s);
}

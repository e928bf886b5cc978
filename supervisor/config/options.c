/* evenkeeld's flags and file into struct config: where things lie, and the list of servers. */
#include "supervisor/config/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/config/options_address.h"
#include "supervisor/config/options_table.h"

#define FILE_MOST (1u << 20)

void server_config_done(struct server_config *s)
{
    ek_opt_free(server_table, s);
    for (size_t i = 0; i < s->env.count; i++)
        free(s->env.at[i]);
    free(s->env.at);
    for (size_t i = 0; s->argv && s->argv[i]; i++)
        free(s->argv[i]);
    free(s->argv);
    for (size_t i = 0; s->plain_argv && s->plain_argv[i]; i++)
        free(s->plain_argv[i]);
    free(s->plain_argv);
    free(s->name);
    free(s->file);
    free(s->prefix_file);
    free(s->edge_host);
    *s = (struct server_config){0};
}

void config_free(struct config *c)
{
    for (size_t i = 0; i < c->count; i++)
        server_config_done(&c->servers[i]);
    free(c->servers);
    ek_opt_free(daemon_table, c);
    free(c->file);
    free(c->listen_host);
    *c = (struct config){0};
}

const struct server_config *config_find(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->servers[i].name, name) == 0)
            return &c->servers[i];
    }
    return NULL;
}

static bool valid_name(const char *s)
{
    size_t len = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return len >= 1 && len <= 32 && s[len] == '\0' && s[0] != '-';
}

int config_server_defaults(struct server_config *s)
{
    char program[] = "evenkeeld", *argv[] = {program, NULL};
    struct ek_opt_source src = {.table = server_table, .into = s};
    config_law_defaults(s);
    return ek_opt_parse(&src, 1, argv, NULL, NULL); /* no flags: cannot be refused */
}

int config_add_server(struct config *c, const char *name, struct server_config **ret_server,
                      struct ek_fault *fault)
{
    if (!valid_name(name))
        return ek_fault_set(fault, name, "server name '%.40s': use 1 to 32 of a-z, 0-9 and -",
                            name);
    if (config_find(c, name))
        return ek_fault_set(fault, name, "server '%s' is defined twice", name);
    if (c->count >= CONFIG_SERVERS)
        return ek_fault_set(fault, name,
                            "more than %d servers; run a second evenkeeld with its own "
                            "run_dir",
                            CONFIG_SERVERS);
    struct server_config *more = realloc(c->servers, (c->count + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    c->servers = more;
    struct server_config *s = &more[c->count];
    *s = (struct server_config){0};
    s->name = strdup(name);
    if (!s->name)
        return -ENOMEM;
    c->count++;
    int r = config_server_defaults(s);
    if (r == 0)
        *ret_server = s;
    return r;
}

static int share_nothing(const struct config *c, struct ek_fault *fault)
{
    for (size_t i = 0; i < c->count; i++) {
        for (size_t k = i + 1; k < c->count; k++) {
            if (c->servers[i].port != 0 && c->servers[i].port == c->servers[k].port &&
                strcmp(c->servers[i].host, c->servers[k].host) == 0)
                return ek_fault_set(fault, "port", "servers '%s' and '%s' both have port %u%s",
                                    c->servers[i].name, c->servers[k].name,
                                    (unsigned)c->servers[i].port,
                                    c->servers[i].port == PORT_DEFAULT
                                        ? ", which is also what a file without `port` has"
                                        : "");
            if (c->servers[i].device_set & c->servers[k].device_set)
                return ek_fault_set(fault, "devices",
                                    "servers '%s' and '%s' share a device (%.40s and %.40s)",
                                    c->servers[i].name, c->servers[k].name, c->servers[i].devices,
                                    c->servers[k].devices);
        }
    }
    return 0;
}

int config_default_path(char **field, const char *dir, const char *name, const char *tail)
{
    if (*field)
        return 0;
    char text[512];
    int n = snprintf(text, sizeof(text), "%s%s%s%s", dir, name ? "/" : "", name ? name : "", tail);
    if (n < 0 || (size_t)n >= sizeof(text))
        return -ENAMETOOLONG;
    *field = strdup(text);
    return *field ? 0 : -ENOMEM;
}

/* Where things lie by default: systemd's directories, root's, else the user's own. */
static int default_run_dir(struct config *c)
{
    const char *run = getenv("RUNTIME_DIRECTORY"), *xrun = getenv("XDG_RUNTIME_DIR");
    char uid[24];
    (void)snprintf(uid, sizeof(uid), "%u", (unsigned)getuid());
    if (run && *run && !strchr(run, ':'))
        return config_default_path(&c->run_dir, run, NULL, "");
    if (getuid() == 0)
        return config_default_path(&c->run_dir, "/run/evenkeel", NULL, "");
    if (xrun && *xrun)
        return config_default_path(&c->run_dir, xrun, "evenkeel", "");
    return config_default_path(&c->run_dir, "/tmp/evenkeel-", NULL, uid);
}

static int default_state_dir(struct config *c)
{
    const char *state = getenv("STATE_DIRECTORY"), *home = getenv("HOME");
    if (state && *state && !strchr(state, ':'))
        return config_default_path(&c->state_dir, state, NULL, "");
    if (getuid() == 0)
        return config_default_path(&c->state_dir, "/var/lib/evenkeel", NULL, "");
    if (home && *home)
        return config_default_path(&c->state_dir, home, ".local/state/evenkeel", "");
    return config_default_path(&c->state_dir, c->run_dir, "state", "");
}

static int default_dirs(struct config *c)
{
    int r = default_run_dir(c);
    if (r == 0)
        r = default_state_dir(c);
    if (r == 0)
        r = config_default_path(&c->socket, c->run_dir, "evenkeeld.sock", "");
    if (r == 0)
        r = config_default_path(&c->restart_lease, c->run_dir, "restart.lease", "");
    return r;
}

static int read_config(const char *path, struct ek_buf *out, struct ek_fault *fault)
{
    char part[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ek_fault_set(fault, "config", "--config: cannot open %.300s: %s", path,
                            ek_strerror(-errno));
    out->limit = FILE_MOST;
    ssize_t n;
    while ((n = read(fd, part, sizeof(part))) > 0)
        (void)ek_buf_add(out, part, (size_t)n); /* tested once below */
    int r = n < 0 ? -errno : 0;
    close(fd);
    if (r < 0)
        return ek_fault_set(fault, "config", "--config: cannot read %.300s: %s", path,
                            ek_strerror(r));
    if (!ek_buf_ok(out))
        return ek_fault_set(fault, "config", "--config: %.300s is larger than 1 MiB", path);
    return 0;
}

/* Takes --config (and -c) and its file out of argv; everything from "--" on is the server's. */
static int split_argv(int argc, char **argv, struct config *c, char **ret_mine, int *ret_count,
                      struct ek_fault *fault)
{
    int n = 0, i = 0;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *file = NULL;
        size_t slip = argv[i][0] == '-' ? ek_edit_distance(argv[i], "--config") : 0;
        if (slip > 0 && slip < 3 && strcmp(argv[i], "-c") != 0)
            return ek_fault_set(fault, "config", "unknown option %s; did you mean --config?",
                                argv[i]);
        if (strncmp(argv[i], "--config=", 9) == 0) {
            file = argv[i] + 9;
        } else if (strcmp(argv[i], "--config") == 0 || strcmp(argv[i], "-c") == 0) {
            if (i + 1 >= argc)
                return ek_fault_set(fault, "config", "--config needs a file");
            file = argv[++i];
        }
        if (!file) {
            ret_mine[n++] = argv[i];
            continue;
        }
        free(c->file);
        c->file = strdup(file);
        if (!c->file)
            return -ENOMEM;
    }
    ret_mine[n] = NULL;
    *ret_count = n;
    return i;
}

static int take_flags(struct ek_strings *list, char **from, int count)
{
    if (count <= 0)
        return 0;
    list->at = calloc((size_t)count, sizeof(*list->at));
    if (!list->at)
        return -ENOMEM;
    for (int i = 0; i < count; i++) {
        list->at[i] = strdup(from[i]);
        if (!list->at[i])
            return -ENOMEM;
        list->count++;
    }
    return 0;
}

static int options_replace(char **field, const char *value)
{
    if (!value)
        return 0;
    char *copy = strdup(value);
    if (!copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

static int take_env(struct server_config *s, const struct ek_strings *from, struct ek_fault *fault)
{
    for (size_t i = 0; i < from->count; i++) {
        const char *value = strchr(from->at[i], '=');
        if (!value || value == from->at[i])
            return ek_fault_set(fault, "env", "--env %.60s: write NAME=VALUE", from->at[i]);
    }
    return take_flags(&s->env, from->at, (int)from->count);
}

/* The one server of the command line. */
static int add_flag_server(struct config *c, char **rest, int count, struct ek_fault *fault)
{
    struct server_config *s = NULL;
    int r = config_add_server(c, c->name, &s, fault);
    if (r != 0)
        return r;
    r = options_replace(&s->model, c->model);
    if (r == 0)
        r = options_replace(&s->engine, c->engine);
    if (r == 0)
        r = options_replace(&s->program, c->program);
    if (r == 0)
        r = options_replace(&s->api_key_file, c->api_key_file);
    if (r == 0)
        r = options_replace(&s->companion, c->companion);
    if (r == 0)
        r = options_replace(&s->devices, c->devices);
    if (r == 0)
        r = options_replace(&s->host, c->host);
    if (r == 0)
        r = options_replace(&s->mode, c->mode);
    if (r < 0)
        return r;
    s->port = c->port;
    s->poll_s = c->poll_s;
    r = take_flags(&s->args, rest, count);
    return r == 0 ? take_env(s, &c->env, fault) : r;
}

static int add_servers(struct config *c, const uint8_t *given, char **rest, int rest_count,
                       struct ek_fault *fault)
{
    int r = 0;
    const char *alone = c->model           ? "--model"
                        : c->devices       ? "--devices"
                        : c->env.count > 0 ? "--env"
                        : rest_count > 0   ? "what follows --"
                                           : NULL;
    if (c->file && alone)
        return ek_fault_set(fault, "config",
                            "%s describes a server without a file; leave out --config, or put it "
                            "below `servers:` in %.200s",
                            alone, c->file);
    if (c->file) {
        struct ek_buf text = {0};
        r = read_config(c->file, &text, fault);
        if (r == 0)
            r = config_yaml(c, given, c->file, text.data ? text.data : "", text.len, fault);
        ek_buf_done(&text);
        if (r == 0 && c->servers_dir)
            r = server_files_read(c, fault);
    } else if (c->model) {
        r = add_flag_server(c, rest, rest_count, fault);
    } else if (!c->replay) {
        r = ek_fault_set(fault, "config",
                         "nothing to do: give --config FILE, or --model DIR for "
                         "one server");
    }
    return r;
}

/* --record is for all servers: with several, each has its name at the end of the file's. */
static int record_paths(struct config *c)
{
    int r = 0;
    for (size_t i = 0; c->record && i < c->count && r == 0; i++) {
        char text[512], tail[40] = "";
        if (c->count > 1)
            (void)snprintf(tail, sizeof(tail), ".%s", c->servers[i].name);
        int n = snprintf(text, sizeof(text), "%s%s", c->record, tail);
        r = n < 0 || (size_t)n >= sizeof(text) ? -ENAMETOOLONG
                                               : options_replace(&c->servers[i].record, text);
    }
    return r;
}

/* A flag of the server among those of evenkeeld is the commonest slip. */
static void name_the_servers_part(struct ek_fault *fault)
{
    if (!fault || strncmp(fault->msg, "unknown option ", 15) != 0)
        return;
    size_t len = strlen(fault->msg);
    (void)snprintf(fault->msg + len, sizeof(fault->msg) - len,
                   "%s flags of the server itself follow after --",
                   fault->msg[len - 1] == '?' ? "" : ";");
}

int config_parse(int argc, char **argv, struct config *ret_config, struct ek_fault *fault)
{
    struct config c = {0};
    uint8_t *given = calloc(daemon_rows(), 1);
    char **mine = calloc((size_t)argc + 1, sizeof(*mine));
    int count = 0, r = -ENOMEM;
    if (!given || !mine)
        goto out;
    r = split_argv(argc, argv, &c, mine, &count, fault);
    if (r < 0)
        goto out;
    int rest = r < argc ? r + 1 : argc;
    struct ek_opt_source src = {.table = daemon_table, .into = &c, .given = given};
    r = ek_opt_parse(&src, count, mine, NULL, fault);
    if (r == -EBADMSG)
        name_the_servers_part(fault);
    if (r == 0 && !(c.version || c.help || c.print_metrics || c.print_options || c.print_reasons)) {
        r = add_servers(&c, given, argv + rest, argc - rest, fault);
        if (r == 0)
            r = default_dirs(&c);
        if (r == 0)
            r = address_listen(&c, fault);
        for (size_t i = 0; i < c.count && r == 0; i++)
            r = server_config_finish(&c, &c.servers[i], fault);
        if (r == 0)
            r = address_peers(&c, fault);
        if (r == 0)
            r = record_paths(&c);
        if (r == 0)
            r = share_nothing(&c, fault);
    }
    if (r < 0)
        goto out;
    *ret_config = c;
    c = (struct config){0};
out:
    config_free(&c);
    free(given);
    free(mine);
    return r;
}

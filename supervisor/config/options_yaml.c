/*
 * The configuration file: a walk over libyaml's document tree, which knows line and column of each
 * node. Scalars go through the same rows as flags.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/err.h"
#include "supervisor/config/options_table.h"
#include "supervisor/config/server_file.h"

struct yaml_walk {
    struct config *config;
    const uint8_t *given;
    yaml_document_t doc;
    const char *what;
    yaml_node_t *key; /* the one that is being read */
    struct ek_fault *fault;
};

/* Puts file, line and column before what the row's check said. */
static int at_node(struct yaml_walk *w, const yaml_node_t *n, int r)
{
    if (r != -EBADMSG || !w->fault)
        return r;
    char msg[sizeof(w->fault->msg)];
    memcpy(msg, w->fault->msg, sizeof(msg));
    (void)snprintf(w->fault->msg, sizeof(w->fault->msg), "%.120s, line %zu, column %zu: %.320s",
                   w->what, n->start_mark.line + 1, n->start_mark.column + 1, msg);
    w->fault->at = n->start_mark.line + 1;
    return r;
}

static yaml_node_t *node(struct yaml_walk *w, int id)
{
    return yaml_document_get_node(&w->doc, id);
}

typedef int (*pair_fn)(struct yaml_walk *w, const char *key, yaml_node_t *value, void *ctx);

/* Calls fn for each pair of a map; refuses keys that are no plain text or come twice. */
static int each_pair(struct yaml_walk *w, yaml_node_t *map, const char *name, pair_fn fn, void *ctx)
{
    if (map->type != YAML_MAPPING_NODE)
        return at_node(w, map, ek_fault_set(w->fault, name, "%s must be a map of keys", name));
    yaml_node_pair_t *from = map->data.mapping.pairs.start, *to = map->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = from; p < to; p++) {
        yaml_node_t *k = node(w, p->key), *v = node(w, p->value);
        const char *key = yaml_text(k);
        if (!key || !v)
            return at_node(w, k ? k : map,
                           ek_fault_set(w->fault, name, "a key must be plain text"));
        for (yaml_node_pair_t *q = from; q < p; q++) {
            const char *other = yaml_text(node(w, q->key));
            if (other && strcmp(other, key) == 0)
                return at_node(w, k, ek_fault_set(w->fault, key, "'%.60s' is given twice", key));
        }
        w->key = k;
        int r = fn(w, key, v, ctx);
        if (r < 0)
            return r;
    }
    return 0;
}

static bool is_null(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (n->data.scalar.length == 0 || strcmp((const char *)n->data.scalar.value, "~") == 0 ||
            strcmp((const char *)n->data.scalar.value, "null") == 0);
}

static const struct ek_opt *find_row(const struct ek_opt *table, const char *key)
{
    for (const struct ek_opt *o = table; o->name; o++) {
        size_t i = 0;
        while (o->name[i] && (key[i] == o->name[i] || (o->name[i] == '-' && key[i] == '_')))
            i++;
        if (o->name[i] == '\0' && key[i] == '\0')
            return o;
    }
    return NULL;
}

/* The key as it is written in files. */
static const char *snake(const char *name, char *text, size_t size)
{
    (void)snprintf(text, size, "%s", name);
    for (char *c = text; *c; c++) {
        if (*c == '-')
            *c = '_';
    }
    return text;
}

static int unknown_key(struct yaml_walk *w, const struct ek_opt *table, const char *key)
{
    static const char *const maps[] = {"servers", "limits", "policy", "env"}; /* no rows */
    char text[64] = "";
    size_t least = 3;
    if (strcmp(key, "<<") == 0)
        return at_node(w, w->key,
                       ek_fault_set(w->fault, key,
                                    "merging maps by '<<' is not supported; write the keys out"));
    const struct ek_opt *near = ek_opt_nearest(table, key);
    if (near)
        least = ek_edit_distance(key, snake(near->name, text, sizeof(text)));
    if (least > 3)
        least = 3;
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        if (ek_edit_distance(key, maps[i]) < least)
            (void)snprintf(text, sizeof(text), "%s", maps[i]);
    }
    return at_node(
        w, w->key,
        text[0] ? ek_fault_set(w->fault, key, "unknown key '%.60s'; did you mean '%s'?", key, text)
                : ek_fault_set(w->fault, key, "unknown key '%.60s'", key));
}

/* What an option's row says of its flag is said of the key: "poll_s: 0 is outside 0.05 to 60". */
static int of_key(struct yaml_walk *w, int r)
{
    char *msg = w->fault ? w->fault->msg : NULL;
    if (r >= 0 || !msg || strncmp(msg, "--", 2) != 0)
        return r;
    memmove(msg, msg + 2, strlen(msg + 2) + 1);
    for (char *c = msg; *c && *c != ':' && *c != ' '; c++) {
        if (*c == '-')
            *c = '_';
    }
    return r;
}

static int set_list(struct yaml_walk *w, const struct ek_opt_source *src, const struct ek_opt *o,
                    yaml_node_t *v)
{
    if (v->type != YAML_SEQUENCE_NODE)
        return at_node(w, v,
                       ek_fault_set(w->fault, o->name, "%s must be a list, [one, two]", o->name));
    for (yaml_node_item_t *i = v->data.sequence.items.start; i < v->data.sequence.items.top; i++) {
        yaml_node_t *item = node(w, *i);
        const char *text = yaml_text(item);
        if (!text)
            return at_node(w, item ? item : v,
                           ek_fault_set(w->fault, o->name, "%s: an item must be text", o->name));
        int r = ek_opt_set(src, o->name, text, w->fault);
        if (r < 0)
            return at_node(w, item, of_key(w, r));
    }
    return 0;
}

static int set_row(struct yaml_walk *w, const struct ek_opt_source *src, const struct ek_opt *o,
                   yaml_node_t *v)
{
    if (o->type == OPT_LIST)
        return set_list(w, src, o, v);
    const char *text = yaml_text(v);
    if (!text)
        return at_node(w, v, ek_fault_set(w->fault, o->name, "%s must be one value", o->name));
    return at_node(w, v, of_key(w, ek_opt_set(src, o->name, text, w->fault)));
}

struct yaml_bounds {
    const char *name;
    uint64_t *min, *max;
};

static int on_bound(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    struct yaml_bounds *b = ctx;
    uint64_t *to = strcmp(key, "min") == 0 ? b->min : strcmp(key, "max") == 0 ? b->max : NULL;
    if (!to)
        return at_node(
            w, v, ek_fault_set(w->fault, key, "%s takes min and max, not '%.60s'", b->name, key));
    static const struct ek_opt row[] = {
        {.name = "bound", .type = OPT_UINT, .at = 0, .min = 1, .max = 1e9}, {0}};
    struct ek_opt_source src = {.table = row, .into = to};
    const char *text = yaml_text(v);
    if (!text || ek_opt_set(&src, "bound", text, NULL) < 0)
        return at_node(w, v,
                       ek_fault_set(w->fault, key,
                                    "%s %s must be a whole number from 1 to "
                                    "1000000000",
                                    b->name, key));
    return 0;
}

static int on_limit(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    struct server_config *s = ctx;
    struct yaml_bounds seqs = {knob_name(KNOB_SEQS), &s->seqs_min, &s->seqs_max};
    struct yaml_bounds tokens = {knob_name(KNOB_TOKENS), &s->tokens_min, &s->tokens_max};
    struct yaml_bounds *b = strcmp(key, seqs.name) == 0     ? &seqs
                            : strcmp(key, tokens.name) == 0 ? &tokens
                                                            : NULL;
    if (!b)
        return at_node(w, v,
                       ek_fault_set(w->fault, key, "limits has %s and %s, not '%.60s'", seqs.name,
                                    tokens.name, key));
    return each_pair(w, v, b->name, on_bound, b);
}

static int on_env(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    struct server_config *s = ctx;
    const char *text = yaml_text(v);
    if (!text || !*key || strchr(key, '='))
        return at_node(w, v, ek_fault_set(w->fault, "env", "env: write NAME: value"));
    size_t size = strlen(key) + strlen(text) + 2;
    char **more = realloc(s->env.at, (s->env.count + 2) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    s->env.at = more;
    char *line = malloc(size);
    if (!line)
        return -ENOMEM;
    (void)snprintf(line, size, "%s=%s", key, text);
    more[s->env.count++] = line;
    more[s->env.count] = NULL;
    return 0;
}

static int on_server_key(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    struct server_config *s = ctx;
    if (is_null(v))
        return 0;
    if (strcmp(key, "limits") == 0)
        return each_pair(w, v, "limits", on_limit, s);
    if (strcmp(key, "env") == 0)
        return each_pair(w, v, "env", on_env, s);
    if (strcmp(key, "policy") == 0)
        return each_pair(w, v, "policy", on_server_key, s);
    const struct ek_opt *o = find_row(server_table, key);
    if (!o)
        return unknown_key(w, server_table, key);
    struct ek_opt_source src = {.table = server_table, .into = s};
    return set_row(w, &src, o, v);
}

static int on_server(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    (void)ctx;
    struct server_config *s = NULL;
    int r = config_add_server(w->config, key, &s, w->fault);
    if (r < 0)
        return at_node(w, v, r);
    return each_pair(w, v, key, on_server_key, s);
}

static int on_top_key(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    (void)ctx;
    if (is_null(v))
        return 0;
    if (strcmp(key, "servers") == 0)
        return each_pair(w, v, "servers", on_server, NULL);
    static const char *const keys[] = {
        "listen",  "socket",        "run-dir",       "state-dir",      "servers-dir", "log-level",
        "on-stop", "restart-lease", "restart-peers", "memory-every-s", "kernel-log",  NULL};
    const struct ek_opt *o = find_row(daemon_table, key);
    for (size_t i = 0; o && keys[i]; i++) {
        if (strcmp(keys[i], o->name) != 0)
            continue;
        if (w->given && w->given[o - daemon_table] == 2)
            return 0; /* a flag wins */
        struct ek_opt_source src = {.table = daemon_table, .into = w->config};
        return set_row(w, &src, o, v);
    }
    return unknown_key(w, daemon_table, key);
}

static int open_document(struct yaml_walk *w, yaml_parser_t *parser, const char *text, size_t len)
{
    if (!yaml_parser_initialize(parser))
        return -ENOMEM;
    yaml_parser_set_input_string(parser, (const unsigned char *)text, len);
    if (yaml_parser_load(parser, &w->doc))
        return 0;
    int r = parser->error == YAML_MEMORY_ERROR
                ? -ENOMEM
                : ek_fault_set(w->fault, "", "%.120s, line %zu, column %zu: %s", w->what,
                               parser->problem_mark.line + 1, parser->problem_mark.column + 1,
                               ek_yaml_problem(parser->problem));
    if (r == -EBADMSG && w->fault)
        w->fault->at = parser->problem_mark.line + 1;
    yaml_parser_delete(parser);
    return r;
}

static int close_document(struct yaml_walk *w, yaml_parser_t *parser, int r)
{
    yaml_document_delete(&w->doc);
    yaml_parser_delete(parser);
    return r;
}

int config_yaml(struct config *c, const uint8_t *given, const char *what, const char *text,
                size_t len, struct ek_fault *fault)
{
    struct yaml_walk w = {.config = c, .given = given, .what = what, .fault = fault};
    yaml_parser_t parser;
    int r = open_document(&w, &parser, text, len);
    if (r < 0)
        return r;
    yaml_node_t *root = yaml_document_get_root_node(&w.doc);
    r = root ? each_pair(&w, root, "the file", on_top_key, NULL)
             : ek_fault_set(fault, "", "%.120s: the file is empty", what);
    if (r == 0 && c->count == 0 && !c->servers_dir)
        r = ek_fault_set(fault, "servers", "%.120s: no server below `servers:`, and no servers_dir",
                         what);
    return close_document(&w, &parser, r);
}

/* A server's own file is evenkeel-server's: all that concerns evenkeeld is where it listens. */
static int on_file_key(struct yaml_walk *w, const char *key, yaml_node_t *v, void *ctx)
{
    struct server_config *s = ctx;
    const struct ek_opt *o = find_row(server_table, key);
    const char *text = yaml_text(v);
    if (strcmp(key, "model") == 0)
        s->file_model = text && *text;
    if (strcmp(key, "uds") == 0 && !is_null(v))
        return at_node(w, v,
                       ek_fault_set(w->fault, key,
                                    "evenkeeld listens on TCP for its servers; give host and port "
                                    "instead of uds"));
    if (!o || (strcmp(key, "host") != 0 && strcmp(key, "port") != 0) || is_null(v))
        return 0;
    struct ek_opt_source src = {.table = server_table, .into = s};
    return set_row(w, &src, o, v);
}

int config_server_yaml(struct server_config *s, const char *what, const char *text, size_t len,
                       struct ek_fault *fault)
{
    struct yaml_walk w = {.what = what, .fault = fault};
    yaml_parser_t parser;
    int r = open_document(&w, &parser, text, len);
    if (r < 0)
        return r;
    yaml_node_t *root = yaml_document_get_root_node(&w.doc);
    if (root)
        r = each_pair(&w, root, "the file", on_file_key, s);
    if (r == 0 && !s->file_model && s->command.count == 0)
        r = ek_fault_set(fault, "model", "%.120s: the file names no `model` (a model directory)",
                         what);
    return close_document(&w, &parser, r);
}

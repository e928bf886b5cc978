/*
 * Reading options: the command line, one value, defaults. The YAML file is in options_yaml.c, the
 * texts made from the table in options_write.c.
 */
#include "common/options.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"

#define FILE_MOST (1u << 20) /* bytes of a configuration file */

/* '-' and '_' are the same in a name. */
static bool options_same_name(const char *row, const char *name, size_t len)
{
    if (!row || strlen(row) != len)
        return false;
    for (size_t i = 0; i < len; i++) {
        char a = row[i] == '_' ? '-' : row[i], b = name[i] == '_' ? '-' : name[i];
        if (a != b)
            return false;
    }
    return true;
}

static const struct ek_opt *options_find(const struct ek_opt *table, const char *name, size_t len)
{
    for (const struct ek_opt *o = table; o->name; o++) {
        if (options_same_name(o->name, name, len) || options_same_name(o->alias, name, len))
            return o;
    }
    return NULL;
}

bool ek_opt_is(const char *word, const char *flag, const char **ret_value)
{
    size_t i = 0;
    while (flag[i] && (word[i] == flag[i] || (i > 1 && word[i] == '_' && flag[i] == '-')))
        i++;
    if (flag[i] || (word[i] && word[i] != '='))
        return false;
    if (ret_value)
        *ret_value = word[i] ? word + i + 1 : NULL;
    return true;
}

const char *ek_opt_last(char *const *words, size_t count, const char *flag)
{
    const char *found = NULL, *value;
    for (size_t i = 0; words && i < count && words[i]; i++) {
        if (!ek_opt_is(words[i], flag, &value))
            continue;
        if (!value && i + 1 < count)
            value = words[i + 1];
        found = value ? value : found;
    }
    return found;
}

size_t ek_edit_distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b);
    if (n >= 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t cost = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = cost < least ? cost : least;
        }
    }
    return row[n];
}

const struct ek_opt *ek_opt_nearest(const struct ek_opt *table, const char *name)
{
    const struct ek_opt *best = NULL;
    size_t least = strlen(name) / 2 + 1;
    for (const struct ek_opt *o = table; o->name; o++) {
        size_t d = o->type == OPT_IGNORED ? SIZE_MAX : ek_edit_distance(name, o->name);
        if (d < least) {
            least = d;
            best = o;
        }
    }
    return best;
}

static int refuse_unknown(const struct ek_opt *table, const char *name, size_t len,
                          struct ek_fault *f)
{
    char copy[64];
    (void)snprintf(copy, sizeof(copy), "%.*s", (int)(len < 63 ? len : 63), name);
    const struct ek_opt *near = ek_opt_nearest(table, copy);
    if (near || ek_edit_distance(copy, "help") < 3)
        return ek_fault_set(f, copy, "unknown option --%s; did you mean --%s?", copy,
                            near ? near->name : "help");
    return ek_fault_set(f, copy, "unknown option --%s; --help lists them all", copy);
}

/* A number with an optional suffix of `suffixes` (pairs letter, factor). */
static bool options_read_number(const char *text, double *ret_value, const char **ret_rest)
{
    char *end;
    if (!strchr("+-.0123456789", text[0]) || !text[0] || strpbrk(text, "xXnN")) /* no hex, no nan */
        return false;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno == ERANGE || !isfinite(v))
        return false;
    *ret_value = v;
    *ret_rest = end;
    return true;
}

static bool scale_count(const char *suffix, double *factor)
{
    static const struct {
        char c;
        double f;
    } known[] = {{'k', 1e3},       {'K', 1024.0}, {'m', 1e6},
                 {'M', 1048576.0}, {'g', 1e9},    {'G', 1073741824.0}};
    *factor = 1;
    if (!suffix[0])
        return true;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (suffix[0] == known[i].c && !suffix[1]) {
            *factor = known[i].f;
            return true;
        }
    }
    return false;
}

bool ek_opt_count(const char *text, double *ret_value)
{
    double v, factor;
    const char *rest;
    if (!options_read_number(text, &v, &rest) || !scale_count(rest, &factor))
        return false;
    *ret_value = v * factor;
    return true;
}

static bool scale_time(const char *suffix, double *factor)
{
    static const struct {
        const char *s;
        double f;
    } known[] = {{"", 1},     {"s", 1},    {"ms", 1e-3}, {"m", 60},
                 {"min", 60}, {"h", 3600}, {"d", 86400}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(suffix, known[i].s) == 0) {
            *factor = known[i].f;
            return true;
        }
    }
    return false;
}

static int set_number(const struct ek_opt *o, char *at, const char *text, struct ek_fault *f)
{
    double v, factor = 1;
    const char *rest = NULL;
    bool whole = o->type == OPT_UINT || o->type == OPT_INT;
    if (o->auto_ok && (strcmp(text, "auto") == 0 || strcmp(text, "-1") == 0)) {
        memset(at, 0, 8);
        return 0;
    }
    bool ok = options_read_number(text, &v, &rest);
    if (ok)
        ok = o->type == OPT_SECONDS ? scale_time(rest, &factor)
             : whole                ? scale_count(rest, &factor)
                                    : rest[0] == '\0';
    v = ok ? v * factor : 0;
    if (!ok || (whole && v != floor(v)))
        return ek_fault_set(f, o->name, "--%s: '%.40s' is not a %s", o->name, text,
                            whole                    ? "whole number"
                            : o->type == OPT_SECONDS ? "duration (30, 1.5, 10m, 2h)"
                                                     : "number");
    if (v < o->min || v > o->max)
        return ek_fault_set(f, o->name, "--%s: %.40s is outside %.12g to %.12g%s", o->name, text,
                            o->min, o->max, o->auto_ok ? " (or auto)" : "");
    if (o->type == OPT_UINT)
        *(uint64_t *)(void *)at = (uint64_t)v;
    else if (o->type == OPT_INT)
        *(int64_t *)(void *)at = (int64_t)v;
    else
        *(double *)(void *)at = v;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        if (strcspn(c, "|") == n && strncmp(c, text, n) == 0)
            return true;
    }
    return false;
}

static int set_string(const struct ek_opt *o, char *at, const char *text, struct ek_fault *f)
{
    if (o->type == OPT_CHOICE && !is_choice(o->choices, text))
        return ek_fault_set(f, o->name, "--%s: '%.40s' is none of %s", o->name, text, o->choices);
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    char **slot = (char **)(void *)at;
    free(*slot);
    *slot = copy;
    return 0;
}

static int add_to_list(char *at, const char *text)
{
    struct ek_strings *l = (struct ek_strings *)(void *)at;
    char *copy = strdup(text);
    if (!copy)
        return -ENOMEM;
    char **grown = realloc(l->at, (l->count + 1) * sizeof(*grown));
    if (!grown) {
        free(copy);
        return -ENOMEM;
    }
    l->at = grown;
    l->at[l->count++] = copy;
    return 0;
}

static int set_bool(const struct ek_opt *o, char *at, const char *text, struct ek_fault *f)
{
    static const char *const yes[] = {"true", "yes", "on", "1", "True"};
    static const char *const no[] = {"false", "no", "off", "0", "False"};
    for (size_t i = 0; i < 5; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *(bool *)at = strcmp(text, yes[i]) == 0;
            return 0;
        }
    }
    return ek_fault_set(f, o->name, "--%s: '%.40s' is neither true nor false", o->name, text);
}

static int set_row(const struct ek_opt_source *src, const struct ek_opt *o, const char *text,
                   struct ek_fault *f)
{
    char *at = (char *)src->into + o->at;
    switch (o->type) {
    case OPT_BOOL: return set_bool(o, at, text, f);
    case OPT_UINT:
    case OPT_INT:
    case OPT_FRACTION:
    case OPT_SECONDS: return set_number(o, at, text, f);
    case OPT_STRING:
    case OPT_CHOICE: return set_string(o, at, text, f);
    case OPT_LIST: return add_to_list(at, text);
    case OPT_IGNORED: break;
    }
    if (src->warn) {
        char msg[320];
        (void)snprintf(msg, sizeof(msg), "--%s is accepted and ignored: %s", o->name, o->help);
        src->warn(src->warn_ctx, msg);
    }
    return 0;
}

static void options_mark(const struct ek_opt_source *src, const struct ek_opt *o, uint8_t how)
{
    if (src->given)
        src->given[o - src->table] = how;
}

int ek_opt_set(const struct ek_opt_source *src, const char *name, const char *text,
               struct ek_fault *fault)
{
    const struct ek_opt *o = options_find(src->table, name, strlen(name));
    if (!o)
        return refuse_unknown(src->table, name, strlen(name), fault);
    int r = set_row(src, o, text, fault);
    if (r == 0)
        options_mark(src, o, 1);
    return r;
}

static bool takes_value(const struct ek_opt *o)
{
    if (o->type == OPT_IGNORED)
        return !(o->choices && strcmp(o->choices, "flag") == 0);
    return o->type != OPT_BOOL;
}

/* One flag at argv[*i]; moves *i past its value. */
static int parse_flag(const struct ek_opt_source *src, int argc, char **argv, int *i,
                      struct ek_fault *f)
{
    const char *name = argv[*i] + (argv[*i][1] == '-' ? 2 : 1), *value = strchr(name, '=');
    size_t len = value ? (size_t)(value - name) : strlen(name);
    const struct ek_opt *o = options_find(src->table, name, len);
    const char *text = "true";
    if (!o && len > 3 && strncmp(name, "no-", 3) == 0) {
        o = options_find(src->table, name + 3, len - 3);
        if (o && (o->type == OPT_BOOL || (o->type == OPT_IGNORED && !takes_value(o))))
            text = "false";
        else
            o = NULL;
    }
    if (!o)
        return refuse_unknown(src->table, name, len, f);
    if (value)
        text = value + 1;
    else if (takes_value(o)) {
        if (*i + 1 >= argc)
            return ek_fault_set(f, o->name, "--%s needs a value", o->name);
        text = argv[++*i];
    }
    int r = set_row(src, o, text, f);
    /* as argparse does: `--api-key A B` are two */
    while (r == 0 && !value && o->type == OPT_LIST && *i + 1 < argc && argv[*i + 1][0] != '-')
        r = set_row(src, o, argv[++*i], f);
    if (r == 0)
        options_mark(src, o, 2);
    return r;
}

static int set_defaults(const struct ek_opt_source *src, struct ek_fault *f)
{
    for (const struct ek_opt *o = src->table; o->name; o++) {
        if (!o->def || o->type == OPT_IGNORED)
            continue;
        int r = set_row(src, o, o->def, f);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The file must be read before the flags, which win over it: look for it ahead. */
static int apply_file(const struct ek_opt_source *src, int argc, char **argv, struct ek_fault *f)
{
    const char *path = NULL;
    if (!options_find(src->table, "config", 6))
        return 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0)
            break;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            path = argv[i + 1];
        else if (strncmp(argv[i], "--config=", 9) == 0)
            path = argv[i] + 9;
    }
    if (!path)
        return 0;
    struct ek_buf text = {0};
    int r = ek_file_read("--config", path, FILE_MOST, &text, f);
    if (r == 0)
        r = ek_opt_yaml(src, path, text.data ? text.data : "", text.len, f);
    ek_buf_done(&text);
    return r;
}

int ek_opt_parse(const struct ek_opt_source *src, int argc, char **argv, char **positional,
                 struct ek_fault *fault)
{
    int r = set_defaults(src, fault);
    if (r == 0)
        r = apply_file(src, argc, argv, fault);
    for (int i = 1; i < argc && r == 0; i++) {
        if (strcmp(argv[i], "--") == 0)
            break;
        if (argv[i][0] == '-' && argv[i][1])
            r = parse_flag(src, argc, argv, &i, fault);
        else if (positional && !*positional)
            *positional = argv[i];
        else
            r = ek_fault_set(fault, "",
                             "unexpected argument '%.80s'%s%.80s%s; options begin with --", argv[i],
                             positional ? " behind '" : "", positional ? *positional : "",
                             positional ? "'" : "");
    }
    return r;
}

void ek_opt_free(const struct ek_opt *table, void *into)
{
    for (const struct ek_opt *o = table; o->name; o++) {
        char *at = (char *)into + o->at;
        if (o->type == OPT_STRING || o->type == OPT_CHOICE) {
            char **s = (char **)(void *)at;
            free(*s);
            *s = NULL;
        } else if (o->type == OPT_LIST) {
            struct ek_strings *l = (struct ek_strings *)(void *)at;
            for (size_t i = 0; i < l->count; i++)
                free(l->at[i]);
            free(l->at);
            *l = (struct ek_strings){0};
        }
    }
}

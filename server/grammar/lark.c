/*
 * Line by line: a definition, an import, what is ignored. Rules and terminals may be used before
 * they are written. In a rule each terminal takes along what is ignored behind it.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/err.h"
#include "server/grammar/lark_inside.h"
#include "server/grammar/left.h"
#include "server/grammar/table.h"

int lark_refuse(struct lark *r, size_t at, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return expr_refuse_line(r->s, at < r->len ? at : r->len, what, r->fault);
}

bool lark_accept(struct lark *r, const char *text)
{
    size_t n = strlen(text);
    if (r->len - r->at < n || memcmp(r->s + r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

bool lark_looking_at(const struct lark *r, const char *text)
{
    size_t n = strlen(text);
    return r->len - r->at >= n && memcmp(r->s + r->at, text, n) == 0;
}

/* Over blanks and comments, and over ends of lines where `lines`. */
static void lark_skip(struct lark *r, bool lines)
{
    while (r->at < r->len) {
        char c = r->s[r->at];
        if (c == '#' || lark_looking_at(r, "//")) {
            while (r->at < r->len && r->s[r->at] != '\n')
                r->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
            r->at++;
        } else {
            return;
        }
    }
}

void lark_blank(struct lark *r)
{
    lark_skip(r, r->depth > 0);
    size_t was = r->at;
    lark_skip(r, true);
    if (!lark_looking_at(r, "|")) {
        (void)ek_work_pay(r->set->work, (r->at - was) / 4); /* it may be read again */
        r->at = was;
    }
}

static bool is_letter(char c, bool *ret_capital)
{
    *ret_capital = c >= 'A' && c <= 'Z';
    return *ret_capital || (c >= 'a' && c <= 'z');
}

/* Of a rule or a terminal: which, its first letter tells. 0 = there is none. */
size_t lark_name_length(const struct lark *r)
{
    size_t n = 0, at = r->at;
    bool capital, terminal = false;

    while (at + n < r->len && r->s[at + n] == '_')
        n++;
    if (at + n >= r->len || !is_letter(r->s[at + n], &terminal))
        return 0;
    for (; at + n < r->len; n++) {
        char c = r->s[at + n];
        if (is_letter(c, &capital) ? capital != terminal : !(c == '_' || (c >= '0' && c <= '9')))
            break;
    }
    return n;
}

static bool is_terminal(const char *name)
{
    while (*name == '_')
        name++;
    return *name >= 'A' && *name <= 'Z';
}

int lark_find(struct lark *r, const char *name, size_t len, struct lark_name **ret_name)
{
    char text[EXPR_NAME_MOST];
    uint32_t at = 2166136261u; /* FNV-1a */

    if (len >= sizeof(text))
        return lark_refuse(r, r->at, "a name has more than 39 characters");
    memcpy(text, name, len);
    text[len] = '\0';
    for (size_t i = 0; i < len; i++)
        at = (at ^ (uint8_t)text[i]) * 16777619u;
    for (; r->slot[at & (LARK_SLOTS - 1)] != 0; at++) {
        (void)ek_work_pay(r->set->work, 1); /* names may be chosen to collide; expr_ok() tells */
        *ret_name = &r->name[r->slot[at & (LARK_SLOTS - 1)] - 1u];
        if (strcmp(r->set->rule[(*ret_name)->rule].name, text) == 0)
            return 0;
    }
    if (r->names >= LARK_NAMES)
        return lark_refuse(r, r->at, "there are more than %u rules and terminals", LARK_NAMES);
    *ret_name = &r->name[r->names];
    **ret_name = (struct lark_name){
        .rule = expr_rule_new(r->set, text), .used = r->at, .terminal = is_terminal(text)};
    if (expr_ok(r->set))
        r->slot[at & (LARK_SLOTS - 1)] = (uint16_t)++r->names;
    return 0;
}

/* Nothing but an end of line may follow. */
static int end_line(struct lark *r)
{
    lark_skip(r, false);
    return r->at == r->len || r->s[r->at] == '\n'
               ? 0
               : lark_refuse(r, r->at, "something stands behind the end of a definition");
}

static int define(struct lark *r, const char *name, size_t len, struct lark_name as, uint32_t body)
{
    struct lark_name *n;

    if (lark_find(r, name, len, &n) < 0)
        return -EBADMSG;
    if (!expr_ok(r->set))
        return 0;
    if (r->set->rule[n->rule].body != UINT32_MAX)
        return lark_refuse(r, (size_t)(name - r->s), "`%.*s` is written a second time", (int)len,
                           name);
    expr_rule_set(r->set, n->rule, body);
    n->lazy = as.lazy;
    n->end = as.end;
    if (!n->terminal && r->first == UINT32_MAX)
        r->first = n->rule;
    return 0;
}

static int read_definition(struct lark *r)
{
    size_t from = r->at, len;
    const char *name;
    uint32_t body = EXPR_EMPTY, number;
    struct lark_name as = {0};
    bool most = false;

    while (lark_looking_at(r, "?") || lark_looking_at(r, "!"))
        r->at++;
    name = r->s + r->at;
    len = lark_name_length(r);
    r->at += len;
    if (len == 0)
        return lark_refuse(r, from, "a rule (`name: ...`) is missing");
    bool terminal = is_terminal(name);
    if (lark_looking_at(r, "{") || (terminal && lark_looking_at(r, "[")))
        return lark_refuse(r, from, "templates, and [attributes] of terminals, are not offered:");
    if (lark_accept(r, "[") && lark_attributes(r, &as.end, &most) < 0)
        return -EBADMSG;
    if (lark_accept(r, ".") && ((void)lark_accept(r, "-"), !lark_read_number(r, &number)))
        return lark_refuse(r, from, "a priority has no number");
    lark_skip(r, false);
    if (!lark_accept(r, ":"))
        return lark_refuse(r, from, "a rule (`name: ...`) is missing");
    r->terminal = terminal;
    r->lazy = false;
    int code = lark_alternatives(r, &body);
    if (code == 0 && expr_ok(r->set))
        code = end_line(r);
    as.lazy = r->lazy;
    if (code == 0)
        code = define(r, name, len, as, body);
    if (code == 0 && most && expr_ok(r->set)) {
        struct lark_name *n;
        code = lark_find(r, name, len, &n);
        r->most_rule = n->rule;
    }
    return code;
}

static int read_ignore(struct lark *r)
{
    uint32_t e = EXPR_EMPTY;

    r->terminal = true;
    r->lazy = false;
    int code = lark_alternatives(r, &e);
    if (code == 0 && expr_ok(r->set))
        code = end_line(r);
    expr_push(r->lazy ? &r->cut : &r->ignored, e);
    return code;
}

/* NAME, or NAME -> OTHER. */
static int import_one(struct lark *r, bool listed)
{
    const char *name = r->s + r->at, *as = name;
    size_t len = lark_name_length(r), as_len = len;
    uint32_t e = EXPR_NEVER;

    if (len == 0 || lark_common(r, name, len, &e) < 0)
        return len ? -EBADMSG : lark_refuse(r, r->at, "an import has no name");
    r->at += len;
    lark_blank(r);
    if (!listed && lark_accept(r, "->")) {
        lark_blank(r);
        as = r->s + r->at;
        as_len = lark_name_length(r);
        r->at += as_len;
        if (as_len == 0)
            return lark_refuse(r, r->at, "behind -> there must be one name");
    }
    return expr_ok(r->set) ? define(r, as, as_len, (struct lark_name){0}, e) : 0;
}

static int read_import(struct lark *r)
{
    size_t from = r->at;
    int code;

    lark_blank(r);
    if (!lark_accept(r, "common"))
        return lark_refuse(r, from, "only `common` can be imported from:");
    if (lark_accept(r, "."))
        return (code = import_one(r, false)) == 0 ? end_line(r) : code;
    lark_blank(r);
    if (!lark_accept(r, "("))
        return lark_refuse(r, from, "an import has no name");
    r->depth++;
    do {
        lark_blank(r);
        code = import_one(r, true);
        lark_blank(r);
    } while (code == 0 && expr_ok(r->set) && lark_accept(r, ","));
    if (code == 0 && expr_ok(r->set) && !lark_accept(r, ")"))
        code = lark_refuse(r, from, "an import is not closed");
    r->depth--;
    return code == 0 ? end_line(r) : code;
}

/* Options of llguidance, in JSON. */
static int read_options(struct lark *r)
{
    json_error_t e;
    size_t from = r->at;
    const char *key;
    json_t *v, *all;

    lark_skip(r, false);
    all = json_loadb(r->s + r->at, r->len - r->at, JSON_DISABLE_EOF_CHECK, &e);
    if (!json_is_object(all)) {
        json_decref(all);
        return lark_refuse(r, from, "behind %%llguidance there must be a JSON object");
    }
    r->at += (size_t)e.position;
    int code = 0;
    json_object_foreach(all, key, v)
    {
        if (strcmp(key, "allow_initial_skip") == 0)
            r->skip_first = json_is_true(v);
        else if (strcmp(key, "no_forcing") != 0)
            code = lark_refuse(r, from, "the option `%.40s` of %%llguidance is not offered", key);
    }
    json_decref(all);
    return code == 0 ? end_line(r) : code;
}

static int read_lines(struct lark *r)
{
    int code = 0;

    for (lark_skip(r, true); code == 0 && r->at < r->len && expr_ok(r->set); lark_skip(r, true)) {
        size_t from = r->at;
        r->depth = 0;
        if (lark_accept(r, "%ignore"))
            code = read_ignore(r);
        else if (lark_accept(r, "%import"))
            code = read_import(r);
        else if (lark_accept(r, "%llguidance"))
            code = read_options(r);
        else if (lark_looking_at(r, "%"))
            code = lark_refuse(r, from, "%%declare, %%override and %%extend are not offered:");
        else
            code = read_definition(r);
    }
    return code;
}

/* ---- all of it ---- */

static bool holds(const char *text, size_t len, const char *word)
{
    return memmem(text, len, word, strlen(word)) != NULL;
}

static int check_names(struct lark *r)
{
    for (uint32_t i = 0; i < r->names; i++)
        if (r->set->rule[r->name[i].rule].body == UINT32_MAX)
            return lark_refuse(r, r->name[i].used, "`%s` is used and not written: its use is",
                               r->set->rule[r->name[i].rule].name);
    return r->first != UINT32_MAX ? 0 : lark_refuse(r, r->len, "there is no rule `start`:");
}

/* Begins with `start`, and puts what is ignored before the first terminal. */
static int finish(struct lark *r, uint32_t base, uint32_t *ret_root)
{
    struct expr_set *s = r->set;
    uint32_t begin = r->first;

    for (uint32_t i = 0; i < r->names; i++)
        if (strcmp(s->rule[r->name[i].rule].name, "start") == 0)
            begin = r->name[i].rule;
    int code = lark_check_most(r, begin);
    if (code == 0)
        code = lark_settle(r);
    if (code == 0 && expr_ok(s))
        code = lark_end_rules(r);
    uint32_t ignored = EXPR_EMPTY, last = EXPR_NEVER;
    if (code == 0 && r->skips)
        code = lark_ignored(r, &ignored, &last);
    if (r->skips)
        expr_rule_set(s, r->skip, ignored);
    if (code < 0 || !expr_ok(s))
        return code;
    left_rewrite(s, base);
    *ret_root = expr_rule_new(s, "root");
    uint32_t body = expr_call(s, begin);
    if (r->skips && r->skip_first)
        body = expr_pair(s, expr_call(s, r->skip), body);
    expr_rule_set(s, *ret_root, expr_pair(s, body, expr_maybe(s, last)));
    return 0;
}

int lark_read(struct expr_set *set, const char *text, size_t len, lark_schema_reader *schema,
              uint32_t *ret_root, struct ek_fault *fault)
{
    struct lark *r = calloc(1, sizeof(*r));
    uint32_t base = set->rules;

    if (!r)
        return -ENOMEM;
    *r = (struct lark){.set = set,
                       .s = text,
                       .len = len,
                       .in_json = !schema,
                       .schema = schema,
                       .skip_first = true,
                       .ignored = {.set = set},
                       .cut = {.set = set},
                       .first = UINT32_MAX,
                       .fault = fault};
    r->skips = holds(text, len, "%ignore");
    r->skip = r->skips ? expr_rule_new(set, "ignored") : 0;
    int code = read_lines(r);
    if (code == 0 && expr_ok(set))
        code = check_names(r);
    if (code == 0 && expr_ok(set))
        code = finish(r, base, ret_root);
    free(r->ignored.at);
    free(r->cut.at);
    free(r);
    return expr_ok(set) ? code : 0; /* given up for that; the compiler of the set says so */
}

/* A definition that ends in `:` and not in `::=`, or a line that begins with %. */
bool lark_is(const char *text, size_t len)
{
    size_t at = 0;
    bool comment = false;

    for (; at < len; at++) {
        bool blank = text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n';
        comment |= text[at] == '#' || (text[at] == '/' && at + 1 < len && text[at + 1] == '/');
        if (!comment && !blank)
            break;
        comment &= text[at] != '\n';
    }
    if (at < len && text[at] == '%')
        return true;
    size_t from = at;
    while (at < len && text[at] != ':' && text[at] != '\n' && text[at] != '"' && text[at] != '[')
        at++;
    if (at > from && at < len && text[at] == '[')
        return text[at - 1] != ' '; /* a rule's attributes */
    return at < len && text[at] == ':' && !(at + 1 < len && text[at + 1] == ':');
}

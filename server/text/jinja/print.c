/*
 * Values as text, for output, filters such as tojson, and messages. str() and repr() of lists and
 * dicts share their walk with JSON (write_members()); only quoting and separators differ. Exactness
 * matters: a model was trained on what Python printed, down to the blank behind a comma.
 */
#include "server/text/jinja/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

static int print_number(struct jr *r, const struct jv *v, struct jout *out)
{
    char text[48];
    size_t n = v->kind == JV_FLOAT ? jstr_float_repr(v->f, text)
                                   : (size_t)sprintf(text, "%lld", (long long)v->i);
    return jr_write(r, out, (struct jstr){text, n});
}

/* How repr() escapes a code point, 0 when it stands for itself. */
static size_t repr_escape(uint32_t cp, char quote, char *out)
{
    if (cp == '\n' || cp == '\t' || cp == '\r')
        return (size_t)sprintf(out, "\\%c", cp == '\n' ? 'n' : cp == '\t' ? 't' : 'r');
    if (cp == '\\' || cp == (unsigned char)quote)
        return (size_t)sprintf(out, "\\%c", (char)cp);
    if (cp < 0x20 || cp == 0x7f)
        return (size_t)sprintf(out, "\\x%02x", cp);
    if (cp < 0x7f)
        return 0;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    bool hidden = c == UTF8PROC_CATEGORY_CN || c == UTF8PROC_CATEGORY_CC ||
                  c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO ||
                  (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP);
    if (!hidden)
        return 0;
    return (size_t)sprintf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

/* What a character becomes between quotes of that kind; 0 when it stands for itself. */
typedef size_t (*escape_fn)(uint32_t cp, char quote, char *out);

static int write_quoted(struct jr *r, struct jstr s, char quote, escape_fn fn, struct jout *out)
{
    char escape[16];
    int res = jr_write(r, out, (struct jstr){&quote, 1});
    size_t from = 0, at = 0;
    while (res == 0 && at < s.len) {
        size_t here = at;
        size_t n = fn(jstr_next(s, &at), quote, escape);
        if (!n)
            continue;
        res = jr_write(r, out, (struct jstr){s.p + from, here - from});
        if (res == 0)
            res = jr_write(r, out, (struct jstr){escape, n});
        from = at;
    }
    if (res == 0 && from < s.len)
        res = jr_write(r, out, (struct jstr){s.p + from, s.len - from});
    return res < 0 ? res : jr_write(r, out, (struct jstr){&quote, 1});
}

static int repr_string(struct jr *r, struct jstr s, struct jout *out)
{
    bool single = s.len && memchr(s.p, '\'', s.len), dbl = s.len && memchr(s.p, '"', s.len);
    return write_quoted(r, s, single && !dbl ? '"' : '\'', repr_escape, out);
}

static int repr_markup(struct jr *r, struct jstr s, struct jout *out)
{
    int res = jr_write(r, out, JSTR("Markup("));
    if (res == 0)
        res = repr_string(r, s, out);
    return res < 0 ? res : jr_write(r, out, JSTR(")"));
}

/* What a list or a dictionary holds: items or pairs. */
struct members {
    const struct jv *item;
    const struct jv_pair *pair; /* NULL: items */
    size_t count;
};

static int write_members(struct jr *r, const struct members *m, const struct jprint_json *how,
                         uint32_t level, struct jout *out);

static int repr_list(struct jr *r, const struct jv *v, struct jout *out)
{
    static const struct jstr open[] = {
        {"[", 1}, {"(", 1}, {"dict_keys([", 11}, {"dict_values([", 13}, {"dict_items([", 12},
        {"[", 1}};
    const struct jv_list *l = v->list;
    char text[96];
    if (v->flavor == JV_GENERATOR)
        return jr_write(r, out, JSTR("<generator object>"));
    if (v->flavor == JV_RANGE) {
        long long first = l->count ? (long long)l->at[0].i : 0;
        int n =
            snprintf(text, sizeof(text), "range(%lld, %lld)", first, first + (long long)l->count);
        return jr_write(r, out, (struct jstr){text, (size_t)n});
    }
    int res = jr_write(r, out, open[v->flavor]);
    if (res == 0)
        res = write_members(r, &(struct members){.item = l->at, .count = l->count}, NULL, 0, out);
    if (res == 0 && v->flavor == JV_TUPLE)
        return jr_write(r, out, l->count == 1 ? JSTR(",)") : JSTR(")"));
    if (res == 0)
        res = jr_write(r, out, v->flavor == JV_PLAIN ? JSTR("]") : JSTR("])"));
    return res;
}

static int repr_dict(struct jr *r, const struct jv_dict *d, struct jout *out)
{
    int res = jr_write(r, out, JSTR("{"));
    if (res == 0)
        res = write_members(r, &(struct members){.pair = d->at, .count = d->count}, NULL, 0, out);
    return res < 0 ? res : jr_write(r, out, JSTR("}"));
}

static int repr_deep(struct jr *r, const struct jv *v, struct jout *out)
{
    int res = jr_enter(r);
    if (res < 0)
        return res;
    if (v->kind == JV_LIST) {
        res = repr_list(r, v, out);
    } else {
        if (v->kind == JV_NAMESPACE)
            res = jr_write(r, out, JSTR("<Namespace "));
        if (res == 0)
            res = repr_dict(r, v->dict, out);
        if (res == 0 && v->kind == JV_NAMESPACE)
            res = jr_write(r, out, JSTR(">"));
    }
    r->depth--;
    return res;
}

int jprint_repr(struct jr *r, const struct jv *v, struct jout *out)
{
    switch ((enum jv_kind)v->kind) {
    case JV_UNDEFINED: return jr_write(r, out, JSTR("Undefined"));
    case JV_NONE: return jr_write(r, out, JSTR("None"));
    case JV_BOOL: return jr_write(r, out, v->b ? JSTR("True") : JSTR("False"));
    case JV_INT:
    case JV_FLOAT: return print_number(r, v, out);
    case JV_STRING:
        return v->flavor == JV_MARKUP ? repr_markup(r, v->s, out) : repr_string(r, v->s, out);
    case JV_LIST:
    case JV_DICT:
    case JV_NAMESPACE: return repr_deep(r, v, out);
    case JV_LOOP: return jr_write(r, out, JSTR("<LoopContext>"));
    case JV_MACRO: return jr_write(r, out, JSTR("<Macro>"));
    case JV_FUNC: return jr_write(r, out, JSTR("<function>"));
    }
    return 0;
}

int jprint_str(struct jr *r, const struct jv *v, struct jout *out)
{
    if (v->kind == JV_STRING)
        return jr_write(r, out, v->s);
    if (v->kind == JV_UNDEFINED)
        return v->flavor == JV_UNSAFE ? jv_refuse(r, v) : 0;
    return jprint_repr(r, v, out);
}

int jprint_to_string(struct jr *r, const struct jv *v, struct jstr *ret)
{
    if (v->kind == JV_STRING) {
        *ret = v->s;
        return 0;
    }
    struct jout out = {0};
    int res = jprint_str(r, v, &out);
    if (res == 0)
        *ret = (struct jstr){out.p ? out.p : "", out.len};
    return res;
}

static size_t json_escape(uint32_t cp, char quote, char *out)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *known = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    (void)quote; /* always the same */
    if (known)
        return (size_t)sprintf(out, "\\%c", to[known - from]);
    return cp < 0x20 ? (size_t)sprintf(out, "\\u%04x", cp) : 0;
}

static size_t json_escape_ascii(uint32_t cp, char quote, char *out)
{
    if (cp <= 0x7f)
        return json_escape(cp, quote, out);
    if (cp < 0x10000)
        return (size_t)sprintf(out, "\\u%04x", cp);
    cp -= 0x10000;
    return (size_t)sprintf(out, "\\u%04x\\u%04x", 0xd800 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
}

static int json_quoted(struct jr *r, struct jstr s, const struct jprint_json *how, struct jout *out)
{
    return write_quoted(r, s, '"', how->ascii ? json_escape_ascii : json_escape, out);
}

static int json_scalar(struct jr *r, const struct jv *v, struct jout *out)
{
    switch ((enum jv_kind)v->kind) {
    case JV_NONE: return jr_write(r, out, JSTR("null"));
    case JV_BOOL: return jr_write(r, out, v->b ? JSTR("true") : JSTR("false"));
    case JV_INT: return print_number(r, v, out);
    case JV_FLOAT:
        if (isnan(v->f))
            return jr_write(r, out, JSTR("NaN"));
        if (isinf(v->f))
            return jr_write(r, out, v->f < 0 ? JSTR("-Infinity") : JSTR("Infinity"));
        return print_number(r, v, out);
    case JV_UNDEFINED:
        if (v->flavor == JV_UNSAFE)
            return jv_refuse(r, v);
        break;
    case JV_STRING:
    case JV_LIST:
    case JV_DICT:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_FUNC: break;
    }
    return jr_fail(r, "Object of type %s is not JSON serializable", jv_type(v));
}

static int json_break(struct jr *r, const struct jprint_json *how, uint32_t level, struct jout *out)
{
    if (!how->pretty)
        return 0;
    int res = jr_write(r, out, JSTR("\n"));
    for (uint32_t i = 0; res == 0 && i < level; i++)
        res = jr_write(r, out, how->indent);
    return res;
}

static int write_key(struct jr *r, const struct jv *key, const struct jprint_json *how,
                     struct jout *out)
{
    if (key->kind == JV_STRING)
        return json_quoted(r, key->s, how, out);
    if (key->kind == JV_LIST || key->kind == JV_DICT)
        return jr_fail(r, "keys must be str, int, float, bool or None, not %s", jv_type(key));
    int res = jr_write(r, out, JSTR("\""));
    if (res == 0)
        res = json_scalar(r, key, out);
    return res < 0 ? res : jr_write(r, out, JSTR("\""));
}

/* A copy of the pairs in the order of their keys. */
static int sorted_pairs(struct jr *r, const struct jv_dict *d, const struct jv_pair **ret_at)
{
    struct jv_pair *at;
    int res = jr_take(r, d->count + 1, sizeof(*at), &at);
    for (size_t i = 0; res == 0 && i < d->count; i++) {
        size_t to = i;
        bool less = true;
        while (res == 0 && to > 0) {
            res = jv_less(r, &d->at[i].key, &at[to - 1].key, &less);
            if (res < 0 || !less)
                break;
            at[to] = at[to - 1];
            to--;
        }
        at[to] = d->at[i];
    }
    *ret_at = at;
    return res;
}

static int json_value(struct jr *r, const struct jv *v, const struct jprint_json *how,
                      uint32_t level, struct jout *out);

/* As repr() writes them when `how` is NULL, else as JSON. */
static int write_members(struct jr *r, const struct members *m, const struct jprint_json *how,
                         uint32_t level, struct jout *out)
{
    const struct jstr comma = how ? how->comma : JSTR(", "), colon = how ? how->colon : JSTR(": ");
    int res = 0;
    for (size_t i = 0; res == 0 && i < m->count; i++) {
        const struct jv *v = m->pair ? &m->pair[i].value : &m->item[i];
        if (i)
            res = jr_write(r, out, comma);
        if (res == 0 && how)
            res = json_break(r, how, level + 1, out);
        if (res == 0 && m->pair)
            res = how ? write_key(r, &m->pair[i].key, how, out)
                      : jprint_repr(r, &m->pair[i].key, out);
        if (res == 0 && m->pair)
            res = jr_write(r, out, colon);
        if (res == 0)
            res = how ? json_value(r, v, how, level + 1, out) : jprint_repr(r, v, out);
    }
    if (res == 0 && how && m->count)
        res = json_break(r, how, level, out);
    return res;
}

static int json_dict(struct jr *r, const struct jv_dict *d, const struct jprint_json *how,
                     uint32_t level, struct jout *out)
{
    struct members m = {.pair = d->at, .count = d->count};
    int res = how->sort_keys ? sorted_pairs(r, d, &m.pair) : 0;
    if (res == 0)
        res = jr_write(r, out, JSTR("{"));
    if (res == 0)
        res = write_members(r, &m, how, level, out);
    return res < 0 ? res : jr_write(r, out, JSTR("}"));
}

static int json_list(struct jr *r, const struct jv_list *l, const struct jprint_json *how,
                     uint32_t level, struct jout *out)
{
    int res = jr_write(r, out, JSTR("["));
    if (res == 0)
        res =
            write_members(r, &(struct members){.item = l->at, .count = l->count}, how, level, out);
    return res < 0 ? res : jr_write(r, out, JSTR("]"));
}

static int json_value(struct jr *r, const struct jv *v, const struct jprint_json *how,
                      uint32_t level, struct jout *out)
{
    if (v->kind == JV_STRING)
        return json_quoted(r, v->s, how, out);
    bool is_list = v->kind == JV_LIST && (v->flavor == JV_PLAIN || v->flavor == JV_TUPLE);
    if (!is_list && v->kind != JV_DICT) {
        if (v->kind == JV_LIST)
            return jr_fail(r, "Object of type %s is not JSON serializable", jv_type(v));
        return json_scalar(r, v, out);
    }
    int res = jr_enter(r);
    if (res < 0)
        return res;
    res = is_list ? json_list(r, v->list, how, level, out) : json_dict(r, v->dict, how, level, out);
    r->depth--;
    return res;
}

int jprint_as_json(struct jr *r, const struct jv *v, const struct jprint_json *how,
                   struct jout *out)
{
    return json_value(r, v, how, 0, out);
}

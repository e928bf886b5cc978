/*
 * Calls of filters, tests, methods and globals: eval.c binds arguments through jfunc_call(), the
 * files with the tables (filters.c, tests.c, methods.c, globals.c) use the helpers for arguments.
 * The second half is Python's % formatting of strings, with widths and precisions bounded so that a
 * template cannot ask for a gigabyte of blanks.
 */
#include "server/text/jinja/func.h"

#include <stdio.h>
#include <string.h>

#include "server/text/jinja/print.h"

const struct jfunc *jfunc_find(const struct jfunc *table, size_t rows, struct jstr name)
{
    for (size_t i = 0; i < rows; i++) {
        if (jstr_is(name, table[i].name))
            return &table[i];
    }
    return NULL;
}

/* The place of a name among the parameters, -1 if it is none; *ret_count is how many there are. */
static int find_param(const char *params, struct jstr name, size_t *ret_count)
{
    int found = -1;
    size_t i = 0;
    for (const char *p = params; *p; i++) {
        size_t len = strcspn(p, " ");
        if (jstr_equal((struct jstr){p, len}, name))
            found = (int)i;
        p += len + (p[len] == ' ');
    }
    *ret_count = i;
    return found;
}

int jfunc_call(struct jr *r, const struct jfunc *f, const struct jv *self, const struct jargs *args,
               struct jv *ret)
{
    struct jcall c = {.self = self, .all = args};
    size_t count = 0;
    if (!f->params)
        return f->run(r, &c, ret);
    (void)find_param(f->params, JSTR(""), &count); /* only to count */
    if (args->npos > count)
        return jr_fail(r, "%s takes not more than %zu argument(s), %zu were given", f->name, count,
                       args->npos);
    for (size_t i = 0; i < args->npos; i++)
        c.a[i] = &args->pos[i];
    for (size_t i = 0; i < args->nnamed; i++) {
        struct jstr name = args->named[i].name;
        int at = find_param(f->params, name, &count), len = name.len > 60 ? 60 : (int)name.len;
        if (at < 0 || c.a[at])
            return jr_fail(r, "%s got %s argument '%.*s'", f->name,
                           at < 0 ? "an unexpected" : "two values for", len, name.p);
        c.a[at] = &args->named[i].value;
    }
    for (size_t i = 0; i < f->required; i++) {
        if (!c.a[i])
            return jr_fail(r, "%s needs %d argument(s)", f->name, f->required);
    }
    return f->run(r, &c, ret);
}

int jarg_int(struct jr *r, const struct jv *arg, int64_t *value)
{
    if (!arg)
        return 0;
    if (arg->kind == JV_UNDEFINED)
        return jv_refuse(r, arg);
    if (arg->kind != JV_INT && arg->kind != JV_BOOL)
        return jr_fail(r, "'%s' object cannot be interpreted as an integer", jv_type(arg));
    *value = jv_as_int(arg);
    return 0;
}

int jarg_string(struct jr *r, const struct jv *arg, struct jstr *value)
{
    if (!arg)
        return 0;
    if (arg->kind == JV_UNDEFINED)
        return jv_refuse(r, arg);
    if (arg->kind != JV_STRING)
        return jr_fail(r, "must be str, not %s", jv_type(arg));
    *value = arg->s;
    return 0;
}

int jfunc_recase(struct jr *r, struct jstr s, enum jstr_case how, struct jv *ret)
{
    char *p;
    int res = jr_burn(r, s.len * 8);
    if (res == 0)
        res = jr_take(r, jstr_count(s) + 1, 4, &p);
    if (res == 0)
        *ret = jv_string((struct jstr){p, jstr_recase(s, how, p)});
    return res;
}

int jfunc_escape(struct jr *r, const struct jv *text, struct jv *ret)
{
    static const char from[] = "&<>'\"";
    static const struct jstr to[] = {
        {"&amp;", 5}, {"&lt;", 4}, {"&gt;", 4}, {"&#39;", 5}, {"&#34;", 5}};
    struct jstr s = text->s;
    struct jout out = {0};
    size_t start = 0;
    int res = text->flavor == JV_MARKUP ? 0 : jr_burn(r, s.len);
    for (size_t i = 0; res == 0 && text->flavor != JV_MARKUP && i < s.len; i++) {
        const char *hit = s.p[i] ? strchr(from, s.p[i]) : NULL;
        if (!hit)
            continue;
        res = jr_write(r, &out, (struct jstr){s.p + start, i - start});
        if (res == 0)
            res = jr_write(r, &out, to[hit - from]);
        start = i + 1;
    }
    if (res == 0 && start)
        res = jr_write(r, &out, (struct jstr){s.p + start, s.len - start});
    if (res < 0)
        return res;
    *ret = jv_string(start ? (struct jstr){out.p, out.len} : s);
    ret->flavor = JV_MARKUP;
    return 0;
}

struct spec {
    char flags[6];
    int width, precision; /* -1: none */
    char conversion;
};

/* Reads what follows a '%'; returns how many bytes it took, 0 for what is not supported. */
static size_t read_spec(struct jstr s, struct spec *spec)
{
    size_t at = 0, n = 0;
    *spec = (struct spec){.width = 0, .precision = -1};
    while (at < s.len && strchr("-+ 0#", s.p[at]) && n < sizeof(spec->flags) - 1)
        spec->flags[n++] = s.p[at++];
    for (; at < s.len && s.p[at] >= '0' && s.p[at] <= '9' && spec->width < 1000; at++)
        spec->width = spec->width * 10 + (s.p[at] - '0');
    if (at < s.len && s.p[at] == '.') {
        spec->precision = 0;
        for (at++; at < s.len && s.p[at] >= '0' && s.p[at] <= '9' && spec->precision < 100; at++)
            spec->precision = spec->precision * 10 + (s.p[at] - '0');
    }
    if (at == s.len || !strchr("sdifeEgGrxX%", s.p[at]))
        return 0;
    spec->conversion = s.p[at];
    return at + 1;
}

static int percent_number(struct jr *r, const struct spec *spec, const struct jv *v,
                          struct jout *out)
{
    char text[1600];
    if (v->kind == JV_UNDEFINED)
        return jv_refuse(r, v);
    if (!jv_is_number(v))
        return jr_fail(r, "%%%c format: a real number is required, not %s", spec->conversion,
                       jv_type(v));
    char format[24];
    bool is_int = strchr("dixX", spec->conversion) != NULL;
    (void)snprintf(format, sizeof(format), "%%%s*.*%s%c", spec->flags, is_int ? "ll" : "",
                   spec->conversion); /* at most 15 bytes */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n =
        is_int ? snprintf(text, sizeof(text), format, spec->width, spec->precision,
                          (long long)jv_as_int(v))
               : snprintf(text, sizeof(text), format, spec->width, spec->precision, jv_as_float(v));
#pragma GCC diagnostic pop
    if (n < 0 || (size_t)n >= sizeof(text))
        return jr_fail(r, "the formatted number is too long");
    return jr_write(r, out, (struct jstr){text, (size_t)n});
}

static int percent_text(struct jr *r, const struct spec *spec, const struct jv *v, struct jout *out)
{
    struct jout inner = {0};
    int res = spec->conversion == 'r' ? jprint_repr(r, v, &inner) : jprint_str(r, v, &inner);
    struct jstr s = {inner.p ? inner.p : "", inner.len};
    if (res == 0 && spec->precision >= 0)
        s.len = jstr_offset(s, (size_t)spec->precision);
    bool left = strchr(spec->flags, '-') != NULL;
    size_t chars = jstr_count(s), pad = 0;
    if ((size_t)spec->width > chars)
        pad = (size_t)spec->width - chars;
    if (res == 0 && left)
        res = jr_write(r, out, s);
    for (size_t i = 0; res == 0 && i < pad; i++)
        res = jr_write(r, out, JSTR(" "));
    if (res == 0 && !left)
        res = jr_write(r, out, s);
    return res;
}

int jfunc_percent(struct jr *r, struct jstr format, const struct jv *args, size_t count, bool tuple,
                  struct jv *ret)
{
    struct jout out = {0};
    size_t used = 0, from = 0;
    int res = 0;
    while (res == 0 && from < format.len) {
        const char *sign = memchr(format.p + from, '%', format.len - from);
        size_t at = sign ? (size_t)(sign - format.p) : format.len;
        res = jr_write(r, &out, (struct jstr){format.p + from, at - from});
        from = at;
        if (res < 0 || !sign)
            break;
        struct spec spec;
        size_t n = read_spec((struct jstr){format.p + at + 1, format.len - at - 1}, &spec);
        if (!n)
            return jr_fail(r, "unsupported format character in '%%' formatting");
        from = at + 1 + n;
        if (spec.conversion == '%') {
            res = jr_write(r, &out, JSTR("%"));
            continue;
        }
        if (used == count)
            return jr_fail(r, "not enough arguments for format string");
        const struct jv *v = &args[used++];
        res = spec.conversion == 's' || spec.conversion == 'r' ? percent_text(r, &spec, v, &out)
                                                               : percent_number(r, &spec, v, &out);
    }
    /* As in Python, what could be a mapping may stay unused. */
    bool mapping = count == 1 && (args[0].kind == JV_DICT || args[0].kind == JV_LIST);
    if (res == 0 && used < count && !(mapping && !tuple))
        return jr_fail(r, "not all arguments converted during string formatting");
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

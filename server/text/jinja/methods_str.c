/* Methods of strings in templates, as Python has them. Called through the table in methods.c. */
#include <errno.h>
#include <string.h>

#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"
#include "server/text/jinja/print.h"

/* From the end, a text is compared at each place: so many bytes of it cost one. */
#define COMPARED 16u

static int methods_str_strip(struct jr *r, const struct jcall *c, int ends, struct jv *ret)
{
    struct jstr chars = {0};
    bool given = c->a[0] && c->a[0]->kind != JV_NONE;
    int res = jr_burn(r, c->self->s.len);
    if (res == 0 && given)
        res = jarg_string(r, c->a[0], &chars);
    if (res == 0 && given)
        res = jr_burn_product(r, c->self->s.len, chars.len);
    if (res < 0)
        return res;
    *ret = jv_string(jstr_strip(c->self->s, given ? &chars : NULL, ends));
    ret->flavor = c->self->flavor; /* markup stays markup */
    return 0;
}

static int m_strip(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_strip(r, c, JSTR_LEFT | JSTR_RIGHT, ret);
}

static int m_lstrip(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_strip(r, c, JSTR_LEFT, ret);
}

static int m_rstrip(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_strip(r, c, JSTR_RIGHT, ret);
}

static int push_piece(struct jr *r, struct jv *list, struct jstr s, size_t from, size_t to)
{
    struct jv v = jv_string((struct jstr){s.p + from, to - from});
    return jv_list_push(r, list, &v);
}

/* split() at runs of whitespace, at most `max` times (< 0: always). */
static int split_space(struct jr *r, struct jstr s, int64_t max, struct jv *list)
{
    int res = 0;
    s = jstr_strip(s, NULL, JSTR_LEFT);
    while (res == 0 && s.len) {
        size_t at = 0, next = 0;
        while (at < s.len && !jstr_is_space(jstr_next(s, &next)))
            at = next;
        if (max == 0)
            at = s.len;
        max -= max > 0;
        res = push_piece(r, list, s, 0, at);
        s = jstr_strip((struct jstr){s.p + at, s.len - at}, NULL, JSTR_LEFT);
    }
    return res;
}

static int split_args(struct jr *r, const struct jcall *c, struct jstr *sep, int64_t *max)
{
    int res = jr_burn(r, c->self->s.len);
    if (res == 0 && c->a[0] && c->a[0]->kind != JV_NONE) {
        res = jarg_string(r, c->a[0], sep);
        if (res == 0 && !sep->len)
            res = jr_fail(r, "empty separator");
    }
    return res < 0 ? res : jarg_int(r, c->a[1], max);
}

static int m_split(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = c->self->s, sep = {0};
    int64_t max = -1;
    struct jv list;
    int res = split_args(r, c, &sep, &max);
    if (res == 0)
        res = jv_list_new(r, 0, &list);
    if (res == 0 && !sep.len)
        res = split_space(r, s, max, &list);
    size_t from = 0, at;
    while (res == 0 && sep.len && max != 0 && (at = jstr_find(s, sep, from)) != SIZE_MAX) {
        res = push_piece(r, &list, s, from, at);
        from = at + sep.len;
        max -= max > 0;
    }
    if (res == 0 && sep.len)
        res = push_piece(r, &list, s, from, s.len);
    if (res == 0)
        *ret = list;
    return res;
}

static int m_rsplit(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = c->self->s, sep = {0};
    int64_t max = -1;
    struct jv list;
    int res = split_args(r, c, &sep, &max);
    if (res < 0)
        return res;
    if (!sep.len || max < 0) {
        if (!sep.len && max >= 0)
            return jr_fail(r, "rsplit needs a separator when it has a limit");
        return m_split(r, c, ret);
    }
    res = jr_burn_product(r, s.len, sep.len / COMPARED);
    if (res == 0)
        res = jv_list_new(r, 0, &list);
    size_t to = s.len, at;
    while (res == 0 && max-- > 0 && (at = jstr_rfind((struct jstr){s.p, to}, sep)) != SIZE_MAX) {
        res = push_piece(r, &list, s, at + sep.len, to);
        to = at;
    }
    if (res == 0)
        res = push_piece(r, &list, s, 0, to);
    for (size_t i = 0; res == 0 && i < list.list->count / 2; i++) {
        struct jv *l = list.list->at, other = l[list.list->count - 1 - i];
        l[list.list->count - 1 - i] = l[i];
        l[i] = other;
    }
    if (res == 0)
        *ret = list;
    return res;
}

static int m_splitlines(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = c->self->s;
    struct jv list;
    bool keep = c->a[0] && jv_true(c->a[0]);
    int res = jr_burn(r, s.len);
    if (res == 0)
        res = jv_list_new(r, 0, &list);
    for (size_t from = 0, at; res == 0 && from < s.len; from = at) {
        for (at = from; at < s.len && !strchr("\n\r\v\f", s.p[at]); at++)
            continue;
        size_t end = at;
        if (at < s.len)
            at += s.p[at] == '\r' && at + 1 < s.len && s.p[at + 1] == '\n' ? 2 : 1;
        res = push_piece(r, &list, s, from, keep ? at : end);
    }
    if (res == 0)
        *ret = list;
    return res;
}

static int partition(struct jr *r, const struct jcall *c, bool last, struct jv *ret)
{
    struct jstr s = c->self->s, sep = {0};
    int res = jr_burn(r, s.len);
    if (res == 0)
        res = jarg_string(r, c->a[0], &sep);
    if (res == 0 && !sep.len)
        res = jr_fail(r, "empty separator");
    if (res == 0 && last)
        res = jr_burn_product(r, s.len, sep.len / COMPARED);
    struct jv list;
    if (res == 0)
        res = jv_list_new(r, 3, &list);
    if (res < 0)
        return res;
    size_t at = last ? jstr_rfind(s, sep) : jstr_find(s, sep, 0);
    size_t cut[4] = {0, at, at + sep.len, s.len};
    if (at == SIZE_MAX) {
        cut[1] = cut[2] = last ? 0 : s.len;
    }
    for (int i = 0; res == 0 && i < 3; i++)
        res = push_piece(r, &list, s, cut[i], cut[i + 1]);
    list.flavor = JV_TUPLE;
    *ret = list;
    return res;
}

static int m_partition(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return partition(r, c, false, ret);
}

static int m_rpartition(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return partition(r, c, true, ret);
}

/* startswith and endswith: a string, or a tuple of them; no start and end. */
static int at_end(struct jr *r, const struct jcall *c, bool (*fits)(struct jstr, struct jstr),
                  struct jv *ret)
{
    const struct jv *what = c->a[0];
    bool tuple = what->kind == JV_LIST && what->flavor == JV_TUPLE, found = false;
    size_t n = tuple ? what->list->count : 1;
    int res = 0;
    for (size_t i = 0; res == 0 && !found && i < n; i++) {
        struct jstr s = {0};
        res = jarg_string(r, tuple ? &what->list->at[i] : what, &s);
        if (res == 0)
            res = jr_burn(r, s.len);
        found = res == 0 && fits(c->self->s, s);
    }
    *ret = jv_bool(found);
    return res;
}

static int m_startswith(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return at_end(r, c, jstr_starts, ret);
}

static int m_endswith(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return at_end(r, c, jstr_ends, ret);
}

static int without(struct jr *r, const struct jcall *c, bool prefix, struct jv *ret)
{
    struct jstr s = c->self->s, cut = {0};
    int res = jarg_string(r, c->a[0], &cut);
    if (res == 0 && prefix && jstr_starts(s, cut))
        s.p += cut.len;
    if (res == 0 && (prefix ? jstr_starts(c->self->s, cut) : jstr_ends(s, cut)))
        s.len -= cut.len;
    *ret = jv_string(s);
    return res;
}

static int m_removeprefix(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return without(r, c, true, ret);
}

static int m_removesuffix(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return without(r, c, false, ret);
}

static int m_replace(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jfunc *f = jfilter_find(JSTR("replace"));
    return f->run(r, c, ret);
}

static int m_join(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv list;
    struct jout out = {0};
    int res = jv_iterate(r, c->a[0], &list);
    for (size_t i = 0; res == 0 && i < list.list->count; i++) {
        struct jstr s = {0};
        if (i)
            res = jr_write(r, &out, c->self->s);
        if (res == 0)
            res = jarg_string(r, &list.list->at[i], &s);
        if (res == 0)
            res = jr_write(r, &out, s);
    }
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int methods_str_find(struct jr *r, const struct jcall *c, bool last, bool must,
                            struct jv *ret)
{
    struct jstr s = c->self->s, what = {0};
    int64_t start = 0;
    int res = jr_burn(r, s.len);
    if (res == 0)
        res = jarg_string(r, c->a[0], &what);
    if (res == 0)
        res = jarg_int(r, c->a[1], &start);
    if (res == 0 && last)
        res = jr_burn_product(r, s.len, what.len / COMPARED);
    if (res < 0)
        return res;
    if (start < 0)
        start += (int64_t)jstr_count(s);
    size_t from = start > 0 ? jstr_offset(s, (size_t)start) : 0;
    size_t at = last ? jstr_rfind(s, what) : jstr_find(s, what, from);
    if (last && at < from)
        at = SIZE_MAX;
    if (must && at == SIZE_MAX)
        return jr_fail(r, "substring not found");
    *ret = jv_int(at == SIZE_MAX ? -1 : (int64_t)jstr_count((struct jstr){s.p, at}));
    return 0;
}

static int m_find(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_find(r, c, false, false, ret);
}

static int m_rfind(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_find(r, c, true, false, ret);
}

static int m_index(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return methods_str_find(r, c, false, true, ret);
}

static int m_count(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = c->self->s, what = {0};
    int64_t n = 0;
    int res = jr_burn(r, s.len);
    if (res == 0)
        res = jarg_string(r, c->a[0], &what);
    if (res < 0)
        return res;
    if (!what.len)
        n = (int64_t)jstr_count(s) + 1;
    for (size_t at = 0; what.len && (at = jstr_find(s, what, at)) != SIZE_MAX; at += what.len)
        n++;
    *ret = jv_int(n);
    return 0;
}

static int m_upper(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return jfunc_recase(r, c->self->s, JSTR_UPPER, ret);
}

static int m_lower(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return jfunc_recase(r, c->self->s, JSTR_LOWER, ret);
}

static int m_title(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return jfunc_recase(r, c->self->s, JSTR_TITLE, ret);
}

static int m_capitalize(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return jfunc_recase(r, c->self->s, JSTR_CAPITALIZE, ret);
}

/* All characters of a class, and at least one. Beyond ASCII only letters and spaces are known. */
static int all_are(struct jr *r, const struct jcall *c, bool (*is)(uint32_t cp), struct jv *ret)
{
    struct jstr s = c->self->s;
    bool all = s.len > 0;
    for (size_t at = 0; all && at < s.len;)
        all = is(jstr_next(s, &at));
    *ret = jv_bool(all);
    return jr_burn(r, s.len);
}

static bool is_digit(uint32_t cp)
{
    return cp >= '0' && cp <= '9';
}

static bool is_alpha(uint32_t cp)
{
    return ((cp | 32) >= 'a' && (cp | 32) <= 'z') || (cp >= 0xc0 && cp != 0xd7 && cp != 0xf7);
}

static bool is_alnum(uint32_t cp)
{
    return is_digit(cp) || is_alpha(cp);
}

static int m_isdigit(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return all_are(r, c, is_digit, ret);
}

static int m_isalpha(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return all_are(r, c, is_alpha, ret);
}

static int m_isalnum(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return all_are(r, c, is_alnum, ret);
}

static int m_isspace(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return all_are(r, c, jstr_is_space, ret);
}

/* The argument that a field of str.format() names: "", "0" or "name". */
static int format_field(struct jr *r, const struct jargs *all, struct jstr field, size_t *next,
                        struct jv *ret)
{
    int64_t at = -1;
    for (size_t i = 0; i < all->nnamed; i++) {
        if (field.len && jstr_equal(all->named[i].name, field)) {
            *ret = all->named[i].value;
            return 0;
        }
    }
    if (!field.len)
        at = (int64_t)(*next)++;
    else if (jstr_int(field, 10, &at) < 0)
        return jr_fail(r, "str.format supports plain fields only, not '{%.*s}'",
                       field.len > 60 ? 60 : (int)field.len, field.p);
    if (at < 0 || (size_t)at >= all->npos)
        return jr_fail(r, "str.format has too few arguments");
    *ret = all->pos[at];
    return 0;
}

static int m_format(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = c->self->s;
    struct jout out = {0};
    size_t next = 0;
    int res = 0;
    for (size_t at = 0; res == 0 && at < s.len;) {
        size_t from = at;
        while (at < s.len && s.p[at] != '{' && s.p[at] != '}')
            at++;
        res = jr_write(r, &out, (struct jstr){s.p + from, at - from});
        if (res < 0 || at == s.len)
            break;
        if (at + 1 < s.len && s.p[at + 1] == s.p[at]) {
            res = jr_write(r, &out, (struct jstr){s.p + at, 1});
            at += 2;
            continue;
        }
        const char *end = s.p[at] == '{' ? memchr(s.p + at, '}', s.len - at) : NULL;
        if (!end)
            return jr_fail(r, "single '%c' in the string of str.format", s.p[at]);
        struct jstr field = {s.p + at + 1, (size_t)(end - s.p) - at - 1};
        struct jv v;
        res = format_field(r, c->all, field, &next, &v);
        if (res == 0)
            res = jprint_str(r, &v, &out);
        at = (size_t)(end - s.p) + 1;
    }
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static const struct jfunc string_methods[] = {
    {"strip", m_strip, "chars", 0},
    {"lstrip", m_lstrip, "chars", 0},
    {"rstrip", m_rstrip, "chars", 0},
    {"split", m_split, "sep maxsplit", 0},
    {"rsplit", m_rsplit, "sep maxsplit", 0},
    {"splitlines", m_splitlines, "keepends", 0},
    {"partition", m_partition, "sep", 1},
    {"rpartition", m_rpartition, "sep", 1},
    {"startswith", m_startswith, "prefix", 1},
    {"endswith", m_endswith, "suffix", 1},
    {"removeprefix", m_removeprefix, "prefix", 1},
    {"removesuffix", m_removesuffix, "suffix", 1},
    {"replace", m_replace, "old new count", 2},
    {"join", m_join, "iterable", 1},
    {"find", m_find, "sub start", 1},
    {"rfind", m_rfind, "sub start", 1},
    {"index", m_index, "sub start", 1},
    {"count", m_count, "sub", 1},
    {"upper", m_upper, "", 0},
    {"lower", m_lower, "", 0},
    {"title", m_title, "", 0},
    {"capitalize", m_capitalize, "", 0},
    {"isdigit", m_isdigit, "", 0},
    {"isalpha", m_isalpha, "", 0},
    {"isalnum", m_isalnum, "", 0},
    {"isspace", m_isspace, "", 0},
    {"format", m_format, NULL, 0},
};

const struct jfunc *jmethod_str_find(struct jstr name)
{
    return jfunc_find(string_methods, sizeof(string_methods) / sizeof(*string_methods), name);
}

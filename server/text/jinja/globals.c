/*
 * What a template may call by name: range, dict, namespace, raise_exception, strftime_now. Called
 * by eval.c.
 */
#include <errno.h>
#include <time.h>

#include "server/text/jinja/func.h"
#include "server/text/jinja/print.h"

enum { RANGE_MAX = 100000 };

static int g_range(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int64_t from = 0, to = 0, step = 1, count = 0;
    int res = jarg_int(r, c->a[0], c->a[1] ? &from : &to);
    if (res == 0)
        res = jarg_int(r, c->a[1], &to);
    if (res == 0)
        res = jarg_int(r, c->a[2], &step);
    if (res < 0)
        return res;
    if (step == 0 || step == INT64_MIN)
        return jr_fail(r, "range() arg 3 must not be zero");
    bool up = step > 0;
    if (up ? to > from : from > to) {
        uint64_t gap = up ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
        uint64_t stride = up ? (uint64_t)step : (uint64_t)-step;
        if ((gap - 1) / stride >= RANGE_MAX)
            return jr_fail(r, "range is longer than %d", RANGE_MAX);
        count = (int64_t)((gap - 1) / stride) + 1;
    }
    struct jv list;
    res = jr_burn(r, (size_t)count * 8);
    if (res == 0)
        res = jv_list_new(r, (size_t)count, &list);
    for (int64_t i = 0; res == 0 && i < count; i++) {
        struct jv v = jv_int(from + i * step);
        res = jv_list_push(r, &list, &v);
    }
    if (res < 0)
        return res;
    list.flavor = JV_RANGE;
    *ret = list;
    return 0;
}

/* dict(pairs_or_dict, name=value, ...) */
static int g_dict(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv dict, pairs, pair;
    const struct jv *from = c->all->npos ? &c->all->pos[0] : NULL;
    int res = jv_dict_new(r, c->all->nnamed, &dict);
    if (c->all->npos > 1)
        return jr_fail(r, "dict expected at most 1 argument, got %zu", c->all->npos);
    if (from && (from->kind == JV_DICT || from->kind == JV_NAMESPACE)) {
        for (size_t i = 0; res == 0 && i < from->dict->count; i++)
            res = jv_dict_set(r, dict.dict, &from->dict->at[i].key, &from->dict->at[i].value);
    } else if (from && res == 0) {
        res = jv_iterate(r, from, &pairs);
        for (size_t i = 0; res == 0 && i < pairs.list->count; i++) {
            res = jv_iterate(r, &pairs.list->at[i], &pair);
            if (res == 0 && pair.list->count != 2)
                return jr_fail(r, "dict() takes pairs");
            if (res == 0)
                res = jv_dict_set(r, dict.dict, &pair.list->at[0], &pair.list->at[1]);
        }
    }
    for (size_t i = 0; res == 0 && i < c->all->nnamed; i++) {
        struct jv key = jv_string(c->all->named[i].name);
        res = jv_dict_set(r, dict.dict, &key, &c->all->named[i].value);
    }
    if (res == 0)
        *ret = dict;
    return res;
}

static int g_namespace(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv dict;
    int res = g_dict(r, c, &dict);
    if (res < 0)
        return res;
    dict.kind = JV_NAMESPACE;
    *ret = dict;
    return 0;
}

static int g_raise(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    (void)ret; /* nothing returns from an exception */
    int res = jprint_to_string(r, c->a[0], &s);
    return res < 0 ? res : jr_fail(r, "%.*s", s.len > 390 ? 390 : (int)s.len, s.p);
}

static int g_strftime_now(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = {0};
    char format[128], text[512], *copy;
    time_t now = (time_t)r->now_s;
    struct tm tm;
    int res = jarg_string(r, c->a[0], &s);
    if (res < 0)
        return res;
    struct jout out = {0};
    if (s.len >= sizeof(format))
        return jr_fail(r, "the format of strftime_now is longer than %zu", sizeof(format) - 1);
    for (size_t i = 0; i < s.len; i++)
        format[i] = s.p[i];
    format[s.len] = '\0';
    if (!localtime_r(&now, &tm))
        return jr_fail(r, "the time has no local form");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof(text), format, &tm);
#pragma GCC diagnostic pop
    if (jstr_valid((struct jstr){text, n}) < n)
        return jr_fail(r, "the time is not written in UTF-8");
    res = jr_write(r, &out, (struct jstr){text, n});
    copy = out.p;
    if (res == 0)
        *ret = jv_string((struct jstr){copy ? copy : "", n});
    return res;
}

static const struct jfunc globals[] = {
    {"range", g_range, "start stop step", 1},      {"dict", g_dict, NULL, 0},
    {"namespace", g_namespace, NULL, 0},           {"raise_exception", g_raise, "message", 1},
    {"strftime_now", g_strftime_now, "format", 1},
};

const struct jfunc *jglobal_find(struct jstr name)
{
    return jfunc_find(globals, sizeof(globals) / sizeof(*globals), name);
}

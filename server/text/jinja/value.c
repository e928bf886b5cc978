/*
 * Values of a rendering: building, comparing and iterating them as Python does, for all files of
 * this folder. Memory comes from the rendering's arena and is bounded by jr_take(); time is bounded
 * by fuel, which is burned in proportion to the work. Dicts are arrays searched from the start:
 * those of templates have few keys, and a search in a large one costs its fuel.
 */
#include "server/text/jinja/value.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/text/jinja/jinja.h"

#define STEP 8u /* units of work (common/work.h) */

int jr_fail(struct jr *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r->msg, sizeof(r->msg), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    r->line = r->col = 0;
    return -EBADMSG;
}

int jr_burn(struct jr *r, size_t bytes)
{
    uint64_t cost = 1 + bytes / 1024;
    if (cost > r->fuel) {
        r->fuel = 0;
        return jr_fail(r, "the template takes more than %llu steps",
                       (unsigned long long)r->limits->fuel);
    }
    r->fuel -= cost;
    if (!ek_work_pay(r->pay, STEP + bytes / 16))
        return jr_fail(r, "it was stopped");
    return 0;
}

int jr_burn_product(struct jr *r, size_t bytes, size_t times)
{
    size_t all;
    return jr_burn(r, __builtin_mul_overflow(bytes, times, &all) ? SIZE_MAX : all);
}

int jr_work(struct jr *r, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        bytes = SIZE_MAX / 2;
    r->work += bytes + 16; /* a call costs something too */
    if (r->work < 1024)
        return 0;
    size_t whole = r->work / 1024 - 1;
    r->work %= 1024;
    return jr_burn(r, whole * 1024);
}

int jr_enter(struct jr *r)
{
    if (r->depth >= r->limits->depth)
        return jr_fail(r, "nested deeper than %u", r->limits->depth);
    r->depth++;
    return 0;
}

int jr_take(struct jr *r, size_t count, size_t size, void *ret_p)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > r->limits->memory_bytes ||
        r->arena.used_bytes > r->limits->memory_bytes - bytes)
        return jr_fail(r, "rendering needs more than %zu bytes of memory", r->limits->memory_bytes);
    void *p = ek_arena_take(&r->arena, bytes);
    if (!p)
        return -ENOMEM;
    memcpy(ret_p, &p, sizeof(p));
    return 0;
}

int jr_write(struct jr *r, struct jout *o, struct jstr s)
{
    size_t len = o->buf ? o->buf->len : o->len;
    if (s.len > r->limits->output_bytes || len > r->limits->output_bytes - s.len)
        return jr_fail(r, "the text is longer than %zu bytes", r->limits->output_bytes);
    int res = jr_work(r, s.len);
    if (res < 0 || !s.len)
        return res;
    if (o->buf)
        return ek_buf_add(o->buf, s.p, s.len);
    if (o->cap - o->len < s.len) {
        size_t cap = o->cap ? o->cap * 2 : 64;
        while (cap - o->len < s.len)
            cap *= 2;
        char *p;
        res = jr_take(r, cap, 1, &p);
        if (res < 0)
            return res;
        if (o->len)
            memcpy(p, o->p, o->len);
        o->p = p;
        o->cap = cap;
    }
    memcpy(o->p + o->len, s.p, s.len);
    o->len += s.len;
    return 0;
}

int jr_concat(struct jr *r, struct jstr a, struct jstr b, struct jstr *ret)
{
    if (!a.len || !b.len) {
        *ret = a.len ? a : b;
        return 0;
    }
    bool last = r->tail && a.p + a.len == r->tail + r->tail_len && a.p >= r->tail;
    int res = jr_burn(r, last ? b.len : a.len + b.len);
    if (res < 0)
        return res;
    if (!last || r->tail_cap - r->tail_len < b.len) {
        char *p;
        size_t cap = (a.len + b.len) * 2;
        res = jr_take(r, cap, 1, &p);
        if (res < 0)
            return res;
        memcpy(p, a.p, a.len);
        r->tail = p;
        r->tail_len = a.len;
        r->tail_cap = cap;
        a.p = p;
    }
    memcpy(r->tail + r->tail_len, b.p, b.len);
    r->tail_len += b.len;
    *ret = (struct jstr){a.p, a.len + b.len};
    return 0;
}

const char *jv_type(const struct jv *v)
{
    static const char *const flavors[] = {
        [JV_PLAIN] = "list",         [JV_TUPLE] = "tuple",      [JV_KEYS] = "dict_keys",
        [JV_VALUES] = "dict_values", [JV_ITEMS] = "dict_items", [JV_RANGE] = "range",
        [JV_GENERATOR] = "generator"};
    switch ((enum jv_kind)v->kind) {
    case JV_UNDEFINED: return "Undefined";
    case JV_NONE: return "NoneType";
    case JV_BOOL: return "bool";
    case JV_INT: return "int";
    case JV_FLOAT: return "float";
    case JV_STRING: return "str";
    case JV_LIST: return flavors[v->flavor];
    case JV_DICT: return "dict";
    case JV_NAMESPACE: return "Namespace";
    case JV_LOOP: return "LoopContext";
    case JV_MACRO: return "Macro";
    case JV_FUNC: return "function";
    }
    return "?";
}

bool jv_true(const struct jv *v)
{
    switch ((enum jv_kind)v->kind) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v->b;
    case JV_INT: return v->i != 0;
    case JV_FLOAT: return v->f < 0 || v->f > 0 || isnan(v->f);
    case JV_STRING: return v->s.len > 0;
    case JV_LIST: return v->flavor == JV_GENERATOR || v->list->count > 0;
    case JV_DICT: return v->dict->count > 0;
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_FUNC: return true;
    }
    return false;
}

int jv_refuse(struct jr *r, const struct jv *u)
{
    int len = u->s.len > 100 ? 100 : (int)u->s.len;
    struct jv owner = {.kind = u->of};
    switch (u->flavor) {
    case JV_NO_ATTR:
        return jr_fail(r, "'%s object' has no attribute '%.*s'", jv_type(&owner), len, u->s.p);
    case JV_NO_ITEM: return jr_fail(r, "%.*s", len, u->s.p);
    case JV_UNSAFE:
        return jr_fail(r, "'%.*s' would change a '%s', which templates may not", len, u->s.p,
                       jv_type(&owner));
    default: /* JV_NO_NAME */ return jr_fail(r, "'%.*s' is undefined", len, u->s.p);
    }
}

int jv_list_new(struct jr *r, size_t cap, struct jv *ret_list)
{
    struct jv_list *l = NULL;
    int res = jr_take(r, 1, sizeof(*l), &l);
    if (res == 0 && cap)
        res = jr_take(r, cap, sizeof(*l->at), &l->at);
    if (res < 0)
        return res;
    l->cap = cap;
    *ret_list = (struct jv){.kind = JV_LIST, .list = l};
    return 0;
}

int jv_list_push(struct jr *r, struct jv *list, const struct jv *item)
{
    struct jv_list *l = list->list;
    if (l->count == l->cap) {
        struct jv *at;
        size_t cap = l->cap ? l->cap * 2 : 4;
        int res = jr_take(r, cap, sizeof(*at), &at);
        if (res < 0)
            return res;
        if (l->count)
            memcpy(at, l->at, l->count * sizeof(*at));
        l->at = at;
        l->cap = cap;
    }
    l->at[l->count++] = *item;
    return 0;
}

int jv_dict_new(struct jr *r, size_t cap, struct jv *ret_dict)
{
    struct jv_dict *d = NULL;
    int res = jr_take(r, 1, sizeof(*d), &d);
    if (res == 0 && cap)
        res = jr_take(r, cap, sizeof(*d->at), &d->at);
    if (res < 0)
        return res;
    d->cap = cap;
    *ret_dict = (struct jv){.kind = JV_DICT, .dict = d};
    return 0;
}

static bool key_equal(const struct jv *a, const struct jv *b, int depth)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a->kind == JV_FLOAT || b->kind == JV_FLOAT)
            return !(jv_as_float(a) < jv_as_float(b)) && !(jv_as_float(a) > jv_as_float(b));
        return jv_as_int(a) == jv_as_int(b);
    }
    if (a->kind != b->kind)
        return false;
    if (a->kind == JV_STRING)
        return jstr_equal(a->s, b->s);
    if (a->kind != JV_LIST)
        return a->kind == JV_NONE || a->kind == JV_UNDEFINED;
    if (depth == 0 || a->flavor != b->flavor || a->list->count != b->list->count)
        return false;
    for (size_t i = 0; i < a->list->count; i++) {
        if (!key_equal(&a->list->at[i], &b->list->at[i], depth - 1))
            return false;
    }
    return true;
}

static bool hashable(const struct jv *v, int depth)
{
    if (v->kind >= JV_DICT)
        return false;
    if (v->kind != JV_LIST)
        return true;
    bool ok = (v->flavor == JV_TUPLE || v->flavor == JV_RANGE) && depth > 0;
    for (size_t i = 0; ok && i < v->list->count; i++)
        ok = hashable(&v->list->at[i], depth - 1);
    return ok;
}

struct jv *jv_dict_find(const struct jv_dict *d, const struct jv *key)
{
    for (size_t i = 0; i < d->count; i++) {
        if (key_equal(&d->at[i].key, key, 4))
            return &d->at[i].value;
    }
    return NULL;
}

struct jv *jv_dict_get(const struct jv_dict *d, struct jstr key)
{
    for (size_t i = 0; i < d->count; i++) {
        if (d->at[i].key.kind == JV_STRING && jstr_equal(d->at[i].key.s, key))
            return &d->at[i].value;
    }
    return NULL;
}

int jv_dict_set(struct jr *r, struct jv_dict *d, const struct jv *key, const struct jv *value)
{
    if (!hashable(key, 4))
        return jr_fail(r, "unhashable type: '%s'", jv_type(key));
    int res = jr_burn(r, d->count * 16);
    if (res < 0)
        return res;
    struct jv *there = jv_dict_find(d, key);
    if (there) {
        *there = *value;
        return 0;
    }
    if (d->count == d->cap) {
        struct jv_pair *at;
        size_t cap = d->cap ? d->cap * 2 : 4;
        res = jr_take(r, cap, sizeof(*at), &at);
        if (res < 0)
            return res;
        if (d->count)
            memcpy(at, d->at, d->count * sizeof(*at));
        d->at = at;
        d->cap = cap;
    }
    d->at[d->count++] = (struct jv_pair){*key, *value};
    return 0;
}

static int list_of_chars(struct jr *r, struct jstr s, struct jv *ret_list)
{
    struct jv list;
    int res = jv_list_new(r, jstr_count(s), &list);
    for (size_t at = 0; res == 0 && at < s.len;) {
        size_t from = at;
        (void)jstr_next(s, &at); /* only where the next one begins */
        struct jv c = jv_string((struct jstr){s.p + from, at - from});
        res = jv_list_push(r, &list, &c);
    }
    if (res == 0)
        *ret_list = list;
    return res;
}

static int list_of_keys(struct jr *r, const struct jv_dict *d, struct jv *ret_list)
{
    struct jv list;
    int res = jv_list_new(r, d->count, &list);
    for (size_t i = 0; res == 0 && i < d->count; i++)
        res = jv_list_push(r, &list, &d->at[i].key);
    if (res == 0)
        *ret_list = list;
    return res;
}

int jv_iterate(struct jr *r, const struct jv *v, struct jv *ret_list)
{
    int res = 0;
    switch ((enum jv_kind)v->kind) {
    case JV_LIST:
        if (v->flavor == JV_GENERATOR) {
            struct jv list;
            struct jv_list *from = v->list;
            res = jv_list_new(r, 0, &list);
            if (res < 0)
                return res;
            list.list->at = from->at ? from->at + from->taken : NULL;
            list.list->count = list.list->cap = from->count - from->taken;
            from->taken = from->count;
            *ret_list = list;
            return 0;
        }
        *ret_list = *v;
        return 0;
    case JV_UNDEFINED:
        if (v->flavor == JV_UNSAFE)
            return jv_refuse(r, v);
        return jv_list_new(r, 0, ret_list);
    case JV_STRING:
        res = jr_burn(r, v->s.len * 8);
        return res < 0 ? res : list_of_chars(r, v->s, ret_list);
    case JV_DICT:
        res = jr_burn(r, v->dict->count * 8);
        return res < 0 ? res : list_of_keys(r, v->dict, ret_list);
    case JV_NONE:
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_FUNC: break;
    }
    return jr_fail(r, "'%s' object is not iterable", jv_type(v));
}

int jv_length(struct jr *r, const struct jv *v, size_t *ret_length)
{
    if (v->kind == JV_STRING)
        *ret_length = jstr_count(v->s);
    else if (v->kind == JV_LIST && v->flavor != JV_GENERATOR)
        *ret_length = v->list->count;
    else if (v->kind == JV_DICT)
        *ret_length = v->dict->count;
    else if (v->kind == JV_UNDEFINED && v->flavor != JV_UNSAFE)
        *ret_length = 0;
    else
        return jr_fail(r, "object of type '%s' has no len()", jv_type(v));
    return v->kind == JV_STRING ? jr_burn(r, v->s.len) : 0;
}

static int equal_dicts(struct jr *r, const struct jv_dict *a, const struct jv_dict *b, bool *ret)
{
    *ret = a->count == b->count;
    for (size_t i = 0; *ret && i < a->count; i++) {
        const struct jv *other = jv_dict_find(b, &a->at[i].key);
        int res = jr_burn(r, b->count * 16);
        if (res < 0)
            return res;
        *ret = other != NULL;
        if (other && (res = jv_equal(r, &a->at[i].value, other, ret)) < 0)
            return res;
    }
    return 0;
}

static int equal_deep(struct jr *r, const struct jv *a, const struct jv *b, bool *ret)
{
    if (a->kind == JV_DICT)
        return equal_dicts(r, a->dict, b->dict, ret);
    *ret = a->list == b->list ||
           (a->flavor == b->flavor && a->list->count == b->list->count &&
            (a->flavor == JV_PLAIN || a->flavor == JV_TUPLE || a->flavor == JV_RANGE));
    if (a->list == b->list)
        return 0;
    for (size_t i = 0; *ret && i < a->list->count; i++) {
        int res = jv_equal(r, &a->list->at[i], &b->list->at[i], ret);
        if (res < 0)
            return res;
    }
    return 0;
}

int jv_equal(struct jr *r, const struct jv *a, const struct jv *b, bool *ret)
{
    int res = jr_burn(r, a->kind == JV_STRING ? a->s.len : 0);
    if (res < 0)
        return res;
    if (a->kind == b->kind && (a->kind == JV_DICT || a->kind == JV_LIST)) {
        res = jr_enter(r);
        if (res < 0)
            return res;
        res = equal_deep(r, a, b, ret);
        r->depth--;
        return res;
    }
    if (a->kind != b->kind || a->kind <= JV_STRING)
        *ret = key_equal(a, b, 0);
    else
        *ret = a->func == b->func && a->kind != JV_FUNC; /* the same pointer */
    return 0;
}

static int less_lists(struct jr *r, const struct jv_list *a, const struct jv_list *b, bool *ret)
{
    size_t n = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        int res = jv_equal(r, &a->at[i], &b->at[i], &equal);
        if (res < 0)
            return res;
        if (!equal)
            return jv_less(r, &a->at[i], &b->at[i], ret);
    }
    *ret = a->count < b->count;
    return 0;
}

int jv_less(struct jr *r, const struct jv *a, const struct jv *b, bool *ret)
{
    int res = jr_burn(r, a->kind == JV_STRING ? a->s.len : 0);
    if (res < 0)
        return res;
    if (jv_is_number(a) && jv_is_number(b)) {
        *ret = a->kind == JV_FLOAT || b->kind == JV_FLOAT ? jv_as_float(a) < jv_as_float(b)
                                                          : jv_as_int(a) < jv_as_int(b);
        return 0;
    }
    if (a->kind == JV_STRING && b->kind == JV_STRING) {
        *ret = jstr_compare(a->s, b->s) < 0;
        return 0;
    }
    if (a->kind == JV_LIST && b->kind == JV_LIST && a->flavor == b->flavor &&
        (a->flavor == JV_PLAIN || a->flavor == JV_TUPLE)) {
        res = jr_enter(r);
        if (res < 0)
            return res;
        res = less_lists(r, a->list, b->list, ret);
        r->depth--;
        return res;
    }
    if (a->kind == JV_UNDEFINED || b->kind == JV_UNDEFINED)
        return jv_refuse(r, a->kind == JV_UNDEFINED ? a : b);
    return jr_fail(r, "'<' not supported between instances of '%s' and '%s'", jv_type(a),
                   jv_type(b));
}

int jv_contains(struct jr *r, const struct jv *container, const struct jv *item, bool *ret_in)
{
    if (container->kind == JV_STRING) {
        if (item->kind == JV_UNDEFINED)
            return jv_refuse(r, item);
        if (item->kind != JV_STRING)
            return jr_fail(r, "'in <string>' requires string as left operand, not %s",
                           jv_type(item));
        *ret_in = jstr_find(container->s, item->s, 0) != SIZE_MAX;
        return jr_burn(r, container->s.len);
    }
    if (container->kind == JV_DICT) {
        if (!hashable(item, 4))
            return jr_fail(r, "unhashable type: '%s'", jv_type(item));
        *ret_in = jv_dict_find(container->dict, item) != NULL;
        return jr_burn(r, container->dict->count * 16);
    }
    struct jv list;
    if (container->kind != JV_LIST && container->kind != JV_UNDEFINED)
        return jr_fail(r, "argument of type '%s' is not iterable", jv_type(container));
    int res = jv_iterate(r, container, &list);
    *ret_in = false;
    for (size_t i = 0; res == 0 && !*ret_in && i < list.list->count; i++)
        res = jv_equal(r, &list.list->at[i], item, ret_in);
    return res;
}

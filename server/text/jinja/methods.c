/* Methods of dicts, lists and loops. Those that change their value are known as unsafe. */
#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"

static int view(struct jr *r, const struct jcall *c, enum jv_flavor flavor, struct jv *ret)
{
    const struct jv_dict *d = c->self->dict;
    struct jv list;
    int res = jr_burn(r, d->count * 8);
    if (res == 0)
        res = jv_list_new(r, d->count, &list);
    for (size_t i = 0; res == 0 && i < d->count; i++) {
        struct jv v = flavor == JV_KEYS ? d->at[i].key : d->at[i].value;
        if (flavor == JV_ITEMS) {
            res = jv_list_new(r, 2, &v);
            if (res == 0)
                res = jv_list_push(r, &v, &d->at[i].key);
            if (res == 0)
                res = jv_list_push(r, &v, &d->at[i].value);
            v.flavor = JV_TUPLE;
        }
        if (res == 0)
            res = jv_list_push(r, &list, &v);
    }
    if (res < 0)
        return res;
    list.flavor = (uint8_t)flavor;
    *ret = list;
    return 0;
}

static int m_items(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return view(r, c, JV_ITEMS, ret);
}

static int m_keys(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return view(r, c, JV_KEYS, ret);
}

static int m_values(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return view(r, c, JV_VALUES, ret);
}

static int m_get(struct jr *r, const struct jcall *c, struct jv *ret)
{
    bool in = false;
    int res = jv_contains(r, c->self, c->a[0], &in);
    if (res == 0)
        *ret = in ? *jv_dict_find(c->self->dict, c->a[0]) : c->a[1] ? *c->a[1] : jv_none();
    return res;
}

/* Values never change, so a copy is the value itself. */
static int m_copy(struct jr *r, const struct jcall *c, struct jv *ret)
{
    (void)r; /* never fails */
    *ret = *c->self;
    return 0;
}

static int list_find(struct jr *r, const struct jcall *c, int64_t *ret_first, int64_t *ret_count)
{
    const struct jv_list *l = c->self->list;
    int res = 0;
    *ret_first = -1;
    *ret_count = 0;
    for (size_t i = 0; res == 0 && i < l->count; i++) {
        bool equal = false;
        res = jv_equal(r, &l->at[i], c->a[0], &equal);
        if (equal && (*ret_count)++ == 0)
            *ret_first = (int64_t)i;
    }
    return res;
}

static int m_list_count(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int64_t first, count;
    int res = list_find(r, c, &first, &count);
    *ret = jv_int(count);
    return res;
}

static int m_list_index(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int64_t first, count;
    int res = list_find(r, c, &first, &count);
    if (res == 0 && !count)
        return jr_fail(r, "the value is not in the list");
    *ret = jv_int(first);
    return res;
}

static int m_cycle(struct jr *r, const struct jcall *c, struct jv *ret)
{
    if (!c->all->npos)
        return jr_fail(r, "no items for cycling given");
    *ret = c->all->pos[c->self->loop->index % c->all->npos];
    return 0;
}

static const struct jfunc dict_methods[] = {
    {"items", m_items, "", 0}, {"keys", m_keys, "", 0},          {"values", m_values, "", 0},
    {"copy", m_copy, "", 0},   {"get", m_get, "key default", 1},
};

static const struct jfunc list_methods[] = {
    {"count", m_list_count, "value", 1},
    {"index", m_list_index, "value", 1},
    {"copy", m_copy, "", 0},
};

static const struct jfunc loop_methods[] = {{"cycle", m_cycle, NULL, 0}};

static bool among(struct jstr name, const char *const *names)
{
    for (; *names; names++) {
        if (jstr_is(name, *names))
            return true;
    }
    return false;
}

#define FIND(table) jfunc_find(table, sizeof(table) / sizeof(*(table)), name)

const struct jfunc *jmethod_find(const struct jv *v, struct jstr name, bool *ret_unsafe)
{
    static const char *const list_changes[] = {"append", "clear",   "extend", "insert", "pop",
                                               "remove", "reverse", "sort",   NULL};
    static const char *const dict_changes[] = {"clear",      "pop",    "popitem",
                                               "setdefault", "update", NULL};
    switch ((enum jv_kind)v->kind) {
    case JV_STRING: return jmethod_str_find(name);
    case JV_LOOP: return FIND(loop_methods);
    case JV_DICT: *ret_unsafe = among(name, dict_changes); return FIND(dict_methods);
    case JV_LIST:
        if (v->flavor != JV_PLAIN && v->flavor != JV_TUPLE)
            return NULL;
        *ret_unsafe = v->flavor == JV_PLAIN && among(name, list_changes);
        return FIND(list_methods);
    case JV_UNDEFINED:
    case JV_NONE:
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
    case JV_NAMESPACE:
    case JV_MACRO:
    case JV_FUNC: break;
    }
    return NULL;
}

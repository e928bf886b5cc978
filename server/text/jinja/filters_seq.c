/* Filters of templates over sequences and dicts. Called through the table of filters. */
#include <errno.h>
#include <string.h>

#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"
#include "server/text/jinja/print.h"

/* "a.b.0": attributes and elements one after the other; an integer is an element. */
static int attr_path(struct jr *r, const struct jv *item, const struct jv *path, struct jv *ret)
{
    struct jv v = *item;
    if (path->kind != JV_STRING) {
        return jeval_item(r, item, path, ret);
    }
    struct jstr s = path->s;
    int res = 0;
    for (size_t from = 0; res == 0 && from <= s.len;) {
        size_t dot = jstr_find(s, JSTR("."), from);
        size_t to = dot == SIZE_MAX ? s.len : dot;
        struct jv key = jv_string((struct jstr){s.p + from, to - from});
        int64_t index;
        if (key.s.len && key.s.p[0] >= '0' && key.s.p[0] <= '9' && jstr_int(key.s, 10, &index) == 0)
            key = jv_int(index);
        res = jeval_item(r, &v, &key, &v);
        from = to + 1;
    }
    if (res == 0)
        *ret = v;
    return res;
}

/* What a sort, unique, min or max looks at: the attribute, in lower case unless told otherwise. */
static int sort_key(struct jr *r, const struct jv *item, const struct jv *attribute,
                    bool case_sensitive, struct jv *ret)
{
    struct jv v = *item;
    int res = 0;
    if (attribute && attribute->kind != JV_NONE)
        res = attr_path(r, item, attribute, &v);
    if (res == 0 && v.kind == JV_STRING && !case_sensitive) {
        char *p;
        res = jr_burn(r, v.s.len * 4);
        if (res == 0)
            res = jr_take(r, jstr_count(v.s) + 1, 4, &p);
        if (res == 0)
            v = jv_string((struct jstr){p, jstr_recase(v.s, JSTR_LOWER, p)});
    }
    if (res == 0)
        *ret = v;
    return res;
}

struct sortable {
    struct jv key, item;
};

/* Stable merge sort; a comparison may fail. */
static int merge_sort(struct jr *r, struct sortable *at, struct sortable *tmp, size_t n,
                      bool descending)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t from = 0; from < n; from += 2 * width) {
            size_t mid = from + width < n ? from + width : n;
            size_t end = mid + width < n ? mid + width : n, a = from, b = mid, out = from;
            while (a < mid && b < end) {
                bool swap;
                int res = descending ? jv_less(r, &at[a].key, &at[b].key, &swap)
                                     : jv_less(r, &at[b].key, &at[a].key, &swap);
                if (res < 0)
                    return res;
                tmp[out++] = swap ? at[b++] : at[a++];
            }
            while (a < mid)
                tmp[out++] = at[a++];
            while (b < end)
                tmp[out++] = at[b++];
        }
        memcpy(at, tmp, n * sizeof(*at));
    }
    return 0;
}

static int sort_into(struct jr *r, const struct jv *items, const struct jv *attribute,
                     bool case_sensitive, bool descending, struct jv *ret)
{
    size_t n = items->list->count;
    struct sortable *at, *tmp;
    struct jv list;
    int res = jr_take(r, n + 1, sizeof(*at), &at);
    if (res == 0)
        res = jr_take(r, n + 1, sizeof(*tmp), &tmp);
    for (size_t i = 0; res == 0 && i < n; i++) {
        at[i].item = items->list->at[i];
        res = sort_key(r, &at[i].item, attribute, case_sensitive, &at[i].key);
    }
    if (res == 0)
        res = merge_sort(r, at, tmp, n, descending);
    if (res == 0)
        res = jv_list_new(r, n, &list);
    for (size_t i = 0; res == 0 && i < n; i++)
        res = jv_list_push(r, &list, &at[i].item);
    if (res == 0)
        *ret = list;
    return res;
}

static bool flag(const struct jv *v)
{
    return v && jv_true(v);
}

/* sort(reverse, case_sensitive, attribute) */
static int f_sort(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv items;
    int res = jv_iterate(r, c->self, &items);
    return res < 0 ? res : sort_into(r, &items, c->a[2], flag(c->a[1]), flag(c->a[0]), ret);
}

/* The (key, value) pairs of a dict, or of what yields nothing. */
static int pairs_of(struct jr *r, const struct jv *v, struct jv *ret)
{
    static const struct jargs none;
    bool unsafe = false;
    if (v->kind == JV_UNDEFINED)
        return jv_iterate(r, v, ret);
    if (v->kind != JV_DICT)
        return jr_fail(r, "Can only get item pairs from a mapping.");
    return jfunc_call(r, jmethod_find(v, JSTR("items"), &unsafe), v, &none, ret);
}

static int f_items(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv pairs;
    int res = pairs_of(r, c->self, &pairs);
    if (res < 0)
        return res;
    pairs.flavor = JV_GENERATOR;
    *ret = pairs;
    return 0;
}

/* dictsort(case_sensitive, by="key"|"value", reverse) */
static int f_dictsort(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv pairs, at = jv_int(0);
    struct jstr by = JSTR("key");
    int res = c->self->kind == JV_UNDEFINED ? jv_refuse(r, c->self) : pairs_of(r, c->self, &pairs);
    if (res == 0)
        res = jarg_string(r, c->a[1], &by);
    if (res < 0)
        return res;
    if (jstr_is(by, "value"))
        at = jv_int(1);
    else if (!jstr_is(by, "key"))
        return jr_fail(r, "You can only sort by either \"key\" or \"value\"");
    return sort_into(r, &pairs, &at, flag(c->a[0]), flag(c->a[2]), ret);
}

static int f_list(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv list;
    int res = jv_iterate(r, c->self, &list);
    if (res < 0)
        return res;
    list.flavor = JV_PLAIN;
    *ret = list;
    return 0;
}

/* first and last; of a generator, what is read stays read. */
static int filters_seq_end_of(struct jr *r, const struct jcall *c, bool last, struct jv *ret)
{
    struct jv list;
    if (c->self->kind == JV_LIST && c->self->flavor == JV_GENERATOR && !last) {
        struct jv_list *l = c->self->list;
        if (l->taken < l->count) {
            *ret = l->at[l->taken++];
            return 0;
        }
    }
    if (c->self->kind == JV_STRING && c->self->s.len) {
        struct jv index = jv_int(last ? -1 : 0);
        return jeval_item(r, c->self, &index, ret);
    }
    if (last && c->self->kind == JV_LIST && c->self->flavor == JV_GENERATOR)
        return jr_fail(r, "'generator' object is not reversible");
    int res = jv_iterate(r, c->self, &list);
    if (res < 0)
        return res;
    size_t n = list.list->count;
    *ret = jv_undefined(last ? JSTR("No last item, sequence was empty.")
                             : JSTR("No first item, sequence was empty."));
    ret->flavor = JV_NO_ITEM;
    if (n)
        *ret = list.list->at[last ? n - 1 : 0];
    return 0;
}

static int f_first(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_end_of(r, c, false, ret);
}

static int f_last(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_end_of(r, c, true, ret);
}

static int f_join(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv list;
    struct jstr sep = JSTR("");
    struct jout out = {0};
    int res = jv_iterate(r, c->self, &list);
    if (res == 0 && c->a[0])
        res = jprint_to_string(r, c->a[0], &sep);
    for (size_t i = 0; res == 0 && i < list.list->count; i++) {
        struct jv v = list.list->at[i];
        if (c->a[1] && c->a[1]->kind != JV_NONE)
            res = attr_path(r, &v, c->a[1], &v);
        if (res == 0 && i)
            res = jr_write(r, &out, sep);
        if (res == 0)
            res = jprint_str(r, &v, &out);
    }
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int f_reverse(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv list, back;
    int res = jv_iterate(r, c->self, &list);
    if (res == 0)
        res = jv_list_new(r, list.list->count, &back);
    for (size_t i = res == 0 ? list.list->count : 0; res == 0 && i-- > 0;)
        res = jv_list_push(r, &back, &list.list->at[i]);
    if (res < 0)
        return res;
    if (c->self->kind != JV_STRING) {
        back.flavor = JV_GENERATOR;
        *ret = back;
        return 0;
    }
    struct jout out = {0};
    for (size_t i = 0; res == 0 && i < back.list->count; i++)
        res = jr_write(r, &out, back.list->at[i].s);
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

/* unique(case_sensitive, attribute) */
static int f_unique(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv items, keys, kept, key;
    int res = jv_iterate(r, c->self, &items);
    if (res == 0)
        res = jv_dict_new(r, 0, &keys);
    if (res == 0)
        res = jv_list_new(r, 0, &kept);
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        static const struct jv present = {.kind = JV_NONE};
        res = sort_key(r, &items.list->at[i], c->a[1], flag(c->a[0]), &key);
        size_t before = keys.dict->count;
        if (res == 0)
            res = jv_dict_set(r, keys.dict, &key, &present);
        if (res == 0 && keys.dict->count > before)
            res = jv_list_push(r, &kept, &items.list->at[i]);
    }
    if (res < 0)
        return res;
    kept.flavor = JV_GENERATOR;
    *ret = kept;
    return 0;
}

/* min and max (case_sensitive, attribute) */
static int extreme(struct jr *r, const struct jcall *c, bool largest, struct jv *ret)
{
    struct jv items, key, best_key = jv_none(), best;
    int res = jv_iterate(r, c->self, &items);
    best = jv_undefined(JSTR("No aggregated item, sequence was empty."));
    best.flavor = JV_NO_ITEM;
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        bool better = true;
        res = sort_key(r, &items.list->at[i], c->a[1], flag(c->a[0]), &key);
        if (res == 0 && i)
            res = largest ? jv_less(r, &best_key, &key, &better)
                          : jv_less(r, &key, &best_key, &better);
        if (res < 0 || !better)
            continue;
        best_key = key;
        best = items.list->at[i];
    }
    if (res == 0)
        *ret = best;
    return res;
}

static int f_min(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return extreme(r, c, false, ret);
}

static int f_max(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return extreme(r, c, true, ret);
}

/* sum(attribute, start) */
static int f_sum(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv items, total = c->a[1] ? *c->a[1] : jv_int(0);
    int res = jv_iterate(r, c->self, &items);
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        struct jv v = items.list->at[i];
        if (c->a[0] && c->a[0]->kind != JV_NONE)
            res = attr_path(r, &v, c->a[0], &v);
        if (res == 0)
            res = jop_arith(r, '+', &total, &v, &total);
    }
    if (res == 0)
        *ret = total;
    return res;
}

/* batch(linecount, fill_with) */
static int f_batch(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv items, rows, row;
    int64_t n = 0;
    int res = jarg_int(r, c->a[0], &n);
    if (res == 0 && (n < 1 || n > 100000))
        return jr_fail(r, "batch takes 1 to 100000");
    if (res == 0)
        res = jv_iterate(r, c->self, &items);
    if (res == 0)
        res = jv_list_new(r, 0, &rows);
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        if (i % (size_t)n == 0) {
            res = jv_list_new(r, 0, &row);
            if (res == 0)
                res = jv_list_push(r, &rows, &row);
        }
        if (res == 0)
            res = jv_list_push(r, &row, &items.list->at[i]);
    }
    while (res == 0 && c->a[1] && c->a[1]->kind != JV_NONE && rows.list->count &&
           row.list->count < (size_t)n)
        res = jv_list_push(r, &row, c->a[1]);
    if (res < 0)
        return res;
    rows.flavor = JV_GENERATOR;
    *ret = rows;
    return 0;
}

/* A generator of nothing, which is what these filters make of anything false. */
static int filters_seq_nothing(struct jr *r, struct jv *ret)
{
    struct jv list;
    int res = jv_list_new(r, 0, &list);
    if (res < 0)
        return res;
    list.flavor = JV_GENERATOR;
    *ret = list;
    return 0;
}

/* map("filter", args...), map(attribute="name", default=value) */
static int f_map(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jarg *attribute = NULL, *otherwise = NULL;
    const struct jfunc *f = NULL;
    struct jargs rest = *c->all;
    struct jv items, mapped;
    if (!jv_true(c->self))
        return filters_seq_nothing(r, ret);
    for (size_t i = 0; i < c->all->nnamed; i++) {
        if (jstr_is(c->all->named[i].name, "attribute"))
            attribute = &c->all->named[i];
        if (jstr_is(c->all->named[i].name, "default"))
            otherwise = &c->all->named[i];
    }
    if (rest.npos == 0 && !attribute)
        return jr_fail(r, "map requires a filter argument");
    if (rest.npos) {
        f = rest.pos[0].kind == JV_STRING ? jfilter_find(rest.pos[0].s) : NULL;
        if (!f)
            return jr_fail(r, "map takes the name of a filter");
        attribute = NULL;
        rest.pos++;
        rest.npos--;
    }
    int res = jv_iterate(r, c->self, &items);
    if (res == 0)
        res = jv_list_new(r, items.list->count, &mapped);
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        struct jv v = items.list->at[i];
        res = jr_burn(r, 0);
        if (res == 0 && f)
            res = jfunc_call(r, f, &v, &rest, &v);
        else if (res == 0)
            res = attr_path(r, &v, &attribute->value, &v);
        if (res == 0 && !f && v.kind == JV_UNDEFINED && otherwise)
            v = otherwise->value;
        if (res == 0)
            res = jv_list_push(r, &mapped, &v);
    }
    if (res < 0)
        return res;
    mapped.flavor = JV_GENERATOR;
    *ret = mapped;
    return 0;
}

/* select, reject and their forms with an attribute: "test", args... */
static int filters_seq_choose(struct jr *r, const struct jcall *c, bool by_attr, bool keep,
                              struct jv *ret)
{
    struct jargs rest = *c->all;
    const struct jv *attribute = NULL;
    const struct jfunc *test = NULL;
    struct jv items, kept;
    if (!jv_true(c->self))
        return filters_seq_nothing(r, ret);
    if (by_attr) {
        if (!rest.npos)
            return jr_fail(r, "Missing parameter for attribute name");
        attribute = rest.pos++;
        rest.npos--;
    }
    if (rest.npos) {
        test = rest.pos[0].kind == JV_STRING ? jtest_find(rest.pos[0].s) : NULL;
        if (!test)
            return jr_fail(r, "there is no test of that name");
        rest.pos++;
        rest.npos--;
    }
    int res = jv_iterate(r, c->self, &items);
    if (res == 0)
        res = jv_list_new(r, 0, &kept);
    for (size_t i = 0; res == 0 && i < items.list->count; i++) {
        struct jv v = items.list->at[i];
        res = jr_burn(r, 0);
        if (res == 0 && attribute)
            res = attr_path(r, &v, attribute, &v);
        if (res == 0 && test)
            res = jfunc_call(r, test, &v, &rest, &v);
        if (res == 0 && jv_true(&v) == keep)
            res = jv_list_push(r, &kept, &items.list->at[i]);
    }
    if (res < 0)
        return res;
    kept.flavor = JV_GENERATOR;
    *ret = kept;
    return 0;
}

static int f_select(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_choose(r, c, false, true, ret);
}

static int f_reject(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_choose(r, c, false, false, ret);
}

static int f_selectattr(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_choose(r, c, true, true, ret);
}

static int f_rejectattr(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return filters_seq_choose(r, c, true, false, ret);
}

static int f_attr(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr name = {0};
    int res = jarg_string(r, c->a[0], &name);
    if (res < 0)
        return res;
    if (c->self->kind != JV_DICT)
        return jeval_attr(r, c->self, name, ret);
    bool unsafe = false; /* of a dict only methods are attributes */
    if (jmethod_find(c->self, name, &unsafe) || unsafe)
        return jeval_attr(r, c->self, name, ret);
    *ret = jv_undefined(name);
    ret->flavor = JV_NO_ATTR;
    ret->of = JV_DICT;
    return 0;
}

static const struct jfunc filters[] = {
    {"sort", f_sort, "reverse case_sensitive attribute", 0},
    {"dictsort", f_dictsort, "case_sensitive by reverse", 0},
    {"items", f_items, "", 0},
    {"list", f_list, "", 0},
    {"first", f_first, "", 0},
    {"last", f_last, "", 0},
    {"join", f_join, "d attribute", 0},
    {"reverse", f_reverse, "", 0},
    {"unique", f_unique, "case_sensitive attribute", 0},
    {"min", f_min, "case_sensitive attribute", 0},
    {"max", f_max, "case_sensitive attribute", 0},
    {"sum", f_sum, "attribute start", 0},
    {"batch", f_batch, "linecount fill_with", 1},
    {"map", f_map, NULL, 0},
    {"select", f_select, NULL, 0},
    {"reject", f_reject, NULL, 0},
    {"selectattr", f_selectattr, NULL, 0},
    {"rejectattr", f_rejectattr, NULL, 0},
    {"attr", f_attr, "name", 1},
};

const struct jfunc *jfilter_seq_find(struct jstr name)
{
    return jfunc_find(filters, sizeof(filters) / sizeof(*filters), name);
}

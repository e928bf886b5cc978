/*
 * Expressions of a chat template: jeval() walks the tree, for exec.c (statements) and run.c.
 * Attributes and items follow Python: a missing one is undefined, and only its use is an error.
 *
 * Templates come with models, and data from clients, so each node costs fuel and a level of depth,
 * and work that grows with a value (search in a dict, copies) costs more. An error keeps the place
 * of the innermost node.
 */
#include "server/text/jinja/eval.h"

#include <errno.h>
#include <string.h>

#include "server/text/jinja/func.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/print.h"

int jeval_attr(struct jr *r, const struct jv *of, struct jstr name, struct jv *ret)
{
    if (of->kind == JV_UNDEFINED)
        return jv_refuse(r, of);
    bool unsafe = false;
    const struct jfunc *f = jmethod_find(of, name, &unsafe);
    if (f) {
        struct jv *self;
        int res = jr_take(r, 1, sizeof(*self), &self);
        if (res < 0)
            return res;
        *self = *of;
        *ret = (struct jv){.kind = JV_FUNC, .func = f, .self = self};
        return 0;
    }
    if (of->kind == JV_DICT || of->kind == JV_NAMESPACE) {
        int res = jr_burn(r, of->dict->count * 16);
        const struct jv *v = unsafe ? NULL : jv_dict_get(of->dict, name);
        if (res < 0)
            return res;
        if (v) {
            *ret = *v;
            return 0;
        }
    }
    if (of->kind == JV_LOOP && jloop_attr(of->loop, name, ret))
        return 0;
    *ret = jv_undefined(name);
    ret->flavor = unsafe ? JV_UNSAFE : JV_NO_ATTR;
    ret->of = of->kind;
    return 0;
}

static bool subscriptable(const struct jv *v)
{
    return v->kind == JV_STRING ||
           (v->kind == JV_LIST &&
            (v->flavor == JV_PLAIN || v->flavor == JV_TUPLE || v->flavor == JV_RANGE));
}

static int item_at(struct jr *r, const struct jv *of, int64_t index, struct jv *ret)
{
    size_t count;
    int res = jv_length(r, of, &count);
    if (res < 0)
        return res;
    if (index < 0)
        index += (int64_t)count;
    if (index < 0 || index >= (int64_t)count) {
        *ret = jv_undefined(of->kind == JV_STRING ? JSTR("str object has no such element")
                                                  : JSTR("list object has no such element"));
        ret->flavor = JV_NO_ITEM;
        return 0;
    }
    if (of->kind == JV_LIST) {
        *ret = of->list->at[index];
        return 0;
    }
    size_t from = jstr_offset(of->s, (size_t)index), to = from;
    (void)jstr_next(of->s, &to); /* only where the next one begins */
    *ret = jv_string((struct jstr){of->s.p + from, to - from});
    return 0;
}

int jeval_item(struct jr *r, const struct jv *of, const struct jv *key, struct jv *ret)
{
    if (of->kind == JV_UNDEFINED)
        return jv_refuse(r, of);
    if (of->kind == JV_DICT) {
        int res = jr_burn(r, of->dict->count * 16);
        const struct jv *v = jv_dict_find(of->dict, key);
        if (res < 0)
            return res;
        if (v) {
            *ret = *v;
            return 0;
        }
    }
    if (subscriptable(of) && (key->kind == JV_INT || key->kind == JV_BOOL))
        return item_at(r, of, jv_as_int(key), ret);
    if (key->kind == JV_STRING)
        return jeval_attr(r, of, key->s, ret);
    *ret = jv_undefined(JSTR("there is no such element"));
    ret->flavor = JV_NO_ITEM;
    return 0;
}

int jeval_call(struct jr *r, const struct jv *callee, const struct jargs *args, struct jv *ret)
{
    if (callee->kind == JV_FUNC)
        return jfunc_call(r, callee->func, callee->self, args, ret);
    if (callee->kind == JV_MACRO)
        return jexec_macro(r, callee->macro, args, ret);
    if (callee->kind == JV_UNDEFINED)
        return jv_refuse(r, callee);
    return jr_fail(r, "'%s' object is not callable", jv_type(callee));
}

/* The arguments of a call while they are evaluated. */
struct collected {
    struct jv pos;
    struct jarg *named;
    size_t nnamed, cap;
};

static int push_named(struct jr *r, struct collected *c, struct jstr name, const struct jv *value)
{
    if (c->nnamed == c->cap) {
        struct jarg *named;
        size_t cap = c->cap * 2 + 4;
        int res = jr_take(r, cap, sizeof(*named), &named);
        if (res < 0)
            return res;
        if (c->nnamed)
            memcpy(named, c->named, c->nnamed * sizeof(*named));
        c->named = named;
        c->cap = cap;
    }
    c->named[c->nnamed++] = (struct jarg){name, *value};
    return 0;
}

/* *list: positional arguments; **dict: named ones. */
static int jeval_spread(struct jr *r, const struct jv *v, bool named, struct collected *c)
{
    struct jv list;
    int res = 0;
    if (!named) {
        res = jv_iterate(r, v, &list);
        for (size_t i = 0; res == 0 && i < list.list->count; i++)
            res = jv_list_push(r, &c->pos, &list.list->at[i]);
        return res;
    }
    if (v->kind != JV_DICT)
        return jr_fail(r, "argument after ** must be a mapping, not %s", jv_type(v));
    for (size_t i = 0; res == 0 && i < v->dict->count; i++) {
        const struct jv_pair *pair = &v->dict->at[i];
        if (pair->key.kind != JV_STRING)
            return jr_fail(r, "keywords must be strings");
        res = push_named(r, c, pair->key.s, &pair->value);
    }
    return res;
}

int jeval_args(struct jr *r, const struct jnodes *kids, struct jargs *ret_args)
{
    struct collected c = {0};
    int res = jv_list_new(r, kids->count, &c.pos);
    for (uint32_t i = 0; res == 0 && i < kids->count; i++) {
        const struct jnode *k = kids->at[i];
        bool wrapped = k->kind == JN_KEYWORD || k->kind == JN_SPREAD;
        struct jv v;
        res = jeval(r, wrapped ? k->a : k, &v);
        if (res < 0)
            break;
        if (k->kind == JN_SPREAD)
            res = jeval_spread(r, &v, k->op != '*', &c);
        else if (k->kind == JN_KEYWORD)
            res = push_named(r, &c, k->name, &v);
        else
            res = jv_list_push(r, &c.pos, &v);
    }
    if (res == 0)
        *ret_args = (struct jargs){c.pos.list->at, c.pos.list->count, c.named, c.nnamed};
    return res;
}

static int eval_list(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv list, v;
    int res = jv_list_new(r, n->kids.count, &list);
    for (uint32_t i = 0; res == 0 && i < n->kids.count; i++) {
        res = jeval(r, n->kids.at[i], &v);
        if (res == 0)
            res = jv_list_push(r, &list, &v);
    }
    if (n->kind == JN_TUPLE)
        list.flavor = JV_TUPLE;
    if (res == 0)
        *ret = list;
    return res;
}

static int eval_dict(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv dict, key, value;
    int res = jv_dict_new(r, n->kids.count / 2, &dict);
    for (uint32_t i = 0; res == 0 && i + 1 < n->kids.count; i += 2) {
        res = jeval(r, n->kids.at[i], &key);
        if (res == 0)
            res = jeval(r, n->kids.at[i + 1], &value);
        if (res == 0)
            res = jv_dict_set(r, dict.dict, &key, &value);
    }
    if (res == 0)
        *ret = dict;
    return res;
}

static int eval_name(struct jr *r, const struct jnode *n, struct jv *ret)
{
    const struct jv *v = jscope_find(r->scope, n->name);
    const struct jfunc *f = v ? NULL : jglobal_find(n->name);
    if (v)
        *ret = *v;
    else if (f)
        *ret = (struct jv){.kind = JV_FUNC, .func = f};
    else
        *ret = jv_undefined(n->name);
    return 0;
}

static int eval_attr(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv of;
    int res = jeval(r, n->a, &of);
    return res < 0 ? res : jeval_attr(r, &of, n->name, ret);
}

static int eval_item(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv of, key;
    int res = jeval(r, n->a, &of);
    if (res == 0)
        res = jeval(r, n->b, &key);
    return res < 0 ? res : jeval_item(r, &of, &key, ret);
}

static int eval_slice(struct jr *r, const struct jnode *n, struct jv *ret)
{
    const struct jnode *const parts[3] = {n->b, n->c, n->d};
    struct jv of, values[3];
    const struct jv *bounds[3] = {NULL, NULL, NULL};
    int res = jeval(r, n->a, &of);
    for (int i = 0; res == 0 && i < 3; i++) {
        if (parts[i]) {
            res = jeval(r, parts[i], &values[i]);
            bounds[i] = &values[i];
        }
    }
    return res < 0 ? res : jop_slice(r, &of, bounds, ret);
}

static int eval_call(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv callee;
    struct jargs args;
    int res = jeval(r, n->a, &callee);
    if (res == 0)
        res = jeval_args(r, &n->kids, &args);
    return res < 0 ? res : jeval_call(r, &callee, &args, ret);
}

/* A filter or test over a value. */
static int jeval_apply(struct jr *r, const struct jnode *n, const struct jv *value, struct jv *ret)
{
    struct jargs args;
    if (!n->func) {
        int len = n->name.len > 60 ? 60 : (int)n->name.len;
        return jr_fail(r, "there is no %s named '%.*s'", n->kind == JN_TEST ? "test" : "filter",
                       len, n->name.p);
    }
    int res = jeval_args(r, &n->kids, &args);
    return res < 0 ? res : jfunc_call(r, n->func, value, &args, ret);
}

static int eval_apply(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv value;
    int res = jeval(r, n->a, &value);
    return res < 0 ? res : jeval_apply(r, n, &value, ret);
}

int jeval_filters(struct jr *r, const struct jnode *filters, const struct jv *value, struct jv *ret)
{
    const struct jnode *chain[JINJA_NEST_MAX + 1];
    size_t n = 0;
    for (; filters && n <= JINJA_NEST_MAX; filters = filters->a)
        chain[n++] = filters;
    struct jv v = *value;
    int res = 0;
    while (res == 0 && n-- > 0)
        res = jeval_apply(r, chain[n], &v, &v);
    if (res == 0)
        *ret = v;
    return res;
}

static int eval_chain(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv left, right;
    int res = jeval(r, n->kids.at[0], &left);
    for (uint32_t i = 1; res == 0 && i < n->kids.count; i++) {
        res = jeval(r, n->kids.at[i], &right);
        if (res == 0)
            res = jop_arith(r, n->ops[i - 1], &left, &right, &left);
        if (res == -EBADMSG && !r->line) { /* more exact than the place of the whole chain */
            r->line = n->kids.at[i]->line;
            r->col = n->kids.at[i]->col;
        }
    }
    if (res == 0)
        *ret = left;
    return res;
}

static int eval_concat(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jstr all = JSTR(""), piece;
    struct jv v;
    int res = 0;
    for (uint32_t i = 0; res == 0 && i < n->kids.count; i++) {
        res = jeval(r, n->kids.at[i], &v);
        if (res == 0)
            res = jprint_to_string(r, &v, &piece);
        if (res == 0)
            res = jr_concat(r, all, piece, &all);
    }
    if (res == 0)
        *ret = jv_string(all);
    return res;
}

static int eval_logic(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv v;
    for (uint32_t i = 0; i < n->kids.count; i++) {
        int res = jeval(r, n->kids.at[i], &v);
        if (res < 0)
            return res;
        if (jv_true(&v) == (n->kind == JN_OR))
            break;
    }
    *ret = v;
    return 0;
}

static int eval_compare(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv left, right;
    bool holds = true;
    int res = jeval(r, n->kids.at[0], &left);
    for (uint32_t i = 1; res == 0 && holds && i < n->kids.count; i++) {
        res = jeval(r, n->kids.at[i], &right);
        if (res == 0)
            res = jop_compare(r, n->ops[i - 1], &left, &right, &holds);
        left = right;
    }
    if (res == 0)
        *ret = jv_bool(holds);
    return res;
}

static int eval_unary(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv v;
    int res = jeval(r, n->a, &v);
    if (res < 0)
        return res;
    if (n->kind != JN_NOT)
        return jop_sign(r, n->kind == JN_NEGATE, &v, ret);
    *ret = jv_bool(!jv_true(&v));
    return 0;
}

static int eval_cond(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jv v;
    int res = jeval(r, n->a, &v);
    if (res < 0)
        return res;
    if (jv_true(&v))
        return jeval(r, n->b, ret);
    if (n->c)
        return jeval(r, n->c, ret);
    *ret = jv_undefined(JSTR("the inline if-expression evaluated to false and has no else"));
    ret->flavor = JV_NO_ITEM;
    return 0;
}

static int eval_node(struct jr *r, const struct jnode *n, struct jv *ret)
{
    switch (n->kind) {
    case JN_CONST: *ret = n->value; return 0;
    case JN_NAME: return eval_name(r, n, ret);
    case JN_LIST:
    case JN_TUPLE: return eval_list(r, n, ret);
    case JN_DICT: return eval_dict(r, n, ret);
    case JN_ATTR: return eval_attr(r, n, ret);
    case JN_ITEM: return eval_item(r, n, ret);
    case JN_SLICE: return eval_slice(r, n, ret);
    case JN_CALL: return eval_call(r, n, ret);
    case JN_FILTER:
    case JN_TEST: return eval_apply(r, n, ret);
    case JN_NOT:
    case JN_NEGATE:
    case JN_PLUS: return eval_unary(r, n, ret);
    case JN_CHAIN: return eval_chain(r, n, ret);
    case JN_CONCAT: return eval_concat(r, n, ret);
    case JN_AND:
    case JN_OR: return eval_logic(r, n, ret);
    case JN_COMPARE: return eval_compare(r, n, ret);
    case JN_COND: return eval_cond(r, n, ret);
    case JN_KEYWORD:
    case JN_SPREAD:
    case JN_TEXT:
    case JN_PRINT:
    case JN_SET:
    case JN_SET_BLOCK:
    case JN_FOR:
    case JN_IF:
    case JN_MACRO:
    case JN_PARAM:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_GROUP:
    case JN_BREAK:
    case JN_CONTINUE: break;
    }
    return jr_fail(r, "not an expression");
}

int jeval(struct jr *r, const struct jnode *n, struct jv *ret)
{
    int res = jr_enter(r);
    if (res == 0) {
        res = n->kind == JN_CONST || n->kind == JN_NAME ? 0 : jr_burn(r, 0);
        if (res == 0)
            res = eval_node(r, n, ret);
        r->depth--;
    }
    if (res == -EBADMSG && !r->line) {
        r->line = n->line;
        r->col = n->col;
    }
    return res;
}

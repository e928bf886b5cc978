/*
 * Runs statements of a template: scopes, loops and macros (eval.h). Called by run.c and, for
 * macros, by eval.c.
 *
 * exec_node() does one statement of the tree and exec_body() a list of them, until a break or a
 * continue (enum jflow) has to be obeyed by the loop around. What is written goes to r->out: where
 * a text is wanted instead (a macro, a set block, a filter block) r->out is another buffer for as
 * long as the body runs (capture()).
 *
 * Names are looked up from the innermost scope outwards and set in the innermost one, as Jinja has
 * it: what a loop sets is gone after it, unless it is an attribute of a namespace(). A scope keeps
 * its variables in the order in which they were set, and a hash of their names from LOOK_MOST on,
 * since the data of a request may bring thousands. A loop uses one scope for all of its rounds,
 * unless a macro that was made in a round may still refer to it (`captured`).
 *
 * Scopes and values lie in the rendering's arena and are freed with it. Each statement costs fuel,
 * and nesting has a bound (jr_work(), jr_enter()), since templates and data are foreign.
 */
#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"

#define LOOK_MOST 16u /* variables that are looked through one by one */

enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE };

static int exec_body(struct jr *r, const struct jnodes *body, enum jflow *flow);

int jscope_push(struct jr *r)
{
    struct jscope *s;
    int res = jr_take(r, 1, sizeof(*s), &s);
    if (res < 0)
        return res;
    s->parent = r->scope;
    r->scope = s;
    return 0;
}

static bool is_named(const struct jvar *v, struct jstr name)
{
    return v->name.len == name.len &&
           (v->name.p == name.p || memcmp(v->name.p, name.p, name.len) == 0);
}

/* Where the name is, or would be. Names come from clients: where the scope lies makes the hash
 * another one in each process, so that names that collide cannot be chosen. */
static uint32_t *slot_of(const struct jscope *s, struct jstr name)
{
    uint32_t at = (uint32_t)XXH3_64bits_withSeed(name.p, name.len, (uintptr_t)s);

    while (s->slot[at & (s->slots - 1)] != 0 &&
           !is_named(&s->vars[s->slot[at & (s->slots - 1)] - 1], name))
        at++;
    return &s->slot[at & (s->slots - 1)];
}

static struct jv *find_here(const struct jscope *s, struct jstr name)
{
    if (s->slots > 0 && s->count > LOOK_MOST) {
        uint32_t found = *slot_of(s, name);
        return found > 0 ? &s->vars[found - 1].value : NULL;
    }
    for (uint32_t i = 0; i < s->count; i++)
        if (is_named(&s->vars[i], name))
            return &s->vars[i].value;
    return NULL;
}

/* Gives the last variable its slot; all of them new ones when there are too few. */
static int give_slot(struct jr *r, struct jscope *s)
{
    if (s->count <= LOOK_MOST)
        return 0;
    if (s->count > LOOK_MOST + 1 && s->count * 2 <= s->slots) {
        *slot_of(s, s->vars[s->count - 1].name) = s->count;
        return 0;
    }
    uint32_t slots = LOOK_MOST * 4;
    while (slots < s->count * 4)
        slots *= 2;
    int res = 0;
    if (s->slots >= slots) /* of a round before */
        memset(s->slot, 0, s->slots * sizeof(*s->slot));
    else
        res = jr_take(r, slots, sizeof(*s->slot), &s->slot);
    if (s->slots < slots)
        s->slots = res == 0 ? slots : 0;
    for (uint32_t i = 0; res == 0 && i < s->count; i++)
        *slot_of(s, s->vars[i].name) = i + 1;
    return res;
}

int jscope_set(struct jr *r, struct jscope *s, struct jstr name, const struct jv *value)
{
    int res = jr_work(r, name.len + 48);
    if (res < 0)
        return res;
    struct jv *there = find_here(s, name);
    if (there) {
        *there = *value;
        return 0;
    }
    if (s->count == s->cap) {
        struct jvar *vars;
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        res = jr_take(r, cap, sizeof(*vars), &vars);
        if (res < 0)
            return res;
        if (s->count)
            memcpy(vars, s->vars, s->count * sizeof(*vars));
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->count++] = (struct jvar){name, *value};
    return give_slot(r, s);
}

const struct jv *jscope_find(const struct jscope *s, struct jstr name)
{
    for (; s; s = s->parent) {
        const struct jv *v = find_here(s, name);
        if (v)
            return v;
    }
    return NULL;
}

static int assign_attr(struct jr *r, const struct jnode *target, const struct jv *value)
{
    struct jv ns, key = jv_string(target->name);
    int res = jeval(r, target->a, &ns);
    if (res < 0)
        return res;
    if (ns.kind != JV_NAMESPACE)
        return jr_fail(r, "cannot assign attribute on non-namespace object");
    return jv_dict_set(r, ns.dict, &key, value);
}

static int exec_assign(struct jr *r, const struct jnode *target, const struct jv *value)
{
    struct jv list;
    if (target->kind == JN_NAME)
        return jscope_set(r, r->scope, target->name, value);
    if (target->kind == JN_ATTR)
        return assign_attr(r, target, value);
    if (target->kind != JN_TUPLE)
        return jr_fail(r, "this cannot be assigned to");
    int res = jr_enter(r);
    if (res == 0)
        res = jv_iterate(r, value, &list);
    if (res == 0 && list.list->count != target->kids.count)
        res = jr_fail(r, "%s values to unpack (expected %u, got %zu)",
                      list.list->count < target->kids.count ? "not enough" : "too many",
                      target->kids.count, list.list->count);
    for (uint32_t i = 0; res == 0 && i < target->kids.count; i++)
        res = exec_assign(r, target->kids.at[i], &list.list->at[i]);
    if (res == 0)
        r->depth--;
    return res;
}

/* The text that a body writes, in a scope of its own. */
static int capture(struct jr *r, const struct jnodes *body, struct jv *ret)
{
    struct jout out = {0}, *before = r->out;
    enum jflow flow = JFLOW_NEXT;
    int res = jscope_push(r);
    if (res < 0)
        return res;
    r->out = &out;
    res = exec_body(r, body, &flow);
    r->out = before;
    r->scope = r->scope->parent;
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int exec_set(struct jr *r, const struct jnode *n)
{
    struct jv v;
    int res = n->kind == JN_SET ? jeval(r, n->b, &v) : capture(r, &n->body, &v);
    if (res == 0 && n->kind == JN_SET_BLOCK && n->b)
        res = jeval_filters(r, n->b, &v, &v);
    return res < 0 ? res : exec_assign(r, n->a, &v);
}

/* The elements for which the loop's condition holds. */
static int filter_items(struct jr *r, const struct jnode *n, const struct jv *all, struct jv *ret)
{
    struct jv kept, v;
    int res = jv_list_new(r, 0, &kept);
    if (res == 0)
        res = jscope_push(r);
    if (res < 0)
        return res;
    for (size_t i = 0; res == 0 && i < all->list->count; i++) {
        res = exec_assign(r, n->a, &all->list->at[i]);
        if (res == 0)
            res = jeval(r, n->c, &v);
        if (res == 0 && jv_true(&v))
            res = jv_list_push(r, &kept, &all->list->at[i]);
    }
    r->scope = r->scope->parent;
    if (res == 0)
        *ret = kept;
    return res;
}

/* One round; the scope is used again for the next unless a macro kept it. */
static int exec_round(struct jr *r, const struct jnode *n, struct jloop *loop, enum jflow *flow)
{
    struct jv v = {.kind = JV_LOOP, .loop = loop};
    int res = jr_burn(r, 0);
    if (r->scope->captured && res == 0) {
        r->scope = r->scope->parent;
        res = jscope_push(r);
    }
    r->scope->count = 0;
    if (res == 0)
        res = jscope_set(r, r->scope, JSTR("loop"), &v);
    if (res == 0)
        res = exec_assign(r, n->a, &loop->items->at[loop->index]);
    return res < 0 ? res : exec_body(r, &n->body, flow);
}

static int exec_for(struct jr *r, const struct jnode *n, enum jflow *flow)
{
    struct jv v, items;
    int res = jeval(r, n->b, &v);
    if (res == 0)
        res = jv_iterate(r, &v, &items);
    if (res == 0 && n->c)
        res = filter_items(r, n, &items, &items);
    if (res < 0)
        return res;
    struct jloop *loop;
    bool whole = false; /* as in jinja2, a round that was broken off does not count for the else */
    res = jr_take(r, 1, sizeof(*loop), &loop);
    if (res == 0)
        res = jscope_push(r);
    if (res < 0)
        return res;
    loop->items = items.list;
    enum jflow inner = JFLOW_NEXT;
    for (; res == 0 && inner != JFLOW_BREAK && loop->index < items.list->count; loop->index++) {
        inner = JFLOW_NEXT;
        res = exec_round(r, n, loop, &inner);
        whole |= inner == JFLOW_NEXT;
    }
    r->scope = r->scope->parent;
    if (res < 0 || whole)
        return res;
    res = jscope_push(r);
    if (res == 0)
        res = exec_body(r, &n->kids, flow);
    if (res == 0)
        r->scope = r->scope->parent;
    return res;
}

static int exec_if(struct jr *r, const struct jnode *n, enum jflow *flow)
{
    for (;; n = n->b) {
        struct jv v;
        int res = jeval(r, n->a, &v);
        if (res < 0)
            return res;
        if (jv_true(&v))
            return exec_body(r, &n->body, flow);
        if (!n->b)
            return exec_body(r, &n->kids, flow);
    }
}

static int make_macro(struct jr *r, const struct jnode *n, struct jv *ret)
{
    struct jmacro *m;
    int res = jr_take(r, 1, sizeof(*m), &m);
    if (res < 0)
        return res;
    *m = (struct jmacro){.node = n, .scope = r->scope};
    for (struct jscope *s = r->scope; s && !s->captured; s = s->parent)
        s->captured = true;
    *ret = (struct jv){.kind = JV_MACRO, .macro = m};
    return 0;
}

static int exec_call_block(struct jr *r, const struct jnode *n)
{
    struct jv callee, caller, v;
    struct jargs args;
    int res = jeval(r, n->a->a, &callee);
    if (res == 0)
        res = jeval_args(r, &n->a->kids, &args);
    if (res == 0)
        res = make_macro(r, n, &caller);
    if (res < 0)
        return res;
    struct jarg *named;
    res = jr_take(r, args.nnamed + 1, sizeof(*named), &named);
    if (res < 0)
        return res;
    if (args.nnamed)
        memcpy(named, args.named, args.nnamed * sizeof(*named));
    named[args.nnamed] = (struct jarg){n->name, caller};
    args.named = named;
    args.nnamed++;
    res = jeval_call(r, &callee, &args, &v);
    return res < 0 ? res : jexec_print(r, &v);
}

static int exec_filter_block(struct jr *r, const struct jnode *n)
{
    struct jv v;
    int res = capture(r, &n->body, &v);
    if (res == 0)
        res = jeval_filters(r, n->b, &v, &v);
    return res < 0 ? res : jexec_print(r, &v);
}

static int exec_with(struct jr *r, const struct jnode *n, enum jflow *flow)
{
    struct jv v;
    struct jscope *outside = r->scope;
    int res = jscope_push(r);
    if (res < 0)
        return res;
    struct jscope *inside = r->scope;
    for (uint32_t i = 0; res == 0 && i < n->kids.count; i++) {
        r->scope = outside; /* the values do not see each other */
        res = jeval(r, n->kids.at[i]->b, &v);
        r->scope = inside;
        if (res == 0)
            res = exec_assign(r, n->kids.at[i]->a, &v);
    }
    if (res == 0)
        res = exec_body(r, &n->body, flow);
    r->scope = outside;
    return res;
}

static int exec_print(struct jr *r, const struct jnode *n)
{
    struct jv v;
    int res = jeval(r, n->a, &v);
    return res < 0 ? res : jexec_print(r, &v);
}

static int exec_macro(struct jr *r, const struct jnode *n)
{
    struct jv v;
    int res = make_macro(r, n, &v);
    return res < 0 ? res : jscope_set(r, r->scope, n->name, &v);
}

static int exec_node(struct jr *r, const struct jnode *n, enum jflow *flow)
{
    switch (n->kind) {
    case JN_TEXT: return jr_write(r, r->out, n->value.s);
    case JN_PRINT: return exec_print(r, n);
    case JN_SET:
    case JN_SET_BLOCK: return exec_set(r, n);
    case JN_FOR: return exec_for(r, n, flow);
    case JN_IF: return exec_if(r, n, flow);
    case JN_MACRO: return exec_macro(r, n);
    case JN_CALL_BLOCK: return exec_call_block(r, n);
    case JN_FILTER_BLOCK: return exec_filter_block(r, n);
    case JN_WITH:
    case JN_GROUP: return exec_with(r, n, flow);
    case JN_BREAK: *flow = JFLOW_BREAK; return 0;
    case JN_CONTINUE: *flow = JFLOW_CONTINUE; return 0;
    case JN_CONST:
    case JN_NAME:
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
    case JN_ATTR:
    case JN_ITEM:
    case JN_SLICE:
    case JN_CALL:
    case JN_FILTER:
    case JN_TEST:
    case JN_KEYWORD:
    case JN_SPREAD:
    case JN_NOT:
    case JN_NEGATE:
    case JN_PLUS:
    case JN_CHAIN:
    case JN_CONCAT:
    case JN_AND:
    case JN_OR:
    case JN_COMPARE:
    case JN_COND:
    case JN_PARAM: break;
    }
    return jr_fail(r, "not a statement");
}

static int exec_body(struct jr *r, const struct jnodes *body, enum jflow *flow)
{
    int res = jr_enter(r);
    if (res < 0)
        return res;
    for (uint32_t i = 0; res == 0 && *flow == JFLOW_NEXT && i < body->count; i++) {
        const struct jnode *n = body->at[i];
        res = jr_burn(r, 0);
        if (res == 0)
            res = exec_node(r, n, flow);
        if (res == -EBADMSG && !r->line) {
            r->line = n->line;
            r->col = n->col;
        }
    }
    r->depth--;
    return res;
}

int jexec(struct jr *r, const struct jnodes *body)
{
    enum jflow flow = JFLOW_NEXT;
    return exec_body(r, body, &flow);
}

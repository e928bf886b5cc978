/*
 * A whole rendering: the data becomes variables, the statements run, macros are called. Called for
 * each chat.
 */
#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"
#include "server/text/jinja/jinja.h"
#include "server/text/jinja/print.h"

const struct jinja_limits jinja_limits = {
    .fuel = 1000000,
    .output_bytes = 4u << 20,
    .memory_bytes = 64u << 20,
    .depth = 400,
    .calls = 48,
};

int jexec_print(struct jr *r, const struct jv *v)
{
    return jprint_str(r, v, r->out);
}

bool jloop_attr(struct jloop *loop, struct jstr name, struct jv *ret)
{
    static const struct jstr nothing = {"loop neighbour", 14};
    const struct jv_list *l = loop->items;
    int64_t i = (int64_t)loop->index, n = (int64_t)l->count;
    const struct {
        const char *name;
        struct jv value;
    } attrs[] = {
        {"index", jv_int(i + 1)},
        {"index0", jv_int(i)},
        {"first", jv_bool(i == 0)},
        {"last", jv_bool(i == n - 1)},
        {"length", jv_int(n)},
        {"revindex", jv_int(n - i)},
        {"revindex0", jv_int(n - i - 1)},
        {"previtem", i > 0 ? l->at[i - 1] : jv_undefined(nothing)},
        {"nextitem", i < n - 1 ? l->at[i + 1] : jv_undefined(nothing)},
        {"depth", jv_int(1)},
        {"depth0", jv_int(0)},
    };
    for (size_t k = 0; k < sizeof(attrs) / sizeof(*attrs); k++) {
        if (jstr_is(name, attrs[k].name)) {
            *ret = attrs[k].value;
            return true;
        }
    }
    return false;
}

static const struct jarg *find_named(const struct jargs *args, struct jstr name)
{
    for (size_t i = 0; i < args->nnamed; i++) {
        if (jstr_equal(args->named[i].name, name))
            return &args->named[i];
    }
    return NULL;
}

/* Every named argument must be a parameter, and not be given twice. */
static int check_named(struct jr *r, const struct jnode *n, const struct jargs *args)
{
    for (size_t i = 0; i < args->nnamed; i++) {
        struct jstr name = args->named[i].name;
        int len = name.len > 60 ? 60 : (int)name.len;
        bool known = jstr_is(name, "caller");
        for (uint32_t k = 0; k < n->kids.count; k++) {
            if (!jstr_equal(n->kids.at[k]->name, name))
                continue;
            if (k < args->npos)
                return jr_fail(r, "the macro got two values for '%.*s'", len, name.p);
            known = true;
        }
        if (!known)
            return jr_fail(r, "the macro takes no argument '%.*s'", len, name.p);
    }
    return 0;
}

static int bind_params(struct jr *r, const struct jnode *n, const struct jargs *args)
{
    const struct jnodes *params = &n->kids;
    int res = check_named(r, n, args);
    if (res == 0 && args->npos > params->count) {
        int len = n->name.len > 60 ? 60 : (int)n->name.len;
        res = jr_fail(r, "macro '%.*s' takes not more than %u argument(s)", len, n->name.p,
                      params->count);
    }
    const struct jarg *caller = find_named(args, JSTR("caller"));
    struct jv v = caller ? caller->value : jv_undefined(JSTR("caller"));
    if (res == 0 && n->kind == JN_MACRO)
        res = jscope_set(r, r->scope, JSTR("caller"), &v);
    for (uint32_t i = 0; res == 0 && i < params->count; i++) {
        const struct jnode *p = params->at[i];
        const struct jarg *named = find_named(args, p->name);
        v = jv_undefined(p->name);
        if (i < args->npos)
            v = args->pos[i];
        else if (named)
            v = named->value;
        else if (p->a)
            res = jeval(r, p->a, &v);
        if (res == 0)
            res = jscope_set(r, r->scope, p->name, &v);
    }
    return res;
}

int jexec_macro(struct jr *r, const struct jmacro *m, const struct jargs *args, struct jv *ret)
{
    if (r->calls >= r->limits->calls)
        return jr_fail(r, "macro calls are nested deeper than %u", r->limits->calls);
    struct jout out = {0}, *out_before = r->out;
    struct jscope *scope_before = r->scope;
    r->scope = m->scope;
    r->calls++;
    int res = jscope_push(r);
    if (res == 0)
        res = bind_params(r, m->node, args);
    r->out = &out;
    if (res == 0)
        res = jexec(r, &m->node->body);
    r->calls--;
    r->out = out_before;
    r->scope = scope_before;
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int load_string(struct jr *r, const struct jinja_env *env, const char *s, size_t len,
                       bool mark, struct jv *ret)
{
    int res = jr_work(r, len);
    if (res < 0)
        return res;
    res = mark && env->mark ? env->mark(env->mark_arg, &r->arena, &s, &len) : 0;
    if (res == -EBADMSG)
        return jr_fail(r, "the data contains every character that could keep special tokens apart");
    if (res == 0)
        *ret = jv_string((struct jstr){s, len});
    return res;
}

static int load_array(struct jr *r, const struct jinja_env *env, const json_t *j, bool mark,
                      struct jv *ret)
{
    struct jv list, v;
    size_t n = json_array_size(j);
    int res = jv_list_new(r, n, &list);
    for (size_t i = 0; res == 0 && i < n; i++) {
        res = jdata_load(r, env, json_array_get(j, i), mark, &v);
        if (res == 0)
            res = jv_list_push(r, &list, &v);
    }
    if (res == 0)
        *ret = list;
    return res;
}

static int load_object(struct jr *r, const struct jinja_env *env, const json_t *j, bool mark,
                       struct jv *ret)
{
    struct jv dict;
    size_t n = json_object_size(j), i = 0;
    int res = jv_dict_new(r, n, &dict);
    /* Jansson's iteration wants an object that may change; it is not changed. */
    json_t *object;
    memcpy(&object, &j, sizeof(object));
    for (void *at = json_object_iter(object); res == 0 && at && i < n;
         at = json_object_iter_next(object, at), i++) {
        struct jv_pair *pair = &dict.dict->at[i];
        res = load_string(r, env, json_object_iter_key(at), json_object_iter_key_len(at), mark,
                          &pair->key);
        if (res == 0)
            res = jdata_load(r, env, json_object_iter_value(at), mark, &pair->value);
        if (res == 0)
            dict.dict->count++;
    }
    if (res == 0)
        *ret = dict;
    return res;
}

int jdata_load(struct jr *r, const struct jinja_env *env, const json_t *j, bool mark,
               struct jv *ret)
{
    int res = jr_enter(r);
    if (res == 0)
        res = jr_work(r, 48);
    if (res < 0)
        return res;
    switch (json_typeof(j)) {
    case JSON_NULL: *ret = jv_none(); break;
    case JSON_TRUE: *ret = jv_bool(true); break;
    case JSON_FALSE: *ret = jv_bool(false); break;
    case JSON_INTEGER: *ret = jv_int(json_integer_value(j)); break;
    case JSON_REAL: *ret = jv_float(json_real_value(j)); break;
    case JSON_STRING:
        res = load_string(r, env, json_string_value(j), json_string_length(j), mark, ret);
        break;
    case JSON_ARRAY: res = load_array(r, env, j, mark, ret); break;
    case JSON_OBJECT: res = load_object(r, env, j, mark, ret); break;
    }
    r->depth--;
    return res;
}

static int set_variables(struct jr *r, const struct jinja_env *env, const json_t *vars, bool mark)
{
    json_t *object;
    memcpy(&object, &vars, sizeof(object)); /* as in load_object */
    int res = 0;
    for (void *at = vars ? json_object_iter(object) : NULL; res == 0 && at;
         at = json_object_iter_next(object, at)) {
        struct jstr name = {json_object_iter_key(at), json_object_iter_key_len(at)};
        struct jv v;
        res = jdata_load(r, env, json_object_iter_value(at), mark, &v);
        if (res == 0)
            res = jscope_set(r, r->scope, name, &v);
    }
    return res;
}

static int jinja_run_template(struct jr *r, const struct jinja *t, const struct jinja_env *env)
{
    int res = jscope_push(r);
    if (res == 0)
        res = set_variables(r, env, env->constants, false);
    if (res == 0)
        res = set_variables(r, env, env->context, true);
    if (res == 0)
        res = jscope_push(r);
    return res < 0 ? res : jexec(r, &t->body);
}

int jinja_render(const struct jinja *t, const struct jinja_env *env, struct ek_buf *out,
                 struct ek_fault *fault)
{
    struct ek_buf text = {0};
    struct jout top = {.buf = &text};
    struct jr r = {.limits = env->limits ? env->limits : &jinja_limits,
                   .out = &top,
                   .now_s = env->now_s,
                   .pay = env->work};
    r.fuel = r.limits->fuel;
    int res = jinja_run_template(&r, t, env);
    if (res == -EBADMSG && r.line)
        res = jlex_fail(fault, r.line, r.col, "%s", r.msg);
    else if (res == -EBADMSG)
        res = ek_fault_set(fault, "messages", "chat template: %s", r.msg);
    if (res == 0)
        res = ek_buf_add(out, text.data ? text.data : "", text.len);
    ek_buf_done(&text);
    ek_arena_done(&r.arena);
    return res;
}

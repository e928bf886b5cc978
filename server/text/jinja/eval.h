/*
 * Evaluation of the tree: expressions in eval.c, statements and scopes in
 * exec.c, macros and the whole rendering in run.c. Every function returns 0, -EBADMSG
 * (message in the jr) or -ENOMEM.
 */
#pragma once

#include "server/text/jinja/parse.h"
#include "server/text/jinja/value.h"

struct jargs;
struct jinja_env;

struct jvar {
    struct jstr name;
    struct jv value;
};

/* Variables by name, of which the data may bring very many; loops, macros and such have their own.
 * Lives in the rendering's arena. */
struct jscope {
    struct jscope *parent;
    struct jvar *vars;
    uint32_t count, cap;
    uint32_t *slot, slots; /* hash of names, number + 1; 0 slots while few are looked through */
    bool captured;         /* a macro refers to it, so that it may not be used again */
};

struct jloop {
    const struct jv_list *items;
    size_t index;
};

struct jmacro {
    const struct jnode *node; /* JN_MACRO or JN_CALL_BLOCK */
    struct jscope *scope;     /* where it was defined */
};

int jeval(struct jr *r, const struct jnode *n, struct jv *ret);
/* The filters of a filter block or set block, over `value`. */
int jeval_filters(struct jr *r, const struct jnode *filters, const struct jv *value,
                  struct jv *ret);
int jeval_attr(struct jr *r, const struct jv *of, struct jstr name, struct jv *ret);
int jeval_item(struct jr *r, const struct jv *of, const struct jv *key, struct jv *ret);
int jeval_call(struct jr *r, const struct jv *callee, const struct jargs *args, struct jv *ret);
/* Evaluates the arguments of a call. */
int jeval_args(struct jr *r, const struct jnodes *kids, struct jargs *ret_args);

int jexec(struct jr *r, const struct jnodes *body);
int jexec_macro(struct jr *r, const struct jmacro *m, const struct jargs *args, struct jv *ret);
int jexec_print(struct jr *r, const struct jv *v); /* to the output at hand */
/* False when a loop has no such attribute. */
bool jloop_attr(struct jloop *loop, struct jstr name, struct jv *ret);
int jscope_push(struct jr *r); /* leave with r->scope = r->scope->parent */
int jscope_set(struct jr *r, struct jscope *s, struct jstr name, const struct jv *value);
const struct jv *jscope_find(const struct jscope *s, struct jstr name);

/* ---- ops.c ---- */
/* op as in jlex_token */
int jop_arith(struct jr *r, uint32_t op, const struct jv *a, const struct jv *b, struct jv *ret);
int jop_compare(struct jr *r, uint32_t op, const struct jv *a, const struct jv *b, bool *ret);
int jop_sign(struct jr *r, bool negate, const struct jv *a, struct jv *ret);
/* of[from:to:step]; each may be NULL or none. */
int jop_slice(struct jr *r, const struct jv *of, const struct jv *const bounds[3], struct jv *ret);

/* ---- run.c ---- */
/* A value of the data; its strings as env->mark gives them, if `mark`. */
int jdata_load(struct jr *r, const struct jinja_env *env, const json_t *j, bool mark,
               struct jv *ret);

/*
 * The tree of a template. It lies in the arena of the template, is never changed after parsing,
 * and is shared by all renderings. Names are interned: equal names are the same pointer.
 *
 * What a node's fields mean depends on its kind (second comment column); others are zero.
 */
#pragma once

#include "common/arena.h"
#include "server/text/jinja/lex.h"
#include "server/text/jinja/value.h"

enum jnode_kind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* name */
    JN_LIST,    /* kids */
    JN_TUPLE,   /* kids; also a target of assignment */
    JN_DICT,    /* kids: key, value, key, value, ... */
    JN_ATTR,    /* a . name */
    JN_ITEM,    /* a [ b ] */
    JN_SLICE,   /* a [ b : c : d ], each of b c d may be NULL */
    JN_CALL,    /* a ( kids ), named ones are JN_KEYWORD, *x and **x JN_SPREAD */
    JN_FILTER,  /* a | name ( kids ); a is NULL in a filter block */
    JN_TEST,    /* a is name ( kids ) */
    JN_KEYWORD, /* name = a */
    JN_SPREAD,  /* a; op: '*' or JLEX_OP2('*', '*') */
    JN_NOT,     /* a */
    JN_NEGATE,  /* a */
    JN_PLUS,    /* a */
    JN_CHAIN,   /* kids[0] ops[0] kids[1] ops[1] ..., from the left */
    JN_CONCAT,  /* kids, joined as text */
    JN_AND,     /* kids */
    JN_OR,      /* kids */
    JN_COMPARE, /* kids[0] ops[0] kids[1] ..., as in Python: a < b < c */
    JN_COND,    /* b if a else c; c may be NULL */
    /* statements */
    JN_TEXT,         /* value */
    JN_PRINT,        /* a */
    JN_SET,          /* a (target) = b */
    JN_SET_BLOCK,    /* a (target), body, b: filter chain or NULL */
    JN_FOR,          /* a (target) in b if c; body, kids: the else body */
    JN_IF,           /* a, body; b: the JN_IF of the next elif or NULL; kids: the else body */
    JN_MACRO,        /* name, kids: parameters, body */
    JN_PARAM,        /* name, a: default or NULL */
    JN_CALL_BLOCK,   /* a: JN_CALL, kids: parameters of caller(), body */
    JN_FILTER_BLOCK, /* b: filter chain, body */
    JN_WITH,         /* kids: JN_SET, body */
    JN_GROUP,        /* body (generation tags) */
    JN_BREAK,
    JN_CONTINUE,
};

/* Operators of JN_COMPARE that are words. */
enum { JN_OP_IN = 'i', JN_OP_NOT_IN = 'n' };

struct jnodes {
    struct jnode **at;
    uint32_t count, cap;
};

struct jnode {
    enum jnode_kind kind;
    uint32_t line, col;
    uint32_t op;
    struct jstr name;
    struct jv value;
    struct jnode *a, *b, *c, *d;
    struct jnodes kids, body;
    uint32_t *ops;            /* kids.count - 1 of them */
    const struct jfunc *func; /* of JN_FILTER and JN_TEST; NULL when there is none of that name */
};

struct jinja {
    struct ek_arena arena;
    struct jnodes body;
};

/* ---- shared by parse.c (statements), expr.c and postfix.c (expressions) ---- */

struct jparse {
    struct jlex lex;
    struct ek_arena *arena;
    struct ek_fault *fault;
    struct jlex_token now, next; /* `next` holds when has_next */
    bool has_next;
    uint32_t depth;
    uint32_t loops; /* for statements around this place */
    struct {        /* a hash table; free places have no text */
        struct jstr *at;
        size_t count, cap;
    } names;
};

enum { JPARSE_NO_COND = 1, JPARSE_EMPTY = 2 };

int jparse_advance(struct jparse *p);
int jparse_peek(struct jparse *p);
bool jparse_at_op(const struct jparse *p, uint32_t op);
bool jparse_at_word(const struct jparse *p, const char *word);
int jparse_expect_op(struct jparse *p, uint32_t op);
int jparse_fail(struct jparse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int jparse_unexpected(struct jparse *p, const char *wanted);
int jparse_enter(struct jparse *p); /* leave with p->depth-- */
/* A node at the current token. */
int jparse_node(struct jparse *p, enum jnode_kind kind, struct jnode **ret_node);
int jparse_push(struct jparse *p, struct jnodes *list, struct jnode *n);
/* The current token, which must be a name; moves on. */
int jparse_name(struct jparse *p, struct jstr *ret_name);

int jparse_expr(struct jparse *p, struct jnode **ret_node);
/* One expression or, with commas, a tuple. flags: JPARSE_... */
int jparse_tuple(struct jparse *p, int flags, struct jnode **ret_node);
int jparse_primary(struct jparse *p, struct jnode **ret_node);
/* Attributes, subscripts and calls behind *node, which they then hold. */
int jparse_postfix(struct jparse *p, struct jnode **node);
/* "name(args) | name ..." with nothing or a value (may be NULL) in front. */
int jparse_filters(struct jparse *p, struct jnode *value, bool first_is_bare,
                   struct jnode **ret_node);
/* Names, tuples of names, or a namespace's attribute. */
int jparse_target(struct jparse *p, struct jnode **ret_node);

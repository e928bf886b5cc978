/*
 * Values of a rendering, and the rendering's memory, fuel and fault.
 *
 * A value is 32 bytes by copy; what it points to lies in the rendering's arena (or in the data and
 * the template, which outlive it) and is never changed, so values are shared freely. The exceptions
 * are a namespace's attributes and how far a generator was read. Lists come in flavors, because
 * Python's lists, tuples, views, generators and ranges differ in what they allow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/arena.h"
#include "server/text/jinja/str.h"

struct ek_buf;
struct ek_fault;
struct ek_work;
struct jfunc;
struct jinja_limits;
struct jloop;
struct jmacro;
struct jscope;

enum jv_kind {
    JV_UNDEFINED, /* s: the name that was asked for */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STRING,
    JV_LIST,
    JV_DICT,
    JV_NAMESPACE, /* dict */
    JV_LOOP,
    JV_MACRO,
    JV_FUNC, /* func, bound to *self when that is not NULL */
};

enum jv_flavor {
    JV_PLAIN, /* a list */
    JV_TUPLE,
    JV_KEYS,
    JV_VALUES,
    JV_ITEMS,
    JV_RANGE,
    JV_GENERATOR, /* always true, has no length, can be read once */
    /* of JV_STRING: */
    JV_MARKUP = 1, /* from `safe` or `escape`: what is added to it is escaped */
    /* of JV_UNDEFINED: */
    JV_NO_NAME = 0, /* no variable of that name */
    JV_NO_ATTR,     /* a value of kind `of` has no such attribute */
    JV_NO_ITEM,     /* the name is a whole sentence */
    JV_UNSAFE,      /* a method that would change the value */
};

struct jv {
    uint8_t kind, flavor, of;
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr s;
        struct jv_list *list;
        struct jv_dict *dict;
        struct jloop *loop;
        struct jmacro *macro;
        struct {
            const struct jfunc *func;
            const struct jv *self;
        };
    };
};

struct jv_list {
    struct jv *at;
    size_t count, cap;
    size_t taken; /* of a generator: how many were read */
};

struct jv_pair {
    struct jv key, value;
};

struct jv_dict {
    struct jv_pair *at; /* in the order of insertion */
    size_t count, cap;
};

/* Where text goes: a buffer of the caller, or a string that grows in the arena. */
struct jout {
    struct ek_buf *buf;
    char *p;
    size_t len, cap;
};

/* One rendering. Owner: the thread that renders. */
struct jr {
    struct ek_arena arena;
    const struct jinja_limits *limits;
    uint64_t fuel; /* left */
    size_t work;   /* bytes worked on that are not paid for yet */
    uint32_t depth, calls;
    char msg[400]; /* of the failure under way */
    uint32_t line; /* of that failure, 0 until the innermost node is known */
    uint32_t col;
    struct jscope *scope;
    struct jout *out;
    char *tail; /* the string that concatenation made last, with room behind it */
    size_t tail_len, tail_cap;
    uint64_t now_s;
    struct ek_work *pay; /* for steps, beside the fuel; NULL = none */
};

/* Records the message; returns -EBADMSG. */
int jr_fail(struct jr *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Pays for one step and `bytes` of work. -EBADMSG when the fuel is spent. */
int jr_burn(struct jr *r, size_t bytes);
/* For `times` looks at each of so many bytes. */
int jr_burn_product(struct jr *r, size_t bytes, size_t times);
/* Pays for `bytes` of work only, a step for each KiB in all. */
int jr_work(struct jr *r, size_t bytes);
/* Zeroed memory for count things. -ENOMEM, -EBADMSG over the limit. */
int jr_take(struct jr *r, size_t count, size_t size, void *ret_p);
int jr_write(struct jr *r, struct jout *o, struct jstr s);
/* a + b; in place when a is what was made last, so that building text piecewise is linear. */
int jr_concat(struct jr *r, struct jstr a, struct jstr b, struct jstr *ret);
int jr_enter(struct jr *r); /* one level deeper; -EBADMSG at the limit. Leave with r->depth-- */

static inline struct jv jv_none(void)
{
    return (struct jv){.kind = JV_NONE};
}
static inline struct jv jv_bool(bool b)
{
    return (struct jv){.kind = JV_BOOL, .b = b};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.kind = JV_INT, .i = i};
}
static inline struct jv jv_float(double f)
{
    return (struct jv){.kind = JV_FLOAT, .f = f};
}
static inline struct jv jv_string(struct jstr s)
{
    return (struct jv){.kind = JV_STRING, .s = s};
}
static inline struct jv jv_undefined(struct jstr name)
{
    return (struct jv){.kind = JV_UNDEFINED, .s = name};
}
static inline bool jv_is_number(const struct jv *v)
{
    return v->kind == JV_INT || v->kind == JV_FLOAT || v->kind == JV_BOOL;
}
static inline int64_t jv_as_int(const struct jv *v)
{
    return v->kind == JV_BOOL ? v->b : v->kind == JV_FLOAT ? (int64_t)v->f : v->i;
}
static inline double jv_as_float(const struct jv *v)
{
    return v->kind == JV_FLOAT ? v->f : (double)jv_as_int(v);
}

const char *jv_type(const struct jv *v); /* Python's name of the type */
bool jv_true(const struct jv *v);
/* Fails with why an undefined value cannot be used. */
int jv_refuse(struct jr *r, const struct jv *undefined);

int jv_list_new(struct jr *r, size_t cap, struct jv *ret_list);
int jv_list_push(struct jr *r, struct jv *list, const struct jv *item); /* while building only */
int jv_dict_new(struct jr *r, size_t cap, struct jv *ret_dict);
/* While building (and for namespaces); the last one of equal keys wins. -EBADMSG: unhashable. */
int jv_dict_set(struct jr *r, struct jv_dict *d, const struct jv *key, const struct jv *value);
/* NULL when absent. Keys are compared as Python does, without failing. */
struct jv *jv_dict_find(const struct jv_dict *d, const struct jv *key);
struct jv *jv_dict_get(const struct jv_dict *d, struct jstr key);

/* The elements of anything that can be iterated, as a list (a generator is then read). */
int jv_iterate(struct jr *r, const struct jv *v, struct jv *ret_list);
int jv_length(struct jr *r, const struct jv *v, size_t *ret_length);
int jv_equal(struct jr *r, const struct jv *a, const struct jv *b, bool *ret_equal);
/* a < b; -EBADMSG for types without an order. */
int jv_less(struct jr *r, const struct jv *a, const struct jv *b, bool *ret_less);
int jv_contains(struct jr *r, const struct jv *container, const struct jv *item, bool *ret_in);

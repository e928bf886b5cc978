/*
 * Functions that templates may call: filters, tests, methods and globals are rows of tables.
 * `params` names the parameters in their order; the binder fills jcall.a by position and by name
 * and refuses what fits nothing, so that bodies only look at what they were given.
 */
#pragma once

#include "server/text/jinja/value.h"

enum { JFUNC_PARAMS = 5 };

struct jarg {
    struct jstr name;
    struct jv value;
};

struct jargs {
    const struct jv *pos;
    size_t npos;
    const struct jarg *named;
    size_t nnamed;
};

struct jcall {
    const struct jv *self;            /* what the filter, test or method applies to */
    const struct jv *a[JFUNC_PARAMS]; /* NULL when not given */
    const struct jargs *all;
};

struct jfunc {
    const char *name;
    int (*run)(struct jr *r, const struct jcall *c, struct jv *ret);
    const char *params; /* "width first blank"; NULL: any number, see jcall.all */
    uint8_t required;
};

/* Binds and runs. self may be NULL. */
int jfunc_call(struct jr *r, const struct jfunc *f, const struct jv *self, const struct jargs *args,
               struct jv *ret);
const struct jfunc *jfunc_find(const struct jfunc *table, size_t rows, struct jstr name);

const struct jfunc *jfilter_find(struct jstr name);
const struct jfunc *jfilter_seq_find(struct jstr name); /* the part that works on sequences */
const struct jfunc *jtest_find(struct jstr name);
const struct jfunc *jglobal_find(struct jstr name);
/* A method of v's type; *ret_unsafe when it exists and would change the value. */
const struct jfunc *jmethod_find(const struct jv *v, struct jstr name, bool *ret_unsafe);
const struct jfunc *jmethod_str_find(struct jstr name);

/* Arguments of a given kind; an absent one leaves the default. -EBADMSG naming the function. */
int jarg_int(struct jr *r, const struct jv *arg, int64_t *value);
int jarg_string(struct jr *r, const struct jv *arg, struct jstr *value);
int jfunc_recase(struct jr *r, struct jstr s, enum jstr_case how, struct jv *ret);
/* Text for HTML; markup is that already. *ret is markup. */
int jfunc_escape(struct jr *r, const struct jv *text, struct jv *ret);
/* "a % b" of a string, where b is a tuple of values, or one value. */
int jfunc_percent(struct jr *r, struct jstr format, const struct jv *args, size_t count, bool tuple,
                  struct jv *ret);

/* The inside of the schema reader: what its modules share. */
#pragma once

#include <stdbool.h>

#include <jansson.h>

#include "common/buf.h"
#include "server/grammar/expr.h"
#include "server/grammar/schema.h"

/* Rules that every schema may need, made when first called. */
enum json_rule {
    RULE_WS,     /* nothing, a space, or a line break and what indents the next line */
    RULE_CHAR,   /* one character of a string */
    RULE_STRING, /* with its quotes */
    RULE_NUMBER,
    RULE_INTEGER,
    RULE_VALUE,
    RULE_OBJECT,
    RULE_ARRAY,
    RULE_RULES
};

enum json_types {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4, /* whole numbers only */
    TYPE_NUMBER = 8,  /* all numbers */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};

/* Resolving and negating call each other, each with a depth of its own that begins anew: a
 * reference to what is being negated would go round until the stack ends. So many may be within one
 * another; each takes 1 to 2 KB of it. */
#define SCHEMA_WITHIN 200u

struct schema_reader {
    struct expr_set *set;
    const json_t *root;
    json_t *refs; /* what $ref says -> number of its rule */
    json_t *flat; /* what $ref says -> that with its own $ref and allOf resolved */
    uint32_t rule[RULE_RULES];
    bool made[RULE_RULES];
    char path[256]; /* JSON pointer of what is being read; its tail is cut when it is too long */
    uint32_t depth;
    uint32_t within;           /* how many of SCHEMA_WITHIN */
    bool python;               /* values are read by Python's rules too: True, None, no \\u */
    const char *comma, *colon; /* the only ones, NULL = with white space that may be */
    bool never;                /* it was refused since it contradicts itself */
    struct ek_fault *fault;
};

/* Pays for work, as ek_work_pay(). */
static inline bool schema_pay(const struct schema_reader *r, uint64_t units)
{
    return ek_work_pay(r->set->work, units);
}
/* Makes and frees what a schema's references lead to, for a new root. 0 or -ENOMEM. */
int schema_root(struct schema_reader *r, const json_t *root);
void schema_root_done(struct schema_reader *r);

/* The values of one type. */
int schema_type(struct schema_reader *r, const json_t *schema, unsigned type, uint32_t *ret_expr);
/* Any schema, boolean or object. */
int schema_value(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);
/* The same as a call, so that it can be used many times. */
int schema_rule(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);

/* schema_pointer.c */
/* Refuses `keyword` (may be NULL) of the schema at hand, with its pointer. -EBADMSG. */
int schema_refuse(struct schema_reader *r, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a contradiction: one of several alternatives may have it, then it is left out. */
int schema_contradicts(struct schema_reader *r, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether `code` says that there is no value, which then is forgotten. */
bool schema_is_never(struct schema_reader *r, int code);
/* Goes down into `keyword` (and `name` in it, may be NULL); gives back where it was. */
size_t schema_enter(struct schema_reader *r, const char *keyword, const char *name);
void schema_leave(struct schema_reader *r, size_t was);
/* What $ref points to, NULL with a fault. */
const json_t *schema_find(struct schema_reader *r, const char *ref);

/* schema_types.c */
bool schema_is_annotation(const char *keyword);
/* Refuses a schema with a keyword that is not read. */
int schema_check(struct schema_reader *r, const json_t *schema);
/* TYPE_..., as `type` says or the other keywords imply. */
int schema_types(struct schema_reader *r, const json_t *schema, unsigned *ret_types);
#define ITEMS_MOST 10000u /* elements of an array that are counted */
/* A count: absent gives `missing`. */
int schema_count(struct schema_reader *r, const json_t *schema, const char *keyword,
                 uint32_t missing, uint32_t *ret_count);

/* schema_json.c */
uint32_t json_call(struct schema_reader *r, enum json_rule which);
uint32_t json_comma(struct schema_reader *r); /* and white space */
uint32_t json_colon(struct schema_reader *r);
/* open, what may be empty, close: with white space where people put some. */
uint32_t json_between(struct schema_reader *r, const char *open, uint32_t inner, const char *close);
/* A word of JSON, or Python's for it too. */
uint32_t json_word(struct schema_reader *r, const char *word, const char *python);
/* The text of a value: as it will be written. -ENOMEM; -EBADMSG where Python cannot read it. */
int json_literal(struct schema_reader *r, const json_t *v, uint32_t *ret_expr);
uint32_t json_as_call(struct schema_reader *r, uint32_t expr, const char *name);

/* schema_number.c, schema_string.c, schema_object.c, schema_array.c: one type each. */
int schema_number(struct schema_reader *r, const json_t *schema, bool whole, uint32_t *ret_expr);
int schema_string(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);
int schema_object(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);
int schema_array(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr);

/* schema_plain.c: without the keywords that others can say; a new reference. */
int schema_plain(struct schema_reader *r, const json_t *schema, json_t **ret_schema);
bool schema_is_plain(const json_t *schema);
/* schema_except.c: a value of one type that is none of those that the schema's `not` names. */
int schema_except(struct schema_reader *r, const json_t *schema, unsigned type, uint32_t *ret_expr);

/* schema_keys.c: true also where it cannot be told. */
struct automaton;
/* The automaton of a pattern, to be freed with automaton_done(); false when there is none. */
bool schema_key_pattern(const struct schema_reader *r, const char *pattern, size_t len,
                        struct automaton *ret_automaton);
bool schema_key_may_match(const struct automaton *a, const char *name);
bool schema_keys_may_meet(const struct schema_reader *r, const struct automaton *a,
                          const struct automaton *b); /* NULL = there is none */
/* schema_unique.c: the inside of a list whose elements differ. 1 when they are not of a known few,
 * or of too many: no automaton can tell. */
int schema_unique(struct schema_reader *r, const json_t *items, uint32_t least, uint32_t most,
                  uint32_t *ret_expr);

/* schema_merge.c: what both say, a new object; $ref is followed. -EBADMSG with a fault. */
int schema_merge(struct schema_reader *r, const json_t *a, const json_t *b, json_t **ret_schema);
/* Whether no value can be valid under both, as far as can be told. */
bool schema_apart(struct schema_reader *r, const json_t *a, const json_t *b, uint32_t depth);
/* Whether a value keeps to bounds and lengths of a schema; used beside enum and const. */
bool schema_allows(const struct schema_reader *r, const json_t *schema, unsigned types,
                   const json_t *v);
/* What $ref and allOf say joined, one level deep; a new reference. */
int schema_flatten(struct schema_reader *r, const json_t *schema, json_t **ret_schema);
/* TYPE_... of a value. */
unsigned schema_type_of(const json_t *v);
bool schema_same(const struct schema_reader *r, const json_t *a,
                 const json_t *b); /* as JSON schema compares: 1 is 1.0 */
bool schema_equal(const struct schema_reader *r, const json_t *a,
                  const json_t *b); /* json_equal() that is paid for */

/* schema_object.c: characters behind `at` bytes which all of name[from..to) share, that make none
 * of them; sorted by bytes. */
uint32_t schema_other_names(struct expr_set *s, const char *const *name, uint32_t from, uint32_t to,
                            size_t at);
/* schema_string.c: in quotes, as a rule. */
uint32_t schema_quoted(struct schema_reader *r, uint32_t inside);

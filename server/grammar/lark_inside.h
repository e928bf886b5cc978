/* The inside of the reader of Lark's grammars: what its modules share. */
#pragma once

#include "server/grammar/expr.h"
#include "server/grammar/lark.h"

#define LARK_SLOTS 4096u /* a power of two above LARK_NAMES */

/* How a rule ends, where it says so: with the first text of an expression. */
struct lark_end {
    bool set;
    uint32_t expr;
};

/* A rule or terminal. */
struct lark_name {
    uint32_t rule; /* of the set */
    size_t used;   /* where it was named first */
    bool terminal, lazy;
    uint8_t visit;   /* of the search for terminals that come round to themselves */
    uint32_t weight; /* expressions of a terminal that was visited */
    uint32_t cut;    /* a lazy terminal's shortest texts */
    struct lark_end end;
};

struct lark {
    struct expr_set *set;
    const char *s;
    size_t len, at;
    uint32_t depth;           /* open brackets, in which lines may break */
    bool in_json;             /* texts are the inside of a JSON string */
    bool terminal;            /* a terminal is being read */
    bool lazy;                /* ... in which there is a lazy count */
    bool skips;               /* something is ignored ... */
    uint32_t skip;            /* ... by this rule of the set */
    bool skip_first;          /* also before the first terminal */
    struct expr_list ignored; /* what is, one after the other; */
    struct expr_list cut;     /* what is with a lazy count, to be cut when all is read */
    struct lark_name name[LARK_NAMES];
    uint32_t names;
    uint32_t first;            /* the first rule that is written, UINT32_MAX = none */
    uint16_t slot[LARK_SLOTS]; /* hash of names: name + 1 */
    size_t most_at;            /* where max_tokens stands, 0 = nowhere ... */
    uint32_t most;             /* ... how many ... */
    uint32_t most_rule;        /* ... and of which rule */
    lark_schema_reader *schema;
    struct ek_fault *fault;
};

/* Refuses what is at `at`, with its line. -EBADMSG. */
int lark_refuse(struct lark *r, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool lark_accept(struct lark *r, const char *text);
bool lark_looking_at(const struct lark *r, const char *text);
/* Over blanks and comments; over ends of lines in brackets, and before a | that goes on. */
void lark_blank(struct lark *r);
size_t lark_name_length(const struct lark *r);
/* The rule or terminal of that name, a new one if need be. */
int lark_find(struct lark *r, const char *name, size_t len, struct lark_name **ret_name);

/* lark_expr.c: what a definition is made of, up to its end or a closing bracket; one text, pattern,
 * name or group of it; a number of a count. */
int lark_alternatives(struct lark *r, uint32_t *ret_expr);
int lark_item(struct lark *r, uint32_t *ret_expr);
bool lark_read_number(struct lark *r, uint32_t *ret_n);

/* lark_marks.c: behind the [ of a rule's attributes, and %json. */
int lark_attributes(struct lark *r, struct lark_end *ret_end, bool *ret_most);
int lark_json(struct lark *r, uint32_t *ret_expr);
/* When all is read and settled. */
int lark_end_rules(struct lark *r);
/* Refuses max_tokens of a rule that is not all of what `begin` says. */
int lark_check_most(struct lark *r, uint32_t begin);

/* lark_text.c: what one terminal is made of. Behind the quote, behind the slash; a terminal of
 * `common`, EXPR_NEVER when there is none of that name. */
int lark_text(struct lark *r, uint32_t *ret_expr);
int lark_pattern(struct lark *r, uint32_t *ret_expr);
int lark_common(struct lark *r, const char *name, size_t len, uint32_t *ret_expr);

/* lark_terms.c: when all is read. Refuses terminals that come round to themselves, and cuts those
 * with a lazy count down to their shortest texts. */
int lark_settle(struct lark *r);
/* What may stand between terminals, and as the last thing of all. */
int lark_ignored(struct lark *r, uint32_t *ret_expr, uint32_t *ret_last);

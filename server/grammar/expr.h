/*
 * A grammar as a tree: what the readers of schemas, regular expressions and EBNF build and what
 * automaton.h compiles. An expression is a number in its set; rules may call each other and
 * themselves. Building never fails at once: a set that ran out of memory or fuel, or grew too
 * large, is marked, answers EXPR_EMPTY from then on and is refused at the end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/work.h"
#include "server/grammar/chars.h"

struct ek_fault;

#define EXPR_MANY       UINT32_MAX /* no upper bound */
#define EXPR_MOST       (1u << 20) /* expressions of a set */
#define EXPR_NAME_MOST  40u
#define EXPR_DEPTH_MOST 512u /* of nested expressions */

enum expr_kind {
    EXPR_KIND_EMPTY,  /* the empty text */
    EXPR_KIND_NEVER,  /* no text at all */
    EXPR_KIND_BYTE,   /* one byte from lo to hi */
    EXPR_KIND_TEXT,   /* a: offset in `text`, b: length */
    EXPR_KIND_SEQ,    /* a: first of `item`, b: how many */
    EXPR_KIND_ALT,    /* likewise */
    EXPR_KIND_REPEAT, /* a: expression, b to c times */
    EXPR_KIND_CALL,   /* a: rule */
    EXPR_KIND_TABLE,  /* a: of `table` */
};

#define EXPR_EMPTY 0u
#define EXPR_NEVER 1u

struct expr {
    uint8_t kind, lo, hi;
    uint32_t a, b, c;
};

struct expr_rule {
    uint32_t body; /* UINT32_MAX until it is set */
    char name[EXPR_NAME_MOST];
};

/* A finite automaton in place of an expression, see table.h. It begins in state 0; each state can
 * reach one that is final. */
struct expr_edge {
    uint32_t from, to;
    uint8_t lo, hi;
};

struct expr_table {
    uint32_t states;
    uint32_t edge, edges; /* the first one in `edge` of the set, how many */
    uint32_t final;       /* where its states begin in `final` of the set */
};

struct expr_set {
    struct expr *node;
    uint32_t nodes, node_room;
    uint32_t *item, items, item_room;
    struct expr_rule *rule;
    uint32_t rules, rule_room;
    struct expr_table *table;
    uint32_t tables, table_room;
    struct expr_edge *edge;
    uint32_t edges, edge_room;
    bool *final;
    uint32_t finals, final_room;
    struct ek_buf text;
    struct ek_buf marks; /* fixed strings, each with a 0 behind it: see grammar_take_marks_of() */
    bool any_twice;      /* elements that should differ may be alike: see grammar_is_loose() */
    bool no_memory, too_large;
    struct ek_work *work; /* set behind expr_init(); each expression is paid for */
};

/* A list of expressions on its way to a sequence or an alternative. */
struct expr_list {
    struct expr_set *set;
    uint32_t *at, count, room;
};

void expr_init(struct expr_set *s); /* not to be used before */
void expr_done(struct expr_set *s);
static inline bool expr_ok(const struct expr_set *s)
{
    return !s->no_memory && !s->too_large && !ek_work_stopped(s->work);
}

uint32_t expr_byte(struct expr_set *s, uint8_t lo, uint8_t hi);
uint32_t expr_bytes(struct expr_set *s, const char *text, size_t len);
uint32_t expr_text(struct expr_set *s, const char *text);
/* One character of the set, in UTF-8. */
uint32_t expr_chars(struct expr_set *s, const struct chars *c);
uint32_t expr_repeat(struct expr_set *s, uint32_t what, uint32_t least, uint32_t most);
uint32_t expr_maybe(struct expr_set *s, uint32_t what);
uint32_t expr_pair(struct expr_set *s, uint32_t first, uint32_t second); /* in sequence */
uint32_t expr_either(struct expr_set *s, uint32_t first, uint32_t second);

/* list = {.set = s}; then push, then one of the two, which also frees it. */
void expr_push(struct expr_list *l, uint32_t what);
uint32_t expr_seq(struct expr_list *l);
uint32_t expr_alt(struct expr_list *l); /* of none: EXPR_NEVER */

uint32_t expr_rule_new(struct expr_set *s, const char *name); /* the number of a rule */
void expr_rule_set(struct expr_set *s, uint32_t rule, uint32_t body);
uint32_t expr_call(struct expr_set *s, uint32_t rule);

/* Begins an automaton of so many states, at least one, none of them final. */
uint32_t expr_table_new(struct expr_set *s, uint32_t states);
/* To the one that was begun last. */
void expr_table_edge(struct expr_set *s, struct expr_edge edge);
void expr_table_final(struct expr_set *s, uint32_t state);

/* What is wrong at `at` of a grammar's text, with the line. -EBADMSG; the fault may be NULL. */
int expr_refuse_line(const char *text, size_t at, const char *what, struct ek_fault *fault);

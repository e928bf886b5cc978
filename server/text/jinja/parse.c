/*
 * Parses statements of a template, and has the tools that expr.c shares (parse.h has the nodes).
 * Called once for each template.
 */
#include "server/text/jinja/parse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/err.h"
#include "server/text/jinja/jinja.h"

/* Words that end a body; the caller looks which one it was. */
#define ENDS_MAX 3

static int parse_body(struct jparse *p, const char *const ends[ENDS_MAX], struct jnodes *body);

int jparse_advance(struct jparse *p)
{
    if (p->has_next) {
        p->now = p->next;
        p->has_next = false;
        return 0;
    }
    return jlex_next(&p->lex, &p->now);
}

int jparse_peek(struct jparse *p)
{
    if (p->has_next)
        return 0;
    int r = jlex_next(&p->lex, &p->next);
    p->has_next = r == 0;
    return r;
}

bool jparse_at_op(const struct jparse *p, uint32_t op)
{
    return p->now.kind == JLEX_OP && p->now.op == op;
}

bool jparse_at_word(const struct jparse *p, const char *word)
{
    return p->now.kind == JLEX_NAME && jstr_is((struct jstr){p->now.s, p->now.len}, word);
}

int jparse_fail(struct jparse *p, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    return jlex_fail(p->fault, p->now.line, p->now.col, "%s", msg);
}

int jparse_unexpected(struct jparse *p, const char *wanted)
{
    const struct jlex_token *t = &p->now;
    switch (t->kind) {
    case JLEX_EOF: return jparse_fail(p, "%s expected, not the end of the template", wanted);
    case JLEX_BLOCK_END:
    case JLEX_PRINT_END: return jparse_fail(p, "%s expected, not the end of the tag", wanted);
    case JLEX_TEXT:
    case JLEX_BLOCK_BEGIN:
    case JLEX_PRINT_BEGIN: return jparse_fail(p, "%s expected, not text", wanted);
    case JLEX_STRING: return jparse_fail(p, "%s expected, not a string", wanted);
    case JLEX_NAME:
    case JLEX_INT:
    case JLEX_FLOAT:
    case JLEX_OP: break;
    }
    int len = t->len > 60 ? 60 : (int)t->len;
    return jparse_fail(p, "%s expected, not '%.*s'", wanted, len, t->s);
}

int jparse_expect_op(struct jparse *p, uint32_t op)
{
    if (jparse_at_op(p, op))
        return jparse_advance(p);
    char wanted[8] = {'\'', (char)(op & 0xff), '\'', 0};
    return jparse_unexpected(p, wanted);
}

static int jparse_expect_word(struct jparse *p, const char *word)
{
    if (jparse_at_word(p, word))
        return jparse_advance(p);
    return jparse_unexpected(p, word);
}

int jparse_enter(struct jparse *p)
{
    if (p->depth >= JINJA_NEST_MAX)
        return jparse_fail(p, "nested deeper than %d", JINJA_NEST_MAX);
    p->depth++;
    return 0;
}

int jparse_node(struct jparse *p, enum jnode_kind kind, struct jnode **ret_node)
{
    struct jnode *n = ek_arena_take(p->arena, sizeof(*n));
    if (!n)
        return -ENOMEM;
    n->kind = kind;
    n->line = p->now.line;
    n->col = p->now.col;
    *ret_node = n;
    return 0;
}

int jparse_push(struct jparse *p, struct jnodes *list, struct jnode *n)
{
    if (list->count == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 4;
        struct jnode **at = ek_arena_array(p->arena, cap, sizeof(*at));
        if (!at)
            return -ENOMEM;
        if (list->count)
            memcpy(at, list->at, list->count * sizeof(*at));
        list->at = at;
        list->cap = cap;
    }
    list->at[list->count++] = n;
    return 0;
}

/* The place of a name in the table: its own, or the free one where it goes. There is a free one. */
static struct jstr *name_place(struct jstr *at, size_t cap, struct jstr s)
{
    size_t i = XXH3_64bits(s.p, s.len) & (cap - 1);
    while (at[i].p && !jstr_equal(at[i], s))
        i = (i + 1) & (cap - 1);
    return &at[i];
}

/* A template may have as many names as it has bytes: the table is half empty. */
static int names_grow(struct jparse *p)
{
    size_t cap = p->names.cap ? p->names.cap * 2 : 128;
    struct jstr *at = calloc(cap, sizeof(*at));
    if (!at)
        return -ENOMEM;
    for (size_t i = 0; i < p->names.cap; i++) {
        if (p->names.at[i].p)
            *name_place(at, cap, p->names.at[i]) = p->names.at[i];
    }
    free(p->names.at);
    p->names.at = at;
    p->names.cap = cap;
    return 0;
}

static int jparse_intern(struct jparse *p, struct jstr s, struct jstr *ret)
{
    if (p->names.count * 2 >= p->names.cap && names_grow(p) < 0)
        return -ENOMEM;
    struct jstr *place = name_place(p->names.at, p->names.cap, s);
    if (!place->p) {
        char *copy = ek_arena_copy(p->arena, s.p, s.len);
        if (!copy)
            return -ENOMEM;
        *place = (struct jstr){copy, s.len};
        p->names.count++;
    }
    *ret = *place;
    return 0;
}

int jparse_name(struct jparse *p, struct jstr *ret_name)
{
    if (p->now.kind != JLEX_NAME)
        return jparse_unexpected(p, "a name");
    int r = jparse_intern(p, (struct jstr){p->now.s, p->now.len}, ret_name);
    return r < 0 ? r : jparse_advance(p);
}

static int expect_block_end(struct jparse *p)
{
    if (p->now.kind != JLEX_BLOCK_END)
        return jparse_unexpected(p, "the end of the tag");
    return jparse_advance(p);
}

/* The body, and the tag that ends it, which has no more words. */
static int parse_whole_body(struct jparse *p, const char *end, struct jnodes *body)
{
    const char *const ends[ENDS_MAX] = {end};
    int r = expect_block_end(p);
    if (r == 0)
        r = parse_body(p, ends, body);
    if (r == 0)
        r = jparse_advance(p); /* the word */
    return r < 0 ? r : expect_block_end(p);
}

static int parse_set(struct jparse *p, struct jnode *n)
{
    int r = jparse_target(p, &n->a);
    if (r < 0)
        return r;
    if (jparse_at_op(p, '=')) {
        n->kind = JN_SET;
        r = jparse_advance(p);
        if (r == 0)
            r = jparse_tuple(p, 0, &n->b);
        return r < 0 ? r : expect_block_end(p);
    }
    n->kind = JN_SET_BLOCK;
    if (n->a->kind == JN_TUPLE)
        return jparse_unexpected(p, "'='");
    r = jparse_filters(p, NULL, false, &n->b);
    return r < 0 ? r : parse_whole_body(p, "endset", &n->body);
}

static int parse_for(struct jparse *p, struct jnode *n)
{
    static const char *const ends[ENDS_MAX] = {"endfor", "else"};
    n->kind = JN_FOR;
    int r = jparse_target(p, &n->a);
    if (r == 0)
        r = jparse_expect_word(p, "in");
    if (r == 0)
        r = jparse_tuple(p, JPARSE_NO_COND, &n->b);
    if (r == 0 && jparse_at_word(p, "if")) {
        r = jparse_advance(p);
        if (r == 0)
            r = jparse_expr(p, &n->c);
    }
    if (r == 0 && jparse_at_word(p, "recursive"))
        return jparse_fail(p, "recursive loops are not supported: use a macro");
    if (r == 0)
        r = expect_block_end(p);
    p->loops++;
    if (r == 0)
        r = parse_body(p, ends, &n->body);
    p->loops--;
    if (r == 0 && jparse_at_word(p, "else")) {
        r = jparse_advance(p);
        return r < 0 ? r : parse_whole_body(p, "endfor", &n->kids);
    }
    if (r == 0)
        r = jparse_advance(p);
    return r < 0 ? r : expect_block_end(p);
}

static int parse_if(struct jparse *p, struct jnode *n)
{
    static const char *const ends[ENDS_MAX] = {"endif", "elif", "else"};
    for (;;) {
        n->kind = JN_IF;
        int r = jparse_tuple(p, JPARSE_NO_COND, &n->a);
        if (r == 0)
            r = expect_block_end(p);
        if (r == 0)
            r = parse_body(p, ends, &n->body);
        if (r < 0)
            return r;
        bool more = jparse_at_word(p, "elif"), last = jparse_at_word(p, "else");
        r = jparse_advance(p);
        if (r == 0 && last)
            return parse_whole_body(p, "endif", &n->kids);
        if (r < 0 || !more)
            return r < 0 ? r : expect_block_end(p);
        r = jparse_node(p, JN_IF, &n->b);
        if (r < 0)
            return r;
        n = n->b;
    }
}

static int parse_params(struct jparse *p, struct jnodes *params)
{
    int r = jparse_expect_op(p, '(');
    while (r == 0 && !jparse_at_op(p, ')')) {
        struct jnode *param;
        r = jparse_node(p, JN_PARAM, &param);
        if (r == 0)
            r = jparse_name(p, &param->name);
        if (r == 0 && jparse_at_op(p, '=')) {
            r = jparse_advance(p);
            if (r == 0)
                r = jparse_expr(p, &param->a);
        }
        if (r == 0)
            r = jparse_push(p, params, param);
        if (r == 0 && !jparse_at_op(p, ')'))
            r = jparse_expect_op(p, ',');
    }
    return r < 0 ? r : jparse_advance(p);
}

/* A body that is a function of its own: loops around it are not its loops. */
static int parse_function_body(struct jparse *p, const char *end, struct jnodes *body)
{
    uint32_t loops = p->loops;
    p->loops = 0;
    int r = parse_whole_body(p, end, body);
    p->loops = loops;
    return r;
}

static int parse_macro(struct jparse *p, struct jnode *n)
{
    n->kind = JN_MACRO;
    int r = jparse_name(p, &n->name);
    if (r == 0)
        r = parse_params(p, &n->kids);
    return r < 0 ? r : parse_function_body(p, "endmacro", &n->body);
}

static int parse_call_block(struct jparse *p, struct jnode *n)
{
    n->kind = JN_CALL_BLOCK;
    int r = jparse_at_op(p, '(') ? parse_params(p, &n->kids) : 0;
    if (r == 0)
        r = jparse_expr(p, &n->a);
    if (r == 0 && n->a->kind != JN_CALL)
        return jparse_fail(p, "a call is expected");
    if (r == 0)
        r = jparse_intern(p, JSTR("caller"), &n->name);
    return r < 0 ? r : parse_function_body(p, "endcall", &n->body);
}

static int parse_filter_block(struct jparse *p, struct jnode *n)
{
    n->kind = JN_FILTER_BLOCK;
    int r = jparse_filters(p, NULL, true, &n->b);
    return r < 0 ? r : parse_whole_body(p, "endfilter", &n->body);
}

static int parse_with(struct jparse *p, struct jnode *n)
{
    n->kind = JN_WITH;
    int r = 0;
    while (r == 0 && p->now.kind != JLEX_BLOCK_END) {
        struct jnode *set;
        if (n->kids.count)
            r = jparse_expect_op(p, ',');
        if (r == 0)
            r = jparse_node(p, JN_SET, &set);
        if (r == 0)
            r = jparse_target(p, &set->a);
        if (r == 0)
            r = jparse_expect_op(p, '=');
        if (r == 0)
            r = jparse_expr(p, &set->b);
        if (r == 0)
            r = jparse_push(p, &n->kids, set);
    }
    return r < 0 ? r : parse_whole_body(p, "endwith", &n->body);
}

static int parse_group(struct jparse *p, struct jnode *n)
{
    n->kind = JN_GROUP;
    return parse_whole_body(p, "endgeneration", &n->body);
}

static int parse_jump(struct jparse *p)
{
    if (!p->loops)
        return jparse_fail(p, "this jump is outside of a loop");
    return expect_block_end(p);
}

static int parse_break(struct jparse *p, struct jnode *n)
{
    n->kind = JN_BREAK;
    return parse_jump(p);
}

static int parse_continue(struct jparse *p, struct jnode *n)
{
    n->kind = JN_CONTINUE;
    return parse_jump(p);
}

static int parse_statement(struct jparse *p, struct jnodes *body)
{
    static const struct {
        const char *word;
        int (*parse)(struct jparse *p, struct jnode *n);
    } tags[] = {{"set", parse_set},         {"for", parse_for},
                {"if", parse_if},           {"macro", parse_macro},
                {"call", parse_call_block}, {"filter", parse_filter_block},
                {"with", parse_with},       {"generation", parse_group},
                {"break", parse_break},     {"continue", parse_continue}};
    if (p->now.kind != JLEX_NAME)
        return jparse_unexpected(p, "a tag name");
    for (size_t i = 0; i < sizeof(tags) / sizeof(*tags); i++) {
        if (!jparse_at_word(p, tags[i].word))
            continue;
        struct jnode *n = NULL;
        int r = jparse_enter(p);
        if (r == 0)
            r = jparse_node(p, JN_GROUP, &n);
        if (r == 0)
            r = jparse_advance(p);
        if (r == 0)
            r = tags[i].parse(p, n);
        if (r < 0)
            return r;
        p->depth--;
        return jparse_push(p, body, n);
    }
    int len = p->now.len > 60 ? 60 : (int)p->now.len;
    return jparse_fail(p, "unknown or misplaced tag '%.*s'", len, p->now.s);
}

static int parse_piece(struct jparse *p, struct jnodes *body)
{
    struct jnode *n;
    int r = jparse_node(p, p->now.kind == JLEX_TEXT ? JN_TEXT : JN_PRINT, &n);
    if (r < 0)
        return r;
    if (p->now.kind == JLEX_TEXT) {
        n->value = jv_string((struct jstr){p->now.s, p->now.len});
        r = jparse_advance(p);
        return r < 0 ? r : jparse_push(p, body, n);
    }
    r = jparse_advance(p);
    if (r == 0)
        r = jparse_tuple(p, 0, &n->a);
    if (r < 0)
        return r;
    if (p->now.kind != JLEX_PRINT_END)
        return jparse_unexpected(p, "'}}'");
    r = jparse_advance(p);
    return r < 0 ? r : jparse_push(p, body, n);
}

/* Statements up to a tag whose first word is in `ends` (stands at it then), or the end of all. */
static int parse_body(struct jparse *p, const char *const ends[ENDS_MAX], struct jnodes *body)
{
    uint32_t line = p->now.line, col = p->now.col;
    for (;;) {
        int r;
        if (p->now.kind == JLEX_EOF) {
            return ends ? jlex_fail(p->fault, line, col,
                                    "the body that begins here has no {%% %s %%}", ends[0])
                        : 0;
        }
        if (p->now.kind != JLEX_BLOCK_BEGIN) {
            r = parse_piece(p, body);
        } else {
            r = jparse_advance(p);
            for (int i = 0; r == 0 && ends && i < ENDS_MAX && ends[i]; i++) {
                if (jparse_at_word(p, ends[i]))
                    return 0;
            }
            if (r == 0)
                r = parse_statement(p, body);
        }
        if (r < 0)
            return r;
    }
}

int jinja_parse(const char *source, size_t len, struct jinja **ret_template, struct ek_fault *fault)
{
    struct jparse p = {.fault = fault};
    int r = -ENOMEM;

    struct jinja *t = calloc(1, sizeof(*t));
    if (!t)
        goto out;
    if (len > JINJA_SOURCE_MAX) {
        r = ek_fault_set(fault, "chat_template",
                         "The chat template has %zu bytes; the limit is %d: shorten it.", len,
                         JINJA_SOURCE_MAX);
        goto out;
    }
    p.arena = &t->arena;
    r = jlex_init(&p.lex, p.arena, source, len, fault);
    if (r == 0)
        r = jparse_advance(&p);
    if (r == 0)
        r = parse_body(&p, NULL, &t->body);
    if (r < 0)
        goto out;

    *ret_template = t;
    t = NULL;
out:
    free(p.names.at);
    jinja_free(t);
    return r;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    ek_arena_done(&t->arena);
    free(t);
}

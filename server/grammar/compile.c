/*
 * From a form that a request names to a grammar, by its kind (compile.h). Called by cache.c, on an
 * encoder thread.
 */
#include "server/grammar/compile.h"

#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "common/err.h"
#include "common/work.h"
#include "server/grammar/ebnf.h"
#include "server/grammar/expr.h"
#include "server/grammar/grammar.h"
#include "server/grammar/lark.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema.h"
#include "server/grammar/structure.h"

static int read_choice(struct expr_set *set, const char *text, size_t len, uint32_t *ret_expr,
                       struct ek_fault *fault)
{
    json_t *list = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    struct expr_list alt = {.set = set};
    size_t n = json_array_size(list);
    int r = 0;

    if (!json_is_array(list) || n == 0 || n > GRAMMAR_CHOICES)
        r = ek_fault_set(fault, "", "a choice is a list of 1 to %u strings", GRAMMAR_CHOICES);
    for (size_t i = 0; r == 0 && i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v) || json_string_length(v) == 0)
            r = ek_fault_set(fault, "", "choice %zu is no string, or empty", i);
        else
            expr_push(&alt, expr_bytes(set, json_string_value(v), json_string_length(v)));
    }
    *ret_expr = expr_alt(&alt);
    json_decref(list);
    return r;
}

static int read_either(const char *text, size_t len, struct expr_set *set, uint32_t *ret_expr,
                       struct ek_fault *fault);

static int read_kind(enum grammar_kind kind, const char *text, size_t len, struct expr_set *set,
                     uint32_t *ret_root, struct ek_fault *fault)
{
    uint32_t e = EXPR_NEVER;
    int r = -EBADMSG;

    switch (kind) {
    case GRAMMAR_JSON: return schema_read_any(set, ret_root);
    case GRAMMAR_SCHEMA: return schema_read(set, text, len, ret_root, fault);
    case GRAMMAR_CALLS: return schema_read_calls(set, text, len, ret_root, fault);
    case GRAMMAR_TAGS: return schema_read_tags(set, text, len, ret_root, fault);
    case GRAMMAR_STRUCTURE: return structure_read(set, text, len, ret_root, fault);
    case GRAMMAR_EBNF:
        return lark_is(text, len) ? lark_read(set, text, len, schema_read, ret_root, fault)
                                  : ebnf_read(set, text, len, ret_root, fault);
    case GRAMMAR_REGEX: r = regex_read(set, text, len, REGEX_TEXT, 0, EXPR_MANY, &e, fault); break;
    case GRAMMAR_CHOICE: r = read_choice(set, text, len, &e, fault); break;
    case GRAMMAR_EITHER: r = read_either(text, len, set, &e, fault); break;
    }
    *ret_root = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_root, e);
    return r;
}

/* Calls or a form, which are read on their own; see GRAMMAR_EITHER. */
static int read_either(const char *text, size_t len, struct expr_set *set, uint32_t *ret_expr,
                       struct ek_fault *fault)
{
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    const json_t *form = json_object_get(root, "form"), *own = json_object_get(form, "text");
    json_int_t kind = json_integer_value(json_object_get(form, "kind"));
    uint32_t calls = 0, rule = 0;
    int r = 0;

    if (!json_is_string(own) || kind < GRAMMAR_JSON || kind >= GRAMMAR_CALLS)
        r = ek_fault_set(fault, "", "there is no form beside the tools");
    if (r == 0)
        r = read_kind((enum grammar_kind)kind, json_string_value(own), json_string_length(own), set,
                      &rule, fault);
    if (r == 0)
        r = schema_read_only_calls(set, root, &calls, fault);
    *ret_expr = r == 0 ? expr_either(set, expr_call(set, calls), expr_call(set, rule)) : EXPR_NEVER;
    json_decref(root);
    return r;
}

/* What a set says beside its texts. As grammar_new(). */
static int compile_tell(const struct expr_set *set, enum grammar_kind kind, struct ek_work *work,
                        struct grammar *g)
{
    if (kind == GRAMMAR_EITHER)
        grammar_take_marks(g);
    if (set->any_twice)
        grammar_loosen(g);
    return set->marks.len ? grammar_take_marks_of(g, set->marks.data, set->marks.len, work) : 0;
}

int grammar_compile(enum grammar_kind kind, const char *text, size_t len, const struct lexicon *l,
                    struct ek_work *work, struct grammar **ret_grammar, struct ek_fault *fault)
{
    struct automaton a = {0};
    struct expr_set set;
    struct grammar *g = NULL;
    uint32_t root = 0;

    if (len > GRAMMAR_TEXT_MOST)
        return ek_fault_set(fault, "", "it has %zu bytes; at most %u are compiled", len,
                            GRAMMAR_TEXT_MOST);
    expr_init(&set);
    set.work = work;
    (void)ek_work_pay(work, len / 4); /* the JSON of it, or each byte once */
    int r = read_kind(kind, text, len, &set, &root, fault);
    if (set.no_memory)
        r = -ENOMEM;
    if (r == 0)
        r = automaton_make(&set, root, l->longest, &a, fault);
    if (r == 0)
        r = grammar_new(&a, root, l, work, &g);
    else
        automaton_done(&a);
    if (r == 0)
        r = compile_tell(&set, kind, work, g);
    expr_done(&set);
    if (r == 0)
        *ret_grammar = g;
    else
        grammar_unref(g);
    /* Whatever was said of a form that was given up on the way. */
    return r < 0 && r != -ENOMEM && ek_work_stopped(work) ? ek_work_refuse(work, fault, "") : r;
}

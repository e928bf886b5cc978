/*
 * Names of properties that patterns tell apart: whether a declared name is one of a pattern's, and
 * whether two patterns have a name in common. Both by the automata of the patterns, so they are
 * exact; where one would be too large the answer is yes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/grammar/automaton.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema_inside.h"

#define PRODUCT_MOST (1u << 20) /* pairs of states */

bool schema_key_pattern(const struct schema_reader *r, const char *pattern, size_t len,
                        struct automaton *ret_automaton)
{
    struct expr_set set;
    uint32_t e = EXPR_NEVER;

    expr_init(&set);
    set.work = r->set->work;
    int code = regex_read(&set, pattern, len, REGEX_JSON, 0, EXPR_MANY, &e, NULL);
    uint32_t rule = expr_rule_new(&set, "name");
    expr_rule_set(&set, rule, e);
    if (code == 0)
        code = automaton_make(&set, rule, 1, ret_automaton, NULL);
    expr_done(&set);
    if (code == 0 && ret_automaton->call_count == 0)
        return true;
    if (code == 0)
        automaton_done(ret_automaton);
    return false;
}

bool schema_key_may_match(const struct automaton *a, const char *name)
{
    for (const char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
            return true; /* it is written in several ways */
    if (!a)
        return true;
    uint32_t at = a->start[a->rules - 1];
    for (const char *c = name; *c && at != AUTOMATON_NONE; c++)
        at = a->next[(size_t)at * a->classes + a->class_of[(unsigned char)*c]];
    return at != AUTOMATON_NONE && a->state[at].accepts;
}

/* Whether a text takes both to an end, from their beginnings on. */
static bool schema_keys_meet(const struct schema_reader *r, const struct automaton *a,
                             const struct automaton *b, uint8_t *seen, uint32_t *todo)
{
    uint32_t count = 0;
    uint32_t first = a->start[a->rules - 1] * b->states + b->start[b->rules - 1];

    seen[first] = 1;
    todo[count++] = first;
    while (count > 0) {
        uint32_t at = todo[--count], x = at / b->states, y = at % b->states;
        if (!schema_pay(r, 64))
            return true;
        if (a->state[x].accepts && b->state[y].accepts)
            return true;
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t p = a->next[(size_t)x * a->classes + a->class_of[byte]];
            uint32_t q = b->next[(size_t)y * b->classes + b->class_of[byte]];
            if (p == AUTOMATON_NONE || q == AUTOMATON_NONE || seen[p * b->states + q])
                continue;
            seen[p * b->states + q] = 1;
            todo[count++] = p * b->states + q;
        }
    }
    return false;
}

bool schema_keys_may_meet(const struct schema_reader *r, const struct automaton *a,
                          const struct automaton *b)
{
    bool together = true;

    if (!a || !b)
        return true;
    uint64_t pairs = (uint64_t)a->states * b->states;
    if (pairs > PRODUCT_MOST || !schema_pay(r, 16 + pairs / 16))
        return true;
    uint8_t *seen = calloc(pairs, 1);
    uint32_t *todo = calloc(pairs, sizeof(*todo));
    if (seen && todo)
        together = schema_keys_meet(r, a, b, seen, todo);
    free(seen);
    free(todo);
    return together;
}

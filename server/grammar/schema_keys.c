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

/* False when there is none. */
static bool pattern_automaton(const char *pattern, size_t len, struct automaton *ret_automaton)
{
    struct expr_set set;
    uint32_t e = EXPR_NEVER;

    expr_init(&set);
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

bool schema_key_may_match(const char *pattern, size_t len, const char *name)
{
    struct automaton a;

    for (const char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
            return true; /* it is written in several ways */
    if (!pattern_automaton(pattern, len, &a))
        return true;
    uint32_t at = a.start[a.rules - 1];
    for (const char *c = name; *c && at != AUTOMATON_NONE; c++)
        at = a.next[(size_t)at * a.classes + a.class_of[(unsigned char)*c]];
    bool matches = at != AUTOMATON_NONE && a.state[at].accepts;
    automaton_done(&a);
    return matches;
}

/* Whether a text takes both to an end, from their beginnings on. */
static bool meet(const struct automaton *a, const struct automaton *b, uint8_t *seen,
                 uint32_t *todo)
{
    uint32_t count = 0;
    uint32_t first = a->start[a->rules - 1] * b->states + b->start[b->rules - 1];

    seen[first] = 1;
    todo[count++] = first;
    while (count > 0) {
        uint32_t at = todo[--count], x = at / b->states, y = at % b->states;
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

bool schema_keys_may_meet(const char *one, size_t one_len, const char *two, size_t two_len)
{
    struct automaton a, b;
    bool together = true;

    if (!pattern_automaton(one, one_len, &a))
        return true;
    if (!pattern_automaton(two, two_len, &b)) {
        automaton_done(&a);
        return true;
    }
    uint64_t pairs = (uint64_t)a.states * b.states;
    uint8_t *seen = pairs <= PRODUCT_MOST ? calloc(pairs, 1) : NULL;
    uint32_t *todo = seen ? calloc(pairs, sizeof(*todo)) : NULL;
    if (todo)
        together = meet(&a, &b, seen, todo);
    free(seen);
    free(todo);
    automaton_done(&a);
    automaton_done(&b);
    return together;
}

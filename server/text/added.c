/*
 * Finds special and added tokens in a prompt before anything else looks at it: tokload.c fills the
 * trie, tokenizer.c searches. Nodes lie in one array and link by index; the children of a node are
 * a list, since few contents begin alike. `first` skips text that cannot begin a token, which is
 * nearly all of it.
 */
#include "server/text/added.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/utf8.h"

#define NONE UINT32_MAX

struct added_node {
    uint32_t child, sibling; /* 0 = none: the root is no child */
    uint32_t rule;           /* NONE = no content ends here */
    uint8_t byte;
};

void added_done(struct added *a)
{
    free(a->node);
    free(a->rule);
    *a = (struct added){0};
}

static uint32_t child_of(const struct added *a, uint32_t at, uint8_t byte)
{
    uint32_t c = a->node[at].child;
    while (c && a->node[c].byte != byte)
        c = a->node[c].sibling;
    return c;
}

/* Room for `extra` nodes and one rule, so that what follows cannot fail. */
static int added_reserve(struct added *a, size_t extra)
{
    if (a->nodes + extra + 1 > a->room) {
        size_t room = (a->nodes + extra + 1) * 2;
        if (room >= NONE)
            return -ENOMEM;
        struct added_node *node = realloc(a->node, room * sizeof(*node));
        if (!node)
            return -ENOMEM;
        a->node = node;
        a->room = (uint32_t)room;
        if (a->nodes == 0)
            a->node[a->nodes++] = (struct added_node){.rule = NONE};
    }
    if (a->rules == a->rules_room) {
        uint32_t room = a->rules_room ? a->rules_room * 2 : 16;
        struct added_rule *rule = realloc(a->rule, room * sizeof(*rule));
        if (!rule)
            return -ENOMEM;
        a->rule = rule;
        a->rules_room = room;
    }
    return 0;
}

int added_put(struct added *a, const char *s, size_t len, const struct added_rule *rule)
{
    assert(len > 0);
    int r = added_reserve(a, len);
    if (r < 0)
        return r;
    uint32_t at = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t next = child_of(a, at, (uint8_t)s[i]);
        if (!next) {
            next = a->nodes++;
            a->node[next] = (struct added_node){
                .sibling = a->node[at].child, .rule = NONE, .byte = (uint8_t)s[i]};
            a->node[at].child = next;
        }
        at = next;
    }
    a->first[(uint8_t)s[0]] = 1;
    if (a->node[at].rule == NONE) {
        a->node[at].rule = a->rules;
        a->rule[a->rules++] = *rule;
    }
    return 0;
}

static bool added_in_word(const char *s, size_t len, size_t from, size_t to)
{
    uint32_t cp;
    if (from > 0) {
        (void)utf8_prev(s, from, &cp); /* only the character counts */
        if (utf8_is_word(cp))
            return true;
    }
    if (to == len)
        return false;
    (void)utf8_next(s + to, len - to, &cp);
    return utf8_is_word(cp);
}

/* The longest content at s[at]; its rule or NULL. */
static const struct added_rule *added_longest(const struct added *a, const char *s, size_t len,
                                              size_t at, size_t *ret_to)
{
    uint32_t found = NONE;
    for (uint32_t n = 0, i = 0; at + i < len; i++) {
        n = child_of(a, n, (uint8_t)s[at + i]);
        if (!n)
            break;
        if (a->node[n].rule != NONE) {
            found = a->node[n].rule;
            *ret_to = at + i + 1;
        }
    }
    return found == NONE ? NULL : &a->rule[found];
}

bool added_find(const struct added *a, const char *s, size_t len, size_t from,
                struct added_span *ret_span)
{
    if (a->rules == 0)
        return false;
    for (size_t at = from; at < len;) {
        size_t to;
        if (!a->first[(uint8_t)s[at]]) {
            at++;
            continue;
        }
        const struct added_rule *rule = added_longest(a, s, len, at, &to);
        if (!rule) {
            at++;
            continue;
        }
        if (rule->single_word && added_in_word(s, len, at, to)) {
            at = to;
            continue;
        }
        uint32_t cp;
        for (size_t p = at; rule->lstrip && p > from; at = p) {
            p = utf8_prev(s, p, &cp);
            if (!utf8_is_space(cp))
                break;
        }
        while (rule->rstrip && to < len) {
            size_t n = utf8_next(s + to, len - to, &cp);
            if (!utf8_is_space(cp))
                break;
            to += n;
        }
        *ret_span = (struct added_span){.from = at, .to = to, .id = rule->id};
        return true;
    }
    return false;
}

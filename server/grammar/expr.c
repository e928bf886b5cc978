/*
 * Growing arrays of expressions, and characters as UTF-8 (expr.h). Called by the parsers of all
 * kinds of forms.
 */
#include "server/grammar/expr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

/* Room for one more of `size` bytes; false when the set has failed. */
static bool room(struct expr_set *s, void **at, uint32_t count, uint32_t *cap, uint32_t more,
                 size_t size)
{
    if (!expr_ok(s) || !ek_work_pay(s->work, more))
        return false;
    if (more > EXPR_MOST || count > EXPR_MOST - more) {
        s->too_large = true;
        return false;
    }
    if (count + more <= *cap)
        return true;
    uint32_t want = *cap ? *cap * 2 : 64;
    while (want < count + more)
        want *= 2;
    void *bigger = realloc(*at, want * size);
    if (!bigger) {
        s->no_memory = true;
        return false;
    }
    *at = bigger;
    *cap = want;
    return true;
}

static uint32_t expr_add(struct expr_set *s, struct expr e)
{
    void *at = s->node;
    if (!room(s, &at, s->nodes, &s->node_room, 1, sizeof(*s->node))) {
        s->node = at;
        return EXPR_EMPTY;
    }
    s->node = at;
    s->node[s->nodes] = e;
    return s->nodes++;
}

void expr_init(struct expr_set *s)
{
    *s = (struct expr_set){0};
    (void)expr_add(s, (struct expr){.kind = EXPR_KIND_EMPTY});
    (void)expr_add(s, (struct expr){.kind = EXPR_KIND_NEVER});
}

void expr_done(struct expr_set *s)
{
    free(s->node);
    free(s->item);
    free(s->rule);
    free(s->table);
    free(s->edge);
    free(s->final);
    ek_buf_done(&s->text);
    ek_buf_done(&s->marks);
    *s = (struct expr_set){0};
}

uint32_t expr_byte(struct expr_set *s, uint8_t lo, uint8_t hi)
{
    return expr_add(s, (struct expr){.kind = EXPR_KIND_BYTE, .lo = lo, .hi = hi});
}

uint32_t expr_bytes(struct expr_set *s, const char *text, size_t len)
{
    if (len == 0)
        return EXPR_EMPTY;
    if (len > EXPR_MOST || s->text.len > EXPR_MOST - len) {
        s->too_large = true;
        return EXPR_EMPTY;
    }
    uint32_t at = (uint32_t)s->text.len;
    (void)ek_work_pay(s->work, len / 16); /* expr_ok() tells */
    if (ek_buf_add(&s->text, text, len) < 0) {
        s->no_memory = true;
        return EXPR_EMPTY;
    }
    return expr_add(s, (struct expr){.kind = EXPR_KIND_TEXT, .a = at, .b = (uint32_t)len});
}

uint32_t expr_text(struct expr_set *s, const char *text)
{
    return expr_bytes(s, text, strlen(text));
}

uint32_t expr_repeat(struct expr_set *s, uint32_t what, uint32_t least, uint32_t most)
{
    if (most == 0 || what == EXPR_EMPTY)
        return EXPR_EMPTY;
    if (least == 1 && most == 1)
        return what;
    return expr_add(s, (struct expr){.kind = EXPR_KIND_REPEAT, .a = what, .b = least, .c = most});
}

uint32_t expr_maybe(struct expr_set *s, uint32_t what)
{
    return expr_repeat(s, what, 0, 1);
}

void expr_push(struct expr_list *l, uint32_t what)
{
    void *at = l->at;
    bool ok = room(l->set, &at, l->count, &l->room, 1, sizeof(*l->at));
    l->at = at;
    if (ok)
        l->at[l->count++] = what;
}

static uint32_t list_end(struct expr_list *l, enum expr_kind kind)
{
    struct expr_set *s = l->set;
    uint32_t result = EXPR_EMPTY, at = s->items;
    void *items = s->item;

    if (l->count == 1) {
        result = l->at[0];
    } else if (l->count > 1) {
        bool ok = room(s, &items, s->items, &s->item_room, l->count, sizeof(*s->item));
        s->item = items;
        if (ok) {
            memcpy(s->item + at, l->at, l->count * sizeof(*l->at));
            s->items += l->count;
            result = expr_add(s, (struct expr){.kind = (uint8_t)kind, .a = at, .b = l->count});
        }
    } else if (kind == EXPR_KIND_ALT) {
        result = EXPR_NEVER;
    }
    free(l->at);
    *l = (struct expr_list){.set = s};
    return result;
}

uint32_t expr_seq(struct expr_list *l)
{
    return list_end(l, EXPR_KIND_SEQ);
}

uint32_t expr_alt(struct expr_list *l)
{
    return list_end(l, EXPR_KIND_ALT);
}

uint32_t expr_pair(struct expr_set *s, uint32_t first, uint32_t second)
{
    struct expr_list l = {.set = s};
    if (first == EXPR_EMPTY || second == EXPR_EMPTY)
        return first == EXPR_EMPTY ? second : first;
    expr_push(&l, first);
    expr_push(&l, second);
    return expr_seq(&l);
}

uint32_t expr_either(struct expr_set *s, uint32_t first, uint32_t second)
{
    struct expr_list l = {.set = s};
    expr_push(&l, first);
    expr_push(&l, second);
    return expr_alt(&l);
}

uint32_t expr_rule_new(struct expr_set *s, const char *name)
{
    void *at = s->rule;
    bool ok = room(s, &at, s->rules, &s->rule_room, 1, sizeof(*s->rule));
    s->rule = at;
    if (!ok)
        return 0;
    s->rule[s->rules] = (struct expr_rule){.body = UINT32_MAX};
    (void)snprintf(s->rule[s->rules].name, EXPR_NAME_MOST, "%s", name);
    return s->rules++;
}

void expr_rule_set(struct expr_set *s, uint32_t rule, uint32_t body)
{
    if (rule < s->rules)
        s->rule[rule].body = body;
}

uint32_t expr_call(struct expr_set *s, uint32_t rule)
{
    return expr_add(s, (struct expr){.kind = EXPR_KIND_CALL, .a = rule});
}

/* ---- automata ---- */

uint32_t expr_table_new(struct expr_set *s, uint32_t states)
{
    void *at = s->final;
    bool ok = room(s, &at, s->finals, &s->final_room, states, sizeof(*s->final));
    s->final = at;
    at = s->table;
    ok = ok && room(s, &at, s->tables, &s->table_room, 1, sizeof(*s->table));
    s->table = at;
    if (!ok)
        return EXPR_EMPTY;
    s->table[s->tables] =
        (struct expr_table){.states = states, .edge = s->edges, .final = s->finals};
    memset(s->final + s->finals, 0, states * sizeof(*s->final));
    s->finals += states;
    return expr_add(s, (struct expr){.kind = EXPR_KIND_TABLE, .a = s->tables++});
}

void expr_table_edge(struct expr_set *s, struct expr_edge edge)
{
    void *at = s->edge;
    bool ok = s->tables > 0 && room(s, &at, s->edges, &s->edge_room, 1, sizeof(*s->edge));
    s->edge = at;
    if (!ok)
        return;
    s->edge[s->edges++] = edge;
    s->table[s->tables - 1].edges++;
}

void expr_table_final(struct expr_set *s, uint32_t state)
{
    if (expr_ok(s))
        s->final[s->table[s->tables - 1].final + state] = true;
}

/* ---- characters ---- */

/* The continuation bytes of cp, `n` of them, all equal to what is given from there on. */
static uint32_t expr_tail(uint32_t n, uint8_t byte)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < n; i++)
        bits = bits << 6 | (byte & 0x3f);
    return bits;
}

static const uint8_t heads[] = {0x00, 0xc0, 0xe0, 0xf0};

/* Code points lo..hi whose UTF-8 has n continuation bytes: pieces where each byte is a range. */
static void push_range(struct expr_list *out, uint32_t lo, uint32_t hi, uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t mask = expr_tail(i, 0x3f);
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if ((lo & mask) != 0) {
            push_range(out, lo, lo | mask, n);
            push_range(out, (lo | mask) + 1, hi, n);
            return;
        }
        if ((hi & mask) != mask) {
            push_range(out, lo, (hi & ~mask) - 1, n);
            push_range(out, hi & ~mask, hi, n);
            return;
        }
    }
    struct expr_list seq = {.set = out->set};
    for (uint32_t i = n + 1; i-- > 0;) {
        uint8_t head = i == n ? heads[n] : 0x80;
        uint32_t bits = i == n && n == 0 ? 0x7f : 0x3f;
        expr_push(&seq, expr_byte(out->set, (uint8_t)(head | ((lo >> 6 * i) & bits)),
                                  (uint8_t)(head | ((hi >> 6 * i) & bits))));
    }
    expr_push(out, expr_seq(&seq));
}

uint32_t expr_chars(struct expr_set *s, const struct chars *c)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff, CHARS_LAST};
    struct expr_list out = {.set = s};

    if (c->failed)
        s->too_large = true;
    for (uint32_t i = 0; i < c->count && expr_ok(s); i++) {
        uint32_t lo = c->at[i].lo;
        for (uint32_t n = 0; n < 4 && lo <= c->at[i].hi; n++) {
            uint32_t hi = c->at[i].hi < last[n] ? c->at[i].hi : last[n];
            if (lo > hi)
                continue;
            push_range(&out, lo, hi, n);
            lo = hi + 1;
        }
    }
    return expr_alt(&out);
}

int expr_refuse_line(const char *text, size_t at, const char *what, struct ek_fault *fault)
{
    size_t line = 1;

    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    if (fault)
        fault->at = line;
    return ek_fault_set(fault, "grammar", "%s in line %zu of the grammar", what, line);
}

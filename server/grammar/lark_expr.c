/* Expressions of a Lark grammar: alternatives of sequences of items with their counts; lark.c calls
 * it for each definition. */
#include <errno.h>
#include <string.h>

#include "server/grammar/digits.h"
#include "server/grammar/lark_inside.h"
#include "server/grammar/table.h"

/* A terminal in a rule: with what is ignored behind it. */
static uint32_t behind(struct lark *r, uint32_t terminal)
{
    return r->terminal || !r->skips ? terminal
                                    : expr_pair(r->set, terminal, expr_call(r->set, r->skip));
}

/* {n}, {n,} or {n,m}: llguidance's counts. */
static bool at_braces(const struct lark *r)
{
    return r->at + 1 < r->len && r->s[r->at] == '{' && r->s[r->at + 1] >= '0' &&
           r->s[r->at + 1] <= '9';
}

static int lark_expr_read_name(struct lark *r, size_t len, uint32_t *ret_expr)
{
    struct lark_name *n;
    size_t from = r->at;

    if (lark_find(r, r->s + from, len, &n) < 0)
        return -EBADMSG;
    if (!expr_ok(r->set))
        return 0;
    r->at += len;
    if (lark_looking_at(r, "{") && !at_braces(r))
        return lark_refuse(r, from, "templates (`%.*s{...}`) are not offered:", (int)len,
                           r->s + from);
    if (r->terminal && !n->terminal)
        return lark_refuse(r, from, "a terminal uses the rule `%.*s`", (int)len, r->s + from);
    *ret_expr = expr_call(r->set, n->rule);
    if (n->terminal)
        *ret_expr = behind(r, *ret_expr);
    return 0;
}

static int read_group(struct lark *r, bool maybe, uint32_t *ret_expr)
{
    size_t from = r->at;

    if (++r->depth > LARK_NESTING)
        return lark_refuse(r, from, "groups nest too deep");
    int code = lark_alternatives(r, ret_expr);
    if (code < 0 || !expr_ok(r->set))
        return code;
    lark_blank(r);
    if (!lark_accept(r, maybe ? "]" : ")"))
        return lark_refuse(r, from, "a group is not closed");
    r->depth--;
    if (maybe)
        *ret_expr = expr_maybe(r->set, *ret_expr);
    return 0;
}

/* A pattern in a rule is a terminal of its own. */
static int read_pattern(struct lark *r, uint32_t *ret_expr)
{
    bool was = r->lazy;

    r->lazy = false;
    int code = lark_pattern(r, ret_expr);
    if (code == 0 && r->lazy && !r->terminal)
        code = table_shortest(r->set, *ret_expr, ret_expr, r->fault);
    r->lazy |= was;
    *ret_expr = behind(r, *ret_expr);
    return code;
}

int lark_item(struct lark *r, uint32_t *ret_expr)
{
    size_t from = r->at, n = lark_name_length(r);

    if (n > 0)
        return lark_expr_read_name(r, n, ret_expr);
    if (lark_accept(r, "\"")) {
        int code = lark_text(r, ret_expr);
        *ret_expr = behind(r, *ret_expr);
        return code;
    }
    if (lark_accept(r, "/"))
        return read_pattern(r, ret_expr);
    if (lark_accept(r, "("))
        return read_group(r, false, ret_expr);
    if (lark_accept(r, "["))
        return read_group(r, true, ret_expr);
    if (lark_accept(r, "%json"))
        return lark_json(r, ret_expr);
    if (lark_looking_at(r, "%") || lark_looking_at(r, "<") || lark_looking_at(r, "@") ||
        lark_looking_at(r, "&"))
        return lark_refuse(r, from, "special tokens, & and other grammars are not offered:");
    return lark_refuse(r, from, "a text, a pattern, a group or a name is missing");
}

bool lark_read_number(struct lark *r, uint32_t *ret_n)
{
    return digits_read(r->s, r->len, &r->at, LARK_COUNT, ret_n);
}

/* ~n and ~n..m, the sign is taken. */
static int read_times(struct lark *r, uint32_t *least, uint32_t *most)
{
    size_t from = r->at;

    lark_blank(r);
    bool ok = lark_read_number(r, least);
    *most = *least;
    if (ok && lark_looking_at(r, " ") && r->at + 3 < r->len && memcmp(r->s + r->at, " ..", 3) == 0)
        r->at++;
    if (ok && lark_accept(r, "..")) {
        lark_blank(r);
        ok = lark_read_number(r, most);
    }
    if (!ok)
        return lark_refuse(r, from, "a count has no number");
    if (*least > LARK_COUNT || *most > LARK_COUNT || *most < *least)
        return lark_refuse(r, from, "counts must be in order and at most %u", LARK_COUNT);
    return 0;
}

/* The brace is taken. */
static int read_braces(struct lark *r, uint32_t *least, uint32_t *most)
{
    size_t from = r->at;
    bool ok = lark_read_number(r, least);

    *most = *least;
    if (ok && lark_accept(r, ",") && !lark_looking_at(r, "}"))
        ok = lark_read_number(r, most);
    else if (ok && r->s[r->at - 1] == ',')
        *most = EXPR_MANY;
    if (!ok || !lark_accept(r, "}"))
        return lark_refuse(r, from, "a count has no number, or is not closed");
    if (*least > LARK_COUNT || (*most != EXPR_MANY && *most > LARK_COUNT) || *most < *least)
        return lark_refuse(r, from, "counts must be in order and at most %u", LARK_COUNT);
    return 0;
}

static int read_count(struct lark *r, uint32_t *least, uint32_t *most)
{
    size_t was = r->at;

    *least = *most = 1;
    lark_blank(r);
    if (lark_accept(r, "*")) {
        *least = 0;
        *most = EXPR_MANY;
    } else if (lark_accept(r, "+")) {
        *most = EXPR_MANY;
    } else if (lark_accept(r, "?")) {
        *least = 0;
    } else if (lark_accept(r, "~")) {
        return read_times(r, least, most);
    } else if (at_braces(r) && lark_accept(r, "{")) {
        return read_braces(r, least, most);
    } else {
        r->at = was;
    }
    return 0;
}

static bool at_end(const struct lark *r)
{
    return r->at == r->len || strchr("\n|)]", r->s[r->at]) || lark_looking_at(r, "->");
}

static int read_sequence(struct lark *r, uint32_t *ret_expr)
{
    struct expr_list seq = {.set = r->set};
    int code = 0;

    for (lark_blank(r); code == 0 && !at_end(r) && expr_ok(r->set); lark_blank(r)) {
        uint32_t what = EXPR_EMPTY, least, most;
        code = lark_item(r, &what);
        if (code == 0)
            code = read_count(r, &least, &most);
        if (code == 0)
            expr_push(&seq, expr_repeat(r->set, what, least, most));
    }
    *ret_expr = expr_seq(&seq);
    if (code == 0 && lark_accept(r, "->")) { /* the name of a tree */
        lark_blank(r);
        size_t n = lark_name_length(r);
        r->at += n;
        lark_blank(r);
        if (n == 0 || !at_end(r))
            code = lark_refuse(r, r->at, "behind -> there must be one name");
    }
    return code;
}

int lark_alternatives(struct lark *r, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code;

    do {
        uint32_t one = EXPR_EMPTY;
        code = read_sequence(r, &one);
        expr_push(&alt, one);
        lark_blank(r);
    } while (code == 0 && expr_ok(r->set) && lark_accept(r, "|"));
    *ret_expr = expr_alt(&alt);
    return code;
}

/*
 * What llguidance has beside Lark's own notation, as guidance writes it: [attributes] of rules and
 * %json. A capture names a part of the text for the client, which finds it there again; `stop` and
 * `suffix` end a rule with the first text of theirs, `lazy` as early as may be. max_tokens is for a
 * rule that is the whole answer, and then the most tokens of the request.
 */
#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "server/grammar/digits.h"
#include "server/grammar/lark_inside.h"
#include "server/grammar/table.h"

static bool attribute_is(const char *key, size_t len, const char *name)
{
    return len == strlen(name) && memcmp(key, name, len) == 0;
}

/* A string in JSON's notation, which names something. */
static int read_label(struct lark *r)
{
    json_error_t e;
    size_t from = r->at;
    json_t *label = json_loadb(r->s + r->at, r->len - r->at,
                               JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &e);
    bool ok = json_is_string(label);

    json_decref(label);
    if (!ok)
        return lark_refuse(r, from, "a capture has no name in quotes");
    r->at += (size_t)e.position;
    return 0;
}

static int read_most(struct lark *r)
{
    size_t from = r->at;
    uint32_t most;

    if (!digits_read(r->s, r->len, &r->at, LARK_TOKENS, &most) || most == 0 || most > LARK_TOKENS)
        return lark_refuse(r, from, "max_tokens must be 1 to %u", LARK_TOKENS);
    r->most_at = from;
    r->most = most;
    return 0;
}

/* A terminal that ends a rule. */
static int read_end(struct lark *r, struct lark_end *end)
{
    uint32_t e = EXPR_EMPTY;

    r->terminal = true;
    r->lazy = false;
    int code = lark_item(r, &e);
    if (code == 0 && r->lazy)
        code = lark_refuse(r, r->at, "a lazy pattern cannot end a rule");
    end->expr = end->set ? expr_pair(r->set, end->expr, e) : e;
    end->set = true;
    return code;
}

static int read_attribute(struct lark *r, struct lark_end *end, bool *ret_most)
{
    const char *key = r->s + r->at;
    size_t from = r->at, len = 0;

    while (from + len < r->len && ((key[len] >= 'a' && key[len] <= 'z') || key[len] == '_'))
        len++;
    r->at += len;
    lark_blank(r);
    bool given = lark_accept(r, "=");
    lark_blank(r);
    if (attribute_is(key, len, "capture") || attribute_is(key, len, "stop_capture"))
        return given ? read_label(r) : 0;
    if (attribute_is(key, len, "lazy") && !given) {
        end->set = true;
        return 0;
    }
    if (given && (attribute_is(key, len, "stop") || attribute_is(key, len, "suffix")))
        return read_end(r, end);
    if (given && attribute_is(key, len, "max_tokens") && !r->most_at) {
        *ret_most = true;
        return read_most(r);
    }
    return lark_refuse(r, from,
                       "of the [attributes] of rules there are capture, lazy, stop, suffix and, "
                       "once, max_tokens (`temperature` is a field of the request):");
}

int lark_attributes(struct lark *r, struct lark_end *ret_end, bool *ret_most)
{
    int code = 0;

    r->depth++;
    do {
        lark_blank(r);
        code = read_attribute(r, ret_end, ret_most);
        lark_blank(r);
    } while (code == 0 && expr_ok(r->set) && lark_accept(r, ","));
    r->depth--;
    if (code == 0 && expr_ok(r->set) && !lark_accept(r, "]"))
        code = lark_refuse(r, r->at, "[attributes] of a rule are not closed");
    return code;
}

/* ---- rules that end early ---- */

static bool calls_rules(const struct lark *r, uint32_t at, uint32_t depth)
{
    const struct expr *e = &r->set->node[at];
    const uint64_t work = e->kind == EXPR_KIND_CALL ? 1 + r->names / 8 : 1;
    bool found = depth > EXPR_DEPTH_MOST || !ek_work_pay(r->set->work, work);

    if (e->kind == EXPR_KIND_REPEAT)
        return found || calls_rules(r, e->a, depth + 1);
    if (e->kind == EXPR_KIND_SEQ || e->kind == EXPR_KIND_ALT)
        for (uint32_t i = 0; !found && i < e->b; i++)
            found = calls_rules(r, r->set->item[e->a + i], depth + 1);
    if (e->kind != EXPR_KIND_CALL)
        return found;
    for (uint32_t i = 0; !found && i < r->names; i++)
        if (r->name[i].rule == e->a)
            return !r->name[i].terminal;
    return true;
}

int lark_end_rules(struct lark *r)
{
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < r->names && expr_ok(r->set); i++) {
        struct lark_name *n = &r->name[i];
        uint32_t body = r->set->rule[n->rule].body, cut = EXPR_NEVER;
        if (!n->end.set)
            continue;
        if (r->skips || calls_rules(r, body, 0)) {
            code = lark_refuse(r, n->used,
                               "stop, suffix and lazy are for rules of terminals alone, where "
                               "nothing is ignored; `%s`",
                               r->set->rule[n->rule].name);
            break;
        }
        code = table_shortest(r->set, expr_pair(r->set, body, n->end.expr), &cut, r->fault);
        if (code == 0 && expr_ok(r->set))
            expr_rule_set(r->set, n->rule, cut);
    }
    return code;
}

int lark_check_most(struct lark *r, uint32_t begin)
{
    const struct expr_set *s = r->set;
    const struct expr *body = &s->node[s->rule[begin].body];

    if (lark_most_tokens(r->s, r->len) != (r->most_at ? r->most : 0))
        return lark_refuse(r, r->most_at,
                           "max_tokens must stand once, in the line in which its rule begins");
    if (r->most_at == 0 || r->most_rule == begin ||
        (body->kind == EXPR_KIND_CALL && body->a == r->most_rule))
        return 0;
    return lark_refuse(r, r->most_at,
                       "max_tokens is for a rule that is the whole answer; bound a part of it by a "
                       "count as in /.{0,40}/:");
}

/* Where the attributes that begin at `at` are closed: at a ] with a colon behind it. */
static size_t attributes_end(const char *text, size_t at, size_t stop)
{
    for (; at < stop; at++) {
        size_t next = at + 1;
        while (next < stop && text[at] == ']' && text[next] == ' ')
            next++;
        if (text[at] == ']' && next < stop && text[next] == ':')
            return at;
    }
    return stop;
}

/* Only where lines begin with a rule: no text or pattern of a grammar that is taken goes on in
 * another line. */
uint32_t lark_most_tokens(const char *text, size_t len)
{
    static const char word[] = "max_tokens";
    size_t at = 0;

    while (at < len) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t stop = end ? (size_t)(end - text) : len;
        while (at < stop && (text[at] == ' ' || text[at] == '\t'))
            at++;
        while (at < stop && (text[at] == '?' || text[at] == '!'))
            at++;
        while (at < stop && ((text[at] >= 'a' && text[at] <= 'z') || text[at] == '_' ||
                             (text[at] >= '0' && text[at] <= '9')))
            at++;
        if (at < stop && text[at] == '[')
            stop = attributes_end(text, at, stop);
        const char *found =
            at < stop && text[at] == '[' ? memmem(text + at, stop - at, word, strlen(word)) : NULL;
        uint32_t most = 0;
        size_t from = found ? (size_t)(found - text) + strlen(word) : stop;
        while (from < stop && (text[from] == ' ' || text[from] == '='))
            from++;
        if (found && digits_read(text, stop, &from, LARK_TOKENS, &most) && most <= LARK_TOKENS)
            return most;
        at = (end ? (size_t)(end - text) : len) + 1;
    }
    return 0;
}

/* ---- %json ---- */

int lark_json(struct lark *r, uint32_t *ret_expr)
{
    json_error_t e;
    size_t from = r->at;
    uint32_t rule = 0;

    if (r->terminal || !r->schema)
        return lark_refuse(r, from, "%%json is for rules of a grammar that is the whole answer:");
    lark_blank(r);
    json_t *all = json_loadb(r->s + r->at, r->len - r->at,
                             JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &e);
    if (!all)
        return lark_refuse(r, from, "behind %%json there must be a JSON schema");
    json_decref(all);
    const char *text = r->s + r->at;
    (void)ek_work_pay(r->set->work, (uint64_t)e.position / 4);
    r->at += (size_t)e.position;
    int code = r->schema(r->set, text, (size_t)e.position, &rule, r->fault);
    if (code == 0 && expr_ok(r->set))
        *ret_expr = expr_call(r->set, rule);
    return code;
}

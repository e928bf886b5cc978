/*
 * Parses EBNF by recursive descent; a rule may be used before it is written (ebnf.h). Called by
 * compile.c.
 */
#include "server/grammar/ebnf.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/digits.h"
#include "server/grammar/expr.h"
#include "server/grammar/left.h"
#include "server/text/utf8.h"

#define EBNF_SLOTS 4096u /* a power of two above EBNF_RULES */

struct reader {
    struct expr_set *set;
    const char *s;
    size_t len, at;
    uint32_t depth;
    uint32_t first;            /* rule of the set that is this grammar's */
    uint16_t slot[EBNF_SLOTS]; /* hash of names: rule of it + 1 */
    struct ek_fault *fault;
};

static int ebnf_refuse(struct reader *r, size_t at, const char *what)
{
    return expr_refuse_line(r->s, at < r->len ? at : r->len, what, r->fault);
}

static bool ebnf_is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static void ebnf_skip(struct reader *r)
{
    while (r->at < r->len) {
        char c = r->s[r->at];
        if (c == '#') {
            while (r->at < r->len && r->s[r->at] != '\n')
                r->at++;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            r->at++;
        } else {
            return;
        }
    }
}

static bool accept(struct reader *r, const char *text)
{
    size_t n = strlen(text);
    if (r->len - r->at < n || memcmp(r->s + r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

static size_t name_length(const struct reader *r)
{
    size_t n = 0;
    while (r->at + n < r->len && ebnf_is_name(r->s[r->at + n]))
        n++;
    return n;
}

/* Whether a name and ::= come next, that is, the next rule. */
static bool at_rule(struct reader *r)
{
    size_t was = r->at, n = name_length(r);
    r->at += n;
    ebnf_skip(r);
    bool is = n > 0 && accept(r, "::=");
    r->at = was;
    return is;
}

/* The rule of that name, a new one if need be. */
static int find_rule(struct reader *r, const char *name, size_t len, uint32_t *ret_rule)
{
    char text[EXPR_NAME_MOST];

    if (len >= sizeof(text))
        return ebnf_refuse(r, r->at, "a name has more than 39 characters");
    memcpy(text, name, len);
    text[len] = '\0';
    uint32_t at = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        at = (at ^ (uint8_t)text[i]) * 16777619u;
    for (; r->slot[at & (EBNF_SLOTS - 1)] != 0; at++) {
        (void)ek_work_pay(r->set->work, 1); /* names may be chosen to collide; expr_ok() tells */
        uint32_t i = r->first + r->slot[at & (EBNF_SLOTS - 1)] - 1u;
        if (strcmp(r->set->rule[i].name, text) == 0) {
            *ret_rule = i;
            return 0;
        }
    }
    const uint32_t own = r->set->rules - r->first;
    if (own >= EBNF_RULES)
        return ebnf_refuse(r, r->at, "there are more than 2000 rules");
    *ret_rule = expr_rule_new(r->set, text);
    if (expr_ok(r->set))
        r->slot[at & (EBNF_SLOTS - 1)] = (uint16_t)(own + 1);
    return 0;
}

static int hex_digits(struct reader *r, uint32_t count, uint32_t *ret_cp)
{
    const char *wrong = chars_hex(r->s, r->len, count, &r->at, ret_cp);
    return wrong ? ebnf_refuse(r, r->at, wrong) : 0;
}

/* A character of a text or a class, escapes resolved. */
static int read_char(struct reader *r, uint32_t *ret_cp)
{
    static const char from[] = "ntr\\\"'[]-^/.", to[] = "\n\t\r\\\"'[]-^/.";
    size_t n = utf8_get(r->s + r->at, r->len - r->at, ret_cp);

    if (n == 0)
        return ebnf_refuse(r, r->at, "something is not UTF-8");
    r->at += n;
    if (*ret_cp != '\\')
        return 0;
    if (r->at == r->len)
        return ebnf_refuse(r, r->at, "a backslash ends the text");
    char c = r->s[r->at++];
    const char *known = memchr(from, c, sizeof(from) - 1);
    if (known) {
        *ret_cp = (uint8_t)to[known - from];
        return 0;
    }
    if (c == 'x')
        return hex_digits(r, 2, ret_cp);
    if (c == 'u')
        return hex_digits(r, 4, ret_cp);
    if (c == 'U')
        return hex_digits(r, 8, ret_cp);
    return ebnf_refuse(r, r->at, "an escape is not known");
}

static int ebnf_read_text(struct reader *r, char quote, uint32_t *ret_expr)
{
    struct ek_buf text = {0};
    size_t from = r->at;
    int code = 0;

    while (code == 0 && r->at < r->len && r->s[r->at] != quote) {
        char bytes[UTF8_MOST];
        uint32_t cp;
        if (r->s[r->at] == '\n')
            break;
        code = read_char(r, &cp);
        if (code == 0)
            (void)ek_buf_add(&text, bytes, utf8_put(bytes, cp));
    }
    if (code == 0 && (r->at == r->len || r->s[r->at] != quote))
        code = ebnf_refuse(r, from, "a text is not closed");
    r->at += code == 0;
    if (!ek_buf_ok(&text))
        r->set->no_memory = true;
    else if (code == 0)
        *ret_expr = expr_bytes(r->set, text.data ? text.data : "", text.len);
    ek_buf_done(&text);
    return code;
}

static int read_class(struct reader *r, uint32_t *ret_expr)
{
    struct chars c = {0};
    size_t from = r->at;
    bool negate = accept(r, "^");

    while (r->at < r->len && r->s[r->at] != ']') {
        uint32_t lo, hi;
        if (r->s[r->at] == '\n')
            break;
        if (read_char(r, &lo) < 0)
            return -EBADMSG;
        hi = lo;
        if (r->at + 1 < r->len && r->s[r->at] == '-' && r->s[r->at + 1] != ']') {
            r->at++;
            if (read_char(r, &hi) < 0)
                return -EBADMSG;
        }
        if (lo > hi)
            return ebnf_refuse(r, r->at, "a range runs backwards");
        chars_add(&c, lo, hi);
    }
    if (!accept(r, "]"))
        return ebnf_refuse(r, from, "a class is not closed");
    if (negate)
        chars_negate(&c);
    *ret_expr = expr_chars(r->set, &c);
    return 0;
}

static int read_alternatives(struct reader *r, uint32_t *ret_expr);

static int read_item(struct reader *r, uint32_t *ret_expr)
{
    size_t from = r->at, n = name_length(r);
    uint32_t rule;

    if (n > 0) {
        int code = find_rule(r, r->s + r->at, n, &rule);
        r->at += n;
        if (code == 0)
            *ret_expr = expr_call(r->set, rule);
        return code;
    }
    if (accept(r, "\""))
        return ebnf_read_text(r, '"', ret_expr);
    if (accept(r, "'"))
        return ebnf_read_text(r, '\'', ret_expr);
    if (accept(r, "["))
        return read_class(r, ret_expr);
    if (accept(r, ".")) {
        struct chars c = {0};
        chars_add(&c, '\n', '\n');
        chars_negate(&c);
        *ret_expr = expr_chars(r->set, &c);
        return 0;
    }
    if (!accept(r, "("))
        return ebnf_refuse(r, from, "a text, a class, a group or the name of a rule is missing");
    if (++r->depth > EBNF_NESTING)
        return ebnf_refuse(r, from, "groups nest too deep");
    int code = read_alternatives(r, ret_expr);
    r->depth--;
    if (code < 0)
        return code;
    ebnf_skip(r);
    return accept(r, ")") ? 0 : ebnf_refuse(r, from, "a group is not closed");
}

static bool ebnf_read_number(struct reader *r, uint32_t *ret_n)
{
    return digits_read(r->s, r->len, &r->at, EBNF_COUNT, ret_n);
}

static int read_count(struct reader *r, uint32_t *least, uint32_t *most)
{
    size_t from = r->at;

    *least = *most = 1;
    if (accept(r, "*")) {
        *least = 0;
        *most = EXPR_MANY;
    } else if (accept(r, "+")) {
        *most = EXPR_MANY;
    } else if (accept(r, "?")) {
        *least = 0;
    } else if (accept(r, "{")) {
        ebnf_skip(r);
        bool first = ebnf_read_number(r, least);
        *least = first ? *least : 0;
        *most = *least;
        ebnf_skip(r);
        if (accept(r, ",")) {
            ebnf_skip(r);
            *most = ebnf_read_number(r, most) ? *most : EXPR_MANY;
            ebnf_skip(r);
        } else if (!first) {
            return ebnf_refuse(r, from, "a count has no number");
        }
        if (!accept(r, "}"))
            return ebnf_refuse(r, from, "a count is not closed");
        if (*least > EBNF_COUNT || (*most != EXPR_MANY && *most > EBNF_COUNT) || *most < *least)
            return ebnf_refuse(r, from, "counts must be in order and at most 10000");
    }
    return 0;
}

static int read_sequence(struct reader *r, uint32_t *ret_expr)
{
    struct expr_list seq = {.set = r->set};
    int code = 0;

    for (ebnf_skip(r); code == 0 && r->at < r->len && expr_ok(r->set); ebnf_skip(r)) {
        uint32_t what = EXPR_EMPTY, least, most;
        if (r->s[r->at] == '|' || r->s[r->at] == ')' || at_rule(r))
            break;
        code = read_item(r, &what);
        if (code == 0)
            code = read_count(r, &least, &most);
        if (code == 0)
            expr_push(&seq, expr_repeat(r->set, what, least, most));
    }
    *ret_expr = expr_seq(&seq);
    return code;
}

static int read_alternatives(struct reader *r, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code;

    do {
        uint32_t one = EXPR_EMPTY;
        code = read_sequence(r, &one);
        expr_push(&alt, one);
        ebnf_skip(r);
    } while (code == 0 && accept(r, "|"));
    *ret_expr = expr_alt(&alt);
    return code;
}

static int read_rules(struct reader *r)
{
    for (ebnf_skip(r); r->at < r->len && expr_ok(r->set); ebnf_skip(r)) {
        size_t from = r->at, n = name_length(r);
        uint32_t rule, body;
        if (!at_rule(r))
            return ebnf_refuse(r, from, "a rule (name ::= ..., or Lark's name: ...) is missing");
        int code = find_rule(r, r->s + r->at, n, &rule);
        if (code < 0)
            return code;
        r->at += n;
        ebnf_skip(r);
        (void)accept(r, "::="); /* at_rule() has seen it */
        if (expr_ok(r->set) && r->set->rule[rule].body != UINT32_MAX)
            return ebnf_refuse(r, from, "a rule is written a second time");
        code = read_alternatives(r, &body);
        if (code < 0)
            return code;
        expr_rule_set(r->set, rule, body);
        if (r->at < r->len && r->s[r->at] == ')')
            return ebnf_refuse(r, r->at, "a ) was never opened");
    }
    return 0;
}

int ebnf_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_root,
              struct ek_fault *fault)
{
    const uint32_t first = set->rules;
    struct reader r = {.set = set, .s = text, .len = len, .fault = fault, .first = first};

    int code = find_rule(&r, "root", 4, ret_root);
    if (code == 0)
        code = read_rules(&r);
    if (!expr_ok(set))
        code = 0; /* given up for that; the compiler of the set says so */
    for (uint32_t i = first; code == 0 && i < set->rules; i++) {
        if (set->rule[i].body != UINT32_MAX)
            continue;
        if (expr_ok(set))
            code = ek_fault_set(fault, "grammar",
                                "the rule `%s` is used in the grammar but not "
                                "written",
                                set->rule[i].name);
        else
            expr_rule_set(set, i, EXPR_NEVER);
    }
    if (code == 0)
        left_rewrite(set, first);
    return code;
}

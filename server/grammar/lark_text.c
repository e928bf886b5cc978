/*
 * Terminals of Lark's notation: texts, ranges, patterns, and those that everybody imports. Called
 * by lark.c and lark_expr.c.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/lark_inside.h"
#include "server/grammar/regex.h"
#include "server/text/utf8.h"

/* ---- texts ---- */

static uint32_t lark_emit(struct lark *r, uint32_t cp, bool caseless)
{
    struct chars c = {0};

    chars_add(&c, cp, cp);
    if (caseless && ((cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z')))
        chars_add(&c, cp ^ 0x20, cp ^ 0x20);
    (void)ek_work_pay(r->set->work, 16); /* expr_ok() tells */
    return r->in_json ? regex_json_chars(r->set, &c) : expr_chars(r->set, &c);
}

static int hex_digits(struct lark *r, uint32_t count, uint32_t *ret_cp)
{
    const char *wrong = chars_hex(r->s, r->len, count, &r->at, ret_cp);
    return wrong ? lark_refuse(r, r->at, "%s", wrong) : 0;
}

/* One character of a text. A backslash before what it does not change stands for itself. */
static int read_char(struct lark *r, uint32_t *ret_cp)
{
    static const char from[] = "ntrf\\\"", to[] = "\n\t\r\f\\\"";
    size_t n = utf8_get(r->s + r->at, r->len - r->at, ret_cp);

    if (n == 0)
        return lark_refuse(r, r->at, "something is not UTF-8");
    r->at += n;
    if (*ret_cp != '\\' || r->at == r->len)
        return 0;
    const char *known = memchr(from, r->s[r->at], sizeof(from) - 1);
    if (known) {
        r->at++;
        *ret_cp = (uint8_t)to[known - from];
        return 0;
    }
    if (lark_accept(r, "x"))
        return hex_digits(r, 2, ret_cp);
    if (lark_accept(r, "u"))
        return hex_digits(r, 4, ret_cp);
    return lark_accept(r, "U") ? hex_digits(r, 8, ret_cp) : 0;
}

/* Up to the closing quote; the flag behind it is read first. */
static int find_end(struct lark *r, bool *ret_caseless)
{
    size_t at = r->at;

    while (at < r->len && r->s[at] != '"' && r->s[at] != '\n')
        at += r->s[at] == '\\' && at + 1 < r->len ? 2 : 1;
    if (at >= r->len || r->s[at] != '"')
        return lark_refuse(r, r->at, "a text is not closed");
    *ret_caseless = at + 1 < r->len && r->s[at + 1] == 'i';
    return 0;
}

/* "a".."z", at the first text's end. */
static int read_range(struct lark *r, uint32_t lo, uint32_t count, uint32_t *ret_expr)
{
    struct chars c = {0};
    uint32_t hi = 0;
    bool caseless = false;
    size_t from = r->at;

    lark_blank(r);
    if (!lark_accept(r, "\"") || find_end(r, &caseless) < 0 || read_char(r, &hi) < 0)
        return lark_refuse(r, from, "a range has no end");
    if (count != 1 || !lark_accept(r, "\"") || caseless)
        return lark_refuse(r, from, "a range is from one character to another");
    if (lo > hi)
        return lark_refuse(r, from, "a range runs backwards");
    chars_add(&c, lo, hi);
    *ret_expr = r->in_json ? regex_json_chars(r->set, &c) : expr_chars(r->set, &c);
    return 0;
}

int lark_text(struct lark *r, uint32_t *ret_expr)
{
    struct expr_list all = {.set = r->set};
    bool caseless = false;
    uint32_t cp = 0, count = 0;

    int code = find_end(r, &caseless);
    for (; code == 0 && r->at < r->len && r->s[r->at] != '"' && expr_ok(r->set); count++) {
        code = read_char(r, &cp);
        if (code == 0)
            expr_push(&all, lark_emit(r, cp, caseless));
    }
    *ret_expr = expr_seq(&all);
    if (code < 0 || !expr_ok(r->set))
        return code;
    r->at += caseless ? 2 : 1;
    size_t was = r->at;
    lark_blank(r);
    if (lark_accept(r, ".."))
        return read_range(r, cp, count, ret_expr);
    r->at = was;
    return 0;
}

/* ---- patterns ---- */

static int read_flags(struct lark *r, unsigned *ret_flags)
{
    *ret_flags = r->in_json ? REGEX_IN_JSON : 0;
    for (; r->at < r->len && strchr("imslux", r->s[r->at]) && r->s[r->at]; r->at++) {
        char c = r->s[r->at];
        if (c == 'i')
            *ret_flags |= REGEX_CASELESS;
        else if (c == 's')
            *ret_flags |= REGEX_DOT_ALL;
        else if (c != 'u')
            return lark_refuse(r, r->at, "the flag %c of patterns is not offered (i, s and u are)",
                               c);
    }
    return 0;
}

int lark_pattern(struct lark *r, uint32_t *ret_expr)
{
    size_t from = r->at, len;
    unsigned flags;
    bool lazy = false;
    struct ek_fault f = {0};

    while (r->at < r->len && r->s[r->at] != '/' && r->s[r->at] != '\n')
        r->at += r->s[r->at] == '\\' && r->at + 1 < r->len ? 2 : 1;
    if (r->at >= r->len || r->s[r->at] != '/')
        return lark_refuse(r, from, "a pattern is not closed");
    len = r->at++ - from;
    if (read_flags(r, &flags) < 0)
        return -EBADMSG;
    (void)ek_work_pay(r->set->work, len);
    if (regex_read_part(r->set, r->s + from, len, flags, ret_expr, &lazy, &f) < 0)
        return lark_refuse(r, from, "%s,", f.msg);
    r->lazy |= lazy;
    return 0;
}

/* ---- common ---- */

#define INT_     "[0-9]+"
#define EXP_     "(?:[eE][+-]?" INT_ ")"
#define DECIMAL_ "(?:" INT_ "\\.[0-9]*|\\." INT_ ")"
#define FLOAT_   "(?:" INT_ EXP_ "|" DECIMAL_ EXP_ "?)"

static const struct {
    const char *name, *pattern;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", INT_},
    {"SIGNED_INT", "[+-]?" INT_},
    {"DECIMAL", DECIMAL_},
    {"_EXP", EXP_},
    {"FLOAT", FLOAT_},
    {"SIGNED_FLOAT", "[+-]?" FLOAT_},
    {"NUMBER", FLOAT_ "|" INT_},
    {"SIGNED_NUMBER", "[+-]?(?:" FLOAT_ "|" INT_ ")"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\n]|\\\\[^\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
};

int lark_common(struct lark *r, const char *name, size_t len, uint32_t *ret_expr)
{
    bool lazy;

    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
        if (strlen(common[i].name) == len && memcmp(common[i].name, name, len) == 0)
            return regex_read_part(r->set, common[i].pattern, strlen(common[i].pattern),
                                   r->in_json ? REGEX_IN_JSON : 0, ret_expr, &lazy, NULL);
    return lark_refuse(r, r->at, "`common` has no terminal `%.*s` here", (int)len, name);
}

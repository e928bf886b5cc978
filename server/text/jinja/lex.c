/*
 * The lexer of chat templates, called by parse.c for each token. It has three modes: in text it
 * looks for the next tag, in a block or a print tag it reads names, numbers, strings and operators
 * until the bracket that ends it. Brackets inside a tag are counted, so that "}}" of a dict is not
 * taken for the end. Whitespace control is decided where a tag begins and ends, in strip_before()
 * and pass_end(), and nowhere else.
 */
#include "server/text/jinja/lex.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/arena.h"
#include "common/err.h"
#include "common/hex.h"
#include "server/text/jinja/str.h"

int jlex_fail(struct ek_fault *fault, uint32_t line, uint32_t col, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof(msg), fmt, ap); /* a longer sentence is cut */
    va_end(ap);
    int r =
        ek_fault_set(fault, "chat_template", "chat template line %u column %u: %s", line, col, msg);
    if (fault)
        fault->at = line;
    return r;
}

int jlex_init(struct jlex *x, struct ek_arena *arena, const char *src, size_t len,
              struct ek_fault *fault)
{
    *x = (struct jlex){.arena = arena, .fault = fault, .line = 1, .line_starting = true};
    size_t bad = jstr_valid((struct jstr){src, len});
    if (bad < len)
        return ek_fault_set(fault, "chat_template",
                            "The chat template is not UTF-8 at byte %zu: save it as UTF-8.", bad);
    char *copy = ek_arena_take(arena, len + 1);
    if (!copy)
        return -ENOMEM;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < len && src[i + 1] == '\n';
        } else {
            copy[n++] = src[i];
        }
    }
    if (n && copy[n - 1] == '\n')
        n--;
    x->src = copy;
    x->len = n;
    return 0;
}

/* Line and column of an offset; offsets are asked for in rising order, else it starts over. */
static void locate(struct jlex *x, size_t at, struct jlex_token *t)
{
    if (at < x->located) {
        x->located = x->line_start = 0;
        x->line = 1;
    }
    for (; x->located < at; x->located++) {
        if (x->src[x->located] == '\n') {
            x->line++;
            x->line_start = x->located + 1;
        }
    }
    t->line = x->line;
    t->col = (uint32_t)(at - x->line_start) + 1;
}

static int fail_at(struct jlex *x, size_t at, const char *what)
{
    struct jlex_token t;
    locate(x, at, &t);
    return jlex_fail(x->fault, t.line, t.col, "%s", what);
}

static bool starts(const struct jlex *x, size_t at, const char *s)
{
    size_t n = strlen(s);
    return n <= x->len - at && memcmp(x->src + at, s, n) == 0;
}

static size_t skip_space(const struct jlex *x, size_t at)
{
    size_t next = at;
    while (at < x->len && jstr_is_space(jstr_next((struct jstr){x->src, x->len}, &next)))
        at = next;
    return at;
}

/* Moves over the end of a tag, which stands at `at`, and over the whitespace that goes with it. */
static void pass_end(struct jlex *x, size_t at, char sign, bool trim)
{
    x->pos = at + 2;
    if (sign == '-')
        x->pos = skip_space(x, x->pos);
    else if (trim && sign != '+' && x->pos < x->len && x->src[x->pos] == '\n')
        x->pos++;
    x->line_starting = x->src[x->pos - 1] == '\n';
    x->mode = JLEX_IN_TEXT;
}

/* The text before a tag, without what the tag's sign or lstrip_blocks takes away. */
static size_t strip_before(const struct jlex *x, size_t from, size_t to, char sign, bool is_print)
{
    struct jstr text = {x->src + from, to - from};
    if (sign == '-')
        return from + jstr_strip(text, NULL, JSTR_RIGHT).len;
    if (sign == '+' || is_print)
        return to;
    size_t line = to;
    while (line > from && x->src[line - 1] != '\n')
        line--;
    if (line == from && !x->line_starting)
        return to;
    text = (struct jstr){x->src + line, to - line};
    return jstr_strip(text, NULL, JSTR_RIGHT).len ? to : line;
}

static int pass_comment(struct jlex *x, size_t at, size_t body)
{
    const char *end = memmem(x->src + body, x->len - body, "#}", 2);
    if (!end)
        return fail_at(x, at, "this comment has no end: add #}");
    size_t e = (size_t)(end - x->src);
    char sign = e > body && (end[-1] == '-' || end[-1] == '+') ? end[-1] : 0;
    pass_end(x, e, sign, true);
    return 0;
}

/* Whether a tag with only `word` begins at `at` ("{%" stands there); *ret_end is its "%}". */
static bool bare_tag(const struct jlex *x, size_t at, const char *word, size_t *ret_end, char *sign)
{
    size_t p = at + 2;
    if (p < x->len && (x->src[p] == '-' || x->src[p] == '+'))
        p++;
    p = skip_space(x, p);
    if (!starts(x, p, word))
        return false;
    p = skip_space(x, p + strlen(word));
    *sign = 0;
    if (p < x->len && (x->src[p] == '-' || x->src[p] == '+'))
        *sign = x->src[p++];
    *ret_end = p;
    return starts(x, p, "%}");
}

static void set_text(struct jlex *x, size_t from, size_t to, struct jlex_token *t)
{
    locate(x, from, t);
    t->kind = JLEX_TEXT;
    t->s = x->src + from;
    t->len = to - from;
}

/* A raw block whose opening tag ends at `end`: its body is text. */
static int raw_block(struct jlex *x, size_t at, size_t end, char sign, struct jlex_token *t)
{
    pass_end(x, end, sign, false);
    size_t from = x->pos, tag_end;
    for (size_t p = from; p + 1 < x->len; p++) {
        if (x->src[p] != '{' || x->src[p + 1] != '%' || !bare_tag(x, p, "endraw", &tag_end, &sign))
            continue;
        char open_sign = p + 2 < x->len ? x->src[p + 2] : 0;
        set_text(x, from, strip_before(x, from, p, open_sign, false), t);
        pass_end(x, tag_end, sign, true);
        return 0;
    }
    return fail_at(x, at, "this raw block has no end: add {% endraw %}");
}

static size_t find_tag(const struct jlex *x)
{
    for (size_t p = x->pos; p + 1 < x->len; p++) {
        const char *brace = memchr(x->src + p, '{', x->len - 1 - p);
        if (!brace)
            break;
        p = (size_t)(brace - x->src);
        if (brace[1] == '%' || brace[1] == '{' || brace[1] == '#')
            return p;
    }
    return x->len;
}

/* Text up to the next tag; with none left of it, the tag itself. */
static int next_text(struct jlex *x, struct jlex_token *t)
{
    while (x->pos < x->len) {
        size_t from = x->pos, tag = find_tag(x);
        if (tag == x->len) {
            set_text(x, from, tag, t);
            x->pos = tag;
            return 0;
        }
        char what = x->src[tag + 1], sign = tag + 2 < x->len ? x->src[tag + 2] : 0;
        size_t to = strip_before(x, from, tag, sign, what == '{'), end;
        if (to > from) {
            set_text(x, from, to, t);
            x->pos = tag;
            x->line_starting = false;
            return 0;
        }
        size_t body = tag + 2 + (sign == '-' || sign == '+');
        if (what == '#') {
            int r = pass_comment(x, tag, body);
            if (r < 0)
                return r;
            continue;
        }
        char end_sign;
        if (what == '%' && bare_tag(x, tag, "raw", &end, &end_sign) && end_sign != '+') {
            int r = raw_block(x, tag, end, end_sign, t);
            if (r < 0 || t->len)
                return r;
            continue;
        }
        locate(x, tag, t);
        t->kind = what == '%' ? JLEX_BLOCK_BEGIN : JLEX_PRINT_BEGIN;
        x->mode = what == '%' ? JLEX_IN_BLOCK : JLEX_IN_PRINT;
        x->pos = body;
        x->open = 0;
        return 0;
    }
    locate(x, x->len, t);
    t->kind = JLEX_EOF;
    return 0;
}

static int hex_digits(const char *s, size_t n, uint32_t *ret_value)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        int d = ek_hex_digit(s[i]);
        if (d < 0)
            return -EINVAL;
        v = v << 4 | (uint32_t)d;
    }
    *ret_value = v;
    return 0;
}

/* One escape of a string literal; s stands behind the backslash. Returns how many bytes it took,
 * 0 for a bad one; an unknown escape keeps its backslash, as in Python. */
static size_t unescape(const char *s, size_t len, char *out, size_t *n)
{
    static const char from[] = "ntr\\'\"abfv", to[] = "\n\t\r\\'\"\a\b\f\v";
    const char *known = len ? memchr(from, s[0], sizeof(from) - 1) : NULL;
    if (known) {
        out[(*n)++] = to[known - from];
        return 1;
    }
    if (len && s[0] == '\n')
        return 1;
    uint32_t cp = 0;
    size_t used = 0, digits = !len ? 0 : s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (digits) {
        if (len < 1 + digits || hex_digits(s + 1, digits, &cp) < 0 || cp > 0x10ffff ||
            (cp >= 0xd800 && cp < 0xe000))
            return 0;
        used = 1 + digits;
    } else {
        while (used < len && used < 3 && s[used] >= '0' && s[used] <= '7')
            cp = cp * 8 + (uint32_t)(s[used++] - '0');
    }
    if (used) {
        *n += jstr_put(out + *n, cp);
        return used;
    }
    out[(*n)++] = '\\';
    return len && s[0] != 'N' ? (out[(*n)++] = s[0], 1) : 0;
}

static int lex_string(struct jlex *x, struct jlex_token *t)
{
    char quote = x->src[x->pos];
    size_t from = x->pos + 1, end = from;
    while (end < x->len && x->src[end] != quote)
        end += x->src[end] == '\\' ? 2 : 1;
    if (end >= x->len)
        return fail_at(x, x->pos, "this string has no end");
    char *out = ek_arena_take(x->arena, end - from + 4);
    if (!out)
        return -ENOMEM;
    size_t n = 0;
    for (size_t p = from; p < end;) {
        if (x->src[p] != '\\') {
            out[n++] = x->src[p++];
            continue;
        }
        size_t used = unescape(x->src + p + 1, end - p - 1, out, &n);
        if (!used)
            return fail_at(x, p, "this escape is not a character");
        p += 1 + used;
    }
    t->kind = JLEX_STRING;
    t->s = out;
    t->len = n;
    x->pos = end + 1;
    return 0;
}

static bool is_digit(const struct jlex *x, size_t p)
{
    return p < x->len && x->src[p] >= '0' && x->src[p] <= '9';
}

static size_t skip_digits(const struct jlex *x, size_t p)
{
    while (is_digit(x, p) || (p < x->len && x->src[p] == '_' && is_digit(x, p + 1)))
        p++;
    return p;
}

static int lex_number(struct jlex *x, struct jlex_token *t)
{
    size_t p = skip_digits(x, x->pos);
    bool is_float = false;
    if (p < x->len && x->src[p] == '.' && is_digit(x, p + 1)) {
        is_float = true;
        p = skip_digits(x, p + 1);
    }
    if (p < x->len && (x->src[p] == 'e' || x->src[p] == 'E')) {
        size_t q = p + 1;
        q += q < x->len && (x->src[q] == '+' || x->src[q] == '-');
        if (is_digit(x, q)) {
            is_float = true;
            p = skip_digits(x, q);
        }
    }
    char digits[64];
    size_t n = 0;
    for (size_t q = x->pos; q < p; q++) {
        if (x->src[q] == '_')
            continue;
        if (n == sizeof(digits))
            return fail_at(x, x->pos, "this number is too long");
        digits[n++] = x->src[q];
    }
    t->kind = is_float ? JLEX_FLOAT : JLEX_INT;
    struct jstr number = {digits, n};
    int r = is_float ? jstr_float(number, &t->f) : jstr_int(number, 10, &t->i);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return fail_at(x, x->pos, "this number is too large");
    t->len = p - x->pos;
    x->pos = p;
    return 0;
}

static bool lex_is_name(const struct jlex *x, size_t p)
{
    if (p >= x->len)
        return false;
    unsigned char c = (unsigned char)x->src[p];
    return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static int lex_op(struct jlex *x, struct jlex_token *t)
{
    static const char *const pairs[] = {"**", "//", "==", "!=", "<=", ">="};
    char c = x->src[x->pos];
    t->kind = JLEX_OP;
    t->op = (unsigned char)c;
    t->len = 1;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (starts(x, x->pos, pairs[i])) {
            t->op = JLEX_OP2(pairs[i][0], pairs[i][1]);
            t->len = 2;
        }
    }
    if (t->len == 1 && !strchr("+-*/%~<>=.:|,;()[]{}", c))
        return fail_at(x, x->pos, "unexpected character");
    if (strchr("([{", c)) {
        if (x->open == sizeof(x->closers))
            return fail_at(x, x->pos, "brackets are nested deeper than 64");
        x->closers[x->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!x->open || x->closers[x->open - 1] != c)
            return fail_at(x, x->pos, "this bracket closes nothing");
        x->open--;
    }
    x->pos += t->len;
    return 0;
}

/* Whether the end of the tag stands at the position: with a sign, or without. */
static bool lex_end(struct jlex *x, struct jlex_token *t)
{
    bool block = x->mode == JLEX_IN_BLOCK;
    const char *end = block ? "%}" : "}}";
    char c = x->src[x->pos];
    if (x->open)
        return false;
    bool with_sign = (c == '-' || (block && c == '+')) && starts(x, x->pos + 1, end);
    if (!with_sign && !starts(x, x->pos, end))
        return false;
    t->kind = block ? JLEX_BLOCK_END : JLEX_PRINT_END;
    t->len = 2;
    pass_end(x, x->pos + with_sign, with_sign ? c : 0, block);
    return true;
}

int jlex_next(struct jlex *x, struct jlex_token *ret_token)
{
    *ret_token = (struct jlex_token){0};
    if (x->mode == JLEX_IN_TEXT)
        return next_text(x, ret_token);
    x->pos = skip_space(x, x->pos);
    locate(x, x->pos, ret_token);
    if (x->pos >= x->len)
        return fail_at(x, x->len, "the template ends inside of a tag");
    char c = x->src[x->pos];
    ret_token->s = x->src + x->pos;
    if (lex_end(x, ret_token))
        return 0;
    if (c == '\'' || c == '"')
        return lex_string(x, ret_token);
    if (is_digit(x, x->pos))
        return lex_number(x, ret_token);
    if (lex_is_name(x, x->pos)) {
        while (lex_is_name(x, x->pos))
            x->pos++;
        ret_token->kind = JLEX_NAME;
        ret_token->len = (size_t)(x->src + x->pos - ret_token->s);
        return 0;
    }
    return lex_op(x, ret_token);
}

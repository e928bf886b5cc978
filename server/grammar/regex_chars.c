/*
 * Characters of a pattern: escapes, \d and its like, sets in brackets, the dot; and as what a set
 * of characters becomes bytes, plain or as the inside of a JSON string. Called by regex.c, which
 * reads what lies around them, and by others for regex_json_chars().
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/expr.h"
#include "server/grammar/regex_inside.h"
#include "server/text/utf8.h"

uint32_t regex_json_chars(struct expr_set *set, const struct chars *c)
{
    static const struct {
        uint8_t byte;
        const char *text;
    } escapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
                   {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
    struct chars plain = {0}, raw = *c;
    struct expr_list out = {.set = set};
    char text[8];

    chars_add(&plain, 0x20, 0x21);
    chars_add(&plain, 0x23, 0x5b);
    chars_add(&plain, 0x5d, CHARS_LAST);
    chars_keep(&raw, &plain);
    if (raw.count > 0 || raw.failed)
        expr_push(&out, expr_chars(set, &raw));
    for (uint32_t cp = 0; cp < 0x60; cp++) {
        const char *escape = NULL;
        if (!chars_has(c, cp) || chars_has(&plain, cp))
            continue;
        for (size_t i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++)
            escape = escapes[i].byte == cp ? escapes[i].text : escape;
        (void)snprintf(text, sizeof(text), "\\u%04x", cp);
        expr_push(&out, expr_text(set, escape ? escape : text));
    }
    return expr_alt(&out);
}

/* Adds the other case of ASCII's letters. */
static void fold_case(const struct regex_reader *r, struct chars *c)
{
    for (uint32_t cp = 'A'; (r->flags & REGEX_CASELESS) && cp <= 'Z'; cp++) {
        if (chars_has(c, cp))
            chars_add(c, cp ^ 0x20, cp ^ 0x20);
        else if (chars_has(c, cp ^ 0x20))
            chars_add(c, cp, cp);
    }
}

uint32_t regex_emit(struct regex_reader *r, const struct chars *c)
{
    struct chars all = *c;
    fold_case(r, &all);
    (void)ek_work_pay(r->set->work, 16 + 8ull * c->count); /* expr_ok() tells */
    return r->flags & REGEX_IN_JSON ? regex_json_chars(r->set, &all) : expr_chars(r->set, &all);
}

static void add_range(struct chars *c, const uint32_t (*range)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        chars_add(c, range[i][0], range[i][1]);
}

bool regex_add_kind(char kind, bool widest, struct chars *c)
{
    static const uint32_t digits[][2] = {{'0', '9'}};
    static const uint32_t words[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const uint32_t spaces[][2] = {{'\t', '\r'}, {' ', ' '}};
    /* What some dialect takes for a space. */
    static const uint32_t all_spaces[][2] = {{9, 13},          {28, 32},         {0x85, 0x85},
                                             {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                                             {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                             {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    struct chars set = {0}, ascii = {0};

    switch (kind) {
    case 'd':
    case 'D': add_range(&set, digits, 1); break;
    case 'w':
    case 'W': add_range(&set, words, 4); break;
    case 's':
    case 'S':
        if (widest == (kind == 's'))
            add_range(&set, all_spaces, sizeof(all_spaces) / sizeof(all_spaces[0]));
        else
            add_range(&set, spaces, 2);
        break;
    default: return false; /* another escape */
    }
    if (kind == 'D' || kind == 'W') {
        chars_negate(&set);
        chars_add(&ascii, 0, widest ? CHARS_LAST : 0x7f);
        chars_keep(&set, &ascii);
    } else if (kind == 'S') {
        chars_negate(&set);
    } else if (widest && kind != 's') {
        chars_add(&set, 0x80, CHARS_LAST);
    }
    chars_add_all(c, &set);
    return true;
}

static int escape_digits(struct regex_reader *r, uint32_t count, uint32_t *ret_cp)
{
    const char *wrong = chars_digits(r->s, r->len, count, &r->at, ret_cp);

    return wrong ? regex_refuse(r, r->at, wrong) : 0;
}

/* After `\u`: four digits, two such halves, or {digits}. */
static int read_unicode(struct regex_reader *r, uint32_t *ret_cp)
{
    uint32_t cp = 0, low = 0;

    if (regex_accept(r, "{")) {
        while (regex_more(r) && r->s[r->at] != '}') {
            uint32_t digit;
            if (escape_digits(r, 1, &digit) < 0)
                return -EBADMSG;
            cp = cp << 4 | digit;
            if (cp > CHARS_LAST)
                return regex_refuse(r, r->at, "there is no such character");
        }
        if (!regex_accept(r, "}"))
            return regex_refuse(r, r->at, "a } is missing");
    } else if (escape_digits(r, 4, &cp) < 0) {
        return -EBADMSG;
    }
    if (cp >= 0xd800 && cp < 0xdc00 && regex_accept(r, "\\u")) {
        if (escape_digits(r, 4, &low) < 0)
            return -EBADMSG;
        if (low >= 0xdc00 && low < 0xe000)
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (cp >= 0xd800 && cp < 0xe000)
        return regex_refuse(r, r->at, "half of a surrogate pair is no character");
    *ret_cp = cp;
    return 0;
}

int regex_read_escape(struct regex_reader *r, uint32_t *ret_cp)
{
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v\0";
    size_t at = r->at - 1;
    char c = r->s[r->at];
    const char *known = memchr(from, c, sizeof(from) - 1);

    if (known &&
        !(c == '0' && r->at + 1 < r->len && r->s[r->at + 1] >= '0' && r->s[r->at + 1] <= '9')) {
        r->at++;
        *ret_cp = (uint8_t)to[known - from];
        return 0;
    }
    if (regex_accept(r, "x"))
        return escape_digits(r, 2, ret_cp);
    if (regex_accept(r, "u"))
        return read_unicode(r, ret_cp);
    if ((c >= '0' && c <= '9') || c == 'k' || c == 'g')
        return regex_refuse(r, at, "back references and octal escapes are not offered: \\");
    if (c == 'p' || c == 'P')
        return regex_refuse(r, at, "Unicode properties (\\p) are not offered: write the ranges");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return regex_refuse(r, at, "this escape is not offered");
    size_t n = utf8_get(r->s + r->at, r->len - r->at, ret_cp);
    if (n == 0)
        return regex_refuse(r, at, "the pattern is not UTF-8");
    r->at += n;
    return 0;
}

int regex_read_char(struct regex_reader *r, uint32_t *ret_cp)
{
    size_t n = utf8_get(r->s + r->at, r->len - r->at, ret_cp);
    if (n == 0)
        return regex_refuse(r, r->at, "the pattern is not UTF-8");
    r->at += n;
    return 0;
}

/* One end of a range in [...], or a kind such as \d, which is added at once. */
static int read_member(struct regex_reader *r, struct chars *c, bool negate, bool *ret_kind,
                       bool *wide, uint32_t *ret_cp)
{
    *ret_kind = false;
    if (!regex_accept(r, "\\"))
        return regex_read_char(r, ret_cp);
    if (!regex_more(r))
        return regex_refuse(r, r->at - 1, "the pattern ends in a backslash");
    char kind = r->s[r->at];
    if (regex_add_kind(kind, r->widest && !negate, c)) {
        r->at++;
        *wide |= kind != 's';
        *ret_kind = true;
        return 0;
    }
    if (regex_accept(r, "b")) {
        *ret_cp = '\b';
        return 0;
    }
    return regex_read_escape(r, ret_cp);
}

int regex_read_set(struct regex_reader *r, struct chars *ret_chars)
{
    struct chars c = {0};
    size_t open = r->at - 1;
    bool negate = regex_accept(r, "^"), first = true, wide = false;

    while (first || !regex_looking_at(r, "]")) {
        uint32_t lo, hi;
        bool kind, kind_too = false;
        size_t at = r->at;
        if (!regex_more(r))
            return regex_refuse(r, open, "a [ is not closed");
        if (regex_looking_at(r, "[:") || regex_looking_at(r, "&&") || regex_looking_at(r, "--"))
            return regex_refuse(r, at, "set operations and [:names:] are not offered");
        first = false;
        if (read_member(r, &c, negate, &kind, &wide, &lo) < 0)
            return -EBADMSG;
        if (kind)
            continue;
        hi = lo;
        if (regex_looking_at(r, "-") && r->at + 1 < r->len && r->s[r->at + 1] != ']') {
            r->at++;
            if (read_member(r, &c, negate, &kind_too, &wide, &hi) < 0)
                return -EBADMSG;
            if (kind_too)
                return regex_refuse(r, at, "a range cannot end in a class");
        }
        if (lo > hi)
            return regex_refuse(r, at, "a range runs backwards");
        chars_add(&c, lo, hi);
    }
    r->at++;
    if (negate) {
        struct chars ascii = {0};
        fold_case(r, &c);
        chars_negate(&c);
        chars_add(&ascii, 0, 0x7f);
        if (wide && !r->widest) /* beyond ASCII the dialects differ about what \w and \d are */
            chars_keep(&c, &ascii);
    }
    if (c.failed)
        return regex_refuse(r, open, "the set has too many ranges");
    *ret_chars = c;
    return 0;
}

void regex_add_dot(const struct regex_reader *r, struct chars *c)
{
    if (!(r->flags & REGEX_DOT_ALL))
        chars_add(c, '\n', '\n');
    if (!(r->flags & REGEX_DOT_ALL) && !r->part && !r->widest) { /* Python and ECMA-262 differ */
        chars_add(c, '\r', '\r');
        chars_add(c, 0x2028, 0x2029);
    }
    chars_negate(c);
}

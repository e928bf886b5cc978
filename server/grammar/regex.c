/*
 * Recursive descent over a pattern. Anchors mean something at the two ends only; a pattern in JSON
 * form gets "anything" where an end is not anchored.
 */
#include "server/grammar/regex.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/hex.h"
#include "server/grammar/digits.h"
#include "server/grammar/expr.h"
#include "server/grammar/table.h"
#include "server/text/utf8.h"

#define AHEAD_MOST 16u

struct regex_reader {
    struct expr_set *set;
    const char *s;
    size_t len, at;
    enum regex_form form;
    uint32_t depth;
    uint32_t limit_least, limit_most; /* characters of the string, see regex_read() */
    bool limited, kept;               /* there are such limits; they were applied */
    bool part;                        /* for a part of a text: no anchors */
    bool ahead;                       /* within a look-ahead at the beginning */
    bool widest;    /* of what must not be: where dialects differ about a class, what any takes */
    bool lazy;      /* a lazy count was met */
    unsigned flags; /* enum regex_flag */
    struct ek_fault *fault;
};

static int regex_refuse(struct regex_reader *r, size_t at, const char *what)
{
    if (r->fault)
        r->fault->at = at;
    return ek_fault_set(r->fault, "pattern", "%s at offset %zu of the pattern", what, at);
}

static bool more(const struct regex_reader *r)
{
    return r->at < r->len;
}

static bool looking_at(const struct regex_reader *r, const char *text)
{
    size_t n = strlen(text);
    return r->len - r->at >= n && memcmp(r->s + r->at, text, n) == 0;
}

static bool accept(struct regex_reader *r, const char *text)
{
    if (!looking_at(r, text))
        return false;
    r->at += strlen(text);
    return true;
}

/* ---- characters ---- */

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
static void fold(const struct regex_reader *r, struct chars *c)
{
    for (uint32_t cp = 'A'; (r->flags & REGEX_CASELESS) && cp <= 'Z'; cp++) {
        if (chars_has(c, cp))
            chars_add(c, cp ^ 0x20, cp ^ 0x20);
        else if (chars_has(c, cp ^ 0x20))
            chars_add(c, cp, cp);
    }
}

static uint32_t emit(struct regex_reader *r, const struct chars *c)
{
    struct chars all = *c;
    fold(r, &all);
    (void)ek_work_pay(r->set->work, 16 + 8ull * c->count); /* expr_ok() tells */
    return r->flags & REGEX_IN_JSON ? regex_json_chars(r->set, &all) : expr_chars(r->set, &all);
}

static void add_range(struct chars *c, const uint32_t (*range)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        chars_add(c, range[i][0], range[i][1]);
}

/* \d \w \s and their opposites; false when it is none of them. `widest`: what any dialect takes,
 * and more; else what all do. */
static bool add_kind(char kind, bool widest, struct chars *c)
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

static int hex_digits(struct regex_reader *r, uint32_t count, uint32_t *ret_cp)
{
    uint32_t cp = 0;

    for (uint32_t i = 0; i < count; i++) {
        int digit = more(r) ? ek_hex_digit(r->s[r->at]) : -1;
        if (digit < 0)
            return regex_refuse(r, r->at, "a hexadecimal digit is missing");
        cp = cp << 4 | (uint32_t)digit;
        r->at++;
    }
    *ret_cp = cp;
    return 0;
}

/* After `\u`: four digits, two such halves, or {digits}. */
static int read_unicode(struct regex_reader *r, uint32_t *ret_cp)
{
    uint32_t cp = 0, low = 0;

    if (accept(r, "{")) {
        while (more(r) && r->s[r->at] != '}') {
            uint32_t digit;
            if (hex_digits(r, 1, &digit) < 0)
                return -EBADMSG;
            cp = cp << 4 | digit;
            if (cp > CHARS_LAST)
                return regex_refuse(r, r->at, "there is no such character");
        }
        if (!accept(r, "}"))
            return regex_refuse(r, r->at, "a } is missing");
    } else if (hex_digits(r, 4, &cp) < 0) {
        return -EBADMSG;
    }
    if (cp >= 0xd800 && cp < 0xdc00 && accept(r, "\\u")) {
        if (hex_digits(r, 4, &low) < 0)
            return -EBADMSG;
        if (low >= 0xdc00 && low < 0xe000)
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (cp >= 0xd800 && cp < 0xe000)
        return regex_refuse(r, r->at, "half of a surrogate pair is no character");
    *ret_cp = cp;
    return 0;
}

/* An escape that stands for one character. The backslash is taken. */
static int read_escape(struct regex_reader *r, uint32_t *ret_cp)
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
    if (accept(r, "x"))
        return hex_digits(r, 2, ret_cp);
    if (accept(r, "u"))
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

static int read_char(struct regex_reader *r, uint32_t *ret_cp)
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
    if (!accept(r, "\\"))
        return read_char(r, ret_cp);
    if (!more(r))
        return regex_refuse(r, r->at - 1, "the pattern ends in a backslash");
    char kind = r->s[r->at];
    if (add_kind(kind, r->widest && !negate, c)) {
        r->at++;
        *wide |= kind != 's';
        *ret_kind = true;
        return 0;
    }
    if (accept(r, "b")) {
        *ret_cp = '\b';
        return 0;
    }
    return read_escape(r, ret_cp);
}

/* [...], the bracket is taken. */
static int read_set(struct regex_reader *r, struct chars *ret_chars)
{
    struct chars c = {0};
    size_t open = r->at - 1;
    bool negate = accept(r, "^"), first = true, wide = false;

    while (first || !looking_at(r, "]")) {
        uint32_t lo, hi;
        bool kind, kind_too = false;
        size_t at = r->at;
        if (!more(r))
            return regex_refuse(r, open, "a [ is not closed");
        if (looking_at(r, "[:") || looking_at(r, "&&") || looking_at(r, "--"))
            return regex_refuse(r, at, "set operations and [:names:] are not offered");
        first = false;
        if (read_member(r, &c, negate, &kind, &wide, &lo) < 0)
            return -EBADMSG;
        if (kind)
            continue;
        hi = lo;
        if (looking_at(r, "-") && r->at + 1 < r->len && r->s[r->at + 1] != ']') {
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
        fold(r, &c);
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

static void any_char(const struct regex_reader *r, struct chars *c)
{
    if (!(r->flags & REGEX_DOT_ALL))
        chars_add(c, '\n', '\n');
    if (!(r->flags & REGEX_DOT_ALL) && !r->part && !r->widest) { /* Python and ECMA-262 differ */
        chars_add(c, '\r', '\r');
        chars_add(c, 0x2028, 0x2029);
    }
    chars_negate(c);
}

/* ---- structure ---- */

static int read_alternatives(struct regex_reader *r, bool top, uint32_t *ret_expr);

/* Flags of a group up to its colon, or of all that follows up to the bracket. */
static bool read_flags(struct regex_reader *r, bool first)
{
    unsigned flags = 0;

    for (; more(r) && (r->s[r->at] == 'i' || r->s[r->at] == 's'); r->at++)
        flags |= r->s[r->at] == 'i' ? REGEX_CASELESS : REGEX_DOT_ALL;
    if (flags == 0 || !(accept(r, ":") || (first && accept(r, ")"))))
        return false;
    r->flags |= flags;
    return true;
}

/* After "(": what kind of group it is. */
static int read_group(struct regex_reader *r, uint32_t *ret_expr)
{
    size_t open = r->at - 1;
    unsigned was = r->flags;

    if (accept(r, "?")) {
        bool named = looking_at(r, "P<") ||
                     (looking_at(r, "<") && !looking_at(r, "<=") && !looking_at(r, "<!"));
        if (named) {
            const char *close = memchr(r->s + r->at, '>', r->len - r->at);
            if (!close)
                return regex_refuse(r, open, "the name of a group is not closed");
            r->at = (size_t)(close - r->s) + 1;
        } else if (!accept(r, ":") && !read_flags(r, open == 0)) {
            return regex_refuse(r, open,
                                "look-around but (?=...) and (?!...) at the beginning, "
                                "conditionals and flags but i "
                                "and s are not offered: (?");
        } else if (r->s[r->at - 1] == ')') { /* flags for all that follows */
            *ret_expr = EXPR_EMPTY;
            return 0;
        }
    }
    if (++r->depth > REGEX_NESTING)
        return regex_refuse(r, open, "groups nest too deep");
    int code = read_alternatives(r, false, ret_expr);
    r->depth--;
    r->flags = was;
    if (code < 0)
        return code;
    return accept(r, ")") ? 0 : regex_refuse(r, open, "a ( is not closed");
}

/* One thing that a count may follow. *ret_class: it is a single character. */
static int read_atom(struct regex_reader *r, uint32_t *ret_expr, bool *ret_class)
{
    struct chars c = {0};
    uint32_t cp;
    size_t at = r->at;

    *ret_class = true;
    if (accept(r, "(")) {
        *ret_class = false;
        return read_group(r, ret_expr);
    }
    if (accept(r, "[")) {
        if (read_set(r, &c) < 0)
            return -EBADMSG;
    } else if (accept(r, ".")) {
        any_char(r, &c);
    } else if (looking_at(r, "*") || looking_at(r, "+") || looking_at(r, "?")) {
        return regex_refuse(r, at, "a count has nothing before it");
    } else if (looking_at(r, "^") || looking_at(r, "$") || looking_at(r, "\\b") ||
               looking_at(r, "\\B") || looking_at(r, "\\A") || looking_at(r, "\\Z") ||
               looking_at(r, "\\z") || looking_at(r, "\\G")) {
        return regex_refuse(r, at,
                            "anchors are offered at the two ends only, and no word boundaries:");
    } else if (accept(r, "\\")) {
        if (!more(r))
            return regex_refuse(r, at, "the pattern ends in a backslash");
        if (add_kind(r->s[r->at], r->widest, &c)) {
            r->at++;
        } else {
            if (read_escape(r, &cp) < 0)
                return -EBADMSG;
            chars_add(&c, cp, cp);
        }
    } else {
        if (read_char(r, &cp) < 0)
            return -EBADMSG;
        chars_add(&c, cp, cp);
    }
    *ret_expr = emit(r, &c);
    return 0;
}

static bool regex_read_number(struct regex_reader *r, uint32_t *ret_n)
{
    return digits_read(r->s, r->len, &r->at, REGEX_COUNT, ret_n);
}

/* {m}, {m,}, {,n}, {m,n}; what only looks like one is text. */
static int read_braces(struct regex_reader *r, uint32_t *least, uint32_t *most, bool *ret_is)
{
    size_t at = r->at;

    *ret_is = false;
    if (!accept(r, "{"))
        return 0;
    bool first = regex_read_number(r, least), comma = accept(r, ",");
    bool second = comma && regex_read_number(r, most);
    if (!accept(r, "}") || (!first && !second)) {
        r->at = at;
        return 0;
    }
    *least = first ? *least : 0;
    *most = !comma ? *least : second ? *most : EXPR_MANY;
    if (*least > REGEX_COUNT || (*most != EXPR_MANY && *most > REGEX_COUNT))
        return regex_refuse(r, at, "a count is above 10000");
    if (*most < *least)
        return regex_refuse(r, at, "the counts are in the wrong order");
    *ret_is = true;
    return 0;
}

/* Counts behind an atom. */
static int read_count(struct regex_reader *r, uint32_t *least, uint32_t *most)
{
    bool braces = false;

    *least = *most = 1;
    if (accept(r, "*")) {
        *least = 0;
        *most = EXPR_MANY;
    } else if (accept(r, "+")) {
        *most = EXPR_MANY;
    } else if (accept(r, "?")) {
        *least = 0;
    } else {
        if (read_braces(r, least, most, &braces) < 0)
            return -EBADMSG;
        if (!braces) {
            *least = *most = 1;
            return 0;
        }
        braces = false;
    }
    r->lazy |= accept(r, "?"); /* lazy or not, the same whole texts match */
    uint32_t more_least, more_most;
    if (read_braces(r, &more_least, &more_most, &braces) < 0)
        return -EBADMSG;
    if (braces || looking_at(r, "+") || looking_at(r, "*") || looking_at(r, "?"))
        return regex_refuse(r, r->at, "possessive and repeated counts are not offered");
    return 0;
}

/* Whether a pattern that is one repeated class from end to end is being read. */
static bool alone(const struct regex_reader *r, size_t from, bool top)
{
    if (!top || (r->at < r->len && !looking_at(r, "$")))
        return false;
    bool begins = from == 0 || (from == 1 && r->s[0] == '^');
    return begins && r->s[0] == '^' && looking_at(r, "$") && r->at + 1 == r->len;
}

static int read_pieces(struct regex_reader *r, struct expr_list *seq, bool top)
{
    while (more(r) && !looking_at(r, "|") && !looking_at(r, ")")) {
        uint32_t what, least, most;
        size_t from = r->at;
        bool class;
        if (top && !r->part &&
            (looking_at(r, "$") || looking_at(r, "\\Z") || looking_at(r, "\\z"))) {
            size_t n = looking_at(r, "$") ? 1 : 2;
            if (r->at + n == r->len || r->s[r->at + n] == '|' ||
                (r->ahead && r->s[r->at + n] == ')'))
                return 0;
        }
        if (read_atom(r, &what, &class) < 0 || read_count(r, &least, &most) < 0)
            return -EBADMSG;
        if (r->limited && class && alone(r, from, top) && seq->count == 0) {
            least = least > r->limit_least ? least : r->limit_least;
            most = most < r->limit_most ? most : r->limit_most;
            r->kept = true;
            what = least > most ? EXPR_NEVER : what;
            most = least > most ? least : most;
        }
        expr_push(seq, expr_repeat(r->set, what, least, most));
        if (!expr_ok(r->set))
            return 0;
    }
    return 0;
}

static uint32_t any_chars(struct regex_reader *r)
{
    struct chars c = {0};
    chars_add(&c, 0, CHARS_LAST);
    return emit(r, &c);
}

static uint32_t anything(struct regex_reader *r)
{
    return expr_repeat(r->set, any_chars(r), 0, EXPR_MANY);
}

/* (?=...) and (?!...) where a text begins: what the rest of it must, or must not, begin with. */
struct ahead {
    uint32_t what;
    bool except;
};

static int read_ahead(struct regex_reader *r, struct ahead *ret_ahead)
{
    size_t open = r->at;
    unsigned was = r->flags;

    ret_ahead->except = looking_at(r, "(?!");
    r->at += 3;
    r->ahead = true;
    r->widest = ret_ahead->except;
    int code = read_alternatives(r, true, &ret_ahead->what);
    r->ahead = r->widest = false;
    r->flags = was;
    if (code < 0 || !expr_ok(r->set))
        return code;
    return accept(r, ")") ? 0 : regex_refuse(r, open, "a ( is not closed");
}

/* All of them at the beginning of a branch. */
static int read_aheads(struct regex_reader *r, struct ahead *ahead, uint32_t *ret_count)
{
    while (!r->part && !r->ahead && (looking_at(r, "(?=") || looking_at(r, "(?!"))) {
        if (*ret_count == AHEAD_MOST)
            return regex_refuse(r, r->at, "there are more than 16 look-aheads");
        int code = read_ahead(r, &ahead[(*ret_count)++]);
        if (code < 0 || !expr_ok(r->set))
            return code;
    }
    return 0;
}

/* Keeps of the texts of an expression those that begin as they must. */
static int keep_aheads(struct regex_reader *r, const struct ahead *ahead, uint32_t count,
                       uint32_t *expr)
{
    int code = 0;

    for (uint32_t i = 0; code == 0 && i < count && *expr != EXPR_NEVER; i++) {
        if (ahead[i].what != EXPR_NEVER)
            code = table_both(r->set, *expr, ahead[i].what, ahead[i].except, expr, r->fault);
        else if (!ahead[i].except)
            *expr = EXPR_NEVER;
    }
    return code;
}

static int read_branch(struct regex_reader *r, bool top, uint32_t *ret_expr)
{
    struct expr_list seq = {.set = r->set};
    struct ahead ahead[AHEAD_MOST];
    uint32_t aheads = 0;
    bool search = top && (r->form == REGEX_JSON || r->ahead);
    bool begins = top && !r->part && (accept(r, "^") || accept(r, "\\A"));

    bool from = search && !begins && !r->ahead;
    int code = top ? read_aheads(r, ahead, &aheads) : 0;
    if (from && aheads == 0)
        expr_push(&seq, anything(r));
    if (code == 0)
        code = read_pieces(r, &seq, top);
    bool dollar = top && !r->part && accept(r, "$");
    bool ends = dollar || (top && !r->part && (accept(r, "\\Z") || accept(r, "\\z")));
    if (dollar && r->widest) /* of Python's it may be followed by a line break */
        expr_push(&seq,
                  expr_maybe(r->set, expr_text(r->set, r->flags & REGEX_IN_JSON ? "\\n" : "\n")));
    if (search && !ends)
        expr_push(&seq, anything(r));
    *ret_expr = expr_seq(&seq);
    if (code == 0 && expr_ok(r->set))
        code = keep_aheads(r, ahead, aheads, ret_expr);
    if (from && aheads > 0)
        *ret_expr = expr_pair(r->set, anything(r), *ret_expr);
    return code;
}

static int read_alternatives(struct regex_reader *r, bool top, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    do {
        uint32_t one = EXPR_EMPTY;
        code = read_branch(r, top, &one);
        expr_push(&alt, one);
    } while (code == 0 && accept(r, "|"));
    *ret_expr = expr_alt(&alt);
    return code;
}

/* 0 also when the set was given up. */
static int read_all(struct regex_reader *r, uint32_t *ret_expr)
{
    if (r->len > REGEX_LONGEST)
        return regex_refuse(r, REGEX_LONGEST, "the pattern is longer than 65536 bytes");
    int code = read_alternatives(r, true, ret_expr);
    if (!expr_ok(r->set))
        return 0; /* the compiler of the set says why */
    return code == 0 && more(r) ? regex_refuse(r, r->at, "a ) was never opened") : code;
}

int regex_read(struct expr_set *set, const char *pattern, size_t len, enum regex_form form,
               uint32_t least, uint32_t most, uint32_t *ret_expr, struct ek_fault *fault)
{
    struct regex_reader r = {.set = set,
                             .s = pattern,
                             .len = len,
                             .form = form,
                             .flags = form == REGEX_JSON ? REGEX_IN_JSON : 0,
                             .limit_least = least,
                             .limit_most = most,
                             .limited = least > 0 || most != EXPR_MANY,
                             .fault = fault};
    uint32_t e = EXPR_EMPTY;

    int code = read_all(&r, &e);
    if (code == 0 && expr_ok(set) && r.limited && !r.kept && e != EXPR_NEVER)
        code = table_both(set, e, expr_repeat(set, any_chars(&r), least, most), false, &e, fault);
    if (code == 0)
        *ret_expr = e;
    return code;
}

int regex_read_part(struct expr_set *set, const char *pattern, size_t len, unsigned flags,
                    uint32_t *ret_expr, bool *ret_lazy, struct ek_fault *fault)
{
    struct regex_reader r = {.set = set,
                             .s = pattern,
                             .len = len,
                             .form = REGEX_TEXT,
                             .flags = flags,
                             .part = true,
                             .fault = fault};
    uint32_t e = EXPR_EMPTY;

    int code = read_all(&r, &e);
    *ret_lazy = r.lazy;
    if (code == 0)
        *ret_expr = e;
    return code;
}

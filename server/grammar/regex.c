/*
 * Recursive descent over a pattern: groups, counts, anchors and look-aheads (regex.h); characters
 * are in regex_chars.c. Anchors mean something at the two ends only; a pattern in JSON form gets
 * "anything" where an end is not anchored. Called by compile.c and by the readers of schemas, of
 * Lark and of structures.
 */
#include "server/grammar/regex.h"

#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/digits.h"
#include "server/grammar/expr.h"
#include "server/grammar/regex_inside.h"
#include "server/grammar/table.h"

#define AHEAD_MOST 16u

static int regex_alternatives(struct regex_reader *r, bool top, uint32_t *ret_expr);

/* Flags of a group up to its colon, or of all that follows up to the bracket. */
static bool regex_flags(struct regex_reader *r, bool first)
{
    unsigned flags = 0;

    for (; regex_more(r) && (r->s[r->at] == 'i' || r->s[r->at] == 's'); r->at++)
        flags |= r->s[r->at] == 'i' ? REGEX_CASELESS : REGEX_DOT_ALL;
    if (flags == 0 || !(regex_accept(r, ":") || (first && regex_accept(r, ")"))))
        return false;
    r->flags |= flags;
    return true;
}

/* After "(": what kind of group it is. */
static int regex_group(struct regex_reader *r, uint32_t *ret_expr)
{
    size_t open = r->at - 1;
    unsigned was = r->flags;

    if (regex_accept(r, "?")) {
        bool named =
            regex_looking_at(r, "P<") ||
            (regex_looking_at(r, "<") && !regex_looking_at(r, "<=") && !regex_looking_at(r, "<!"));
        if (named) {
            const char *close = memchr(r->s + r->at, '>', r->len - r->at);
            if (!close)
                return regex_refuse(r, open, "the name of a group is not closed");
            r->at = (size_t)(close - r->s) + 1;
        } else if (!regex_accept(r, ":") && !regex_flags(r, open == 0)) {
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
    int code = regex_alternatives(r, false, ret_expr);
    r->depth--;
    r->flags = was;
    if (code < 0)
        return code;
    return regex_accept(r, ")") ? 0 : regex_refuse(r, open, "a ( is not closed");
}

/* One thing that a count may follow. *ret_class: it is a single character. */
static int regex_atom(struct regex_reader *r, uint32_t *ret_expr, bool *ret_class)
{
    struct chars c = {0};
    uint32_t cp;
    size_t at = r->at;

    *ret_class = true;
    if (regex_accept(r, "(")) {
        *ret_class = false;
        return regex_group(r, ret_expr);
    }
    if (regex_accept(r, "[")) {
        if (regex_read_set(r, &c) < 0)
            return -EBADMSG;
    } else if (regex_accept(r, ".")) {
        regex_add_dot(r, &c);
    } else if (regex_looking_at(r, "*") || regex_looking_at(r, "+") || regex_looking_at(r, "?")) {
        return regex_refuse(r, at, "a count has nothing before it");
    } else if (regex_looking_at(r, "^") || regex_looking_at(r, "$") || regex_looking_at(r, "\\b") ||
               regex_looking_at(r, "\\B") || regex_looking_at(r, "\\A") ||
               regex_looking_at(r, "\\Z") || regex_looking_at(r, "\\z") ||
               regex_looking_at(r, "\\G")) {
        return regex_refuse(r, at,
                            "anchors are offered at the two ends only, and no word boundaries:");
    } else if (regex_accept(r, "\\")) {
        if (!regex_more(r))
            return regex_refuse(r, at, "the pattern ends in a backslash");
        if (regex_add_kind(r->s[r->at], r->widest, &c)) {
            r->at++;
        } else {
            if (regex_read_escape(r, &cp) < 0)
                return -EBADMSG;
            chars_add(&c, cp, cp);
        }
    } else {
        if (regex_read_char(r, &cp) < 0)
            return -EBADMSG;
        chars_add(&c, cp, cp);
    }
    *ret_expr = regex_emit(r, &c);
    return 0;
}

static bool regex_number(struct regex_reader *r, uint32_t *ret_n)
{
    return digits_read(r->s, r->len, &r->at, REGEX_COUNT, ret_n);
}

/* {m}, {m,}, {,n}, {m,n}; what only looks like one is text. */
static int regex_braces(struct regex_reader *r, uint32_t *least, uint32_t *most, bool *ret_is)
{
    size_t at = r->at;

    *ret_is = false;
    if (!regex_accept(r, "{"))
        return 0;
    bool first = regex_number(r, least), comma = regex_accept(r, ",");
    bool second = comma && regex_number(r, most);
    if (!regex_accept(r, "}") || (!first && !second)) {
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
static int regex_count(struct regex_reader *r, uint32_t *least, uint32_t *most)
{
    bool braces = false;

    *least = *most = 1;
    if (regex_accept(r, "*")) {
        *least = 0;
        *most = EXPR_MANY;
    } else if (regex_accept(r, "+")) {
        *most = EXPR_MANY;
    } else if (regex_accept(r, "?")) {
        *least = 0;
    } else {
        if (regex_braces(r, least, most, &braces) < 0)
            return -EBADMSG;
        if (!braces) {
            *least = *most = 1;
            return 0;
        }
        braces = false;
    }
    r->lazy |= regex_accept(r, "?"); /* lazy or not, the same whole texts match */
    uint32_t more_least, more_most;
    if (regex_braces(r, &more_least, &more_most, &braces) < 0)
        return -EBADMSG;
    if (braces || regex_looking_at(r, "+") || regex_looking_at(r, "*") || regex_looking_at(r, "?"))
        return regex_refuse(r, r->at, "possessive and repeated counts are not offered");
    return 0;
}

/* Whether a pattern that is one repeated class from end to end is being read. */
static bool class_alone(const struct regex_reader *r, size_t from, bool top)
{
    if (!top || (r->at < r->len && !regex_looking_at(r, "$")))
        return false;
    bool begins = from == 0 || (from == 1 && r->s[0] == '^');
    return begins && r->s[0] == '^' && regex_looking_at(r, "$") && r->at + 1 == r->len;
}

static int regex_pieces(struct regex_reader *r, struct expr_list *seq, bool top)
{
    while (regex_more(r) && !regex_looking_at(r, "|") && !regex_looking_at(r, ")")) {
        uint32_t what, least, most;
        size_t from = r->at;
        bool class;
        if (top && !r->part &&
            (regex_looking_at(r, "$") || regex_looking_at(r, "\\Z") ||
             regex_looking_at(r, "\\z"))) {
            size_t n = regex_looking_at(r, "$") ? 1 : 2;
            if (r->at + n == r->len || r->s[r->at + n] == '|' ||
                (r->ahead && r->s[r->at + n] == ')'))
                return 0;
        }
        if (regex_atom(r, &what, &class) < 0 || regex_count(r, &least, &most) < 0)
            return -EBADMSG;
        if (r->limited && class && class_alone(r, from, top) && seq->count == 0) {
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
    return regex_emit(r, &c);
}

static uint32_t anything(struct regex_reader *r)
{
    return expr_repeat(r->set, any_chars(r), 0, EXPR_MANY);
}

/* (?=...) and (?!...) where a text begins: what the rest of it must, or must not, begin with. */
struct regex_ahead {
    uint32_t what;
    bool except;
};

static int regex_ahead(struct regex_reader *r, struct regex_ahead *ret_ahead)
{
    size_t open = r->at;
    unsigned was = r->flags;

    ret_ahead->except = regex_looking_at(r, "(?!");
    r->at += 3;
    r->ahead = true;
    r->widest = ret_ahead->except;
    int code = regex_alternatives(r, true, &ret_ahead->what);
    r->ahead = r->widest = false;
    r->flags = was;
    if (code < 0 || !expr_ok(r->set))
        return code;
    return regex_accept(r, ")") ? 0 : regex_refuse(r, open, "a ( is not closed");
}

/* All of them at the beginning of a branch. */
static int regex_aheads(struct regex_reader *r, struct regex_ahead *ahead, uint32_t *ret_count)
{
    while (!r->part && !r->ahead && (regex_looking_at(r, "(?=") || regex_looking_at(r, "(?!"))) {
        if (*ret_count == AHEAD_MOST)
            return regex_refuse(r, r->at, "there are more than 16 look-aheads");
        int code = regex_ahead(r, &ahead[(*ret_count)++]);
        if (code < 0 || !expr_ok(r->set))
            return code;
    }
    return 0;
}

/* Keeps of the texts of an expression those that begin as they must. */
static int keep_aheads(struct regex_reader *r, const struct regex_ahead *ahead, uint32_t count,
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

static int regex_branch(struct regex_reader *r, bool top, uint32_t *ret_expr)
{
    struct expr_list seq = {.set = r->set};
    struct regex_ahead ahead[AHEAD_MOST];
    uint32_t aheads = 0;
    bool search = top && (r->form == REGEX_JSON || r->ahead);
    bool begins = top && !r->part && (regex_accept(r, "^") || regex_accept(r, "\\A"));

    bool from = search && !begins && !r->ahead;
    int code = top ? regex_aheads(r, ahead, &aheads) : 0;
    if (from && aheads == 0)
        expr_push(&seq, anything(r));
    if (code == 0)
        code = regex_pieces(r, &seq, top);
    bool dollar = top && !r->part && regex_accept(r, "$");
    bool ends = dollar || (top && !r->part && (regex_accept(r, "\\Z") || regex_accept(r, "\\z")));
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

static int regex_alternatives(struct regex_reader *r, bool top, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = r->set};
    int code = 0;

    do {
        uint32_t one = EXPR_EMPTY;
        code = regex_branch(r, top, &one);
        expr_push(&alt, one);
    } while (code == 0 && regex_accept(r, "|"));
    *ret_expr = expr_alt(&alt);
    return code;
}

/* 0 also when the set was given up. */
static int regex_all(struct regex_reader *r, uint32_t *ret_expr)
{
    if (r->len > REGEX_LONGEST)
        return regex_refuse(r, REGEX_LONGEST, "the pattern is longer than 65536 bytes");
    int code = regex_alternatives(r, true, ret_expr);
    if (!expr_ok(r->set))
        return 0; /* the compiler of the set says why */
    return code == 0 && regex_more(r) ? regex_refuse(r, r->at, "a ) was never opened") : code;
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

    int code = regex_all(&r, &e);
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

    int code = regex_all(&r, &e);
    *ret_lazy = r.lazy;
    if (code == 0)
        *ret_expr = e;
    return code;
}

/*
 * Regular expressions for normalize.c, pretok.c and the loading of tokenizers (toksteps.c). A
 * pattern is translated from Oniguruma's dialect character by character: only escapes and bracketed
 * classes are looked at, and what PCRE2 would read otherwise and cannot be said in its words is
 * refused, so that no text is split in another way than the model was trained with.
 */
#include "server/text/rx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/text/utf8.h"

#define STEPS_FIRST  4000u          /* PCRE2's match limit of the first try */
#define STEPS_RAISE  8u             /* and the factor of each further one */
#define BUDGET_BASE  (1u << 20)     /* steps that raises may cost in any text */
#define BUDGET_CHAR  16u            /* and per byte of it */
#define STACK_FIRST  (32u * 1024)   /* bytes */
#define STACK_MOST   (4096u * 1024) /* of JIT stack; only taken when the machine's did not do */
#define SEARCH       8u             /* units of work (common/work.h) */
#define PATTERN_MOST 65536u         /* bytes; published ones stay below 600 */

#define LITERAL (PCRE2_UTF | PCRE2_LITERAL)
/* In Oniguruma's Ruby dialect ^ and $ always mean lines. */
#define DIALECT (PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C)

struct rx {
    pcre2_general_context *general;
    pcre2_code *code;
    bool jit;
};

struct rx_work {
    pcre2_general_context *general;
    pcre2_match_data *data;
    pcre2_match_context *match;
    pcre2_jit_stack *stack;
    uint64_t budget;
    struct ek_work *pay;
};

static void *rx_take(PCRE2_SIZE size, void *unused)
{
    (void)unused;
    return malloc(size);
}

static void rx_give(void *p, void *unused)
{
    (void)unused;
    free(p);
}

/* Oniguruma's classes in PCRE2's words, for use inside brackets; NULL when the escape means the
 * same in both, "" when it has no such spelling. */
static const char *class_body(char escape, bool bracketed)
{
    switch (escape) {
    case 's': return "\\t-\\r\\x{85}\\p{Z}";
    case 'S':
        return "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}"
               "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}"
               "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";
    case 'w': return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    case 'W':
        return bracketed
                   ? ""
                   : "^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    case 'h': return "0-9A-Fa-f";
    case 'H': return bracketed ? "" : "^0-9A-Fa-f";
    }
    return NULL;
}

static int put_escape(char escape, bool bracketed, struct ek_buf *out, struct ek_fault *fault)
{
    const char *body = class_body(escape, bracketed);
    if (!body)
        return ek_buf_printf(out, "\\%c", escape);
    if (!*body)
        return ek_fault_set(fault, "Regex", "\\%c inside brackets is not supported", escape);
    return ek_buf_printf(out, bracketed ? "%s" : "[%s]", body);
}

/* \p{Han} is the script alone there; here it would be the script's extensions too, which have
 * punctuation in them. Returns the length of a property of that kind at p, which is written, or 0.
 */
static size_t put_script(const char *p, size_t len, struct ek_buf *out)
{
    static const char *const scripts[] = {"Han",      "Hiragana", "Katakana", "Hangul",
                                          "Bopomofo", "Latin",    "Greek",    "Cyrillic",
                                          "Arabic",   "Hebrew",   "Thai",     "Devanagari"};
    for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
        size_t n = strlen(scripts[i]);
        if (len < n + 4 || (p[1] != 'p' && p[1] != 'P') || p[2] != '{' || p[n + 3] != '}' ||
            memcmp(p + 3, scripts[i], n) != 0)
            continue;
        (void)ek_buf_printf(out, "\\%c{sc:%s}", p[1], scripts[i]);
        return n + 4;
    }
    return 0;
}

static ssize_t put_class(const char *p, size_t len, bool inner, struct ek_buf *out,
                         struct ek_fault *fault);

/* [A&&[B]] is what both have, (?=[B])[A]: p is at the &&, and A begins at `from` in out. */
static ssize_t put_both(const char *p, size_t len, size_t from, struct ek_buf *out,
                        struct ek_fault *fault)
{
    struct ek_buf first = {0}, second = {0};
    ssize_t n = 0;
    if (len > 2 && p[2] == '[' && out->data[from + 1] != '^')
        n = put_class(p + 2, len - 2, true, &second, fault);
    if (n >= 0 && (n == 0 || (size_t)n + 2 >= len || p[n + 2] != ']'))
        n = ek_fault_set(fault, "Regex",
                         "&& inside brackets is only supported before a last part in brackets, "
                         "and not behind [^");
    if (n > 0) {
        (void)ek_buf_add(&first, out->data + from, out->len - from);
        out->len = from;
        (void)ek_buf_add(out, "(?:(?=", 6);
        (void)ek_buf_add(out, second.data, second.len);
        (void)ek_buf_add(out, ")", 1);
        (void)ek_buf_add(out, first.data, first.len);
        (void)ek_buf_add(out, "])", 2);
        n = ek_buf_ok(&first) && ek_buf_ok(&second) ? n + 2 : -ENOMEM;
    }
    ek_buf_done(&first);
    ek_buf_done(&second);
    return n;
}

/* Copies the bracketed class at p; `inner`: behind &&. Returns its length, or a negative code. */
static ssize_t put_class(const char *p, size_t len, bool inner, struct ek_buf *out,
                         struct ek_fault *fault)
{
    size_t i = 1, from = out->len;
    if (i < len && p[i] == '^')
        i++;
    if (i < len && p[i] == ']') /* right after the opening bracket it is a plain character */
        i++;
    (void)ek_buf_add(out, p, i);
    while (i < len && p[i] != ']') {
        size_t n = 1;
        size_t script = p[i] == '\\' ? put_script(p + i, len - i, out) : 0;
        if (script > 0) {
            i += script;
            continue;
        }
        if (p[i] == '\\' && i + 1 < len) {
            int r = put_escape(p[i + 1], true, out, fault);
            if (r < 0)
                return r;
            i += 2;
            continue;
        }
        if (p[i] == '&' && i + 1 < len && p[i + 1] == '&') {
            if (inner)
                return ek_fault_set(fault, "Regex", "&& inside of && is not supported");
            ssize_t both = ek_buf_ok(out) ? put_both(p + i, len - i, from, out, fault) : -ENOMEM;
            return both < 0 ? both : (ssize_t)i + both + 1;
        }
        if (p[i] == '[') {
            const char *end = memmem(p + i, len - i, ":]", 2);
            if (!end || p[i + 1] != ':')
                return ek_fault_set(fault, "Regex", "nested brackets are not supported");
            n = (size_t)(end - (p + i)) + 2;
        }
        (void)ek_buf_add(out, p + i, n);
        i += n;
    }
    if (i == len)
        return ek_fault_set(fault, "Regex", "a bracket is not closed");
    (void)ek_buf_add(out, "]", 1);
    return (ssize_t)i + 1;
}

/* Whether {n}, {n,} or {n,m} stands at p with a + behind it: possessive here, a second repeat
 * there. */
static bool is_interval_plus(const char *p, size_t len)
{
    size_t i = 1;
    while (i < len && ((p[i] >= '0' && p[i] <= '9') || p[i] == ','))
        i++;
    return i > 1 && i + 1 < len && p[i] == '}' && p[i + 1] == '+';
}

static int translate(const char *p, size_t len, struct ek_buf *out, struct ek_fault *fault)
{
    for (size_t i = 0; i < len;) {
        ssize_t n = p[i] == '\\' ? (ssize_t)put_script(p + i, len - i, out) : 0;
        if (n > 0) {
            i += (size_t)n;
            continue;
        }
        n = 1;
        if (p[i] == '\\' && i + 1 < len) {
            n = put_escape(p[i + 1], false, out, fault);
            if (n == 0)
                n = 2;
        } else if (p[i] == '[') {
            n = put_class(p + i, len - i, false, out, fault);
        } else if (p[i] == '{' && is_interval_plus(p + i, len - i)) {
            n = ek_fault_set(fault, "Regex", "an interval followed by + is not supported");
        } else {
            (void)ek_buf_add(out, p + i, 1);
        }
        if (n < 0)
            return (int)n;
        i += (size_t)n;
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int rx_new(const char *pattern, size_t len, bool literal, struct rx **ret_rx,
           struct ek_fault *fault)
{
    int r = -ENOMEM, code = 0;
    struct ek_buf text = {0};
    pcre2_compile_context *compile = NULL;
    PCRE2_SIZE at = 0;

    struct rx *rx = calloc(1, sizeof(*rx));
    if (!rx)
        goto out;
    if (len > PATTERN_MOST || len == 0) {
        r = ek_fault_set(fault, "pattern", "a pattern must have 1 to %u bytes, this one has %zu",
                         PATTERN_MOST, len);
        goto out;
    }
    r = literal ? ek_buf_add(&text, pattern, len) : translate(pattern, len, &text, fault);
    if (r < 0)
        goto out;
    r = -ENOMEM;
    rx->general = pcre2_general_context_create(rx_take, rx_give, NULL);
    if (!rx->general)
        goto out;
    compile = pcre2_compile_context_create(rx->general);
    if (!compile)
        goto out;
    rx->code = pcre2_compile((PCRE2_SPTR)text.data, text.len, literal ? LITERAL : DIALECT, &code,
                             &at, compile);
    if (!rx->code) {
        PCRE2_UCHAR why[160] = "";
        (void)pcre2_get_error_message(code, why, sizeof(why));
        if (code != PCRE2_ERROR_HEAP_FAILED)
            r = ek_fault_set(fault, "Regex", "the pattern \"%.200s\" cannot be used: %s at %zu",
                             text.data, (const char *)why, (size_t)at);
        goto out;
    }
    /* Without JIT the interpreter does it, only slower. */
    rx->jit = pcre2_jit_compile(rx->code, PCRE2_JIT_COMPLETE) == 0;

    *ret_rx = rx;
    rx = NULL;
    r = 0;
out:
    pcre2_compile_context_free(compile);
    ek_buf_done(&text);
    rx_free(rx);
    return r;
}

void rx_free(struct rx *rx)
{
    if (!rx)
        return;
    pcre2_code_free(rx->code);
    pcre2_general_context_free(rx->general);
    free(rx);
}

int rx_work_new(size_t text_len, struct ek_work *work, struct rx_work **ret_work)
{
    int r = -ENOMEM;

    struct rx_work *w = calloc(1, sizeof(*w));
    if (!w)
        goto out;
    w->pay = work;
    w->budget = BUDGET_BASE + (uint64_t)text_len * BUDGET_CHAR;
    w->general = pcre2_general_context_create(rx_take, rx_give, NULL);
    if (!w->general)
        goto out;
    w->data = pcre2_match_data_create(1, w->general);
    w->match = pcre2_match_context_create(w->general);
    if (!w->data || !w->match)
        goto out;
    (void)pcre2_set_match_limit(w->match, STEPS_FIRST); /* cannot fail */
    (void)pcre2_set_heap_limit(w->match, STACK_MOST / 1024);

    *ret_work = w;
    w = NULL;
    r = 0;
out:
    rx_work_free(w);
    return r;
}

void rx_work_free(struct rx_work *w)
{
    if (!w)
        return;
    pcre2_jit_stack_free(w->stack);
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->match);
    pcre2_general_context_free(w->general);
    free(w);
}

/* After a failed search: 0 when another try makes sense. */
static int raise_limit(struct rx_work *w, int code, uint32_t *steps)
{
    if (code == PCRE2_ERROR_JIT_STACKLIMIT && !w->stack) {
        w->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, w->general);
        if (!w->stack)
            return -ENOMEM;
        pcre2_jit_stack_assign(w->match, NULL, w->stack);
        return 0;
    }
    if (code != PCRE2_ERROR_MATCHLIMIT || w->budget < *steps)
        return code == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -E2BIG;
    w->budget -= *steps;
    (void)ek_work_pay(w->pay, *steps / 2); /* the next search sees it */
    *steps *= STEPS_RAISE;
    (void)pcre2_set_match_limit(w->match, *steps);
    return 0;
}

int rx_find(const struct rx *rx, struct rx_work *w, const char *s, size_t len, size_t from,
            struct rx_span *ret_span)
{
    uint32_t steps = STEPS_FIRST;
    int n, r = 0;

    if (!ek_work_pay(w->pay, SEARCH))
        return -E2BIG;
    for (;;) {
        if (rx->jit)
            n = pcre2_jit_match(rx->code, (PCRE2_SPTR)s, len, from, 0, w->data, w->match);
        else
            n = pcre2_match(rx->code, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK, w->data,
                            w->match);
        if (n >= 0 || n == PCRE2_ERROR_NOMATCH)
            break;
        r = raise_limit(w, n, &steps);
        if (r < 0)
            break;
    }
    if (steps != STEPS_FIRST)
        (void)pcre2_set_match_limit(w->match, STEPS_FIRST);
    if (r < 0)
        return r;
    if (n < 0)
        return 0;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(w->data);
    /* \K may move the start behind the end; such a match is empty. */
    *ret_span = (struct rx_span){.from = v[0] < v[1] ? v[0] : v[1], .to = v[1]};
    return 1;
}

int rx_next(const struct rx *rx, struct rx_work *w, const char *s, size_t len, struct rx_span *last)
{
    struct rx_span m;
    bool begun = last->to != SIZE_MAX;
    size_t from = begun ? last->to : 0;
    if (from > len)
        return 0;
    int r = rx_find(rx, w, s, len, from, &m);
    if (r > 0 && begun && m.from == m.to && m.to == last->to) {
        uint32_t cp;
        if (from >= len)
            return 0;
        r = rx_find(rx, w, s, len, from + utf8_next(s + from, len - from, &cp), &m);
    }
    if (r > 0)
        *last = m;
    return r;
}

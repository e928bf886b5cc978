/*
 * Python's strings for the template engine, and for chat.c. Indexes count code points, so finding
 * one is linear. Numbers are read and written without the locale. Cases and classes come from
 * utf8proc.
 */
#include "server/text/jinja/str.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <utf8proc.h>

size_t jstr_valid(struct jstr s)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)s.p;
    size_t at = 0;
    while (at < s.len) {
        if (p[at] < 0x80) {
            at++;
            continue;
        }
        utf8proc_int32_t cp;
        utf8proc_ssize_t n = utf8proc_iterate(p + at, (utf8proc_ssize_t)(s.len - at), &cp);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    return at;
}

size_t jstr_count(struct jstr s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

size_t jstr_offset(struct jstr s, size_t index)
{
    size_t i = 0;
    for (; i < s.len; i++) {
        if (((unsigned char)s.p[i] & 0xc0) == 0x80)
            continue;
        if (index-- == 0)
            break;
    }
    return i;
}

uint32_t jstr_next(struct jstr s, size_t *pos)
{
    const unsigned char *p = (const unsigned char *)s.p + *pos;
    size_t left = s.len - *pos, n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n == 1 || n > left) {
        *pos += 1;
        return p[0];
    }
    uint32_t cp = p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        cp = cp << 6 | (p[i] & 0x3fu);
    *pos += n;
    return cp;
}

size_t jstr_put(char *out, uint32_t cp)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

bool jstr_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool jstr_is_word(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

bool jstr_equal(struct jstr a, struct jstr b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

int jstr_compare(struct jstr a, struct jstr b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

bool jstr_is(struct jstr s, const char *literal)
{
    return s.len == strlen(literal) && memcmp(s.p, literal, s.len) == 0;
}

bool jstr_starts(struct jstr s, struct jstr with)
{
    return with.len <= s.len && jstr_equal((struct jstr){s.p, with.len}, with);
}

bool jstr_ends(struct jstr s, struct jstr with)
{
    return with.len <= s.len && jstr_equal((struct jstr){s.p + s.len - with.len, with.len}, with);
}

size_t jstr_find(struct jstr s, struct jstr what, size_t from)
{
    if (from > s.len)
        return SIZE_MAX;
    if (!what.len)
        return from;
    const char *hit = memmem(s.p + from, s.len - from, what.p, what.len);
    return hit ? (size_t)(hit - s.p) : SIZE_MAX;
}

size_t jstr_rfind(struct jstr s, struct jstr what)
{
    if (what.len > s.len)
        return SIZE_MAX;
    for (size_t i = s.len - what.len + 1; i-- > 0;) {
        if (!what.len || memcmp(s.p + i, what.p, what.len) == 0)
            return i;
    }
    return SIZE_MAX;
}

static bool strips(uint32_t cp, const struct jstr *chars)
{
    if (!chars)
        return jstr_is_space(cp);
    for (size_t at = 0; at < chars->len;) {
        if (jstr_next(*chars, &at) == cp)
            return true;
    }
    return false;
}

struct jstr jstr_strip(struct jstr s, const struct jstr *chars, int ends)
{
    size_t from = 0, to = s.len;
    while ((ends & JSTR_LEFT) && from < to) {
        size_t next = from;
        if (!strips(jstr_next(s, &next), chars))
            break;
        from = next;
    }
    while ((ends & JSTR_RIGHT) && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s.p[at] & 0xc0) == 0x80)
            at--;
        size_t next = at;
        if (!strips(jstr_next(s, &next), chars))
            break;
        to = at;
    }
    return (struct jstr){s.p ? s.p + from : NULL, to - from};
}

int jstr_int(struct jstr s, int base, int64_t *ret_value)
{
    s = jstr_strip(s, NULL, JSTR_LEFT | JSTR_RIGHT);
    bool negative = s.len && s.p[0] == '-';
    size_t at = s.len && (s.p[0] == '-' || s.p[0] == '+');
    if (base == 16 && s.len > at + 2 && s.p[at] == '0' && (s.p[at + 1] | 32) == 'x')
        at += 2;
    if (at == s.len)
        return -EINVAL;
    int64_t v = 0;
    for (; at < s.len; at++) {
        char c = s.p[at], low = (char)(c | 32);
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
        if (digit >= base)
            return -EINVAL;
        if (__builtin_mul_overflow(v, base, &v) ||
            __builtin_sub_overflow(v, digit, &v)) /* negative, which reaches further */
            return -ERANGE;
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, v, &v))
        return -ERANGE;
    *ret_value = v;
    return 0;
}

static bool digits_at(struct jstr s, size_t *at)
{
    size_t from = *at;
    while (*at < s.len && s.p[*at] >= '0' && s.p[*at] <= '9')
        ++*at;
    return *at > from;
}

/* Jansson reads the digits: it knows JSON's point whatever the locale says. */
static int float_by_json(const char *digits, size_t len, double *ret_value)
{
    json_error_t e;
    json_t *j = json_loadb(digits, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &e);
    if (!j) {
        enum json_error_code code = json_error_code(&e);
        return code == json_error_out_of_memory ? -ENOMEM : -ERANGE;
    }
    *ret_value = json_number_value(j);
    json_decref(j);
    return 0;
}

int jstr_float(struct jstr s, double *ret_value)
{
    char text[400];
    s = jstr_strip(s, NULL, JSTR_LEFT | JSTR_RIGHT);
    size_t at = s.len && (s.p[0] == '-' || s.p[0] == '+'), n = 0, from;
    bool negative = s.len && s.p[0] == '-', whole, part = false;
    if (s.len - at == 3 &&
        (strncasecmp(s.p + at, "inf", 3) == 0 || strncasecmp(s.p + at, "nan", 3) == 0)) {
        double v = (s.p[at] | 32) == 'i' ? HUGE_VAL : (double)NAN;
        *ret_value = negative ? -v : v;
        return 0;
    }
    while (at + 1 < s.len && s.p[at] == '0' && s.p[at + 1] >= '0' && s.p[at + 1] <= '9')
        at++; /* JSON allows no leading zeros */
    from = at;
    whole = digits_at(s, &at);
    if (s.len - from > sizeof(text) - 8)
        return -ERANGE;
    if (!whole)
        text[n++] = '0';
    memcpy(text + n, s.p + from, at - from);
    n += at - from;
    if (at < s.len && s.p[at] == '.') {
        from = ++at;
        part = digits_at(s, &at);
        text[n++] = '.';
        if (!part)
            text[n++] = '0';
        memcpy(text + n, s.p + from, at - from);
        n += at - from;
    }
    if (!whole && !part)
        return -EINVAL;
    if (at < s.len && (s.p[at] | 32) == 'e') {
        from = at++;
        at += at < s.len && (s.p[at] == '-' || s.p[at] == '+');
        if (!digits_at(s, &at))
            return -EINVAL;
        memcpy(text + n, s.p + from, at - from);
        n += at - from;
    }
    double v = 0;
    int r = at < s.len ? -EINVAL : float_by_json(text, n, &v);
    if (r == 0)
        *ret_value = negative ? -v : v;
    return r;
}

/* The shortest digits that read back as f: "d.ddde+XX" taken apart. */
static size_t shortest_digits(double f, char *digits, int *ret_exp)
{
    char text[40];
    for (int p = 0; p < 17; p++) {
        (void)snprintf(text, sizeof(text), "%.*e", p, f); /* at most 24 bytes */
        if (strtod(text, NULL) == f)
            break;
    }
    const char *e = strchr(text, 'e');
    size_t n = 0;
    for (const char *c = text; c < e; c++) {
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    }
    int exp = 0;
    for (const char *c = e + 2; *c; c++)
        exp = exp * 10 + (*c - '0');
    *ret_exp = e[1] == '-' ? -exp : exp;
    return n;
}

size_t jstr_float_repr(double f, char *out)
{
    size_t n = 0;
    if (isnan(f))
        return (size_t)sprintf(out, "nan");
    if (signbit(f))
        out[n++] = '-';
    f = fabs(f);
    if (isinf(f))
        return n + (size_t)sprintf(out + n, "inf");
    char digits[24];
    int exp;
    int count = (int)shortest_digits(f, digits, &exp);
    if (exp < -4 || exp >= 16) {
        out[n++] = digits[0];
        if (count > 1)
            out[n++] = '.';
        memcpy(out + n, digits + 1, (size_t)count - 1);
        n += (size_t)count - 1;
        return n + (size_t)sprintf(out + n, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    }
    for (int i = exp < 0 ? exp : 0; i < count || i <= exp + 1; i++) {
        if (i == exp + 1)
            out[n++] = '.';
        out[n++] = i >= 0 && i < count ? digits[i] : '0';
    }
    return n;
}

static size_t put_case(char *out, uint32_t cp, enum jstr_case how)
{
    if (how == JSTR_LOWER)
        return jstr_put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    if (cp == 0xdf) { /* sharp s is the one common letter whose capital is two */
        memcpy(out, how == JSTR_UPPER ? "SS" : "Ss", 2);
        return 2;
    }
    utf8proc_int32_t up = how == JSTR_UPPER ? utf8proc_toupper((utf8proc_int32_t)cp)
                                            : utf8proc_totitle((utf8proc_int32_t)cp);
    return jstr_put(out, (uint32_t)up);
}

size_t jstr_recase(struct jstr s, enum jstr_case how, char *out)
{
    size_t n = 0;
    bool inside = false; /* of a word (title) or of the text (capitalize) */
    for (size_t at = 0; at < s.len;) {
        uint32_t cp = jstr_next(s, &at);
        if (how == JSTR_UPPER || how == JSTR_LOWER) {
            n += put_case(out + n, cp, how);
            continue;
        }
        n += put_case(out + n, cp, inside ? JSTR_LOWER : JSTR_TITLE);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        inside = how == JSTR_CAPITALIZE || c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL ||
                 c == UTF8PROC_CATEGORY_LT;
    }
    return n;
}

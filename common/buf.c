/*
 * The growing buffer that nearly every module of both programs writes its text with: JSON answers,
 * metrics pages, plans, log lines, screens of evenkeelctl. Room doubles, and one place, the
 * reserve, keeps the limit and sets `failed`. Below it is what writers of text share: escaping for
 * JSON, en dashes for numbers that are not known, and breaking lines for a terminal, where Chinese
 * characters are two columns wide and need no blank between them.
 */
#include "common/buf.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ek_buf_done(struct ek_buf *b)
{
    free(b->data);
    *b = (struct ek_buf){0};
}

void ek_buf_clear(struct ek_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

int ek_buf_reserve(struct ek_buf *b, size_t extra)
{
    size_t need;
    if (b->failed)
        return -ENOMEM;
    if (__builtin_add_overflow(b->len, extra, &need) || need >= SIZE_MAX / 2 ||
        (b->limit && need > b->limit)) {
        b->failed = true;
        return -ENOMEM;
    }
    if (need + 1 <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 128;
    while (cap < need + 1)
        cap *= 2;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return -ENOMEM;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

int ek_buf_add(struct ek_buf *b, const void *bytes, size_t len)
{
    int r = ek_buf_reserve(b, len);
    if (r < 0)
        return r;
    if (len)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int ek_buf_puts(struct ek_buf *b, const char *s)
{
    return ek_buf_add(b, s, strlen(s));
}

#define EN_DASH "\xe2\x80\x93" /* as long as "nan" */

int ek_buf_number(struct ek_buf *b, double v, int decimals, const char *unit)
{
    return isfinite(v) ? ek_buf_printf(b, "%.*f%s", decimals, v, unit) : ek_buf_puts(b, EN_DASH);
}

static bool buf_in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

size_t ek_text_control(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    if ((c[0] > 0 && c[0] < 0x20) || c[0] == 0x7f)
        return 1;
    if ((c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) || /* U+0080 to U+009F */
        (c[0] == 0xd8 && c[1] == 0x9c))                   /* U+061C */
        return 2;
    if (c[0] != 0xe2 || (c[1] != 0x80 && c[1] != 0x81))
        return 0;
    bool turns = c[1] == 0x80
                     ? c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xaa && c[2] <= 0xae)
                     : c[2] >= 0xa6 && c[2] <= 0xa9; /* U+200E, 200F, 202A to E, 2066 to 9 */
    return turns ? 3 : 0;
}

void ek_text_clean(char *text)
{
    for (size_t n; *text; text += n > 0 ? n : 1) {
        n = ek_text_control(text);
        memset(text, ' ', n);
    }
}

void ek_text_unknown(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        size_t sign = *from == '-' && (from == text || !buf_in_word(from[-1]));
        const char *word = from + sign;
        bool alone = (sign || from == text || !buf_in_word(from[-1])) && *word && word[1] &&
                     word[2] && !buf_in_word(word[3]);
        if (alone && (strncmp(word, "nan", 3) == 0 || strncmp(word, "inf", 3) == 0)) {
            memcpy(to, EN_DASH, 3);
            to += 3;
            from = word + 3;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

int ek_buf_printf(struct ek_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -EINVAL;
    int r = ek_buf_reserve(b, (size_t)n);
    if (r < 0)
        return r;
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap); /* the size was measured above */
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

size_t ek_utf8_len(const unsigned char *s, size_t left)
{
    static const struct {
        unsigned char lo, hi, min2, max2;
        size_t len;
    } forms[] = {
        {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
        {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
        {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    if (s[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (s[0] < forms[i].lo || s[0] > forms[i].hi)
            continue;
        if (left < forms[i].len || s[1] < forms[i].min2 || s[1] > forms[i].max2)
            return 0;
        for (size_t k = 2; k < forms[i].len; k++) {
            if ((s[k] & 0xC0) != 0x80)
                return 0;
        }
        return forms[i].len;
    }
    return 0;
}

int ek_buf_json(struct ek_buf *b, const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        unsigned char c = s[i];
        size_t n = ek_utf8_len(s + i, len - i);
        if (n == 0) {
            (void)ek_buf_puts(b, "\xEF\xBF\xBD");
            i++;
            continue;
        }
        if (c == '"' || c == '\\')
            (void)ek_buf_printf(b, "\\%c", c);
        else if (c == '\n')
            (void)ek_buf_puts(b, "\\n");
        else if (c < 0x20 || c == 0x7F)
            (void)ek_buf_printf(b, "\\u%04x", c);
        else
            (void)ek_buf_add(b, s + i, n);
        i += n;
    }
    return b->failed ? -ENOMEM : 0;
}

void ek_buf_drop(struct ek_buf *b, size_t n)
{
    assert(n <= b->len);
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

/* Bytes of the character at text, and whether it is as wide as two: CJK and its punctuation. */
static size_t character(const char *text, bool *ret_wide)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t n = 1;
    while (n < 4 && (c[n] & 0xc0) == 0x80)
        n++;
    *ret_wide = n == 3 && ((c[0] >= 0xe3 && c[0] <= 0xed) || (c[0] == 0xef && c[1] >= 0xbc));
    return n;
}

/* Punctuation that no line begins with. */
static bool closes(const char *text)
{
    static const char *const marks[] = {"。", "，", "；", "：", "）", "”", "、", "？", "！", ")"};
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        if (strncmp(text, marks[i], strlen(marks[i])) == 0)
            return true;
    }
    return false;
}

/* What stays on one line: a word, or one wide character; with the punctuation behind it. */
static size_t buf_piece(const char *text, size_t *ret_columns)
{
    size_t n = 0, columns = 0;
    bool wide = false;
    while (text[n] && text[n] != ' ' && text[n] != '\n') {
        bool next = false;
        size_t bytes = character(text + n, &next);
        if (n > 0 && (wide || next) && !closes(text + n))
            break;
        wide = wide || next;
        n += bytes;
        columns += next ? 2 : 1;
    }
    *ret_columns = columns;
    return n;
}

void ek_buf_wrap(struct ek_buf *b, const char *text, size_t indent, size_t width)
{
    size_t col = indent, wide;
    bool blank = false;
    for (bool first = true; *text; first = false) {
        size_t n = buf_piece(text, &wide);
        if (!first && col > indent && col + blank + wide > width) {
            (void)ek_buf_printf(b, "\n%*s", (int)indent, "");
            col = indent;
        } else if (blank) {
            (void)ek_buf_puts(b, " ");
            col++;
        }
        (void)ek_buf_add(b, text, n);
        col += wide;
        text += n;
        blank = *text == ' ' || *text == '\n';
        text += blank;
    }
    (void)ek_buf_puts(b, "\n");
}

void ek_buf_reflow(struct ek_buf *b, const char *text, size_t width)
{
    while (*text) {
        size_t len = strcspn(text, "\n"), indent = strspn(text, " ");
        size_t digits = strspn(text + indent, "0123456789");
        size_t hang =
            indent + (digits && strncmp(text + indent + digits, ". ", 2) == 0 ? digits + 2 : 0);
        if (len <= width || hang >= width / 2) {
            (void)ek_buf_add(b, text, len);
            (void)ek_buf_puts(b, "\n");
        } else {
            struct ek_buf line = {0};
            (void)ek_buf_add(b, text, hang);
            if (ek_buf_add(&line, text + hang, len - hang) < 0)
                b->failed = true;
            else
                ek_buf_wrap(b, line.data, hang, width);
            ek_buf_done(&line);
        }
        text += len + (text[len] == '\n');
    }
}

/*
 * The reader of metrics pages, see promtext.h. One pass, line by line, with the labels of one
 * sample unescaped into a buffer on the stack. A line that does not have the form is junk and is
 * skipped as a whole: a value is reported only from a line that is whole.
 *
 * Numbers are read here, because strtod() depends on the locale. Up to 19 digits count; the rest
 * only moves the exponent. The result is within one unit in the last place, always the same.
 */
#include "common/promtext.h"

#include <math.h>
#include <string.h>
#include <strings.h>

struct cursor {
    const char *at, *end; /* one line, without its newline */
};

struct text_scratch {
    char name[PROMTEXT_NAME + 1];
    char text[PROMTEXT_TEXT];
    size_t used;
    struct promtext_label label[PROMTEXT_LABELS];
};

static bool promtext_is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
           (!first && c >= '0' && c <= '9');
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
        c->at++;
}

static bool next_is(struct cursor *c, char want)
{
    if (c->at == c->end || *c->at != want)
        return false;
    c->at++;
    return true;
}

/* 10 to the power e; exact while it fits the long double's mantissa. */
static long double power10(unsigned e)
{
    long double base = 10.0L, r = 1.0L;
    for (; e; e >>= 1) {
        if (e & 1)
            r *= base;
        base *= base;
    }
    return r;
}

static size_t special_number(const char *s, size_t len, double *ret_value)
{
    static const struct {
        const char *text;
        double value;
    } table[] = {{"infinity", HUGE_VAL}, {"inf", HUGE_VAL}, {"nan", NAN}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        size_t n = strlen(table[i].text);
        if (len >= n && strncasecmp(s, table[i].text, n) == 0) {
            *ret_value = table[i].value;
            return n;
        }
    }
    return 0;
}

/* Reads "e-05" after the digits; adds to *exponent. Returns the bytes read, 0 if there is none. */
static size_t read_exponent(const char *s, size_t len, long *exponent)
{
    size_t i = 0;
    if (len == 0 || (s[0] != 'e' && s[0] != 'E'))
        return 0;
    i++;
    bool minus = i < len && s[i] == '-';
    if (i < len && (s[i] == '-' || s[i] == '+'))
        i++;
    size_t digits = i;
    long e = 0;
    for (; i < len && s[i] >= '0' && s[i] <= '9'; i++) {
        if (e < 100000)
            e = e * 10 + (s[i] - '0');
    }
    if (i == digits)
        return 0;
    *exponent += minus ? -e : e;
    return i;
}

static double promtext_scale(uint64_t mantissa, long exponent)
{
    if (mantissa == 0)
        return 0.0;
    if (exponent > 400)
        return HUGE_VAL;
    if (exponent < -400)
        return 0.0;
    long double m = (long double)mantissa;
    m = exponent < 0 ? m / power10((unsigned)-exponent) : m * power10((unsigned)exponent);
    return (double)m;
}

size_t promtext_number(const char *s, size_t len, double *ret_value)
{
    size_t i = 0;
    bool minus = len > 0 && s[0] == '-';
    if (len > 0 && (s[0] == '-' || s[0] == '+'))
        i++;
    double value = 0;
    size_t n = special_number(s + i, len - i, &value);
    if (n) {
        *ret_value = minus ? -value : value;
        return i + n;
    }

    uint64_t mantissa = 0;
    long exponent = 0;
    size_t digits = 0;
    bool point = false;
    for (; i < len; i++) {
        if (s[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (s[i] < '0' || s[i] > '9')
            break;
        digits++;
        if (mantissa < UINT64_MAX / 10 - 1) {
            mantissa = mantissa * 10 + (uint64_t)(s[i] - '0');
            exponent -= point;
        } else {
            exponent += !point;
        }
    }
    if (digits == 0)
        return 0;
    i += read_exponent(s + i, len - i, &exponent);
    value = promtext_scale(mantissa, exponent);
    *ret_value = minus ? -value : value;
    return i;
}

static const char *store(struct text_scratch *s, const char *bytes, size_t len)
{
    if (len >= sizeof(s->text) - s->used)
        return NULL;
    char *at = s->text + s->used;
    memcpy(at, bytes, len);
    at[len] = '\0';
    s->used += len + 1;
    return at;
}

/* Reads a quoted value after its opening quote, undoing \\ \" \n. NULL if it does not end. */
static const char *promtext_quoted(struct cursor *c, struct text_scratch *s)
{
    char *start = s->text + s->used;
    while (c->at < c->end && *c->at != '"') {
        char byte = *c->at++;
        if (byte == '\0')
            return NULL;
        if (byte == '\\') {
            if (c->at == c->end)
                return NULL;
            byte = *c->at++;
            if (byte == 'n')
                byte = '\n';
            else if (byte != '\\' && byte != '"')
                return NULL;
        }
        if (s->used + 1 >= sizeof(s->text))
            return NULL;
        s->text[s->used++] = byte;
    }
    if (!next_is(c, '"') || s->used >= sizeof(s->text))
        return NULL;
    s->text[s->used++] = '\0';
    return start;
}

/* Reads {a="b",...} after its brace. */
static bool labels(struct cursor *c, struct text_scratch *s, uint32_t *ret_count)
{
    uint32_t count = 0;
    for (;;) {
        skip_space(c);
        if (next_is(c, '}'))
            break;
        const char *start = c->at;
        while (c->at < c->end && promtext_is_name(*c->at, c->at == start))
            c->at++;
        if (c->at == start || count == PROMTEXT_LABELS)
            return false;
        s->label[count].name = store(s, start, (size_t)(c->at - start));
        skip_space(c);
        if (!s->label[count].name || !next_is(c, '='))
            return false;
        skip_space(c);
        if (!next_is(c, '"'))
            return false;
        s->label[count].value = promtext_quoted(c, s);
        if (!s->label[count].value)
            return false;
        count++;
        skip_space(c);
        if (!next_is(c, ',') && (c->at == c->end || *c->at != '}'))
            return false;
    }
    *ret_count = count;
    return true;
}

static bool promtext_read_value(struct cursor *c, double *ret_value)
{
    size_t n = promtext_number(c->at, (size_t)(c->end - c->at), ret_value);
    if (n == 0)
        return false;
    c->at += n;
    return c->at == c->end || *c->at == ' ' || *c->at == '\t';
}

/* What may follow the value: a timestamp, then an exemplar "# {labels} value [timestamp]". */
static bool promtext_tail(struct cursor *c)
{
    double ignored;
    uint32_t count;
    skip_space(c);
    if (c->at < c->end && *c->at != '#') {
        if (!promtext_read_value(c, &ignored))
            return false;
        skip_space(c);
    }
    if (!next_is(c, '#'))
        return c->at == c->end;
    struct text_scratch exemplar;
    exemplar.used = 0;
    skip_space(c);
    if (!next_is(c, '{') || !labels(c, &exemplar, &count))
        return false;
    skip_space(c);
    if (!promtext_read_value(c, &ignored))
        return false;
    skip_space(c);
    if (c->at < c->end && !promtext_read_value(c, &ignored))
        return false;
    skip_space(c);
    return c->at == c->end;
}

static bool sample_line(struct cursor *c, struct text_scratch *s,
                        struct promtext_sample *ret_sample)
{
    const char *start = c->at;
    while (c->at < c->end && promtext_is_name(*c->at, c->at == start))
        c->at++;
    size_t n = (size_t)(c->at - start);
    if (n == 0 || n > PROMTEXT_NAME)
        return false;
    memcpy(s->name, start, n);
    s->name[n] = '\0';
    s->used = 0;

    uint32_t count = 0;
    bool spaced = c->at < c->end && (*c->at == ' ' || *c->at == '\t');
    skip_space(c);
    if (next_is(c, '{')) {
        if (!labels(c, s, &count))
            return false;
        spaced = true; /* the brace separates too */
    }
    skip_space(c);
    double value = 0;
    if (!spaced || !promtext_read_value(c, &value) || !promtext_tail(c))
        return false;
    *ret_sample = (struct promtext_sample){
        .name = s->name, .labels = s->label, .label_count = count, .value = value};
    return true;
}

void promtext_parse(const char *page, size_t len, promtext_fn fn, void *ctx,
                    struct promtext_info *ret_info)
{
    struct promtext_info info = {0};
    if (len > PROMTEXT_MOST) {
        len = PROMTEXT_MOST;
        info.truncated = true;
    }
    struct text_scratch s;
    const char *end = page + len;
    for (const char *at = page; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct cursor c = {at, newline ? newline : end};
        at = newline ? newline + 1 : end;
        if (c.end > c.at && c.end[-1] == '\r')
            c.end--;
        skip_space(&c);
        if (c.at == c.end)
            continue;
        bool is_eof = c.end - c.at == 5 && memcmp(c.at, "# EOF", 5) == 0;
        if (!newline && !is_eof) {
            info.truncated = true; /* half a line may hold half a number */
            break;
        }
        if (info.eof) {
            info.junk++;
            continue;
        }
        info.eof = is_eof;
        struct promtext_sample sample;
        if (*c.at == '#')
            continue;
        if (!sample_line(&c, &s, &sample)) {
            info.junk++;
            continue;
        }
        info.samples++;
        fn(ctx, &sample);
    }
    *ret_info = info;
}

const char *promtext_label(const struct promtext_sample *sample, const char *name)
{
    for (uint32_t i = 0; i < sample->label_count; i++) {
        if (strcmp(sample->labels[i].name, name) == 0)
            return sample->labels[i].value;
    }
    return NULL;
}

/*
 * Writes JSON in one form, or checks that it has it (jsonform.h). Called by bundle.c: the process
 * that parses foreign files first hands its JSON on in this form, and the other one looks whether
 * it did, before a parser of many thousand lines sees a byte of it.
 *
 * One pass over the bytes. Where there is no buffer, what would be written is compared with the
 * text itself.
 */
#include "common/jsonform.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "common/buf.h"
#include "common/hex.h"

struct json_form {
    const char *text;
    size_t len, at;
    struct ek_buf *out; /* NULL: compare */
    size_t same;        /* bytes that were the same */
};

static int form_put(struct json_form *f, const char *bytes, size_t n)
{
    if (f->out)
        return ek_buf_add(f->out, bytes, n);
    if (f->len - f->same < n || memcmp(f->text + f->same, bytes, n) != 0)
        return -EBADMSG;
    f->same += n;
    return 0;
}

/* The byte that is next; 0 at the end, which is no byte of JSON. */
static char form_next(const struct json_form *f)
{
    return f->at < f->len ? f->text[f->at] : '\0';
}

/* Past blanks; ends of lines stay. What they become is not looked at here: a buffer without memory
 * takes nothing more, and a comparison that failed is not the same to the end. */
static char form_skip_blanks(struct json_form *f)
{
    for (; f->at < f->len && strchr(" \t\r\n", f->text[f->at]) && f->text[f->at]; f->at++)
        if (f->text[f->at] == '\n')
            (void)form_put(f, "\n", 1);
    return form_next(f);
}

/* Takes the next byte, and writes it. */
static int form_copy(struct json_form *f)
{
    f->at++;
    return form_put(f, f->text + f->at - 1, 1);
}

/* Characters that stand for themselves. */
static int form_plain(struct json_form *f)
{
    const size_t from = f->at;
    while (f->at < f->len) {
        const uint8_t c = (uint8_t)f->text[f->at];
        if (c < 0x20 || c == '"' || c == '\\')
            break;
        size_t n =
            c < 0x80 ? 1 : ek_utf8_len((const unsigned char *)f->text + f->at, f->len - f->at);
        if (n == 0)
            return -EBADMSG;
        f->at += n;
    }
    return form_put(f, f->text + from, f->at - from);
}

/* The four digits at f->at; -1 when they are none. */
static int32_t form_hex(struct json_form *f)
{
    int32_t v = 0;
    if (f->len - f->at < 4)
        return -1;
    for (size_t i = 0; i < 4; i++) {
        int d = ek_hex_digit(f->text[f->at + i]);
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    f->at += 4;
    return v;
}

static int form_character(struct json_form *f, uint32_t c)
{
    static const char digits[] = "0123456789abcdef";
    static const char with_letter[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
    char s[6] = {'\\', 'u', '0', '0'};
    const char *known = c > 0 && c < 0x80 ? strchr(with_letter, (int)c) : NULL;
    if (known) {
        s[1] = letter[known - with_letter];
        return form_put(f, s, 2);
    }
    if (c < 0x20) {
        s[4] = digits[c >> 4];
        s[5] = digits[c & 15];
        return form_put(f, s, 6);
    }
    if (c < 0x80) {
        s[0] = (char)c;
        return form_put(f, s, 1);
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)((0xf00 >> n & 0xff) | c);
    return form_put(f, s, n);
}

/* What stands behind "\u". Half of a pair alone is no character. */
static int form_unicode(struct json_form *f)
{
    int32_t c = form_hex(f);
    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff))
        return -EBADMSG;
    if (c < 0xd800 || c > 0xdbff)
        return form_character(f, (uint32_t)c);
    if (f->len - f->at < 2 || f->text[f->at] != '\\' || f->text[f->at + 1] != 'u')
        return -EBADMSG;
    f->at += 2;
    int32_t low = form_hex(f);
    if (low < 0xdc00 || low > 0xdfff)
        return -EBADMSG;
    return form_character(f, 0x10000u + (((uint32_t)c & 0x3ff) << 10 | ((uint32_t)low & 0x3ff)));
}

static int form_escape(struct json_form *f)
{
    static const char letter[] = "bfnrt\"\\/", of[] = "\b\f\n\r\t\"\\/";
    f->at++;
    const char c = form_next(f);
    f->at++;
    if (c == 'u')
        return form_unicode(f);
    const char *known = c ? strchr(letter, c) : NULL;
    return known ? form_character(f, (uint32_t)of[known - letter]) : -EBADMSG;
}

static int form_string(struct json_form *f)
{
    if (form_next(f) != '"')
        return -EBADMSG;
    int r = form_copy(f);
    while (r == 0 && f->at < f->len) {
        const char c = f->text[f->at];
        if (c == '"')
            return form_copy(f);
        if ((uint8_t)c < 0x20)
            return -EBADMSG;
        r = c == '\\' ? form_escape(f) : form_plain(f);
    }
    return r < 0 ? r : -EBADMSG;
}

static size_t form_digits(const struct json_form *f, size_t at)
{
    size_t n = 0;
    while (at + n < f->len && f->text[at + n] >= '0' && f->text[at + n] <= '9')
        n++;
    return n;
}

static bool form_is(const struct json_form *f, size_t at, char a, char b)
{
    return at < f->len && (f->text[at] == a || f->text[at] == b);
}

static int form_number(struct json_form *f)
{
    size_t at = f->at + form_is(f, f->at, '-', '-'), n = form_digits(f, at);
    if (n == 0 || (n > 1 && f->text[at] == '0'))
        return -EBADMSG;
    at += n;
    if (form_is(f, at, '.', '.')) {
        n = form_digits(f, at + 1);
        if (n == 0)
            return -EBADMSG;
        at += 1 + n;
    }
    if (form_is(f, at, 'e', 'E')) {
        at += 1;
        at += form_is(f, at, '+', '-');
        n = form_digits(f, at);
        if (n == 0)
            return -EBADMSG;
        at += n;
    }
    const size_t from = f->at;
    f->at = at;
    return form_put(f, f->text + from, at - from);
}

/* A string, a number, or a word. */
static int form_scalar(struct json_form *f)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    if (form_next(f) == '"')
        return form_string(f);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t n = strlen(words[i]);
        if (f->len - f->at >= n && memcmp(f->text + f->at, words[i], n) == 0) {
            f->at += n;
            return form_put(f, words[i], n);
        }
    }
    return form_number(f);
}

static int form_key(struct json_form *f)
{
    (void)form_skip_blanks(f);
    int r = form_string(f);
    if (r < 0)
        return r;
    return form_skip_blanks(f) == ':' ? form_copy(f) : -EBADMSG;
}

/* What is open: its closing bracket, the innermost last. */
struct form_open {
    char with[EK_JSON_DEPTH_MOST];
    size_t depth;
};

/* From an opening bracket to before its first value, or past the closing one. */
static int form_begin(struct json_form *f, struct form_open *o, bool *ret_value)
{
    const char with = form_next(f) == '{' ? '}' : ']';
    if (o->depth == EK_JSON_DEPTH_MOST)
        return -EBADMSG;
    int r = form_copy(f);
    if (r < 0)
        return r;
    o->with[o->depth++] = with;
    *ret_value = form_skip_blanks(f) != with; /* else form_end() closes it */
    return *ret_value && with == '}' ? form_key(f) : 0;
}

/* From the end of a value to before the next one; *ret_value is false when there is none. */
static int form_end(struct json_form *f, struct form_open *o, bool *ret_value)
{
    *ret_value = false;
    while (o->depth > 0) {
        const char c = form_skip_blanks(f), with = o->with[o->depth - 1];
        if (c != with && c != ',')
            return -EBADMSG;
        int r = form_copy(f);
        if (r < 0)
            return r;
        if (c == ',') {
            *ret_value = true;
            return with == '}' ? form_key(f) : 0;
        }
        o->depth--;
    }
    return 0;
}

static int form_text(struct json_form *f)
{
    struct form_open o;
    bool value = true;
    int r = 0;
    o.depth = 0;
    while (r == 0 && value) {
        const char c = form_skip_blanks(f);
        if (c == '{' || c == '[') {
            r = form_begin(f, &o, &value);
            if (r < 0 || value)
                continue;
        } else {
            r = form_scalar(f);
        }
        if (r == 0)
            r = form_end(f, &o, &value);
    }
    if (r == 0 && (form_skip_blanks(f), f->at < f->len))
        r = -EBADMSG;
    return r == 0 && f->out && !ek_buf_ok(f->out) ? -ENOMEM : r;
}

int ek_json_form(const char *text, size_t len, struct ek_buf *out)
{
    struct json_form f = {.text = text, .len = len, .out = out};
    return form_text(&f);
}

bool ek_json_has_form(const char *text, size_t len)
{
    struct json_form f = {.text = text, .len = len};
    return form_text(&f) == 0 && f.same == len;
}

/*
 * Numbers that jansson refuses. transformers writes "model_max_length": int(1e30), the largest
 * length it knows, and Python writes NaN and Infinity as bare words: both stand in very many model
 * directories, mostly in fields that are not read.
 *
 * A text is parsed as it is first, so that a usual one costs nothing. When it fails, such numbers
 * are put between quotes in a copy, which is parsed instead. What is odd besides stays as it is,
 * and so do line numbers: numbers have no line ends.
 */
#include "common/json.h"

#include <stdbool.h>
#include <string.h>

#include "common/buf.h"

#define FITS_DIGITS 18u  /* any integer of so many characters fits in 64 bits */
#define FITS_REAL   300u /* and a real without exponent in a double */

static size_t json_digits(const char *s, size_t len)
{
    size_t n = 0;
    while (n < len && s[n] >= '0' && s[n] <= '9')
        n++;
    return n;
}

static bool is_sign(char c)
{
    return c == '+' || c == '-';
}

/* Whether a word may end before this character. */
static bool ends_word(const char *s, size_t len)
{
    return len == 0 || strchr(" \t\r\n,]}", s[0]) != NULL;
}

/* Bytes of NaN, Infinity or -Infinity at s; 0 when another thing stands there. */
static size_t python_word(const char *s, size_t len)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i]);
        if (len >= n && memcmp(s, words[i], n) == 0 && ends_word(s + n, len - n))
            return n;
    }
    return 0;
}

/* Bytes of a number at s, at least 1; *ret_plain: short enough to fit whatever its digits are. */
static size_t json_number(const char *s, size_t len, bool *ret_plain)
{
    size_t at = s[0] == '-';
    at += json_digits(s + at, len - at);
    bool real = at < len && s[at] == '.', power = false;
    if (real) {
        at++;
        at += json_digits(s + at, len - at);
    }
    if (at > 0 && at < len && (s[at] == 'e' || s[at] == 'E')) {
        power = true;
        at++;
        at += at < len && is_sign(s[at]);
        at += json_digits(s + at, len - at);
    }
    *ret_plain = !power && at <= (real ? FITS_REAL : FITS_DIGITS);
    return at > 0 ? at : 1;
}

/* Whether quotes make a value of it: a well-formed number that jansson refuses for its size. */
static bool is_too_large(const char *s, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(s, len, JSON_DECODE_ANY, &e);
    json_decref(j);
    return !j && json_error_code(&e) == json_error_numeric_overflow;
}

static size_t string_end(const char *s, size_t len)
{
    size_t at = 1;
    while (at < len && s[at] != '"')
        at += s[at] == '\\' ? 2 : 1;
    return at < len ? at + 1 : len;
}

/* Copies the text with odd numbers in quotes, as far as memory goes; true when there was one. */
static bool quote(const char *text, size_t len, struct ek_buf *out)
{
    size_t from = 0, at = 0;
    while (at < len) {
        char c = text[at];
        if (c == '"') {
            at += string_end(text + at, len - at);
            continue;
        }
        size_t n = python_word(text + at, len - at);
        bool odd = n > 0;
        if (!odd && (c == '-' || (c >= '0' && c <= '9'))) {
            bool plain;
            n = json_number(text + at, len - at, &plain);
            odd = !plain && is_too_large(text + at, n);
        }
        if (odd) {
            (void)ek_buf_add(out, text + from, at - from); /* asked below */
            (void)ek_buf_puts(out, "\"");
            (void)ek_buf_add(out, text + at, n);
            (void)ek_buf_puts(out, "\"");
            from = at + n;
        }
        at += n > 0 ? n : 1;
    }
    if (from == 0)
        return false;
    (void)ek_buf_add(out, text + from, len - from);
    return true;
}

json_t *ek_json_parse(const char *text, size_t len, size_t flags, json_error_t *ret_error)
{
    struct ek_buf out = {0};
    json_t *root = json_loadb(text, len, flags, ret_error);
    if (root || len == 0 || json_error_code(ret_error) == json_error_out_of_memory)
        return root;
    bool found = quote(text, len, &out);
    if (found && ek_buf_ok(&out))
        root = json_loadb(out.data, out.len, flags, ret_error);
    else if (found) {
        *ret_error = (json_error_t){.line = 0};
        ret_error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory; /* its place */
    }
    ek_buf_done(&out);
    return root;
}

/* Memory of jansson's values with the allocator's own words: a struct and what it points to. */
#define STRING_BYTES 88u /* and its characters; a key's are in its pair instead */
#define PAIR_BYTES   40u /* beyond what its key counts as a string: places in the table */
#define SLOT_BYTES   24u /* of an array that grows by doubling: old and new one */
#define NUMBER_BYTES 32u
#define ARRAY_BYTES  136u /* with its first 8 places */
#define OBJECT_BYTES 248u /* with its first 8 buckets */

struct ek_json_size ek_json_measure(const char *text, size_t len, uint64_t most)
{
    struct ek_json_size all = {0};
    bool word = false; /* inside of a number, true, false or null */

    for (size_t at = 0; at < len && all.bytes <= most; at++) {
        const char c = text[at];
        const bool in = word;
        word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' ||
               c == '+' || c == 'E' || c == 'N' || c == 'I';
        if (word && !in) {
            all.values++;
            all.bytes += c <= '9' ? NUMBER_BYTES : 0; /* true, false and null are there once */
        } else if (c == '"') {
            size_t n = string_end(text + at, len - at);
            all.values++;
            all.bytes += STRING_BYTES + n;
            at += n - 1;
        } else if (c == '[' || c == '{') {
            all.values++;
            all.bytes += c == '[' ? ARRAY_BYTES : OBJECT_BYTES;
        } else if (c == ':') {
            all.bytes += PAIR_BYTES;
            all.values -= all.values > 0; /* its key was counted */
        } else if (c == ',') {
            all.bytes += SLOT_BYTES;
        }
    }
    return all;
}

/*
 * Replaces the values of secret names (keys, tokens, passwords) in the files of a support bundle;
 * verb_bundle.c passes each one through here. It scans once for names, then finds where the value
 * begins and ends in the forms that logs, YAML, JSON, environments and command lines have.
 */
#include "supervisor/ctl/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "common/buf.h"

#define HIDDEN "[redacted]"

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

/* A name whose value is secret: its last part is one of these, whatever stands before. */
static bool is_secret_name(const char *word, size_t len)
{
    static const char *const last[] = {"key", "keys", "token", "secret", "password", "passwd"};
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++) {
        size_t n = strlen(last[i]);
        if (len >= n && strncasecmp(word + len - n, last[i], n) == 0 &&
            (len == n || word[len - n - 1] == '-' || word[len - n - 1] == '_'))
            return true;
    }
    return len == 6 && strncasecmp(word, "bearer", 6) == 0;
}

static bool is_secret_word(const char *word, size_t len)
{
    return (len > 8 && strncmp(word, "sk-", 3) == 0) || (len > 8 && strncmp(word, "hf_", 3) == 0);
}

/* Behind the quote that closes the one here, or the end. */
static const char *behind_quoted(const char *at, const char *end)
{
    const char *close = memchr(at + 1, *at, (size_t)(end - at - 1));
    return close ? close + 1 : end;
}

/* Length of a value that begins here: in brackets, quoted, or up to white space. */
static size_t value_length(const char *p, const char *end)
{
    const char *at = p;
    if (at < end && (*at == '"' || *at == '\''))
        return (size_t)(behind_quoted(at, end) - p);
    if (at < end && (*at == '[' || *at == '{')) {
        for (int depth = 0; at < end;) {
            depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
            at = *at == '"' ? behind_quoted(at, end) : at + 1;
            if (depth == 0)
                break;
        }
        return (size_t)(at - p);
    }
    while (at < end && !isspace((unsigned char)*at) && *at != ',' && *at != '}' && *at != ']')
        at++;
    return (size_t)(at - p);
}

/* "\n  - " before an item of a list of lines; 0 if there is none. */
static size_t item_gap(const char *p, const char *end)
{
    const char *at = p;
    if (at == end || *at != '\n')
        return 0;
    for (at++; at < end && (*at == ' ' || *at == '\t');)
        at++;
    return end - at > 1 && at[0] == '-' && at[1] == ' ' ? (size_t)(at - p) + 2 : 0;
}

/* What stands between a name and its value; 0 if no value follows. *ret_lines: the value is a list
 * of lines below a key. */
static size_t gap_length(const char *p, const char *end, bool *ret_lines)
{
    const char *at = p;
    bool key = false;
    if (at < end && (*at == '"' || *at == '\''))
        at++;
    for (; at < end && strchr(" \t:=,", *at) && *at; at++)
        key = key || *at == ':';
    size_t item = item_gap(at, end);
    *ret_lines = item > 0 && key;
    at += item;
    return at > p && at < end && *at != '\n' && *at != '#' ? (size_t)(at - p) : 0;
}

/* quoted: the name was, so that what stands here stays JSON. */
static size_t hide(const char *p, const char *end, bool quoted, struct ek_buf *out)
{
    size_t n = value_length(p, end);
    if ((n == 4 && (memcmp(p, "true", 4) == 0 || memcmp(p, "null", 4) == 0)) ||
        (n == 5 && memcmp(p, "false", 5) == 0))
        (void)ek_buf_add(out, p, n); /* require-api-key: true */
    else if (n == 6 && strncasecmp(p, "bearer", 6) == 0)
        n = 0; /* the next word is the secret */
    else if (n > 0)
        (void)ek_buf_puts(out, quoted ? "\"" HIDDEN "\"" : HIDDEN);
    return n;
}

void redact(const char *text, size_t len, struct ek_buf *out)
{
    const char *p = text, *end = text + len;
    while (p < end) {
        const char *word = p;
        bool lines = false;
        while (p < end && in_word(*p))
            p++;
        size_t n = (size_t)(p - word);
        if (n == 0) {
            (void)ek_buf_add(out, p++, 1);
            continue;
        }
        if (is_secret_word(word, n)) {
            (void)ek_buf_puts(out, HIDDEN);
            continue;
        }
        (void)ek_buf_add(out, word, n);
        bool quoted = word > text && word[-1] == '"' && p < end && *p == '"';
        size_t gap = is_secret_name(word, n) ? gap_length(p, end, &lines) : 0;
        while (gap > 0) {
            (void)ek_buf_add(out, p, gap);
            p += gap;
            p += hide(p, end, quoted, out);
            gap = lines ? item_gap(p, end) : 0;
        }
    }
}

/*
 * Replaces the values of secret names (keys, tokens, passwords) in the files of a support bundle;
 * verb_bundle.c passes each one through here. It scans once for names, then finds where the value
 * begins and ends in the forms that logs, YAML, JSON, environments and command lines have.
 */
#include "supervisor/ctl/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "common/buf.h"

#define HIDDEN "[redacted]"

static bool redact_in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

/* A name whose value is secret: its last part is one of these, whatever stands before. */
static bool is_secret_name(const char *word, size_t len)
{
    static const char *const last[] = {"key",    "keys",     "apikey",     "token",
                                       "secret", "password", "passwd",     "passphrase",
                                       "pass",   "pwd",      "credential", "credentials"};
    if (len == 4 && strncasecmp(word, "pass", 4) == 0)
        return false; /* a word of sentences, too */
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++) {
        size_t n = strlen(last[i]);
        if (len >= n && strncasecmp(word + len - n, last[i], n) == 0 &&
            (len == n || word[len - n - 1] == '-' || word[len - n - 1] == '_'))
            return true;
    }
    return len == 6 && strncasecmp(word, "bearer", 6) == 0;
}

/* Keys that say what they are, wherever they stand. */
static bool is_secret_word(const char *word, size_t len)
{
    static const struct {
        const char *begin;
        size_t least; /* characters of the whole */
    } kinds[] = {{"sk-", 9},     {"hf_", 9},    {"nvapi-", 12}, {"ghp_", 12}, {"github_pat_", 18},
                 {"glpat-", 12}, {"xoxb-", 12}, {"AKIA", 20},   {"eyJ", 16}}; /* JSON in base64: a
                                                                                 part of a JWT */
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (len >= kinds[i].least && strncmp(word, kinds[i].begin, strlen(kinds[i].begin)) == 0)
            return true;
    }
    return false;
}

/* "Basic" as the scheme of a header's value, and not as a word of a sentence. */
static bool is_scheme(const char *text, const char *word, size_t len)
{
    if (len != 5 || strncasecmp(word, "basic", 5) != 0)
        return false;
    while (word > text && (word[-1] == ' ' || word[-1] == '"' || word[-1] == '\''))
        word--;
    return word > text && (word[-1] == ':' || word[-1] == '=');
}

/* Behind "USER:PASSWORD" of a URL whose "://" begins here; NULL if there is no password. */
static const char *behind_login(const char *p, const char *end)
{
    if (end - p < 3 || strncmp(p, "://", 3) != 0)
        return NULL;
    const char *last = NULL;
    bool parted = false;
    for (p += 3; p < end && !isspace((unsigned char)*p) && !strchr("/\"'<>", *p); p++) {
        if (*p == '@' && parted)
            last = p;
        parted = parted || *p == ':';
    }
    return last;
}

/* Behind the quote that closes the one here, or the end. */
static const char *behind_quoted(const char *at, const char *end)
{
    for (const char *c = at + 1; c < end; c++) {
        if (*c == '\\' && *at == '"')
            c++;
        else if (*c == *at)
            return c + 1;
    }
    return end;
}

static bool ends_value(char c)
{
    return isspace((unsigned char)c) || c == ',' || c == '}' || c == ']';
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
    while (at < end && !ends_value(*at) && !(end - at > 1 && at[0] == '\\' && at[1] == '"') &&
           !((*at == '"' || *at == '\'') && (at + 1 == end || ends_value(at[1]))))
        at++; /* a quote at its end closes what the name stands in */
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

static size_t blanks(const char *p, const char *end)
{
    size_t n = 0;
    while (p + n < end && p[n] == ' ')
        n++;
    return n;
}

/* Length of a block ("|" or ">" and the lines below it) that begins at p: as far as lines are
 * further in than that of its key. 0 if none begins there. */
static size_t block_length(const char *text, const char *key, const char *p, const char *end)
{
    const char *line = key, *at = p;
    if (at == end || (*at != '|' && *at != '>'))
        return 0;
    for (at++; at < end && *at && strchr("+-0123456789 \t", *at);)
        at++;
    if (at == end || *at != '\n')
        return 0; /* the sign of a shell */
    while (line > text && line[-1] != '\n')
        line--;
    size_t margin = blanks(line, end);
    while (at < end) {
        const char *first = at + 1 + blanks(at + 1, end);
        if (first >= end || (*first != '\n' && first - at - 1 <= (ptrdiff_t)margin))
            break;
        const char *newline = memchr(first, '\n', (size_t)(end - first));
        at = newline ? newline : end;
    }
    return (size_t)(at - p);
}

/* What stands between a name and its value; 0 if no value follows. *ret_lines: the value is a list
 * of lines below a key. */
static size_t gap_length(const char *p, const char *end, bool *ret_lines)
{
    const char *at = p;
    bool key = false;
    bool inside = end - at > 1 && at[0] == '\\' && at[1] == '"'; /* JSON within a string */
    at += inside;
    if (at < end && (*at == '"' || *at == '\''))
        at++;
    for (; at < end && strchr(" \t:=,", *at) && *at; at++)
        key = key || *at == ':';
    if (inside && end - at > 1 && at[0] == '\\' && at[1] == '"')
        at += 2;
    size_t item = item_gap(at, end);
    *ret_lines = item > 0 && key;
    at += item;
    return at > p && at < end && *at != '\n' && *at != '#' ? (size_t)(at - p) : 0;
}

/* quoted: the name was, so that what stands here stays JSON. */
static size_t redact_hide(const char *p, const char *end, bool quoted, struct ek_buf *out)
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
        while (p < end && redact_in_word(*p))
            p++;
        size_t n = (size_t)(p - word);
        if (n == 0) {
            const char *behind = behind_login(p, end);
            if (behind)
                (void)ek_buf_puts(out, "://" HIDDEN);
            else
                (void)ek_buf_add(out, p, 1);
            p = behind ? behind : p + 1;
            continue;
        }
        if (is_secret_word(word, n)) {
            (void)ek_buf_puts(out, HIDDEN);
            continue;
        }
        (void)ek_buf_add(out, word, n);
        bool quoted = word > text && word[-1] == '"' && p < end && *p == '"';
        bool secret = is_secret_name(word, n) || is_scheme(text, word, n);
        size_t gap = secret ? gap_length(p, end, &lines) : 0;
        while (gap > 0) {
            (void)ek_buf_add(out, p, gap);
            p += gap;
            size_t block = block_length(text, word, p, end);
            if (block > 0)
                (void)ek_buf_puts(out, HIDDEN);
            p += block > 0 ? block : redact_hide(p, end, quoted, out);
            gap = lines ? item_gap(p, end) : 0;
        }
    }
}

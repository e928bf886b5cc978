/*
 * Cleans one line of a log before anything is matched (scan.c and trace.c call it for each): escape
 * sequences, the JSON that Docker writes around a line, and the rank in front. doctor_line_own()
 * then tells a program's own words from those of a prompt that it repeats, by the quotes and names
 * in front of them; without it a user could write an error into the log.
 */
#include "supervisor/doctor/lines.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define ESC            '\033'
#define RANK_WITHIN    200 /* bytes from the start in which a prefix is looked for */
#define ENVELOPE_KEY   6
#define INDENT_MOST    16 /* spaces before a member of an object */
#define NAME_LEAST     3  /* letters of a service's name */
#define NAME_MOST      63
#define PIPE_WITHIN    200 /* bytes in which the thread stands that reads a worker's output ... */
#define PIPE_LOGGER    60  /* ... and after it the name of its logger */
#define STATUS_REFUSED 400 /* statuses of HTTP from it on are errors ... */
#define STATUS_END     600
#define FLAG_LEAST     3 /* bytes of a name of a flag */
#define STATUS_TEXT    24

/* Length of the escape sequence at s, at least 1. */
static size_t escape_length(const char *s, size_t len)
{
    if (len < 2)
        return len;
    size_t i = 2;
    if (s[1] == '[') {
        while (i < len && (s[i] < 0x40 || s[i] > 0x7e))
            i++;
        return i < len ? i + 1 : len;
    }
    if (s[1] == ']') {
        while (i < len && s[i] != '\a' && s[i] != ESC)
            i++;
        return i < len && s[i] == ESC ? i + 1 : i < len ? i + 1 : len;
    }
    return 2;
}

/* Where a line of JSON begins: an object, or a member of one that was printed over lines; NULL. */
static const char *json_at(const char *line, size_t len)
{
    size_t i = 0;
    while (i < len && i < INDENT_MOST && (line[i] == ' ' || line[i] == '\t'))
        i++;
    return i < len && (line[i] == '{' || line[i] == '"') ? line + i : NULL;
}

/* The text of the envelope: where its string begins, or NULL. */
static const char *unwrap(const char *line, size_t len)
{
    static const char *const keys[ENVELOPE_KEY] = {"\"log\"", "\"message\"", "\"MESSAGE\"",
                                                   "\"msg\"", "\"error\"",   "\"detail\""};
    const char *json = json_at(line, len), *end = line + len;
    if (!json)
        return NULL;
    for (size_t i = 0; i < ENVELOPE_KEY; i++) {
        size_t n = strlen(keys[i]), room = (size_t)(end - json);
        const char *key = *json == '{' ? memmem(json, room, keys[i], n)
                          : room >= n && memcmp(json, keys[i], n) == 0 ? json
                                                                       : NULL;
        if (!key)
            continue;
        const char *at = key + n;
        while (at < end && (*at == ' ' || *at == ':'))
            at++;
        if (at < end && *at == '"')
            return at + 1;
    }
    return NULL;
}

/* One character of a JSON string; 0 at its end. Code points beyond ASCII stay as they are spelled:
 * they are no part of a pattern. */
static char next_inside(const char **at, const char *end)
{
    if (*at >= end || **at == '"')
        return 0;
    char c = *(*at)++;
    if (c != '\\' || *at >= end)
        return c ? c : ' ';
    c = *(*at)++;
    return c == 'n' || c == 'r' || c == 't' ? ' ' : c ? c : ' ';
}

/* Bytes of the "name-1  | " that Docker Compose writes in front of a line; 0: none. A level there
 * is the program's own. */
static size_t compose_prefix(const char *line, size_t len)
{
    size_t i = 0;
    while (i < len && i < NAME_MOST &&
           (islower((unsigned char)line[i]) || isdigit((unsigned char)line[i]) || line[i] == '-' ||
            line[i] == '_' || line[i] == '.'))
        i++;
    size_t name = i;
    while (i < len && line[i] == ' ')
        i++;
    if (name < NAME_LEAST || !islower((unsigned char)line[0]) || i == name || i >= len ||
        line[i] != '|')
        return 0;
    return i + 1 + (i + 1 < len && line[i + 1] == ' ');
}

/* Bytes of the "> " that a mail or a page puts in front of a line that it quotes. */
static size_t reply_prefix(const char *line, size_t len)
{
    size_t i = 0;
    while (i + 1 < len && line[i] == '>' && line[i + 1] == ' ')
        i += 2;
    return i;
}

static bool ends_with(const char *line, size_t len, const char *word)
{
    size_t n = strlen(word);
    return len >= n && memcmp(line + len - n, word, n) == 0;
}

/* Bytes of what TorchServe writes in front of a line that a worker has written itself:
 * "2023-02-08T14:59:53 [INFO ] W-9000-kelp_1.0-stdout MODEL_LOG - ". The level there is that of the
 * pipe, INFO for stdout and WARN for stderr, whatever the line says. 0: none. */
static size_t pipe_prefix(const char *line, size_t len)
{
    static const char thread[] = "] W-";
    size_t most = len < PIPE_WITHIN ? len : PIPE_WITHIN;
    const char *end = line + len;
    if (len == 0 || !isdigit((unsigned char)line[0])) /* of a date */
        return 0;
    /* Only the level stands in brackets before it: a prompt may hold the rest, too. */
    const char *at = memchr(line, ']', most);
    if (!at || (size_t)(at - line) + 4 > most || memcmp(at, thread, 4) != 0 ||
        memchr(line, '"', (size_t)(at - line)))
        return 0;
    at += 2;
    const char *name = memchr(at, ' ', most - (size_t)(at - line));
    if (!name || !(ends_with(at, (size_t)(name - at), "-stdout") ||
                   ends_with(at, (size_t)(name - at), "-stderr")))
        return 0;
    name++;
    size_t room = (size_t)(end - name);
    const char *dash = memchr(name, ' ', room < PIPE_LOGGER ? room : PIPE_LOGGER);
    if (!dash || end - dash < 3 || memcmp(dash, " - ", 3) != 0)
        return 0;
    return (size_t)(dash + 3 - line);
}

/* Whether a member "error" of an object says anything: its value is an object or has text. Access
 * logs write null, false or "" there for a request that went well. */
static bool has_error(const char *line, size_t len)
{
    static const char key[] = "\"error\"";
    const char *at = line, *end = line + len;
    while ((at = memmem(at, (size_t)(end - at), key, sizeof(key) - 1)) != NULL) {
        at += sizeof(key) - 1;
        bool member = false;
        for (; at < end && (*at == ' ' || *at == ':'); at++)
            member |= *at == ':';
        if (member && end - at > 1 && (*at == '{' || (*at == '"' && at[1] != '"')))
            return true;
    }
    return false;
}

/* vLLM's own form of it: {"object": "error", "message": ..., "code": 400}. */
static bool is_error(const char *line, size_t len)
{
    return memmem(line, len, "\"object\":\"error\"", 16) ||
           memmem(line, len, "\"object\": \"error\"", 17);
}

/* The status of an error that was answered as JSON ({"error": {"message": ..., "code": 400}}),
 * which stands outside of its message; 0: none. */
static unsigned answered_status(const char *line, size_t len)
{
    static const char *const keys[] = {"\"code\"", "\"status\"", "\"status_code\""};
    if (!has_error(line, len) && !is_error(line, len))
        return 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *at = memmem(line, len, keys[i], strlen(keys[i])), *end = line + len;
        unsigned status = 0, digits = 0;
        if (!at)
            continue;
        for (at += strlen(keys[i]); at < end && (*at == ':' || *at == ' ');)
            at++;
        for (; at < end && isdigit((unsigned char)*at) && digits < 4; at++, digits++)
            status = status * 10 + (unsigned)(*at - '0');
        if (status >= STATUS_REFUSED && status < STATUS_END)
            return status;
    }
    return 0;
}

bool doctor_line_dirty(const char *line, size_t len)
{
    if (len > 0 && (line[len - 1] == '\r' || json_at(line, len)))
        return true;
    return memchr(line, ESC, len) != NULL;
}

size_t doctor_line_clean(const char *line, size_t len, char out[DOCTOR_LINE_MOST + 1])
{
    const char *end = line + len;
    line += reply_prefix(line, len);
    line += compose_prefix(line, (size_t)(end - line));
    line += pipe_prefix(line, (size_t)(end - line));
    const char *inside = unwrap(line, (size_t)(end - line));
    const char *at = inside ? inside : line;
    size_t n = 0;
    while (at < end && n < DOCTOR_LINE_MOST) {
        if (*at == ESC) {
            at += escape_length(at, (size_t)(end - at));
            continue;
        }
        char c = inside ? next_inside(&at, end) : *at++;
        if (inside && !c)
            break;
        if (c == ESC)
            continue;
        out[n++] = (unsigned char)c < ' ' || c == 0x7f ? ' ' : c;
    }
    while (n > 0 && out[n - 1] == ' ')
        n--;
    unsigned status = inside ? answered_status(line, (size_t)(end - line)) : 0;
    if (status && n + STATUS_TEXT < DOCTOR_LINE_MOST)
        n += (size_t)snprintf(out + n, STATUS_TEXT, " (Error code: %u)", status);
    out[n] = '\0';
    return n;
}

uint32_t doctor_line_rank(const char *line, size_t len)
{
    static const char *const before[] = {"Worker_TP", "[rank", " TP", "Worker_DP0_TP", "rank="};
    if (len > RANK_WITHIN)
        len = RANK_WITHIN;
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
        const char *at = memmem(line, len, before[i], strlen(before[i]));
        if (!at)
            continue;
        const char *end = line + len;
        uint32_t rank = 0, digits = 0;
        for (at += strlen(before[i]); at < end && *at >= '0' && *at <= '9' && digits < 4; at++) {
            rank = rank * 10 + (uint32_t)(*at - '0');
            digits++;
        }
        if (digits > 0)
            return rank;
    }
    return DOCTOR_NO_RANK;
}

/* Whether the quote at `at` opens what the program says itself: so does one that opens the line, as
 * when an error was copied from a page. PyTorch explains a fault so: "Search for `cudaErrorAssert'
 * in https://...". */
static bool is_said(const char *line, size_t at)
{
    static const char *const before[] = {
        "Error(",  "Exception(",   "msg=",      "message=",   "reason=",
        "error=",  "err=",         "error: ",   "what():  ",  "with error ",
        "Error: ", "instance of ", " failure ", "Search for "};
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
        if (ends_with(line, at, before[i]))
            return true;
    }
    /* glog: E1127 10:00:00.000000 77 model_lifecycle.cc:654] "..." */
    bool glog = strchr("EWF", line[0]) && isdigit((unsigned char)line[1]);
    return glog && ends_with(line, at, "] ");
}

/* As the mark in "model's". */
static bool in_word(const char *line, size_t at)
{
    return at > 0 && isalpha((unsigned char)line[at - 1]);
}

/* "kelp()  # weed": the rest is a comment of code, as a traceback lists it. */
static bool is_comment(const char *line, size_t at)
{
    return at > 1 && line[at - 1] == ' ' && line[at - 2] == ' ' && line[at + 1] == ' ';
}

/* The quote that is open at `at`, '#': a comment is, 0: neither. ret_depth: how many braces are. */
static char open_quote(const char *line, size_t at, int *ret_depth)
{
    char quote = 0;
    *ret_depth = 0;
    /* A line that a quote opens and nothing closes before `at`: see is_said(). */
    size_t first =
        at > 0 && (line[0] == '`' || line[0] == '"') && !memchr(line + 1, line[0], at - 1);
    for (size_t i = first; i < at; i++) {
        /* Most bytes are none of these; the walk is a fifth of the time of a log otherwise. */
        static const bool marks[256] = {['\\'] = true, ['"'] = true, ['`'] = true, ['\''] = true,
                                        ['{'] = true,  ['}'] = true, ['#'] = true};
        char c = line[i];
        if (!marks[(unsigned char)c])
            continue;
        if (quote && c == '\\')
            i++;
        else if (quote && c == quote)
            quote = 0;
        else if (quote)
            continue;
        else if (c == '"' || c == '`' || (c == '\'' && !in_word(line, i)))
            quote = is_said(line, i) ? 0 : c;
        else if (c == '#' && is_comment(line, i))
            return '#';
        else if (c == '{')
            ++*ret_depth;
        else if (c == '}' && *ret_depth > 0)
            --*ret_depth;
    }
    return quote;
}

bool doctor_line_quoted(const char *line, size_t at)
{
    int depth;
    char quote = open_quote(line, at, &depth);
    return quote && quote != '#';
}

/* Whether `at` lies within quotes or braces of a quoted text, or in a comment. */
static bool is_foreign(const char *line, size_t at)
{
    int depth;
    return open_quote(line, at, &depth) || depth > 0;
}

/* Whether a word that names what a user wrote stands before `at`; the rate of prompts is none. */
static bool echoes(const char *line, size_t at, const char *word)
{
    static const char rate[] = " throughput";
    size_t n = strlen(word);
    for (const char *hit = line; (hit = memmem(hit, at - (size_t)(hit - line), word, n));
         hit += n) {
        if (strncmp(hit + n, rate, sizeof(rate) - 1) != 0)
            return true;
    }
    return false;
}

bool doctor_line_record(const char *line, size_t at)
{
    static const char *const words[] = {"Received request ", "Generated response ",
                                        "Receive: obj=", "Finish: obj=", "request:  {"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (memmem(line, at, words[i], strlen(words[i])))
            return true;
    }
    return false;
}

bool doctor_line_own(const char *line, size_t at)
{
    static const char *const words[] = {"prompt", "content", "Received request", "messages",
                                        "Generated text: "};
    if (is_foreign(line, at))
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (echoes(line, at, words[i]))
            return false;
    }
    return true;
}

/* The length of a flag without its dashes, 0: it is none. */
static size_t flag_length(const char *name)
{
    size_t n = 0;
    if (!islower((unsigned char)name[0]))
        return 0;
    while (islower((unsigned char)name[n]) || isdigit((unsigned char)name[n]) || name[n] == '-' ||
           name[n] == '_')
        n++;
    while (n > 0 && !isalnum((unsigned char)name[n - 1]))
        n--;
    return n < FLAG_LEAST ? 0 : n;
}

void doctor_line_flag(const char *line, char *ret_flag, size_t size)
{
    const char *found = NULL;
    size_t len = 0;
    ret_flag[0] = '\0';
    for (const char *at = line; (at = strstr(at, "--")) != NULL; at += 2) {
        bool begins = at == line || !(isalnum((unsigned char)at[-1]) || strchr("-/", at[-1]));
        size_t n = begins ? flag_length(at + 2) : 0;
        if (n == 0)
            continue;
        if (found && (len != n + 2 || memcmp(found, at, len) != 0))
            return;
        found = at;
        len = n + 2;
    }
    if (found && len < size) {
        memcpy(ret_flag, found, len);
        ret_flag[len] = '\0';
    }
}

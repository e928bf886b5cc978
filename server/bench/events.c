/*
 * Reads streaming answers for `evenkeel-bench serve` (serve.c), one struct for each connection.
 * Bytes are collected up to the end of a line; only "data:" lines matter. Tokens are counted twice:
 * by events that carried some, for the times between them, and by `usage`, for how many there were,
 * because one event may bring several tokens.
 */
#include "server/bench/events.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* A member that is a string with something in it. */
static bool has_text(const json_t *o, const char *name)
{
    return json_string_length(json_object_get(o, name)) > 0;
}

/* Whether the choice brings a token: text, or nothing to show yet of a token in mid-character. */
static bool has_token(const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");

    if (delta)
        return has_text(delta, "content") || has_text(delta, "reasoning_content") ||
               has_text(delta, "reasoning") ||
               json_array_size(json_object_get(delta, "tool_calls"));
    return has_text(choice, "text") || (json_object_get(choice, "text") &&
                                        !json_is_string(json_object_get(choice, "finish_reason")));
}

static void note_error(struct events *e, const json_t *error)
{
    const char *said = json_string_value(json_object_get(error, "message"));

    (void)snprintf(e->error, sizeof(e->error), "%s", said ? said : "an error event");
}

static uint32_t take_line(struct events *e, const char *line, size_t len)
{
    uint32_t tokens = 0;

    if (len < 5 || memcmp(line, "data:", 5) != 0)
        return 0; /* a comment, a blank line, another field */
    line += 5;
    len -= 5;
    while (len > 0 && *line == ' ') {
        line++;
        len--;
    }
    if (len >= 6 && memcmp(line, "[DONE]", 6) == 0) {
        e->done = true;
        return 0;
    }
    json_t *o = json_loadb(line, len, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
    if (!o) {
        (void)snprintf(e->error, sizeof(e->error), "an event that is no JSON: %.*s",
                       (int)(len < 100 ? len : 100), line);
        e->broken = true;
        return 0;
    }
    if (json_is_object(json_object_get(o, "error")))
        note_error(e, json_object_get(o, "error"));
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0);
    if (choice) {
        tokens = has_token(choice) ? 1 : 0;
        e->finished = e->finished || json_is_string(json_object_get(choice, "finish_reason"));
    }
    const json_t *usage = json_object_get(o, "usage");
    json_int_t n = json_integer_value(json_object_get(usage, "completion_tokens"));
    if (n > 0 && n <= UINT32_MAX)
        e->tokens = (uint32_t)n;
    json_decref(o);
    return tokens;
}

uint32_t events_feed(struct events *e, const char *bytes, size_t len)
{
    uint32_t tokens = 0;

    while (len > 0 && !e->broken) {
        const char *end = memchr(bytes, '\n', len);
        size_t n = end ? (size_t)(end - bytes) : len;
        if (e->line.len + n > EVENTS_LINE_MOST || ek_buf_add(&e->line, bytes, n) < 0) {
            (void)snprintf(e->error, sizeof(e->error), "an event of over %u bytes",
                           EVENTS_LINE_MOST);
            e->broken = true;
            break;
        }
        if (end) {
            size_t whole = e->line.len;
            while (whole > 0 && e->line.data[whole - 1] == '\r')
                whole--;
            tokens += take_line(e, e->line.data ? e->line.data : "", whole);
            ek_buf_clear(&e->line);
        }
        bytes += n + (end != NULL);
        len -= n + (end != NULL);
    }
    e->pieces += tokens;
    return tokens;
}

void events_free(struct events *e)
{
    ek_buf_done(&e->line);
}

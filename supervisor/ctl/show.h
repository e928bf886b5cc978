/*
 * evenkeeld's answers as text for people. Pure: JSON in, text out. What is missing or null in the
 * JSON is shown as "-". Control characters from outside never reach the terminal.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct ek_buf;

/* answer: {"servers": [...]} of GET /api/v1/servers; only: a name, NULL = all. */
void show_status(const json_t *answer, const char *only, struct ek_buf *out);
void show_limits(const json_t *answer, const char *only, struct ek_buf *out);
/* answer: {"decisions": [...]}, newest first. */
void show_decisions(const json_t *answer, struct ek_buf *out);
/* One decision with its server's name, and with "questions" as a list of them. */
void show_event(const json_t *decision, struct ek_buf *out);

/* One picture of `top`. */
struct show_frame {
    uint32_t rows, cols; /* of the terminal; rows 0 = no bound */
    bool colour;
    const char *error; /* shown instead of old numbers' age, NULL = all well */
    double now_s;      /* wall time for the title */
};
/* decisions: array of {"decisions": [...]} answers in the order of the servers, or NULL. */
void show_top(const json_t *servers, const json_t *decisions, const char *only,
              const struct show_frame *frame, struct ek_buf *out);

/* Parts that the above are made of, for tests. */
void show_text(struct ek_buf *out, const char *text);   /* control characters become '?' */
void show_duration(struct ek_buf *out, double seconds); /* "3d 4h", "12m 3s", "1.5s" */
/* '#' up to part, '-' up to limit, '.' up to whole; width characters in brackets. */
void show_bar(struct ek_buf *out, double part, double limit, double whole, uint32_t width);

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

/* Parts that the above are made of, for others too. */
void show_text(struct ek_buf *out, const char *text);   /* control characters become '?' */
void show_duration(struct ek_buf *out, double seconds); /* "3d 4h", "12m 3s", "1.5s" */
/* '#' up to part, '-' up to limit, '.' up to whole; width characters in brackets. */
void show_bar(struct ek_buf *out, double part, double limit, double whole, uint32_t width);
void show_clock(struct ek_buf *out, double wall_s); /* "14:05:09" */
/* "14:05:09  lower  max_num_running_seqs 16 -> 12  LOWER_KV_HARM  (not applied)" */
void show_decision_head(struct ek_buf *out, const json_t *decision);

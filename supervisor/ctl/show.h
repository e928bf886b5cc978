/*
 * evenkeeld's answers as text for people. Pure: JSON in, text out. What is missing or null in the
 * JSON is shown as "-". Control characters from outside never reach the terminal.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct ek_buf;

/*
 * answer: {"servers": [...]} of GET /api/v1/servers; only: a name, NULL = all. cols: of the
 * terminal, so that lines fit; 0 = none: columns that never move, and lines as long as they are.
 */
void show_status(const json_t *answer, const char *only, uint32_t cols, struct ek_buf *out);
void show_limits(const json_t *answer, const char *only, struct ek_buf *out);
/* answer: {"decisions": [...]}, newest first; server: as above, what holds now, NULL = not asked;
 * keys: what it says of its API keys by name, NULL = the server's own words without names. */
void show_decisions(const json_t *answer, const json_t *server, const json_t *keys, uint32_t cols,
                    struct ek_buf *out);
/* One decision with its server's name, and with "questions" as a list of them. */
void show_event(const json_t *decision, uint32_t cols, struct ek_buf *out);

/* Parts that the above are made of, for others too. */
const char *show_word(const json_t *object, const char *key); /* "-" when it is missing */
/* A number with a unit, or "-". */
void show_value(struct ek_buf *out, const json_t *object, const char *key, const char *unit,
                int decimals);
/* The controller's state in words: "preempting" for pressure. */
const char *show_policy(const char *state);
bool show_named(const json_t *server, const char *only);
/* Text from column `indent` on, wrapped there; ends the line. */
void show_lines(struct ek_buf *out, const char *text, size_t indent, uint32_t cols);
void show_text(struct ek_buf *out, const char *text);   /* control characters become '?' */
void show_duration(struct ek_buf *out, double seconds); /* "3d 4h", "12m 3s", "1.5s" */
/* '#' up to part, '-' up to limit, '.' up to whole; width characters in brackets. */
void show_bar(struct ek_buf *out, double part, double limit, double whole, uint32_t width);
void show_clock(struct ek_buf *out, double wall_s); /* "14:05:09" */
/* "14:05:09  lower  max_num_running_seqs 16 -> 12  LOWER_KV_HARM  (not applied)" */
void show_decision_head(struct ek_buf *out, const json_t *decision);
/* The state for people: "halted" or "not ready" where a server is to serve and does not. */
const char *show_state(const json_t *server);
/* A line with what running out of memory taught this server, or nothing. */
void show_learned(const json_t *server, size_t indent, uint32_t cols, struct ek_buf *out);

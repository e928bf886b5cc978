/*
 * One line of a log as programs wrote it: terminal colours go, a log driver's JSON envelope goes,
 * the rank that wrote it is read; and whether words in it are the program's own or quoted text
 * that the program repeats. Pure; shared by all that reads logs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCTOR_LINE_MOST 8192 /* bytes of a line that are looked at */
#define DOCTOR_NO_RANK   UINT32_MAX

/* The line without colours, control characters and envelope ({"log": "..."}, "message", "MESSAGE",
 * "msg"), in `out`; at most DOCTOR_LINE_MOST bytes, followed by a NUL. Returns its length. */
size_t doctor_line_clean(const char *line, size_t len, char out[DOCTOR_LINE_MOST + 1]);
/* Whether doctor_line_clean() would change anything. */
bool doctor_line_dirty(const char *line, size_t len);
/* "(Worker_TP3 pid=7)", "[rank3]:", "[... TP3]": 3; DOCTOR_NO_RANK when it does not say. */
uint32_t doctor_line_rank(const char *line, size_t len);
/* Whether a program wrote what stands at `at` itself: not within quotes or braces, no request that
 * it logs. A log may echo what a user wrote. What an exception quotes ("ValueError('...") and the
 * message of a line in logfmt (msg="...") are the program's own. */
bool doctor_line_own(const char *line, size_t at);
/* Whether a quote is open at `at` that repeats a text, as a command's. Narrower than the opposite
 * of doctor_line_own(): braces, and words that name what a user wrote ("prompt"), do not count. */
bool doctor_line_quoted(const char *line, size_t at);
/* Whether the line is the record of a request or of its answer, and `at` lies in what it repeats of
 * them: there even what counts within quotes is a user's. */
bool doctor_line_record(const char *line, size_t at);
/* The one flag that a line names ("... set a smaller number for `--max-running-requests`"), as a
 * text of at most size - 1 bytes; "" when it names none, or several as command lines do. */
void doctor_line_flag(const char *line, char *ret_flag, size_t size);

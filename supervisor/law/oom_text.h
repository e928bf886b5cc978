/* Lines of a server's log, for oom.c. Pure; the text is the caller's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct crash_evidence;

struct oom_text {
    const char *at;
    size_t len;
};

/* Its tail that is looked at; of NULL nothing. */
struct oom_text oom_cut_log(const char *text, size_t len);
/* What was said last, at most so much of it that a sentence can hold. */
struct oom_text oom_end_of_log(const struct crash_evidence *e);
/* The last line in which one of the phrases (ended by NULL) is the program's own. */
bool oom_last_line(struct oom_text log, const char *const *phrases, struct oom_text *ret_line);

/*
 * Regular expressions of tokenizer files, on PCRE2 with JIT. The files are written for Oniguruma;
 * where the two read an escape differently (\s, \w, \h and their opposites) the pattern is
 * rewritten before it is compiled.
 *
 * Texts are hostile: each search has a small step limit that is raised on demand, and what the
 * raises cost is taken from a budget per text, so that a pattern that backtracks badly ends in
 * -E2BIG instead of burning a core. A compiled rx is immutable and shared by threads; an rx_work
 * belongs to one call.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;
struct ek_work;
struct rx;
struct rx_work;

/* literal: the pattern is plain text. -EBADMSG with the reason and place, -ENOMEM. */
int rx_new(const char *pattern, size_t len, bool literal, struct rx **ret_rx,
           struct ek_fault *fault);
void rx_free(struct rx *rx);

/* text_len sets the budget; `work` pays for each search, NULL = none. */
int rx_work_new(size_t text_len, struct ek_work *work, struct rx_work **ret_work);
void rx_work_free(struct rx_work *w);

struct rx_span {
    size_t from, to;
};

/* First match in s[from..len), text valid UTF-8. 1 and the span, 0 if none, -E2BIG, -ENOMEM. */
int rx_find(const struct rx *rx, struct rx_work *w, const char *s, size_t len, size_t from,
            struct rx_span *ret_span);
/* The match after `last` as a scan goes on: never an empty one at last->to. `last` is updated;
 * begin with from = to = SIZE_MAX. */
int rx_next(const struct rx *rx, struct rx_work *w, const char *s, size_t len,
            struct rx_span *last);

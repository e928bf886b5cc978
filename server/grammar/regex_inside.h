/*
 * The inside of the regex reader: what regex.c and regex_chars.c share.
 */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/regex.h"

struct regex_reader {
    struct expr_set *set;
    const char *s;
    size_t len, at;
    enum regex_form form;
    uint32_t depth;
    uint32_t limit_least, limit_most; /* characters of the string, see regex_read() */
    bool limited, kept;               /* there are such limits; they were applied */
    bool part;                        /* for a part of a text: no anchors */
    bool ahead;                       /* within a look-ahead at the beginning */
    bool widest;    /* of what must not be: where dialects differ about a class, what any takes */
    bool lazy;      /* a lazy count was met */
    unsigned flags; /* enum regex_flag */
    struct ek_fault *fault;
};

static inline int regex_refuse(struct regex_reader *r, size_t at, const char *what)
{
    if (r->fault)
        r->fault->at = at;
    return ek_fault_set(r->fault, "pattern", "%s at offset %zu of the pattern", what, at);
}

static inline bool regex_more(const struct regex_reader *r)
{
    return r->at < r->len;
}

static inline bool regex_looking_at(const struct regex_reader *r, const char *text)
{
    size_t n = strlen(text);
    return r->len - r->at >= n && memcmp(r->s + r->at, text, n) == 0;
}

static inline bool regex_accept(struct regex_reader *r, const char *text)
{
    if (!regex_looking_at(r, text))
        return false;
    r->at += strlen(text);
    return true;
}

/* regex_chars.c */
/* Adds \d \w \s and their opposites; false when it is none of them. `widest`: what any dialect
 * takes, and more; else what all do. */
bool regex_add_kind(char kind, bool widest, struct chars *c);
/* Adds what `.` stands for. */
void regex_add_dot(const struct regex_reader *r, struct chars *c);
/* One character. 0 or -EBADMSG with the fault, as those below. */
int regex_read_char(struct regex_reader *r, uint32_t *ret_cp);
/* An escape that stands for one character. The backslash is taken. */
int regex_read_escape(struct regex_reader *r, uint32_t *ret_cp);
/* [...], the bracket is taken. */
int regex_read_set(struct regex_reader *r, struct chars *ret_chars);
/* Any one of these characters, by the reader's flags. */
uint32_t regex_emit(struct regex_reader *r, const struct chars *c);

/*
 * Cuts the bytes of a log into lines, in bounded memory: of a line that is longer than
 * DOCTOR_LINE_MOST the rest is dropped. Pure; scan.c feeds it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

struct doctor_split {
    struct ek_buf rest; /* of a line that is not whole yet */
    bool begun;         /* past where a file may have a mark of UTF-16 */
    bool wide, big; /* UTF-16, as PowerShell redirects it; the high byte of a unit comes first */
    bool has_odd;   /* half a unit or half a mark ended the last feed: */
    unsigned char odd;
    unsigned narrow; /* units before here that look like two letters of UTF-8 each */
    unsigned before; /* the unit before here, 0: none */
};

typedef void doctor_line_fn(void *ctx, const char *line, size_t len);

/* Calls fn for each line that is whole, without its newline. A lack of memory is kept for
 * doctor_split_end(). */
void doctor_split_feed(struct doctor_split *s, const char *bytes, size_t len, doctor_line_fn *fn,
                       void *ctx);
/* The end of a file: its last line, if no newline ended it; another may follow, of another
 * encoding. 0 or -ENOMEM. */
int doctor_split_end(struct doctor_split *s, doctor_line_fn *fn, void *ctx);
void doctor_split_done(struct doctor_split *s);

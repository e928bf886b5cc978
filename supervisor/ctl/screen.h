/*
 * Lines of a picture in a terminal: each is built in `line` and cut to the width; what does not fit
 * below is left out, so that nothing ever scrolls.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

struct screen {
    uint32_t rows, cols; /* of the terminal; rows 0 = no bound */
    bool colour, utf8;
    struct ek_buf *out;
    struct ek_buf line; /* the one being built; freed by screen_done() */
    uint32_t used;      /* rows */
};

/* SGR code like "1;31"; nothing where there are no colours. */
void screen_colour(struct screen *s, const char *code);
void screen_end_line(struct screen *s);
/* Rows that are left; UINT32_MAX without a bound. */
uint32_t screen_left(const struct screen *s);
/* Blanks until the line has `column` columns, and at least one; escape sequences and UTF-8 tails
 * take none. */
void screen_column(struct screen *s, uint32_t column);
/* A line of blocks, or of ASCII: value[i] from 0 to most; NAN is a gap. most 0 = the largest. */
void screen_spark(struct screen *s, const float *value, uint32_t count, double most);
void screen_done(struct screen *s);

/*
 * The charts of one server on disk: the rows of law/history.h for as long as those are kept, so
 * that the page of the next evenkeeld begins with them.
 *
 * state_dir/charts-NAME.bin: CHARTS_HEAD bytes of text, then HISTORY_ROWS places, of which the row
 * of second t has number t modulo HISTORY_ROWS; so the file is bounded without ever being moved.
 * The text is "evenkeel charts 1 ORDER KEY,KEY,...\n", the rest zeros: ORDER is the machine's order
 * of bytes, "le" or "be", KEY the names of the columns. A place holds, 4 bytes each: the second
 * since 1970, one float a column, and the CRC-32 of both. What does not fit its sum, its place or
 * the last HISTORY_ROWS seconds is no row. A file with other columns than ours is read by their
 * names and begun again.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "supervisor/law/history.h"

struct behind;
struct charts;

#define CHARTS_HEAD 1024u

/* Fills h, which is empty, from the file if there is one, and writes what follows through b. 0, or
 * a negative code: then there is nothing to write to. ret_damaged: places that held no row of
 * theirs.
 */
int charts_open(struct behind *b, const char *dir, const char *name, uint64_t wall_us,
                struct history *h, struct charts **ret_charts, uint32_t *ret_damaged);
/* After behind_flush() succeeded. NULL is fine. */
void charts_free(struct charts *c);
/* The row that h took last. c may be NULL. */
void charts_put(struct charts *c, const struct history *h);

/* What a file of `len` bytes holds, into h; the number of damaged places. Pure. */
uint32_t charts_parse(const char *bytes, size_t len, uint64_t wall_us, struct history *h);

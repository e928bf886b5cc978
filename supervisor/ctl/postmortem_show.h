/* The answer of GET .../postmortem as text for people. Pure: JSON in, text out. */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct ek_buf;

/* answer: {"ends": [...], "end": {...} or null}; which: the one that was asked for, 1 = the
 * newest. */
void postmortem_show(const json_t *answer, const char *server, uint32_t which, uint32_t cols,
                     struct ek_buf *out);

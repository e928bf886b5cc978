/*
 * Whether a line of a log complains without an exception. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* "ERROR ...", "... failed: ...". */
bool doctor_loud_complains(const char *line, size_t len);

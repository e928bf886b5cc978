/*
 * What a vLLM says of its own limits when it starts: defaults differ among releases and cards, so
 * its word comes before what would have to be assumed. Pure.
 */
#pragma once

#include <stddef.h>

struct remedy_settings;

/* Tokens and sequences by the lines of its start, the last ones count; 0 where none says it. */
void engine_said(const char *log, size_t len, struct remedy_settings *ret_said);

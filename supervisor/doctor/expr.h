/*
 * Arithmetic of the signature catalog: what a remedy sets, and when it applies, is computed from
 * the numbers that a log gave. Numbers, names, + - * /, comparisons (1 or 0), `and`, `or`, `a ?? b`
 * (b when a is not known), min(), max(), floor(), ceil(), down(x, step), up(x, step). Pure.
 */
#pragma once

#include <stdbool.h>

/* Whether the name has a value, and which. */
typedef bool (*doctor_lookup_fn)(const void *ctx, const char *name, double *ret_value);

/* 0; -ENODATA: a name in it has no value; -EBADMSG: it cannot be read, divides by 0 or is not
 * finite. Never deeper than 32 brackets. */
int doctor_eval(const char *text, doctor_lookup_fn lookup, const void *ctx, double *ret_value);

/*
 * FNV-1a of 64 bits: tells whether bytes are those of before, for files that are written with it
 * (state.json, incidents), names and marks. Against chance, not against intent.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EK_FNV_BEGIN 14695981039346656037ull

/* Goes on from `sum`, at first EK_FNV_BEGIN; in pieces it is the same as at once. */
uint64_t ek_fnv(uint64_t sum, const void *data, size_t len);

/*
 * What differs between the flags that a process runs with and those that its next start would have:
 * "--max-num-seqs 32 instead of 16, no --seed". Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define CHANGES_TEXT 400

/* Words behind the program's own, ended by NULL. False, and "", when nothing differs. */
bool changes_text(char *const *now, char *const *next, char *text, size_t size);

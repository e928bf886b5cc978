/*
 * Finds which of many literal texts occur in a line in one pass over its bytes (Aho and Corasick):
 * what decides whether a pattern of the catalog is tried at all. Read-only once built.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct doctor_literals;

/* Texts of 1 to 255 bytes. 0; -EINVAL: one is empty or too long; -E2BIG: more than 65,000 states;
 * -ENOMEM. */
int doctor_literals_new(const char *const *texts, uint32_t count,
                        struct doctor_literals **ret_words);
void doctor_literals_free(struct doctor_literals *w);
/* Calls fn for each text that ends somewhere in the line, as often as it does. */
void doctor_literals_find(const struct doctor_literals *w, const char *line, size_t len,
                          void (*fn)(void *ctx, uint32_t text), void *ctx);

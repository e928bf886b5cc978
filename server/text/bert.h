/*
 * The parts of BERT's normalizer that no other has: control characters go, white space becomes a
 * space, ideographs stand alone, and marks without a width go. Which characters those are is what
 * the reference library's tables (Unicode 8) say, whatever the local ones do. Pure functions.
 */
#pragma once

#include <stddef.h>

struct ek_buf;

/* All append what becomes of s, valid UTF-8, to out. -ENOMEM. */
int bert_clean(const char *s, size_t len, struct ek_buf *out); /* control characters, white space */
int bert_spaced(const char *s, size_t len, struct ek_buf *out);   /* spaces around ideographs */
int bert_unmarked(const char *s, size_t len, struct ek_buf *out); /* no marks; s is decomposed */

/*
 * The table of SentencePiece's normalizers ("precompiled_charsmap"): a double-array trie from short
 * texts to what replaces them. Read as Hugging Face's tokenizers do: for a whole grapheme of less
 * than 6 bytes, else for each of its characters, by the shortest entry that it begins with.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct ek_buf;

/* Whether the table's parts lie within it and all it replaces with is UTF-8. charsmap_run() relies
 * on it. */
bool charsmap_ok(const char *table, size_t table_len);
/* Appends s, which is valid UTF-8, replaced. -ENOMEM. */
int charsmap_run(const char *table, size_t table_len, const char *s, size_t len,
                 struct ek_buf *out);

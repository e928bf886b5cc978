/*
 * Numbered strings: id to string and, if wanted, string to id. Strings live in one pool and are
 * followed by a NUL; the index is open addressing over xxHash. Immutable once filled.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

#define VOCAB_MOST (1u << 20) /* ids; the largest published vocabularies are near 2^18 */

struct vocab_span {
    uint32_t at, len; /* in the pool; at = UINT32_MAX: no string has this id */
};

struct vocab {
    struct ek_buf pool;
    struct vocab_span *span; /* [ids] */
    uint64_t *slot;          /* [mask + 1] hash in the upper half, id + 1 in the lower; 0 = free */
    uint32_t ids, mask;
    uint32_t longest; /* bytes of the longest string */
};

/* ids <= VOCAB_MOST; indexed = vocab_find() will be used. A zeroed struct is empty. -ENOMEM. */
int vocab_init(struct vocab *v, uint32_t ids, bool indexed);
void vocab_done(struct vocab *v);
/* -EEXIST when the id is taken (or, if indexed, the string), -ENOMEM. id < ids. */
int vocab_put(struct vocab *v, uint32_t id, const char *s, size_t len);
int32_t vocab_find(const struct vocab *v, const char *s, size_t len); /* -1 if none */
/* NULL when id is out of range or a hole. */
const char *vocab_at(const struct vocab *v, int32_t id, size_t *ret_len);

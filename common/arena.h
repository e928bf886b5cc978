/* A bump allocator released in one call: each request has one. Not shared between threads. */
#pragma once

#include <stddef.h>

struct ek_arena {
    struct ek_arena_chunk *chunks; /* newest first; NULL while empty */
    size_t used_bytes;             /* of all chunks, headers excluded */
    size_t limit_bytes;            /* 0 = no limit of its own */
};

/* Zeroed memory aligned to 16 bytes, NULL when out of memory or over the limit. size may be 0. */
void *ek_arena_take(struct ek_arena *a, size_t size);
/* count * size with the product checked. */
void *ek_arena_array(struct ek_arena *a, size_t count, size_t size);
char *ek_arena_copy(struct ek_arena *a, const char *s, size_t len); /* adds a NUL */
void ek_arena_done(struct ek_arena *a);

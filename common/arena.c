#include "common/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 8192u
#define ALIGN       16u

struct ek_arena_chunk {
    struct ek_arena_chunk *next;
    size_t used, size;
    _Alignas(ALIGN) char data[];
};

void *ek_arena_take(struct ek_arena *a, size_t size)
{
    if (size > SIZE_MAX / 4)
        return NULL;
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    if (a->limit_bytes && (size > a->limit_bytes || a->used_bytes > a->limit_bytes - size))
        return NULL;
    struct ek_arena_chunk *c = a->chunks;
    if (!c || c->size - c->used < size) {
        size_t room = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        c = malloc(sizeof(*c) + room);
        if (!c)
            return NULL;
        *c = (struct ek_arena_chunk){.next = a->chunks, .size = room};
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += size;
    a->used_bytes += size;
    memset(p, 0, size);
    return p;
}

void *ek_arena_array(struct ek_arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return ek_arena_take(a, bytes);
}

char *ek_arena_copy(struct ek_arena *a, const char *s, size_t len)
{
    if (len == SIZE_MAX)
        return NULL;
    char *p = ek_arena_take(a, len + 1);
    if (p && len)
        memcpy(p, s, len);
    return p;
}

void ek_arena_done(struct ek_arena *a)
{
    for (struct ek_arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct ek_arena){.limit_bytes = a->limit_bytes};
}

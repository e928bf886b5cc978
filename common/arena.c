/*
 * Memory freed at once: of a request (server/engine/request.c), a template's parse or rendering
 * (server/text), a safetensors header, the catalog of evenkeelctl. Chunks hang in a list, the
 * newest first, and only the newest is filled: what is left in an older one is given up. Small
 * chunks come from calloc(), large ones from mmap(), so that both are zeroed and a large one costs
 * only the pages that are written.
 */
#include "common/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_BYTES 8192u
#define MAP_BYTES   (1u << 20) /* chunks from this size on come from the system */
#define ALIGN       16u

struct ek_arena_chunk {
    struct ek_arena_chunk *next;
    size_t used, size;
    _Alignas(ALIGN) char data[];
};

/* A zeroed one. Of a large one only what is written takes memory: a request has room for all the
 * tokens that it may ever produce, and most produce few. */
static struct ek_arena_chunk *chunk_new(size_t room)
{
    struct ek_arena_chunk *c;
    size_t bytes = sizeof(*c) + room;
    if (room < MAP_BYTES)
        return calloc(1, bytes);
    c = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return c == MAP_FAILED ? NULL : c;
}

static void chunk_free(struct ek_arena_chunk *c)
{
    if (c->size < MAP_BYTES)
        free(c);
    else
        (void)munmap(c, sizeof(*c) + c->size); /* it was mapped so */
}

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
        c = chunk_new(room);
        if (!c)
            return NULL;
        c->next = a->chunks;
        c->size = room;
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += size;
    a->used_bytes += size;
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
        chunk_free(c);
    }
    *a = (struct ek_arena){.limit_bytes = a->limit_bytes};
}

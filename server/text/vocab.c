/*
 * The vocabulary's strings, filled by tokload.c and tekken.c. The slots of the index hold half of
 * the hash, so that nearly every probe that misses does not touch the pool; strings longer than the
 * longest token are not hashed at all. The table is at most half full.
 */
#include "server/text/vocab.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

int vocab_init(struct vocab *v, uint32_t ids, bool indexed)
{
    int r = -ENOMEM;
    struct vocab fresh = {.ids = ids, .pool.limit = UINT32_MAX / 2};

    assert(ids <= VOCAB_MOST);
    fresh.span = malloc((ids ? ids : 1) * sizeof(*fresh.span));
    if (!fresh.span)
        goto out;
    memset(fresh.span, 0xFF, ids * sizeof(*fresh.span));
    if (indexed) {
        size_t slots = 16;
        while (slots < (size_t)ids * 2)
            slots *= 2;
        fresh.slot = calloc(slots, sizeof(*fresh.slot));
        if (!fresh.slot)
            goto out;
        fresh.mask = (uint32_t)(slots - 1);
    }
    *v = fresh;
    fresh = (struct vocab){0};
    r = 0;
out:
    vocab_done(&fresh);
    return r;
}

void vocab_done(struct vocab *v)
{
    ek_buf_done(&v->pool);
    free(v->span);
    free(v->slot);
    *v = (struct vocab){0};
}

/* The slot that holds s, or the free one where it belongs. */
static uint64_t *vocab_place(const struct vocab *v, const char *s, size_t len, uint32_t *ret_hash)
{
    uint32_t hash = (uint32_t)XXH3_64bits(s, len);
    *ret_hash = hash;
    for (uint32_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        uint64_t *slot = &v->slot[i];
        if (*slot == 0)
            return slot;
        if ((uint32_t)(*slot >> 32) != hash)
            continue;
        const struct vocab_span *sp = &v->span[(uint32_t)*slot - 1];
        if (sp->len == len && memcmp(v->pool.data + sp->at, s, len) == 0)
            return slot;
    }
}

int vocab_put(struct vocab *v, uint32_t id, const char *s, size_t len)
{
    uint64_t *slot = NULL;
    uint32_t hash = 0;

    assert(id < v->ids);
    if (v->span[id].at != UINT32_MAX)
        return -EEXIST;
    if (v->slot) {
        slot = vocab_place(v, s, len, &hash);
        if (*slot)
            return -EEXIST;
    }
    uint32_t at = (uint32_t)v->pool.len;
    if (ek_buf_reserve(&v->pool, len + 1) < 0)
        return -ENOMEM;
    (void)ek_buf_add(&v->pool, s, len); /* reserved above */
    (void)ek_buf_add(&v->pool, "", 1);
    v->span[id] = (struct vocab_span){.at = at, .len = (uint32_t)len};
    if (len > v->longest)
        v->longest = (uint32_t)len;
    if (slot)
        *slot = (uint64_t)hash << 32 | (id + 1);
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t len)
{
    if (!v->slot || len > v->longest)
        return -1;
    uint32_t hash;
    uint64_t slot = *vocab_place(v, s, len, &hash);
    return slot ? (int32_t)((uint32_t)slot - 1) : -1;
}

const char *vocab_at(const struct vocab *v, int32_t id, size_t *ret_len)
{
    if (id < 0 || (uint32_t)id >= v->ids || v->span[id].at == UINT32_MAX)
        return NULL;
    *ret_len = v->span[id].len;
    return v->pool.data + v->span[id].at;
}

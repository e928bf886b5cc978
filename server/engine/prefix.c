/*
 * The map from names to blocks of one tier, for the scheduler and the host tier: an open-addressed
 * table of block ids with twice as many cells as blocks, so that it never fills, and arrays by
 * block id with the name, the parent and the tokens. A removal moves later cells up instead of
 * leaving a mark, so searches stay short however long the server runs. Gains and losses of names go
 * to the KV log when there is one.
 */
#include "server/engine/prefix.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* for XXH3_generateSecret() */
#include <xxhash.h>

#include "server/engine/blocks.h"
#include "server/engine/kvlog.h"

static_assert(PREFIX_SECRET_SIZE >= XXH3_SECRET_SIZE_MIN, "xxHash3 asks for a longer secret");

int prefix_init(struct prefix *p, uint32_t blocks, uint32_t block_size, const uint64_t secret[2])
{
    *p = (struct prefix){0};
    if (block_size == 0 || block_size > PREFIX_BLOCK_MOST || blocks > UINT32_MAX / 4)
        return -EINVAL;

    uint32_t cells = 16;
    while (cells < blocks * 2)
        cells *= 2;
    p->total = blocks;
    p->block_size = block_size;
    p->map_mask = cells - 1;
    p->names = calloc(blocks, sizeof(*p->names));
    p->parents = calloc(blocks, sizeof(*p->parents));
    p->tokens = calloc((size_t)blocks * block_size, sizeof(*p->tokens));
    p->map = calloc(cells, sizeof(*p->map));
    if (!p->names || !p->parents || !p->tokens || !p->map) {
        prefix_done(p);
        return -ENOMEM;
    }
    if (XXH3_generateSecret(p->secret, sizeof(p->secret), secret, 2 * sizeof(secret[0])) !=
        XXH_OK) {
        prefix_done(p);
        return -EINVAL;
    }
    return 0;
}

void prefix_done(struct prefix *p)
{
    free(p->names);
    free(p->parents);
    free(p->tokens);
    free(p->map);
    *p = (struct prefix){0};
}

static bool prefix_same_name(struct prefix_name a, struct prefix_name b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

struct prefix_name prefix_hash(const struct prefix *p, struct prefix_name parent, uint64_t salt,
                               const int32_t *tokens)
{
    struct {
        struct prefix_name parent;
        uint64_t salt;
        int32_t tokens[PREFIX_BLOCK_MOST];
    } in;
    size_t bytes = (size_t)p->block_size * sizeof(*tokens);

    in.parent = parent;
    in.salt = salt;
    memcpy(in.tokens, tokens, bytes);
    XXH128_hash_t h = XXH3_128bits_withSecret(&in, sizeof(in.parent) + sizeof(in.salt) + bytes,
                                              p->secret, sizeof(p->secret));
    /* {0, 0} is the start of a chain and no block's name. */
    return (struct prefix_name){h.low64, h.high64 | (h.low64 == 0 && h.high64 == 0)};
}

/* The cell that holds the name, or the empty cell where it belongs. */
static uint32_t find_cell(const struct prefix *p, struct prefix_name name)
{
    uint32_t c = (uint32_t)name.lo & p->map_mask;

    while (p->map[c] != 0 && !prefix_same_name(p->names[p->map[c]], name))
        c = (c + 1) & p->map_mask;
    return c;
}

uint32_t prefix_find(const struct prefix *p, struct prefix_name name, struct prefix_name parent,
                     const int32_t *tokens)
{
    uint32_t id = p->map[find_cell(p, name)];

    if (id == 0 || !prefix_same_name(p->parents[id], parent))
        return 0;
    const int32_t *held = p->tokens + (size_t)id * p->block_size;
    return memcmp(held, tokens, (size_t)p->block_size * sizeof(*held)) == 0 ? id : 0;
}

uint32_t prefix_holder(const struct prefix *p, struct prefix_name name)
{
    return p->map[find_cell(p, name)];
}

bool prefix_add(struct prefix *p, uint32_t id, struct prefix_name name, struct prefix_name parent,
                const int32_t *tokens)
{
    assert(id != 0 && id < p->total);
    uint32_t c = find_cell(p, name);
    if (p->map[c] != 0)
        return false;
    p->map[c] = id;
    p->count++;
    p->names[id] = name;
    p->parents[id] = parent;
    memcpy(p->tokens + (size_t)id * p->block_size, tokens, (size_t)p->block_size * sizeof(*tokens));
    if (p->log)
        kvlog_stored(p->log, (enum kv_tier)p->tier, name, parent, tokens);
    return true;
}

void prefix_move(struct prefix *p, uint32_t from, uint32_t to)
{
    size_t bytes = (size_t)p->block_size * sizeof(*p->tokens);
    uint32_t c = find_cell(p, p->names[from]);

    assert(p->map[c] == from);
    p->map[c] = to;
    p->names[to] = p->names[from];
    p->parents[to] = p->parents[from];
    memcpy(p->tokens + (size_t)to * p->block_size, p->tokens + (size_t)from * p->block_size, bytes);
    p->names[from] = (struct prefix_name){0, 0};
}

void prefix_forget(void *ctx, uint32_t id)
{
    struct prefix *p = ctx;
    uint32_t hole = find_cell(p, p->names[id]);

    assert(p->map[hole] == id);
    p->map[hole] = 0;
    p->count--;
    if (p->log)
        kvlog_removed(p->log, (enum kv_tier)p->tier, p->names[id]);
    /* Move up what was pushed past the hole, so that no search ends too early. */
    for (uint32_t c = (hole + 1) & p->map_mask; p->map[c] != 0; c = (c + 1) & p->map_mask) {
        uint32_t home = (uint32_t)p->names[p->map[c]].lo & p->map_mask;
        if (((c - home) & p->map_mask) < ((c - hole) & p->map_mask))
            continue;
        p->map[hole] = p->map[c];
        p->map[c] = 0;
        hole = c;
    }
    p->names[id] = (struct prefix_name){0, 0};
}

const char *prefix_check(const struct prefix *p, const struct blocks *b)
{
    uint32_t named = 0;

    for (uint32_t id = 1; id < b->total; id++) {
        if (!b->at[id].named)
            continue;
        named++;
        if (p->map[find_cell(p, p->names[id])] != id)
            return "a named block is not in the map";
    }
    return named == p->count ? NULL : "the map holds a block without a name";
}

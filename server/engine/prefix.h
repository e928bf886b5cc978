/*
 * Prefix cache: names for full blocks. A name is a keyed 128-bit xxHash3 over (the name of the
 * block before, the salt, the tokens), so that it stands for the whole prefix; the secret is drawn
 * at each start, and tokens are compared on a hit, so that a hit cannot be forged. Which blocks
 * stay is blocks.c's matter. Pure; engine thread; no allocation after prefix_init().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/names.h"

#define PREFIX_SECRET_SIZE 192u

struct blocks;
struct kvlog;

struct prefix {
    struct prefix_name *names;   /* [blocks] */
    struct prefix_name *parents; /* [blocks] */
    int32_t *tokens;             /* [blocks][block_size] */
    uint32_t *map;               /* [map_mask + 1] block id, 0 = empty */
    uint32_t map_mask, count;
    uint32_t total, block_size;
    uint8_t secret[PREFIX_SECRET_SIZE];
    uint64_t queries, hits; /* tokens */
    struct kvlog *log;      /* is told what gets and loses a name; NULL = not told */
    int tier;               /* enum kv_tier, for the log */
};

/* 0, -EINVAL for a block size above PREFIX_BLOCK_MOST, -ENOMEM. */
int prefix_init(struct prefix *p, uint32_t blocks, uint32_t block_size, const uint64_t secret[2]);
void prefix_done(struct prefix *p);

struct prefix_name prefix_hash(const struct prefix *p, struct prefix_name parent, uint64_t salt,
                               const int32_t *tokens);
/* The block with this name and these tokens, 0 when there is none. */
uint32_t prefix_find(const struct prefix *p, struct prefix_name name, struct prefix_name parent,
                     const int32_t *tokens);
/* Names a block. False when another block has the name already; then nothing has changed. */
bool prefix_add(struct prefix *p, uint32_t id, struct prefix_name name, struct prefix_name parent,
                const int32_t *tokens);
/* The block with this name, whatever its tokens are; 0 when there is none. Only for names that no
 * client can have made up. */
uint32_t prefix_holder(const struct prefix *p, struct prefix_name name);
/* A named block's name and content belong to another id from now on, which has no name. */
void prefix_move(struct prefix *p, uint32_t from, uint32_t to);
/* blocks_forget_fn; ctx is the prefix. */
void prefix_forget(void *ctx, uint32_t id);
/* NULL, or what is wrong between the names and the block store. */
const char *prefix_check(const struct prefix *p, const struct blocks *b);

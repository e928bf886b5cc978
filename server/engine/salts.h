/*
 * How much of the cache each salt holds: the cached blocks of each cache salt, oldest first. The
 * cap on one salt's share needs the count and the oldest block at once, whatever the number of
 * salts. Salts come from clients, so there is a node for each block and never more; a node lives
 * while its salt has cached blocks. Pure; part of the block store; nothing is allocated after
 * salts_init().
 */
#pragma once

#include <stdint.h>

#define SALTS_NONE UINT32_MAX

struct salt_node {
    uint64_t salt;
    uint32_t next;       /* in its bucket, or in the list of free nodes */
    uint32_t head, tail; /* blocks */
    uint32_t count;      /* 0 = free */
};

struct salt_link {
    uint32_t node, prev, next;
};

struct salts {
    struct salt_node *node; /* [total] */
    struct salt_link *link; /* [total], by block */
    uint32_t *bucket;       /* [mask + 1] */
    uint32_t total, mask, free;
};

/* 0 or -ENOMEM. */
int salts_init(struct salts *s, uint32_t total);
void salts_done(struct salts *s);

/* Appends the block to its salt's. It must be in none. Returns how many the salt has now. */
uint32_t salts_add(struct salts *s, uint32_t id, uint64_t salt);
void salts_remove(struct salts *s, uint32_t id);
/* The oldest block of the salt that this block belongs to. */
uint32_t salts_oldest(const struct salts *s, uint32_t id);

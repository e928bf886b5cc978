/*
 * What a page of evenkeel-server says of each API key, which is a tenant of its scheduler
 * (server/engine/tenants.h). The server names keys over its control socket and to a client that
 * sends one; other pages have none. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define KEYS_MOST 64u /* what a server takes; only a reload has more for a while */
#define KEYS_NAME 33u

struct key_reading {
    char name[KEYS_NAME];
    double weight;
    double open, waiting;    /* requests; answers without a first token */
    double prompts, answers; /* counters: tokens that were computed for it */
    double masks;            /* counter: tokens that the masks of its forms count for */
    double poisons;          /* counter: requests that ended since the engine ends with them */
    double ahead;            /* tokens at its weight beyond the key whose turn is next */
};

struct keys_reading {
    uint32_t count;
    struct key_reading at[KEYS_MOST]; /* in the page's order */
};

void keys_parse(const char *page, size_t len, struct keys_reading *ret_keys);
/* NULL: it has no such key. */
const struct key_reading *keys_find(const struct keys_reading *k, const char *name);

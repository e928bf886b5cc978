/*
 * The name of a full block: it stands for all tokens up to the block's end. Made by prefix.c; its
 * log (kvlog.h) carries it to others.
 */
#pragma once

#include <stdint.h>

#define PREFIX_BLOCK_MOST 128u /* tokens of a block that can have one */

struct prefix_name {
    uint64_t lo, hi; /* both 0: the start of a chain */
};

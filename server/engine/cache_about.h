/* What the cache of a file is of (warm_file.h): plain data, for opening one. */
#pragma once

#include <stdint.h>

#define WARM_TEXT   96u
#define WARM_SECRET 16u

/* What a cache is of: a file of another one is of no use. */
struct warm_about {
    char version[WARM_TEXT]; /* of the program */
    char layout[WARM_TEXT];  /* device, instructions, types: what decides the bytes of a block */
    uint64_t model;          /* a sum of what it computes and of its weights */
    uint64_t block_bytes, state_bytes;
    uint32_t block_size;
    uint8_t secret[WARM_SECRET]; /* of the owners' salts; not compared */
};

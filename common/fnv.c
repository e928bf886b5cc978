/*
 * The hash of small things in both programs, a byte at a time: evenkeeld's state and incidents,
 * lines of logs, names, ids of stored responses. Where a collision would show one client another's
 * data, a keyed xxHash is used instead (server/engine/prefix.c).
 */
#include "common/fnv.h"

uint64_t ek_fnv(uint64_t sum, const void *data, size_t len)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ at[i]) * 1099511628211ull;
    return sum;
}

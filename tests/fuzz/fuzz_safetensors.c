/*
 * Any bytes as a safetensors file: what is accepted lies within them. They are tried as they are,
 * and as a header with its true length before as much data as the first byte says, since a fuzzer
 * seldom guesses a length.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *data, size_t size)
{
    struct st_set s = {0};
    struct ek_fault f = {0};
    if (st_parse(&s, "f", data, size, &f) == 0 && st_sort(&s, &f) == 0) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < s.count; i++) {
            const struct st_tensor *t = &s.tensor[i];
            assert(t->begin >= 8 && t->begin <= t->end && t->end <= size);
            assert(st_find(&s, t->name) == t);
            sum += t->end - t->begin;
        }
        assert(sum <= size);
    }
    st_done(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size);
    if (size == 0)
        return 0;
    size_t header = size - 1, total = 8 + header + data[0];
    uint8_t *file = calloc(1, total);
    if (!file)
        return 0;
    for (size_t b = 0; b < 8; b++)
        file[b] = (uint8_t)((uint64_t)header >> (8 * b));
    memcpy(file + 8, data + 1, header);
    check(file, total);
    free(file);
    return 0;
}

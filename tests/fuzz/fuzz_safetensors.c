/* Any bytes as a safetensors file: what is accepted lies within them. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "server/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
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
    return 0;
}

/* Any bytes as a metrics page: nothing outside the page is read, and each flag is consistent. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/engines/dialect.h"
#include "supervisor/engines/sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (uint32_t i = 0; dialect_at(i); i++) {
        struct sample a, b;
        sample_parse(dialect_at(i), (const char *)data, size, 1000000, &a);
        b = a;
        b.at_us += 30000000;
        sample_compare(&b, &a);
        for (int k = 0; k < SIG_COUNT; k++) {
            if (!sample_has(&a, (enum signal_id)k))
                continue;
            assert(a.value[k] >= 0 && a.value[k] <= 1e300);
        }
        assert(a.ttft.count <= SAMPLE_BUCKETS && a.itl.count <= SAMPLE_BUCKETS);
    }
    return 0;
}

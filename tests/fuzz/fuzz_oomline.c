/* Any bytes as the last output of a server: classified without reading outside them. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "supervisor/io/log_class.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int phase = PHASE_STARTING; phase <= PHASE_DRAINING; phase++) {
        struct crash_evidence e = {.status = size ? data[0] : 0,
                                   .signaled = size & 1,
                                   .phase = (enum crash_phase)phase,
                                   .log = (const char *)data,
                                   .log_len = size};
        struct crash_found found;
        /* It reads the catalog of signatures each time, which is fuzz_doctor's: now and then. */
        if (size % 8 == 0 && log_class_find(NULL, e.phase, e.log, e.log_len, &found))
            e.found = &found;
        struct crash_verdict v = crash_classify(&e);
        assert(v.cls < CRASH_COUNT && v.why[0] && v.remedy);
        assert(memchr(v.why, '\0', sizeof(v.why)));
    }
    return 0;
}

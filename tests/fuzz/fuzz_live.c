/* Any bytes as the metrics page of a running server: read, judged and compared without harm. */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/doctor/live.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct live_page p[2];
    struct doctor_numbers n;
    struct live_finding f[LIVE_RULES];
    live_read(text, size / 2, &p[0]);
    live_read(text, size, &p[1]);
    live_numbers(&p[1], &p[0], 5, 2048, &n);
    live_compare(p, 2, &n);
    assert(n.count <= DOCTOR_NUMBERS_MOST);
    for (uint32_t i = 0; i < n.count; i++)
        assert(isfinite(n.at[i].value));
    assert(live_judge(&n, f) <= LIVE_RULES);
    return 0;
}

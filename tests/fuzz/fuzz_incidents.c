/* What evenkeeld finds in its state directory of the time before: the incident log, or after a zero
 * byte a file of charts. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "supervisor/io/charts.h"
#include "supervisor/io/incidents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void each(void *ctx, const char *kind, const char *json, size_t len)
{
    size_t *seen = ctx;
    *seen += strlen(kind) + len + (incidents_when(json, len, "s1") > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct incidents_count count;
    size_t seen = 0;
    if (size > 0 && data[0] == 0) {
        struct history *h = calloc(1, sizeof(*h));
        if (h) /* 1795370600: newest row of the corpus */
            (void)charts_parse((const char *)data + 1, size - 1, 1795370600 * EK_US_PER_S, h);
        if (h && h->count > HISTORY_ROWS)
            abort();
        free(h);
        return 0;
    }
    incidents_parse((const char *)data, size, each, &seen, &count);
    if (count.records + count.damaged > size + 1 || seen > 2 * size)
        abort();
    return 0;
}

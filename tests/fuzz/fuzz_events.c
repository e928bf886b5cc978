/* Any bytes as a stream of events: what comes out does not depend on how they were cut. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "server/bench/events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct events whole = {0}, cut = {0};
    const char *bytes = (const char *)data;
    size_t step = size > 0 ? data[0] % 7 + 1 : 1;

    (void)events_feed(&whole, bytes, size);
    for (size_t at = 0; at < size; at += step)
        (void)events_feed(&cut, bytes + at, size - at < step ? size - at : step);
    assert(whole.pieces == cut.pieces && whole.tokens == cut.tokens);
    assert(whole.done == cut.done && whole.broken == cut.broken);
    assert(strcmp(whole.error, cut.error) == 0);
    events_free(&whole);
    events_free(&cut);
    return 0;
}

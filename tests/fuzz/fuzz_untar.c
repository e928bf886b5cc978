/* Archives of others: whatever comes, no more bytes come out than go in (and a newline a file). */
#include <stdint.h>
#include <stdlib.h>

#include "supervisor/doctor/untar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count(void *ctx, const char *bytes, size_t len)
{
    size_t *sum = ctx;
    for (size_t i = 0; i < len; i++)
        *sum += (unsigned char)bytes[i] < 256;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct untar t = {.have = 0};
    size_t sum = 0, half = size / 3;
    const char *text = (const char *)data;
    (void)untar_is(text, size);
    untar_feed(&t, text, half, count, &sum);
    untar_feed(&t, text + half, size - half, count, &sum);
    if (sum > size + t.files)
        abort();
    return 0;
}

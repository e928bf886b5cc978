/* Archives of others: whatever comes, no more bytes come out than go in (and a newline a file). */
#include <stdint.h>
#include <stdlib.h>

#include "supervisor/doctor/untar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct untar_seen {
    size_t bytes;
    uint32_t hash; /* every byte is read: a sanitizer sees those that are not there */
};

static void count(void *ctx, const char *bytes, size_t len)
{
    struct untar_seen *s = ctx;
    for (size_t i = 0; i < len; i++)
        s->hash = s->hash * 31 + (unsigned char)bytes[i];
    s->bytes += len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct untar t = {.have = 0};
    struct untar_seen seen = {0};
    size_t half = size / 3;
    const char *text = (const char *)data;
    (void)untar_is(text, size);
    untar_feed(&t, text, half, count, &seen);
    untar_feed(&t, text + half, size - half, count, &seen);
    if (seen.bytes > size + t.files)
        abort();
    return 0;
}

/* Key files: any bytes are keys or a fault with its line, and what was read can be asked for. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/err.h"
#include "server/net/keyfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct key_line lines[KEY_LINES_MOST];
    static const struct key_line defaults = {.queue_share = 0.5};
    struct ek_fault fault = {0};
    uint32_t count = 0;
    int r = keyfile_parse("--api-key-file", "file", (const char *)data, size, &defaults, lines,
                          &count, &fault);
    assert(count <= KEY_LINES_MOST);
    assert(r == 0 ? count > 0 : r == -EBADMSG && fault.msg[0]);
    for (uint32_t i = 0; i < count; i++) {
        assert(lines[i].name[0] && memchr(lines[i].name, '\0', KEY_NAME));
        assert(memchr(lines[i].group, '\0', KEY_NAME));
        assert(lines[i].queue_share > 0 && lines[i].queue_share <= 1);
    }
    return 0;
}

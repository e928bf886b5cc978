/* --kv-events-config: any text is a configuration within its bounds or a fault. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/err.h"
#include "server/kvevents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048];
    struct kvevents_config c;
    struct ek_fault fault = {0};
    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    int r = kvevents_config_parse(text, &c, &fault);
    assert(r == 0 || (r == -EBADMSG && fault.msg[0]));
    if (r == 0) {
        assert(c.buffer_steps >= 1 && c.buffer_steps <= 100000 && c.hwm >= 1 && c.hwm <= 100000);
        assert(c.max_queue_size >= 1 && c.max_queue_size <= KVLOG_MOST);
        assert(memchr(c.endpoint, '\0', KVEVENTS_TEXT) && memchr(c.topic, '\0', KVEVENTS_TEXT));
    }
    return 0;
}

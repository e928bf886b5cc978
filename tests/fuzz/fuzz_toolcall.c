/* Text with tool calls, cut into pieces whose length is the first byte: the cuts change nothing. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "server/text/answer/toolcall.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(struct toolcalls *t, const char *p, size_t len, size_t piece,
                     struct ek_buf *text)
{
    for (size_t at = 0; at < len; at += piece)
        assert(toolcalls_push(t, p + at, len - at < piece ? len - at : piece, text) == 0);
    assert(toolcalls_end(t, text) == 0 && t->held.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const enum toolstyle style = (enum toolstyle)(size ? 1 + data[0] / 32 % 5 : 1);
    struct toolcalls whole = {.style = style}, cut = {.style = style};
    struct ek_buf whole_text = {0}, cut_text = {0};
    if (size < 2)
        return 0;
    const char *p = (const char *)data + 1;
    read_all(&whole, p, size - 1, size, &whole_text);
    read_all(&cut, p, size - 1, (size_t)(data[0] % 32) + 1, &cut_text);
    assert(whole.count == cut.count && whole_text.len == cut_text.len);
    assert(whole_text.len == 0 || memcmp(whole_text.data, cut_text.data, whole_text.len) == 0);
    for (uint32_t i = 0; i < cut.count; i++) {
        assert(strcmp(whole.call[i].name, cut.call[i].name) == 0 && cut.call[i].name[0]);
        const struct ek_buf *a = &whole.call[i].args, *b = &cut.call[i].args;
        assert(a->len == b->len && memcmp(a->data, b->data, a->len) == 0 && b->data[0] == '{');
    }
    toolcalls_done(&whole);
    toolcalls_done(&cut);
    ek_buf_done(&whole_text);
    ek_buf_done(&cut_text);
    return 0;
}

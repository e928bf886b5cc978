/* An answer in harmony's form, cut into pieces whose length is the first byte: the cuts change
 * nothing, and what has been passed on is never taken back. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/fuzz/harmony_feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(bool offered, bool prompted, const char *p, size_t len, size_t piece,
                     struct harmony_seen *seen)
{
    const char *prompt = "<|start|>assistant";
    struct harmony h;
    harmony_begin(&h, offered);
    if (prompted)
        assert(harmony_feed(&h, prompt, strlen(prompt), 99, seen) == 0);
    harmony_open(&h);
    assert(harmony_feed(&h, p, len, piece, seen) == 0);
    assert(harmony_over(&h, seen) == 0 && seen->calls.held.len == 0 && !seen->calls.open);
}

static void compare(const struct ek_buf *a, const struct ek_buf *b)
{
    assert(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct harmony_seen whole = {0}, cut = {0};
    if (size < 2)
        return 0;
    bool offered = data[0] & 32, prompted = data[0] & 64;
    const char *p = (const char *)data + 1;
    read_all(offered, prompted, p, size - 1, size, &whole);
    read_all(offered, prompted, p, size - 1, (size_t)(data[0] % 32) + 1, &cut);
    compare(&whole.thought, &cut.thought);
    compare(&whole.text, &cut.text);
    assert(whole.calls.count == cut.calls.count && (offered || whole.calls.count == 0));
    for (uint32_t i = 0; i < cut.calls.count; i++) {
        assert(strcmp(whole.calls.call[i].name, cut.calls.call[i].name) == 0);
        assert(cut.calls.call[i].name[0] && cut.calls.call[i].args.len);
        compare(&whole.calls.call[i].args, &cut.calls.call[i].args);
    }
    harmony_unsee(&whole);
    harmony_unsee(&cut);
    return 0;
}

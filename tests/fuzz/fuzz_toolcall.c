/* Answers with thinking and tool calls: the first byte is the parser of calls, the second that of
 * thinking, the third the length of the pieces that the text is cut into. The cuts change nothing.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"

#define STYLES (TOOLS_OPENAI - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct parsed_answer {
    struct toolcalls calls;
    struct ek_buf thought, text;
};

static void read_all(struct parsed_answer *a, enum thinkstyle think, const char *p, size_t len,
                     size_t piece)
{
    struct reasoning r;
    struct ek_buf rest = {0};
    reasoning_begin(&r, think, "", 0);
    for (size_t at = 0; at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;
        assert(reasoning_push(&r, p + at, n, &a->thought, &rest) == 0);
        assert(toolcalls_push(&a->calls, rest.data, rest.len, &a->text) == 0);
        ek_buf_clear(&rest);
    }
    assert(reasoning_end(&r, &a->thought, &rest) == 0);
    assert(toolcalls_push(&a->calls, rest.data, rest.len, &a->text) == 0);
    assert(toolcalls_end(&a->calls, &a->text) == 0 && a->calls.held.len == 0);
    reasoning_done(&r);
    ek_buf_done(&rest);
}

static void same(const struct ek_buf *a, const struct ek_buf *b)
{
    assert(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

static void answer_done(struct parsed_answer *a)
{
    toolcalls_done(&a->calls);
    ek_buf_done(&a->thought);
    ek_buf_done(&a->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    const enum toolstyle style = (enum toolstyle)(1 + data[0] % STYLES);
    const enum thinkstyle think = (enum thinkstyle)(data[1] % THINK_HARMONY);
    struct parsed_answer whole = {.calls = {.style = style}}, cut = {.calls = {.style = style}};
    const char *p = (const char *)data + 3;
    read_all(&whole, think, p, size - 3, size);
    read_all(&cut, think, p, size - 3, (size_t)(data[2] % 16) + 1);
    assert(whole.calls.count == cut.calls.count);
    same(&whole.thought, &cut.thought);
    same(&whole.text, &cut.text);
    for (uint32_t i = 0; i < cut.calls.count; i++) {
        assert(strcmp(whole.calls.call[i].name, cut.calls.call[i].name) == 0);
        same(&whole.calls.call[i].args, &cut.calls.call[i].args);
        assert(cut.calls.call[i].name[0] && cut.calls.call[i].args.data[0] == '{');
    }
    answer_done(&whole);
    answer_done(&cut);
    return 0;
}

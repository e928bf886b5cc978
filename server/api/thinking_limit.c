/* Makes the engine's bound on thinking from a model's marks (thinking_limit.h). */
#include "server/api/thinking_limit.h"

#include <errno.h>
#include <string.h>

/* A mark of more tokens than an engine looks for is none. */
static int set_mark(const struct tokenizer *tok, const char *text, struct thinking_mark *ret_mark)
{
    struct token_vec tokens = {0};
    int r = text ? tokenizer_encode(tok, text, strlen(text), true, 0, &tokens) : 0;

    if (r == 0 && tokens.count > 0 && tokens.count <= THINKING_MARK) {
        memcpy(ret_mark->token, tokens.at, tokens.count * sizeof(*tokens.at));
        ret_mark->count = (uint32_t)tokens.count;
    }
    token_vec_done(&tokens);
    return r;
}

int thinking_limit(const struct tokenizer *tok, const struct reasoning *r, int64_t most,
                   struct thinking_limit *ret_limit)
{
    const struct reasoning_marks m = reasoning_marks(r);
    struct thinking_limit l = {.inside = reasoning_is_open(r), .again = m.again};

    if (most >= 0 && m.close) {
        int code = set_mark(tok, m.open, &l.open);
        code = code == 0 ? set_mark(tok, m.close, &l.close) : code;
        code = code == 0 ? set_mark(tok, m.call, &l.call) : code;
        if (code < 0)
            return code;
        l.most = (uint32_t)most;
        l.on = l.close.count > 0;
    }
    *ret_limit = l;
    return 0;
}

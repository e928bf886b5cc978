/* Counts what a request thinks and says when it has to end (thinking.h). Called by constrain.c. */
#include "server/engine/thinking.h"

bool thinking_binds(const struct thinking *t, const struct thinking_limit *l, uint32_t count,
                    uint32_t ahead)
{
    return l->on && !t->over && (uint64_t)count + ahead > l->most;
}

/* Whether the token completes the mark. */
static bool meets(const struct thinking_mark *m, uint32_t *met, int32_t token)
{
    if (m->count == 0)
        return false;
    *met = token == m->token[*met] ? *met + 1 : token == m->token[0];
    if (*met < m->count)
        return false;
    *met = 0;
    return true;
}

static void close_it(struct thinking *t, const struct thinking_limit *l)
{
    t->inside = false;
    t->over = !l->again;
    t->open_met = t->close_met = t->call_met = 0;
}

static void thinking_take(struct thinking *t, const struct thinking_limit *l, int32_t token)
{
    if (!t->inside) {
        t->inside = meets(&l->open, &t->open_met, token);
        t->over = !t->inside && !l->again && t->open_met == 0 && t->read >= THINKING_HEAD;
        return;
    }
    t->used++;
    if (meets(&l->close, &t->close_met, token) || meets(&l->call, &t->call_met, token))
        close_it(t, l);
}

void thinking_follow(struct thinking *t, const struct thinking_limit *l, const int32_t *token,
                     size_t stride, uint32_t count)
{
    const char *at = (const char *)token;

    if (t->read == 0)
        t->inside = l->inside;
    while (l->on && t->read < count && !t->over) {
        t->read++;
        thinking_take(t, l, *(const int32_t *)(at + (size_t)(t->read - 1) * stride));
    }
}

int32_t thinking_forced(const struct thinking *t, const struct thinking_limit *l)
{
    bool spent = l->on && t->inside && t->used - t->close_met >= l->most;

    return spent ? l->close.token[t->close_met] : -1;
}

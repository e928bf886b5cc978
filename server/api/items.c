/*
 * An answer as a row of items: thinking, text, calls (items.h). Called by choice.c as texts come,
 * read by what writes responses and messages.
 */
#include "server/api/items.h"

#include <errno.h>
#include <stdlib.h>

#include "server/api/generation.h"
#include "server/api/reply.h"

/* The last item, a text, has all log probabilities so far. */
static void end_logprobs(struct choice *c)
{
    struct items *l = &c->items;
    if (l->at[l->count - 1].kind == ITEM_TEXT)
        l->at[l->count - 1].lp_to = l->lp_at = c->lp[LP_ENTRIES].len;
}

static void close_last(struct choice *c, const struct item_sink *sink)
{
    struct items *l = &c->items;
    if (!l->open)
        return;
    l->open = false;
    end_logprobs(c);
    if (sink->close)
        sink->close(c, l->count - 1);
}

static int open_item(struct choice *c, const struct item_sink *sink, struct item item)
{
    struct items *l = &c->items;
    close_last(c, sink);
    if (l->count == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct item *more = realloc(l->at, cap * sizeof(*more));
        if (!more)
            return -ENOMEM;
        l->at = more;
        l->cap = cap;
    }
    l->at[l->count++] = item;
    l->open = true;
    if (sink->open)
        sink->open(c, l->count - 1);
    return 0;
}

static void grow_last(struct choice *c, const struct item_sink *sink, const struct ek_buf *from)
{
    struct items *l = &c->items;
    struct item *i = &l->at[l->count - 1];
    size_t before = i->to;
    i->to = from->len;
    if (sink->grow && from->len > before)
        sink->grow(c, l->count - 1, from->data + before, from->len - before);
}

/* New bytes of thinking or text. */
static int take_text(struct choice *c, const struct item_sink *sink, enum item_kind kind,
                     const struct ek_buf *from, size_t *at)
{
    struct items *l = &c->items;
    int r = 0;
    if (from->len == *at)
        return 0;
    if (!l->open || l->at[l->count - 1].kind != kind)
        r = open_item(
            c, sink,
            (struct item){
                .kind = kind, .from = *at, .to = *at, .lp_from = l->lp_at, .lp_to = l->lp_at});
    if (r < 0)
        return r;
    grow_last(c, sink, from);
    end_logprobs(c);
    *at = from->len;
    return 0;
}

int items_update(struct choice *c, const struct item_sink *sink)
{
    struct items *l = &c->items;
    uint32_t calls = reply_calls(c);
    int r = take_text(c, sink, ITEM_THOUGHT, &c->thought, &l->thought_at);
    if (r == 0)
        r = take_text(c, sink, ITEM_TEXT, &c->text, &l->text_at);
    if (r == 0 && l->open && l->at[l->count - 1].kind == ITEM_CALL)
        grow_last(c, sink, &c->calls.call[l->calls - 1].args);
    for (; r == 0 && l->calls < calls; l->calls++) {
        r = open_item(c, sink, (struct item){.kind = ITEM_CALL, .call = l->calls});
        if (r == 0)
            grow_last(c, sink, &c->calls.call[l->calls].args);
    }
    if (r == 0 && c->over)
        close_last(c, sink);
    return r;
}

void items_logprobs(const struct choice *c, uint32_t index, bool fresh, struct ek_buf *out)
{
    const struct item *i = &c->items.at[index];
    const struct ek_buf *b = &c->lp[LP_ENTRIES];
    size_t from = fresh ? i->lp_to : i->lp_from, to = fresh ? b->len : i->lp_to;
    if (from < to && b->data[from] == ',')
        from++;
    if (from < to)
        (void)ek_buf_add(out, b->data + from, to - from);
}

const char *items_text(const struct choice *c, uint32_t index, size_t *ret_len)
{
    const struct item *i = &c->items.at[index];
    const struct ek_buf *b = i->kind == ITEM_THOUGHT ? &c->thought
                             : i->kind == ITEM_TEXT  ? &c->text
                                                     : &c->calls.call[i->call].args;
    *ret_len = i->to - i->from;
    return b->data ? b->data + i->from : "";
}

void items_done(struct items *l)
{
    free(l->at);
}

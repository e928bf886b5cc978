/*
 * Splits text for tokenizer.c. Each step sends its pieces to the next by run_from(), the last one
 * to the sink, which encodes them; so a piece passes all steps before the next is looked for, and
 * memory depends on the longest piece. A step that rewrites text has a scratch buffer of its own,
 * since the steps before it still hold theirs.
 */
#include "server/text/pretok.h"

#include <errno.h>
#include <string.h>

#include "server/text/rx.h"
#include "server/text/utf8.h"

void pretok_done(struct pretok *p)
{
    for (uint32_t i = 0; i < p->steps; i++)
        rx_free(p->step[i].rx);
    *p = (struct pretok){0};
}

void pretok_run_done(struct pretok_run *run)
{
    for (uint32_t i = 0; i < PRETOK_STEPS; i++)
        ek_buf_done(&run->scratch[i]);
}

static int run_from(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first);

/* A split in progress: stretches of match and other come in alternately or match after match, and
 * one piece is held until it is known where it ends. */
struct split {
    struct pretok_run *run;
    const char *s;
    uint32_t next; /* step that takes the pieces */
    enum split_how how;
    bool first;
    bool held, held_is_match;
    bool after_match; /* the stretch before this one was a match */
    size_t from, to;  /* the held piece */
};

static int release(struct split *sp)
{
    if (!sp->held)
        return 0;
    sp->held = false;
    return run_from(sp->run, sp->next, sp->s + sp->from, sp->to - sp->from,
                    sp->first && sp->from == 0);
}

static bool joins_held(const struct split *sp, bool is_match)
{
    if (!sp->held)
        return false;
    switch (sp->how) {
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED: return false;
    case SPLIT_PREVIOUS: return is_match && !sp->after_match;
    case SPLIT_NEXT: return !is_match && sp->held_is_match;
    case SPLIT_CONTIGUOUS: return is_match == sp->held_is_match;
    }
    return false;
}

static int stretch(struct split *sp, size_t from, size_t to, bool is_match)
{
    int r = 0;
    if (is_match && sp->how == SPLIT_REMOVED) {
        r = release(sp);
    } else if (joins_held(sp, is_match)) {
        sp->to = to;
    } else {
        r = release(sp);
        sp->held = true;
        sp->from = from;
        sp->to = to;
    }
    sp->held_is_match = is_match;
    sp->after_match = is_match;
    return r;
}

static int split_run(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first)
{
    const struct pretok_step *st = &run->pretok->step[k];
    struct split sp = {.run = run, .s = s, .next = k + 1, .how = st->how, .first = first};
    struct rx_span m = {.from = SIZE_MAX, .to = SIZE_MAX};
    size_t done = 0;
    int r;
    while ((r = rx_next(st->rx, run->work, s, len, &m)) > 0) {
        if (m.from > done) {
            r = stretch(&sp, done, m.from, st->invert);
            if (r != 0)
                return r;
        }
        r = stretch(&sp, m.from, m.to, !st->invert);
        if (r != 0)
            return r;
        done = m.to;
    }
    if (r == 0 && done < len)
        r = stretch(&sp, done, len, st->invert);
    return r == 0 ? release(&sp) : r;
}

static int space_run(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first)
{
    struct ek_buf *b = &run->scratch[k];
    if (s[0] == ' ')
        return run_from(run, k + 1, s, len, first);
    ek_buf_clear(b);
    (void)ek_buf_puts(b, " "); /* a failure shows in the next append */
    int r = ek_buf_add(b, s, len);
    return r < 0 ? r : run_from(run, k + 1, b->data, b->len, first);
}

static int bytes_run(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first)
{
    struct ek_buf *b = &run->scratch[k];
    ek_buf_clear(b);
    for (size_t i = 0; i < len; i++) {
        char bytes[UTF8_MOST];
        (void)ek_buf_add(b, bytes, utf8_put(bytes, utf8_from_byte((uint8_t)s[i])));
    }
    return ek_buf_ok(b) ? run_from(run, k + 1, b->data, b->len, first) : -ENOMEM;
}

static int metaspace_run(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first)
{
    const struct pretok_step *st = &run->pretok->step[k];
    struct ek_buf *b = &run->scratch[k];
    size_t mark_len = strlen(st->mark);
    bool marked = s[0] == ' ' || (len >= mark_len && memcmp(s, st->mark, mark_len) == 0);
    ek_buf_clear(b);
    if (!marked && (st->prepend == META_ALWAYS || (st->prepend == META_FIRST && first)))
        (void)ek_buf_add(b, st->mark, mark_len);
    for (size_t i = 0; i < len;) {
        const char *space = memchr(s + i, ' ', len - i);
        size_t n = space ? (size_t)(space - (s + i)) : len - i;
        (void)ek_buf_add(b, s + i, n);
        if (space)
            (void)ek_buf_add(b, st->mark, mark_len);
        i += n + (space != NULL);
    }
    return ek_buf_ok(b) ? run_from(run, k + 1, b->data, b->len, first) : -ENOMEM;
}

static int run_from(struct pretok_run *run, uint32_t k, const char *s, size_t len, bool first)
{
    if (len == 0)
        return 0;
    if (k == run->pretok->steps)
        return run->sink(run->ctx, s, len);
    switch (run->pretok->step[k].kind) {
    case PRETOK_SPLIT: return split_run(run, k, s, len, first);
    case PRETOK_SPACE: return space_run(run, k, s, len, first);
    case PRETOK_BYTES: return bytes_run(run, k, s, len, first);
    case PRETOK_METASPACE: return metaspace_run(run, k, s, len, first);
    }
    return 0;
}

int pretok_run(struct pretok_run *run, const char *s, size_t len, bool first)
{
    return run_from(run, 0, s, len, first);
}

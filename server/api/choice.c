/*
 * One choice of a generation: tokens to text, log probabilities and tool calls (complete.h). Called
 * by complete.c and submit.c.
 */
#include <errno.h>

#include "server/api/complete.h"
#include "server/api/embed.h"
#include "server/api/error.h"
#include "server/api/infill.h"
#include "server/api/items.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static bool is_stop_id(const struct request *q, int32_t id)
{
    for (uint32_t i = 0; i < q->ask.stop_count; i++) {
        if (q->ask.stop_ids[i] == id)
            return true;
    }
    return false;
}

/* What the client wants to see of the prompt comes before the first token: then its scores are
 * there. */
static void open_text(struct choice *c)
{
    const struct openai_ask *a = &c->of->ask;
    c->opened = true;
    if (!a->echo)
        return;
    if (prompt_echo(c, &c->text) < 0)
        c->text.failed = true;
    for (uint32_t i = 0; a->logprobs && c->req->score && i < c->req->ask.prompt_tokens; i++)
        reply_add_prompt_logprob(c, i);
}

static void stopped(struct choice *c)
{
    c->over = c->cut = true;
    c->finish = REQ_FIN_STOP;
    c->stop_string = c->detok.hit >= 0 ? c->detok.stop[c->detok.hit] : NULL;
}

/* Text that has come so far goes to its message. */
static int sort_text(struct choice *c)
{
    struct harmony_out out = {&c->thought, &c->text, &c->calls};
    int r = !ek_buf_ok(&c->raw) ? -ENOMEM
            : c->raw.len        ? harmony_push(&c->harmony, c->raw.data, c->raw.len, &out)
                                : 0;
    ek_buf_clear(&c->raw);
    return r;
}

/* A token that is a mark of harmony: nothing of the text before goes beyond it. */
static int take_mark(struct choice *c, enum harmony_mark mark)
{
    struct harmony_out out = {&c->thought, &c->text, &c->calls};
    int r = detok_flush(&c->detok, &c->raw);
    if (r == 0 && c->detok.hit >= 0)
        stopped(c);
    else if (r == 0)
        r = sort_text(c);
    return r == 0 && !c->over ? harmony_mark(&c->harmony, mark, &out) : r;
}

static enum harmony_mark mark_of(const struct choice *c, int32_t id)
{
    int i = 0;
    while (c->harmony.on && i < HARMONY_MARKS && c->of->served->mark[i] != id)
        i++;
    return c->harmony.on ? (enum harmony_mark)i : HARMONY_MARKS;
}

/* New text, from `from` on: for editors it may end in the middle. */
static void choice_look(struct choice *c, size_t from)
{
    if (c->of->ask.api == API_INFILL && ek_buf_ok(&c->text))
        infill_look(c, from);
}

/* One token; `ends` = it is the stop token that ended the request, whose text is not shown. */
static void take_token(struct choice *c, uint32_t index, bool ends)
{
    const struct openai_ask *a = &c->of->ask;
    int32_t id = c->req->out[index].id;
    if (a->no_output)
        return;
    if (a->logprobs)
        reply_add_logprob(c, index);
    if (a->return_token_ids)
        (void)ek_buf_printf(&c->ids, c->ids.len ? ",%d" : "%d", id);
    if (ends && !a->include_stop)
        return;
    c->detok.stops = index < a->min_tokens ? 0 : a->stops; /* no stop before */
    const size_t from = c->text.len;
    enum harmony_mark mark = mark_of(c, id);
    int r = mark < HARMONY_MARKS ? take_mark(c, mark)
                                 : detok_push(&c->detok, id, c->sifting ? &c->raw : &c->text);
    if (r < 0)
        c->text.failed = true;
    choice_look(c, from);
    if (r > 0 && !c->cut)
        stopped(c);
}

/* Takes thinking and tool calls out of the new text, of harmony: */
static void sift_harmony(struct choice *c)
{
    struct harmony_out out = {&c->thought, &c->text, &c->calls};
    int r = sort_text(c);
    if (r == 0 && c->over)
        r = harmony_end(&c->harmony, &out);
    if (r < 0)
        c->text.failed = true;
}

/* and of text with marks in it. */
static void choice_sift(struct choice *c)
{
    bool calls = c->calls.style != TOOLS_NONE;
    struct ek_buf *rest = calls ? &c->said : &c->text;
    int r = ek_buf_ok(&c->raw) ? 0 : -ENOMEM;
    if (r == 0 && c->raw.len)
        r = reasoning_push(&c->reasoning, c->raw.data, c->raw.len, &c->thought, rest);
    if (r == 0 && c->over)
        r = reasoning_end(&c->reasoning, &c->thought, rest);
    if (r == 0 && calls && c->said.len)
        r = toolcalls_push(&c->calls, c->said.data, c->said.len, &c->text);
    if (r == 0 && calls && c->over)
        r = toolcalls_end(&c->calls, &c->text);
    if (r < 0)
        c->text.failed = true;
    ek_buf_clear(&c->raw);
    ek_buf_clear(&c->said);
}

bool choice_pump(struct choice *c)
{
    struct request *q = c->req;
    bool done = atomic_load_explicit(&q->state, memory_order_acquire) == REQ_DONE;
    uint32_t count = atomic_load_explicit(&q->out_count, memory_order_acquire), before = c->seen;
    if (c->over)
        return false;
    if (count > 0 && !c->opened)
        open_text(c);
    while (c->seen < count && !c->over) {
        bool last = c->seen + 1 == count, stop = is_stop_id(q, q->out[c->seen].id);
        if (last && stop && !done)
            break; /* whether it ends the request is known with the next token */
        uint32_t index = c->seen++;
        take_token(c, index, last && stop && q->finish == REQ_FIN_STOP);
    }
    if (done && !c->over) {
        const size_t from = c->text.len;
        if (detok_flush(&c->detok, c->sifting ? &c->raw : &c->text) < 0)
            c->text.failed = true;
        c->over = true;
        c->finish = q->finish;
        choice_look(c, from);
        if (q->ask.hidden && (q->finish == REQ_FIN_STOP || q->finish == REQ_FIN_LENGTH))
            (c->of->ask.api >= API_RERANK ? scored_take : embed_take)(c);
    }
    if (c->harmony.on)
        sift_harmony(c);
    else if (c->sifting)
        choice_sift(c);
    return c->over || c->seen > before;
}

size_t choice_held(const struct choice *c)
{
    size_t n = c->text.cap + c->ids.cap + c->thought.cap + c->raw.cap + c->said.cap;
    for (int i = 0; i < LP_ARRAYS; i++)
        n += c->lp[i].cap;
    for (uint32_t i = 0; i < c->calls.count; i++)
        n += c->calls.call[i].args.cap;
    /* its tokens, which stay until all is told */
    return n + c->seen * (sizeof(struct req_token) + c->of->base.top * sizeof(struct req_top));
}

void choice_drop(struct choice *c)
{
    ek_buf_done(&c->text);
    ek_buf_done(&c->raw);
    ek_buf_done(&c->said);
    ek_buf_done(&c->thought);
    ek_buf_done(&c->ids);
    for (int i = 0; i < LP_ARRAYS; i++)
        ek_buf_done(&c->lp[i]);
}

void choice_done(struct choice *c)
{
    request_unref(c->req);
    detok_done(&c->detok);
    choice_drop(c);
    reasoning_done(&c->reasoning);
    toolcalls_done(&c->calls);
    items_done(&c->items);
}

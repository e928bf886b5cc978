/* A generation as server-sent events. */
#include "server/http/sse.h"

#include "common/buf.h"
#include "server/http/complete.h"
#include "server/http/forms.h"
#include "server/http/inside.h"
#include "server/http/reply.h"
#include "server/http/timing.h"

static void open_chunk(struct generation *g)
{
    (void)ek_buf_puts(&g->out, "data: {");
    reply_head(&g->out, g, g->ask.chat ? "chat.completion.chunk" : "text_completion");
    (void)ek_buf_puts(&g->out, ",\"choices\":[");
}

static void close_chunk(struct generation *g, bool usage)
{
    (void)ek_buf_puts(&g->out, "]");
    if (usage) {
        (void)ek_buf_puts(&g->out, ",");
        reply_usage(&g->out, g);
    }
    (void)ek_buf_puts(&g->out, "}\n\n");
}

/* A chunk of one choice: {"index":0,"delta":{ or {"index":0, */
static void open_choice(const struct choice *c)
{
    open_chunk(c->of);
    (void)ek_buf_printf(&c->of->out,
                        c->of->ask.chat ? "{\"index\":%u,\"delta\":{" : "{\"index\":%u,", c->index);
}

static void close_choice(const struct choice *c)
{
    (void)ek_buf_puts(&c->of->out, "}");
    close_chunk(c->of, c->of->ask.continuous_usage);
}

static void put_role(const struct choice *c)
{
    struct generation *g = c->of;
    open_choice(c);
    (void)ek_buf_puts(&g->out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                               "\"finish_reason\":null}]");
    if (c->index == 0 && g->ask.return_token_ids) {
        (void)ek_buf_puts(&g->out, ",");
        reply_prompt(&g->out, c);
        g->out.len--; /* its comma */
    }
    if (g->ask.continuous_usage) {
        (void)ek_buf_puts(&g->out, ",");
        reply_usage(&g->out, g);
    }
    (void)ek_buf_puts(&g->out, "}\n\n");
}

static void put_thought(const struct choice *c)
{
    struct generation *g = c->of;
    if (!ek_buf_ok(&c->thought))
        g->out.failed = true;
    if (!g->ask.include_reasoning)
        return;
    open_choice(c);
    (void)ek_buf_puts(&g->out, "\"reasoning\":\"");
    (void)ek_buf_json(&g->out, c->thought.data, c->thought.len);
    (void)ek_buf_puts(&g->out, "\"},\"logprobs\":null,\"finish_reason\":null");
    close_choice(c);
}

static void put_delta(const struct choice *c)
{
    struct generation *g = c->of;
    open_choice(c);
    if (!ek_buf_ok(&c->text))
        g->out.failed = true;
    (void)ek_buf_puts(&g->out, g->ask.chat ? "\"content\":\"" : "\"text\":\"");
    (void)ek_buf_json(&g->out, c->text.data ? c->text.data : "", c->text.len);
    (void)ek_buf_puts(&g->out, g->ask.chat ? "\"}," : "\",");
    reply_logprobs(&g->out, c);
    if (!g->ask.chat && !c->begun && g->ask.return_token_ids) {
        (void)ek_buf_puts(&g->out, ",");
        reply_prompt(&g->out, c);
        g->out.len--;
    }
    (void)ek_buf_puts(&g->out, ",\"finish_reason\":null");
    reply_ids(&g->out, c);
    close_choice(c);
}

static void close_call(const struct choice *c)
{
    (void)ek_buf_puts(&c->of->out, "}]},\"logprobs\":null,\"finish_reason\":null");
    close_choice(c);
}

/* Who is called, in a chunk of its own; then its arguments as they come. */
static void put_call(const struct choice *c, uint32_t index)
{
    struct ek_buf *out = &c->of->out;
    open_choice(c);
    (void)ek_buf_printf(out, "\"tool_calls\":[{\"index\":%u,", index);
    reply_call_head(out, c, index);
    (void)ek_buf_puts(out, ",\"arguments\":\"\"}");
    close_call(c);
}

static void put_args(const struct choice *c, uint32_t index, const char *bytes, size_t len)
{
    struct ek_buf *out = &c->of->out;
    open_choice(c);
    (void)ek_buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":\"", index);
    (void)ek_buf_json(out, bytes, len);
    (void)ek_buf_puts(out, "\"}");
    close_call(c);
}

/* What is new of the calls: the last one told may have grown, others may have come. */
static void put_calls(struct choice *c)
{
    uint32_t count = reply_calls(c);
    for (uint32_t i = c->calls_told ? c->calls_told - 1 : 0; i < count; i++) {
        const struct ek_buf *args = &c->calls.call[i].args;
        if (i >= c->calls_told) {
            put_call(c, i);
            c->calls_told++;
            c->args_told = 0;
        }
        if (args->len > c->args_told)
            put_args(c, i, args->data + c->args_told, args->len - c->args_told);
        c->args_told = args->len;
    }
}

static void put_finish(const struct choice *c)
{
    struct generation *g = c->of;
    open_choice(c);
    (void)ek_buf_puts(&g->out,
                      g->ask.chat ? "},\"logprobs\":null," : "\"text\":\"\",\"logprobs\":null,");
    reply_finish(&g->out, c);
    close_choice(c);
}

static void put_end(struct generation *g)
{
    if (g->ask.include_usage) {
        open_chunk(g);
        (void)ek_buf_puts(&g->out, "],");
        reply_usage(&g->out, g);
        timing_write(&g->out, g);
        (void)ek_buf_puts(&g->out, "}\n\n");
    }
    (void)ek_buf_puts(&g->out, "data: [DONE]\n\n");
    g->closed = true;
}

static void forget(struct choice *c)
{
    ek_buf_clear(&c->text);
    ek_buf_clear(&c->thought);
    ek_buf_clear(&c->ids);
    for (int i = 0; i < LP_ARRAYS; i++)
        ek_buf_clear(&c->lp[i]);
    c->told = c->seen;
}

void sse_ping(struct generation *g)
{
    if (!g->closed)
        (void)ek_buf_puts(&g->out, ": still here\n\n");
}

void sse_error(struct generation *g, const struct api_error *err)
{
    if (g->closed)
        return;
    if (g->ask.api == API_RESPONSES || g->ask.api == API_MESSAGES) {
        (g->ask.api == API_RESPONSES ? responses_error : anthropic_error_event)(g, err);
        return;
    }
    (void)ek_buf_puts(&g->out, "data: ");
    reply_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n\ndata: [DONE]\n\n");
    g->closed = true;
}

static void render_choice(struct choice *c)
{
    const struct openai_ask *a = &c->of->ask;
    if (c->ended || (c->seen == 0 && !c->over))
        return;
    if (!c->begun && a->chat)
        put_role(c);
    if (c->thought.len)
        put_thought(c);
    if (c->text.len || (c->told < c->seen && (a->logprobs || a->return_token_ids)))
        put_delta(c);
    c->begun = true;
    put_calls(c);
    forget(c);
    if (!c->over || (c->finish != REQ_FIN_STOP && c->finish != REQ_FIN_LENGTH))
        return;
    put_finish(c);
    c->ended = true;
}

void sse_render(struct generation *g)
{
    struct api_error err;
    if (g->closed)
        return;
    if (g->ask.api == API_RESPONSES || g->ask.api == API_MESSAGES) {
        (g->ask.api == API_RESPONSES ? responses_render : anthropic_render)(g);
        return;
    }
    g->begun = true;
    for (uint32_t i = 0; i < g->count; i++)
        render_choice(&g->choice[i]);
    if (!g->over)
        return;
    if (generation_check(g, &err) < 0)
        sse_error(g, &err);
    else
        put_end(g);
}

/*
 * Writes a generation as server-sent events (sse.h). Called by the exchange each time the engine
 * delivered.
 */
#include "server/api/sse.h"

#include "common/buf.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/infill.h"
#include "server/api/ollama.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/api/timing.h"

static void open_chunk(struct generation *g)
{
    (void)ek_buf_puts(&g->out, "data: {");
    reply_head(&g->out, g, g->ask.chat ? "chat.completion.chunk" : "text_completion");
    (void)ek_buf_puts(&g->out, ",\"choices\":[");
}

/* `last` = of its choice: the fingerprint is in this one unless a chunk with the usage follows. */
static void close_chunk(struct generation *g, bool last)
{
    (void)ek_buf_puts(&g->out, "]");
    if (g->ask.continuous_usage) {
        (void)ek_buf_puts(&g->out, ",");
        reply_usage(&g->out, g, true);
    }
    if (last && !g->ask.include_usage) {
        (void)ek_buf_puts(&g->out, ",");
        reply_fingerprint(&g->out);
    }
    reply_event_end(&g->out);
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
    close_chunk(c->of, false);
}

static void put_role(const struct choice *c)
{
    struct generation *g = c->of;
    open_choice(c);
    (void)ek_buf_puts(&g->out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                               "\"finish_reason\":null}]");
    (void)ek_buf_puts(&g->out, ",");
    reply_prompt_text(&g->out, c, g->ask.return_prompt_text && c->index == 0);
    (void)ek_buf_puts(&g->out, ",");
    reply_prompt_ids(&g->out, c, g->ask.return_token_ids && c->index == 0);
    if (g->ask.continuous_usage) {
        (void)ek_buf_puts(&g->out, ",");
        reply_usage(&g->out, g, true);
    }
    reply_event_end(&g->out);
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
    (void)ek_buf_puts(&g->out, "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null");
    close_choice(c);
}

static void sse_put_text(const struct choice *c, bool last)
{
    struct ek_buf *out = &c->of->out;
    bool chat = c->of->ask.chat;
    if (!ek_buf_ok(&c->text))
        out->failed = true;
    if (chat && last && c->text.len == 0) {
        (void)ek_buf_puts(out, "},");
        return;
    }
    (void)ek_buf_puts(out, chat ? "\"content\":\"" : "\"text\":\"");
    (void)ek_buf_json(out, c->text.data ? c->text.data : "", c->text.len);
    (void)ek_buf_puts(out, chat ? "\"}," : "\",");
}

/* What is not told yet; `last` = with the reason why nothing follows. */
static void put_delta(const struct choice *c, bool last)
{
    struct generation *g = c->of;
    const struct openai_ask *a = &g->ask;
    open_choice(c);
    sse_put_text(c, last);
    reply_logprobs(&g->out, c);
    (void)ek_buf_puts(&g->out, ",");
    if (!a->chat) {
        reply_prompt_ids(&g->out, c, !c->begun && (a->return_token_ids || a->echo));
        (void)ek_buf_puts(&g->out, ",");
    }
    if (last)
        reply_finish(&g->out, c);
    else
        (void)ek_buf_puts(&g->out, a->chat ? "\"finish_reason\":null"
                                           : "\"finish_reason\":null,\"stop_reason\":null");
    reply_ids(&g->out, c);
    (void)ek_buf_puts(&g->out, "}");
    close_chunk(g, last);
}

static void close_call(const struct choice *c)
{
    (void)ek_buf_puts(&c->of->out,
                      "}]},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null");
    close_choice(c);
}

/* The function that is called, in a chunk of its own; then its arguments as they come. */
static void put_call(const struct choice *c, uint32_t index)
{
    struct ek_buf *out = &c->of->out;
    open_choice(c);
    (void)ek_buf_printf(out, "\"content\":null,\"tool_calls\":[{\"index\":%u,", index);
    reply_call_head(out, c, index);
    (void)ek_buf_puts(out, reply_is_custom(c, index) ? ",\"input\":\"\"}" : ",\"arguments\":\"\"}");
    close_call(c);
}

static void put_args(const struct choice *c, uint32_t index, const char *bytes, size_t len)
{
    struct ek_buf *out = &c->of->out;
    open_choice(c);
    (void)ek_buf_printf(out,
                        "\"content\":null,\"tool_calls\":[{\"index\":%u,\"function\":{"
                        "\"arguments\":\"",
                        index);
    (void)ek_buf_json(out, bytes, len);
    (void)ek_buf_puts(out, "\"}");
    close_call(c);
}

/* The text for a custom tool, which comes at once when all of its call is there. */
static void put_custom(const struct choice *c, uint32_t index)
{
    struct ek_buf *out = &c->of->out;
    const struct ek_buf *args = &c->calls.call[index].args;
    open_choice(c);
    (void)ek_buf_printf(
        out, "\"content\":null,\"tool_calls\":[{\"index\":%u,\"custom\":{\"input\":", index);
    custom_put(out, args->data, args->len);
    (void)ek_buf_puts(out, "}");
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
        bool custom = reply_is_custom(c, i);
        if (custom && !c->over && i + 1 == c->calls.count)
            continue; /* it may grow: it is the last one */
        if (args->len > c->args_told && custom)
            put_custom(c, i);
        else if (args->len > c->args_told)
            put_args(c, i, args->data + c->args_told, args->len - c->args_told);
        c->args_told = args->len;
    }
}

static void put_end(struct generation *g)
{
    if (g->ask.include_usage) {
        open_chunk(g);
        (void)ek_buf_puts(&g->out, "],");
        reply_usage(&g->out, g, false);
        timing_write(&g->out, g);
        (void)ek_buf_puts(&g->out, ",");
        reply_fingerprint(&g->out);
        reply_event_end(&g->out);
    }
    (void)ek_buf_puts(&g->out, "data: [DONE]\n\n");
    g->closed = true;
}

static void sse_forget(struct choice *c)
{
    ek_buf_clear(&c->text);
    ek_buf_clear(&c->thought);
    ek_buf_clear(&c->ids);
    for (int i = 0; i < LP_ARRAYS; i++)
        ek_buf_clear(&c->lp[i]);
    c->told = c->seen;
}

const char *sse_type(const struct generation *g)
{
    return openai_is_ollama(g->ask.api) ? "application/x-ndjson"
                                        : "text/event-stream; charset=utf-8";
}

void sse_ping(struct generation *g)
{
    if (!g->closed && openai_is_ollama(g->ask.api))
        ollama_ping(g);
    else if (!g->closed)
        (void)ek_buf_puts(&g->out, ": still here\n\n");
}

/* Ends the stream with an error event. */
static void sse_error(struct generation *g, const struct api_error *err)
{
    if (g->closed)
        return;
    if (g->ask.api == API_RESPONSES || g->ask.api == API_MESSAGES) {
        (g->ask.api == API_RESPONSES ? responses_error : anthropic_error_event)(g, err);
        return;
    }
    if (openai_is_ollama(g->ask.api) || g->ask.api == API_INFILL) {
        (g->ask.api == API_INFILL ? infill_error : ollama_error_line)(g, err);
        return;
    }
    (void)ek_buf_puts(&g->out, "data: ");
    reply_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n\ndata: [DONE]\n\n");
    g->closed = true;
}

/* Calls that the client has not seen yet, or not all of the last one. */
static bool has_calls(const struct choice *c)
{
    uint32_t count = reply_calls(c);
    return count > c->calls_told || (count > 0 && c->calls.call[count - 1].args.len > c->args_told);
}

static void render_choice(struct choice *c)
{
    const struct openai_ask *a = &c->of->ask;
    bool ends = c->over && (c->finish == REQ_FIN_STOP || c->finish == REQ_FIN_LENGTH);
    if (c->ended || (c->seen == 0 && !c->over))
        return;
    if (!c->begun && a->chat)
        put_role(c);
    if (c->thought.len)
        put_thought(c);
    if ((c->text.len || (c->told < c->seen && (a->logprobs || a->return_token_ids))) &&
        (!ends || has_calls(c))) {
        put_delta(c, false);
        c->begun = true;
        sse_forget(c);
    }
    put_calls(c);
    if (ends)
        put_delta(c, true);
    c->begun = true;
    c->ended = ends;
    sse_forget(c);
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
    if (openai_is_ollama(g->ask.api) || g->ask.api == API_INFILL) {
        (g->ask.api == API_INFILL ? infill_render : ollama_render)(g);
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

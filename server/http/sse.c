/* A completion as server-sent events. */
#include "server/http/sse.h"

#include "common/buf.h"
#include "server/http/complete.h"
#include "server/http/inside.h"
#include "server/http/reply.h"

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

static void put_text(struct generation *g)
{
    if (!ek_buf_ok(&g->text))
        g->out.failed = true;
    (void)ek_buf_json(&g->out, g->text.data ? g->text.data : "", g->text.len);
}

static void put_delta(struct generation *g)
{
    open_chunk(g);
    (void)ek_buf_puts(&g->out, g->ask.chat ? "{\"index\":0,\"delta\":{\"content\":\""
                                           : "{\"index\":0,\"text\":\"");
    put_text(g);
    (void)ek_buf_puts(&g->out, g->ask.chat ? "\"}," : "\",");
    reply_logprobs(&g->out, g);
    (void)ek_buf_puts(&g->out, ",\"finish_reason\":null");
    if (g->ask.return_token_ids) {
        (void)ek_buf_puts(&g->out, ",\"token_ids\":[");
        if (g->ids.len)
            (void)ek_buf_add(&g->out, g->ids.data, g->ids.len);
        (void)ek_buf_puts(&g->out, "]");
    }
    (void)ek_buf_puts(&g->out, "}");
    close_chunk(g, g->ask.continuous_usage);
}

/* A call in two chunks: who is called, then with what. */
static void put_call(struct generation *g, uint32_t index)
{
    static const char tail[] = "}]},\"logprobs\":null,\"finish_reason\":null}";
    const struct toolcall *c = &g->calls.call[index];
    open_chunk(g);
    (void)ek_buf_printf(&g->out, "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%u,", index);
    reply_call_head(&g->out, g, index);
    (void)ek_buf_puts(&g->out, ",\"arguments\":\"\"}");
    (void)ek_buf_puts(&g->out, tail);
    close_chunk(g, g->ask.continuous_usage);
    open_chunk(g);
    (void)ek_buf_printf(&g->out,
                        "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%u,\"function\":{"
                        "\"arguments\":\"",
                        index);
    (void)ek_buf_json(&g->out, c->args, c->args_len);
    (void)ek_buf_puts(&g->out, "\"}");
    (void)ek_buf_puts(&g->out, tail);
    close_chunk(g, g->ask.continuous_usage);
}

static void put_end(struct generation *g)
{
    open_chunk(g);
    (void)ek_buf_puts(&g->out, g->ask.chat ? "{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                           : "{\"index\":0,\"text\":\"\",\"logprobs\":null,");
    reply_finish(&g->out, g);
    (void)ek_buf_puts(&g->out, "}");
    close_chunk(g, g->ask.continuous_usage);
    if (g->ask.include_usage) {
        open_chunk(g);
        close_chunk(g, true);
    }
    (void)ek_buf_puts(&g->out, "data: [DONE]\n\n");
    g->closed = true;
}

static void forget(struct generation *g)
{
    ek_buf_clear(&g->text);
    ek_buf_clear(&g->ids);
    for (int i = 0; i < LP_ARRAYS; i++)
        ek_buf_clear(&g->lp[i]);
    g->told = g->seen;
}

void sse_error(struct generation *g, const struct api_error *err)
{
    if (g->closed)
        return;
    (void)ek_buf_puts(&g->out, "data: ");
    reply_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n\ndata: [DONE]\n\n");
    g->closed = true;
}

void sse_render(struct generation *g)
{
    struct api_error err;
    if (g->closed)
        return;
    if (!g->begun && g->ask.chat) {
        open_chunk(g);
        (void)ek_buf_puts(&g->out, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
                                   "\"\"},\"logprobs\":null,\"finish_reason\":null}");
        close_chunk(g, g->ask.continuous_usage);
    }
    g->begun = true;
    if (g->text.len || (g->told < g->seen && (g->ask.logprobs || g->ask.return_token_ids)))
        put_delta(g);
    while (g->calls_told < g->calls.count)
        put_call(g, g->calls_told++);
    forget(g);
    if (!g->over)
        return;
    if (generation_check(g, &err) < 0)
        sse_error(g, &err);
    else
        put_end(g);
}

/*
 * Writes answers of /v1/messages: content blocks, whole or as events. Called by body.c and sse.c.
 */
#include <string.h>

#include "common/buf.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/items.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    }
    return status < 500 ? "invalid_request_error" : "api_error";
}

void anthropic_error(struct ek_buf *out, const struct api_error *err)
{
    (void)ek_buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                        error_type(err->status));
    reply_string(out, err->msg);
    (void)ek_buf_puts(out, "}}");
}

/* A content block as it is at its beginning, or whole. */
static void put_block(struct ek_buf *out, const struct choice *c, uint32_t index, bool whole)
{
    const struct item *i = &c->items.at[index];
    size_t len;
    const char *text = items_text(c, index, &len);
    switch (i->kind) {
    case ITEM_THOUGHT:
        (void)ek_buf_puts(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        reply_bytes(out, text, whole ? len : 0);
        break;
    case ITEM_TEXT:
        (void)ek_buf_puts(out, "{\"type\":\"text\",\"text\":");
        reply_bytes(out, text, whole ? len : 0);
        break;
    case ITEM_CALL:
        (void)ek_buf_puts(out, "{\"type\":\"tool_use\",\"id\":\"");
        reply_call_id(out, c, i->call);
        (void)ek_buf_puts(out, "\",\"name\":");
        reply_string(out, c->calls.call[i->call].name);
        (void)ek_buf_puts(out, ",\"input\":");
        reply_object(out, text, whole ? len : 0);
        break;
    }
    (void)ek_buf_puts(out, "}");
}

/* "stop_reason":...,"stop_sequence":... */
static void put_stop(struct ek_buf *out, const struct choice *c)
{
    const char *why = c->finish == REQ_FIN_LENGTH ? "max_tokens"
                      : reply_calls(c)            ? "tool_use"
                      : c->stop_string            ? "stop_sequence"
                                                  : "end_turn";
    (void)ek_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (c->stop_string)
        reply_string(out, c->stop_string);
    else
        (void)ek_buf_puts(out, "null");
}

static void put_usage(struct ek_buf *out, const struct generation *g)
{
    uint32_t prompt = generation_prompt_tokens(g), cached = g->choice[0].req->cached_tokens;
    (void)ek_buf_printf(out,
                        "\"usage\":{\"input_tokens\":%u,\"cache_read_input_tokens\":%u,"
                        "\"cache_creation_input_tokens\":0,\"output_tokens\":%u",
                        prompt - cached, cached, generation_seen(g));
    reply_room(out, g);
    (void)ek_buf_puts(out, "}");
}

static void put_head(struct ek_buf *out, const struct generation *g)
{
    (void)ek_buf_printf(
        out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    reply_string(out, g->ask.model);
    (void)ek_buf_puts(out, ",\"content\":[");
}

void anthropic_reply(struct ek_buf *out, struct generation *g)
{
    struct choice *c = &g->choice[0];
    if (items_update(c, &(struct item_sink){0}) < 0)
        out->failed = true;
    put_head(out, g);
    for (uint32_t i = 0; i < c->items.count; i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        put_block(out, c, i, true);
    }
    (void)ek_buf_puts(out, "],");
    put_stop(out, c);
    (void)ek_buf_puts(out, ",");
    put_usage(out, g);
    (void)ek_buf_puts(out, "}");
}

/* ---- events ---- */

static struct ek_buf *open_event(struct generation *g, const char *type)
{
    (void)ek_buf_printf(&g->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
    return &g->out;
}

static void on_open(struct choice *c, uint32_t index)
{
    struct ek_buf *out = open_event(c->of, "content_block_start");
    (void)ek_buf_printf(out, ",\"index\":%u,\"content_block\":", index);
    put_block(out, c, index, false);
    reply_event_end(&c->of->out);
}

static void on_grow(struct choice *c, uint32_t index, const char *bytes, size_t len)
{
    static const char *const deltas[] = {
        [ITEM_THOUGHT] = "{\"type\":\"thinking_delta\",\"thinking\":",
        [ITEM_TEXT] = "{\"type\":\"text_delta\",\"text\":",
        [ITEM_CALL] = "{\"type\":\"input_json_delta\",\"partial_json\":"};
    struct ek_buf *out = open_event(c->of, "content_block_delta");
    (void)ek_buf_printf(out, ",\"index\":%u,\"delta\":%s", index, deltas[c->items.at[index].kind]);
    reply_bytes(out, bytes, len);
    (void)ek_buf_puts(out, "}");
    reply_event_end(&c->of->out);
}

static void on_close(struct choice *c, uint32_t index)
{
    (void)ek_buf_printf(open_event(c->of, "content_block_stop"), ",\"index\":%u", index);
    reply_event_end(&c->of->out);
}

static void put_start(struct generation *g)
{
    uint32_t prompt = generation_prompt_tokens(g), cached = g->choice[0].req->cached_tokens;
    struct ek_buf *out = open_event(g, "message_start");
    (void)ek_buf_puts(out, ",\"message\":");
    put_head(out, g);
    (void)ek_buf_printf(out,
                        "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{"
                        "\"input_tokens\":%u,\"cache_read_input_tokens\":%u,"
                        "\"cache_creation_input_tokens\":0,\"output_tokens\":0}}",
                        prompt - cached, cached);
    reply_event_end(&g->out);
}

void anthropic_error_event(struct generation *g, const struct api_error *err)
{
    if (g->closed)
        return;
    (void)ek_buf_puts(&g->out, "event: error\ndata: ");
    anthropic_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n\n");
    g->closed = true;
}

void anthropic_render(struct generation *g)
{
    static const struct item_sink sink = {on_open, on_grow, on_close};
    struct choice *c = &g->choice[0];
    struct api_error err;
    if (!g->begun)
        put_start(g);
    g->begun = true;
    bool bad = g->over && generation_check(g, &err) < 0;
    if (!bad && items_update(c, &sink) < 0)
        g->out.failed = true;
    c->told = c->seen;
    if (bad) {
        anthropic_error_event(g, &err);
        return;
    }
    if (!g->over)
        return;
    struct ek_buf *out = open_event(g, "message_delta");
    (void)ek_buf_puts(out, ",\"delta\":{");
    put_stop(out, c);
    (void)ek_buf_puts(out, "},");
    put_usage(out, g);
    reply_event_end(&g->out);
    (void)open_event(g, "message_stop");
    reply_event_end(&g->out);
    g->closed = true;
}

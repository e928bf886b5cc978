/*
 * Answers of /v1/responses. A stream is a row of typed events, each with a number; the last one
 * holds the whole response again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/items.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static const char *const prefixes[] = {
    [ITEM_THOUGHT] = "rs", [ITEM_TEXT] = "msg", [ITEM_CALL] = "fc"};

static void put_json(struct ek_buf *out, const json_t *v, const char *none)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (v && !text)
        out->failed = true;
    (void)ek_buf_puts(out, text ? text : none);
    free(text);
}

static void put_item_id(struct ek_buf *out, const struct choice *c, uint32_t index)
{
    (void)ek_buf_printf(out, "\"%s_%016llx%016llx_%u\"", prefixes[c->items.at[index].kind],
                        (unsigned long long)c->of->call_key[0],
                        (unsigned long long)c->of->call_key[1], index);
}

/* {"type":"output_text",...} or reasoning's part, with the text or without. */
static void put_part(struct ek_buf *out, const struct choice *c, uint32_t index, bool filled)
{
    bool thought = c->items.at[index].kind == ITEM_THOUGHT;
    size_t len;
    const char *text = items_text(c, index, &len);
    (void)ek_buf_printf(out,
                        "{\"type\":\"%s\",\"text\":", thought ? "reasoning_text" : "output_text");
    reply_bytes(out, text, filled ? len : 0);
    (void)ek_buf_puts(out, thought ? "}" : ",\"annotations\":[],\"logprobs\":[");
    if (!thought && filled)
        items_logprobs(c, index, false, out);
    (void)ek_buf_puts(out, thought ? "" : "]}");
}

/* The tool that an item calls takes one text. */
static bool is_custom(const struct choice *c, uint32_t index)
{
    const struct item *i = &c->items.at[index];
    return i->kind == ITEM_CALL && custom_is(c->of->body, c->calls.call[i->call].name);
}

/* The text for it. */
static void put_input(struct ek_buf *out, const struct choice *c, uint32_t index)
{
    size_t len;
    const char *text = items_text(c, index, &len);
    custom_put(out, text, len);
}

/* A call as it is at its beginning, or whole. */
static void put_call(struct ek_buf *out, const struct choice *c, uint32_t index, bool whole)
{
    const struct item *i = &c->items.at[index];
    bool custom = is_custom(c, index);
    size_t len;
    const char *text = items_text(c, index, &len);
    (void)ek_buf_printf(out, "\"type\":\"%s\",\"call_id\":\"",
                        custom ? "custom_tool_call" : "function_call");
    reply_call_id(out, c, i->call);
    (void)ek_buf_puts(out, "\",\"name\":");
    reply_string(out, c->calls.call[i->call].name);
    (void)ek_buf_puts(out, custom ? ",\"input\":" : ",\"arguments\":");
    if (custom && whole)
        put_input(out, c, index);
    else
        reply_bytes(out, text, whole ? len : 0);
    (void)ek_buf_puts(out, "}");
}

/* An item as it is at its beginning, or whole. */
static void put_item(struct ek_buf *out, const struct choice *c, uint32_t index, bool whole)
{
    const struct item *i = &c->items.at[index];
    (void)ek_buf_puts(out, "{\"id\":");
    put_item_id(out, c, index);
    (void)ek_buf_printf(out, ",\"status\":\"%s\",", whole ? "completed" : "in_progress");
    switch (i->kind) {
    case ITEM_CALL: put_call(out, c, index, whole); return;
    case ITEM_THOUGHT:
        (void)ek_buf_puts(out, "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        break;
    case ITEM_TEXT:
        (void)ek_buf_puts(out, "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        break;
    }
    if (whole)
        put_part(out, c, index, true);
    (void)ek_buf_puts(out, i->kind == ITEM_TEXT ? "],\"phase\":null}" : "]}");
}

static void put_usage(struct ek_buf *out, const struct generation *g)
{
    uint32_t prompt = generation_prompt_tokens(g), seen = generation_seen(g);
    (void)ek_buf_printf(out,
                        "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
                        "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":{"
                        "\"reasoning_tokens\":0},"
                        "\"total_tokens\":%u",
                        prompt, g->choice[0].req->cached_tokens, seen, prompt + seen);
    reply_room(out, g);
    (void)ek_buf_puts(out, "}");
}

/* The tools that the model was told of: functions and custom ones. */
static void put_tools(struct ek_buf *out, const json_t *tools)
{
    uint32_t n = 0;
    (void)ek_buf_puts(out, "[");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0))
            continue;
        (void)ek_buf_puts(out, n++ ? "," : "");
        put_json(out, tool, "null");
    }
    (void)ek_buf_puts(out, "]");
}

/* What was asked of the text: its format, and how much to say when that was. */
static void responses_out_put_text(struct ek_buf *out, const json_t *text)
{
    const json_t *format = json_object_get(text, "format");
    const json_t *verbosity = json_object_get(text, "verbosity");
    (void)ek_buf_puts(out, "{\"format\":");
    put_json(out, json_is_object(format) ? format : NULL, "{\"type\":\"text\"}");
    if (json_is_string(verbosity)) {
        (void)ek_buf_puts(out, ",\"verbosity\":");
        put_json(out, verbosity, "null");
    }
    (void)ek_buf_puts(out, "}");
}

/* The response object; not yet over: without output and usage. When it is over it is stored, if it
 * is to be. */
static void put_response(struct ek_buf *out, struct generation *g)
{
    struct response_at at = {.begin = out->len};
    const struct choice *c = &g->choice[0];
    const struct ek_sampling *p = &g->ask.sampling;
    bool cut = g->over && c->finish == REQ_FIN_LENGTH;
    char top[16] = "null";
    if (g->ask.logprobs)
        (void)snprintf(top, sizeof(top), "%u", g->ask.top);
    const char *status = !g->over ? "in_progress" : cut ? "incomplete" : "completed";
    (void)ek_buf_printf(out,
                        "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,"
                        "\"status\":\"%s\",\"error\":null,\"incomplete_details\":%s,\"model\":",
                        g->id, (unsigned long long)g->created_s, status,
                        cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    reply_string(out, g->ask.model);
    (void)ek_buf_puts(out, ",\"instructions\":");
    put_json(out, g->ask.system, "null");
    (void)ek_buf_puts(out, ",\"output\":[");
    at.output = out->len;
    for (uint32_t i = 0; g->over && i < c->items.count; i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        put_item(out, c, i, true);
    }
    at.output_end = out->len;
    (void)ek_buf_puts(out, "],\"tools\":");
    put_tools(out, json_object_get(g->body, "tools"));
    (void)ek_buf_puts(out, ",\"tool_choice\":");
    put_json(out, json_object_get(g->body, "tool_choice"), "\"auto\"");
    (void)ek_buf_printf(out,
                        ",\"parallel_tool_calls\":%s,\"temperature\":%g,\"top_p\":%g,"
                        "\"store\":",
                        g->ask.one_call ? "false" : "true", (double)p->temperature,
                        (double)p->top_p);
    at.store = out->len;
    (void)ek_buf_printf(out, "%s,\"truncation\":\"disabled\",\"previous_response_id\":",
                        g->ask.keep ? "true" : "false");
    put_json(out, g->before ? json_object_get(g->body, "previous_response_id") : NULL, "null");
    (void)ek_buf_puts(out, ",\"text\":");
    responses_out_put_text(out, json_object_get(g->body, "text"));
    (void)ek_buf_puts(out, ",\"max_output_tokens\":");
    put_json(out, json_object_get(g->body, "max_output_tokens"), "null");
    (void)ek_buf_puts(out, ",\"reasoning\":");
    put_json(out, json_object_get(g->body, "reasoning"), "null");
    (void)ek_buf_puts(out, ",\"metadata\":");
    put_json(out, json_object_get(g->body, "metadata"), "{}");
    (void)ek_buf_printf(
        out,
        ",\"background\":false,\"frequency_penalty\":%g,"
        "\"presence_penalty\":%g,\"top_logprobs\":%s,\"max_tool_calls\":null,"
        "\"prompt\":null,\"prompt_cache_diagnostics\":null,\"service_tier\":\"auto\","
        "\"user\":null,\"usage\":",
        (double)p->frequency, (double)p->presence, top);
    if (g->over)
        put_usage(out, g);
    else
        (void)ek_buf_puts(out, "null");
    (void)ek_buf_puts(out, "}");
    if (g->over && g->ask.keep)
        responses_keep(g, out, &at);
}

void responses_reply(struct ek_buf *out, struct generation *g)
{
    if (items_update(&g->choice[0], &(struct item_sink){0}) < 0)
        out->failed = true;
    put_response(out, g);
}

/* ---- events ---- */

/* An event with its type and number; the object stays open. */
static struct ek_buf *open_event(struct generation *g, const char *type)
{
    (void)ek_buf_printf(&g->out,
                        "event: response.%s\ndata: {\"type\":\"response.%s\","
                        "\"sequence_number\":%u",
                        type, type, g->events++);
    return &g->out;
}

/* The same about an item, and its part if `part`. */
static struct ek_buf *open_item_event(const struct choice *c, const char *type, uint32_t index,
                                      bool part)
{
    struct ek_buf *out = open_event(c->of, type);
    (void)ek_buf_printf(out, ",\"output_index\":%u,\"item_id\":", index);
    put_item_id(out, c, index);
    if (part)
        (void)ek_buf_puts(out, ",\"content_index\":0");
    return out;
}

static void put_whole_item(const struct choice *c, const char *type, uint32_t index, bool whole)
{
    struct ek_buf *out = open_event(c->of, type);
    (void)ek_buf_printf(out, ",\"output_index\":%u,\"item\":", index);
    put_item(out, c, index, whole);
    reply_event_end(&c->of->out);
}

static void on_open(struct choice *c, uint32_t index)
{
    put_whole_item(c, "output_item.added", index, false);
    if (c->items.at[index].kind == ITEM_CALL)
        return;
    struct ek_buf *out = open_item_event(c, "content_part.added", index, true);
    (void)ek_buf_puts(out, ",\"part\":");
    put_part(out, c, index, false);
    reply_event_end(&c->of->out);
}

static void on_grow(struct choice *c, uint32_t index, const char *bytes, size_t len)
{
    static const char *const types[] = {[ITEM_THOUGHT] = "reasoning_text.delta",
                                        [ITEM_TEXT] = "output_text.delta",
                                        [ITEM_CALL] = "function_call_arguments.delta"};
    enum item_kind kind = c->items.at[index].kind;
    if (is_custom(c, index))
        return; /* its text comes whole */
    struct ek_buf *out = open_item_event(c, types[kind], index, kind != ITEM_CALL);
    (void)ek_buf_puts(out, ",\"delta\":");
    reply_bytes(out, bytes, len);
    (void)ek_buf_puts(out, kind == ITEM_TEXT ? ",\"logprobs\":[" : "");
    if (kind == ITEM_TEXT)
        items_logprobs(c, index, true, out);
    (void)ek_buf_puts(out, kind == ITEM_TEXT ? "]" : "");
    reply_event_end(&c->of->out);
}

static void close_custom(struct choice *c, uint32_t index)
{
    struct ek_buf *out = open_item_event(c, "custom_tool_call_input.delta", index, false);
    (void)ek_buf_puts(out, ",\"delta\":");
    put_input(out, c, index);
    reply_event_end(&c->of->out);
    out = open_item_event(c, "custom_tool_call_input.done", index, false);
    (void)ek_buf_puts(out, ",\"input\":");
    put_input(out, c, index);
    reply_event_end(&c->of->out);
    put_whole_item(c, "output_item.done", index, true);
}

static void on_close(struct choice *c, uint32_t index)
{
    if (is_custom(c, index)) {
        close_custom(c, index);
        return;
    }
    static const char *const types[] = {[ITEM_THOUGHT] = "reasoning_text.done",
                                        [ITEM_TEXT] = "output_text.done",
                                        [ITEM_CALL] = "function_call_arguments.done"};
    enum item_kind kind = c->items.at[index].kind;
    size_t len;
    const char *text = items_text(c, index, &len);
    struct ek_buf *out = open_item_event(c, types[kind], index, kind != ITEM_CALL);
    (void)ek_buf_puts(out, kind == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
    reply_bytes(out, text, len);
    if (kind == ITEM_CALL) {
        (void)ek_buf_puts(out, ",\"name\":");
        reply_string(out, c->calls.call[c->items.at[index].call].name);
    } else if (kind == ITEM_TEXT) {
        (void)ek_buf_puts(out, ",\"logprobs\":[");
        items_logprobs(c, index, false, out);
        (void)ek_buf_puts(out, "]");
    }
    reply_event_end(&c->of->out);
    if (kind != ITEM_CALL) {
        out = open_item_event(c, "content_part.done", index, true);
        (void)ek_buf_puts(out, ",\"part\":");
        put_part(out, c, index, true);
        reply_event_end(&c->of->out);
    }
    put_whole_item(c, "output_item.done", index, true);
}

static void responses_out_put_state(struct generation *g, const char *type)
{
    struct ek_buf *out = open_event(g, type);
    (void)ek_buf_puts(out, ",\"response\":");
    put_response(out, g);
    reply_event_end(&g->out);
}

void responses_error(struct generation *g, const struct api_error *err)
{
    if (g->closed)
        return;
    (void)ek_buf_printf(&g->out,
                        "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%u,"
                        "\"code\":\"%d\",\"param\":null,\"message\":",
                        g->events++, err->status);
    reply_string(&g->out, err->msg);
    reply_event_end(&g->out);
    g->closed = true;
}

void responses_render(struct generation *g)
{
    static const struct item_sink sink = {on_open, on_grow, on_close};
    struct choice *c = &g->choice[0];
    struct api_error err;
    bool over = g->over;
    if (!g->begun) {
        g->over = false;
        responses_out_put_state(g, "created");
        responses_out_put_state(g, "in_progress");
        g->over = over;
    }
    g->begun = true;
    bool bad = over && generation_check(g, &err) < 0;
    if (!bad && items_update(c, &sink) < 0)
        g->out.failed = true;
    c->told = c->seen;
    if (bad) {
        responses_error(g, &err);
    } else if (over) {
        responses_out_put_state(g, c->finish == REQ_FIN_LENGTH ? "incomplete" : "completed");
        g->closed = true;
    }
}

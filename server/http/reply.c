/* Answers as JSON text, written by hand: the shapes are fixed and the texts may be large. */
#include "server/http/reply.h"

#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "server/http/complete.h"
#include "server/http/inside.h"
#include "server/text/tokenizer.h"

static const char *error_type(int status)
{
    switch (status) {
    case 400: return "BadRequestError";
    case 401: return "AuthenticationError";
    case 403: return "PermissionDeniedError";
    case 404: return "NotFoundError";
    case 405: return "MethodNotAllowedError";
    case 408: return "RequestTimeoutError";
    case 409: return "ConflictError";
    case 413: return "RequestTooLargeError";
    case 429: return "RateLimitError";
    case 501: return "NotImplementedError";
    case 503: return "ServiceUnavailableError";
    }
    return status < 500 ? "BadRequestError" : "InternalServerError";
}

static void put_string(struct ek_buf *out, const char *s)
{
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, s, strlen(s));
    (void)ek_buf_puts(out, "\"");
}

void reply_error(struct ek_buf *out, const struct api_error *err)
{
    (void)ek_buf_puts(out, "{\"error\":{\"message\":");
    put_string(out, err->msg);
    (void)ek_buf_puts(out, ",\"type\":");
    put_string(out, err->type ? err->type : error_type(err->status));
    (void)ek_buf_puts(out, ",\"param\":");
    if (err->param[0])
        put_string(out, err->param);
    else
        (void)ek_buf_puts(out, "null");
    (void)ek_buf_printf(out, ",\"code\":%d}}", err->status);
}

void reply_head(struct ek_buf *out, const struct generation *g, const char *object)
{
    (void)ek_buf_printf(out, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", g->id,
                        object, (unsigned long long)g->created_s);
    put_string(out, g->ask.model);
}

void reply_usage(struct ek_buf *out, const struct generation *g)
{
    uint32_t prompt = g->req->ask.prompt_tokens;
    (void)ek_buf_printf(out,
                        "\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                        "\"completion_tokens\":%u",
                        prompt, prompt + g->seen, g->seen);
    if (g->served->prompt_details)
        (void)ek_buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}",
                            g->req->cached_tokens);
    (void)ek_buf_puts(out, "}");
}

static bool is_own_stop(const struct generation *g, int32_t id)
{
    for (uint32_t i = 0; i < g->ask.stop_id_count; i++) {
        if (g->ask.stop_ids[i] == id)
            return true;
    }
    return false;
}

void reply_finish(struct ek_buf *out, const struct generation *g)
{
    const char *name = g->finish == REQ_FIN_STOP     ? g->calls.count ? "tool_calls" : "stop"
                       : g->finish == REQ_FIN_LENGTH ? "length"
                       : g->finish == REQ_FIN_ABORT  ? "abort"
                                                     : "error";
    (void)ek_buf_printf(out, "\"finish_reason\":\"%s\",\"stop_reason\":", name);
    if (g->stop_string)
        put_string(out, g->stop_string);
    else if (g->finish == REQ_FIN_STOP && is_own_stop(g, g->req->stop_token))
        (void)ek_buf_printf(out, "%d", g->req->stop_token);
    else
        (void)ek_buf_puts(out, "null");
}

/* Minus infinity is not JSON; clients know -9999. */
static void put_logprob(struct ek_buf *out, double v)
{
    if (!isfinite(v) || v < -9999.0)
        v = -9999.0;
    (void)ek_buf_printf(out, "%.7g", v);
}

static const char *token_text(const struct generation *g, int32_t id, size_t *ret_len)
{
    const char *bytes = tokenizer_bytes(g->served->tok, id, ret_len);
    if (!bytes)
        *ret_len = 0;
    return bytes ? bytes : "";
}

/* "token":"..","logprob":-1,"bytes":[..] */
static void put_chat_token(struct ek_buf *out, const struct generation *g, int32_t id, float lp)
{
    size_t len;
    const char *bytes = token_text(g, id, &len);
    (void)ek_buf_puts(out, "\"token\":\"");
    (void)ek_buf_json(out, bytes, len);
    (void)ek_buf_puts(out, "\",\"logprob\":");
    put_logprob(out, (double)lp);
    (void)ek_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        (void)ek_buf_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    (void)ek_buf_puts(out, "]");
}

static void add_chat_logprob(struct generation *g, uint32_t index)
{
    struct ek_buf *out = &g->lp[LP_ENTRIES];
    const struct req_token *t = &g->req->out[index];
    const struct req_top *top = g->req->top_at + (size_t)index * g->req->ask.top;
    (void)ek_buf_puts(out, out->len ? ",{" : "{");
    put_chat_token(out, g, t->id, t->logprob);
    (void)ek_buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->top && i < g->ask.top; i++) {
        (void)ek_buf_puts(out, i ? ",{" : "{");
        put_chat_token(out, g, top[i].id, top[i].logprob);
        (void)ek_buf_puts(out, "}");
    }
    (void)ek_buf_puts(out, "]}");
}

static void put_top_pair(struct ek_buf *out, const struct generation *g, bool first, int32_t id,
                         float lp)
{
    size_t len;
    const char *bytes = token_text(g, id, &len);
    (void)ek_buf_puts(out, first ? "\"" : ",\"");
    (void)ek_buf_json(out, bytes, len);
    (void)ek_buf_puts(out, "\":");
    put_logprob(out, (double)lp);
}

static size_t characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static void add_plain_logprob(struct generation *g, uint32_t index)
{
    const struct req_token *t = &g->req->out[index];
    const struct req_top *top = g->req->top_at + (size_t)index * g->req->ask.top;
    const char *comma = g->lp[LP_TOKENS].len ? "," : "";
    size_t len;
    const char *bytes = token_text(g, t->id, &len);
    bool among = false;
    (void)ek_buf_printf(&g->lp[LP_TOKENS], "%s\"", comma);
    (void)ek_buf_json(&g->lp[LP_TOKENS], bytes, len);
    (void)ek_buf_puts(&g->lp[LP_TOKENS], "\"");
    (void)ek_buf_puts(&g->lp[LP_VALUES], comma);
    put_logprob(&g->lp[LP_VALUES], (double)t->logprob);
    (void)ek_buf_printf(&g->lp[LP_TOPS], "%s{", comma);
    for (uint32_t i = 0; i < t->top && i < g->ask.top; i++) {
        put_top_pair(&g->lp[LP_TOPS], g, i == 0, top[i].id, top[i].logprob);
        among = among || top[i].id == t->id;
    }
    if (!among)
        put_top_pair(&g->lp[LP_TOPS], g, t->top == 0 || g->ask.top == 0, t->id, t->logprob);
    (void)ek_buf_puts(&g->lp[LP_TOPS], "}");
    (void)ek_buf_printf(&g->lp[LP_OFFSETS], "%s%llu", comma, (unsigned long long)g->offset);
    g->offset += characters(bytes, len);
}

void reply_add_logprob(struct generation *g, uint32_t index)
{
    if (g->ask.chat)
        add_chat_logprob(g, index);
    else
        add_plain_logprob(g, index);
}

static void put_buf(struct ek_buf *out, const struct ek_buf *from)
{
    if (!ek_buf_ok(from))
        out->failed = true;
    else if (from->len)
        (void)ek_buf_add(out, from->data, from->len);
}

void reply_logprobs(struct ek_buf *out, const struct generation *g)
{
    static const char *const open[LP_ARRAYS] = {"\"tokens\":[", "],\"token_logprobs\":[",
                                                "],\"top_logprobs\":[", "],\"text_offset\":["};
    if (!g->ask.logprobs || g->lp[LP_TOKENS].len == 0) {
        (void)ek_buf_puts(out, "\"logprobs\":null");
        return;
    }
    (void)ek_buf_puts(out, "\"logprobs\":{");
    if (g->ask.chat) {
        (void)ek_buf_puts(out, "\"content\":[");
        put_buf(out, &g->lp[LP_ENTRIES]);
    } else {
        for (int i = 0; i < LP_ARRAYS; i++) {
            (void)ek_buf_puts(out, open[i]);
            put_buf(out, &g->lp[i]);
        }
    }
    (void)ek_buf_puts(out, "]}");
}

void reply_call_head(struct ek_buf *out, const struct generation *g, uint32_t index)
{
    uint64_t first = g->call_key[0] + index;
    (void)ek_buf_printf(out, "\"id\":\"chatcmpl-tool-%016llx%016llx\",\"type\":\"function\",",
                        (unsigned long long)first, (unsigned long long)g->call_key[1]);
    (void)ek_buf_puts(out, "\"function\":{\"name\":");
    put_string(out, g->calls.call[index].name);
}

/* The inside of a message or of a completion's choice, with the comma behind it. */
static void put_message(struct ek_buf *out, const struct generation *g)
{
    if (!ek_buf_ok(&g->text))
        out->failed = true;
    if (g->calls.count && g->text.len == 0) {
        (void)ek_buf_puts(out, "null");
    } else {
        (void)ek_buf_puts(out, "\"");
        (void)ek_buf_json(out, g->text.data ? g->text.data : "", g->text.len);
        (void)ek_buf_puts(out, "\"");
    }
    if (!g->ask.chat) {
        (void)ek_buf_puts(out, ",");
        return;
    }
    (void)ek_buf_puts(out, ",\"refusal\":null");
    for (uint32_t i = 0; i < g->calls.count; i++) {
        (void)ek_buf_puts(out, i ? ",{" : ",\"tool_calls\":[{");
        reply_call_head(out, g, i);
        (void)ek_buf_puts(out, ",\"arguments\":\"");
        (void)ek_buf_json(out, g->calls.call[i].args, g->calls.call[i].args_len);
        (void)ek_buf_puts(out, "\"}}");
    }
    (void)ek_buf_puts(out, g->calls.count ? "]}," : "},");
}

void reply_completion(struct ek_buf *out, const struct generation *g)
{
    (void)ek_buf_puts(out, "{");
    reply_head(out, g, g->ask.chat ? "chat.completion" : "text_completion");
    (void)ek_buf_puts(out, g->ask.chat ? ",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                                         "\"assistant\",\"content\":"
                                       : ",\"choices\":[{\"index\":0,\"text\":");
    put_message(out, g);
    reply_logprobs(out, g);
    (void)ek_buf_puts(out, ",");
    reply_finish(out, g);
    if (g->ask.return_token_ids) {
        (void)ek_buf_puts(out, ",\"token_ids\":[");
        put_buf(out, &g->ids);
        (void)ek_buf_puts(out, "]");
    }
    (void)ek_buf_puts(out, "}],");
    reply_usage(out, g);
    (void)ek_buf_puts(out, "}");
}

/* Answers as JSON text, written by hand: the shapes are fixed and the texts may be large. */
#include "server/api/reply.h"

#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/generation.h"
#include "server/api/protocols.h"
#include "server/api/served.h"
#include "server/api/timing.h"
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
    case 505: return "BadRequestError";
    case 503: return "ServiceUnavailableError";
    }
    return status < 500 ? "BadRequestError" : "InternalServerError";
}

void reply_event_end(struct ek_buf *out)
{
    (void)ek_buf_puts(out, "}\n\n");
}

void reply_string(struct ek_buf *out, const char *s)
{
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, s, strlen(s));
    (void)ek_buf_puts(out, "\"");
}

void reply_error(struct ek_buf *out, const struct api_error *err)
{
    (void)ek_buf_puts(out, "{\"error\":{\"message\":");
    reply_string(out, err->msg);
    (void)ek_buf_puts(out, ",\"type\":");
    reply_string(out, err->type ? err->type : error_type(err->status));
    (void)ek_buf_puts(out, ",\"param\":");
    if (err->param[0])
        reply_string(out, err->param);
    else
        (void)ek_buf_puts(out, "null");
    (void)ek_buf_printf(out, ",\"code\":%d}}", err->status);
}

void reply_head(struct ek_buf *out, const struct generation *g, const char *object)
{
    (void)ek_buf_printf(out, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", g->id,
                        object, (unsigned long long)g->created_s);
    reply_string(out, g->ask.model);
}

void reply_room(struct ek_buf *out, const struct generation *g)
{
    if (g->room)
        (void)ek_buf_printf(out, ",\"max_output_tokens\":%u", g->room);
}

void reply_usage(struct ek_buf *out, const struct generation *g, bool chunk)
{
    uint32_t prompt = generation_prompt_tokens(g), seen = generation_seen(g), cached = 0;
    for (uint32_t i = 0; i < g->ask.prompts; i++) {
        const struct request *q = generation_first(g, i)->req;
        cached += q ? q->cached_tokens : 0;
    }
    (void)ek_buf_printf(out,
                        "\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                        "\"completion_tokens\":%u",
                        prompt, prompt + seen, seen);
    if (g->served->prompt_details)
        (void)ek_buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%u}", cached);
    else if (!g->ask.stream)
        (void)ek_buf_puts(out, ",\"prompt_tokens_details\":null");
    if (!g->ask.stream || (chunk && g->ask.chat))
        (void)ek_buf_puts(out, ",\"completion_tokens_details\":null");
    reply_room(out, g);
    (void)ek_buf_puts(out, "}");
}

void reply_fingerprint(struct ek_buf *out)
{
    (void)ek_buf_puts(out, "\"system_fingerprint\":\"evenkeel-" EK_VERSION "\"");
}

/* A token that ended the answer and is not the model's usual end: the client's own, or another one
 * that the model's files name. */
static bool is_told_stop(const struct choice *c, int32_t id)
{
    const struct openai_ask *a = &c->of->ask;
    if (id >= 0 && c->of->served->tok && id != tokenizer_eos(c->of->served->tok))
        return true;
    for (uint32_t i = 0; i < a->stop_id_count; i++) {
        if (a->stop_ids[i] == id)
            return true;
    }
    return false;
}

void reply_finish(struct ek_buf *out, const struct choice *c)
{
    bool called = c->calls.count && !c->of->ask.call; /* as OpenAI: not when it was named */
    const char *name = c->finish == REQ_FIN_STOP     ? called ? "tool_calls" : "stop"
                       : c->finish == REQ_FIN_LENGTH ? "length"
                       : c->finish == REQ_FIN_ABORT  ? "abort"
                                                     : "error";
    (void)ek_buf_printf(out, "\"finish_reason\":\"%s\",\"stop_reason\":", name);
    if (c->stop_string)
        reply_string(out, c->stop_string);
    else if (c->finish == REQ_FIN_STOP && is_told_stop(c, c->req->stop_token))
        (void)ek_buf_printf(out, "%d", c->req->stop_token);
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

/* A token as log probabilities name it. */
static void put_token_text(struct ek_buf *out, const struct generation *g, int32_t id)
{
    size_t len = 0;
    if (g->ask.tokens_as_ids) {
        (void)ek_buf_printf(out, "token_id:%d", id);
        return;
    }
    const char *bytes = tokenizer_bytes(g->served->tok, id, &len);
    (void)ek_buf_json(out, bytes ? bytes : "", bytes ? len : 0);
}

/* "token":"..","logprob":-1,"bytes":[..] */
static void put_chat_token(struct ek_buf *out, const struct generation *g, int32_t id, float lp)
{
    size_t len = 0;
    const char *bytes = tokenizer_bytes(g->served->tok, id, &len);
    (void)ek_buf_puts(out, "\"token\":\"");
    put_token_text(out, g, id);
    (void)ek_buf_puts(out, "\",\"logprob\":");
    put_logprob(out, (double)lp);
    (void)ek_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; bytes && i < len; i++)
        (void)ek_buf_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    (void)ek_buf_puts(out, "]");
}

static void add_chat_logprob(struct choice *c, const struct req_token *t, const struct req_top *top)
{
    const struct generation *g = c->of;
    struct ek_buf *out = &c->lp[LP_ENTRIES];
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
    (void)ek_buf_puts(out, first ? "\"" : ",\"");
    put_token_text(out, g, id);
    (void)ek_buf_puts(out, "\":");
    put_logprob(out, (double)lp);
}

static size_t reply_characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* `known`: there is a log probability; a prompt's first token has none. */
static void add_plain_logprob(struct choice *c, const struct req_token *t,
                              const struct req_top *top, bool known)
{
    const struct generation *g = c->of;
    const char *comma = c->lp[LP_TOKENS].len ? "," : "";
    uint32_t most = known && t->top < g->ask.top ? t->top : known ? g->ask.top : 0;
    size_t len = 0;
    const char *bytes = tokenizer_bytes(g->served->tok, t->id, &len);
    bool among = false;
    (void)ek_buf_printf(&c->lp[LP_TOKENS], "%s\"", comma);
    put_token_text(&c->lp[LP_TOKENS], g, t->id);
    (void)ek_buf_puts(&c->lp[LP_TOKENS], "\"");
    (void)ek_buf_printf(&c->lp[LP_VALUES], "%s%s", comma, known ? "" : "null");
    (void)ek_buf_printf(&c->lp[LP_TOPS], "%s%s", comma, known ? "{" : "null");
    if (known)
        put_logprob(&c->lp[LP_VALUES], (double)t->logprob);
    for (uint32_t i = 0; i < most; i++) {
        put_top_pair(&c->lp[LP_TOPS], g, i == 0, top[i].id, top[i].logprob);
        among = among || top[i].id == t->id;
    }
    if (known && !among)
        put_top_pair(&c->lp[LP_TOPS], g, most == 0, t->id, t->logprob);
    (void)ek_buf_puts(&c->lp[LP_TOPS], known ? "}" : "");
    (void)ek_buf_printf(&c->lp[LP_OFFSETS], "%s%llu", comma, (unsigned long long)c->offset);
    c->offset += bytes ? reply_characters(bytes, len) : 0;
}

void reply_add_logprob(struct choice *c, uint32_t index)
{
    const struct req_token *t = &c->req->out[index];
    const struct req_top *top = c->req->top_at + (size_t)index * c->req->ask.top;
    if (c->of->ask.chat || openai_is_ollama(c->of->ask.api))
        add_chat_logprob(c, t, top);
    else
        add_plain_logprob(c, t, top, true);
}

void reply_add_prompt_logprob(struct choice *c, uint32_t index)
{
    const struct request *q = c->req;
    struct req_token t = {.id = q->ask.prompt[index]};
    if (index > 0)
        t = q->score[index];
    add_plain_logprob(c, &t, q->score_top + (size_t)index * q->ask.top, index > 0);
}

/* "5": {"logprob":..,"rank":..,"decoded_token":".."} */
static void put_ranked(struct ek_buf *out, const struct generation *g, int32_t id, float lp,
                       uint32_t rank)
{
    size_t len = 0;
    const char *bytes = tokenizer_bytes(g->served->tok, id, &len);
    (void)ek_buf_printf(out, "\"%d\":{\"logprob\":", id);
    put_logprob(out, (double)lp);
    (void)ek_buf_printf(out, ",\"rank\":%u,\"decoded_token\":\"", rank);
    (void)ek_buf_json(out, bytes ? bytes : "", bytes ? len : 0);
    (void)ek_buf_puts(out, "\"}");
}

/* The prompt's own log probabilities, of the choice that leads; null when not asked for. */
static void put_prompt_logprobs(struct ek_buf *out, const struct choice *c)
{
    const struct generation *g = c->of;
    const struct request *q = generation_first(g, c->prompt)->req;
    bool asked = q->score && (g->ask.prompt_logprobs || (g->ask.echo && g->ask.logprobs));
    (void)ek_buf_puts(out, asked ? "\"prompt_logprobs\":[null" : "\"prompt_logprobs\":null,");
    for (uint32_t i = 1; asked && i < q->ask.prompt_tokens; i++) {
        const struct req_token *t = &q->score[i];
        const struct req_top *top = q->score_top + (size_t)i * q->ask.top;
        bool among = false;
        (void)ek_buf_puts(out, ",{");
        for (uint32_t k = 0; k < t->top && k < g->ask.prompt_top; k++) {
            (void)ek_buf_puts(out, k ? "," : "");
            put_ranked(out, g, top[k].id, top[k].logprob, k + 1);
            among = among || top[k].id == t->id;
        }
        if (!among) {
            (void)ek_buf_puts(out, t->top && g->ask.prompt_top ? "," : "");
            put_ranked(out, g, t->id, t->logprob, q->rank[i]);
        }
        (void)ek_buf_puts(out, "}");
    }
    if (asked)
        (void)ek_buf_puts(out, "],");
}

void reply_prompt_ids(struct ek_buf *out, const struct choice *c, bool shown)
{
    const struct req_ask *q = &c->req->ask;
    (void)ek_buf_puts(out, shown ? "\"prompt_token_ids\":[" : "\"prompt_token_ids\":null");
    for (uint32_t i = 0; shown && i < q->prompt_tokens; i++)
        (void)ek_buf_printf(out, i ? ",%d" : "%d", q->prompt[i]);
    (void)ek_buf_puts(out, shown ? "]" : "");
}

void reply_prompt_text(struct ek_buf *out, const struct choice *c, bool shown)
{
    const struct req_ask *q = &c->req->ask;
    struct ek_buf text = {0};
    if (shown && detok_row(c->of->served->tok, q->prompt, q->prompt_tokens, false, &text) < 0)
        out->failed = true;
    (void)ek_buf_puts(out, "\"prompt_text\":");
    if (shown)
        reply_bytes(out, text.data ? text.data : "", text.len);
    else
        (void)ek_buf_puts(out, "null");
    ek_buf_done(&text);
}

/* Both, of a whole answer, with a comma behind each. */
static void put_prompt(struct ek_buf *out, const struct choice *c)
{
    put_prompt_logprobs(out, c);
    reply_prompt_ids(out, c, c->of->ask.return_token_ids);
    (void)ek_buf_puts(out, ",");
}

static void put_buf(struct ek_buf *out, const struct ek_buf *from)
{
    if (!ek_buf_ok(from))
        out->failed = true;
    else if (from->len)
        (void)ek_buf_add(out, from->data, from->len);
}

void reply_logprobs(struct ek_buf *out, const struct choice *c)
{
    static const char *const open[LP_ARRAYS] = {"\"tokens\":[", "],\"token_logprobs\":[",
                                                "],\"top_logprobs\":[", "],\"text_offset\":["};
    if (!c->of->ask.logprobs || c->lp[LP_TOKENS].len == 0) {
        (void)ek_buf_puts(out, "\"logprobs\":null");
        return;
    }
    (void)ek_buf_puts(out, "\"logprobs\":{");
    if (c->of->ask.chat) {
        (void)ek_buf_puts(out, "\"content\":[");
        put_buf(out, &c->lp[LP_ENTRIES]);
    } else {
        for (int i = 0; i < LP_ARRAYS; i++) {
            (void)ek_buf_puts(out, open[i]);
            put_buf(out, &c->lp[i]);
        }
    }
    (void)ek_buf_puts(out, "]}");
}

void reply_object(struct ek_buf *out, const char *text, size_t len)
{
    json_t *j = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(j))
        (void)ek_buf_add(out, text, len);
    else
        (void)ek_buf_puts(out, "{}");
    json_decref(j);
}

void reply_bytes(struct ek_buf *out, const char *bytes, size_t len)
{
    (void)ek_buf_puts(out, "\"");
    (void)ek_buf_json(out, bytes, len);
    (void)ek_buf_puts(out, "\"");
}

/* Kimi's template shows ids that have the name in them and count the calls of a conversation: one
 * for a call that was written otherwise, as those that must be made are. False: it is taken. */
static bool kimi_id(const struct choice *c, uint32_t index, char *text, size_t size)
{
    const struct toolcalls *t = &c->calls;
    (void)snprintf(text, size, "functions.%s:%u", t->call[index].name,
                   c->of->ask.past_calls + index);
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->call[i].id && strcmp(t->call[i].id, text) == 0)
            return false;
    }
    return true;
}

void reply_call_id(struct ek_buf *out, const struct choice *c, uint32_t index)
{
    unsigned long long high = c->of->call_key[0], low = c->of->call_key[1];
    const char *own = c->calls.call[index].id;
    char counted[TOOLCALL_NAME_LEN + 32];

    if (!own && c->of->served->tools == TOOLS_KIMI_K2 &&
        kimi_id(c, index, counted, sizeof(counted)))
        own = counted;
    if (own) { /* the template shows it again */
        (void)ek_buf_json(out, own, strlen(own));
        return;
    }
    high += (unsigned long long)c->index * TOOLCALL_MOST + index;
    (void)ek_buf_printf(out, "chatcmpl-tool-%016llx%016llx", high, low);
}

bool reply_is_custom(const struct choice *c, uint32_t index)
{
    return custom_is(c->of->body, c->calls.call[index].name);
}

void reply_call_head(struct ek_buf *out, const struct choice *c, uint32_t index)
{
    const char *type = reply_is_custom(c, index) ? "custom" : "function";
    (void)ek_buf_puts(out, "\"id\":\"");
    reply_call_id(out, c, index);
    (void)ek_buf_printf(out, "\",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
    reply_string(out, c->calls.call[index].name);
}

void reply_ids(struct ek_buf *out, const struct choice *c)
{
    bool shown = c->of->ask.return_token_ids;
    (void)ek_buf_puts(out, shown ? ",\"token_ids\":[" : ",\"token_ids\":null");
    if (shown)
        put_buf(out, &c->ids);
    (void)ek_buf_puts(out, shown ? "]" : "");
}

/* What a tool is called with, whole. */
static void put_argument(struct ek_buf *out, const struct choice *c, uint32_t index)
{
    const struct ek_buf *args = &c->calls.call[index].args;
    bool custom = reply_is_custom(c, index);
    (void)ek_buf_puts(out, custom ? ",\"input\":" : ",\"arguments\":");
    if (custom)
        custom_put(out, args->data, args->len);
    else
        reply_bytes(out, args->data, args->len);
}

/* The inside of a message or of a completion's choice, with the comma behind it. */
static void put_message(struct ek_buf *out, const struct choice *c)
{
    if (!ek_buf_ok(&c->text))
        out->failed = true;
    if ((c->calls.count || c->thought.len) && c->text.len == 0) {
        (void)ek_buf_puts(out, "null");
    } else {
        (void)ek_buf_puts(out, "\"");
        (void)ek_buf_json(out, c->text.data ? c->text.data : "", c->text.len);
        (void)ek_buf_puts(out, "\"");
    }
    if (!c->of->ask.chat) {
        (void)ek_buf_puts(out, ",");
        return;
    }
    (void)ek_buf_puts(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,"
                           "\"function_call\":null,\"reasoning\":");
    if (c->thought.len && c->of->ask.include_reasoning) {
        (void)ek_buf_puts(out, "\"");
        (void)ek_buf_json(out, c->thought.data, c->thought.len);
        (void)ek_buf_puts(out, "\"");
    } else {
        (void)ek_buf_puts(out, "null");
    }
    for (uint32_t i = 0; i < reply_calls(c); i++) {
        (void)ek_buf_puts(out, i ? ",{" : ",\"tool_calls\":[{");
        reply_call_head(out, c, i);
        put_argument(out, c, i);
        (void)ek_buf_puts(out, "}}");
    }
    (void)ek_buf_puts(out, c->calls.count ? "]}," : "},");
}

uint32_t reply_calls(const struct choice *c)
{
    return c->of->ask.one_call && c->calls.count > 1 ? 1 : c->calls.count;
}

static void put_choice(struct ek_buf *out, const struct choice *c)
{
    const struct openai_ask *a = &c->of->ask;
    (void)ek_buf_printf(out, c->index ? ",{\"index\":%u," : "{\"index\":%u,", c->index);
    (void)ek_buf_puts(out,
                      a->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    put_message(out, c);
    reply_logprobs(out, c);
    (void)ek_buf_puts(out, ",");
    if (!a->chat)
        put_prompt(out, c);
    reply_finish(out, c);
    reply_ids(out, c);
    (void)ek_buf_puts(out, ",\"routed_experts\":null}");
}

void reply_completion(struct ek_buf *out, const struct generation *g)
{
    (void)ek_buf_puts(out, "{");
    reply_head(out, g, g->ask.chat ? "chat.completion" : "text_completion");
    (void)ek_buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < g->count; i++)
        put_choice(out, &g->choice[i]);
    (void)ek_buf_puts(out, "],");
    if (g->ask.chat) {
        put_prompt(out, &g->choice[0]);
        reply_prompt_text(out, &g->choice[0], g->ask.return_prompt_text);
        (void)ek_buf_puts(out, ",");
    }
    reply_usage(out, g, false);
    if (g->served->request_metrics)
        timing_write(out, g);
    else
        (void)ek_buf_puts(out, ",\"metrics\":null");
    (void)ek_buf_puts(out, ",\"service_tier\":null,\"kv_transfer_params\":null,"
                           "\"ec_transfer_params\":null,");
    reply_fingerprint(out);
    (void)ek_buf_puts(out, "}");
}

/*
 * GET /openapi.json: the routes of the API and, from the table that reads bodies, what they may
 * hold. Fields that are known but not offered are left out.
 */
#include <string.h>

#include "common/buf.h"
#include "server/api/fields.h"
#include "server/api/reply.h"
#include "server/net/health.h"
#include "server/net/request.h"

#define NO_BODY  API_COUNT
#define ANY_BODY (API_COUNT + 1) /* of those that /invocations takes */

static const struct {
    const char *path, *id;
    int api; /* what its body is: enum openai_api or one of the above */
    const char *help;
} pages[] = {
    {"/v1/chat/completions", "create_chat_completion", API_CHAT, "Answers a conversation."},
    {"/v1/completions", "create_completion", API_PLAIN, "Goes on with a text."},
    {"/v1/responses", "create_response", API_RESPONSES,
     "Answers a conversation, in the form of responses; stateless."},
    {"/v1/messages", "create_message", API_MESSAGES,
     "Answers a conversation, in Anthropic's form."},
    {"/v1/messages/count_tokens", "count_message_tokens", API_MESSAGES,
     "Tokens that the conversation has."},
    {"/v1/embeddings", "create_embedding", API_EMBED, "Vectors of texts."},
    {"/v1/chat/completions/render", "render_chat_completion", API_CHAT,
     "The prompt of a conversation as tokens."},
    {"/v1/completions/render", "render_completion", API_PLAIN, "The prompts as tokens."},
    {"/invocations", "invoke", ANY_BODY, "As chat, completions or embeddings, by its fields."},
    {"/v1/models", "list_models", NO_BODY, "The served names."},
    {"/v1/models/*", "retrieve_model", NO_BODY, "One of them."},
    {"/tokenize", "tokenize", API_TOKENIZE, "Tokens of a text or a conversation."},
    {"/detokenize", "detokenize", API_DETOKENIZE, "Text of tokens."},
    {"/health", "health", NO_BODY, "Whether requests are taken."},
    {"/livez", "livez", NO_BODY, "Whether it moves."},
    {"/readyz", "readyz", NO_BODY, "Whether requests are taken."},
    {"/ping", "ping", NO_BODY, "Whether requests are taken."},
    {"/load", "load", NO_BODY, "Requests being answered."},
    {"/is_sleeping", "is_sleeping", NO_BODY, "False: it never sleeps."},
    {"/version", "version", NO_BODY, "The version."},
    {"/metrics", "metrics", NO_BODY, "Metrics."},
    {"/openapi.json", "openapi", NO_BODY, "This page."},
};

static const char *const names[API_COUNT] = {[API_CHAT] = "Chat",
                                             [API_PLAIN] = "Completion",
                                             [API_RESPONSES] = "Response",
                                             [API_MESSAGES] = "Message",
                                             [API_EMBED] = "Embedding",
                                             [API_TOKENIZE] = "Tokenize",
                                             [API_DETOKENIZE] = "Detokenize"};

static void put_type(struct ek_buf *out, const struct field *f)
{
    switch (f->kind) {
    case FIELD_BOOL: (void)ek_buf_puts(out, "\"type\":\"boolean\""); break;
    case FIELD_REAL:
        (void)ek_buf_printf(out, "\"type\":\"number\",\"minimum\":%.17g,\"maximum\":%.17g", f->min,
                            f->max);
        break;
    case FIELD_COUNT:
    case FIELD_WHOLE:
        (void)ek_buf_printf(out, "\"type\":\"integer\",\"minimum\":%.0f,\"maximum\":%.0f", f->min,
                            f->max);
        break;
    case FIELD_OWN:
    case FIELD_FORM: (void)ek_buf_puts(out, f->schema); break;
    case FIELD_NO:
    case FIELD_NO_TRUE:
    case FIELD_NO_ANY:
    case FIELD_FREE: break;
    }
}

static void put_field(struct ek_buf *out, const struct field *f)
{
    reply_string(out, f->name);
    (void)ek_buf_puts(out, ":{\"description\":");
    reply_string(out, f->help);
    (void)ek_buf_puts(out, f->needed ? "," : ",\"anyOf\":[{\"type\":\"null\"},{");
    put_type(out, f);
    (void)ek_buf_puts(out, f->needed ? "}" : "}]}");
}

static void put_schema(struct ek_buf *out, enum openai_api api)
{
    uint32_t n = 0;
    (void)ek_buf_printf(out, "\"%s\":{\"type\":\"object\",\"properties\":{", names[api]);
    for (uint32_t i = 0; i < field_count(); i++) {
        const struct field *f = &field_table[i];
        if (!(f->on & 1u << api) || (f->kind >= FIELD_NO && f->kind != FIELD_FREE))
            continue;
        (void)ek_buf_puts(out, n++ ? "," : "");
        put_field(out, f);
    }
    (void)ek_buf_puts(out, "},\"required\":[");
    n = 0;
    for (uint32_t i = 0; api != API_TOKENIZE && i < field_count(); i++) {
        if (!(field_table[i].on & 1u << api) || !field_table[i].needed)
            continue;
        (void)ek_buf_puts(out, n++ ? "," : "");
        reply_string(out, field_table[i].name);
    }
    (void)ek_buf_puts(out, "]}");
}

static void put_ref(struct ek_buf *out, enum openai_api api)
{
    (void)ek_buf_printf(out, "{\"$ref\":\"#/components/schemas/%s\"}", names[api]);
}

static void put_body(struct ek_buf *out, int api)
{
    static const enum openai_api any[] = {API_CHAT, API_PLAIN, API_EMBED};
    if (api == NO_BODY)
        return;
    (void)ek_buf_puts(out, "\"requestBody\":{\"required\":true,\"content\":{"
                           "\"application/json\":{\"schema\":");
    if (api != ANY_BODY)
        put_ref(out, (enum openai_api)api);
    for (size_t i = 0; api == ANY_BODY && i < sizeof(any) / sizeof(any[0]); i++) {
        (void)ek_buf_puts(out, i ? "," : "{\"anyOf\":[");
        put_ref(out, any[i]);
    }
    (void)ek_buf_puts(out, api == ANY_BODY ? "]}}}}," : "}}},");
}

/* The methods of a path. */
static void put_page(struct ek_buf *out, size_t page)
{
    const char *path = pages[page].path;
    size_t len = strlen(path);
    uint32_t n = 0;
    bool open = path[len - 1] == '*';
    (void)ek_buf_printf(out, "\"%.*s%s\":{", (int)(open ? len - 1 : len), path,
                        open ? "{name}" : "");
    for (uint32_t i = 0; i + 1 < route_count(); i++) {
        const struct route *r = &route_table[i];
        if (strcmp(r->path, path) != 0)
            continue;
        const char *method = r->method[0] == 'G' ? "get" : "post";
        /* ids are unique: a second method of a path says its name */
        (void)ek_buf_printf(out, "%s\"%s\":{\"summary\":\"%s\",\"operationId\":\"%s%s%s\",",
                            n ? "," : "", method, pages[page].help, pages[page].id, n ? "_" : "",
                            n ? method : "");
        n++;
        if (open)
            (void)ek_buf_puts(out, "\"parameters\":[{\"name\":\"name\",\"in\":\"path\","
                                   "\"required\":true,\"schema\":{\"type\":\"string\"}}],");
        put_body(out, pages[page].api);
        (void)ek_buf_puts(out, "\"responses\":{\"200\":{\"description\":\"The answer.\"},"
                               "\"default\":{\"description\":\"An error object.\"}}}");
    }
    (void)ek_buf_puts(out, "}");
}

int openapi_page(struct exchange *x, struct answer *a)
{
    struct ek_buf *out = &a->body;
    (void)x;
    (void)ek_buf_puts(
        out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Evenkeel\",\"version\":\"" EK_VERSION
             "\"},\"paths\":{");
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        put_page(out, i);
    }
    (void)ek_buf_puts(out, "},\"components\":{\"schemas\":{");
    for (int api = 0; api < API_COUNT; api++) {
        (void)ek_buf_puts(out, api ? "," : "");
        put_schema(out, (enum openai_api)api);
    }
    (void)ek_buf_puts(out, "}}}");
    return 0;
}

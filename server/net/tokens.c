/* POST /tokenize and /detokenize. Called through the table of routes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/api/past.h"
#include "server/api/reply.h"
#include "server/net/answer.h"
#include "server/net/health.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/stored.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"

static void put_tokens(const struct served *s, const struct token_vec *v, bool strings,
                       struct ek_buf *out)
{
    (void)ek_buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", v->count,
                        s->max_model_len);
    for (size_t i = 0; i < v->count; i++)
        (void)ek_buf_printf(out, i ? ",%d" : "%d", v->at[i]);
    (void)ek_buf_puts(out, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; strings && i < v->count; i++) {
        size_t len = 0;
        const char *bytes = tokenizer_bytes(s->tok, v->at[i], &len);
        (void)ek_buf_puts(out, i ? ",\"" : "\"");
        (void)ek_buf_json(out, bytes ? bytes : "", bytes ? len : 0);
        (void)ek_buf_puts(out, "\"");
    }
    if (strings)
        (void)ek_buf_puts(out, "]}");
}

int tokens_tokenize(struct exchange *x, struct answer *a)
{
    const struct served *s = http_served(x->http);
    struct openai_ask ask;
    struct api_error err;
    struct token_vec tokens = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    int r = body ? openai_parse(s, API_TOKENIZE, body, &x->work, &ask, &err) : -EBADMSG;
    if (r == 0)
        r = prompt_tokens(s, &ask, 0, &tokens, &err);
    if (r < 0)
        answer_error(a, &err);
    else
        put_tokens(s, &tokens, ask.token_strings, &a->body);
    token_vec_done(&tokens);
    json_decref(body);
    return 0;
}

/* The ids are checked. */
static void decode(const struct served *s, const json_t *list, struct ek_buf *text)
{
    size_t n = json_array_size(list);
    int32_t *ids = calloc(n + 1, sizeof(*ids));
    if (!ids) {
        text->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    if (detok_row(s->tok, ids, n, false, text) < 0)
        text->failed = true;
    free(ids);
}

int tokens_detokenize(struct exchange *x, struct answer *a)
{
    struct api_error err;
    struct ek_buf text = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    const struct served *s = http_served(x->http);
    struct openai_ask ask;
    int r = body ? openai_parse(s, API_DETOKENIZE, body, &x->work, &ask, &err) : -EBADMSG;
    if (r < 0) {
        answer_error(a, &err);
    } else {
        decode(s, ask.tokens, &text);
        (void)ek_buf_puts(&a->body, "{\"prompt\":\"");
        (void)ek_buf_json(&a->body, text.data ? text.data : "", text.len);
        (void)ek_buf_puts(&a->body, "\"}");
        a->body.failed = a->body.failed || text.failed;
    }
    ek_buf_done(&text);
    json_decref(body);
    return 0;
}

/* One prompt as the engine would get it. */
static int put_rendered(struct exchange *x, const struct openai_ask *ask, uint32_t index,
                        struct ek_buf *out, struct api_error *err)
{
    const struct served *s = http_served(x->http);
    struct token_vec v = {0};
    struct ek_buf text = {0};
    int r = prompt_tokens(s, ask, index, &v, err);
    if (r < 0)
        goto out;
    if (ask->chat)
        (void)ek_buf_printf(out, "{\"request_id\":\"chatcmpl-%s\"", x->id);
    else
        (void)ek_buf_printf(out, "%s{\"request_id\":\"cmpl-%s-%u\"", index ? "," : "", x->id,
                            index);
    (void)ek_buf_puts(out, ",\"model\":");
    reply_string(out, ask->model);
    (void)ek_buf_puts(out, ",\"token_ids\":[");
    for (size_t k = 0; k < v.count; k++)
        (void)ek_buf_printf(out, k ? ",%d" : "%d", v.at[k]);
    if (detok_row(s->tok, v.at, v.count, false, &text) < 0)
        text.failed = true;
    (void)ek_buf_puts(out, "],\"prompt\":\"");
    (void)ek_buf_json(out, text.data ? text.data : "", text.len);
    (void)ek_buf_puts(out, "\"}");
    out->failed = out->failed || text.failed;
out:
    ek_buf_done(&text);
    token_vec_done(&v);
    return r;
}

/* The prompts of a request as tokens, without running it: of a chat an object, else a list. */
static int render(struct exchange *x, enum openai_api api, struct answer *a)
{
    struct openai_ask ask;
    struct api_error err;
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    int r = body ? openai_parse(http_served(x->http), api, body, &x->work, &ask, &err) : -EBADMSG;
    (void)ek_buf_puts(&a->body, api == API_CHAT ? "" : "[");
    for (uint32_t i = 0; r == 0 && i < ask.prompts; i++)
        r = put_rendered(x, &ask, i, &a->body, &err);
    (void)ek_buf_puts(&a->body, api == API_CHAT ? "" : "]");
    if (r < 0)
        answer_error(a, &err);
    json_decref(body);
    return 0;
}

int tokens_render_chat(struct exchange *x, struct answer *a)
{
    return render(x, API_CHAT, a);
}

int tokens_render_completion(struct exchange *x, struct answer *a)
{
    return render(x, API_PLAIN, a);
}

static int count_tokens(struct exchange *x, enum openai_api api, struct answer *a)
{
    const struct served *s = http_served(x->http);
    struct openai_ask ask;
    struct api_error err;
    struct token_vec v = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    struct past *before = NULL;
    uint32_t inherited;
    int r = body && api == API_RESPONSES ? stored_join(x, body, &before, &inherited, a) : 0;
    if (r != 0) {
        json_decref(body);
        return r < 0 ? 0 : r;
    }
    past_drop(s->pasts, before); /* its items are in the body */
    r = body ? 0 : -EBADMSG;
    /* which messages need and this does not */
    if (body && api == API_MESSAGES && !json_object_get(body, "max_tokens"))
        r = json_object_set_new(body, "max_tokens", json_integer(1));
    if (r == 0)
        r = openai_parse(s, api, body, &x->work, &ask, &err);
    else if (body)
        r = api_no_memory(&err);
    if (r == 0)
        r = prompt_tokens(s, &ask, 0, &v, &err);
    if (r < 0)
        generation_answer_error(a, api, &err);
    else
        (void)ek_buf_printf(&a->body, "{%s\"input_tokens\":%zu}",
                            api == API_RESPONSES ? "\"object\":\"response.input_tokens\"," : "",
                            v.count);
    token_vec_done(&v);
    json_decref(body);
    return 0;
}

int tokens_count_message(struct exchange *x, struct answer *a)
{
    return count_tokens(x, API_MESSAGES, a);
}

int tokens_count_response(struct exchange *x, struct answer *a)
{
    return count_tokens(x, API_RESPONSES, a);
}

int tokens_info(struct exchange *x, struct answer *a)
{
    const char *info = http_served(x->http)->tokenizer_info;
    if (info)
        (void)ek_buf_puts(&a->body, info);
    else
        answer_fault(
            a, 404, "",
            "The tokenizer's configuration is told with --enable-tokenizer-info-endpoint.");
    return 0;
}

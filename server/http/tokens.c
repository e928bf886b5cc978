/* POST /tokenize and /detokenize. */
#include <errno.h>
#include <string.h>

#include "server/http/complete.h"
#include "server/http/health.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"

static int read_ask(const struct http_served *s, json_t *body, struct openai_ask *a,
                    struct api_error *err)
{
    json_t *messages = json_object_get(body, "messages");
    const json_t *prompt = json_object_get(body, "prompt"),
                 *specials = json_object_get(body, "add_special_tokens"),
                 *generation = json_object_get(body, "add_generation_prompt");
    const json_t *model = json_object_get(body, "model");
    if (openai_model(s, json_string_value(model), err) < 0)
        return -EBADMSG;
    *a = (struct openai_ask){.chat = messages != NULL,
                             .add_specials = specials ? json_is_true(specials) : !messages,
                             .add_generation_prompt = !generation || json_is_true(generation)};
    if (messages) {
        if (!s->chat)
            return api_refuse(err, 400, "messages", "The model has no chat template.");
        a->messages = messages;
        a->tools = json_object_get(body, "tools");
        if (a->tools && !json_is_array(a->tools))
            return api_refuse(err, 400, "tools", "`tools` must be a list.");
        return openai_messages(messages, err);
    }
    if (!json_is_string(prompt))
        return api_refuse(err, 400, "prompt", "`prompt` must be a string.");
    a->prompt = json_string_value(prompt);
    a->prompt_len = json_string_length(prompt);
    return 0;
}

static void put_tokens(const struct http_served *s, const struct token_vec *v, bool strings,
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
    const struct http_served *s = http_served(x->http);
    struct openai_ask ask;
    struct api_error err;
    struct token_vec tokens = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    int r = body ? read_ask(s, body, &ask, &err) : -EBADMSG;
    if (r == 0)
        r = generation_tokens(s, &ask, &tokens, &err);
    if (r < 0)
        answer_error(a, &err);
    else
        put_tokens(s, &tokens, json_is_true(json_object_get(body, "return_token_strs")), &a->body);
    token_vec_done(&tokens);
    json_decref(body);
    return 0;
}

static int decode(const struct http_served *s, const json_t *ids, struct ek_buf *text,
                  struct api_error *err)
{
    struct detok d;
    int r = 0;
    if (!json_is_array(ids))
        return api_refuse(err, 400, "tokens", "`tokens` must be a list of token ids.");
    detok_init(&d, s->tok);
    for (size_t i = 0; i < json_array_size(ids) && r == 0; i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= s->vocab)
            r = api_refuse(err, 400, "tokens", "`tokens[%zu]` must be a token id below %u.", i,
                           s->vocab);
        else if (detok_push(&d, (int32_t)v, text) < 0)
            text->failed = true;
    }
    if (detok_flush(&d, text) < 0)
        text->failed = true;
    detok_done(&d);
    return r;
}

int tokens_detokenize(struct exchange *x, struct answer *a)
{
    struct api_error err;
    struct ek_buf text = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    int r = body ? decode(http_served(x->http), json_object_get(body, "tokens"), &text, &err)
                 : -EBADMSG;
    if (r < 0) {
        answer_error(a, &err);
    } else {
        (void)ek_buf_puts(&a->body, "{\"prompt\":\"");
        (void)ek_buf_json(&a->body, text.data ? text.data : "", text.len);
        (void)ek_buf_puts(&a->body, "\"}");
        a->body.failed = a->body.failed || text.failed;
    }
    ek_buf_done(&text);
    json_decref(body);
    return 0;
}

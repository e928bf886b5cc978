/* POST /tokenize and /detokenize. */
#include <errno.h>
#include <string.h>

#include "server/http/complete.h"
#include "server/http/health.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"

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
    int r = body ? openai_parse(s, API_TOKENIZE, body, &ask, &err) : -EBADMSG;
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
static void decode(const struct http_served *s, const json_t *ids, struct ek_buf *text)
{
    struct detok d;
    detok_init(&d, s->tok);
    for (size_t i = 0; i < json_array_size(ids) && ek_buf_ok(text); i++) {
        if (detok_push(&d, (int32_t)json_integer_value(json_array_get(ids, i)), text) < 0)
            text->failed = true;
    }
    if (detok_flush(&d, text) < 0)
        text->failed = true;
    detok_done(&d);
}

int tokens_detokenize(struct exchange *x, struct answer *a)
{
    struct api_error err;
    struct ek_buf text = {0};
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    const struct http_served *s = http_served(x->http);
    struct openai_ask ask;
    int r = body ? openai_parse(s, API_DETOKENIZE, body, &ask, &err) : -EBADMSG;
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

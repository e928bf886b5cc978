/* One completion, see complete.h. */
#include "server/http/complete.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/http/auth.h"
#include "server/http/inside.h"
#include "server/http/reply.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

static int no_memory(struct api_error *err)
{
    int r = api_refuse(err, 503, "", "The server is out of memory for this request.");
    err->retry_after_s = 1;
    return r;
}

static int render_chat(const struct http_served *s, const struct openai_ask *a, struct ek_buf *text,
                       uint32_t *ret_guard, struct api_error *err)
{
    struct ek_fault fault = {0};
    json_t *context = a->template_args ? json_copy(a->template_args) : json_object();
    int r = context ? 0 : -ENOMEM;
    if (r == 0 && (json_object_set(context, "messages", a->messages) < 0 ||
                   json_object_set_new(context, "add_generation_prompt",
                                       json_boolean(a->add_generation_prompt)) < 0 ||
                   (a->tools && json_object_set(context, "tools", a->tools) < 0)))
        r = -ENOMEM;
    if (r == 0)
        r = chat_render(s->chat, s->tok, context, text, ret_guard, &fault);
    json_decref(context);
    if (r == -ENOMEM)
        return no_memory(err);
    if (r < 0)
        return api_refuse(err, 400, "messages", "The chat template refused the messages: %.400s",
                          fault.msg[0] ? fault.msg : ek_strerror(r));
    return 0;
}

static int copy_ids(const json_t *ids, struct token_vec *out)
{
    size_t n = json_array_size(ids);
    if (out->limit && n > out->limit)
        return -E2BIG;
    out->at = malloc(n * sizeof(*out->at));
    if (!out->at)
        return -ENOMEM;
    out->cap = n;
    for (size_t i = 0; i < n; i++)
        out->at[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    out->count = n;
    return 0;
}

static int refuse_length(const struct http_served *s, size_t prompt, bool more, uint32_t wanted,
                         struct api_error *err)
{
    const char *least = more ? "at least " : "";
    return api_refuse(err, 400, "input_tokens",
                      "This model's maximum context length is %u tokens. However, you requested %u "
                      "output tokens and your prompt contains %s%zu input tokens, for a total of "
                      "%s%zu tokens. Please reduce the length of the input prompt or the number "
                      "of requested output tokens.",
                      s->max_model_len, wanted, least, prompt, least, prompt + wanted);
}

int generation_tokens(const struct http_served *s, const struct openai_ask *a,
                      struct token_vec *out, struct api_error *err)
{
    struct ek_buf text = {0};
    uint32_t guard = 0;
    int r = 0;
    out->limit = s->max_model_len;
    if (a->messages) {
        r = render_chat(s, a, &text, &guard, err);
        if (r < 0)
            goto out;
        const char *t = text.data ? text.data : "";
        r = a->add_specials ? tokenizer_encode_prompt(s->tok, t, text.len, out)
                            : tokenizer_encode(s->tok, t, text.len, true, guard, out);
    } else if (a->prompt_ids) {
        r = copy_ids(a->prompt_ids, out);
    } else {
        r = a->add_specials ? tokenizer_encode_prompt(s->tok, a->prompt, a->prompt_len, out)
                            : tokenizer_encode(s->tok, a->prompt, a->prompt_len, true, 0, out);
    }
    if (r == -E2BIG)
        r = refuse_length(s, (size_t)s->max_model_len + 1, true, a->max_tokens, err);
    else if (r < 0)
        r = no_memory(err);
    else if (out->count == 0)
        r = api_refuse(err, 400, a->chat ? "messages" : "prompt", "The prompt has no tokens.");
out:
    ek_buf_done(&text);
    return r;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void fill_ask(const struct generation *g, const struct token_vec *tokens,
                     const struct generation_origin *from, struct req_ask *q)
{
    const struct http_served *s = g->served;
    const struct openai_ask *a = &g->ask;
    uint32_t room = s->max_model_len - (uint32_t)tokens->count;
    *q = (struct req_ask){
        .prompt = tokens->at,
        .prompt_tokens = (uint32_t)tokens->count,
        .max_new_tokens = a->max_tokens && a->max_tokens < room ? a->max_tokens : room,
        .min_tokens = a->min_tokens,
        .temperature = (float)a->temperature,
        .top_p = (float)a->top_p,
        .min_p = (float)a->min_p,
        .top_k = a->top_k,
        .top = a->logprobs ? a->top : 0,
        .seed = a->seeded      ? a->seed
                : s->seed >= 0 ? mix((uint64_t)s->seed ^ from->chance)
                               : from->chance,
        .priority = a->priority,
        .ignore_eos = a->ignore_eos,
        .cache_salt = from->auth ? auth_salt(from->auth, from->key, a->cache_salt) : a->cache_salt,
        .cache_owner = from->auth ? auth_owner(from->auth, from->key) : 0,
        .arrival_us = from->arrival_us,
        .worker = from->worker};
    for (uint32_t i = 0; i < a->stop_id_count; i++)
        q->stop_ids[q->stop_count++] = a->stop_ids[i];
    for (uint32_t i = 0; i < s->eos_count && !a->ignore_eos; i++)
        q->stop_ids[q->stop_count++] = s->eos[i];
}

static int make_request(struct generation *g, const struct generation_origin *from,
                        struct api_error *err)
{
    struct token_vec tokens = {0};
    struct req_ask q;
    int r = generation_tokens(g->served, &g->ask, &tokens, err);
    if (r < 0)
        goto out;
    if (tokens.count + (g->ask.max_tokens ? g->ask.max_tokens : 1) > g->served->max_model_len) {
        r = refuse_length(g->served, tokens.count, false, g->ask.max_tokens ? g->ask.max_tokens : 1,
                          err);
        goto out;
    }
    fill_ask(g, &tokens, from, &q);
    g->req = request_new(&q);
    r = g->req ? 0 : no_memory(err);
out:
    token_vec_done(&tokens);
    return r;
}

int generation_new(const struct http_served *s, bool chat, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err)
{
    int r;
    struct generation *g = calloc(1, sizeof(*g));
    if (!g) {
        json_decref(body);
        return no_memory(err);
    }
    g->served = s;
    g->body = body;
    g->created_s = from->wall_us / 1000000;
    g->call_key[0] = from->chance ^ from->wall_us;
    for (const char *c = from->request_id; *c; c++)
        g->call_key[1] = mix(g->call_key[1] + (unsigned char)*c);
    (void)snprintf(g->id, sizeof(g->id), "%s-%s", chat ? "chatcmpl" : "cmpl", from->request_id);
    detok_init(&g->detok, s->tok);
    r = openai_parse(s, chat, body, &g->ask, err);
    if (r == 0)
        r = make_request(g, from, err);
    if (r < 0)
        goto out;
    g->sifting = chat && s->tool_calls && g->ask.tools;
    g->detok.stops = g->ask.stops;
    memcpy(g->detok.stop, g->ask.stop, sizeof(g->ask.stop));
    g->detok.include_stop = g->ask.include_stop;
    g->detok.skip_specials = g->ask.skip_specials;
    *ret_gen = g;
    g = NULL;
out:
    generation_free(g);
    return r;
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    request_unref(g->req);
    detok_done(&g->detok);
    ek_buf_done(&g->text);
    ek_buf_done(&g->raw);
    toolcalls_done(&g->calls);
    ek_buf_done(&g->ids);
    ek_buf_done(&g->out);
    for (int i = 0; i < LP_ARRAYS; i++)
        ek_buf_done(&g->lp[i]);
    json_decref(g->body);
    free(g);
}

static bool is_stop_id(const struct request *q, int32_t id)
{
    for (uint32_t i = 0; i < q->ask.stop_count; i++) {
        if (q->ask.stop_ids[i] == id)
            return true;
    }
    return false;
}

/* One token; `ends` = it is the stop token that ended the request, whose text is not shown. */
static void take_token(struct generation *g, uint32_t index, bool ends)
{
    int32_t id = g->req->out[index].id;
    if (g->ask.logprobs)
        reply_add_logprob(g, index);
    if (g->ask.return_token_ids)
        (void)ek_buf_printf(&g->ids, g->ids.len ? ",%d" : "%d", id);
    if (ends && !g->ask.include_stop)
        return;
    int r = detok_push(&g->detok, id, g->sifting ? &g->raw : &g->text);
    if (r < 0)
        g->text.failed = true;
    if (r > 0) {
        g->over = true;
        g->finish = REQ_FIN_STOP;
        g->stop_string = g->detok.hit >= 0 ? g->detok.stop[g->detok.hit] : NULL;
    }
}

/* Takes tool calls out of the new text. */
static void sift(struct generation *g)
{
    int r = ek_buf_ok(&g->raw) ? 0 : -ENOMEM;
    if (r == 0 && g->raw.len)
        r = toolcalls_push(&g->calls, g->raw.data, g->raw.len, &g->text);
    if (r == 0 && g->over)
        r = toolcalls_end(&g->calls, &g->text);
    if (r < 0)
        g->text.failed = true;
    ek_buf_clear(&g->raw);
}

bool generation_pump(struct generation *g, bool *ret_cut)
{
    struct request *q = g->req;
    bool done = atomic_load_explicit(&q->state, memory_order_acquire) == REQ_DONE;
    uint32_t count = atomic_load_explicit(&q->out_count, memory_order_acquire), before = g->seen;
    *ret_cut = false;
    if (g->over)
        return false;
    while (g->seen < count && !g->over) {
        bool last = g->seen + 1 == count, stop = is_stop_id(q, q->out[g->seen].id);
        if (last && stop && !done)
            break; /* whether it ends the request is known with the next token */
        uint32_t index = g->seen++;
        take_token(g, index, last && stop && q->finish == REQ_FIN_STOP);
        *ret_cut = g->over;
    }
    if (done && !g->over) {
        if (detok_flush(&g->detok, g->sifting ? &g->raw : &g->text) < 0)
            g->text.failed = true;
        g->over = true;
        g->finish = q->finish;
    }
    if (g->sifting)
        sift(g);
    return g->over || g->seen > before;
}

int generation_check(const struct generation *g, struct api_error *err)
{
    if (!ek_buf_ok(&g->text) || !ek_buf_ok(&g->lp[0]) || !ek_buf_ok(&g->out))
        return no_memory(err);
    switch (g->finish) {
    case REQ_FIN_NONE:
    case REQ_FIN_STOP:
    case REQ_FIN_LENGTH:
    case REQ_FIN_KINDS: return 0;
    case REQ_FIN_ABORT:
        (void)api_refuse(err, 503, "", "The request was ended by the server.");
        break;
    case REQ_FIN_DEADLINE:
        (void)api_refuse(err, 503, "", "The server is shutting down and its deadline has passed.");
        break;
    case REQ_FIN_ERROR:
        if (g->seen == 0 && (g->req->error == -EBUSY || g->req->error == -ETIMEDOUT))
            (void)api_refuse(err, 429, "",
                             "The request waited in the queue for longer than the deadline.");
        else
            (void)api_refuse(err, 500, "", "The engine could not finish the request: %s.",
                             ek_strerror(g->req->error));
        break;
    }
    err->retry_after_s = err->status == 500 ? 0 : 5;
    return -EBADMSG;
}

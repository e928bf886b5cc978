/*
 * Parses the bytes of a body and checks what several fields together must satisfy (openai.h).
 * Called by server/net for each body.
 */
#include "server/api/openai.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/work.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/served.h"

static bool too_deep(const json_t *v, unsigned depth)
{
    if (!json_is_object(v) && !json_is_array(v))
        return false;
    if (depth == 0)
        return true;
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (too_deep(json_array_get(v, i), depth - 1))
                return true;
        }
        return false;
    }
    /* iteration wants a pointer that is not const, and changes nothing */
    union {
        const json_t *c;
        json_t *v;
    } object = {.c = v};
    const char *key;
    json_t *at;
    json_object_foreach(object.v, key, at)
    {
        if (too_deep(at, depth - 1))
            return true;
    }
    return false;
}

/* What readers leave for one another in a body has keys that begin so: no client sends them. */
static void drop_inner(json_t *body)
{
    const char *key;
    json_t *v;
    void *next;

    json_object_foreach_safe(body, next, key, v)
    {
        if (key[0] == '\1')
            (void)json_object_del(body, key); /* it is there */
    }
}

json_t *openai_load(const char *bytes, size_t len, struct api_error *err)
{
    json_error_t e;
    if (len >= 3 &&
        memcmp(bytes, "\xef\xbb\xbf", 3) == 0) { /* a mark of some editors and clients */
        bytes += 3;
        len -= 3;
    }
    json_t *body = json_loadb(bytes ? bytes : "", len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!body) {
        (void)api_refuse(err, 400, "", "The body is not valid JSON: %.200s (line %d, column %d).",
                         e.text, e.line, e.column);
        return NULL;
    }
    if (!json_is_object(body))
        (void)api_refuse(err, 400, "", "The body must be a JSON object.");
    else if (too_deep(body, OPENAI_DEPTH))
        (void)api_refuse(err, 400, "", "The body is nested deeper than %u levels.", OPENAI_DEPTH);
    else {
        drop_inner(body);
        return body;
    }
    json_decref(body);
    return NULL;
}

bool openai_is_raw(const struct served *s, const json_t *body)
{
    return !s->chat || json_is_true(json_object_get(body, "raw"));
}

static int check_sampling(const struct served *s, struct openai_ask *a, struct api_error *err)
{
    struct ek_sampling *p = &a->sampling;
    if (p->top_p <= 0)
        return api_refuse(err, 400, "top_p", "`top_p` must be above 0 and at most 1, got %g.",
                          (double)p->top_p);
    if (p->typical_p <= 0)
        return api_refuse(err, 400, "typical_p",
                          "`typical_p` must be above 0 and at most 1, got %g.",
                          (double)p->typical_p);
    if (p->repetition <= 0)
        return api_refuse(err, 400, "repetition_penalty",
                          "`repetition_penalty` must be above 0, got %g.", (double)p->repetition);
    if (p->top_k >= s->vocab)
        p->top_k = 0;
    if (p->temperature > 0 && p->temperature < 0.01f)
        p->temperature = 0.01f; /* as vLLM: smaller ones overflow */
    if (a->max_tokens && a->min_tokens > a->max_tokens)
        return api_refuse(err, 400, "min_tokens",
                          "`min_tokens` must be at most max_tokens (%u), got %u.", a->max_tokens,
                          a->min_tokens);
    return 0;
}

static int check_together(const struct served *s, struct openai_ask *a, struct api_error *err)
{
    if (a->continue_final && a->add_generation_prompt)
        return api_refuse(err, 400, "continue_final_message",
                          "`continue_final_message` needs `add_generation_prompt` to be false.");
    if (a->truncate > (int64_t)s->max_model_len)
        return api_refuse(err, 400, "truncate_prompt_tokens",
                          "`truncate_prompt_tokens` must be at most %u, this model's length.",
                          s->max_model_len);
    if (a->suffix && (a->echo || a->truncate))
        return api_refuse(err, 400, a->echo ? "echo" : "truncate_prompt_tokens",
                          "`%s` cannot be used with `suffix`.",
                          a->echo ? "echo" : "truncate_prompt_tokens");
    if ((uint64_t)a->n * a->prompts > OPENAI_CHOICES)
        return api_refuse(err, 400, "n",
                          "%u prompts times `n` %u are %llu answers; at most %u are given at once.",
                          a->prompts, a->n, (unsigned long long)a->n * a->prompts, OPENAI_CHOICES);
    if (!a->chat && a->echo && a->logprobs) {
        a->score = true;
        if (a->prompt_top < a->top)
            a->prompt_top = a->top;
    }
    return 0;
}

uint64_t openai_fuel(size_t body_bytes)
{
    return ek_work_fuel(OPENAI_FUEL, body_bytes, OPENAI_FUEL_BYTE);
}

int openai_parse(const struct served *s, enum openai_api api, json_t *body, struct ek_work *work,
                 struct openai_ask *ret_ask, struct api_error *err)
{
    bool chat = api == API_CHAT || api == API_RESPONSES || api == API_MESSAGES ||
                api == API_OLLAMA_CHAT || (api == API_OLLAMA_TEXT && !openai_is_raw(s, body));
    const struct field_source from = {s, body, work};
    struct openai_ask a = {.api = api,
                           .chat = chat,
                           .model = s->name[0],
                           .stream = api == API_OLLAMA_CHAT || api == API_OLLAMA_TEXT,
                           .n = 1,
                           .thinking = -1,
                           .prompts = 1,
                           .work = work,
                           .skip_specials = true,
                           .finish_form = true,
                           .add_generation_prompt = true,
                           .include_reasoning = true,
                           .keep = api == API_RESPONSES && s->pasts,
                           .add_specials = !chat,
                           .sampling = s->defaults.sampling,
                           .max_tokens = s->defaults.max_tokens};
    if (api == API_PLAIN && !a.max_tokens)
        a.max_tokens = 16; /* OpenAI's default for completions */
    if (api == API_TOKENIZE && field_of(body, "messages"))
        a.add_specials = false;
    int r = fields_read(&from, &a, err);
    if (r == 0 && openai_embeds(api))
        a.max_tokens = 1;
    if (r == 0)
        r = check_sampling(s, &a, err);
    if (r == 0)
        r = check_together(s, &a, err);
    if (r < 0)
        return r;
    a.include_usage = a.include_usage || (a.stream && s->force_usage);
    if (a.no_output)
        a.max_tokens = 1;
    if (api == API_INFILL && a.stream)
        a.return_token_ids = true;
    *ret_ask = a;
    return 0;
}

/* Bodies: their bytes, and what several fields together must satisfy. See openai.h. */
#include "server/api/openai.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/served.h"

int api_refuse(struct api_error *err, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    *err = (struct api_error){.status = status};
    (void)vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    (void)snprintf(err->param, sizeof(err->param), "%s", param ? param : "");
    return -EBADMSG;
}

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
    else
        return body;
    json_decref(body);
    return NULL;
}

int openai_model(const struct http_served *s, const char *name, struct api_error *err)
{
    for (uint32_t i = 0; name && i < s->names; i++) {
        if (strcmp(name, s->name[i]) == 0)
            return 0;
    }
    if (!name || !name[0]) /* whichever is served */
        return 0;
    char served[400] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < s->names && len < sizeof(served); i++)
        len += (size_t)snprintf(served + len, sizeof(served) - len, "%s`%.100s`", i ? ", " : "",
                                s->name[i]);
    return api_refuse(err, 404, "model",
                      "The model `%.64s` does not exist; GET /v1/models lists those that do: %s.",
                      name, served);
}

void openai_ignore(struct openai_ask *a, const char *inside, const char *name)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    static const char more[] = ", ...";
    size_t len = strlen(a->ignored), in = strlen(inside), n = strlen(name);
    bool plain = n > 0 && n <= 64 && strspn(name, fine) == n; /* it is told in a header */
    if (len >= sizeof(more) && strcmp(a->ignored + len + 1 - sizeof(more), more) == 0)
        return;
    for (const char *at = a->ignored; *at; at += strspn(at, ", ")) {
        size_t have = strcspn(at, ",");
        if (have == in + n && memcmp(at, inside, in) == 0 && memcmp(at + in, name, n) == 0)
            return;
        at += have;
    }
    if (!plain || len + 2 + in + n + sizeof(more) > sizeof(a->ignored))
        (void)snprintf(a->ignored + len, sizeof(a->ignored) - len, "%s", more + (len ? 0 : 2));
    else
        (void)snprintf(a->ignored + len, sizeof(a->ignored) - len, "%s%s%s", len ? ", " : "",
                       inside, name);
}

struct openai_prompt openai_prompt(const struct openai_ask *a, uint32_t i)
{
    const json_t *p = a->prompt;
    if (json_is_array(p) && !json_is_integer(json_array_get(p, 0)))
        p = json_array_get(p, i);
    if (json_is_string(p))
        return (struct openai_prompt){json_string_value(p), json_string_length(p), NULL};
    return (struct openai_prompt){NULL, 0, p};
}

static int check_sampling(const struct http_served *s, struct openai_ask *a, struct api_error *err)
{
    if (a->top_p <= 0)
        return api_refuse(err, 400, "top_p", "`top_p` must be above 0 and at most 1, got %g.",
                          a->top_p);
    if (a->typical_p <= 0)
        return api_refuse(err, 400, "typical_p",
                          "`typical_p` must be above 0 and at most 1, got %g.", a->typical_p);
    if (a->repetition <= 0)
        return api_refuse(err, 400, "repetition_penalty",
                          "`repetition_penalty` must be above 0, got %g.", a->repetition);
    if (a->top_k < 0 || a->top_k >= (int64_t)s->vocab)
        a->top_k = 0;
    if (a->temperature > 0 && a->temperature < 0.01)
        a->temperature = 0.01; /* as vLLM: smaller ones overflow */
    if (a->max_tokens && a->min_tokens > a->max_tokens)
        return api_refuse(err, 400, "min_tokens",
                          "`min_tokens` must be at most max_tokens (%u), got %u.", a->max_tokens,
                          a->min_tokens);
    return 0;
}

static int check_together(const struct http_served *s, struct openai_ask *a, struct api_error *err)
{
    if (a->continue_final && a->add_generation_prompt)
        return api_refuse(err, 400, "continue_final_message",
                          "`continue_final_message` needs `add_generation_prompt` to be false.");
    if (a->truncate > (int64_t)s->max_model_len)
        return api_refuse(err, 400, "truncate_prompt_tokens",
                          "`truncate_prompt_tokens` must be at most %u, this model's length.",
                          s->max_model_len);
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

int openai_parse(const struct http_served *s, enum openai_api api, json_t *body,
                 struct openai_ask *ret_ask, struct api_error *err)
{
    bool chat = api == API_CHAT || api == API_RESPONSES || api == API_MESSAGES;
    const struct field_source from = {s, body};
    struct openai_ask a = {.api = api,
                           .chat = chat,
                           .model = s->name[0],
                           .n = 1,
                           .prompts = 1,
                           .skip_specials = true,
                           .finish_form = true,
                           .add_generation_prompt = true,
                           .include_reasoning = true,
                           .add_specials = !chat,
                           .temperature = s->defaults.temperature,
                           .top_p = s->defaults.top_p,
                           .min_p = s->defaults.min_p,
                           .top_k = s->defaults.top_k,
                           .repetition = s->defaults.repetition ? s->defaults.repetition : 1,
                           .typical_p = 1,
                           .max_tokens = s->defaults.max_tokens};
    if (api == API_PLAIN && !a.max_tokens)
        a.max_tokens = 16; /* OpenAI's default for completions */
    if (api == API_TOKENIZE && field_of(body, "messages"))
        a.add_specials = false;
    int r = fields_read(&from, &a, err);
    if (r == 0 && api == API_EMBED)
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
    *ret_ask = a;
    return 0;
}

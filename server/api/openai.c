/* Bodies: their bytes, and what several fields together must satisfy. See openai.h. */
#include "server/api/openai.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/work.h"
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

int openai_model(const struct served *s, const char *name, struct api_error *err)
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

bool openai_is_raw(const struct served *s, const json_t *body)
{
    return !s->chat || json_is_true(json_object_get(body, "raw"));
}

int ollama_model(const struct served *s, const char *name, struct api_error *err)
{
    static const char tag[] = ":latest";
    size_t len = name ? strlen(name) : 0, n = sizeof(tag) - 1;
    bool tagged = len > n && strcmp(name + len - n, tag) == 0;
    for (uint32_t i = 0; tagged && i < s->names; i++) {
        if (strlen(s->name[i]) == len - n && strncmp(name, s->name[i], len - n) == 0)
            return 0;
    }
    return openai_model(s, name, err);
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

int api_refuse_work(const struct ek_work *work, const char *field, struct api_error *err)
{
    struct ek_fault fault = {0};
    int r = ek_work_refuse(work, &fault, field);
    (void)api_refuse(err, r == -EBADMSG ? 400 : 503, field, "`%s` cannot be used: %s.",
                     field[0] ? field : "body", fault.msg);
    err->retry_after_s = r == -EBADMSG ? 0 : 1;
    return -EBADMSG;
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

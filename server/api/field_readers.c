/*
 * Readers of fields that have a shape of their own and belong to no other file; called by fields.c
 * through the table of field_table.c.
 */
#include "server/api/readers.h"

#include <string.h>

#include "common/fnv.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/served.h"

int read_model(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err)
{
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return api_refuse(err, 400, "model", "`model` must be a string without zero bytes.");
    if (json_string_length(v) > 0)
        a->model = json_string_value(v);
    return (openai_is_ollama(a->api) ? served_model_tagged : served_model)(from->served, a->model,
                                                                           err);
}

int read_stream_options(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err)
{
    (void)from;
    if (!json_is_object(v))
        return api_refuse(err, 400, "stream_options", "`stream_options` must be an object.");
    if (!a->stream)
        return api_refuse(err, 400, "stream_options",
                          "`stream_options` may be given only when `stream` is true.");
    int r = field_bool(field_of(v, "include_usage"), "include_usage", &a->include_usage, err);
    if (r == 0)
        r = field_bool(field_of(v, "continuous_usage_stats"), "continuous_usage_stats",
                       &a->continuous_usage, err);
    a->continuous_usage = a->continuous_usage && a->include_usage;
    return r;
}

/* A number for completions, true or false for chats and in Ollama's API. */
int read_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    if (a->chat || openai_is_ollama(a->api))
        return field_bool(v, "logprobs", &a->logprobs, err);
    a->logprobs = !json_is_false(v);
    return a->logprobs ? field_uint(v, "logprobs", 0, from->served->max_logprobs, &a->top, err) : 0;
}

int read_top_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    int r = field_uint(v, "top_logprobs", 0, from->served->max_logprobs, &a->top, err);
    if (r == 0 && a->top > 0 && !a->logprobs)
        r = api_refuse(err, 400, "top_logprobs",
                       "when using `top_logprobs`, `logprobs` must be set to true.");
    return r;
}

/* Without `include` there is nothing that it would be part of. */
int read_responses_top(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    uint32_t top = 0;
    int r = field_uint(v, "top_logprobs", 0, from->served->max_logprobs, &top, err);
    if (r == 0 && !a->logprobs)
        openai_ignore(a, "", "top_logprobs");
    else if (r == 0)
        a->top = top;
    return r;
}

int read_prompt_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    int r = field_uint(v, "prompt_logprobs", 0, from->served->max_logprobs, &a->prompt_top, err);
    if (r == 0 && a->stream)
        r = api_refuse(err, 400, "prompt_logprobs",
                       "`prompt_logprobs` are not available when `stream` is true.");
    a->prompt_logprobs = a->score = true;
    return r;
}

/* As many as are given, or one: nothing to choose from. */
int read_best_of(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err)
{
    (void)from;
    if (!json_is_number(v))
        return api_refuse(err, 400, "best_of", "`best_of` must be a number.");
    double made = json_number_value(v);
    if (made == 1 || made == a->n)
        return 0;
    return api_refuse(err, 400, "best_of",
                      "`best_of` other than 1 or `n` is not supported by this server; use n.");
}

int read_seed(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err)
{
    (void)from;
    int64_t seed = 0;
    int r = field_whole(v, "seed", INT64_MIN, INT64_MAX, &seed, err);
    a->seeded = seed != -1; /* by chance, as other servers have it */
    a->sampling.seed = (uint64_t)seed;
    return r;
}

int read_top_k(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err)
{
    (void)from;
    int64_t k = 0;
    int r = field_whole(v, "top_k", -1, INT32_MAX, &k, err);
    a->sampling.top_k = k > 0 ? (uint32_t)k : 0;
    return r;
}

/* 0 only to see the prompt again. */
int read_max_tokens(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    bool echo = !a->chat && json_is_true(json_object_get(from->body, "echo"));
    int r = field_uint(v, "max_tokens", echo ? 0 : 1, INT32_MAX, &a->max_tokens, err);
    a->no_output = r == 0 && a->max_tokens == 0;
    return r;
}

int read_needed_max(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    (void)from;
    if (!v)
        return api_refuse(err, 400, "max_tokens", "`max_tokens` is missing.");
    return field_uint(v, "max_tokens", 1, INT32_MAX, &a->max_tokens, err);
}

int read_truncate(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    (void)from;
    int r = field_whole(v, "truncate_prompt_tokens", -1, INT32_MAX, &a->truncate, err);
    if (r == 0 && a->truncate == 0)
        r = api_refuse(err, 400, "truncate_prompt_tokens",
                       "`truncate_prompt_tokens` must be -1 or at least 1.");
    return r;
}

int read_salt(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err)
{
    (void)from;
    if (!json_is_string(v) || json_string_length(v) == 0)
        return api_refuse(err, 400, "cache_salt", "`cache_salt` must be a string, not empty.");
    /* only to keep the caches of salts apart */
    a->cache_salt = ek_fnv(EK_FNV_BEGIN, json_string_value(v), json_string_length(v));
    return 0;
}

int read_template_args(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    (void)from;
    if (!json_is_object(v))
        return api_refuse(err, 400, "chat_template_kwargs",
                          "`chat_template_kwargs` must be an object.");
    a->template_args = v;
    return 0;
}

/* How much a model thinks, as templates know it: passed on, but gpt-oss has three words for it. */
int read_effort(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const char *said = json_string_value(v), *field = "reasoning_effort";
    bool harmony = from->served->think == THINK_HARMONY;
    size_t i = 0;
    if (said && strcmp(said, "max") == 0)
        said = known[5]; /* Anthropic's word */
    while (said && i < 6 && strcmp(said, known[i]) != 0)
        i++;
    if (!said || i == 6)
        return api_refuse(err, 400, field,
                          "`reasoning_effort` must be none, minimal, low, medium, high or xhigh.");
    if (harmony && i == 0)
        return api_refuse(err, 400, field,
                          "`reasoning_effort`: this model always thinks; use low, medium or high.");
    a->effort = !harmony ? said : i == 1 ? "low" : i == 5 ? "high" : said;
    return 0;
}

/* {"effort": ...} of responses. */
int read_reasoning(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err)
{
    json_t *effort = field_of(v, "effort");
    if (!json_is_object(v))
        return api_refuse(err, 400, "reasoning", "`reasoning` must be an object.");
    return effort ? read_effort(from, effort, a, err) : 0;
}

/* The most that it may think, where the server can tell when that is over. */
static int read_budget(const struct field_source *from, json_t *v, const char *field,
                       struct openai_ask *a, struct api_error *err)
{
    int r = field_whole(v, field, -1, INT32_MAX, &a->thinking, err);
    if (r == 0 && a->thinking >= 0 && !reasoning_has_marks(from->served->think))
        return api_refuse(err, 400, field,
                          from->served->think == THINK_NONE
                              ? "`%s`: this model has no thinking that the server knows "
                                "(--reasoning-parser)."
                              : "`%s`: this model's thinking has no bound; use reasoning_effort.",
                          field);
    return r;
}

int read_thinking_budget(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    return read_budget(from, v, "thinking_token_budget", a, err);
}

int read_reasoning_budget(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err)
{
    return read_budget(from, v, "reasoning_budget", a, err);
}

/* {"type": "enabled", "budget_tokens": ...} of messages. Clients send it whatever the model. */
int read_thinking(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    json_t *most = json_object_get(v, "budget_tokens");
    if (!json_is_object(v))
        return api_refuse(err, 400, "thinking", "`thinking` must be an object.");
    if (most && reasoning_has_marks(from->served->think))
        return read_budget(from, most, "thinking.budget_tokens", a, err);
    openai_ignore(a, "", "thinking");
    return 0;
}

int read_documents(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err)
{
    (void)from;
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (!json_is_object(json_array_get(v, i)))
            return api_refuse(err, 400, "documents", "`documents[%zu]` must be an object.", i);
    }
    if (!json_is_array(v))
        return api_refuse(err, 400, "documents", "`documents` must be a list of objects.");
    a->documents = v;
    return 0;
}

int read_parallel(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    (void)from;
    bool parallel = true;
    int r = field_bool(v, "parallel_tool_calls", &parallel, err);
    a->one_call = !parallel;
    return r;
}

int read_encoding(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    (void)from;
    const char *name = json_string_value(v);
    if (!name || (strcmp(name, "float") != 0 && strcmp(name, "base64") != 0))
        return api_refuse(err, 400, "encoding_format",
                          "`encoding_format` must be float or base64.");
    a->base64 = name[0] == 'b';
    return 0;
}

int read_dimensions(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    (void)a;
    int64_t n = from->served->hidden;
    int r = field_whole(v, "dimensions", 1, INT32_MAX, &n, err);
    if (r == 0 && n != (int64_t)from->served->hidden)
        r = api_refuse(err, 400, "dimensions",
                       "`dimensions` other than %u is not supported: this model's states are not "
                       "trained to be cut.",
                       from->served->hidden);
    return r;
}

int read_activation(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    (void)from;
    bool on = true;
    int r = field_bool(v, "use_activation", &on, err);
    a->as_it_is = !on;
    return r;
}

int read_return_documents(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err)
{
    (void)from;
    bool on = true;
    int r = field_bool(v, "return_documents", &on, err);
    a->no_documents = !on;
    return r;
}

/*
 * Reading OpenAI request bodies. One function per group of fields; the fields that are known but
 * not offered are a table.
 */
#include "server/http/openai.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/http/inside.h"

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

/* Reading one field: absent and null are the same. The readers return -EBADMSG with err, or 0. */
static json_t *field(const json_t *body, const char *name)
{
    json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

static int read_bool(const json_t *body, const char *name, bool *at, struct api_error *err)
{
    const json_t *v = field(body, name);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return api_refuse(err, 400, name, "`%s` must be true or false.", name);
    *at = json_is_true(v);
    return 0;
}

static int read_real(const json_t *body, const char *name, double min, double max, double *at,
                     struct api_error *err)
{
    const json_t *v = field(body, name);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return api_refuse(err, 400, name, "`%s` must be a number.", name);
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return api_refuse(err, 400, name, "`%s` must be between %g and %g, got %g.", name, min, max,
                          d);
    *at = d;
    return 0;
}

/* An integer; 5.0 counts as one. */
static int read_whole(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *at,
                      struct api_error *err)
{
    const json_t *v = field(body, name);
    if (!v)
        return 0;
    double d = json_number_value(v);
    bool whole = json_is_integer(v) || (json_is_real(v) && d == floor(d) && fabs(d) < 9e15);
    if (!whole)
        return api_refuse(err, 400, name, "`%s` must be an integer.", name);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    if (i < min || i > max)
        return api_refuse(err, 400, name, "`%s` must be between %lld and %lld, got %lld.", name,
                          (long long)min, (long long)max, (long long)i);
    *at = i;
    return 0;
}

static int read_count(const json_t *body, const char *name, uint32_t min, uint32_t max,
                      uint32_t *at, struct api_error *err)
{
    int64_t v = *at;
    int r = read_whole(body, name, min, max, &v, err);
    *at = (uint32_t)v;
    return r;
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

/* Known fields that are not offered: refused unless neutral. */
enum neutral { BE_NUMBER, BE_FALSE, BE_EMPTY };
static const struct {
    const char *name;
    enum neutral how;
    double number;
    const char *instead;
} not_offered[] = {
    {"n", BE_NUMBER, 1, "send one request per choice"},
    {"best_of", BE_NUMBER, 1, "leave it out"},
    {"frequency_penalty", BE_NUMBER, 0, "leave it out"},
    {"presence_penalty", BE_NUMBER, 0, "leave it out"},
    {"repetition_penalty", BE_NUMBER, 1, "leave it out"},
    {"typical_p", BE_NUMBER, 1, "use top_p"},
    {"length_penalty", BE_NUMBER, 1, "leave it out"},
    {"logit_bias", BE_EMPTY, 0, "leave it out"},
    {"use_beam_search", BE_FALSE, 0, "leave it out"},
    {"echo", BE_FALSE, 0, "leave it out"},
    {"suffix", BE_EMPTY, 0, "leave it out"},
    {"prompt_logprobs", BE_EMPTY, 0, "leave it out"},
    {"prompt_embeds", BE_EMPTY, 0, "send text or token ids"},
    {"allowed_token_ids", BE_EMPTY, 0, "leave it out"},
    {"bad_words", BE_EMPTY, 0, "leave it out"},
    {"logprob_token_ids", BE_EMPTY, 0, "leave it out"},
    {"truncate_prompt_tokens", BE_EMPTY, 0, "shorten the prompt"},
    {"continue_final_message", BE_FALSE, 0, "leave it out"},
    {"chat_template", BE_EMPTY, 0, "start the server with --chat-template"},
    {"documents", BE_EMPTY, 0, "put them into a message"},
    {"structured_outputs", BE_EMPTY, 0, "leave it out"},
    {"guided_json", BE_EMPTY, 0, "leave it out"},
    {"guided_regex", BE_EMPTY, 0, "leave it out"},
    {"guided_choice", BE_EMPTY, 0, "leave it out"},
    {"guided_grammar", BE_EMPTY, 0, "leave it out"},
    {"functions", BE_EMPTY, 0, "use tools"},
    {"audio", BE_EMPTY, 0, "leave it out"},
};

static bool is_neutral(const json_t *v, enum neutral how, double number)
{
    switch (how) {
    case BE_NUMBER: return json_is_number(v) && json_number_value(v) == number;
    case BE_FALSE: return json_is_false(v);
    case BE_EMPTY:
        return (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    }
    return false;
}

static int refuse_not_offered(const json_t *body, struct api_error *err)
{
    for (size_t i = 0; i < sizeof(not_offered) / sizeof(not_offered[0]); i++) {
        const char *name = not_offered[i].name;
        const json_t *v = field(body, name);
        if (!v || is_neutral(v, not_offered[i].how, not_offered[i].number))
            continue;
        if (not_offered[i].how == BE_NUMBER && !json_is_number(v))
            return api_refuse(err, 400, name, "`%s` must be a number.", name);
        if (not_offered[i].how == BE_NUMBER)
            return api_refuse(err, 400, name,
                              "`%s` other than %g is not supported by this server; %s.", name,
                              not_offered[i].number, not_offered[i].instead);
        return api_refuse(err, 400, name, "`%s` is not supported by this server; %s.", name,
                          not_offered[i].instead);
    }
    const json_t *format = field(body, "response_format");
    if (!format)
        return 0;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type)
        return api_refuse(err, 400, "response_format", "`response_format` must have a `type`.");
    if (strcmp(type, "text") != 0)
        return api_refuse(err, 400, "response_format",
                          "`response_format` of type %.40s is not supported by this server; use "
                          "text.",
                          type);
    return 0;
}

int openai_model(const struct http_served *s, const char *name, struct api_error *err)
{
    for (uint32_t i = 0; name && i < s->names; i++) {
        if (strcmp(name, s->name[i]) == 0)
            return 0;
    }
    if (!name)
        return 0;
    return api_refuse(err, 404, "model", "The model `%.200s` does not exist.", name);
}

static int read_model(const struct http_served *s, const json_t *body, struct openai_ask *a,
                      struct api_error *err)
{
    const json_t *v = field(body, "model");
    if (v && !json_is_string(v))
        return api_refuse(err, 400, "model", "`model` must be a string.");
    int r = openai_model(s, v ? json_string_value(v) : NULL, err);
    a->model = v ? json_string_value(v) : s->name[0];
    return r;
}

static int read_sampling(const struct http_served *s, const json_t *body, struct openai_ask *a,
                         struct api_error *err)
{
    int64_t top_k = a->top_k, seed = 0, priority = 0;
    int r = read_real(body, "temperature", 0, 100, &a->temperature, err);
    if (r == 0)
        r = read_real(body, "top_p", 0, 1, &a->top_p, err);
    if (r == 0 && a->top_p <= 0)
        r = api_refuse(err, 400, "top_p", "`top_p` must be above 0 and at most 1, got %g.",
                       a->top_p);
    if (r == 0)
        r = read_real(body, "min_p", 0, 1, &a->min_p, err);
    if (r == 0)
        r = read_whole(body, "top_k", -1, INT32_MAX, &top_k, err);
    a->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    if (a->top_k >= s->vocab)
        a->top_k = 0;
    if (a->temperature > 0 && a->temperature < 0.01)
        a->temperature = 0.01; /* as vLLM: smaller ones overflow */
    a->seeded = field(body, "seed") != NULL;
    if (r == 0)
        r = read_whole(body, "seed", INT64_MIN, INT64_MAX, &seed, err);
    a->seed = (uint64_t)seed;
    if (r == 0)
        r = read_whole(body, "priority", INT32_MIN, INT32_MAX, &priority, err);
    a->priority = (int32_t)priority;
    if (r == 0 && priority != 0 && !s->priority_policy)
        r = api_refuse(err, 400, "priority",
                       "`priority` needs a server started with --scheduling-policy priority.");
    return r;
}

static int read_lengths(const json_t *body, struct openai_ask *a, struct api_error *err)
{
    const uint32_t most = INT32_MAX;
    int r = read_count(body, "max_tokens", 1, most, &a->max_tokens, err);
    if (r == 0 && a->chat)
        r = read_count(body, "max_completion_tokens", 1, most, &a->max_tokens, err);
    if (r == 0)
        r = read_count(body, "min_tokens", 0, most, &a->min_tokens, err);
    if (r == 0 && a->max_tokens && a->min_tokens > a->max_tokens)
        r = api_refuse(err, 400, "min_tokens",
                       "`min_tokens` must be at most max_tokens (%u), got %u.", a->max_tokens,
                       a->min_tokens);
    return r;
}

static int add_stop(struct openai_ask *a, const json_t *v, struct api_error *err)
{
    if (!json_is_string(v))
        return api_refuse(err, 400, "stop", "`stop` must be a string or a list of strings.");
    size_t len = json_string_length(v);
    if (len == 0)
        return api_refuse(err, 400, "stop", "`stop` must not contain an empty string.");
    if (len > OPENAI_STOP_LEN || strlen(json_string_value(v)) != len)
        return api_refuse(err, 400, "stop",
                          "`stop` strings must be at most %u bytes and hold no NUL.",
                          OPENAI_STOP_LEN);
    a->stop[a->stops++] = json_string_value(v);
    return 0;
}

static int read_stops(const struct http_served *s, const json_t *body, struct openai_ask *a,
                      struct api_error *err)
{
    const json_t *v = field(body, "stop"), *ids = field(body, "stop_token_ids");
    size_t n = json_array_size(v);
    if (v && !json_is_array(v)) {
        if (json_is_string(v) && json_string_length(v) == 0)
            v = NULL; /* OpenAI's clients send "" for none */
        else if (add_stop(a, v, err) < 0)
            return -EBADMSG;
    }
    if (n > DETOK_STOPS)
        return api_refuse(err, 400, "stop", "`stop` may hold at most %u strings, got %zu.",
                          DETOK_STOPS, n);
    for (size_t i = 0; i < n; i++) {
        if (add_stop(a, json_array_get(v, i), err) < 0)
            return -EBADMSG;
    }
    n = json_array_size(ids);
    const uint32_t most = REQ_STOP_IDS - HTTP_EOS_MOST;
    if (ids && (!json_is_array(ids) || n > most))
        return api_refuse(err, 400, "stop_token_ids",
                          "`stop_token_ids` must be a list of at most %u integers.", most);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= s->vocab)
            return api_refuse(err, 400, "stop_token_ids",
                              "`stop_token_ids[%zu]` must be a token id below %u.", i, s->vocab);
        a->stop_ids[a->stop_id_count++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

static int read_stream(const json_t *body, struct openai_ask *a, struct api_error *err)
{
    const json_t *o = field(body, "stream_options");
    int r = read_bool(body, "stream", &a->stream, err);
    if (r < 0 || !o)
        return r;
    if (!json_is_object(o))
        return api_refuse(err, 400, "stream_options", "`stream_options` must be an object.");
    if (!a->stream)
        return api_refuse(err, 400, "stream_options",
                          "`stream_options` may be given only when `stream` is true.");
    r = read_bool(o, "include_usage", &a->include_usage, err);
    if (r == 0)
        r = read_bool(o, "continuous_usage_stats", &a->continuous_usage, err);
    a->continuous_usage = a->continuous_usage && a->include_usage;
    return r;
}

static int read_logprobs(const struct http_served *s, const json_t *body, struct openai_ask *a,
                         struct api_error *err)
{
    int r;
    if (!a->chat) {
        a->logprobs = field(body, "logprobs") && !json_is_false(field(body, "logprobs"));
        return a->logprobs ? read_count(body, "logprobs", 0, s->max_logprobs, &a->top, err) : 0;
    }
    r = read_bool(body, "logprobs", &a->logprobs, err);
    if (r == 0)
        r = read_count(body, "top_logprobs", 0, s->max_logprobs, &a->top, err);
    if (r == 0 && a->top > 0 && !a->logprobs)
        r = api_refuse(err, 400, "top_logprobs",
                       "when using `top_logprobs`, `logprobs` must be set to true.");
    return r;
}

static int read_switches(const json_t *body, struct openai_ask *a, struct api_error *err)
{
    const struct {
        const char *name;
        bool *at;
    } known[] = {{"ignore_eos", &a->ignore_eos},
                 {"skip_special_tokens", &a->skip_specials},
                 {"include_stop_str_in_output", &a->include_stop},
                 {"add_generation_prompt", &a->add_generation_prompt},
                 {"add_special_tokens", &a->add_specials},
                 {"return_token_ids", &a->return_token_ids}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (read_bool(body, known[i].name, known[i].at, err) < 0)
            return -EBADMSG;
    }
    const json_t *salt = field(body, "cache_salt");
    if (salt && (!json_is_string(salt) || json_string_length(salt) == 0))
        return api_refuse(err, 400, "cache_salt", "`cache_salt` must be a string, not empty.");
    if (salt) { /* FNV-1a: only to keep the caches of salts apart */
        a->cache_salt = 14695981039346656037ull;
        for (size_t i = 0; i < json_string_length(salt); i++)
            a->cache_salt =
                (a->cache_salt ^ (unsigned char)json_string_value(salt)[i]) * 1099511628211ull;
    }
    return 0;
}

/* Text parts of a content list become one string, as templates that know strings expect. */
static int join_parts(json_t *message, const json_t *parts, size_t at, struct api_error *err)
{
    struct ek_buf text = {0};
    int r = 0;
    for (size_t i = 0; i < json_array_size(parts) && r == 0; i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *t = json_is_string(part) ? part : json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "text") != 0)
            r = api_refuse(err, 400, "messages",
                           "`messages[%zu].content[%zu]`: this model takes text, not %.40s.", at, i,
                           type);
        else if (!json_is_string(t))
            r = api_refuse(err, 400, "messages",
                           "`messages[%zu].content[%zu]` must be a text part.", at, i);
        else {
            if (i > 0)
                (void)ek_buf_puts(&text, "\n");
            (void)ek_buf_add(&text, json_string_value(t), json_string_length(t));
        }
    }
    if (r == 0) {
        json_t *joined =
            ek_buf_ok(&text) ? json_stringn_nocheck(text.data ? text.data : "", text.len) : NULL;
        if (json_object_set_new(message, "content", joined) < 0)
            r = api_refuse(err, 503, "", "The server is out of memory.");
    }
    ek_buf_done(&text);
    return r;
}

/* Templates want the arguments of a call as an object, clients send them as a string. */
static int read_calls(json_t *message, size_t at, struct api_error *err)
{
    json_t *calls = field(message, "tool_calls");
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return api_refuse(err, 400, "messages", "`messages[%zu].tool_calls` must be a list.", at);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *fn = json_object_get(json_array_get(calls, i), "function");
        const json_t *args = json_object_get(fn, "arguments");
        if (!json_is_object(fn) || !json_is_string(json_object_get(fn, "name")))
            return api_refuse(err, 400, "messages",
                              "`messages[%zu].tool_calls[%zu].function` must have a name.", at, i);
        if (!json_is_string(args))
            continue;
        json_t *parsed = json_loadb(json_string_value(args), json_string_length(args), 0, NULL);
        if (json_is_object(parsed) && !too_deep(parsed, OPENAI_DEPTH))
            (void)json_object_set(fn, "arguments", parsed);
        json_decref(parsed);
    }
    return 0;
}

int openai_messages(json_t *messages, struct api_error *err)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    size_t n = json_array_size(messages);
    if (!json_is_array(messages) || n == 0)
        return api_refuse(err, 400, "messages", "`messages` must be a list, not empty.");
    if (n > OPENAI_MESSAGES)
        return api_refuse(err, 400, "messages", "`messages` may hold at most %u, got %zu.",
                          OPENAI_MESSAGES, n);
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(messages, i), *content = field(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        size_t k = 0;
        while (role && k < 6 && strcmp(role, roles[k]) != 0)
            k++;
        if (!json_is_object(m) || !role || k == 6)
            return api_refuse(err, 400, "messages",
                              "`messages[%zu].role` must be system, developer, user, assistant or "
                              "tool.",
                              i);
        if (!content && strcmp(role, "assistant") != 0)
            return api_refuse(err, 400, "messages", "`messages[%zu].content` is missing.", i);
        if (content && !json_is_string(content) && !json_is_array(content))
            return api_refuse(err, 400, "messages",
                              "`messages[%zu].content` must be a string or a list of parts.", i);
        if (json_is_array(content) && join_parts(m, content, i, err) < 0)
            return -EBADMSG;
        if (read_calls(m, i, err) < 0)
            return -EBADMSG;
    }
    return 0;
}

static int read_tools(const json_t *body, struct openai_ask *a, struct api_error *err)
{
    json_t *tools = field(body, "tools"), *choice = field(body, "tool_choice");
    if (tools && (!json_is_array(tools) || json_array_size(tools) == 0))
        return api_refuse(err, 400, "tools", "`tools` must be a list, not empty.");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *fn = json_object_get(json_array_get(tools, i), "function");
        if (!json_is_string(json_object_get(fn, "name")))
            return api_refuse(err, 400, "tools", "`tools[%zu].function.name` must be a string.", i);
    }
    const char *how = json_string_value(choice);
    if (choice && !tools && !(how && strcmp(how, "none") == 0))
        return api_refuse(err, 400, "tool_choice", "`tool_choice` needs `tools`.");
    if (choice && !(how && (strcmp(how, "auto") == 0 || strcmp(how, "none") == 0)))
        return api_refuse(err, 400, "tool_choice",
                          "`tool_choice` must be auto or none; forced calls are not supported by "
                          "this server.");
    a->tools = how && strcmp(how, "none") == 0 ? NULL : tools;
    return 0;
}

static int read_chat(const struct http_served *s, json_t *body, struct openai_ask *a,
                     struct api_error *err)
{
    if (!s->chat)
        return api_refuse(err, 400, "messages",
                          "The model has no chat template; start the server with --chat-template "
                          "FILE or use /v1/completions.");
    a->messages = field(body, "messages");
    a->template_args = field(body, "chat_template_kwargs");
    if (a->template_args && !json_is_object(a->template_args))
        return api_refuse(err, 400, "chat_template_kwargs",
                          "`chat_template_kwargs` must be an object.");
    int r = openai_messages(a->messages, err);
    return r < 0 ? r : read_tools(body, a, err);
}

static int read_prompt(const struct http_served *s, const json_t *body, struct openai_ask *a,
                       struct api_error *err)
{
    const json_t *p = field(body, "prompt");
    if (!p)
        return api_refuse(err, 400, "prompt", "`prompt` is missing.");
    if (json_is_array(p) && json_array_size(p) == 0)
        return api_refuse(err, 400, "prompt", "`prompt` must not be empty.");
    if (json_is_array(p) && !json_is_integer(json_array_get(p, 0))) {
        if (json_array_size(p) > 1)
            return api_refuse(err, 400, "prompt",
                              "`prompt` holds %zu prompts; this server takes one per request.",
                              json_array_size(p));
        p = json_array_get(p, 0);
    }
    if (json_is_string(p)) {
        a->prompt = json_string_value(p);
        a->prompt_len = json_string_length(p);
        if (a->prompt_len == 0)
            return api_refuse(err, 400, "prompt", "`prompt` must not be empty.");
        return 0;
    }
    if (!json_is_array(p) || json_array_size(p) == 0)
        return api_refuse(err, 400, "prompt", "`prompt` must be a string or a list of token ids.");
    for (size_t i = 0; i < json_array_size(p); i++) {
        const json_t *id = json_array_get(p, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= s->vocab)
            return api_refuse(err, 400, "prompt", "`prompt[%zu]` must be a token id below %u.", i,
                              s->vocab);
    }
    a->prompt_ids = p;
    return 0;
}

int openai_parse(const struct http_served *s, bool chat, json_t *body, struct openai_ask *ret_ask,
                 struct api_error *err)
{
    struct openai_ask a = {.chat = chat,
                           .skip_specials = true,
                           .add_generation_prompt = true,
                           .add_specials = !chat,
                           .temperature = s->defaults.temperature,
                           .top_p = s->defaults.top_p,
                           .min_p = s->defaults.min_p,
                           .top_k = s->defaults.top_k,
                           .max_tokens = s->defaults.max_tokens};
    if (!chat && !a.max_tokens)
        a.max_tokens = 16; /* OpenAI's default for completions */
    int r = read_model(s, body, &a, err);
    if (r == 0)
        r = chat ? read_chat(s, body, &a, err) : read_prompt(s, body, &a, err);
    if (r == 0)
        r = refuse_not_offered(body, err);
    if (r == 0)
        r = read_sampling(s, body, &a, err);
    if (r == 0)
        r = read_lengths(body, &a, err);
    if (r == 0)
        r = read_stops(s, body, &a, err);
    if (r == 0)
        r = read_stream(body, &a, err);
    if (r == 0)
        r = read_logprobs(s, body, &a, err);
    if (r == 0)
        r = read_switches(body, &a, err);
    if (r == 0) {
        a.include_usage = a.include_usage || (a.stream && s->force_usage);
        *ret_ask = a;
    }
    return r;
}

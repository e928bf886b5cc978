/*
 * Reads fields that are lists: prompts in all their forms, stops, biases. Called through rows of
 * the table in fields.c, and by anthropic_in.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"
#include "server/api/served.h"

static int read_one_prompt(const struct served *s, const json_t *p, const char *name,
                           struct api_error *err)
{
    if (json_is_string(p) && json_string_length(p) > 0)
        return 0;
    if (!json_is_array(p) || json_array_size(p) == 0)
        return api_refuse(err, 400, name,
                          "`%s` must be text or token ids or a list of such, and not empty.", name);
    return field_ids(s, p, name, err);
}

static int read_prompts(const struct served *s, json_t *v, const char *name, struct openai_ask *a,
                        struct api_error *err)
{
    const json_t *first = json_array_get(v, 0);
    if (!v)
        return api_refuse(err, 400, name, "`%s` is missing.", name);
    a->prompt = v;
    if (!json_is_string(first) && !json_is_array(first))
        return read_one_prompt(s, v, name, err);
    if (json_array_size(v) > OPENAI_CHOICES)
        return api_refuse(err, 400, name, "`%s` may hold at most %u, got %zu.", name,
                          OPENAI_CHOICES, json_array_size(v));
    a->prompts = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < a->prompts; i++) {
        if (read_one_prompt(s, json_array_get(v, i), name, err) < 0)
            return -EBADMSG;
    }
    return 0;
}

int read_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err)
{
    bool gap = json_string_length(field_of(from->body, "suffix")) > 0;
    if (a->api == API_PLAIN && gap && json_is_string(v) && json_string_length(v) == 0) {
        a->prompt = v; /* nothing comes before it */
        return 0;
    }
    if (a->api == API_PLAIN)
        return read_prompts(from->served, v, "prompt", a, err);
    if (a->messages)
        return 0; /* these are what is to be tokenised */
    if (!json_is_string(v))
        return api_refuse(err, 400, "prompt", "`prompt` must be a string.");
    a->prompt = v;
    return 0;
}

int read_input(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err)
{
    return read_prompts(from->served, v, "input", a, err);
}

int read_tokens(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err)
{
    if (!json_is_array(v))
        return api_refuse(err, 400, "tokens", "`tokens` must be a list of token ids.");
    a->tokens = v;
    return field_ids(from->served, v, "tokens", err);
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
    if (a->stops == DETOK_STOPS)
        return api_refuse(err, 400, "stop", "`stop` may hold at most %u strings.", DETOK_STOPS);
    a->stop[a->stops++] = json_string_value(v);
    return 0;
}

int read_stop(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err)
{
    size_t n = json_array_size(v);
    (void)from;
    if (json_is_string(v) && json_string_length(v) == 0)
        return 0; /* OpenAI's clients send "" for none */
    if (!json_is_array(v))
        return add_stop(a, v, err);
    if (n > DETOK_STOPS)
        return api_refuse(err, 400, "stop", "`stop` may hold at most %u strings, got %zu.",
                          DETOK_STOPS, n);
    for (size_t i = 0; i < n; i++) {
        if (add_stop(a, json_array_get(v, i), err) < 0)
            return -EBADMSG;
    }
    return 0;
}

int read_stop_ids(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    const uint32_t most = REQ_STOP_IDS - HTTP_EOS_MOST;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > most)
        return api_refuse(err, 400, "stop_token_ids",
                          "`stop_token_ids` must be a list of at most %u integers.", most);
    if (field_ids(from->served, v, "stop_token_ids", err) < 0)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++)
        a->stop_ids[a->stop_id_count++] = (int32_t)json_integer_value(json_array_get(v, i));
    return 0;
}

int read_logit_bias(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    const char *key;
    json_t *bias;
    if (!json_is_object(v) || json_object_size(v) > EK_BIAS_MOST)
        return api_refuse(err, 400, "logit_bias",
                          "`logit_bias` must be an object of at most %u token ids and numbers.",
                          EK_BIAS_MOST);
    json_object_foreach(v, key, bias)
    {
        char *end = NULL;
        unsigned long id = strtoul(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= from->served->vocab)
            return api_refuse(err, 400, "logit_bias",
                              "`logit_bias` holds %.40s, which is no token id below %u.", key,
                              from->served->vocab);
        double d = json_number_value(bias);
        if (!json_is_number(bias) || !(d >= -100 && d <= 100))
            return api_refuse(err, 400, "logit_bias",
                              "`logit_bias` of token %.40s must be a number from -100 to 100.",
                              key);
    }
    a->logit_bias = v;
    return 0;
}

int read_bad_words(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err)
{
    size_t n = json_array_size(v);
    (void)from;
    if (!json_is_array(v) || n > OPENAI_BAD_WORDS)
        return api_refuse(err, 400, "bad_words",
                          "`bad_words` must be a list of at most %u strings.", OPENAI_BAD_WORDS);
    for (size_t i = 0; i < n; i++) {
        size_t len = json_string_length(json_array_get(v, i));
        if (len == 0 || len > OPENAI_BAD_WORD_LEN)
            return api_refuse(err, 400, "bad_words",
                              "`bad_words[%zu]` must be a string of 1 to %u bytes.", i,
                              OPENAI_BAD_WORD_LEN);
    }
    a->bad_words = v;
    return 0;
}

int read_allowed_ids(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err)
{
    if (!json_is_array(v) || json_array_size(v) == 0)
        return api_refuse(err, 400, "allowed_token_ids",
                          "`allowed_token_ids` must be a list of token ids, not empty.");
    a->allowed_ids = v;
    return field_ids(from->served, v, "allowed_token_ids", err);
}

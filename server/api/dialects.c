/*
 * Readers of fields that other servers' clients send. Called through rows of the table in fields.c
 * (dialect_rows.h).
 */
#include <errno.h>
#include <string.h>

#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"

/* llama.cpp's clients send "" for none. */
int read_gbnf(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err)
{
    (void)from;
    if (json_is_string(v) && json_string_length(v) == 0)
        return 0;
    return form_text_of(a, "grammar", GRAMMAR_EBNF, v, err);
}

int read_ollama_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    const char *word = json_string_value(v);
    (void)from;
    if (word && word[0] == '\0')
        return 0;
    if (word && strcmp(word, "json") == 0)
        return form_json(a, "format", err);
    if (!json_is_object(v))
        return api_refuse(err, 400, "format", "`format` must be json or a JSON schema.");
    return form_schema(a, "format", v, err);
}

/* {"type": "json_schema", "schema": {...}} */
static int read_anthropic_format(json_t *v, const char *field, struct openai_ask *a,
                                 struct api_error *err)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *schema = field_of(v, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !schema)
        return api_refuse(err, 400, field, "`%s` must be of type json_schema and have a schema.",
                          strcmp(field, "output_config") == 0 ? "output_config.format" : field);
    return form_schema(a, field, schema, err);
}

int read_output_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    (void)from;
    return read_anthropic_format(v, "output_format", a, err);
}

int read_output_config(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    const char *key;
    json_t *at;
    if (!json_is_object(v))
        return api_refuse(err, 400, "output_config", "`output_config` must be an object.");
    json_object_foreach(v, key, at)
    {
        int r = 0;
        if (json_is_null(at))
            continue;
        if (strcmp(key, "format") == 0)
            r = read_anthropic_format(at, "output_config", a, err);
        else if (strcmp(key, "effort") == 0)
            r = read_effort(from, at, a, err);
        else
            openai_ignore(a, "output_config.", key);
        if (r < 0)
            return r;
    }
    return 0;
}

/* -1 is no bound, -2 until the context is full: as many as fit, both. 0 in /infill: the editor
 * wants the texts to be in the prefix cache when it asks for more. */
int read_predict(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err)
{
    int64_t n = 0;
    (void)from;
    if (field_whole(v, "n_predict", -2, INT32_MAX, &n, err) < 0)
        return -EBADMSG;
    a->no_output = n == 0 && a->api == API_INFILL;
    if (n == 0 && !a->no_output)
        return api_refuse(err, 400, "n_predict", "`n_predict` must be -1 or at least 1.");
    a->max_tokens = n > 0 ? (uint32_t)n : 0;
    return 0;
}

int read_modalities(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    (void)from;
    (void)a;
    bool text = json_is_array(v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *one = json_string_value(json_array_get(v, i));
        text = text && one && strcmp(one, "text") == 0;
    }
    return text ? 0
                : api_refuse(err, 400, "modalities",
                             "`modalities` must be [\"text\"]: this model gives text.");
}

/* What of Ollama's options is a row of the table, by its name there. */
static const struct {
    const char *option, *row;
} options[] = {
    {"num_predict", "n_predict"},
    {"stop", "stop"},
    {"seed", "seed"},
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"typical_p", "typical_p"},
    {"repeat_penalty", "repeat_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"mirostat", "mirostat"},
    {"tfs_z", "tfs_z"},
};

int read_ollama_options(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err)
{
    const char *key;
    json_t *at;
    if (!json_is_object(v))
        return api_refuse(err, 400, "options", "`options` must be an object.");
    json_object_foreach(v, key, at)
    {
        size_t i = 0;
        while (i < sizeof(options) / sizeof(options[0]) && strcmp(options[i].option, key) != 0)
            i++;
        if (json_is_null(at))
            continue;
        if (i == sizeof(options) / sizeof(options[0]))
            openai_ignore(a, "options.", key);
        else if (fields_read_one(from, options[i].row, at, a, err) < 0)
            return -EBADMSG;
    }
    return 0;
}

/*
 * Custom tools of /v1/responses and of chats: tools whose argument is one text. The model sees a
 * function with the parameter `input`, and calls it in the notation that it knows; the client gets
 * the text.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/ask.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/grammar/schema.h"

#define CUSTOM_NAMES "\1custom" /* in the body: an object whose keys they are */
#define CUSTOM_BOUND "\1bound"  /* in the body: parameters by name */

static bool is_type(const json_t *v, const char *type)
{
    const char *said = json_string_value(json_object_get(v, "type"));
    return said && strcmp(said, type) == 0;
}

/* What the tool is for, and what its text must look like. */
static json_t *custom_describe(const json_t *tool, const json_t *syntax, const json_t *definition)
{
    const json_t *own = json_object_get(tool, "description");
    struct ek_buf text = {0};
    (void)ek_buf_add(&text, json_string_value(own), json_string_length(own));
    if (json_is_string(definition)) {
        (void)ek_buf_printf(&text, "%sThe input follows this grammar (%s):\n",
                            text.len ? "\n\n" : "",
                            json_string_value(syntax) ? json_string_value(syntax) : "grammar");
        (void)ek_buf_add(&text, json_string_value(definition), json_string_length(definition));
    }
    json_t *v = ek_buf_ok(&text) ? json_stringn(text.data ? text.data : "", text.len) : NULL;
    ek_buf_done(&text);
    return v;
}

/* The parameters, with a keyword that binds the text, or NULL. */
static json_t *parameters_of(const char *keyword, json_t *binds)
{
    json_t *input = json_pack("{s:s}", "type", "string");
    if (input && keyword && json_object_set_new(input, keyword, binds) < 0) {
        json_decref(input);
        return NULL;
    }
    return input ? json_pack("{s:s,s:{s:o},s:[s],s:b}", "type", "object", "properties", "input",
                             input, "required", "input", "additionalProperties", 0)
                 : NULL;
}

/* The pattern from end to end. */
static json_t *whole_of(const json_t *pattern)
{
    struct ek_buf whole = {0};
    (void)ek_buf_puts(&whole, "^(?:");
    (void)ek_buf_add(&whole, json_string_value(pattern), json_string_length(pattern));
    (void)ek_buf_puts(&whole, ")$");
    json_t *v = ek_buf_ok(&whole) ? json_stringn(whole.data, whole.len) : NULL;
    ek_buf_done(&whole);
    return v;
}

/* Keeps what the model is not shown: the grammar is in the description already. */
static int bind_grammar(struct openai_ask *a, json_t *body, const json_t *name, json_t *definition)
{
    json_t *all = json_object_get(body, CUSTOM_BOUND);
    if (!all) {
        all = json_object();
        if (!all || json_object_set_new(body, CUSTOM_BOUND, all) < 0)
            return -ENOMEM;
    }
    a->bound = all;
    json_t *bound = parameters_of(SCHEMA_LARK, json_incref(definition));
    return json_object_set_new(all, json_string_value(name), bound) < 0 ? -ENOMEM : 0;
}

json_t *custom_tool(struct openai_ask *a, json_t *body, const json_t *tool)
{
    const json_t *name = json_object_get(tool, "name"), *format = json_object_get(tool, "format");
    const json_t *nested = json_object_get(format, "grammar"); /* where chats have both */
    const json_t *syntax = json_object_get(nested ? nested : format, "syntax");
    json_t *definition = json_object_get(nested ? nested : format, "definition");
    const char *how = json_is_string(definition) ? json_string_value(syntax) : NULL;
    bool regex = how && strcmp(how, "regex") == 0, lark = how && strcmp(how, "lark") == 0;
    if (lark && bind_grammar(a, body, name, definition) < 0)
        return NULL;
    if (is_type(format, "grammar") && !regex && !lark)
        openai_ignore(a, "tools.format.", how ? how : "syntax"); /* told to the model, not bound */
    json_t *about = custom_describe(tool, syntax, definition);
    json_t *parameters =
        regex ? parameters_of("pattern", whole_of(definition)) : parameters_of(NULL, NULL);
    json_t *out = about && parameters ? protocol_tool(name, about, parameters, true) : NULL;
    json_decref(about);
    json_decref(parameters);
    return out;
}

int custom_note(json_t *body, const json_t *name)
{
    json_t *names = json_object_get(body, CUSTOM_NAMES);
    if (!names) {
        names = json_object();
        if (!names || json_object_set_new(body, CUSTOM_NAMES, names) < 0)
            return -ENOMEM;
    }
    return json_object_set_new(names, json_string_value(name), json_true()) < 0 ? -ENOMEM : 0;
}

bool custom_is(const json_t *body, const char *name)
{
    return json_object_get(json_object_get(body, CUSTOM_NAMES), name) != NULL;
}

json_t *custom_input(const char *arguments, size_t len)
{
    static const char *const ends[] = {"", "\"}", "}"}; /* the last two of what was cut off */
    json_t *input = NULL;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]) && !input; i++) {
        struct ek_buf text = {0};
        (void)ek_buf_add(&text, arguments, len);
        (void)ek_buf_puts(&text, ends[i]);
        json_t *v = ek_buf_ok(&text) && text.len
                        ? json_loadb(text.data, text.len, JSON_ALLOW_NUL, NULL)
                        : NULL;
        json_t *found = json_object_get(v, "input");
        input = json_is_string(found) ? json_incref(found) : NULL;
        json_decref(v);
        ek_buf_done(&text);
    }
    return input ? input : json_stringn_nocheck(arguments ? arguments : "", arguments ? len : 0);
}

void custom_put(struct ek_buf *out, const char *arguments, size_t len)
{
    json_t *input = custom_input(arguments, len);
    out->failed = out->failed || !input;
    reply_bytes(out, json_string_value(input), json_string_length(input));
    json_decref(input);
}

char *custom_arguments(json_t *input)
{
    json_t *v = json_pack("{s:O}", "input", input);
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    return text;
}

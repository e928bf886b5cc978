/*
 * The form of an answer: response_format as OpenAI has it, structured_outputs and its older names
 * as vLLM has them. One form at most, and calls of tools instead of it or beside it: found among
 * those that were made lately, or compiled, which is left to the encoder's thread since a large one
 * takes half a second.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/work.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "server/grammar/lark.h"

#define CALLS 16 /* that an answer may make when it must make some */

static int set_form(struct openai_ask *a, const char *field, enum grammar_kind kind, json_t *v,
                    struct api_error *err)
{
    if (a->form_field && a->form_kind == kind && (a->form == v || json_equal(a->form, v)))
        return 0; /* clients that serve old and new servers say it twice */
    if (a->form_field)
        return api_refuse(err, 400, field, "`%s` and `%s` both ask for a form of the answer.",
                          a->form_field, field);
    a->form_field = field;
    a->form_kind = kind;
    a->form = v;
    return 0;
}

int form_json(struct openai_ask *a, const char *field, struct api_error *err)
{
    return set_form(a, field, GRAMMAR_JSON, NULL, err);
}

int form_schema(struct openai_ask *a, const char *field, json_t *schema, struct api_error *err)
{
    if (!json_is_object(schema) && !json_is_boolean(schema) && !json_is_string(schema))
        return api_refuse(err, 400, field, "`%s` must be a JSON schema, or a string of one.",
                          field);
    return set_form(a, field, GRAMMAR_SCHEMA, schema, err);
}

int form_text_of(struct openai_ask *a, const char *field, enum grammar_kind kind, json_t *v,
                 struct api_error *err)
{
    if (!json_is_string(v) || json_string_length(v) == 0)
        return api_refuse(err, 400, field, "`%s` must be a string, not empty.", field);
    return set_form(a, field, kind, v, err);
}

static int form_structure(struct openai_ask *a, const char *field, json_t *v, struct api_error *err)
{
    if (!json_is_object(v) && !json_is_string(v))
        return api_refuse(err, 400, field,
                          "`%s`: a structural tag must be an object, or a string of one.", field);
    return set_form(a, field, GRAMMAR_STRUCTURE, v, err);
}

int form_calls(struct openai_ask *a, const char *name, struct api_error *err)
{
    bool found = !name;
    for (size_t i = 0; i < json_array_size(a->tools) && !found; i++) {
        const json_t *fn = json_object_get(json_array_get(a->tools, i), "function");
        const char *known = json_string_value(json_object_get(fn, "name"));
        found = known && strcmp(known, name) == 0;
    }
    if (!found)
        return api_refuse(err, 400, "tool_choice", "`tool_choice`: there is no tool `%.100s`.",
                          name);
    a->must_call = true;
    a->call = name;
    return 0;
}

static bool any_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *fn = json_object_get(tool, "function");
        if (json_is_true(json_object_get(fn, "strict")) ||
            json_is_true(json_object_get(tool, "strict")))
            return true;
    }
    return false;
}

/* The tool that must be called when there is no choice, or NULL. */
static json_t *only_tool(const struct openai_ask *a)
{
    for (size_t i = 0; i < json_array_size(a->tools); i++) {
        json_t *fn = json_object_get(json_array_get(a->tools, i), "function");
        const char *name = json_string_value(json_object_get(fn, "name"));
        if (a->call ? name && strcmp(name, a->call) == 0 : json_array_size(a->tools) == 1)
            return fn;
    }
    return NULL;
}

/* What the call of a tool is bound to: more than the model sees, for some. */
static json_t *parameters_of(const struct openai_ask *a, const char *name, json_t *fn)
{
    json_t *bound = name ? json_object_get(a->bound, name) : NULL;
    return bound ? bound : json_object_get(fn, "parameters");
}

/* Models of harmony begin a call that is certain with its head, which becomes the prompt's end:
 * what is left to write are the arguments. */
static int form_arguments(struct openai_ask *a, struct api_error *err)
{
    json_t *fn = a->form_kind == GRAMMAR_CALLS ? only_tool(a) : NULL;
    const char *name = json_string_value(json_object_get(fn, "name"));
    json_t *parameters = parameters_of(a, name, fn);

    if (!name)
        return 0;
    if (name[0] == '\0' || strpbrk(name, " \t\r\n<"))
        return api_refuse(err, 400, "tools",
                          "`tools`: the name `%.100s` cannot be called by this model; use letters, "
                          "digits, - and _.",
                          name);
    a->args_of = name;
    a->form = json_is_object(parameters) ? parameters : NULL;
    a->form_kind = a->form ? GRAMMAR_SCHEMA : GRAMMAR_JSON;
    return 0;
}

/* Whether a parser's calls have their arguments as JSON. */
static bool in_json(enum toolstyle style)
{
    return style != TOOLS_QWEN3_CODER && style != TOOLS_SEED_OSS && style != TOOLS_GLM45 &&
           style != TOOLS_GEMMA4 && style != TOOLS_PYTHONIC && style != TOOLS_LFM2 &&
           style != TOOLS_OLMO3 && style != TOOLS_HY_V3 && style != TOOLS_MIMO &&
           style != TOOLS_FUNCTIONGEMMA && !toolstyle_invokes(style);
}

static int response_format_settle(const struct served *s, struct openai_ask *a,
                                  struct api_error *err)
{
    bool whole = toolstyle_whole(s->tools);

    if (a->must_call) {
        a->form_field = "tool_choice";
        a->form_kind = GRAMMAR_CALLS;
        a->form = a->tools;
    }
    if (s->think == THINK_HARMONY) /* calls and the form have channels of their own */
        return a->chat && a->form_field && a->add_generation_prompt && !a->continue_final
                   ? form_arguments(a, err)
                   : 0;
    if (!a->chat || a->must_call || !a->tools || a->no_calls || s->tools == TOOLS_NONE)
        return 0;
    if (a->form_field) { /* a structural tag says itself where calls may come */
        a->either = a->form_kind != GRAMMAR_STRUCTURE;
        return 0;
    }
    if (a->ignore_eos || !s->grammars || !any_strict(a->tools) || (whole && s->think != THINK_NONE))
        return 0;
    return set_form(a, "tools", GRAMMAR_TAGS, a->tools, err);
}

int form_settle(const struct served *s, struct openai_ask *a, struct api_error *err)
{
    int r = response_format_settle(s, a, err);
    if (a->form_field && a->form_kind == GRAMMAR_EBNF &&
        lark_is(json_string_value(a->form), json_string_length(a->form))) {
        uint32_t most = lark_most_tokens(json_string_value(a->form), json_string_length(a->form));
        if (most > 0 && (a->max_tokens == 0 || a->max_tokens > most))
            a->max_tokens = most;
    }
    bool may = a->either || (a->form_field && a->form_kind == GRAMMAR_TAGS);
    if (r == 0 && a->bound && !a->no_calls && !a->must_call && !(may && in_json(s->tools)))
        openai_ignore(a, "tools.format.", "lark"); /* told to the model, not bound */
    return r;
}

int read_response_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    const char *field = "response_format", *type = json_string_value(json_object_get(v, "type"));
    (void)from;
    if (!type)
        return api_refuse(err, 400, field, "`response_format` must have a `type`.");
    if (strcmp(type, "text") == 0)
        return 0;
    json_t *inside = field_of(v, "json_schema");
    json_t *schema =
        field_of(inside ? inside : v, inside || !field_of(v, "value") ? "schema" : "value");
    if (strcmp(type, "json_object") == 0 || strcmp(type, "json") == 0) /* as llama-server and TGI */
        return schema ? form_schema(a, field, schema, err) : form_json(a, field, err);
    if (strcmp(type, "regex") == 0)
        return form_text_of(a, field, GRAMMAR_REGEX,
                            field_of(v, field_of(v, "pattern") ? "pattern" : "value"), err);
    if (strcmp(type, "grammar") == 0)
        return form_text_of(a, field, GRAMMAR_EBNF, field_of(v, "grammar"), err);
    if (strcmp(type, "structural_tag") == 0)
        return form_structure(a, field, v, err);
    if (strcmp(type, "json_schema") != 0)
        return api_refuse(err, 400, field,
                          "`response_format.type` must be text, json_object, json_schema, regex, "
                          "grammar or structural_tag, not %.40s.",
                          type);
    if (!schema)
        return api_refuse(err, 400, field,
                          "`response_format.json_schema.schema` must be a JSON schema.");
    return set_form(a, field, GRAMMAR_SCHEMA, schema, err);
}

static int set_choice(struct openai_ask *a, const char *field, json_t *v, struct api_error *err)
{
    if (!json_is_array(v) || json_array_size(v) == 0)
        return api_refuse(err, 400, field, "`%s` must be a list of strings, not empty.", field);
    return set_form(a, field, GRAMMAR_CHOICE, v, err);
}

int form_of_kind(struct openai_ask *a, const char *field, enum grammar_kind kind, json_t *v,
                 struct api_error *err)
{
    return kind == GRAMMAR_SCHEMA      ? form_schema(a, field, v, err)
           : kind == GRAMMAR_CHOICE    ? set_choice(a, field, v, err)
           : kind == GRAMMAR_STRUCTURE ? form_structure(a, field, v, err)
                                       : form_text_of(a, field, kind, v, err);
}

int read_structured(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    static const char *const known[] = {"json",   "json_object", "regex",
                                        "choice", "grammar",     "structural_tag"};
    const size_t count = sizeof(known) / sizeof(known[0]);
    const char *field = "structured_outputs", *key;
    json_t *at;
    int r = 0;
    (void)from;
    if (!json_is_object(v))
        return api_refuse(err, 400, field, "`structured_outputs` must be an object.");
    json_object_foreach(v, key, at)
    {
        size_t i = 0;
        while (i < count && strcmp(known[i], key) != 0)
            i++;
        if (json_is_null(at) || (i == count && json_is_false(at)))
            continue;
        switch (i) {
        case 0: r = form_schema(a, field, at, err); break;
        case 1:
            if (!json_is_boolean(at))
                r = api_refuse(err, 400, field, "`structured_outputs.json_object` must be true.");
            else if (json_is_true(at))
                r = set_form(a, field, GRAMMAR_JSON, NULL, err);
            break;
        case 2: r = form_text_of(a, field, GRAMMAR_REGEX, at, err); break;
        case 3: r = set_choice(a, field, at, err); break;
        case 4: r = form_text_of(a, field, GRAMMAR_EBNF, at, err); break;
        case 5: r = form_structure(a, field, at, err); break;
        default:
            r = api_refuse(err, 400, field,
                           "`structured_outputs.%.40s` is not supported by this server; use json, "
                           "json_object, regex, choice, grammar or structural_tag.",
                           key);
        }
        if (r < 0)
            return r;
    }
    if (!a->form_field)
        return api_refuse(err, 400, field,
                          "`structured_outputs` must have json, json_object, regex, choice, "
                          "grammar or structural_tag.");
    return 0;
}

/* A tool with what binds its calls, a new reference. */
static json_t *bound_tool(const struct openai_ask *a, json_t *tool)
{
    json_t *fn = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(fn, "name"));
    json_t *bound = parameters_of(a, name, fn);
    if (bound == json_object_get(fn, "parameters"))
        return json_incref(tool);
    return json_pack("{s:s,s:{s:s,s:O,s:b}}", "type", "function", "function", "name", name,
                     "parameters", bound, "strict", 1);
}

/* The tools of a grammar, a new reference. */
static json_t *tools_of(const struct openai_ask *a, bool in_json)
{
    if (!a->bound || !in_json)
        return json_incref(a->tools);
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(a->tools); i++) {
        if (json_array_append_new(list, bound_tool(a, json_array_get(a->tools, i))) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* What GRAMMAR_CALLS is compiled from. */
static json_t *calls_of(const struct openai_ask *a)
{
    return json_pack("{s:s?,s:i,s:o}", "name", a->call, "most", a->one_call || a->call ? 1 : CALLS,
                     "tools", tools_of(a, true));
}

/* What GRAMMAR_TAGS is compiled from. */
static json_t *tags_of(const struct served *s, const struct openai_ask *a)
{
    return json_pack("{s:s,s:b,s:o}", "style", toolstyle_name(s->tools), "one", a->one_call,
                     "tools", tools_of(a, in_json(s->tools)));
}

/* The same with the text of a form, for GRAMMAR_EITHER. */
static json_t *either_of(const struct served *s, const struct openai_ask *a, const char *text,
                         size_t len)
{
    return json_pack("{s:s,s:b,s:i,s:o,s:{s:i,s:s%}}", "style", toolstyle_name(s->tools), "one",
                     a->one_call, "most", CALLS, "tools", tools_of(a, in_json(s->tools)), "form",
                     "kind", (int)a->form_kind, "text", text, len);
}

/* What a grammar is compiled from. */
struct form_text {
    enum grammar_kind kind;
    char *dumped; /* the caller frees it; NULL when `at` is in the body */
    const char *at;
    size_t len;
};

static char *dump_form(json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(v);
    return text;
}

/* 0 or -ENOMEM. */
static int form_text(const struct served *s, const struct openai_ask *a, struct form_text *ret_text)
{
    struct form_text t = {.kind = a->form_kind, .at = ""};
    if (json_is_string(a->form)) {
        t.at = json_string_value(a->form);
        t.len = json_string_length(a->form);
    } else if (a->form) {
        t.dumped = dump_form(a->form_kind == GRAMMAR_CALLS  ? calls_of(a)
                             : a->form_kind == GRAMMAR_TAGS ? tags_of(s, a)
                                                            : json_incref(a->form));
        if (!t.dumped)
            return -ENOMEM;
        t.at = t.dumped;
        t.len = strlen(t.dumped);
    }
    if (a->either) {
        char *both = dump_form(either_of(s, a, t.at, t.len));
        free(t.dumped);
        if (!both)
            return -ENOMEM;
        t = (struct form_text){GRAMMAR_EITHER, both, both, strlen(both)};
    }
    *ret_text = t;
    return 0;
}

int form_grammar(const struct served *s, const struct openai_ask *a,
                 const struct generation_origin *from, const struct ek_work *within,
                 struct grammar **ret_grammar, struct api_error *err)
{
    struct ek_fault fault = {0};
    struct ek_work work = within ? *within : (struct ek_work){0};
    struct form_text text;

    work.fuel = GRAMMAR_FUEL; /* of its own; deadline and cancellation are the exchange's */
    *ret_grammar = NULL;
    if (!a->form_field)
        return 0;
    if (!s->grammars)
        return api_refuse(err, 400, a->form_field, "`%s` is not offered by this server.",
                          a->form_field);
    if (form_text(s, a, &text) < 0)
        return api_no_memory(err);
    int r = -EAGAIN;
    if (from->quick)
        *ret_grammar = grammar_cache_find(s->grammars, text.kind, text.at, text.len);
    else
        r = grammar_cache_get(
            s->grammars, &(struct grammar_from){text.kind, text.at, text.len, from->tenant.place},
            &work, ret_grammar, &fault);
    free(text.dumped);
    if (from->quick)
        return *ret_grammar ? 0 : r;
    if (r == -EBADMSG)
        return api_refuse(err, 400, a->form_field, "`%s` cannot be used: %s.", a->form_field,
                          fault.msg);
    if (r == -ETIMEDOUT || r == -ECANCELED) {
        (void)api_refuse(err, 503, a->form_field, "`%s` was given up: %s.", a->form_field,
                         fault.msg);
        err->retry_after_s = 1;
        return -EBADMSG;
    }
    if (r == -EBUSY) {
        (void)api_refuse(err, 429, a->form_field, "The server is busy: %s.", fault.msg);
        err->retry_after_s = 1;
        return -EBADMSG;
    }
    return r < 0 ? api_no_memory(err) : 0;
}

void form_tell(struct openai_ask *a, const struct grammar *g)
{
    char inside[80];
    if (!g || !grammar_is_loose(g))
        return;
    (void)snprintf(inside, sizeof(inside), "%s.", a->form_field);
    openai_ignore(a, inside, "uniqueItems"); /* what is left of the form is kept */
}

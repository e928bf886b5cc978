/*
 * Reads bodies of /v1/responses as chats: input items, instructions, flat tools. Called through
 * rows of the table in fields.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/protocols.h"
#include "server/api/readers.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static const char *const text_types[] = {"input_text", "output_text", "text", "refusal", NULL};

int read_instructions(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    (void)from;
    if (!json_is_string(v))
        return api_refuse(err, 400, "instructions", "`instructions` must be a string.");
    a->system = v;
    return 0;
}

static int add_message(json_t *list, const json_t *item, struct api_error *err)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    struct ek_buf text = {0};
    int r = role ? forms_text(json_object_get(item, "content"), text_types, "input", &text, err)
                 : api_refuse(err, 400, "input", "`input` holds a message without a `role`.");
    if (r == 0 && json_array_append_new(list, protocol_message(role, text.data, text.len)) < 0)
        r = api_no_memory(err);
    ek_buf_done(&text);
    return r;
}

static int add_call(json_t *list, const json_t *item, struct api_error *err)
{
    const char *id = json_string_value(json_object_get(item, "call_id"));
    const char *name = json_string_value(json_object_get(item, "name"));
    const char *arguments = json_string_value(json_object_get(item, "arguments"));
    if (!id || !name || !arguments)
        return api_refuse(err, 400, "input",
                          "`input` holds a function_call without `call_id`, `name` or "
                          "`arguments`.");
    return protocol_add_call(list, id, name, arguments) < 0 ? api_no_memory(err) : 0;
}

static int add_result(json_t *list, const json_t *item, struct api_error *err)
{
    json_t *id = json_object_get(item, "call_id");
    struct ek_buf text = {0};
    int r = json_is_string(id)
                ? forms_text(json_object_get(item, "output"), text_types, "input", &text, err)
                : api_refuse(err, 400, "input",
                             "`input` holds the output of a call without `call_id`.");
    if (r == 0)
        r = protocol_add_result(list, id, &text, err);
    ek_buf_done(&text);
    return r;
}

/* A call of a custom tool, as one of the function that the model knows it as. */
static int add_custom(json_t *list, const json_t *item, struct api_error *err)
{
    const char *id = json_string_value(json_object_get(item, "call_id"));
    const char *name = json_string_value(json_object_get(item, "name"));
    json_t *input = json_object_get(item, "input");
    if (!id || !name || !json_is_string(input))
        return api_refuse(err, 400, "input",
                          "`input` holds a custom_tool_call without `call_id`, `name` or `input`.");
    char *arguments = custom_arguments(input);
    int r = arguments ? protocol_add_call(list, id, name, arguments) : -ENOMEM;
    free(arguments);
    return r < 0 ? api_no_memory(err) : 0;
}

/* Items of tools that run elsewhere, and of how a client keeps its conversation: no template has
 * words for them. */
static const char *const foreign[] = {"web_search_call",
                                      "file_search_call",
                                      "computer_call",
                                      "computer_call_output",
                                      "code_interpreter_call",
                                      "image_generation_call",
                                      "local_shell_call",
                                      "local_shell_call_output",
                                      "shell_call",
                                      "shell_call_output",
                                      "apply_patch_call",
                                      "apply_patch_call_output",
                                      "mcp_list_tools",
                                      "mcp_approval_request",
                                      "mcp_approval_response",
                                      "mcp_call",
                                      "tool_search_call",
                                      "tool_search_output",
                                      "additional_tools",
                                      "compaction",
                                      "compaction_trigger",
                                      "program",
                                      "program_output",
                                      NULL};

static int add_item(json_t *list, const json_t *item, struct openai_ask *a, struct api_error *err)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!json_is_object(item))
        return api_refuse(err, 400, "input", "`input` must be a string or a list of objects.");
    if (!type || strcmp(type, "message") == 0)
        return add_message(list, item, err);
    if (strcmp(type, "function_call") == 0)
        return add_call(list, item, err);
    if (strcmp(type, "custom_tool_call") == 0)
        return add_custom(list, item, err);
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
        return add_result(list, item, err);
    if (strcmp(type, "reasoning") == 0)
        return 0; /* templates leave earlier thinking out */
    if (forms_has(foreign, type)) {
        openai_ignore(a, "input.", type);
        return 0;
    }
    return api_refuse(err, 400, "input", "`input` items of type %.40s are not supported.", type);
}

int read_responses_input(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    json_t *list = json_array();
    int r = list ? 0 : api_no_memory(err);
    if (r == 0 && a->system &&
        json_array_append_new(list, protocol_message("system", json_string_value(a->system),
                                                     json_string_length(a->system))) < 0)
        r = api_no_memory(err);
    if (r == 0 && json_is_string(v) &&
        json_array_append_new(
            list, protocol_message("user", json_string_value(v), json_string_length(v))) < 0)
        r = api_no_memory(err);
    if (r == 0 && !json_is_string(v) && (!json_is_array(v) || json_array_size(v) == 0))
        r = api_refuse(err, 400, "input", "`input` must be a string or a list, not empty.");
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++)
        r = add_item(list, json_array_get(v, i), a, err);
    if (r == 0)
        return protocol_messages(from, list, a, err);
    json_decref(list);
    return r;
}

/* As a chat has it. Tools that run elsewhere are left out, *ret_tool is NULL then. */
static int read_tool(const struct field_source *from, json_t *tool, size_t at, struct openai_ask *a,
                     json_t **ret_tool, struct api_error *err)
{
    const json_t *name = json_object_get(tool, "name");
    const char *type = json_string_value(json_object_get(tool, "type"));
    bool function = type && strcmp(type, "function") == 0;
    bool custom = type && strcmp(type, "custom") == 0;
    *ret_tool = NULL;
    if (!type || ((function || custom) && !json_is_string(name)))
        return api_refuse(err, 400, "tools", "`tools[%zu]` must have a type and a name.", at);
    if (!function && !custom) {
        openai_ignore(a, "tools.", type);
        return 0;
    }
    if (custom && custom_note(from->body, name) < 0)
        return api_no_memory(err);
    *ret_tool =
        custom ? custom_tool(a, from->body, tool)
               : protocol_tool(name, field_of(tool, "description"), field_of(tool, "parameters"),
                               json_is_true(json_object_get(tool, "strict")));
    return *ret_tool ? 0 : api_no_memory(err);
}

int read_responses_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    if (!json_is_array(v))
        return api_refuse(err, 400, "tools", "`tools` must be a list.");
    if (json_array_size(v) == 0)
        return 0;
    json_t *list = json_array();
    int r = list ? 0 : api_no_memory(err);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++) {
        json_t *tool = NULL;
        r = read_tool(from, json_array_get(v, i), i, a, &tool, err);
        if (tool && json_array_append_new(list, tool) < 0)
            r = api_no_memory(err);
    }
    if (r < 0 || json_array_size(list) == 0) {
        json_decref(list);
        return r;
    }
    if (json_object_set_new(from->body, "\1tools", list) < 0)
        return api_no_memory(err);
    a->tools = list;
    return 0;
}

/* What else there is belongs to tools that run elsewhere, or to thinking that is kept elsewhere. */
int read_include(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err)
{
    (void)from;
    if (!json_is_array(v))
        return api_refuse(err, 400, "include", "`include` must be a list of strings.");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *what = json_string_value(json_array_get(v, i));
        if (!what)
            return api_refuse(err, 400, "include", "`include[%zu]` must be a string.", i);
        if (strcmp(what, "message.output_text.logprobs") == 0)
            a->logprobs = true;
        else
            openai_ignore(a, "include.", what);
    }
    return 0;
}

int read_responses_text(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err)
{
    json_t *format = field_of(v, "format"), *schema = field_of(format, "schema");
    const char *type = json_string_value(json_object_get(format, "type"));
    (void)from;
    if (!json_is_object(v) || (format && !type))
        return api_refuse(err, 400, "text", "`text` must be an object; its format needs a type.");
    if (!type || strcmp(type, "text") == 0)
        return 0;
    if (strcmp(type, "json_object") == 0)
        return form_json(a, "text", err);
    if (strcmp(type, "json_schema") != 0 || !schema)
        return api_refuse(err, 400, "text",
                          "`text.format` must be text, json_object, or json_schema with a schema.");
    return form_schema(a, "text", schema, err);
}

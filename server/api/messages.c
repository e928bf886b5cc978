/* Messages and tools of a chat: checked, and brought into the form that templates expect. */
#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/api/protocols.h"
#include "server/api/readers.h"
#include "server/api/reply.h"
#include "server/api/served.h"

/* As vLLM: the parts of responses are taken in chats, too. */
static const char *const text_types[] = {"text", "input_text", "output_text", "refusal", NULL};

/* Text parts of a content list become one string, as templates that know strings expect. */
static int join_parts(json_t *message, const json_t *parts, size_t at, struct api_error *err)
{
    struct ek_buf text = {0};
    int r = 0;
    for (size_t i = 0; i < json_array_size(parts) && r == 0; i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *t = json_is_string(part) ? part : forms_part(part);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && !forms_has(text_types, type))
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

/* Templates want the arguments of a call as an object, clients send them as a string. What is no
 * object would spoil all further turns of the conversation: it becomes an empty one. */
static json_t *call_arguments(const json_t *given)
{
    struct api_error unused;
    const char *text = json_string_value(given);
    size_t len = json_string_length(given);
    json_t *parsed = text ? openai_load(text, len, &unused) : NULL;
    if (parsed)
        return parsed;
    json_t *deep = text ? json_loadb(text, len, 0, NULL) : NULL;
    bool object = json_is_object(deep);
    json_decref(deep);
    return object ? json_string(text) : json_object(); /* nested too deep: it stays a string */
}

/* A call of a custom tool becomes one of the function that the model knows it as. */
static int read_custom_call(json_t *call, size_t at, size_t index, struct api_error *err)
{
    json_t *custom = field_of(call, "custom");
    json_t *name = json_object_get(custom, "name"), *input = json_object_get(custom, "input");
    if (!custom)
        return 0;
    if (!json_is_string(name) || !json_is_string(input))
        return api_refuse(err, 400, "messages",
                          "`messages[%zu].tool_calls[%zu].custom` must have a name and an input.",
                          at, index);
    json_t *fn = json_pack("{s:O,s:{s:O}}", "name", name, "arguments", "input", input);
    if (json_object_set_new(call, "function", fn) < 0 ||
        json_object_set_new(call, "type", json_string("function")) < 0)
        return api_no_memory(err);
    (void)json_object_del(call, "custom"); /* it is there */
    return 0;
}

static int read_calls(json_t *message, size_t at, struct api_error *err)
{
    json_t *calls = field_of(message, "tool_calls");
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return api_refuse(err, 400, "messages", "`messages[%zu].tool_calls` must be a list.", at);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (read_custom_call(json_array_get(calls, i), at, i, err) < 0)
            return -EBADMSG;
        json_t *fn = json_object_get(json_array_get(calls, i), "function");
        const json_t *args = json_object_get(fn, "arguments");
        if (!json_is_object(fn) || !json_is_string(json_object_get(fn, "name")))
            return api_refuse(err, 400, "messages",
                              "`messages[%zu].tool_calls[%zu].function` must have a name.", at, i);
        if (!json_is_object(args) && json_object_set_new(fn, "arguments", call_arguments(args)) < 0)
            return api_no_memory(err);
    }
    return 0;
}

/* The older form of a call and its result, as clients from before tools keep them: a call without
 * an id, and a message of the role `function`. */
static int read_old_call(json_t *m, const char *role, size_t at, struct api_error *err)
{
    json_t *call = field_of(m, "function_call");
    bool result = strcmp(role, "function") == 0;
    if (result && json_object_set_new(m, "role", json_string("tool")) < 0)
        return api_no_memory(err);
    if (!call || field_of(m, "tool_calls"))
        return 0;
    if (!json_is_object(call))
        return api_refuse(err, 400, "messages", "`messages[%zu].function_call` must be an object.",
                          at);
    json_t *calls = json_pack("[{s:s,s:O}]", "type", "function", "function", call);
    if (json_object_set_new(m, "tool_calls", calls) < 0)
        return api_no_memory(err);
    (void)json_object_del(m, "function_call"); /* it is there */
    return 0;
}

/* One message; `at` is its place in the list. */
static int read_message(json_t *m, size_t at, struct api_error *err)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const size_t count = sizeof(roles) / sizeof(roles[0]);
    json_t *content = field_of(m, "content");
    const json_t *said = json_object_get(m, "role");
    const char *role = json_string_value(said);
    size_t k = 0;
    if (role && strlen(role) != json_string_length(said))
        role = NULL; /* a zero byte would hide what follows */
    while (role && k < count && strcmp(role, roles[k]) != 0)
        k++;
    if (!json_is_object(m) || !role || k == count)
        return api_refuse(err, 400, "messages",
                          "`messages[%zu].role` must be system, developer, user, assistant or "
                          "tool.",
                          at);
    if (!content && strcmp(role, "assistant") != 0)
        return api_refuse(err, 400, "messages", "`messages[%zu].content` is missing.", at);
    if (content && !json_is_string(content) && !json_is_array(content))
        return api_refuse(err, 400, "messages",
                          "`messages[%zu].content` must be a string or a list of parts.", at);
    if (json_is_array(content) && join_parts(m, content, at, err) < 0)
        return -EBADMSG;
    if (read_old_call(m, role, at, err) < 0)
        return -EBADMSG;
    if (!content && !field_of(m, "tool_calls") &&
        json_object_set_new(m, "content", json_string("")) < 0) /* templates want a text */
        return api_no_memory(err);
    return read_calls(m, at, err);
}

int read_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    size_t n = json_array_size(v);
    if (!v && a->api == API_TOKENIZE)
        return 0; /* then it is a prompt */
    if (!from->served->chat)
        return api_refuse(err, 400, "messages",
                          "The model has no chat template; start the server with --chat-template "
                          "FILE or use /v1/completions.");
    if (!json_is_array(v) || n == 0)
        return api_refuse(err, 400, "messages", "`messages` must be a list, not empty.");
    if (n > OPENAI_MESSAGES)
        return api_refuse(err, 400, "messages", "`messages` may hold at most %u, got %zu.",
                          OPENAI_MESSAGES, n);
    for (size_t i = 0; i < n; i++) {
        if (read_message(json_array_get(v, i), i, err) < 0)
            return -EBADMSG;
        a->past_calls += (uint32_t)json_array_size(field_of(json_array_get(v, i), "tool_calls"));
    }
    a->messages = v;
    return 0;
}

/* A tool that takes one text, as OpenAI's chats have it. *ret_tool = the function that stands for
 * it. */
static int read_custom_tool(const struct field_source *from, const json_t *tool, size_t at,
                            struct openai_ask *a, json_t **ret_tool, struct api_error *err)
{
    const json_t *custom = json_object_get(tool, "custom"), *name = json_object_get(custom, "name");
    if (!json_is_string(name))
        return api_refuse(err, 400, "tools", "`tools[%zu].custom.name` must be a string.", at);
    *ret_tool = custom_note(from->body, name) == 0 ? custom_tool(a, from->body, custom) : NULL;
    return *ret_tool ? 0 : api_no_memory(err);
}

static bool is_custom_tool(const struct openai_ask *a, const json_t *tool)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    return !openai_is_ollama(a->api) && type && strcmp(type, "custom") == 0;
}

int read_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err)
{
    if (!json_is_array(v))
        return api_refuse(err, 400, "tools", "`tools` must be a list.");
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *tool = json_array_get(v, i), *type = field_of(tool, "type");
        if (is_custom_tool(a, tool)) {
            if (read_custom_tool(from, tool, i, a, &tool, err) < 0)
                return -EBADMSG;
            if (json_array_set_new(v, i, tool) < 0)
                return api_no_memory(err);
            type = field_of(tool, "type");
        }
        const json_t *fn = json_object_get(tool, "function");
        if (!json_is_string(json_object_get(fn, "name")))
            return api_refuse(err, 400, "tools", "`tools[%zu].function.name` must be a string.", i);
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
            return api_refuse(err, 400, "tools", "`tools[%zu].type` must be function or custom.",
                              i);
        if (!type && json_object_set_new(tool, "type", json_string("function")) < 0)
            return api_no_memory(err); /* templates show it */
    }
    a->tools = json_array_size(v) > 0 ? v : NULL; /* clients send an empty list for none */
    return 0;
}

/* The function that an entry of `tools` or of tool_choice names; NULL for none. */
static const char *function_name(const json_t *v)
{
    const json_t *fn = field_of(v, "function"), *custom = field_of(v, "custom");
    return json_string_value(json_object_get(fn ? fn : custom ? custom : v, "name"));
}

/* The functions that a list names, as an object's keys; NULL without memory. */
static json_t *name_set(const json_t *list)
{
    json_t *set = json_object();
    for (size_t i = 0; set && i < json_array_size(list); i++) {
        const char *name = function_name(json_array_get(list, i));
        if (name && json_object_set_new(set, name, json_true()) < 0) {
            json_decref(set);
            return NULL;
        }
    }
    return set;
}

/* What of a->tools is allowed, in its order; NULL without memory. */
static json_t *tools_of(const struct openai_ask *a, const json_t *allowed)
{
    json_t *kept = json_array();
    for (size_t i = 0; kept && i < json_array_size(a->tools); i++) {
        json_t *tool = json_array_get(a->tools, i);
        const char *name = function_name(tool);
        if (name && json_object_get(allowed, name) && json_array_append(kept, tool) < 0) {
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

/* Leaves those of a->tools that `list` names. 0 or -EBADMSG with err. */
static int keep_tools(const json_t *list, struct openai_ask *a, struct api_error *err)
{
    json_t *known = name_set(a->tools), *allowed = name_set(list);
    json_t *kept = allowed ? tools_of(a, allowed) : NULL;
    const char *name;
    json_t *one;
    int r = known && kept ? 0 : api_no_memory(err);
    json_object_foreach(allowed, name, one)
    {
        if (r == 0 && !json_object_get(known, name))
            r = api_refuse(err, 400, "tool_choice", "`tool_choice`: there is no tool `%.100s`.",
                           name);
    }
    if (r == 0 && (json_array_clear(a->tools) < 0 || json_array_extend(a->tools, kept) < 0))
        r = api_no_memory(err);
    if (r == 0 && json_array_size(kept) == 0)
        a->tools = NULL;
    json_decref(known);
    json_decref(allowed);
    json_decref(kept);
    return r;
}

/* {"type": "allowed_tools", "mode", "tools"}, which chats have in a field of the same name: the
 * model sees those tools alone. */
static int allow_only(const json_t *v, struct openai_ask *a, struct api_error *err)
{
    const json_t *own = json_object_get(v, "allowed_tools"), *from = own ? own : v;
    const json_t *list = json_object_get(from, "tools");
    const char *mode = json_string_value(json_object_get(from, "mode"));
    if (!json_is_array(list) || !mode ||
        (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return api_refuse(err, 400, "tool_choice",
                          "`tool_choice` of type allowed_tools needs a list `tools` and a `mode` "
                          "auto or required.");
    bool must = strcmp(mode, "required") == 0;
    int r = keep_tools(list, a, err);
    if (r == 0 && must && !a->tools)
        return api_refuse(err, 400, "tool_choice",
                          "`tool_choice` allows no tool and requires one.");
    return r == 0 && must ? form_calls(a, NULL, err) : r;
}

int read_tool_choice(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err)
{
    const char *how = json_string_value(v);
    if (!v)
        return 0;
    const json_t *tools = json_object_get(from->body, "tools");
    bool sent = json_array_size(tools) > 0; /* none can be served */
    if (!a->tools && json_is_array(tools) && how && strcmp(how, "auto") == 0)
        return 0;
    if (!a->tools && !(how && strcmp(how, "none") == 0))
        return api_refuse(err, 400, "tool_choice",
                          sent ? "`tool_choice` asks for a tool, and none of `tools` can be served."
                               : "`tool_choice` needs `tools`.");
    const char *type = json_string_value(json_object_get(v, "type")), *name = function_name(v);
    if (type && strcmp(type, "allowed_tools") == 0)
        return allow_only(v, a, err);
    if (name)
        return form_calls(a, name, err);
    if (how && strcmp(how, "required") == 0)
        return form_calls(a, NULL, err);
    if (!how || (strcmp(how, "auto") != 0 && strcmp(how, "none") != 0))
        return api_refuse(err, 400, "tool_choice",
                          "`tool_choice` must be auto, none, required, or name a function.");
    a->no_calls = strcmp(how, "none") == 0; /* the model sees the tools all the same */
    return 0;
}

/*
 * Reads bodies of /v1/messages as chats: system, blocks, tools. Called through rows of the table in
 * fields.c.
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

static const char *const text_types[] = {"text", NULL};

/* A line that a coding agent puts before its system prompt, for its vendor's bills. It differs from
 * session to session, and with it in the prompt no two of them would share a prefix. Returns the
 * bytes to leave out: the line and its end. */
static size_t billing_line(const char *text, size_t len)
{
    static const char name[] = "x-anthropic-billing-header:";
    const size_t n = sizeof(name) - 1;
    if (len < n || memcmp(text, name, n) != 0)
        return 0;
    const char *end = memchr(text, '\n', len);
    return end ? (size_t)(end + 1 - text) : len;
}

/* Adds one of its texts, without such a line; nothing where there is nothing else. */
static void add_system(struct ek_buf *text, const json_t *one)
{
    const char *s = json_string_value(one);
    size_t len = json_string_length(one), skip = billing_line(s, len);
    if (skip > 0 && skip == len)
        return;
    (void)ek_buf_puts(text, text->len ? "\n" : "");
    (void)ek_buf_add(text, s + skip, len - skip);
}

static int system_text(const json_t *v, struct ek_buf *text, struct api_error *err)
{
    if (json_is_string(v))
        add_system(text, v);
    else if (!json_is_array(v))
        return forms_text(v, text_types, "system", text, err); /* which refuses it */
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one;
        if (forms_part_of(json_array_get(v, i), text_types, "system", &one, err) < 0)
            return -EBADMSG;
        add_system(text, one);
    }
    return ek_buf_ok(text) ? 0 : api_no_memory(err);
}

int read_anthropic_system(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err)
{
    struct ek_buf text = {0};
    int r = system_text(v, &text, err);
    json_t *joined = r == 0 ? json_stringn_nocheck(text.data ? text.data : "", text.len) : NULL;
    ek_buf_done(&text);
    if (r < 0)
        return r;
    if (json_object_set_new(from->body, "\1system", joined) < 0)
        return api_no_memory(err);
    a->system = joined;
    return 0;
}

/* The messages so far. Blocks of one role are joined: their text is collected and written into the
 * last message once, when something else comes. */
struct turns {
    struct openai_ask *ask;
    json_t *list;
    bool open; /* `text` belongs to the last message */
    struct ek_buf text;
};

static int close_turn(struct turns *t, struct api_error *err)
{
    json_t *last = json_array_get(t->list, json_array_size(t->list) - 1);
    if (!t->open)
        return 0;
    json_t *joined = ek_buf_ok(&t->text)
                         ? json_stringn_nocheck(t->text.data ? t->text.data : "", t->text.len)
                         : NULL;
    t->open = false;
    ek_buf_clear(&t->text);
    return json_object_set_new(last, "content", joined) < 0 ? api_no_memory(err) : 0;
}

/* A text block: onto the last message when it has the role and nothing else, else a new one.
 * Templates want users and assistants to take turns. */
static int add_text(struct turns *t, const char *role, const json_t *text, struct api_error *err)
{
    const json_t *last = json_array_get(t->list, json_array_size(t->list) - 1);
    const char *before = json_string_value(json_object_get(last, "role"));
    if (!json_is_string(text))
        return api_refuse(err, 400, "messages", "`messages` holds a text block without text.");
    if (!before || strcmp(before, role) != 0 || json_object_get(last, "tool_calls")) {
        if (close_turn(t, err) < 0)
            return -EBADMSG;
        json_t *m = protocol_message(role, json_string_value(text), json_string_length(text));
        return json_array_append_new(t->list, m) < 0 ? api_no_memory(err) : 0;
    }
    if (!t->open) {
        const json_t *had = json_object_get(last, "content");
        (void)ek_buf_add(&t->text, json_string_value(had), json_string_length(had));
        t->open = true;
    }
    (void)ek_buf_puts(&t->text, t->text.len ? "\n" : "");
    (void)ek_buf_add(&t->text, json_string_value(text), json_string_length(text));
    return ek_buf_ok(&t->text) ? 0 : api_no_memory(err);
}

static int add_use(json_t *list, const json_t *block, struct api_error *err)
{
    const char *id = json_string_value(json_object_get(block, "id"));
    const char *name = json_string_value(json_object_get(block, "name"));
    const json_t *input = json_object_get(block, "input");
    if (!id || !name || !json_is_object(input))
        return api_refuse(err, 400, "messages",
                          "`messages` holds a tool_use without `id`, `name` or `input`.");
    char *arguments = json_dumps(input, JSON_COMPACT);
    int r = arguments ? protocol_add_call(list, id, name, arguments) : -ENOMEM;
    free(arguments);
    return r < 0 ? api_no_memory(err) : 0;
}

static int add_result(json_t *list, const json_t *block, struct api_error *err)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = field_of(block, "content");
    struct ek_buf text = {0};
    int r = json_is_string(id) ? 0
                               : api_refuse(err, 400, "messages",
                                            "`messages` holds a tool_result without "
                                            "`tool_use_id`.");
    if (r == 0 && content)
        r = forms_text(content, text_types, "messages", &text, err);
    if (r == 0)
        r = protocol_add_result(list, id, &text, err);
    ek_buf_done(&text);
    return r;
}

/* Blocks of tools that run elsewhere: no template has words for them. */
static const char *const foreign[] = {"server_tool_use",
                                      "web_search_tool_result",
                                      "web_fetch_tool_result",
                                      "code_execution_tool_result",
                                      "bash_code_execution_tool_result",
                                      "text_editor_code_execution_tool_result",
                                      "mcp_tool_use",
                                      "mcp_tool_result",
                                      "container_upload",
                                      NULL};

static int add_block(struct turns *t, const char *role, const json_t *block, struct api_error *err)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    if (type && strcmp(type, "text") == 0)
        return add_text(t, role, json_object_get(block, "text"), err);
    if (close_turn(t, err) < 0)
        return -EBADMSG;
    if (type && strcmp(type, "tool_use") == 0)
        return add_use(t->list, block, err);
    if (type && strcmp(type, "tool_result") == 0)
        return add_result(t->list, block, err);
    if (type && (strcmp(type, "thinking") == 0 || strcmp(type, "redacted_thinking") == 0))
        return 0; /* templates leave earlier thinking out */
    if (forms_has(foreign, type)) {
        openai_ignore(t->ask, "messages.", type);
        return 0;
    }
    return api_refuse(err, 400, "messages",
                      "`messages` holds a block of type %.40s; this model takes text.",
                      type ? type : "none");
}

static int add_message(struct turns *t, const json_t *m, struct api_error *err)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
                  strcmp(role, "system") != 0))
        return api_refuse(err, 400, "messages",
                          "The `role` of a message must be user, assistant or system.");
    if (json_is_string(content))
        return add_text(t, role, content, err);
    if (!json_is_array(content))
        return api_refuse(err, 400, "messages",
                          "The `content` of a message must be a string or a list of blocks.");
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (add_block(t, role, json_array_get(content, i), err) < 0)
            return -EBADMSG;
    }
    return 0;
}

int read_anthropic_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                            struct api_error *err)
{
    json_t *list = json_array();
    int r = list ? 0 : api_no_memory(err);
    if (r == 0 && (!json_is_array(v) || json_array_size(v) == 0))
        r = api_refuse(err, 400, "messages", "`messages` must be a list, not empty.");
    if (r == 0 && a->system &&
        json_array_append_new(list, protocol_message("system", json_string_value(a->system),
                                                     json_string_length(a->system))) < 0)
        r = api_no_memory(err);
    struct turns turns = {.ask = a, .list = list};
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++)
        r = add_message(&turns, json_array_get(v, i), err);
    if (r == 0)
        r = close_turn(&turns, err);
    ek_buf_done(&turns.text);
    if (r < 0) {
        json_decref(list);
        return r;
    }
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0 && !json_object_get(last, "tool_calls")) {
        a->continue_final = true; /* a begun answer is continued */
        a->add_generation_prompt = false;
    }
    return protocol_messages(from, list, a, err);
}

int read_anthropic_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    if (!json_is_array(v))
        return api_refuse(err, 400, "tools", "`tools` must be a list.");
    if (json_array_size(v) == 0)
        return 0;
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *tool = json_array_get(v, i), *name = json_object_get(tool, "name");
        json_t *schema = json_object_get(tool, "input_schema");
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!schema && type && strcmp(type, "custom") != 0) { /* it runs elsewhere */
            openai_ignore(a, "tools.", type);
            continue;
        }
        if (!json_is_string(name) || !json_is_object(schema)) {
            json_decref(list);
            return api_refuse(err, 400, "tools",
                              "`tools[%zu]` must have a name and an input_schema; tools that run "
                              "on the server are not supported.",
                              i);
        }
        if (json_array_append_new(
                list, protocol_tool(name, field_of(tool, "description"), schema,
                                    json_is_true(json_object_get(tool, "strict")))) < 0) {
            json_decref(list);
            return api_no_memory(err);
        }
    }
    if (list && json_array_size(list) == 0) {
        json_decref(list);
        return 0;
    }
    if (!list || json_object_set_new(from->body, "\1tools", list) < 0)
        return api_no_memory(err);
    a->tools = list;
    return 0;
}

int read_anthropic_choice(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    bool one = false;
    (void)from;
    const char *name = json_string_value(json_object_get(v, "name"));
    bool any = type && strcmp(type, "any") == 0, tool = type && strcmp(type, "tool") == 0;
    if (!type || (tool && !name) ||
        (!any && !tool && strcmp(type, "auto") != 0 && strcmp(type, "none") != 0))
        return api_refuse(err, 400, "tool_choice",
                          "`tool_choice` must be of type auto, none, any, or tool with a name.");
    if ((any || tool) && !a->tools)
        return api_refuse(err, 400, "tool_choice", "`tool_choice` needs `tools`.");
    if (field_bool(field_of(v, "disable_parallel_tool_use"), "disable_parallel_tool_use", &one,
                   err) < 0)
        return -EBADMSG;
    a->one_call = one;
    if (any || tool)
        return form_calls(a, tool ? name : NULL, err);
    a->no_calls = strcmp(type, "none") == 0;
    return 0;
}

int read_stop_sequences(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err)
{
    if (!json_is_array(v))
        return api_refuse(err, 400, "stop_sequences",
                          "`stop_sequences` must be a list of strings.");
    int r = read_stop(from, v, a, err);
    if (r < 0)
        (void)strcpy(err->param, "stop_sequences");
    return r;
}

/*
 * Makes messages, calls and tools of a chat from those of other forms (protocols.h). Called by the
 * readers of responses, messages and Ollama.
 */
#include "server/api/protocols.h"

#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"
#include "server/api/served.h"

json_t *protocol_message(const char *role, const char *text, size_t len)
{
    json_t *m = json_object();
    json_t *content = json_stringn_nocheck(text ? text : "", text ? len : 0);
    if (m && json_object_set_new(m, "role", json_string(role)) == 0 &&
        json_object_set_new(m, "content", content) == 0)
        return m;
    json_decref(m);
    return NULL;
}

int protocol_add_result(json_t *list, json_t *id, const struct ek_buf *text, struct api_error *err)
{
    json_t *m = protocol_message("tool", text->data, text->len);
    int r = m && json_object_set(m, "tool_call_id", id) == 0 && json_array_append(list, m) == 0
                ? 0
                : api_no_memory(err);
    json_decref(m);
    return r;
}

int protocol_messages(const struct field_source *from, json_t *list, struct openai_ask *a,
                      struct api_error *err)
{
    if (!list || json_object_set_new(from->body, "\1messages", list) < 0)
        return api_no_memory(err);
    return read_messages(from, list, a, err);
}

int protocol_add_call(json_t *list, const char *id, const char *name, const char *arguments)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0) {
        last = protocol_message("assistant", "", 0);
        if (!last || json_array_append_new(list, last) < 0)
            return -ENOMEM;
    }
    json_t *calls = json_object_get(last, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (!calls || json_object_set_new(last, "tool_calls", calls) < 0)
            return -ENOMEM;
    }
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return call && json_array_append_new(calls, call) == 0 ? 0 : -ENOMEM;
}

json_t *protocol_tool(const json_t *name, json_t *description, json_t *parameters, bool strict)
{
    json_t *fn = json_pack("{s:s}", "name", json_string_value(name));
    if (fn && ((description && json_object_set(fn, "description", description) < 0) ||
               (parameters && json_object_set(fn, "parameters", parameters) < 0) ||
               (strict && json_object_set(fn, "strict", json_true()) < 0))) {
        json_decref(fn);
        fn = NULL;
    }
    return fn ? json_pack("{s:s,s:o}", "type", "function", "function", fn) : NULL;
}

bool forms_has(const char *const *list, const char *word)
{
    while (word && *list && strcmp(*list, word) != 0)
        list++;
    return word && *list;
}

const json_t *forms_part(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
}

int forms_part_of(const json_t *part, const char *const *types, const char *name,
                  const json_t **ret_text, struct api_error *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    *ret_text = forms_part(part);
    if (!forms_has(types, type) || !json_is_string(*ret_text))
        return api_refuse(err, 400, name, "`%s` holds a part of type %.40s; this model takes text.",
                          name, type ? type : "none");
    return 0;
}

int forms_text(const json_t *content, const char *const *types, const char *name,
               struct ek_buf *ret_text, struct api_error *err)
{
    if (json_is_string(content)) {
        (void)ek_buf_add(ret_text, json_string_value(content), json_string_length(content));
        return ek_buf_ok(ret_text) ? 0 : api_no_memory(err);
    }
    if (!json_is_array(content))
        return api_refuse(err, 400, name, "`%s` must be a string or a list of text parts.", name);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text;
        if (forms_part_of(json_array_get(content, i), types, name, &text, err) < 0)
            return -EBADMSG;
        if (ret_text->len)
            (void)ek_buf_puts(ret_text, "\n");
        (void)ek_buf_add(ret_text, json_string_value(text), json_string_length(text));
    }
    return ek_buf_ok(ret_text) ? 0 : api_no_memory(err);
}

/*
 * Reads bodies of Ollama's API as chats and completions (ollama.h). Called through rows of the
 * table in fields.c.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/ollama.h"
#include "server/api/protocols.h"
#include "server/api/readers.h"
#include "server/api/reply.h"
#include "server/api/served.h"

bool ollama_only_loads(enum openai_api api, const json_t *body)
{
    const json_t *prompt = field_of(body, "prompt"), *messages = field_of(body, "messages");
    if (api == API_OLLAMA_TEXT)
        return !prompt || (json_is_string(prompt) && json_string_length(prompt) == 0);
    return api == API_OLLAMA_CHAT &&
           (!messages || (json_is_array(messages) && json_array_size(messages) == 0));
}

/* Pictures cannot be looked at; a list without one says nothing. */
static int check_images(const json_t *m, struct api_error *err)
{
    const json_t *images = field_of(m, "images");
    return !images || (json_is_array(images) && json_array_size(images) == 0)
               ? 0
               : api_refuse(err, 400, "images", "`images`: this model takes text.");
}

/* Ollama's calls need no id: those without one get one. `ids` = of all calls, in their order. */
static int name_calls(json_t *m, json_t *ids, struct api_error *err)
{
    json_t *list = field_of(m, "tool_calls");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *call = json_array_get(list, i);
        char id[32];
        (void)snprintf(id, sizeof(id), "call_%zu", json_array_size(ids));
        if (!json_is_object(call))
            return api_refuse(err, 400, "messages", "`messages` holds a call that is no object.");
        if ((!field_of(call, "id") && json_object_set_new(call, "id", json_string(id)) < 0) ||
            json_object_set_new(call, "type", json_string("function")) < 0 ||
            json_array_append(ids, field_of(call, "id")) < 0)
            return api_no_memory(err);
    }
    return 0;
}

/* Its results have only the tool's name: the first one belongs to the first call, and so on. */
static int name_result(json_t *m, const json_t *ids, uint32_t *results, struct api_error *err)
{
    json_t *tool = field_of(m, "tool_name"), *id = json_array_get(ids, (*results)++);
    if ((id && !field_of(m, "tool_call_id") && json_object_set(m, "tool_call_id", id) < 0) ||
        (tool && !field_of(m, "name") && json_object_set(m, "name", tool) < 0))
        return api_no_memory(err);
    return 0;
}

int read_ollama_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    json_t *ids = json_array();
    uint32_t results = 0;
    int r = ids ? 0 : api_no_memory(err);
    for (size_t i = 0; r == 0 && i < json_array_size(v); i++) {
        json_t *m = json_array_get(v, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        r = check_images(m, err);
        if (r == 0)
            r = name_calls(m, ids, err);
        if (r == 0 && role && strcmp(role, "tool") == 0)
            r = name_result(m, ids, &results, err);
        if (r == 0 && role && json_is_object(m) && !field_of(m, "content") &&
            json_object_set_new(m, "content", json_string("")) < 0)
            r = api_no_memory(err);
    }
    json_decref(ids);
    return r == 0 ? read_messages(from, v, a, err) : r;
}

/* A text to complete as it is, or what a user says, with the system's message before it. */
int read_ollama_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    const json_t *system = field_of(from->body, "system");
    if (!json_is_string(v) || json_string_length(v) == 0)
        return api_refuse(err, 400, "prompt", "`prompt` must be a string, not empty.");
    if (!a->chat) {
        a->prompt = v;
        return 0;
    }
    json_t *list = json_array();
    int r = list ? 0 : -ENOMEM;
    if (r == 0 && json_string_length(system))
        r = json_array_append_new(list, protocol_message("system", json_string_value(system),
                                                         json_string_length(system)));
    if (r == 0)
        r = json_array_append_new(
            list, protocol_message("user", json_string_value(v), json_string_length(v)));
    if (r == 0)
        return protocol_messages(from, list, a, err);
    json_decref(list);
    return api_no_memory(err);
}

/* Its client sends an empty list for no tools. */
int read_ollama_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    return json_is_array(v) && json_array_size(v) == 0 ? 0 : read_tools(from, v, a, err);
}

/* How much to think: a level, which asks for thinking, too. */
static bool is_level(const json_t *v)
{
    static const char *const levels[] = {"low", "medium", "high", "max"};
    const char *said = json_string_value(v);
    for (size_t i = 0; said && i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(said, levels[i]) == 0)
            return true;
    }
    return false;
}

/* True and false are the template's enable_thinking; a word says how much. */
int read_ollama_think(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    bool level = is_level(v);
    if (!json_is_boolean(v) && !level)
        return api_refuse(err, 400, "think",
                          "`think` must be true, false, low, medium, high or max.");
    if (!json_is_false(v) && from->served->think == THINK_NONE)
        return api_refuse(err, 400, "think",
                          "`think`: %.100s does not support thinking here; a model that thinks "
                          "needs --reasoning-parser.",
                          a->model);
    if (level && read_effort(from, v, a, err) < 0)
        return -EBADMSG;
    json_t *given = a->template_args, *args = given ? json_copy(given) : json_object();
    if (!args || json_object_set(args, "enable_thinking", level ? json_true() : v) < 0) {
        json_decref(args);
        return api_no_memory(err);
    }
    if (json_object_set_new(from->body, "\1arguments", args) < 0)
        return api_no_memory(err);
    a->template_args = args;
    return 0;
}

int read_ollama_text(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err)
{
    (void)from;
    if (!json_is_string(v))
        return api_refuse(err, 400, "system", "`system` must be a string.");
    if (!a->chat && json_string_length(v))
        return api_refuse(err, 400, "system", "`system` needs a template, and `raw` has none.");
    return 0;
}

/* What it changes is decided before fields are read. */
int read_ollama_raw(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    bool raw = false;
    (void)from;
    (void)a;
    return field_bool(v, "raw", &raw, err);
}

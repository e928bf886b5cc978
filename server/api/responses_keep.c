/* What is stored of a response: the items that it was asked with, and the object. See past.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/forms.h"
#include "server/api/past.h"
#include "server/api/served.h"

int read_store(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err)
{
    bool keep = true;
    int r = field_bool(v, "store", &keep, err);
    a->keep = keep && from->served->pasts;
    if (r == 0 && v && keep && !a->keep)
        openai_ignore(a, "", "store");
    return r;
}

/* The conversation is in the input already (server/net/stored.c). */
int read_previous(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err)
{
    static const char name[] = "previous_response_id";
    (void)a;
    if (!json_is_string(v))
        return api_refuse(err, 400, name, "`%s` must be a string.", name);
    if (!from->served->pasts && json_string_length(v) > 0)
        return api_refuse(err, 400, name,
                          "`%s` cannot be used: this server stores no responses. Send the "
                          "conversation as input, or start the server with "
                          "--responses-store-bytes.",
                          name);
    return 0;
}

/* The content of a message as a list of parts. */
static json_t *parts_of(const char *role, json_t *content)
{
    bool own = role && strcmp(role, "assistant") == 0;
    return own ? json_pack("[{s:s,s:O,s:[]}]", "type", "output_text", "text", content,
                           "annotations")
               : json_pack("[{s:s,s:O}]", "type", "input_text", "text", content);
}

/* An item as the API shows it: with a type, an id and, of a message, a list of parts. A new
 * reference, NULL when out of memory. */
static json_t *whole_item(json_t *item, const char *id)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content"), *out = json_copy(item);
    bool message = !type || strcmp(type, "message") == 0;
    int r = out ? 0 : -1;
    if (r == 0 && message)
        r = json_object_set_new(out, "type", json_string("message"));
    if (r == 0 && message && !json_object_get(item, "status"))
        r = json_object_set_new(out, "status", json_string("completed"));
    if (r == 0 && message && json_is_string(content))
        r = json_object_set_new(out, "content", parts_of(role, content));
    if (r == 0 && !json_is_string(json_object_get(item, "id")))
        r = json_object_set_new(out, "id", json_string(id));
    if (r == 0)
        return out;
    json_decref(out);
    return NULL;
}

static int add_item(struct generation *g, json_t *item, size_t index)
{
    char id[sizeof(g->id) + 32];
    (void)snprintf(id, sizeof(id), "item_%s_%zu", g->id + strlen("resp_"), index);
    json_t *whole = whole_item(item, id);
    char *text = whole ? json_dumps(whole, JSON_COMPACT) : NULL;
    if (text && g->brought.len)
        (void)ek_buf_puts(&g->brought, ",");
    if (text)
        (void)ek_buf_puts(&g->brought, text);
    free(text);
    json_decref(whole);
    return text && ek_buf_ok(&g->brought) ? 0 : -ENOMEM;
}

int responses_brought(struct generation *g)
{
    json_t *input = json_object_get(g->body, "input");
    int r = 0;
    if (json_is_string(input)) {
        json_t *said = json_pack("{s:s,s:O}", "role", "user", "content", input);
        r = said ? add_item(g, said, 0) : -ENOMEM;
        json_decref(said);
    }
    for (size_t i = g->inherited; r == 0 && i < json_array_size(input); i++)
        r = add_item(g, json_array_get(input, i), i - g->inherited);
    return r;
}

void responses_keep(struct generation *g, const struct ek_buf *out, size_t at, size_t output_at,
                    size_t output_end)
{
    if (!ek_buf_ok(out))
        return;
    const struct past_text text = {.id = g->id,
                                   .response = out->data + at,
                                   .response_len = out->len - at,
                                   .output_at = output_at - at,
                                   .output_len = output_end - output_at,
                                   .input = g->brought.data ? g->brought.data : "",
                                   .input_len = g->brought.len};
    /* Where there is no room for it, it is not found later: that is what clients can be told. */
    (void)past_keep(g->served->pasts, g->keeper, &text, g->before, ek_now_us());
}

/*
 * What is stored of a response: the items that it was asked with, and the object. See past.h.
 *
 * Clients page through the items of a conversation by their ids, so within it no two are the same:
 * ours are made from what is drawn for each request (not from its name, which clients may repeat),
 * and an item that comes with an id that the conversation has already gets another one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/past.h"
#include "server/api/protocols.h"
#include "server/api/readers.h"
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

/* An item as the API shows it: with a type, an id (`id`, or "" for the one that it has) and, of a
 * message, a list of parts. A new reference, NULL when out of memory. */
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
    if (r == 0 && id[0])
        r = json_object_set_new(out, "id", json_string(id));
    if (r == 0)
        return out;
    json_decref(out);
    return NULL;
}

static const char *id_of(const json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    return id ? id : "";
}

/* `taken` = ids of the conversation. */
static int add_item(struct generation *g, json_t *item, size_t index, json_t *taken)
{
    const char *given = id_of(item);
    char id[64] = "";
    if (given[0] == '\0' || json_object_get(taken, given))
        (void)snprintf(id, sizeof(id), "item_%016llx%016llx_%zu",
                       (unsigned long long)g->call_key[0], (unsigned long long)g->call_key[1],
                       index);
    json_t *whole = whole_item(item, id);
    char *text = whole ? json_dumps(whole, JSON_COMPACT) : NULL;
    int r = text ? json_object_set_new(taken, id[0] ? id : given, json_null()) : -1;
    if (text && g->brought.len)
        (void)ek_buf_puts(&g->brought, ",");
    if (text)
        (void)ek_buf_puts(&g->brought, text);
    free(text);
    json_decref(whole);
    return r == 0 && ek_buf_ok(&g->brought) ? 0 : -ENOMEM;
}

/* The response is not stored; a request that asked for that by name is told. */
static void give_up(struct generation *g)
{
    g->ask.keep = false;
    if (json_is_true(field_of(g->body, "store")))
        openai_ignore(&g->ask, "", "store");
}

static int add_items(struct generation *g, json_t *input, json_t *taken)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < g->inherited; i++) {
        const char *id = id_of(json_array_get(input, i));
        r = id[0] ? json_object_set_new(taken, id, json_null()) : 0;
    }
    if (json_is_string(input)) {
        json_t *said = json_pack("{s:s,s:O}", "role", "user", "content", input);
        r = said ? add_item(g, said, 0, taken) : -ENOMEM;
        json_decref(said);
    }
    for (size_t i = g->inherited; r == 0 && i < json_array_size(input); i++)
        r = add_item(g, json_array_get(input, i), i - g->inherited, taken);
    return r < 0 ? -ENOMEM : 0;
}

int responses_brought(struct generation *g)
{
    json_t *taken = json_object();
    int r = taken ? add_items(g, json_object_get(g->body, "input"), taken) : -ENOMEM;
    json_decref(taken);
    if (r == 0 && !past_fits(g->served->pasts, g->keeper, g->before, g->brought.len)) {
        give_up(g);
        ek_buf_done(&g->brought);
    }
    return r;
}

/* Writes false where true stands. */
static void deny(struct ek_buf *out, size_t at)
{
    if (ek_buf_puts(out, " ") < 0)
        return;
    memmove(out->data + at + 5, out->data + at + 4, out->len - at - 5);
    memcpy(out->data + at, "false", 5);
}

void responses_keep(struct generation *g, struct ek_buf *out, const struct response_at *at)
{
    if (!ek_buf_ok(out))
        return;
    const struct past_text text = {.id = g->id,
                                   .response = out->data + at->begin,
                                   .response_len = out->len - at->begin,
                                   .output_at = at->output - at->begin,
                                   .output_len = at->output_end - at->output,
                                   .input = g->brought.data ? g->brought.data : "",
                                   .input_len = g->brought.len};
    if (past_keep(g->served->pasts, g->keeper, &text, g->before, ek_now_us()) == 0)
        return;
    give_up(g);
    deny(out, at->store);
}

/* Stored responses over HTTP, see stored.h. */
#include "server/net/stored.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "server/api/fields.h"
#include "server/api/past.h"
#include "server/api/reply.h"
#include "server/net/answer.h"
#include "server/net/arrive.h"
#include "server/net/auth.h"
#include "server/net/request.h"
#include "server/net/state.h"

#define PAGE_ITEMS 20 /* of a list, where the client names no number */
#define PAGE_MOST  100

static const char root[] = "/v1/responses/";

static int refuse(struct answer *a, int status, const char *param, const char *msg)
{
    answer_fault(a, status, param, msg);
    return -EBADMSG;
}

static int refuse_memory(struct answer *a)
{
    return refuse(a, 503, "", "The server is out of memory.");
}

/* The one of that id that the exchange's key may see. NULL with an answer. */
static struct past *find(struct exchange *x, const char *id, const char *param, struct answer *a)
{
    struct past_store *s = http_served(x->http)->pasts;
    struct api_error err;
    struct past *p = s ? past_find(s, auth_itself(x->http->auth, x->key), id, ek_now_us()) : NULL;
    if (p)
        return p;
    if (!s)
        (void)refuse(a, 404, param,
                     "This server stores no responses; it does with --responses-store-bytes.");
    else {
        (void)api_refuse(&err, 404, param, "Response with id '%.180s' not found.", id);
        answer_error(a, &err);
    }
    return NULL;
}

/* The items of a conversation as a list. NULL when out of memory. */
static json_t *load_items(const struct past *p, bool inputs)
{
    struct ek_buf text = {0};
    (void)ek_buf_puts(&text, "[");
    if (past_items(p, inputs, &text) < 0)
        text.failed = true;
    (void)ek_buf_puts(&text, "]");
    json_t *list = ek_buf_ok(&text) ? json_loadb(text.data, text.len, JSON_ALLOW_NUL, NULL) : NULL;
    ek_buf_done(&text);
    return list;
}

/* ---- going on ---- */

/* Pays for the conversation as if it had come with the body: memory and work. False with an
 * answer. */
static bool charge(struct exchange *x, const struct past *p, struct answer *a)
{
    struct ek_buf text = {0};
    if (past_items(p, false, &text) < 0 || !text.data) {
        ek_buf_done(&text);
        (void)refuse_memory(a);
        return false;
    }
    const struct ek_json_size size = ek_json_measure(text.data, text.len);
    ek_buf_done(&text);
    int r = ek_bill_set(&x->bill, x->bill.bytes + size.bytes);
    if (r < 0) {
        arrive_refuse_room(x, r, "The conversation", a);
        return false;
    }
    x->json_bytes += size.bytes;
    if (!x->quick)
        x->work.fuel += past_items_bytes(p) * OPENAI_FUEL_BYTE;
    return true;
}

/* The conversation with the new input behind it, as the body's input. */
static int join(json_t *body, const struct past *p, uint32_t *ret_count)
{
    json_t *input = json_object_get(body, "input"), *list = load_items(p, false);
    size_t count = json_array_size(list);
    int r = list ? 0 : -1;
    if (r == 0 && json_is_string(input))
        r = json_array_append_new(list, json_pack("{s:s,s:O}", "role", "user", "content", input));
    else if (r == 0 && json_is_array(input))
        r = json_array_extend(list, input);
    if (r == 0)
        r = json_object_set(body, "input", list);
    json_decref(list);
    *ret_count = (uint32_t)count;
    return r;
}

int stored_join(struct exchange *x, json_t *body, struct past **ret_past, uint32_t *ret_count,
                struct answer *a)
{
    struct past_store *s = http_served(x->http)->pasts;
    const json_t *id = field_of(body, "previous_response_id"), *input = field_of(body, "input");
    *ret_past = NULL;
    *ret_count = 0;
    if (!s || json_string_length(id) == 0 || !(json_is_string(input) || json_array_size(input) > 0))
        return 0; /* there is none, or it is refused when it is read */
    struct past *p = find(x, json_string_value(id), "previous_response_id", a);
    if (!p)
        return -EBADMSG;
    int r = x->quick && past_items_bytes(p) > BOUND_BODY_INLINE ? HTTP_ELSEWHERE : 0;
    if (r == 0 && !charge(x, p, a))
        r = -EBADMSG;
    if (r == 0 && join(body, p, ret_count) < 0)
        r = refuse_memory(a);
    if (r == 0)
        *ret_past = p;
    else
        past_drop(s, p);
    return r;
}

/* ---- the routes ---- */

/* The id in the path. */
static void path_id(const struct exchange *x, char ret_id[PAST_ID])
{
    const char *from = x->path + sizeof(root) - 1;
    const char *items = strstr(from, "/input_items"); /* as the route has it, or not */
    size_t n = items ? (size_t)(items - from) : strlen(from);
    n = n < PAST_ID ? n : 0; /* none is so long */
    memcpy(ret_id, from, n);
    ret_id[n] = '\0';
}

static const char *query(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

int stored_get(struct exchange *x, struct answer *a)
{
    const char *stream = query(x, "stream");
    char id[PAST_ID];
    size_t len;
    path_id(x, id);
    bool replay = stream && strcmp(stream, "true") == 0;
    if (replay)
        (void)refuse(a, 400, "stream", "`stream`: a stored response is given whole.");
    struct past *p = replay ? NULL : find(x, id, "response_id", a);
    if (!p)
        return 0;
    const char *text = past_response(p, &len);
    (void)ek_buf_add(&a->body, text, len);
    past_drop(http_served(x->http)->pasts, p);
    return 0;
}

int stored_delete(struct exchange *x, struct answer *a)
{
    struct past_store *s = http_served(x->http)->pasts;
    char id[PAST_ID];
    path_id(x, id);
    struct past *p = find(x, id, "response_id", a);
    if (!p)
        return 0;
    past_drop(s, p);
    (void)past_delete(s, auth_itself(x->http->auth, x->key), id, ek_now_us());
    (void)ek_buf_puts(&a->body, "{\"id\":");
    reply_string(&a->body, id);
    (void)ek_buf_puts(&a->body, ",\"object\":\"response\",\"deleted\":true}");
    return 0;
}

/* How a list is asked for. */
struct page {
    bool newest_first;
    size_t most;
    const char *after; /* the id of the item before the first one, or NULL */
};

/* False with an answer. */
static bool read_page(const struct exchange *x, struct page *page, struct answer *a)
{
    const char *limit = query(x, "limit"), *order = query(x, "order");
    char *end = NULL;
    unsigned long n = limit ? strtoul(limit, &end, 10) : PAGE_ITEMS;
    if (limit && (limit[0] < '0' || limit[0] > '9' || *end || n < 1 || n > PAGE_MOST))
        return refuse(a, 400, "limit", "`limit` must be an integer from 1 to 100.") == 0;
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return refuse(a, 400, "order", "`order` must be asc or desc.") == 0;
    *page = (struct page){!order || order[0] == 'd', n, query(x, "after")};
    return true;
}

static const char *item_id(const json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    return id ? id : "";
}

static void put_items(struct ek_buf *out, const json_t *items, const struct page *page)
{
    size_t n = json_array_size(items), at = 0;
    const json_t *first = NULL, *last = NULL;
    uint32_t put = 0;
    bool more = false, on = !page->after;
    (void)ek_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (; at < n && !more; at++) {
        const json_t *item = json_array_get(items, page->newest_first ? n - 1 - at : at);
        more = on && put == page->most;
        if (on && !more) {
            char *text = json_dumps(item, JSON_COMPACT);
            (void)ek_buf_puts(out, put ? "," : "");
            (void)ek_buf_puts(out, text ? text : "");
            out->failed = out->failed || !text;
            free(text);
            first = first ? first : item;
            last = item;
            put++;
        }
        on = on || strcmp(item_id(item), page->after) == 0;
    }
    (void)ek_buf_puts(out, "],\"first_id\":");
    reply_string(out, item_id(first));
    (void)ek_buf_puts(out, ",\"last_id\":");
    reply_string(out, item_id(last));
    (void)ek_buf_printf(out, ",\"has_more\":%s}", more ? "true" : "false");
}

int stored_items(struct exchange *x, struct answer *a)
{
    struct page page;
    char id[PAST_ID];
    path_id(x, id);
    if (!read_page(x, &page, a))
        return 0;
    struct past *p = find(x, id, "response_id", a);
    if (!p)
        return 0;
    bool elsewhere = x->quick && past_items_bytes(p) > BOUND_BODY_INLINE;
    json_t *items = elsewhere ? NULL : load_items(p, true);
    if (items)
        put_items(&a->body, items, &page);
    else if (!elsewhere)
        (void)refuse_memory(a);
    json_decref(items);
    past_drop(http_served(x->http)->pasts, p);
    return elsewhere ? HTTP_ELSEWHERE : 0;
}

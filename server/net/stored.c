/*
 * Stored responses over HTTP (stored.h). Called by generate.c and tokens.c for what a request goes
 * on from, and through the table of routes.
 */
#include "server/net/stored.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/past.h"
#include "server/api/reply.h"
#include "server/net/answer.h"
#include "server/net/arrive.h"
#include "server/net/auth.h"
#include "server/net/request.h"
#include "server/net/state.h"

#define ROOT       "/v1/responses/"
#define PAGE_ITEMS 20 /* of a list, where the client names no number */
#define PAGE_MOST  100
#define PAGE_FRAME 128u /* bytes beside the items and ids */

static int stored_refuse(struct answer *a, int status, const char *param, const char *msg)
{
    answer_fault(a, status, param, msg);
    return -EBADMSG;
}

static int refuse_memory(struct answer *a)
{
    return stored_refuse(a, 503, "", "The server is out of memory.");
}

/* The one of that id that the exchange's key may see. NULL with an answer. */
static struct past *stored_find(struct exchange *x, const char *id, const char *param,
                                struct answer *a)
{
    struct past_store *s = http_served(x->http)->pasts;
    struct api_error err;
    struct past *p = s ? past_find(s, auth_itself(x->http->auth, x->key), id, ek_now_us()) : NULL;
    if (p)
        return p;
    if (!s)
        (void)stored_refuse(
            a, 404, param,
            "This server stores no responses; it does with --responses-store-bytes.");
    else {
        (void)api_refuse(&err, 404, param, "Response with id '%.180s' not found.", id);
        answer_error(a, &err);
    }
    return NULL;
}

/* Charges what the exchange will hold before there is any of it. False with an answer. */
static bool stored_hold(struct exchange *x, uint64_t bytes, const char *what, struct answer *a)
{
    int r = ek_bill_set(&x->bill, x->bill.bytes + bytes);
    if (r < 0)
        arrive_refuse_room(x, r, what, a);
    return r == 0;
}

/* ---- going on ---- */

/* Pays for the conversation as if it had come with the body: memory and work. False with an
 * answer. */
static bool stored_charge(struct exchange *x, const struct past *p, struct answer *a)
{
    if (!stored_hold(x, past_json_bytes(p), "The conversation", a))
        return false;
    x->json_bytes += past_json_bytes(p);
    if (!x->quick)
        x->work.fuel += past_items_bytes(p) * OPENAI_FUEL_BYTE;
    return true;
}

/* Goes on while each of them is added to the list. */
static bool load_item(void *list, const struct past_item *item)
{
    json_t *v = json_loadb(item->text, item->len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    return json_array_append_new(list, v) == 0;
}

/* The conversation with the new input behind it, as the body's input. */
static int append_input(json_t *body, const struct past *p, uint32_t *ret_count)
{
    json_t *input = json_object_get(body, "input"), *list = json_array();
    int r = list ? past_walk(p, false, false, load_item, list) : -1;
    size_t count = json_array_size(list);
    if (r == 0 && count != past_count(p, false))
        r = -1; /* one of them was not added */
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
    struct past *p = stored_find(x, json_string_value(id), "previous_response_id", a);
    if (!p)
        return -EBADMSG;
    int r = x->quick && past_items_bytes(p) > BOUND_BODY_INLINE ? HTTP_ELSEWHERE : 0;
    if (r == 0 && !stored_charge(x, p, a))
        r = -EBADMSG;
    if (r == 0 && append_input(body, p, ret_count) < 0)
        r = refuse_memory(a);
    if (r == 0)
        *ret_past = p;
    else
        past_drop(s, p);
    return r;
}

/* ---- the routes ---- */

/* The id in the path. */
static void path_id(const char *path, char ret_id[PAST_ID])
{
    const char *from = path + sizeof(ROOT) - 1;
    const char *items = strstr(from, "/input_items"); /* as the route has it, or not */
    size_t n = items ? (size_t)(items - from) : strlen(from);
    n -= n > 0 && from[n - 1] == '/'; /* as in route_matches() */
    n = n < PAST_ID ? n : 0;          /* none is so long */
    memcpy(ret_id, from, n);
    ret_id[n] = '\0';
}

static const char *stored_query(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, name);
}

int stored_get(struct exchange *x, struct answer *a)
{
    const char *stream = stored_query(x->mhd, "stream");
    char id[PAST_ID];
    size_t len;
    path_id(x->path, id);
    bool replay = stream && strcmp(stream, "true") == 0;
    if (replay)
        (void)stored_refuse(a, 400, "stream", "`stream`: a stored response is given whole.");
    struct past *p = replay ? NULL : stored_find(x, id, "response_id", a);
    if (!p)
        return 0;
    const char *text = past_response(p, &len);
    if (stored_hold(x, len + 1, "The response", a) && ek_buf_reserve(&a->body, len) == 0)
        (void)ek_buf_add(&a->body, text, len);
    past_drop(http_served(x->http)->pasts, p);
    return 0;
}

int stored_delete(struct exchange *x, struct answer *a)
{
    struct past_store *s = http_served(x->http)->pasts;
    char id[PAST_ID];
    path_id(x->path, id);
    struct past *p = stored_find(x, id, "response_id", a);
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
    const char *limit = stored_query(x->mhd, "limit"), *order = stored_query(x->mhd, "order");
    char *end = NULL;
    unsigned long n = limit ? strtoul(limit, &end, 10) : PAGE_ITEMS;
    if (limit && (limit[0] < '0' || limit[0] > '9' || *end || n < 1 || n > PAGE_MOST))
        return stored_refuse(a, 400, "limit", "`limit` must be an integer from 1 to 100.") == 0;
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return stored_refuse(a, 400, "order", "`order` must be asc or desc.") == 0;
    *page = (struct page){!order || order[0] == 'd', n, stored_query(x->mhd, "after")};
    return true;
}

/* A page while it is looked for, then while it is written. */
struct page_walk {
    const struct page *page;
    struct ek_buf *out; /* NULL: it is only looked for */
    struct past_item first, last;
    size_t items, bytes;
    bool on, more; /* behind `after`; there is one more than fit */
};

/* Whether an item has the id that the client names; few of them have to be decoded. */
static bool has_id(const struct past_item *item, const char *id)
{
    if (item->id_len < 2)
        return false;
    if (!memchr(item->id, '\\', item->id_len))
        return strlen(id) == item->id_len - 2 && memcmp(item->id + 1, id, item->id_len - 2) == 0;
    json_t *v = json_loadb(item->id, item->id_len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    bool same = json_is_string(v) && strcmp(json_string_value(v), id) == 0;
    json_decref(v);
    return same;
}

static bool page_item(void *ctx, const struct past_item *item)
{
    struct page_walk *w = ctx;
    if (!w->on) {
        w->on = has_id(item, w->page->after);
        return true;
    }
    w->more = w->items == w->page->most;
    if (w->more)
        return false;
    if (w->out) {
        (void)ek_buf_puts(w->out, w->items ? "," : "");
        (void)ek_buf_add(w->out, item->text, item->len);
    }
    w->first = w->items ? w->first : *item;
    w->last = *item;
    w->items++;
    w->bytes += item->len + 1;
    return true;
}

static void put_id(struct ek_buf *out, const char *name, const struct past_item *item)
{
    (void)ek_buf_puts(out, name);
    if (item->id_len)
        (void)ek_buf_add(out, item->id, item->id_len);
    else
        (void)ek_buf_puts(out, "\"\"");
}

static void put_page(struct ek_buf *out, const struct past *p, const struct page *page)
{
    struct page_walk w = {.page = page, .out = out, .on = !page->after};
    (void)ek_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    if (past_walk(p, true, page->newest_first, page_item, &w) < 0)
        out->failed = true;
    put_id(out, "],\"first_id\":", &w.first);
    put_id(out, ",\"last_id\":", &w.last);
    (void)ek_buf_printf(out, ",\"has_more\":%s}", w.more ? "true" : "false");
}

/* What the page has is found first, so that it is paid for before it is copied. */
static int answer_page(struct exchange *x, const struct past *p, const struct page *page,
                       struct answer *a)
{
    struct page_walk w = {.page = page, .on = !page->after};
    if (x->quick && page->after && past_items_bytes(p) > BOUND_BODY_INLINE)
        return HTTP_ELSEWHERE; /* it is looked for in all of them */
    if (past_walk(p, true, page->newest_first, page_item, &w) < 0) {
        (void)refuse_memory(a);
        return 0;
    }
    const size_t bytes = w.bytes + w.first.id_len + w.last.id_len + PAGE_FRAME;
    if (x->quick && bytes > BOUND_BODY_INLINE)
        return HTTP_ELSEWHERE;
    if (stored_hold(x, bytes, "The page", a) && ek_buf_reserve(&a->body, bytes) == 0)
        put_page(&a->body, p, page);
    return 0;
}

int stored_items(struct exchange *x, struct answer *a)
{
    struct page page;
    char id[PAST_ID];
    path_id(x->path, id);
    if (!read_page(x, &page, a))
        return 0;
    struct past *p = stored_find(x, id, "response_id", a);
    if (!p)
        return 0;
    int r = answer_page(x, p, &page, a);
    past_drop(http_served(x->http)->pasts, p);
    return r;
}

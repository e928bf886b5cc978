/* Reads the head and the body of an exchange (arrive.h). Called by exchange.c as bytes come. */
#include "server/net/arrive.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/net/answer.h"
#include "server/net/conn.h"
#include "server/net/cors.h"
#include "server/net/guard.h"
#include "server/net/gunzip.h"
#include "server/net/request.h"
#include "server/net/send.h"
#include "server/net/state.h"

#define ROUTE_HINT_BYTES 128 /* of a path that was meant; none of ours is longer */

static size_t body_most(const struct exchange *x)
{
    const struct served *s = http_served(x->http);
    return s ? s->body_most : BOUND_BODY_LOADING;
}

/* What follows cannot be told from the next request: answered at once, then closed. */
static enum MHD_Result arrive_refuse(struct exchange *x, int status, const char *msg)
{
    struct answer a = {.close = true};
    answer_refuse_fault(x, &a, status, msg);
    return answer_send(x, &a);
}

/* Most clients read no answer before they have sent their body: closing on them would look like a
 * broken connection. So the answer waits for the body, unless it is far too large, or the client
 * asks first. */
static enum MHD_Result refuse_late(struct exchange *x, struct answer *a)
{
    bool asks = x->head.expect != NULL;
    a->close = asks || x->length / BOUND_BODY_SWALLOW > body_most(x);
    if (a->close || (x->length == 0 && !x->chunked))
        return answer_send(x, a);
    x->refused = true;
    x->late = *a;
    return MHD_YES;
}

/* The client's x-request-id when it is harmless, else a fresh one. */
static void name_request(struct exchange *x)
{
    const char *given = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)given[i]) && !strchr("-_.:", given[i]))
            n = 0;
    }
    if (n > 0 && n < sizeof(x->id))
        memcpy(x->id, given, n + 1);
    else
        (void)snprintf(
            x->id, sizeof(x->id), "%016llx%016llx", (unsigned long long)x->http->id_base[0],
            (unsigned long long)(x->http->id_base[1] + atomic_fetch_add(&x->http->next_id, 1)));
}

static bool is_json(struct MHD_Connection *mhd)
{
    const char *type = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Content-Type");
    size_t n = type ? strcspn(type, "; \t") : 0;
    return n == 16 && strncasecmp(type, "application/json", 16) == 0;
}

/* Ollama asks for no type, and some of its clients send none. A page of another site could do the
 * same without asking first; it has an Origin. */
static bool needs_type(const struct exchange *x)
{
    static const char root[] = "/api/";
    return strncmp(x->path, root, sizeof(root) - 1) != 0 ||
           MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Type") ||
           MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Origin");
}

/* A path as it was meant: one slash where there are several, none at its end, /v1 once. */
static void mend_path(const char *path, char *ret_path, size_t size)
{
    size_t n = 0;
    for (; *path && n + 1 < size; path++) {
        if (*path != '/' || n == 0 || ret_path[n - 1] != '/')
            ret_path[n++] = *path;
    }
    while (n > 1 && ret_path[n - 1] == '/')
        n--;
    ret_path[n] = '\0';
    while (strncmp(ret_path, "/v1/v1/", 7) == 0)
        memmove(ret_path, ret_path + 3, strlen(ret_path + 3) + 1);
}

static bool is_there(const char *method, const char *path)
{
    const char *allow = NULL;
    const struct route *r = route_find(method, path, &allow);
    return allow || (r && !(r->flags & ROUTE_LOCAL));
}

/* The usual slips are a base URL without /v1, one with it twice, and one that ends in a slash. */
static void say_missing(const struct exchange *x, char *ret_msg, size_t size)
{
    char other[ROUTE_HINT_BYTES + 3] = "/v1";
    mend_path(x->path, other + 3, sizeof(other) - 3);
    const char *meant = is_there(x->method, other + 3) ? other + 3
                        : is_there(x->method, other)   ? other
                                                       : NULL;
    if (meant && strlen(x->path) < ROUTE_HINT_BYTES)
        (void)snprintf(ret_msg, size, "There is no %.100s; did you mean %s?", x->path, meant);
    else
        (void)snprintf(ret_msg, size, "There is no %.100s; GET /openapi.json lists what there is.",
                       x->path);
}

static enum MHD_Result refuse_route(struct exchange *x, const char *allow)
{
    struct answer a = {.allow = allow};
    char msg[256];
    if (allow)
        (void)snprintf(msg, sizeof(msg), "Method %s is not allowed for %.100s; use %s.", x->method,
                       x->path, allow);
    else
        say_missing(x, msg, sizeof(msg));
    answer_refuse_fault(x, &a, allow ? 405 : 404, msg);
    return refuse_late(x, &a);
}

/* Before the model is loaded, or after the engine has failed. */
static enum MHD_Result refuse_phase(struct exchange *x)
{
    struct answer a = {0};
    struct http *h = x->http;
    bool loading = atomic_load(&h->phase) == HTTP_LOADING;
    struct api_error err;
    (void)api_refuse(&err, 503, "", "%s",
                     loading ? "The model is being loaded." : "The server is ending.");
    err.retry_after_s = 2;
    answer_refuse(x, &a, &err);
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_type(struct exchange *x)
{
    struct answer a = {0};
    const char *is = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Content-Type");
    char msg[160];
    (void)snprintf(msg, sizeof(msg), "The header Content-Type must be application/json%s%.60s.",
                   is ? ", not " : "; there is none", is ? is : "");
    answer_refuse_fault(x, &a, 400, msg);
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_key(struct exchange *x)
{
    struct answer a = {0};
    guard_refuse(x, &a);
    return refuse_late(x, &a);
}

enum MHD_Result arrive_too_large(struct exchange *x)
{
    char msg[160];
    (void)snprintf(msg, sizeof(msg),
                   "The body has %llu bytes; at most %zu are accepted (--max-body-bytes).",
                   (unsigned long long)(x->length ? x->length : x->body_bytes), body_most(x));
    return arrive_refuse(x, 413, msg);
}

static enum MHD_Result refuse_host(struct exchange *x, const char *why)
{
    struct answer a = {0};
    answer_refuse_fault(x, &a, 400, why);
    return refuse_late(x, &a);
}

static enum MHD_Result refuse_head(struct exchange *x, const struct api_error *err)
{
    struct answer a = {.close = true};
    answer_refuse(x, &a, err);
    return answer_send(x, &a);
}

enum MHD_Result arrive_head(struct exchange *x, const char *url, const char *method,
                            const char *version)
{
    const char *allow = NULL;
    struct api_error err;
    struct answer a = {0};
    x->begun = true;
    name_request(x);
    if (guard_head(x, method, version, &err) < 0)
        return refuse_head(x, &err);
    if (!guard_client(x))
        return arrive_refuse(x, 403, "A client certificate is needed that --ssl-ca-certs knows.");
    x->chunked = x->head.coding != NULL;
    x->length = x->head.body_bytes;
    x->path = guard_path(x, head_path(url));
    x->preflight = cors_preflight(x, &a);
    if (x->preflight)
        return refuse_late(x, &a);
    x->route = route_find(x->method, x->path, &allow);
    if (x->route && (x->route->flags & ROUTE_LOCAL) && !x->conn->local)
        x->route = NULL;
    if (!x->http->pages && x->route && (x->route->flags & ROUTE_PAGE))
        x->route = NULL;
    const char *foreign = guard_host(x);
    if (foreign)
        return refuse_host(x, foreign);
    if (!guard_key(x))
        return refuse_key(x);
    if (!x->route)
        return refuse_route(x, allow);
    if (!(x->route->flags & ROUTE_EARLY) && atomic_load(&x->http->phase) != HTTP_SERVING)
        return refuse_phase(x);
    if ((x->route->flags & ROUTE_JSON) && !is_json(x->mhd) && needs_type(x))
        return refuse_type(x);
    ek_bill_open(&x->bill, &x->http->memory, (uint32_t)(x->key + 1));
    if (x->length <= body_most(x))
        return MHD_YES;
    x->too_large = true;
    bool asks = x->head.expect != NULL;
    return asks || x->length / BOUND_BODY_SWALLOW > body_most(x) ? arrive_too_large(x) : MHD_YES;
}

void arrive_refuse_room(const struct exchange *x, int r, const char *what, struct answer *a)
{
    struct api_error err;
    const double mib = 1048576.0, share = (double)atomic_load(&x->http->memory.share) / mib;
    if (r == -E2BIG)
        (void)api_refuse(&err, 413, "",
                         "%s would take more memory than the %.0f MiB that one client may hold. "
                         "Send less at once.",
                         what, share);
    else if (r == -EDQUOT)
        (void)api_refuse(&err, 429, "",
                         "%s would take more memory than is left of the %.0f MiB for the open "
                         "requests of this key. Let some of them end first.",
                         what, share);
    else
        (void)api_refuse(&err, 503, "",
                         "The open requests take all the memory that there is for them. Try again "
                         "later.");
    err.retry_after_s = r == -E2BIG ? 0 : 1;
    answer_refuse(x, a, &err);
}

/* Bytes of the body that are counted: small ones are not, connections are. */
static uint64_t counted(size_t len)
{
    return len > BOUND_BODY_INLINE ? len : 0;
}

/* Charges a body that grows while it is unpacked, beside what it is unpacked from. */
static int arrive_charge(void *ctx, size_t len)
{
    struct exchange *x = ctx;
    return ek_bill_set(&x->bill, counted(x->body.len) + counted(len));
}

/* Unpacks the body. False with an answer. */
static bool arrive_unpack(struct exchange *x, struct answer *a)
{
    struct ek_buf whole = {.limit = body_most(x)};
    char msg[160];
    int r = gunzip(x->body.data, x->body.len, &whole, arrive_charge, x);
    if (r == 0) {
        ek_buf_done(&x->body);
        x->body = whole;
        x->head.gzipped = false;
        return true;
    }
    ek_buf_done(&whole);
    if (r == -EBADMSG) {
        answer_refuse_fault(x, a, 400, "The body is not what gzip makes, or it has no end.");
    } else if (r == -EFBIG) {
        (void)snprintf(msg, sizeof(msg),
                       "The unpacked body has more than the %zu bytes that are accepted "
                       "(--max-body-bytes).",
                       body_most(x));
        answer_refuse_fault(x, a, 413, msg);
    } else {
        arrive_refuse_room(x, r, "The unpacked body", a);
    }
    return false;
}

bool arrive_json(struct exchange *x, struct answer *a)
{
    const uint64_t most = (uint64_t)BOUND_BODY_JSON * body_most(x);
    struct api_error err;
    if (!(x->route->flags & ROUTE_JSON))
        return true;
    if (x->head.gzipped && !arrive_unpack(x, a))
        return false;
    const struct ek_json_size size = ek_json_measure(x->body.data, x->body.len, most);
    if (size.bytes > most) {
        (void)api_refuse(&err, 413, "",
                         "The first %llu JSON values of the body take more than the %llu MiB of "
                         "memory that are accepted. Send fewer values at once.",
                         (unsigned long long)size.values, (unsigned long long)(most >> 20));
        answer_refuse(x, a, &err);
        return false;
    }
    int r = ek_bill_set(&x->bill, counted(x->body.len) + size.bytes);
    if (r < 0) {
        arrive_refuse_room(x, r, "The body", a);
        return false;
    }
    x->json_bytes = size.bytes;
    return true;
}

void arrive_read(struct exchange *x)
{
    ek_buf_done(&x->body);
    (void)ek_bill_set(&x->bill, x->json_bytes); /* lower: it does not fail */
}

void arrive_done(struct exchange *x)
{
    ek_buf_done(&x->body);
    (void)ek_bill_set(&x->bill, 0); /* it does not fail */
}

enum MHD_Result arrive_body(struct exchange *x, const char *upload, size_t *size)
{
    size_t most = body_most(x);
    x->worker->eventless = 0;
    x->body_bytes += *size;
    x->body.limit = most;
    if (x->body_bytes > most)
        x->too_large = true;
    int r = x->too_large || x->refused ? 0 : ek_bill_set(&x->bill, counted(x->body.len + *size));
    if (r < 0) {
        arrive_refuse_room(x, r, "The body", &x->late);
        x->refused = true;
    }
    if (x->too_large || x->refused)
        arrive_done(x);
    else if (ek_buf_add(&x->body, upload, *size) < 0)
        return MHD_NO;
    *size = 0;
    return x->body_bytes / BOUND_BODY_SWALLOW > most ? MHD_NO : MHD_YES;
}

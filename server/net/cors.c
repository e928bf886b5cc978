/*
 * Pages of other origins: which are let in, and which headers say so (cors.h). Called by arrive.c,
 * guard.c and send.c.
 */
#include "server/net/cors.h"

#include <string.h>

#include "common/buf.h"
#include "server/net/answer.h"
#include "server/net/conn.h"
#include "server/net/request.h"
#include "server/net/state.h"

#define REMEMBER_S "600" /* how long a browser need not ask again */

static bool is_in(const struct http_list *l, const char *s)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->at[i], "*") == 0 || strcmp(l->at[i], s) == 0)
            return true;
    }
    return false;
}

static const char *cors_field(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

static void add_list(struct MHD_Response *r, const char *name, const struct http_list *l,
                     const char *asked)
{
    struct ek_buf text = {.limit = 4096};
    bool all = is_in(l, "*");
    for (size_t i = 0; i < l->count && !all; i++)
        (void)ek_buf_printf(&text, "%s%s", i ? ", " : "", l->at[i]);
    const char *value = all ? asked : ek_buf_ok(&text) ? text.data : NULL;
    if (value)
        (void)MHD_add_response_header(r, name, value);
    ek_buf_done(&text);
}

bool cors_allows(const struct http *h, const char *origin)
{
    return is_in(&h->p.access.origins, origin);
}

void cors_headers(const struct exchange *x, struct MHD_Response *r)
{
    const struct http_access *s = &x->http->p.access;
    const char *origin = x->conn->local ? NULL : cors_field(x->mhd, "Origin");
    if (s->origins.count == 0)
        return;
    (void)MHD_add_response_header(r, "Vary", "Origin");
    if (!origin || !is_in(&s->origins, origin))
        return;
    (void)MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
    (void)MHD_add_response_header(r, "Access-Control-Expose-Headers",
                                  "X-Request-Id, X-Ignored-Fields, Retry-After");
    if (s->credentials)
        (void)MHD_add_response_header(r, "Access-Control-Allow-Credentials", "true");
    if (!x->preflight)
        return;
    add_list(r, "Access-Control-Allow-Methods", &s->methods, "GET, POST, DELETE");
    add_list(r, "Access-Control-Allow-Headers", &s->headers,
             cors_field(x->mhd, "Access-Control-Request-Headers"));
    (void)MHD_add_response_header(r, "Access-Control-Max-Age", REMEMBER_S);
}

bool cors_preflight(const struct exchange *x, struct answer *a)
{
    const struct http_access *s = &x->http->p.access;
    const char *origin = cors_field(x->mhd, "Origin");
    if (x->conn->local || s->origins.count == 0 || strcmp(x->method, "OPTIONS") != 0 || !origin ||
        !cors_field(x->mhd, "Access-Control-Request-Method"))
        return false;
    if (is_in(&s->origins, origin))
        a->status = 204;
    else
        answer_fault(a, 403, "", "Pages of this origin may not use this server.");
    return true;
}

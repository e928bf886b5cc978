/*
 * Whether a request may be read: its key, its Host, its Origin (guard.h). Called by exchange.c and
 * arrive.c.
 */
#include "server/net/guard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/err.h"
#include "common/hostname.h"
#include "common/log.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/net/answer.h"
#include "server/net/auth.h"
#include "server/net/conn.h"
#include "server/net/cors.h"
#include "server/net/request.h"
#include "server/net/spans.h"
#include "server/net/state.h"
#include "server/net/tls.h"

static enum MHD_Result each_field(void *cls, enum MHD_ValueKind kind, const char *name,
                                  size_t name_len, const char *value, size_t value_len)
{
    (void)kind;
    head_field(cls, name, name_len, value ? value : "", value ? value_len : 0);
    return MHD_YES;
}

int guard_head(struct exchange *x, const char *method, const char *version, struct api_error *err)
{
    x->head.method = method;
    x->head.version = version;
    (void)MHD_get_connection_values_n(x->mhd, MHD_HEADER_KIND, each_field, &x->head);
    x->sampled = spans_read(MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "traceparent"),
                            x->trace, x->parent);
    int r = head_check(&x->head, err);
    if (r == 0)
        (void)snprintf(x->method, sizeof(x->method), "%s", method);
    return r;
}

bool guard_client(const struct exchange *x)
{
    struct conn *c = x->conn;
    if (c->local || !x->http->tls || c->checked)
        return true;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    c->checked = info && tls_client_is_good(x->http->tls, info->tls_session);
    return c->checked;
}

/* Whether a page of another name can be refused for it: only programs of this machine are meant,
 * and no key keeps pages out. SIGHUP can change the keys. */
static bool is_homely(const struct http *h)
{
    return atomic_load(&h->loopback) && h->p.access.hosts.count == 0 && auth_count(h->auth) == 0;
}

const char *guard_host(const struct exchange *x)
{
    const struct http_access *s = &x->http->p.access;
    const char *host = x->head.host ? x->head.host : "";
    unsigned flags = x->route ? x->route->flags : 0;
    if (x->conn->local || (flags & ROUTE_OPEN && !(flags & ROUTE_PROTECT)))
        return NULL;
    if (s->hosts.count > 0)
        return ek_host_listed(host, s->hosts.at, s->hosts.count)
                   ? NULL
                   : "This server does not answer to the name in Host (--allowed-hosts).";
    if (!is_homely(x->http))
        return NULL;
    const char *origin = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Origin");
    if (*host && !ek_host_is_literal(host))
        return "Without an API key this server answers on the loopback only to localhost and "
               "addresses in Host; --allowed-hosts NAME lets more in.";
    if (origin && !ek_origin_is_literal(origin) && !cors_allows(x->http, origin))
        return "Without an API key this server answers on the loopback only to pages of localhost; "
               "--allowed-origins ORIGIN lets more in.";
    return NULL;
}

const char *guard_path(const struct exchange *x, const char *path)
{
    const char *root = x->http->p.access.root_path;
    size_t n = root ? strlen(root) : 0;
    return n > 0 && strncmp(path, root, n) == 0 && path[n] == '/' ? path + n : path;
}

/* What the client sent as its key: as OpenAI's clients do, or as Anthropic's. NULL = none. */
static const char *guard_key_of(struct MHD_Connection *mhd)
{
    const char *v = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Authorization");
    if (v && strncasecmp(v, "Bearer ", 7) == 0)
        return v + 7 + strspn(v + 7, " ");
    return v ? NULL : MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "X-Api-Key");
}

bool guard_key(struct exchange *x)
{
    struct http *h = x->http;
    unsigned flags = x->route ? x->route->flags : 0;
    bool open = flags & ROUTE_PAGE ||
                (flags & ROUTE_OPEN && !(flags & ROUTE_PROTECT && h->p.access.protect_metrics));
    if (x->conn->local || auth_count(h->auth) == 0)
        return true;
    const char *key = guard_key_of(x->mhd);
    int slot = key ? auth_find(h->auth, key, strlen(key)) : -EACCES;
    if (slot >= 0)
        x->key = slot;
    else if (!open)
        atomic_fetch_add(&h->unauthorized, 1);
    return slot >= 0 || open;
}

void guard_refuse(const struct exchange *x, struct answer *a)
{
    bool given = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Authorization") ||
                 MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "X-Api-Key");
    answer_refuse_fault(x, a, 401,
                        given
                            ? "The API key is not known here. Send the right one as Authorization: "
                              "Bearer KEY."
                            : "An API key is needed. Send it as Authorization: Bearer KEY.");
    a->challenge = "Bearer";
}

bool guard_begin(struct exchange *x, struct answer *a)
{
    const struct served *s = http_served(x->http);
    struct limits l;
    struct api_error err;
    struct ek_fault fault = {0};
    if (x->key < 0 || !s || !(x->route->flags & ROUTE_JSON))
        return true;
    engine_limits(s->engine, &l);
    if (auth_begin(x->http->auth, x->key, (uint32_t)l.value[LIMIT_QUEUED_REQS], &fault) == 0) {
        x->key_open = x->key_waiting = true;
        return true;
    }
    (void)api_refuse(&err, 429, "", "Too many requests: %s. Try again later.", fault.msg);
    err.retry_after_s = 1;
    answer_refuse(x, a, &err);
    return false;
}

void guard_started(struct exchange *x)
{
    if (x->key_waiting)
        auth_started(x->http->auth, x->key);
    x->key_waiting = false;
}

void guard_end(struct exchange *x)
{
    if (x->key_open)
        auth_end(x->http->auth, x->key, x->key_waiting);
    auth_drop(x->http->auth, x->key);
    x->key = AUTH_NOBODY;
    x->key_open = x->key_waiting = false;
}

int guard_address(struct http *h, int listen_fd, struct ek_fault *fault)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    if (getsockname(listen_fd, (struct sockaddr *)&a, &len) < 0)
        return 0;
    bool loopback = ek_address_is_loopback(&a);
    atomic_store(&h->loopback, loopback);
    if (a.ss_family == AF_UNIX || loopback || auth_count(h->auth) > 0)
        return 0;
    if (h->p.access.require_key)
        return ek_fault_set(fault, "require-api-key",
                            "--require-api-key: the address can be reached by others and there is "
                            "no API key; set --api-key-file FILE, or --host 127.0.0.1");
    atomic_store(&h->open_without_key, true);
    ek_log(EK_LOG_WARNING, "Anybody who reaches the API's address may use this server: there is no "
                           "API key; set --api-key-file FILE, or --host 127.0.0.1");
    return 0;
}

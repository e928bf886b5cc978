/* The routes: one table. */
#include <assert.h>
#include <string.h>

#include "server/net/control.h"
#include "server/net/health.h"
#include "server/net/pages.h"
#include "server/net/request.h"

const struct route route_table[] = {
    {"POST", "/v1/chat/completions", ROUTE_JSON, generate_chat},
    {"POST", "/v1/completions", ROUTE_JSON, generate_completion},
    {"POST", "/v1/responses", ROUTE_JSON, generate_response},
    {"POST", "/v1/messages", ROUTE_JSON, generate_message},
    {"POST", "/v1/messages/count_tokens", ROUTE_JSON, tokens_count_message},
    {"POST", "/v1/embeddings", ROUTE_JSON, generate_embeddings},
    {"POST", "/invocations", ROUTE_JSON, generate_invocation},
    {"POST", "/v1/chat/completions/render", ROUTE_JSON, tokens_render_chat},
    {"POST", "/v1/completions/render", ROUTE_JSON, tokens_render_completion},
    {"GET", "/v1/models", 0, models_list},
    {"GET", "/v1/models/*", 0, models_get},
    {"POST", "/tokenize", ROUTE_JSON, tokens_tokenize},
    {"POST", "/detokenize", ROUTE_JSON, tokens_detokenize},
    {"GET", "/health", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_health},
    {"GET", "/livez", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_livez},
    {"GET", "/readyz", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_readyz},
    {"GET", "/ping", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_health},
    {"POST", "/ping", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_health},
    {"GET", "/load", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_load},
    {"GET", "/is_sleeping", ROUTE_EARLY | ROUTE_HEALTH, health_is_sleeping},
    {"GET", "/openapi.json", ROUTE_EARLY | ROUTE_HEALTH, openapi_page},
    {"GET", "/version", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, health_version},
    {"GET", "/metrics", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN | ROUTE_PROTECT, health_metrics},
    {"GET", "/", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_PAGE, pages_chat},
    {"GET", "/docs", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_PAGE, pages_docs},
    {"GET", "/v1/runtime_config", ROUTE_LOCAL, control_get_limits},
    {"PATCH", "/v1/runtime_config", ROUTE_LOCAL, control_patch_limits},
    {"POST", "/drain", ROUTE_LOCAL, control_drain},
    {"POST", "/resume", ROUTE_LOCAL, control_resume},
    {"POST", "/trim", ROUTE_LOCAL, control_trim},
    {"POST", "/reset_prefix_cache", ROUTE_LOCAL, control_reset_prefix_cache},
};

#define ROUTES (sizeof(route_table) / sizeof(route_table[0]))
_Static_assert(ROUTES < ROUTES_MOST, "raise ROUTES_MOST");

uint32_t route_count(void)
{
    return (uint32_t)ROUTES + 1;
}

static bool matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] == '*')
        return strncmp(pattern, path, n - 1) == 0 && path[n - 1] != '\0';
    return strcmp(pattern, path) == 0;
}

const struct route *route_find(const char *method, const char *path, const char **ret_allow)
{
    /* by what a path has: 1 = GET, 2 = POST */
    static const char *const allowed[] = {NULL, "GET, HEAD", "POST", "GET, HEAD, POST"};
    const char *as = strcmp(method, "HEAD") == 0 ? "GET" : method;
    unsigned has = 0;
    *ret_allow = NULL;
    for (size_t i = 0; i < ROUTES; i++) {
        const struct route *r = &route_table[i];
        if (!matches(r->path, path))
            continue;
        if (strcmp(r->method, as) == 0)
            return r;
        if (!(r->flags & (ROUTE_LOCAL | ROUTE_PAGE))) /* admin routes are not there for others */
            has |= r->method[0] == 'G' ? 1u : 2u;
    }
    *ret_allow = allowed[has];
    return NULL;
}

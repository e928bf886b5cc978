/*
 * The routes as one table: path, method, handler, access. Read by the exchange, by openapi and by
 * the fuzzer.
 */
#include <assert.h>
#include <string.h>

#include "server/net/control.h"
#include "server/net/health.h"
#include "server/net/pages.h"
#include "server/net/request.h"
#include "server/net/stored.h"

const struct route route_table[] = {
    {"POST", "/v1/chat/completions", ROUTE_JSON, generate_chat},
    {"POST", "/v1/completions", ROUTE_JSON, generate_completion},
    {"POST", "/v1/responses", ROUTE_JSON, generate_response},
    {"POST", "/v1/messages", ROUTE_JSON, generate_message},
    {"POST", "/v1/messages/count_tokens", ROUTE_JSON, tokens_count_message},
    {"POST", "/v1/embeddings", ROUTE_JSON, generate_embeddings},
    {"POST", "/invocations", ROUTE_JSON, generate_invocation},
    {"POST", "/infill", ROUTE_JSON, generate_infill},
    {"POST", "/v1/chat/completions/render", ROUTE_JSON, tokens_render_chat},
    {"POST", "/v1/completions/render", ROUTE_JSON, tokens_render_completion},
    {"POST", "/v1/responses/input_tokens", ROUTE_JSON, tokens_count_response},
    {"GET", "/v1/responses/*/input_items", 0, stored_items},
    {"GET", "/v1/responses/*", 0, stored_get},
    {"DELETE", "/v1/responses/*", 0, stored_delete},
    {"POST", "/v1/score", ROUTE_JSON, generate_score},
    {"POST", "/score", ROUTE_JSON, generate_score},
    {"POST", "/v1/rerank", ROUTE_JSON, generate_rerank},
    {"POST", "/v2/rerank", ROUTE_JSON, generate_rerank},
    {"POST", "/rerank", ROUTE_JSON, generate_rerank},
    {"POST", "/classify", ROUTE_JSON, generate_classes},
    {"POST", "/pooling", ROUTE_JSON, generate_pooled},
    {"GET", "/v1/models", 0, models_list},
    {"GET", "/v1/models/*", 0, models_get},
    {"POST", "/tokenize", ROUTE_JSON, tokens_tokenize},
    {"GET", "/tokenizer_info", 0, tokens_info},
    {"POST", "/detokenize", ROUTE_JSON, tokens_detokenize},
    {"POST", "/api/chat", ROUTE_JSON, generate_ollama_chat},
    {"POST", "/api/generate", ROUTE_JSON, generate_ollama_text},
    {"POST", "/api/embed", ROUTE_JSON, generate_ollama_embed},
    {"POST", "/api/show", ROUTE_JSON, ollama_route_show},
    {"GET", "/api/tags", 0, ollama_route_tags},
    {"GET", "/api/ps", 0, ollama_route_ps},
    {"GET", "/api/version", ROUTE_EARLY | ROUTE_HEALTH | ROUTE_OPEN, ollama_route_version},
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
    {"POST", "/drain", ROUTE_EARLY | ROUTE_LOCAL, control_drain},
    {"POST", "/resume", ROUTE_EARLY | ROUTE_LOCAL, control_resume},
    {"POST", "/trim", ROUTE_LOCAL, control_trim},
    {"GET", "/v1/engine", ROUTE_LOCAL, control_engine},
    {"POST", "/v1/engine/restart", ROUTE_LOCAL, control_engine_restart},
    {"POST", "/v1/engine/release", ROUTE_LOCAL, control_engine_release},
    {"POST", "/v1/engine/acquire", ROUTE_LOCAL, control_engine_acquire},
    {"POST", "/reset_prefix_cache", ROUTE_LOCAL, control_reset_prefix_cache},
};

#define ROUTES (sizeof(route_table) / sizeof(route_table[0]))
_Static_assert(ROUTES < ROUTES_MOST, "raise ROUTES_MOST");

uint32_t route_count(void)
{
    return (uint32_t)ROUTES + 1;
}

/* One slash more at the end is no other place: clients of servers that redirect send it. A page has
 * links beside it, which would lead elsewhere then. */
static bool route_matches(const struct route *r, const char *path)
{
    const char *pattern = r->path;
    size_t n = strcspn(pattern, "*");
    if (strncmp(pattern, path, n) != 0)
        return false;
    const char *tail = pattern + n, *rest = path + n;
    if (*tail == '*') {
        if (*rest == '\0')
            return false;
        if (*++tail == '\0')
            return true; /* what the name is says the handler: a model's may have slashes */
        rest += strcspn(rest, "/");
    }
    size_t t = strlen(tail);
    return strncmp(tail, rest, t) == 0 &&
           (rest[t] == '\0' || (!(r->flags & ROUTE_PAGE) && strcmp(rest + t, "/") == 0));
}

const struct route *route_find(const char *method, const char *path, const char **ret_allow)
{
    /* by what a path has: 1 = GET, 2 = POST, 4 = DELETE */
    static const char *const allowed[] = {
        NULL,     "GET, HEAD",         "POST",         "GET, HEAD, POST",
        "DELETE", "GET, HEAD, DELETE", "POST, DELETE", "GET, HEAD, POST, DELETE"};
    const char *as = strcmp(method, "HEAD") == 0 ? "GET" : method;
    const char *pattern = NULL;
    unsigned has = 0;
    *ret_allow = NULL;
    for (size_t i = 0; i < ROUTES; i++) {
        const struct route *r = &route_table[i];
        if (!route_matches(r, path) || (pattern && strcmp(pattern, r->path) != 0))
            continue; /* the first one says what a path is */
        pattern = r->path;
        if (strcmp(r->method, as) == 0)
            return r;
        if (!(r->flags & (ROUTE_LOCAL | ROUTE_PAGE))) /* admin routes are not there for others */
            has |= r->method[0] == 'G' ? 1u : r->method[0] == 'D' ? 4u : 2u;
    }
    *ret_allow = allowed[has];
    return NULL;
}

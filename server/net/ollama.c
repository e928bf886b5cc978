/*
 * The routes of Ollama's API that make no text: what is served. Called through the table of routes.
 */
#include "server/api/ollama.h"
#include "common/clock.h"
#include "server/api/openai.h"
#include "server/net/answer.h"
#include "server/net/health.h"
#include "server/net/request.h"
#include "server/net/state.h"

int ollama_route_version(struct exchange *x, struct answer *a)
{
    (void)x;
    (void)ek_buf_puts(&a->body, "{\"version\":\"" OLLAMA_VERSION "\"}");
    return 0;
}

int ollama_route_tags(struct exchange *x, struct answer *a)
{
    ollama_models(&a->body, http_served(x->http), false, x->http->started_wall_us);
    return 0;
}

int ollama_route_ps(struct exchange *x, struct answer *a)
{
    ollama_models(&a->body, http_served(x->http), true, x->http->started_wall_us);
    return 0;
}

int ollama_route_show(struct exchange *x, struct answer *a)
{
    struct api_error err;
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    if (body)
        ollama_show(&a->body, http_served(x->http), body, x->http->started_wall_us, &err);
    if (!body || err.status)
        generation_answer_error(a, API_OLLAMA_CHAT, &err);
    json_decref(body);
    return 0;
}

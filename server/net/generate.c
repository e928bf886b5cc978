/*
 * POST /v1/chat/completions, /v1/completions and their kin: from the body to the engine's queue.
 * Called through the table of routes.
 */
#include <errno.h>
#include <sys/random.h>

#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/ollama.h"
#include "server/api/openai.h"
#include "server/api/served.h"
#include "server/net/answer.h"
#include "server/net/arrive.h"
#include "server/net/auth.h"
#include "server/net/conn.h"
#include "server/net/health.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/stored.h"

static void refuse_draining(enum openai_api api, struct answer *a)
{
    struct api_error err;
    (void)api_refuse(&err, 503, "", "The server is draining and takes no new requests.");
    err.retry_after_s = 5;
    generation_answer_error(a, api, &err);
}

/* As vLLM tries them: a body with messages is a chat, one with a prompt goes on with it. */
static enum openai_api api_of(const json_t *body)
{
    return json_object_get(body, "messages") ? API_CHAT
           : json_object_get(body, "prompt") ? API_PLAIN
           : json_object_get(body, "input")  ? API_EMBED
           : json_object_get(body, "query")  ? API_RERANK
           : json_object_get(body, "text_1") ? API_SCORE
                                             : API_CHAT;
}

/* Ollama's clients ask for a model to be loaded before they use it. Takes over the body. */
static int answer_loaded(struct exchange *x, enum openai_api api, json_t *body, struct answer *a)
{
    const struct served *s = http_served(x->http);
    struct api_error err;
    if (served_model_tagged(s, json_string_value(json_object_get(body, "model")), &err) < 0)
        generation_answer_error(a, api, &err);
    else
        ollama_loaded(&a->body, s, api, body, ek_wall_us());
    json_decref(body);
    return 0;
}

/* Charges what it takes whatever its answers are. False with an answer. */
static bool hold_choices(struct exchange *x, const struct generation *g, struct answer *a)
{
    uint64_t bytes = generation_fixed(g);
    int r = ek_bill_set(&x->bill, x->bill.bytes + bytes);
    if (r < 0) {
        arrive_refuse_room(x, r, "The answers", a);
        return false;
    }
    x->json_bytes += bytes;
    x->fixed_bytes = bytes;
    return true;
}

/* API_COUNT: as the body's fields say. */
static int generate(struct exchange *x, enum openai_api api, struct answer *a)
{
    const struct served *s = http_served(x->http);
    struct api_error err;
    struct generation *g = NULL;
    /* A connection that is kept open gets an answer, and is told that it closes then. */
    if (atomic_load(&x->http->drain) == HTTP_DRAIN_REFUSE + 1) {
        refuse_draining(api == API_COUNT ? API_CHAT : api, a);
        return 0;
    }
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    if (api == API_COUNT)
        api = api_of(body);
    if (body && ollama_only_loads(api, body))
        return answer_loaded(x, api, body, a);
    /* without chance the request's number stands in: seeds must only differ */
    if (x->chance == 0 &&
        (getrandom(&x->chance, sizeof(x->chance), GRND_NONBLOCK) != (ssize_t)sizeof(x->chance) ||
         s->seed >= 0))
        x->chance = atomic_fetch_add(&x->http->next_id, 1);
    struct past *before = NULL;
    uint32_t inherited = 0;
    int joined = body && api == API_RESPONSES ? stored_join(x, body, &before, &inherited, a) : 0;
    if (joined != 0) {
        json_decref(body);
        return joined < 0 ? 0 : joined;
    }
    struct auth_terms terms;
    auth_terms(x->http->auth, x->key, &terms);
    struct generation_origin from = {
        .request_id = x->id,
        .arrival_us = x->arrival_us,
        .wall_us = ek_wall_us(),
        .worker = x->worker->index,
        .chance = x->chance,
        .at_once = terms.at_once,
        .auth = x->http->auth,
        .key = x->key,
        .cache_owner = auth_owner(x->http->auth, x->key),
        .cache_salt = auth_salt,
        .keeper = auth_itself(x->http->auth, x->key),
        .before = before,
        .inherited = inherited,
        .tenant = terms.tenant,
        .share = {x->http->auth, x->key, x->key < 0 ? NULL : auth_wait, auth_started},
        .quick = x->quick,
        .priority_bound = terms.bound,
        .priority_first = terms.first,
        .priority_last = terms.last,
        .work = &x->work};
    int r = body ? generation_new(s, api, body, &from, &g, &err) : -EBADMSG;
    if (r == -EAGAIN)
        return HTTP_ELSEWHERE;
    if (r == 0 && !hold_choices(x, g, a)) {
        generation_free(g);
        return 0;
    }
    if (r < 0) {
        generation_answer_error(a, api, &err);
        return 0;
    }
    x->gen = g;
    return HTTP_WAIT;
}

int generate_chat(struct exchange *x, struct answer *a)
{
    return generate(x, API_CHAT, a);
}

int generate_completion(struct exchange *x, struct answer *a)
{
    return generate(x, API_PLAIN, a);
}

int generate_response(struct exchange *x, struct answer *a)
{
    return generate(x, API_RESPONSES, a);
}

int generate_message(struct exchange *x, struct answer *a)
{
    return generate(x, API_MESSAGES, a);
}

int generate_embeddings(struct exchange *x, struct answer *a)
{
    return generate(x, API_EMBED, a);
}

int generate_ollama_chat(struct exchange *x, struct answer *a)
{
    return generate(x, API_OLLAMA_CHAT, a);
}

int generate_ollama_text(struct exchange *x, struct answer *a)
{
    return generate(x, API_OLLAMA_TEXT, a);
}

int generate_ollama_embed(struct exchange *x, struct answer *a)
{
    return generate(x, API_OLLAMA_EMBED, a);
}

int generate_infill(struct exchange *x, struct answer *a)
{
    return generate(x, API_INFILL, a);
}

int generate_rerank(struct exchange *x, struct answer *a)
{
    return generate(x, API_RERANK, a);
}

int generate_score(struct exchange *x, struct answer *a)
{
    return generate(x, API_SCORE, a);
}

int generate_classes(struct exchange *x, struct answer *a)
{
    return generate(x, API_CLASSIFY, a);
}

int generate_pooled(struct exchange *x, struct answer *a)
{
    return generate(x, API_POOLING, a);
}

int generate_invocation(struct exchange *x, struct answer *a)
{
    return generate(x, API_COUNT, a);
}

/* POST /v1/chat/completions and /v1/completions: from the body to the engine's queue. */
#include <errno.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/http/complete.h"
#include "server/http/health.h"

static void refuse_submit(int r, uint32_t retry_s, const struct ek_fault *fault, struct answer *a)
{
    struct api_error err;
    const char *why = fault->msg[0] ? fault->msg : ek_strerror(r);
    if (r == -EBUSY)
        (void)api_refuse(&err, 429, "", "The server is busy: %s. Try again later.", why);
    else if (r == -ESHUTDOWN)
        (void)api_refuse(&err, 503, "", "The server is draining and takes no new requests.");
    else if (r == -EBADMSG)
        (void)api_refuse(&err, 400, fault->field[0] ? fault->field : "input_tokens", "%s", why);
    else
        (void)api_refuse(&err, r == -ENOMEM ? 503 : 500, "", "The request was not taken: %s.", why);
    if (err.status == 429 || err.status == 503)
        err.retry_after_s = retry_s ? retry_s : 1;
    answer_error(a, &err);
}

static int generate(struct exchange *x, bool chat, struct answer *a)
{
    const struct http_served *s = http_served(x->http);
    struct api_error err;
    struct ek_fault fault = {0};
    uint32_t retry_s = 0;
    uint64_t chance = 0;
    struct generation *g = NULL;
    if (atomic_load(&x->http->drain)) {
        refuse_submit(-ESHUTDOWN, 5, &fault, a);
        return 0;
    }
    json_t *body = openai_load(x->body.data, x->body.len, &err);
    /* without chance the request's number stands in: seeds must only differ */
    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance) ||
        s->seed >= 0)
        chance = atomic_fetch_add(&x->http->next_id, 1);
    struct generation_origin from = {.request_id = x->id,
                                     .arrival_us = x->arrival_us,
                                     .wall_us = ek_wall_us(),
                                     .worker = x->worker->index,
                                     .chance = chance,
                                     .auth = x->http->auth,
                                     .key = x->key};
    int r = body ? generation_new(s, chat, body, &from, &g, &err) : -EBADMSG;
    if (r < 0) {
        answer_error(a, &err);
        return 0;
    }
    g->req->user = NULL;
    r = engine_submit(s->engine, g->req, &retry_s, &fault);
    if (r < 0) {
        refuse_submit(r, retry_s, &fault, a);
        generation_free(g);
        return 0;
    }
    x->gen = g;
    return HTTP_WAIT;
}

int generate_chat(struct exchange *x, struct answer *a)
{
    return generate(x, true, a);
}

int generate_completion(struct exchange *x, struct answer *a)
{
    return generate(x, false, a);
}

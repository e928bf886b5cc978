/*
 * What a trace tells of a request (spans.h). Called by guard.c when it begins and by exchange.c
 * when it is over.
 */
#include "server/net/spans.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/hex.h"
#include "server/api/complete.h"
#include "server/net/request.h"
#include "server/net/state.h"

bool spans_read(const char *v, char ret_trace[33], char ret_parent[17])
{
    static const char hex[] = "0123456789abcdef";

    ret_trace[0] = ret_parent[0] = '\0';
    if (!v || strlen(v) != 55 || strncmp(v, "00-", 3) != 0 || v[35] != '-' || v[52] != '-')
        return true;
    if (strspn(v + 3, hex) != 32 || strspn(v + 36, hex) != 16 || strspn(v + 53, hex) != 2 ||
        strspn(v + 3, "0") == 32 || strspn(v + 36, "0") == 16)
        return true;
    memcpy(ret_trace, v + 3, 32);
    ret_trace[32] = '\0';
    memcpy(ret_parent, v + 36, 16);
    ret_parent[16] = '\0';
    return strchr("13579bdf", v[54]) != NULL;
}

static void spans_bytes(const char *hex, uint8_t *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)(ek_hex_digit(hex[2 * i]) << 4 | ek_hex_digit(hex[2 * i + 1]));
}

/* Never all zeros. */
static void spans_draw(uint8_t *out, uint32_t count)
{
    if (getrandom(out, count, GRND_NONBLOCK) != (ssize_t)count) {
        uint64_t now = ek_now_us() * 0x9e3779b97f4a7c15u;
        for (uint32_t i = 0; i < count; i++)
            out[i] = (uint8_t)(now >> 8 * (i % 8));
    }
    out[0] |= 1;
}

static const char *spans_operation(enum openai_api api)
{
    switch (api) {
    case API_CHAT:
    case API_RESPONSES:
    case API_MESSAGES:
    case API_OLLAMA_CHAT: return "chat";
    case API_EMBED:
    case API_OLLAMA_EMBED:
    case API_RERANK:
    case API_SCORE:
    case API_CLASSIFY:
    case API_POOLING: return "embeddings";
    case API_PLAIN:
    case API_OLLAMA_TEXT:
    case API_INFILL:
    case API_TOKENIZE:
    case API_DETOKENIZE:
    case API_COUNT: break;
    }
    return "text_completion";
}

/* Tokens of the answer's prompt that came from the cache, once that may be read. */
static uint32_t spans_cached(const struct choice *c)
{
    return c->req && atomic_load_explicit(&c->req->state, memory_order_acquire) == REQ_DONE
               ? c->req->cached_tokens
               : 0;
}

/* What the engine wrote may be read once the request is done. */
static void spans_answer(const struct choice *c, struct span_answer *a)
{
    const struct request *r = c->req;

    *a = (struct span_answer){.finish = request_finish_name(c->finish)};
    if (!r)
        return;
    bool done = atomic_load_explicit(&r->state, memory_order_acquire) == REQ_DONE;
    if (!done && c->seen == 0)
        return;
    a->queued_us = r->queued_us; /* these are written before the first token can be seen */
    a->scheduled_us = r->first_scheduled_us;
    a->first_us = r->first_token_us;
    a->done_us = done ? r->done_us : ek_now_us(); /* a stop string ends it here first */
    if (!done)
        return;
    a->cached_tokens = r->cached_tokens;
    a->preemptions = r->preemptions;
    a->replays = r->replays;
    a->moment_count = r->moment_count;
    memcpy(a->moments, r->moments, sizeof(a->moments));
}

/* Of the served names the one that was asked for: the body's own text is freed with it. */
static const char *spans_model(const struct generation *g)
{
    const struct served *s = g->served;
    uint32_t at = served_place(s, g->ask.model);

    return s->name[at < s->names ? at : 0];
}

_Static_assert(SPAN_ID_BYTES == sizeof(((struct generation *)NULL)->id), "all of it");

static void spans_generation(const struct generation *g, struct span_request *s)
{
    s->operation = spans_operation(g->ask.api);
    s->model = g->served->name[0];
    s->asked_model = spans_model(g);
    (void)snprintf(s->answer_id, sizeof(s->answer_id), "%s", g->id);
    s->sampling = g->ask.sampling;
    s->seeded = g->ask.seeded;
    s->stream = g->ask.stream;
    s->n = g->ask.n;
    s->max_tokens = g->ask.max_tokens;
    s->prompt_tokens = generation_prompt_tokens(g);
    s->output_tokens = generation_seen(g);
    s->answers = g->count;
    s->told = g->count < SPAN_ANSWERS ? g->count : SPAN_ANSWERS;
    for (uint32_t i = 0; i < s->told; i++)
        spans_answer(&g->choice[i], &s->answer[i]);
    for (uint32_t i = 0; i < g->ask.prompts && i * g->ask.n < g->count; i++)
        s->cached_tokens += spans_cached(&g->choice[i * g->ask.n]); /* a prompt counts once */
    for (uint32_t i = 0; i < g->count; i++)
        s->broken |= g->choice[i].finish == REQ_FIN_ERROR ||
                     g->choice[i].finish == REQ_FIN_DEADLINE ||
                     g->choice[i].finish == REQ_FIN_ABORT;
}

void spans_keep(struct exchange *x)
{
    if (!x->http->tracer || !x->sampled || !x->gen || x->span)
        return;
    x->span = calloc(1, sizeof(*x->span));
    if (x->span) /* else the trace lacks it */
        spans_generation(x->gen, x->span);
}

void spans_of(struct exchange *x, struct span_request *s)
{
    memset(s, 0, sizeof(*s));
    spans_keep(x);
    if (x->span)
        *s = *x->span;
    free(x->span);
    x->span = NULL;
    if (x->trace[0]) {
        spans_bytes(x->trace, s->trace, sizeof(s->trace));
        spans_bytes(x->parent, s->parent, sizeof(s->parent));
        s->has_parent = true;
    } else {
        spans_draw(s->trace, sizeof(s->trace));
    }
    spans_draw(s->span, sizeof(s->span));
    (void)snprintf(s->id, sizeof(s->id), "%s", x->id);
    s->method = x->route ? x->route->method : NULL;
    s->route = x->route ? x->route->path : NULL;
    s->status = x->status;
    s->begin_us = x->arrival_us;
    s->end_us = ek_now_us();
    s->left = x->left && !x->stalled;
    s->stalled = x->stalled;
}

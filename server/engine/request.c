/*
 * Birth and death of a request. Everything it will ever need is taken from its arena here, so that
 * the engine allocates nothing while it runs.
 */
#include "server/engine/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool request_has_history(const struct req_ask *ask)
{
    return ask->bad > 0 || ek_sampling_penalizes(&ask->sampling);
}

/* The parts that few requests have. */
static int take_extras(struct request *r, const struct req_ask *ask)
{
    size_t words = (size_t)ask->allowed + 2 * (size_t)ask->biases + ask->bad;
    size_t tops = (size_t)ask->prompt_tokens * ask->top;

    if (words > 0) {
        uint32_t *copy = ek_arena_array(&r->arena, words, sizeof(*copy));
        if (!copy)
            return -ENOMEM;
        memcpy(copy, ask->words, words * sizeof(*copy));
        r->ask.words = copy;
    }
    if (ask->score) {
        r->score = ek_arena_array(&r->arena, ask->prompt_tokens, sizeof(*r->score));
        r->rank = ek_arena_array(&r->arena, ask->prompt_tokens, sizeof(*r->rank));
        r->score_top = tops ? ek_arena_array(&r->arena, tops, sizeof(*r->score_top)) : NULL;
        if (!r->score || !r->rank || (tops && !r->score_top))
            return -ENOMEM;
    }
    if (ask->hidden) {
        r->hidden = ek_arena_array(&r->arena, ask->hidden_width, sizeof(*r->hidden));
        return r->hidden ? 0 : -ENOMEM;
    }
    return 0;
}

struct request *request_new(const struct req_ask *ask)
{
    if (ask->max_new_tokens == 0 || ask->prompt_tokens == 0 || ask->top > EK_TOP_MOST ||
        ask->stop_count > REQ_STOP_IDS || ask->biases > EK_BIAS_MOST || ask->bad > EK_BAD_WORDS ||
        ask->gates > REQ_GATE || (ask->thinking.on && ask->thinking.close.count == 0) ||
        (ask->hidden && ask->hidden_width == 0))
        return NULL;

    struct request *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->ask = *ask;
    if (ask->grammar)
        grammar_ref(ask->grammar);
    matcher_init(&r->matcher, ask->grammar);
    r->form_open = ask->gates == 0;
    r->stop_token = -1;
    r->entry = UINT32_MAX;
    atomic_init(&r->out_count, 0);
    atomic_init(&r->state, REQ_NEW);
    atomic_init(&r->refs, 1);
    atomic_init(&r->wish, REQ_FIN_NONE);

    int32_t *prompt = ek_arena_array(&r->arena, ask->prompt_tokens, sizeof(*prompt));
    r->out = ek_arena_array(&r->arena, ask->max_new_tokens, sizeof(*r->out));
    if (ask->top > 0)
        r->top_at =
            ek_arena_array(&r->arena, (size_t)ask->max_new_tokens * ask->top, sizeof(*r->top_at));
    if (!prompt || !r->out || (ask->top > 0 && !r->top_at) || take_extras(r, ask) < 0) {
        request_unref(r);
        return NULL;
    }
    memcpy(prompt, ask->prompt, (size_t)ask->prompt_tokens * sizeof(*prompt));
    r->ask.prompt = prompt;
    return r;
}

void request_follow(struct request *r, struct request *first)
{
    request_ref(first);
    r->first = first;
}

void request_note(struct request *r, enum req_moment_kind kind, uint64_t now_us)
{
    if (r->moment_count < REQ_MOMENTS)
        r->moments[r->moment_count++] = (struct req_moment){.at_us = now_us, .kind = kind};
}

void request_ref(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void request_unref(struct request *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    ek_arena_done(&r->arena);
    grammar_unref(r->ask.grammar);
    request_unref(r->first); /* which has none itself */
    free(r->mask_bits);
    free(r);
}

const char *request_finish_name(enum req_finish f)
{
    switch (f) {
    case REQ_FIN_STOP: return "stop";
    case REQ_FIN_LENGTH: return "length";
    case REQ_FIN_ABORT: return "abort";
    case REQ_FIN_DEADLINE: return "abort"; /* vLLM has no word for a drain's deadline */
    case REQ_FIN_ERROR: return "error";
    case REQ_FIN_NONE:
    case REQ_FIN_KINDS: break;
    }
    return "none";
}

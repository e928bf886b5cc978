/*
 * A generation and its choices, from a checked body to requests for the engine (complete.h), which
 * submit.c hands over. Called by server/net for each request, and by what writes answers.
 */
#include "server/api/complete.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/api/pair.h"
#include "server/api/past.h"
#include "server/api/protocols.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/api/thinking_limit.h"
#include "server/text/tokenizer.h"

static uint64_t generation_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void fill_sampling(const struct served *s, const struct openai_ask *a,
                          const struct generation_origin *from, struct req_ask *q)
{
    q->sampling = a->sampling;
    if (!a->seeded)
        q->sampling.seed =
            s->seed >= 0 ? generation_mix((uint64_t)s->seed ^ from->chance) : from->chance;
    q->top = a->logprobs ? a->top : 0;
    if (a->score && q->top < a->prompt_top)
        q->top = a->prompt_top;
    q->score = a->score;
}

/* What the requests of all its choices share. */
static void fill_base(const struct generation *g, const struct generation_origin *from,
                      struct req_ask *q)
{
    const struct served *s = g->served;
    const struct openai_ask *a = &g->ask;
    *q = (struct req_ask){.priority = (int32_t)a->priority,
                          .ignore_eos = a->ignore_eos,
                          .cache_salt = from->cache_salt
                                            ? from->cache_salt(from->auth, from->key, a->cache_salt)
                                            : a->cache_salt,
                          .cache_owner = from->cache_owner,
                          .tenant = from->tenant,
                          .arrival_us = from->arrival_us,
                          .worker = from->worker};
    fill_sampling(s, a, from, q);
    q->hidden = openai_embeds(a->api);
    q->hidden_width = q->hidden ? s->hidden : 0;
    for (uint32_t i = 0; i < a->stop_id_count; i++)
        q->stop_ids[q->stop_count++] = a->stop_ids[i];
    for (uint32_t i = 0; i < s->eos_count && (!a->ignore_eos || g->grammar); i++)
        q->stop_ids[q->stop_count++] = s->eos[i];
    q->grammar = g->grammar;
    if (!g->grammar)
        return;
    q->grammar_least = a->min_tokens; /* a text that is complete ends, whatever was wished for */
    /* What the client excludes might be all that would complete the text. */
    bool plain = !a->allowed_ids && !a->bad_words && json_object_size(a->logit_bias) == 0;
    q->grammar_finish = a->finish_form && plain;
    q->grammar_jump_forward = plain;
    /* Penalties want to be told of each token, log probabilities want one for each. */
    q->grammar_append = plain && !a->logprobs && !request_has_history(q);
}

static uint32_t room_for(const struct generation *g, size_t prompt)
{
    uint32_t room = g->served->max_model_len - (uint32_t)prompt;
    return g->ask.max_tokens && g->ask.max_tokens < room ? g->ask.max_tokens : room;
}

struct token_vec generation_prompt(const struct generation *g, uint32_t prompt)
{
    size_t from = prompt ? g->end[prompt - 1] : 0;
    return (struct token_vec){.at = g->ids + from, .count = g->end[prompt] - from};
}

static void fill_ask(const struct generation *g, const struct choice *c, struct req_ask *q)
{
    const struct openai_ask *a = &g->ask;
    struct token_vec tokens = generation_prompt(g, c->prompt);
    uint32_t number = c->index % a->n;
    *q = g->base;
    q->prompt = tokens.at;
    q->prompt_tokens = (uint32_t)tokens.count;
    q->max_new_tokens = room_for(g, tokens.count);
    q->answers = a->n;
    if (!g->grammar)
        q->min_tokens = a->min_tokens < q->max_new_tokens ? a->min_tokens : q->max_new_tokens;
    q->sampling.seed += number; /* the first one is what n = 1 would give */
    q->score = q->score && number == 0;
    q->further = g->taken > 0;
}

/* Puts the end of the prompt, from its last message on, through what takes harmony apart. */
static int begin_harmony(struct choice *c, const struct req_ask *q)
{
    const struct served *s = c->of->served;
    const struct openai_ask *a = &c->of->ask;
    struct ek_buf unused = {0};
    struct harmony_out out = {&unused, &unused, &c->calls};
    uint32_t at = q->prompt_tokens;
    int r = 0;
    c->sifting = true;
    c->calls.style = TOOLS_OPENAI;
    harmony_begin(&c->harmony, (a->tools && !a->no_calls) || a->args_of);
    while (at > 0 && q->prompt[at - 1] != s->mark[HARMONY_START])
        at--;
    for (at = at > 0 ? at - 1 : q->prompt_tokens; r == 0 && at < q->prompt_tokens; at++) {
        size_t len = 0;
        const char *bytes = tokenizer_bytes(s->tok, q->prompt[at], &len);
        int i = 0;
        while (i < HARMONY_MARKS && s->mark[i] != q->prompt[at])
            i++;
        if (i < HARMONY_MARKS)
            r = harmony_mark(&c->harmony, (enum harmony_mark)i, &out);
        else if (bytes)
            r = harmony_push(&c->harmony, bytes, len, &out);
    }
    harmony_open(&c->harmony);
    ek_buf_done(&unused);
    return r;
}

/* The form of the answer is that of its final message: the engine waits for its head. */
static int set_gate(const struct choice *c, struct req_ask *q)
{
    const struct served *s = c->of->served;
    struct token_vec name = {0};
    if (!q->grammar || c->harmony.place == HARMONY_TEXT || c->harmony.place == HARMONY_ARGS)
        return 0;
    int r = tokenizer_encode(s->tok, "final", 5, true, 0, &name);
    if (r == 0 && name.count < REQ_GATE) {
        q->gate[0] = s->mark[HARMONY_CHANNEL];
        memcpy(q->gate + 1, name.at, name.count * sizeof(*name.at));
        q->gates = (uint32_t)name.count + 1;
        q->gate_last = s->mark[HARMONY_MESSAGE];
    }
    token_vec_done(&name);
    return r;
}

/* What is taken out of a chat's text. `tail` = the end of the prompt. */
static int set_sieve(struct choice *c, const char *tail, size_t tail_len, struct req_ask *q)
{
    const struct served *s = c->of->served;
    bool forced = c->of->grammar && c->of->ask.form_kind == GRAMMAR_CALLS;
    bool either = c->of->grammar && c->of->ask.either;
    if (s->think == THINK_HARMONY && !forced) {
        int r = begin_harmony(c, q);
        return r == 0 ? set_gate(c, q) : r;
    }
    if (c->of->ask.tools && !c->of->ask.no_calls)
        c->calls = (struct toolcalls){.style = forced ? TOOLS_HERMES : s->tools,
                                      .tools = c->of->ask.tools,
                                      .marked = c->of->grammar != NULL,
                                      .either = either};
    bool structure = c->of->grammar && c->of->ask.form_kind == GRAMMAR_STRUCTURE;
    bool text = !c->of->grammar || structure || c->of->ask.form_kind == GRAMMAR_TAGS;
    if (!text && !forced && !either)
        c->calls.style = TOOLS_NONE; /* the form leaves no room for calls, nor for thinking */
    if (structure && !grammar_is_free(c->of->grammar)) { /* thinking must be a part of it */
        reasoning_begin(&c->reasoning, s->think, "", 0);
        reasoning_opened_only(&c->reasoning);
    } else if (text) {
        reasoning_begin(&c->reasoning, s->think, tail, tail_len);
    }
    c->sifting = c->calls.style != TOOLS_NONE || c->reasoning.style != THINK_NONE;
    if (c->calls.style > TOOLS_HERMES || thinkstyle_special(c->reasoning.style))
        c->detok.skip_specials = false; /* its marks may be special tokens */
    return 0;
}

int generation_request(struct choice *c)
{
    struct generation *g = c->of;
    const struct openai_ask *a = &g->ask;
    struct token_vec tokens = generation_prompt(g, c->prompt);
    char tail[64];
    struct req_ask q;
    fill_ask(g, c, &q);
    detok_init(&c->detok, g->served->tok);
    memcpy(c->detok.stop, a->stop, sizeof(a->stop));
    c->detok.stops = a->stops;
    c->detok.include_stop = a->include_stop;
    c->detok.skip_specials = a->skip_specials;
    size_t tail_len = a->chat ? prompt_tail(g->served, &tokens, tail, sizeof(tail)) : 0;
    int r = a->chat ? set_sieve(c, tail, tail_len, &q) : 0;
    if (r == 0 && a->chat)
        r = thinking_limit(g->served->tok, &c->reasoning, a->thinking, &q.thinking);
    c->req = r == 0 ? request_new(&q) : NULL;
    if (!c->req)
        return -ENOMEM;
    const struct choice *first = generation_first(g, c->prompt);
    if (first != c && first->req)
        request_follow(c->req, first->req);
    if (g->name_len < sizeof(c->req->name))
        memcpy(c->req->name, g->id + strlen(g->id) - g->name_len, g->name_len + 1);
    return 0;
}

/* Forms whose clients send the most that some model can: for the others it is an error, as in vLLM,
 * to ask for more than the model has. */
static bool clamps(const struct openai_ask *a)
{
    return a->api != API_CHAT && a->api != API_PLAIN;
}

/* The tokens of one prompt, behind those of the ones before. `cap` = how many fit. */
static int add_prompt(struct generation *g, uint32_t prompt, size_t *cap, struct api_error *err)
{
    const struct openai_ask *a = &g->ask;
    struct token_vec tokens = {0};
    size_t have = prompt ? g->end[prompt - 1] : 0;
    int r = prompt_tokens(g->served, a, prompt, &tokens, err);
    if (r == 0 && !clamps(a) && a->max_tokens > g->served->max_model_len)
        r = api_refuse(err, 400, "max_tokens",
                       "This model's maximum context length is %u tokens. However, you requested "
                       "%u output tokens. Please request fewer.",
                       g->served->max_model_len, a->max_tokens);
    else if (r == 0 && tokens.count >= g->served->max_model_len)
        r = prompt_refuse_length(g->served, tokens.count, false, a->max_tokens, err);
    if (r < 0)
        goto out;
    uint32_t room = room_for(g, tokens.count);
    if (a->max_tokens > room && (g->room == 0 || room < g->room))
        g->room = room;
    if (have + tokens.count > *cap) {
        size_t more = 2 * have + tokens.count;
        int32_t *ids = realloc(g->ids, more * sizeof(*ids));
        if (!ids) {
            r = api_no_memory(err);
            goto out;
        }
        g->ids = ids;
        *cap = more;
    }
    memcpy(g->ids + have, tokens.at, tokens.count * sizeof(*tokens.at));
    g->end[prompt] = have + tokens.count;
out:
    token_vec_done(&tokens);
    return r;
}

/* Reads all prompts and numbers the choices; requests are made when their turn comes. */
static int make_choices(struct generation *g, const struct generation_origin *from,
                        struct api_error *err)
{
    const struct openai_ask *a = &g->ask;
    uint32_t count = a->prompts * a->n;
    size_t cap = 0;
    int r = 0;
    g->choice = calloc(count, sizeof(*g->choice));
    g->end = calloc(a->prompts, sizeof(*g->end));
    if (!g->choice || !g->end)
        return api_no_memory(err);
    for (uint32_t i = 0; i < a->prompts && r == 0; i++)
        r = add_prompt(g, i, &cap, err);
    if (r < 0)
        return r;
    for (; g->count < count; g->count++) {
        struct choice *c = &g->choice[g->count];
        c->of = g;
        c->index = g->count;
        c->prompt = g->count / a->n;
    }
    g->window = from->at_once && from->at_once < OPENAI_AT_ONCE ? from->at_once : OPENAI_AT_ONCE;
    fill_base(g, from, &g->base);
    return words_make(g->served, a, &g->base, &g->words, err);
}

/* A client may not go ahead of others beyond what its key says; a request that says nothing gets
 * what is nearest to 0. */
static int settle_priority(const json_t *body, const struct generation_origin *from,
                           struct openai_ask *a, struct api_error *err)
{
    int64_t first = from->priority_first, last = from->priority_last;
    int64_t near = a->priority < first ? first : a->priority > last ? last : a->priority;
    if (!from->priority_bound || near == a->priority)
        return 0;
    if (field_of(body, "priority"))
        return api_refuse(err, 400, "priority",
                          "`priority` must be from %lld to %lld with this key, got %lld.",
                          (long long)first, (long long)last, (long long)a->priority);
    a->priority = near;
    return 0;
}

int generation_new(const struct served *s, enum openai_api api, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err)
{
    static const char *const prefixes[API_COUNT] = {
        [API_CHAT] = "chatcmpl-", [API_PLAIN] = "cmpl-",        [API_RESPONSES] = "resp_",
        [API_MESSAGES] = "msg_",  [API_EMBED] = "embd-",        [API_TOKENIZE] = "",
        [API_DETOKENIZE] = "",    [API_OLLAMA_CHAT] = "",       [API_OLLAMA_TEXT] = "",
        [API_OLLAMA_EMBED] = "",  [API_INFILL] = "cmpl-",       [API_RERANK] = "rerank-",
        [API_SCORE] = "score-",   [API_CLASSIFY] = "classify-", [API_POOLING] = "pool-"};
    struct generation *g = calloc(1, sizeof(*g));
    if (!g) {
        json_decref(body);
        past_drop(s->pasts, from->before);
        return api_no_memory(err);
    }
    g->served = s;
    g->body = body;
    g->before = from->before;
    g->inherited = from->inherited;
    g->quick = from->quick;
    g->keeper = from->keeper;
    g->share = from->share;
    g->created_s = from->wall_us / 1000000;
    g->call_key[0] = generation_mix(from->chance) ^ from->wall_us;
    for (const char *c = from->request_id; *c; c++)
        g->call_key[1] = generation_mix(g->call_key[1] + (unsigned char)*c);
    (void)snprintf(g->id, sizeof(g->id), "%s%s", prefixes[api], from->request_id);
    g->name_len = strlen(from->request_id);
    int r = openai_parse(s, api, body, from->work, &g->ask, err);
    if (r < 0)
        goto out;
    r = settle_priority(body, from, &g->ask, err);
    if (r == 0)
        r = pair_settle(s, &g->ask, err);
    if (r == 0)
        r = form_settle(s, &g->ask, err);
    if (r == 0)
        r = form_grammar(s, &g->ask, from, from->work, &g->grammar, err);
    form_tell(&g->ask, g->grammar);
    if (r == 0)
        r = make_choices(g, from, err);
    if (r == 0 && g->ask.keep && responses_brought(g) < 0)
        r = api_no_memory(err);
    if (r < 0)
        goto out;
    *ret_gen = g;
    g = NULL;
out:
    generation_free(g);
    return r;
}

void generation_end(struct generation *g)
{
    (void)generation_give_places(g, 0);
    for (uint32_t i = 0; i < g->count; i++)
        choice_done(&g->choice[i]);
    g->count = 0;
    ek_buf_done(&g->out);
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    generation_end(g);
    free(g->choice);
    free(g->words);
    free(g->end);
    free(g->ids);
    grammar_unref(g->grammar);
    ek_buf_done(&g->brought);
    past_drop(g->served->pasts, g->before);
    json_decref(g->body);
    free(g);
}

size_t generation_fixed(const struct generation *g)
{
    return g->count * sizeof(*g->choice) + g->ask.prompts * sizeof(*g->end) +
           g->end[g->ask.prompts - 1] * sizeof(*g->ids) + g->brought.cap;
}

size_t generation_held(const struct generation *g)
{
    size_t n = g->out.cap;
    for (uint32_t i = 0; i < g->count; i++)
        n += choice_held(&g->choice[i]);
    return n;
}

bool generation_drop(struct generation *g)
{
    for (uint32_t i = 1; i < g->count; i++) {
        g->seen += g->choice[i].seen;
        choice_done(&g->choice[i]);
    }
    choice_drop(&g->choice[0]);
    g->count = g->taken = 1;
    g->over = g->aborted = true;
    if (!g->quick)
        return false;
    struct choice *first = realloc(g->choice, sizeof(*g->choice));
    g->choice = first ? first : g->choice;
    free(g->ids);
    g->ids = NULL;
    ek_buf_done(&g->brought);
    return true;
}

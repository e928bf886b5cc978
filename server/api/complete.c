/* One generation and its choices, see complete.h. */
#include "server/api/complete.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/api/error.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/text/tokenizer.h"

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* What is above 0 stays so: a double may be too small for a float. */
static float narrow(double v)
{
    return v > 0 && v < (double)FLT_MIN ? FLT_MIN : (float)v;
}

/* Off is 0 below, as the slots of the engine have it. */
static void fill_sampling(const struct http_served *s, const struct openai_ask *a,
                          const struct generation_origin *from, struct req_ask *q)
{
    q->temperature = (float)a->temperature;
    q->top_p = narrow(a->top_p);
    q->min_p = (float)a->min_p;
    q->typical_p = a->typical_p < 1 ? narrow(a->typical_p) : 0;
    q->frequency = (float)a->frequency;
    q->presence = (float)a->presence;
    q->repetition = a->repetition == 1 ? 0 : narrow(a->repetition);
    q->top_k = (uint32_t)a->top_k;
    q->top = a->logprobs ? a->top : 0;
    if (a->score && q->top < a->prompt_top)
        q->top = a->prompt_top;
    q->score = a->score;
    q->seed = a->seeded      ? (uint64_t)a->seed
              : s->seed >= 0 ? mix((uint64_t)s->seed ^ from->chance)
                             : from->chance;
}

static void fill_ask(const struct generation *g, const struct token_vec *tokens,
                     const struct generation_origin *from, struct req_ask *q)
{
    const struct http_served *s = g->served;
    const struct openai_ask *a = &g->ask;
    uint32_t room = s->max_model_len - (uint32_t)tokens->count;
    if (a->max_tokens && a->max_tokens < room)
        room = a->max_tokens;
    *q = (struct req_ask){.prompt = tokens->at,
                          .prompt_tokens = (uint32_t)tokens->count,
                          .max_new_tokens = room,
                          .min_tokens = a->min_tokens < room ? a->min_tokens : room,
                          .priority = (int32_t)a->priority,
                          .ignore_eos = a->ignore_eos,
                          .cache_salt = from->cache_salt
                                            ? from->cache_salt(from->auth, from->key, a->cache_salt)
                                            : a->cache_salt,
                          .cache_owner = from->cache_owner,
                          .arrival_us = from->arrival_us,
                          .worker = from->worker};
    fill_sampling(s, a, from, q);
    q->hidden = a->api == API_EMBED;
    q->hidden_width = q->hidden ? s->hidden : 0;
    for (uint32_t i = 0; i < a->stop_id_count; i++)
        q->stop_ids[q->stop_count++] = a->stop_ids[i];
    for (uint32_t i = 0; i < s->eos_count && (!a->ignore_eos || g->grammar); i++)
        q->stop_ids[q->stop_count++] = s->eos[i];
    q->grammar = g->grammar;
    if (!g->grammar)
        return;
    q->grammar_least = a->min_tokens; /* a text that is complete ends, whatever was wished for */
    q->min_tokens = 0;
    /* What the client excludes might be all that would complete the text. */
    bool plain = !a->allowed_ids && !a->bad_words && json_object_size(a->logit_bias) == 0;
    q->grammar_finish = a->finish_form && plain;
    q->grammar_forced = plain;
    /* Penalties want to be told of each token, log probabilities want one for each. */
    q->grammar_append = plain && !a->logprobs && !request_has_history(q);
}

/* Puts the end of the prompt, from its last message on, through what takes harmony apart. */
static int begin_harmony(struct choice *c, const struct req_ask *q)
{
    const struct http_served *s = c->of->served;
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
    const struct http_served *s = c->of->served;
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
    const struct http_served *s = c->of->served;
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
    bool text = !c->of->grammar || c->of->ask.form_kind == GRAMMAR_TAGS;
    if (!text && !forced && !either)
        c->calls.style = TOOLS_NONE; /* the form leaves no room for calls, nor for thinking */
    if (text)
        reasoning_begin(&c->reasoning, s->think, tail, tail_len);
    c->sifting = c->calls.style != TOOLS_NONE || c->reasoning.style != THINK_NONE;
    if (c->calls.style > TOOLS_HERMES)
        c->detok.skip_specials = false; /* its marks may be special tokens */
    return 0;
}

static int make_choice(struct generation *g, uint32_t prompt, uint32_t number,
                       const struct req_ask *q, const char *tail, size_t tail_len,
                       struct api_error *err)
{
    const struct openai_ask *a = &g->ask;
    struct choice *c = &g->choice[g->count];
    struct req_ask own = *q;
    own.seed += number; /* the first one is what n = 1 would give */
    own.score = q->score && number == 0;
    c->of = g;
    c->index = g->count;
    c->prompt = prompt;
    detok_init(&c->detok, g->served->tok);
    memcpy(c->detok.stop, a->stop, sizeof(a->stop));
    c->detok.stops = a->stops;
    c->detok.include_stop = a->include_stop;
    c->detok.skip_specials = a->skip_specials;
    int r = a->chat ? set_sieve(c, tail, tail_len, &own) : 0;
    c->req = r == 0 ? request_new(&own) : NULL;
    if (c->req && g->name_len < sizeof(c->req->name))
        memcpy(c->req->name, g->id + strlen(g->id) - g->name_len, g->name_len + 1);
    g->count++;
    return c->req ? 0 : reply_no_memory(err);
}

/* Forms whose clients send the most that some model can: for the others it is an error, as in vLLM,
 * to ask for more than the model has. */
static bool clamps(const struct openai_ask *a)
{
    return a->api == API_MESSAGES || a->api == API_RESPONSES;
}

/* The choices of one prompt. */
static int make_choices(struct generation *g, uint32_t prompt, const struct generation_origin *from,
                        struct api_error *err)
{
    const struct openai_ask *a = &g->ask;
    struct token_vec tokens = {0};
    uint32_t *words = NULL;
    char tail[64];
    struct req_ask q;
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
    fill_ask(g, &tokens, from, &q);
    if (a->max_tokens > q.max_new_tokens && (g->room == 0 || q.max_new_tokens < g->room))
        g->room = q.max_new_tokens;
    r = words_make(g->served, a, &q, &words, err);
    size_t tail_len = r == 0 ? prompt_tail(g->served, &tokens, tail, sizeof(tail)) : 0;
    for (uint32_t i = 0; i < a->n && r == 0; i++)
        r = make_choice(g, prompt, i, &q, tail, tail_len, err);
out:
    free(words);
    token_vec_done(&tokens);
    return r;
}

int generation_new(const struct http_served *s, enum openai_api api, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err)
{
    static const char *const prefixes[API_COUNT] = {
        [API_CHAT] = "chatcmpl-", [API_PLAIN] = "cmpl-", [API_RESPONSES] = "resp_",
        [API_MESSAGES] = "msg_",  [API_EMBED] = "embd-", [API_TOKENIZE] = "",
        [API_DETOKENIZE] = ""};
    struct generation *g = calloc(1, sizeof(*g));
    if (!g) {
        json_decref(body);
        return reply_no_memory(err);
    }
    g->served = s;
    g->body = body;
    g->created_s = from->wall_us / 1000000;
    g->call_key[0] = from->chance ^ from->wall_us;
    for (const char *c = from->request_id; *c; c++)
        g->call_key[1] = mix(g->call_key[1] + (unsigned char)*c);
    (void)snprintf(g->id, sizeof(g->id), "%s%s", prefixes[api], from->request_id);
    g->name_len = strlen(from->request_id);
    int r = openai_parse(s, api, body, &g->ask, err);
    if (r < 0)
        goto out;
    r = form_settle(s, &g->ask, err);
    if (r == 0)
        r = form_grammar(s, &g->ask, from->quick, from->work, &g->grammar, err);
    if (r < 0)
        goto out;
    g->choice = calloc((size_t)g->ask.prompts * g->ask.n, sizeof(*g->choice));
    if (!g->choice)
        r = reply_no_memory(err);
    for (uint32_t i = 0; i < g->ask.prompts && r == 0; i++)
        r = make_choices(g, i, from, err);
    if (r < 0)
        goto out;
    *ret_gen = g;
    g = NULL;
out:
    generation_free(g);
    return r;
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->count; i++)
        choice_done(&g->choice[i]);
    free(g->choice);
    grammar_unref(g->grammar);
    ek_buf_done(&g->out);
    json_decref(g->body);
    free(g);
}

size_t generation_held(const struct generation *g)
{
    size_t n = g->out.cap;
    for (uint32_t i = 0; i < g->count; i++)
        n += choice_held(&g->choice[i]);
    return n;
}

void generation_drop(struct generation *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        choice_drop(&g->choice[i]);
}

/* ---- the engine ---- */

static struct choice *leader_of(const struct generation *g, const struct choice *c)
{
    return &g->choice[(size_t)c->prompt * g->ask.n];
}

/* Its prompt is in the prefix cache, or never will be. */
static bool is_due(const struct generation *g, const struct choice *c)
{
    const struct choice *first = leader_of(g, c);
    if (c->taken)
        return false;
    return c == first || !g->served->prefix_caching ||
           c->req->ask.prompt_tokens <= g->served->block_size ||
           atomic_load_explicit(&first->req->out_count, memory_order_acquire) > 0 ||
           atomic_load_explicit(&first->req->state, memory_order_acquire) == REQ_DONE;
}

static int refusal(const struct generation *g, struct api_error *err)
{
    int r = g->refused_why;
    const char *why = g->refused_fault.msg[0] ? g->refused_fault.msg : ek_strerror(r);
    if (r == -EBUSY)
        (void)api_refuse(err, 429, "", "The server is busy: %s. Try again later.", why);
    else if (r == -ESHUTDOWN)
        (void)api_refuse(err, 503, "", "The server is draining and takes no new requests.");
    else if (r == -EBADMSG)
        (void)api_refuse(err, 400,
                         g->refused_fault.field[0] ? g->refused_fault.field : "input_tokens", "%s",
                         why);
    else
        (void)api_refuse(err, r == -ENOMEM ? 503 : 500, "", "The request was not taken: %s.", why);
    if (err->status == 429 || err->status == 503)
        err->retry_after_s = g->retry_after_s ? g->retry_after_s : 1;
    return -EBADMSG;
}

int generation_submit(struct generation *g, struct api_error *err)
{
    struct ek_fault fault = {0};
    for (uint32_t i = 0; i < g->count && !g->refused; i++) {
        struct choice *c = &g->choice[i];
        if (!is_due(g, c))
            continue;
        int r = engine_submit(g->served->engine, c->req, &g->retry_after_s, &fault);
        c->taken = r == 0;
        g->taken += c->taken;
        if (r < 0) {
            g->refused = true;
            g->refused_why = r;
            g->refused_fault = fault;
        }
    }
    if (!g->refused)
        return 0;
    generation_abort(g);
    return refusal(g, err);
}

void generation_abort(struct generation *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        struct choice *c = &g->choice[i];
        if (c->taken && atomic_load(&c->req->state) != REQ_DONE)
            engine_finish(g->served->engine, c->req, REQ_FIN_ABORT);
    }
}

static bool ended_badly(const struct choice *c)
{
    return c->over && c->finish != REQ_FIN_STOP && c->finish != REQ_FIN_LENGTH;
}

bool generation_pump(struct generation *g)
{
    struct api_error unused;
    bool news = false, all = true;
    if (g->over)
        return false;
    for (uint32_t i = 0; i < g->count; i++) {
        struct choice *c = &g->choice[i];
        if (c->over)
            continue;
        news = choice_pump(c) || news;
        if (c->cut && c->taken)
            engine_finish(g->served->engine, c->req, REQ_FIN_STOP);
        all = all && c->over;
        g->over = g->over || ended_badly(c);
    }
    if (g->over) /* one failed: the others are worth nothing */
        generation_abort(g);
    else if (g->taken && g->taken < g->count && generation_submit(g, &unused) < 0)
        g->over = true;
    g->over = g->over || all;
    return g->over || (news && (g->taken == g->count || g->taken == 0));
}

static int check_choice(const struct choice *c, struct api_error *err)
{
    if (!ek_buf_ok(&c->text) || !ek_buf_ok(&c->lp[0]))
        return reply_no_memory(err);
    switch (c->finish) {
    case REQ_FIN_NONE:
    case REQ_FIN_STOP:
    case REQ_FIN_LENGTH:
    case REQ_FIN_KINDS: return 0;
    case REQ_FIN_ABORT:
        (void)api_refuse(err, 503, "", "The request was ended by the server.");
        break;
    case REQ_FIN_DEADLINE:
        (void)api_refuse(err, 503, "", "The server is shutting down and its deadline has passed.");
        break;
    case REQ_FIN_ERROR:
        if (c->seen == 0 && (c->req->error == -EBUSY || c->req->error == -ETIMEDOUT))
            (void)api_refuse(err, 429, "",
                             "The request waited in the queue for longer than the deadline.");
        else if (c->req->error == -ENODATA)
            (void)api_refuse(err, 400, "",
                             "No token may come next: allowed_token_ids, bad_words, min_tokens, "
                             "logit_bias and the form asked for exclude them all.");
        else if (c->req->error == -E2BIG)
            (void)api_refuse(err, 400, c->of->ask.form_field ? c->of->ask.form_field : "",
                             "The tokens that may come next take more work to find than is "
                             "offered: make the form simpler.");
        else
            (void)api_refuse(err, 500, "", "The engine could not finish the request: %s.",
                             ek_strerror(c->req->error));
        break;
    }
    err->retry_after_s = err->status == 500 || err->status == 400 ? 0 : 5;
    return -EBADMSG;
}

int generation_check(const struct generation *g, struct api_error *err)
{
    if (g->refused)
        return refusal(g, err);
    if (!ek_buf_ok(&g->out))
        return reply_no_memory(err);
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->choice[i].over && check_choice(&g->choice[i], err) < 0)
            return -EBADMSG;
    }
    return 0;
}

uint32_t generation_prompt_tokens(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->ask.prompts; i++)
        n += g->choice[(size_t)i * g->ask.n].req->ask.prompt_tokens;
    return n;
}

uint32_t generation_seen(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->count && !g->ask.no_output; i++)
        n += g->choice[i].seen;
    return n;
}

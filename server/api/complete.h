/*
 * One request for completions: from a checked body to requests for the engine, one per choice, and
 * from the tokens that come back to text, log probabilities and finally bytes for the client. Knows
 * no socket: the exchange that owns it pumps it when the engine has news and sends what is in
 * `out`.
 *
 * A prompt with n > 1 is computed once: its first choice leads, the others are handed to the engine
 * when the leader has its first token, and find the prompt in the prefix cache. A stream begins
 * when all have been taken, so that a refusal is a true status.
 *
 * Owner: the worker of its connection. The requests inside are shared with the engine (request.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/api/items.h"
#include "server/api/openai.h"
#include "server/engine/request.h"
#include "server/text/answer/harmony.h"
#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "server/text/detok.h"

struct api_error;
struct auth;
struct generation;
struct http_served;
struct token_vec;

enum lp_array { LP_ENTRIES, LP_TOKENS = 0, LP_VALUES, LP_TOPS, LP_OFFSETS, LP_ARRAYS };

/* One answer of a generation. Texts and lists hold all of it, or in a stream what no chunk has
 * told. */
struct choice {
    struct generation *of;
    uint32_t index, prompt; /* as the client counts; which of the ask's prompts */
    struct request *req;
    bool taken; /* by the engine */
    struct detok detok;
    uint32_t seen; /* tokens taken from req->out */
    uint32_t told; /* of those, the ones a chunk has told */
    bool opened;   /* what precedes its first token is in the text */
    bool cut;      /* a stop string ended it before the engine knew */
    bool over;     /* nothing more will be read from the request */
    bool begun;    /* a stream's first chunk of it is rendered */
    bool ended;    /* and its last one */
    enum req_finish finish;
    const char *stop_string; /* that ended it, or NULL */
    struct ek_buf text;
    struct ek_buf ids;           /* token ids as JSON, when asked for */
    struct ek_buf lp[LP_ARRAYS]; /* the inside of JSON arrays */
    struct ek_buf thought;       /* what comes before the answer, for models that think */
    bool sifting;                /* thinking and tool calls are taken out of the text: */
    struct ek_buf raw, said;     /* before the first, before the second */
    struct reasoning reasoning;
    struct toolcalls calls;
    struct harmony harmony; /* instead of these two, for models that write it */
    uint32_t calls_told;    /* of those, the ones a chunk has told */
    size_t args_told;       /* of the last of these, bytes of its arguments */
    uint64_t offset;        /* of the next token, in characters (completions' logprobs) */
    struct items items;     /* for the forms that have them */
};

struct generation {
    const struct http_served *served;
    json_t *body; /* the ask borrows from it */
    struct openai_ask ask;
    struct grammar *grammar; /* of all choices, or NULL */
    struct choice *choice;
    uint32_t count, taken; /* choices; those that the engine has taken */
    char id[176];          /* chatcmpl-..., cmpl-... */
    size_t name_len;       /* of its end: the x-request-id */
    uint32_t room; /* most tokens of an answer, where that is less than was asked for; or 0 */
    uint64_t created_s;
    uint64_t call_key[2]; /* ids of tool calls come from it */
    bool over;            /* all choices are */
    bool begun;           /* a stream's first chunk is rendered */
    bool closed;          /* the stream's last byte is rendered */
    uint32_t events;      /* numbers of a stream's events */
    bool refused;         /* the engine did not take a choice: */
    int refused_why;
    uint32_t retry_after_s;
    struct ek_fault refused_fault;
    struct ek_buf out; /* a stream's bytes, from out_at on not sent yet */
    size_t out_at;
};

struct generation_origin {
    const char *request_id;
    uint64_t arrival_us, wall_us;
    uint32_t worker;
    uint64_t chance;         /* seeds a request that brings no seed */
    const struct auth *auth; /* whose prefix cache it uses; NULL = everybody's */
    int key;
    uint64_t cache_owner; /* who that is, 0 = nobody */
    /* Mixes a client's own salt with the key's; NULL = it is taken as it is. */
    uint64_t (*cache_salt)(const struct auth *auth, int key, uint64_t client_salt);
    bool quick;                 /* a form that is still to be compiled is left to others: -EAGAIN */
    const struct ek_work *work; /* deadline and cancellation where it runs, or NULL */
};

/* Takes over body (also on failure). Checks, applies the chat template, tokenises. 0, -EBADMSG with
 * err (out of memory is a 503), or -EAGAIN when from->quick says so. */
int generation_new(const struct http_served *s, enum openai_api api, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err);
/* Drops the references to the requests. NULL is fine. */
void generation_free(struct generation *g);

/* Hands what is due to the engine. -EBADMSG with err when the engine does not take it: then nothing
 * of the generation goes on. */
int generation_submit(struct generation *g, struct api_error *err);
/* Takes what the engine has put out, tells it what has ended here. True when there is something new
 * to send or the generation is over. */
bool generation_pump(struct generation *g);
/* The client has left: ends what the engine still has of it. */
void generation_abort(struct generation *g);
/* After it is over: 0, or -EBADMSG with err when it did not end well. */
int generation_check(const struct generation *g, struct api_error *err);
uint32_t generation_prompt_tokens(const struct generation *g);
uint32_t generation_seen(const struct generation *g);
/* Bytes of texts and lists that wait to be told: what an answer takes beside its request. */
size_t generation_held(const struct generation *g);
/* Frees these, once an answer has been rendered: nothing of it can be told any more. */
void generation_drop(struct generation *g);

/* choice.c: the same for one choice; the engine is not touched. */
bool choice_pump(struct choice *c);
void choice_done(struct choice *c);
size_t choice_held(const struct choice *c);
void choice_drop(struct choice *c); /* texts and lists */

/* prompt.c: tokens of one of the ask's prompts. -EBADMSG with err. */
int prompt_tokens(const struct http_served *s, const struct openai_ask *a, uint32_t index,
                  struct token_vec *out, struct api_error *err);
/* The text of a prompt's last tokens, at most `most` bytes of it, into buf. Returns its length. */
size_t prompt_tail(const struct http_served *s, const struct token_vec *tokens, char *buf,
                   size_t most);
/* "This model's maximum context length is ..." */
int prompt_refuse_length(const struct http_served *s, size_t prompt, bool more, uint32_t wanted,
                         struct api_error *err);
/* The text that comes before a choice's first token. 0 or -ENOMEM. */
int prompt_echo(const struct choice *c, struct ek_buf *text);

/* form.c: when all fields are read, what the answer may be. Calls that must be made are the answer,
 * the form is that of a later one; where tools may be called it is calls or the form; with no form,
 * text in which calls of strict tools keep to their schemas. */
int form_settle(const struct http_served *s, struct openai_ask *a, struct api_error *err);
/* The grammar of the form asked for, with a reference; NULL for free text. 0, -EBADMSG with err, or
 * with `quick` -EAGAIN when it has to be compiled. */
int form_grammar(const struct http_served *s, const struct openai_ask *a, bool quick,
                 const struct ek_work *within, struct grammar **ret_grammar, struct api_error *err);

/* words.c: biases, allowed tokens and bad words as the engine wants them (req_ask.words); the
 * caller frees *ret_words. 0, or -EBADMSG with err. */
int words_make(const struct http_served *s, const struct openai_ask *a, struct req_ask *q,
               uint32_t **ret_words, struct api_error *err);

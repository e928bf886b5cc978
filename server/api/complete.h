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
 * Of many prompts no more than `window` are with the engine at once: what the others need of memory
 * and of the queue is taken when their turn comes. A full queue, or the key's share of it, refuses
 * the first of them; later ones wait for room: they try again when one of them has ended, and at
 * ticks. Then a stream begins when the first ones are taken. When nothing of it runs and there was
 * no room for as long as a request may wait in the queue, the rest is refused.
 *
 * Owner: the worker of its connection. The requests inside are shared with the engine (request.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/api/generation.h"

struct api_error;
struct auth;
struct past;
struct served;
struct token_vec;

struct generation_origin {
    const char *request_id;
    uint64_t arrival_us, wall_us;
    uint32_t worker;
    uint64_t chance;         /* seeds a request that brings no seed */
    uint32_t at_once;        /* most answers of it in the engine; 0 = as many as there may be */
    const struct auth *auth; /* whose prefix cache it uses; NULL = everybody's */
    int key;
    uint64_t cache_owner; /* of which owner, 0 = none */
    uint64_t keeper;      /* which key sees the stored response, 0 = all without a key */
    struct past *before;  /* the stored response that it goes on from, taken over, or NULL */
    uint32_t inherited;   /* items that the body's input has from it */
    struct tenant_ref tenant;
    struct queue_share share;
    /* Mixes a client's own salt with the key's; NULL = it is taken as it is. */
    uint64_t (*cache_salt)(const struct auth *auth, int key, uint64_t client_salt);
    bool priority_bound; /* the key's clients may ask for these only: */
    int32_t priority_first, priority_last;
    bool quick; /* a form that is still to be compiled is left to others: -EAGAIN */
    struct ek_work
        *work; /* pays for reading it; deadline and cancellation where it runs; or NULL */
};

/* Takes over body and from->before (also on failure). Checks, applies the chat template, tokenises.
 * 0, -EBADMSG with err (out of memory is a 503), or -EAGAIN when from->quick says so. */
int generation_new(const struct served *s, enum openai_api api, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err);
/* Drops the references to the requests and all that it was given while it ran: what is left
 * was made by generation_new(). */
void generation_end(struct generation *g);
/* Ends it, and frees what is left. Any thread, if it was ended before. NULL is fine. */
void generation_free(struct generation *g);

/* Makes the request of a choice whose turn it is, as generation_submit() does. 0 or -ENOMEM. */
int generation_request(struct choice *c);
/* The tokens of one of its prompts, borrowed. */
struct token_vec generation_prompt(const struct generation *g, uint32_t prompt);
/* Bytes that it takes from the beginning on, whatever its answers are. */
size_t generation_fixed(const struct generation *g);
/* Bytes of texts and lists that wait to be told: what an answer takes beside its request. */
size_t generation_held(const struct generation *g);
/* Frees these but for the first choice's numbers, once an answer has been rendered: it is over, and
 * nothing of it can be told any more. False: what generation_fixed() counts stays, since another
 * thread has made it. */
bool generation_drop(struct generation *g);

/* submit.c */
/* Hands what is due and has room to the engine. -EBADMSG with err when the engine does not take it:
 * then nothing of the generation goes on. */
int generation_submit(struct generation *g, struct api_error *err);
/* Takes what the engine has put out, tells it what has ended here. True when there is something new
 * to send or the generation is over. */
bool generation_pump(struct generation *g);
/* Now and then: whether some of it waits for room, which the next pump asks for again. */
bool generation_tick(struct generation *g);
/* Whether the engine has some of it that has not ended there, told here or not. */
bool generation_computes(const struct generation *g);
/* The client has left: ends what the engine still has of it, and hands over no more. */
void generation_abort(struct generation *g);
/* After it is over: 0, or -EBADMSG with err when it did not end well. */
int generation_check(const struct generation *g, struct api_error *err);
/* Gives back what its key is charged for beyond so many places of the queue; whether it was. */
bool generation_give_places(struct generation *g, uint32_t keep);

/* choice.c: the same for one choice; the engine is not touched. */
bool choice_pump(struct choice *c);
void choice_done(struct choice *c);
size_t choice_held(const struct choice *c);
void choice_drop(struct choice *c); /* texts and lists */

/* prompt.c: tokens of one of the ask's prompts. -EBADMSG with err. */
int prompt_tokens(const struct served *s, const struct openai_ask *a, uint32_t index,
                  struct token_vec *out, struct api_error *err);
/* The text of a prompt's last tokens, at most `most` bytes of it, into buf. Returns its length. */
size_t prompt_tail(const struct served *s, const struct token_vec *tokens, char *buf, size_t most);
/* "This model's maximum context length is ..." */
int prompt_refuse_length(const struct served *s, size_t prompt, bool more, uint32_t wanted,
                         struct api_error *err);
/* The text that comes before a choice's first token. 0 or -ENOMEM. */
int prompt_echo(const struct choice *c, struct ek_buf *text);

/* response_format.c: when all fields are read, what the answer may be. Calls that must be made are
 * the answer, the form is that of a later one; where tools may be called it is calls or the form;
 * with no form, text in which calls of strict tools keep to their schemas. */
int form_settle(const struct served *s, struct openai_ask *a, struct api_error *err);
/* The grammar of the form asked for, with a reference; NULL for free text. 0, -EBADMSG with err, or
 * with from->quick -EAGAIN when it has to be compiled. It is one of its tenant's. */
int form_grammar(const struct served *s, const struct openai_ask *a,
                 const struct generation_origin *from, const struct ek_work *within,
                 struct grammar **ret_grammar, struct api_error *err);
/* Notes in the ask what a grammar (NULL is none) does not keep to. */
void form_tell(struct openai_ask *a, const struct grammar *g);

/* token_lists.c: biases, allowed tokens and bad words as the engine wants them (req_ask.words); the
 * caller frees *ret_words. 0, or -EBADMSG with err. */
int words_make(const struct served *s, const struct openai_ask *a, struct req_ask *q,
               uint32_t **ret_words, struct api_error *err);

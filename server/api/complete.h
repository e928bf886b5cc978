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
struct past;
struct served;
struct token_vec;

enum lp_array { LP_ENTRIES, LP_TOKENS = 0, LP_VALUES, LP_TOPS, LP_OFFSETS, LP_ARRAYS };

/* One answer of a generation. Texts and lists hold all of it, or in a stream what no chunk has
 * told. */
struct choice {
    struct generation *of;
    uint32_t index, prompt; /* as the client counts; which of the ask's prompts */
    struct request *req;    /* of an embedding that is done only the first one keeps its own */
    bool taken;             /* by the engine: handed over, and not refused */
    struct detok detok;
    uint32_t seen;   /* tokens taken from req->out */
    uint32_t told;   /* of those, the ones a chunk has told */
    bool opened;     /* what precedes its first token is in the text */
    bool cut;        /* a stop string ended it before the engine knew */
    bool over;       /* nothing more will be read from the request */
    bool begun;      /* a stream's first chunk of it is rendered */
    bool ended;      /* and its last one */
    bool lines;      /* of /infill: there was a new line; */
    bool margin;     /* nothing but blanks has come since, */
    uint32_t indent; /* so many */
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

/* Who counts the places that one client has in the queue; `take` may be NULL = nobody does. */
struct queue_share {
    struct auth *auth;
    int key;
    /* Of `most` places in all. 0, or -EBUSY with a fault. */
    int (*take)(struct auth *auth, int key, uint32_t most, struct ek_fault *fault);
    void (*give)(struct auth *auth, int key);
};

struct generation {
    const struct served *served;
    json_t *body; /* the ask borrows from it */
    struct openai_ask ask;
    struct grammar *grammar; /* of all choices, or NULL */
    struct choice *choice;
    uint32_t count, taken; /* choices; those that the engine has taken */
    uint32_t window;       /* most of them that it may have at once */
    bool parted;           /* not all could be handed over at once */
    bool full;             /* there was no room: not tried before something has changed */
    uint64_t stuck_us;     /* since when that is so and nothing of it runs, 0 = it is not */
    struct queue_share share;
    uint32_t places;     /* of the queue, taken of it beside the request's own */
    bool aborted;        /* no more of them are */
    int32_t *ids;        /* tokens of all prompts, one behind the other */
    size_t *end;         /* [ask.prompts]: where each of them ends */
    struct req_ask base; /* of each choice's request, but for its prompt */
    uint32_t *words;     /* that it points to */
    char id[176];        /* chatcmpl-..., cmpl-... */
    size_t name_len;     /* of its end: the x-request-id */
    uint32_t room;       /* most tokens of an answer, where that is less than was asked for; or 0 */
    uint64_t created_s;
    uint64_t call_key[2]; /* ids of tool calls and of items come from it */
    bool over;            /* all choices are */
    uint32_t seen;        /* tokens of choices that are dropped */
    bool begun;           /* a stream's first chunk is rendered */
    bool closed;          /* the stream's last byte is rendered */
    uint32_t events;      /* numbers of a stream's events */
    bool refused;         /* the engine did not take a choice: */
    int refused_why;
    uint32_t retry_after_s;
    struct ek_fault refused_fault;
    struct past *before;   /* the stored response that it goes on from, with a reference, or NULL */
    uint32_t inherited;    /* items at the beginning of the body's input that come from there */
    uint64_t keeper;       /* whose it is when it is stored, */
    struct ek_buf brought; /* with the items that came with the body */
    struct ek_buf out;     /* a stream's bytes, from out_at on not sent yet */
    size_t out_at;
};

struct generation_origin {
    const char *request_id;
    uint64_t arrival_us, wall_us;
    uint32_t worker;
    uint64_t chance;         /* seeds a request that brings no seed */
    uint32_t at_once;        /* most answers of it in the engine; 0 = as many as there may be */
    const struct auth *auth; /* whose prefix cache it uses; NULL = everybody's */
    int key;
    uint64_t cache_owner; /* who that is, 0 = nobody */
    uint64_t keeper;      /* who sees the response when it is stored, 0 = all without a key */
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
/* Drops the references to the requests. NULL is fine. */
void generation_free(struct generation *g);

/* Makes the request of a choice whose turn it is, as generation_submit() does. 0 or -ENOMEM. */
int generation_request(struct choice *c);
/* Hands what is due and has room to the engine. -EBADMSG with err when the engine does not take it:
 * then nothing of the generation goes on. */
int generation_submit(struct generation *g, struct api_error *err);
/* Takes what the engine has put out, tells it what has ended here. True when there is something new
 * to send or the generation is over. */
bool generation_pump(struct generation *g);
/* Now and then: whether some of it waits for room, which the next pump asks for again. */
bool generation_tick(struct generation *g);
/* The client has left: ends what the engine still has of it, and hands over no more. */
void generation_abort(struct generation *g);
/* After it is over: 0, or -EBADMSG with err when it did not end well. */
int generation_check(const struct generation *g, struct api_error *err);
uint32_t generation_prompt_tokens(const struct generation *g);
uint32_t generation_seen(const struct generation *g);
/* Bytes that it takes from the beginning on, whatever its answers are. */
size_t generation_fixed(const struct generation *g);
/* Bytes of texts and lists that wait to be told: what an answer takes beside its request. */
size_t generation_held(const struct generation *g);
/* Frees both but for the first choice's numbers, once an answer has been rendered: it is over, and
 * nothing of it can be told any more. */
void generation_drop(struct generation *g);

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

/* form.c: when all fields are read, what the answer may be. Calls that must be made are the answer,
 * the form is that of a later one; where tools may be called it is calls or the form; with no form,
 * text in which calls of strict tools keep to their schemas. */
int form_settle(const struct served *s, struct openai_ask *a, struct api_error *err);
/* The grammar of the form asked for, with a reference; NULL for free text. 0, -EBADMSG with err, or
 * with from->quick -EAGAIN when it has to be compiled. It is one of its tenant's. */
int form_grammar(const struct served *s, const struct openai_ask *a,
                 const struct generation_origin *from, const struct ek_work *within,
                 struct grammar **ret_grammar, struct api_error *err);
/* Notes in the ask what a grammar (NULL is none) does not keep to. */
void form_tell(struct openai_ask *a, const struct grammar *g);

/* words.c: biases, allowed tokens and bad words as the engine wants them (req_ask.words); the
 * caller frees *ret_words. 0, or -EBADMSG with err. */
int words_make(const struct served *s, const struct openai_ask *a, struct req_ask *q,
               uint32_t **ret_words, struct api_error *err);

/*
 * One completion: from a checked body to a request for the engine, and from the tokens that come
 * back to text, log probabilities and finally bytes for the client. Knows no socket: the exchange
 * that owns it pumps it when the engine has news and sends what is in `out`.
 *
 * Owner: the worker of its connection. The request inside is shared with the engine (request.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "server/engine/request.h"
#include "server/http/openai.h"
#include "server/http/toolcall.h"
#include "server/text/detok.h"

struct api_error;
struct ek_arena;
struct http_served;
struct token_vec;

enum lp_array { LP_ENTRIES, LP_TOKENS = 0, LP_VALUES, LP_TOPS, LP_OFFSETS, LP_ARRAYS };

struct generation {
    const struct http_served *served;
    json_t *body; /* the ask borrows from it */
    struct openai_ask ask;
    struct request *req;
    char id[176]; /* chatcmpl-..., cmpl-... */
    uint64_t created_s;
    struct detok detok;
    uint32_t seen; /* tokens taken from req->out */
    uint32_t told; /* of those, the ones a chunk has told */
    bool over;     /* nothing more will be read from the request */
    bool begun;    /* a stream's first chunk is rendered */
    bool closed;   /* the stream's last byte is rendered */
    enum req_finish finish;
    const char *stop_string;     /* that ended it, or NULL */
    struct ek_buf text;          /* all of it, or in a stream: what no chunk has told */
    struct ek_buf ids;           /* token ids as JSON, likewise, when asked for */
    struct ek_buf lp[LP_ARRAYS]; /* the inside of JSON arrays, likewise */
    bool sifting;                /* tool calls are taken out of the text */
    struct ek_buf raw;           /* the text before that */
    struct toolcalls calls;
    uint32_t calls_told;  /* of those, the ones a chunk has told */
    uint64_t call_key[2]; /* their ids come from it */
    uint64_t offset;      /* of the next token, in characters (completions' logprobs) */
    struct ek_buf out;    /* a stream's bytes, from out_at on not sent yet */
    size_t out_at;
};

struct generation_origin {
    const char *request_id;
    uint64_t arrival_us, wall_us;
    uint32_t worker;
    uint64_t chance;         /* seeds a request that brings no seed */
    const struct auth *auth; /* whose prefix cache it uses; NULL = everybody's */
    int key;
};

/* Takes over body (also on failure). Checks, applies the chat template, tokenises. 0, or -EBADMSG
 * with err (out of memory is a 503). */
int generation_new(const struct http_served *s, bool chat, json_t *body,
                   const struct generation_origin *from, struct generation **ret_gen,
                   struct api_error *err);
/* Drops the reference to the request. NULL is fine. */
void generation_free(struct generation *g);

/* Takes what the engine has put out. Returns true when there is something new to send or the
 * generation is over. *ret_cut: a stop string was found, tell the engine to stop. */
bool generation_pump(struct generation *g, bool *ret_cut);
/* After it is over: 0, or -EBADMSG with err when it did not end well. */
int generation_check(const struct generation *g, struct api_error *err);

/* The prompt's tokens: shared with /tokenize. -EBADMSG with err. */
int generation_tokens(const struct http_served *s, const struct openai_ask *a,
                      struct token_vec *out, struct api_error *err);

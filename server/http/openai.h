/*
 * OpenAI request bodies, read and checked: JSON in, a plain struct out. Every field is checked for
 * type and range, and the error names it (`param`). Fields that are known but not offered are
 * refused unless they have their neutral value; unknown fields are accepted, as vLLM does. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "server/engine/request.h"
#include "server/text/detok.h"

struct api_error;
struct http_served;

#define OPENAI_DEPTH    64u
#define OPENAI_MESSAGES 4096u
#define OPENAI_STOP_LEN 256u

struct openai_ask {
    bool chat, stream, include_usage, continuous_usage;
    bool logprobs; /* asked for at all */
    uint32_t top;  /* alternatives to return */
    bool add_generation_prompt, add_specials, skip_specials, include_stop, ignore_eos;
    bool return_token_ids;
    bool seeded;
    uint64_t seed, cache_salt;
    double temperature, top_p, min_p;
    uint32_t top_k;
    uint32_t max_tokens; /* 0 = as many as fit */
    uint32_t min_tokens;
    int32_t priority;
    const char *stop[DETOK_STOPS]; /* in the body */
    uint32_t stops;
    int32_t stop_ids[REQ_STOP_IDS]; /* the client's own */
    uint32_t stop_id_count;
    const char *model; /* in the body, or the first served name */
    /* what to complete, in the body: */
    json_t *messages, *tools, *template_args; /* chat; tools may be NULL */
    const char *prompt;                       /* completions: text, or NULL and ids */
    size_t prompt_len;
    const json_t *prompt_ids;
};

/* Reads the bytes of a body: an object, no duplicate keys, depth bounded. NULL with an error. */
json_t *openai_load(const char *bytes, size_t len, struct api_error *err);
/* The ask borrows from `body`, which is normalised on the way (content parts joined, arguments of
 * tool calls parsed). 0 or -EBADMSG with err. */
int openai_parse(const struct http_served *s, bool chat, json_t *body, struct openai_ask *ret_ask,
                 struct api_error *err);
/* Checks messages and joins their text parts; also for /tokenize. */
int openai_messages(json_t *messages, struct api_error *err);
/* 0, or a 404 in err. `name` may be NULL. */
int openai_model(const struct http_served *s, const char *name, struct api_error *err);

/* Fills err and returns -EBADMSG. */
int api_refuse(struct api_error *err, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * What a body asks for, as a plain struct: openai.c reads it in, by the table of field_table.c; the
 * rest of the API goes by it. The struct borrows from the body.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "server/engine/request.h"
#include "server/grammar/compile.h"
#include "server/text/detok.h"

struct ek_work;
struct fim;

#define OPENAI_DEPTH        64u
#define OPENAI_MESSAGES     4096u
#define OPENAI_STOP_LEN     256u
#define OPENAI_CHOICES      2048u /* prompts times n of one request */
#define OPENAI_N            128u  /* answers of one prompt */
#define OPENAI_AT_ONCE      128u  /* of a request that the engine has */
#define OPENAI_BAD_WORDS    256u
#define OPENAI_BAD_WORD_LEN 256u
#define OPENAI_FUEL         (1u << 25) /* units of work (common/work.h) for any body, */
#define OPENAI_FUEL_BYTE    64u        /* and for each byte of it */
#define OPENAI_IGNORED      256u       /* bytes of the list of what is */

/* Whose form a body has. */
enum openai_api {
    API_CHAT,
    API_PLAIN,
    API_RESPONSES,
    API_MESSAGES,
    API_EMBED,
    API_TOKENIZE,
    API_DETOKENIZE,
    API_OLLAMA_CHAT,
    API_OLLAMA_TEXT, /* /api/generate */
    API_OLLAMA_EMBED,
    API_INFILL, /* llama-server's */
    API_RERANK, /* of Cohere, Jina and vLLM */
    API_SCORE,  /* vLLM's, as the next two */
    API_CLASSIFY,
    API_POOLING,
    API_COUNT
};

struct openai_ask {
    enum openai_api api;
    bool chat; /* messages are completed, not prompts */
    bool stream, include_usage, continuous_usage;
    bool logprobs;        /* asked for at all */
    uint32_t top;         /* alternatives to return */
    bool score;           /* the prompt's log probabilities are wanted: */
    bool echo;            /* before the text, or */
    bool prompt_logprobs; /* on their own, */
    uint32_t prompt_top;  /* with as many alternatives */
    bool add_generation_prompt, continue_final, add_specials, skip_specials;
    bool finish_form; /* a constrained answer is completed within max_tokens */
    bool include_stop, ignore_eos;
    bool include_reasoning;
    bool return_token_ids, return_prompt_text, tokens_as_ids, token_strings;
    bool one_call, no_calls; /* of the tools: give one, none at all */
    bool no_output;          /* max_tokens 0 with echo, n_predict 0 */
    bool base64;             /* embeddings as such */
    bool keep;               /* the response is stored */
    bool seeded;
    uint64_t cache_salt;
    struct ek_sampling sampling; /* its seed only when `seeded` */
    int64_t truncate;            /* prompt tokens to keep, the last ones; 0 = all, -1 = what fits */
    uint32_t max_tokens;         /* 0 = as many as fit */
    uint32_t min_tokens;
    uint32_t n;
    int64_t priority;
    const char *stop[DETOK_STOPS]; /* in the body */
    uint32_t stops;
    int32_t stop_ids[REQ_STOP_IDS]; /* the client's own */
    uint32_t stop_id_count;
    const char *model; /* in the body, or the first served name */
    /* in the body, checked, or NULL: */
    json_t *logit_bias, *bad_words, *allowed_ids;
    json_t *messages, *tools, *template_args, *documents;
    uint32_t past_calls; /* in the messages */
    json_t *bound;       /* parameters that bind a call beyond those that the model sees, by tool */
    json_t *system;      /* the system's text, before it became a message */
    json_t *tokens;      /* /detokenize */
    /* The form of the answer; of JSON of any kind there is no value. */
    const char *form_field; /* that asked for it, NULL = free text */
    enum grammar_kind form_kind;
    json_t *form;
    bool either;         /* the answer is calls of tools or the form */
    bool must_call;      /* a tool, whatever form is asked for: */
    const char *call;    /* which one, NULL = any */
    const char *args_of; /* harmony: the answer is the arguments of this tool's call */
    const char *effort;  /* how much to think, for the template; NULL = its own default */
    int64_t thinking;    /* tokens of it at most, below 0 = any */
    /* what to complete: a string, a list of ids, or a list of such */
    json_t *prompt;
    const json_t *suffix;  /* what follows the gap that is to be filled, a string, or NULL */
    const struct fim *fim; /* how the model is asked for it */
    const json_t *extra;   /* other files' texts, which come before, or NULL */
    const json_t *shown;   /* which fields the answer has, NULL = all */
    uint32_t indent;       /* an answer ends before a line with less, but for its first */
    int64_t predict_ms;    /* after so long it ends with the line; 0 and below = never */
    /* Of texts that are scored (pair.h): a string, an object with `text`, or a list of such. */
    const json_t *first, *second;
    const char *first_field, *second_field; /* where they came from */
    uint32_t first_most, second_most;       /* tokens of each that are read, 0 = all */
    uint32_t pairs, top_n;                  /* how many they are; 0 = all are told */
    json_t *instruction;                    /* for the template, or NULL */
    bool as_it_is;                          /* numbers as the model gives them */
    bool no_documents;                      /* ranks without the texts */
    bool vectors;                           /* /pooling: the state, whatever the model has */
    bool keep_first;                        /* `truncate` keeps the first tokens */
    struct ek_work *work;                   /* the meter of reading it and its prompts */
    uint32_t prompts;                       /* how many; 1 for messages */
    char ignored[OPENAI_IGNORED];           /* fields that change nothing, as a header tells them */
};

/* One of the ask's prompts: text, or NULL and ids. */
struct openai_prompt {
    const char *text;
    size_t len;
    const json_t *ids;
};

/* Notes a field that was accepted and changes nothing; `inside` is what it is a part of, "" or with
 * its dot. Once each; where there is no room for more, three dots say so. */
void openai_ignore(struct openai_ask *a, const char *inside, const char *name);
/* i < ask->prompts, of an ask without messages. */
struct openai_prompt openai_prompt(const struct openai_ask *a, uint32_t i);
/* Whether it asks for vectors, or for what is made of them. */
static inline bool openai_embeds(enum openai_api api)
{
    return api == API_EMBED || api == API_OLLAMA_EMBED || api >= API_RERANK;
}
/* Whether it is one of Ollama's own. */
static inline bool openai_is_ollama(enum openai_api api)
{
    return api == API_OLLAMA_CHAT || api == API_OLLAMA_TEXT || api == API_OLLAMA_EMBED;
}

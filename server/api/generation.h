/*
 * A generation and its choices: plain data that complete.c makes and moves, choice.c fills, and all
 * that writes answers reads.
 *
 * Owner: the worker of its connection. The requests inside are shared with the engine (request.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/account.h"
#include "common/buf.h"
#include "common/err.h"
#include "server/api/ask.h"
#include "server/engine/request.h"
#include "server/text/answer/harmony.h"
#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "server/text/detok.h"

struct auth;
struct generation;
struct past;
struct served;

/* An answer as a row of items, see items.h. */
enum item_kind { ITEM_THOUGHT, ITEM_TEXT, ITEM_CALL };

struct item {
    enum item_kind kind;
    size_t from, to;       /* in the choice's thought or text, or in the call's arguments */
    size_t lp_from, lp_to; /* of a text: in the choice's log probabilities */
    uint32_t call;
};

struct items {
    struct item *at;
    uint32_t count, cap;
    bool open;                         /* the last one may grow */
    size_t thought_at, text_at, lp_at; /* what is in items */
    uint32_t calls;
};

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

/* Counts the places that one client has in the queue; `take` may be NULL: they are not counted. */
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
    bool quick;                      /* made by the thread that runs it, */
    struct generation *next_dropped; /* else by an encoder's, which frees it: its list, */
    struct ek_bill bill;             /* and what it counts for meanwhile */
};

static inline uint32_t generation_prompt_tokens(const struct generation *g)
{
    return (uint32_t)g->end[g->ask.prompts - 1];
}
/* The first answer of a prompt, which is made before the others of it. */
static inline struct choice *generation_first(const struct generation *g, uint32_t prompt)
{
    return &g->choice[(size_t)prompt * g->ask.n];
}
/* Tokens of answers that have come. */
static inline uint32_t generation_seen(const struct generation *g)
{
    uint32_t n = g->ask.no_output ? 0 : g->seen;

    for (uint32_t i = 0; i < g->count && !g->ask.no_output; i++)
        n += g->choice[i].seen;
    return n;
}

/*
 * One request: what the HTTP side asks, what the engine answers. Made by an HTTP thread, handed to
 * the engine by engine_submit(), then shared:
 *
 *   fields of `ask`      written before submit, read-only after
 *   `out`, `out_count`   written by the engine thread: entries first, then the count (release);
 *                        readers load the count (acquire) and read entries below it
 *   `state`, `finish`    written by the engine thread; `finish` before state becomes REQ_DONE
 *   `refs`               atomic: one for the HTTP side, one for the engine while it holds it
 *   the rest             the engine thread's own
 *
 * Memory: one arena, released with the last reference. `out` has room for every token that the
 * request may ever produce, so a slow reader never blocks the engine.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/metrics.h"
#include "kernels/step.h"
#include "server/engine/tenants.h"
#include "server/engine/thinking.h"
#include "server/grammar/grammar.h"

#define REQ_STOP_IDS EK_BANNED_MOST
#define REQ_GATE     8u

enum req_state { REQ_NEW, REQ_WAITING, REQ_RUNNING, REQ_PREEMPTED, REQ_DONE };

enum req_finish {
    REQ_FIN_NONE,
    REQ_FIN_STOP,     /* eos, a stop token id, or a stop string found by the HTTP side */
    REQ_FIN_LENGTH,   /* max_new_tokens or the model's length */
    REQ_FIN_ABORT,    /* the client left */
    REQ_FIN_DEADLINE, /* a drain's deadline cut it */
    REQ_FIN_ERROR,    /* see `error` */
    REQ_FIN_KINDS
};

struct req_ask {
    const int32_t *prompt; /* in the request's arena */
    uint32_t prompt_tokens;
    uint32_t max_new_tokens; /* >= 1; already cut to the model's length */
    uint32_t answers;        /* that its prompt is asked for, each a request; 0 is 1 */
    uint32_t min_tokens;
    struct ek_sampling sampling;
    uint32_t top; /* alternatives to report, 0 .. EK_TOP_MOST */
    /* Words as ek_slot_set has them: allowed, biases, bad sequences; copied. The stop ids are
     * banned for the first min_tokens. */
    const uint32_t *words;
    uint32_t allowed, biases, bad;
    bool score;  /* the prompt's tokens are scored, from the second on */
    bool hidden; /* wanted: the state behind the first token */
    int32_t priority;
    bool ignore_eos;
    int32_t stop_ids[REQ_STOP_IDS]; /* eos ids included unless ignore_eos */
    uint32_t stop_count;
    uint32_t hidden_width; /* of the state, when `hidden` */
    uint64_t cache_salt;
    uint64_t cache_owner;      /* whose share of the cache its blocks count for, 0 = its salt's */
    struct tenant_ref tenant;  /* whose counter pays for it */
    uint64_t arrival_us;       /* when the front end had its headers */
    uint64_t deadline_us;      /* leave the queue by then, 0 = none */
    uint32_t worker;           /* HTTP thread to wake */
    bool further;              /* part of what was begun before: taken during a drain too */
    bool again;                /* a refusal is not the client's: it is tried again, not counted */
    struct grammar *grammar;   /* that the output must match, NULL = free text; the request has a
                                  reference of its own. min_tokens is 0 then, instead: */
    uint32_t grammar_least;    /* with fewer tokens it ends only where nothing else may follow */
    bool grammar_finish;       /* it completes the text within max_new_tokens */
    bool grammar_jump_forward; /* bytes without a choice come in the tokens of
                                  matcher_jump_forward() */
    bool grammar_append;       /* which are then appended without a step of their own */
    /* The form begins behind the first `gate_last` after these tokens in a row, others between;
     * what comes before is free. None: it begins with the first token. */
    int32_t gate[REQ_GATE], gate_last;
    uint32_t gates;
    struct thinking_limit thinking;
};

/* One token that came out. What was appended without a choice has logprob 0 and no top. */
struct req_token {
    int32_t id;
    float logprob;
    uint32_t top; /* alternatives at req->top_at[i * ask.top ...] */
};

struct req_top {
    int32_t id;
    float logprob;
};

/* What happened to a request on its way, for traces: the first REQ_MOMENTS of them. Its engine's
 * thread writes them; others read them once the request is done. */
#define REQ_MOMENTS 6u

struct req_moment {
    uint64_t at_us;
    enum req_moment_kind { REQ_MET_PREEMPTION, REQ_MET_REPLAY } kind;
};

struct request {
    struct req_ask ask;
    struct req_token *out;  /* [ask.max_new_tokens] */
    struct req_top *top_at; /* [ask.max_new_tokens * ask.top] */
    /* Written before the first token of `out`: the prompt's scores, the first one not set. */
    struct req_token *score;   /* [ask.prompt_tokens], NULL when not asked for */
    uint32_t *rank;            /* [ask.prompt_tokens] */
    struct req_top *score_top; /* [ask.prompt_tokens * ask.top] */
    float *hidden;             /* [ask.hidden_width], NULL when not asked for */
    atomic_uint out_count;
    atomic_int state; /* enum req_state */
    enum req_finish finish;
    int32_t stop_token;        /* the id that ended it, -1 */
    int error;                 /* code when finish is REQ_FIN_ERROR */
    char name[EK_EXEMPLAR_ID]; /* for exemplars, set before submit; "" = none */
    uint32_t cached_tokens, preemptions;
    uint32_t replays; /* times that it lost its device */
    struct req_moment moments[REQ_MOMENTS];
    uint32_t moment_count;
    uint64_t queued_us, first_scheduled_us, first_token_us, done_us;
    struct matcher matcher;                  /* engine thread, when there is a grammar: */
    bool mask_slow, mask_refused;            /* see constrain.h */
    bool mask_heavy, mask_given, mask_ready; /* the last one was slow; with a masker; has bits */
    uint32_t mask_at, *mask_bits; /* of so many tokens out; maskers' memory, NULL = none yet */
    uint32_t mask_tries;          /* in vain, with all that there is */
    uint32_t mask_vain;           /* rows since its mask was given to a masker */
    uint64_t mask_need;           /* units that the next try is worth */
    uint32_t gate_read, gate_met; /* tokens looked at for the gate, and of it found in a row */
    uint32_t form_at;             /* the token that the form begins with, when form_open */
    bool form_open;
    struct thinking thinking; /* engine thread */
    struct request *first;    /* answer of the same prompt, with a reference; NULL = it is this.
                                 There, engine thread: */
    uint32_t answers_ended, answers_longest; /* that ended well; tokens of the longest of them */
    atomic_uint refs;
    atomic_int wish; /* enum req_finish that the HTTP side wants: STOP, ABORT; 0 = none */
    struct ek_arena arena;
    void *user;                /* the HTTP side's connection */
    uint32_t entry;            /* the scheduler's index, UINT32_MAX outside */
    struct request *next;      /* link in the submit queue, the engine's lock */
    struct request *next_wish; /* link in the queue of wishes, the engine's lock */
};

/* NULL when out of memory (or when a count of `ask` is out of its range). Copies the prompt and the
 * words; refs = 1. */
struct request *request_new(const struct req_ask *ask);
/* True when what was sampled before matters to what is chosen next. */
bool request_has_history(const struct req_ask *ask);
/* It answers the same prompt as `first`, of which it takes a reference. Before it is submitted. */
void request_follow(struct request *r, struct request *first);
void request_note(struct request *r, enum req_moment_kind kind, uint64_t now_us);
void request_ref(struct request *r);
void request_unref(struct request *r);              /* NULL is fine */
const char *request_finish_name(enum req_finish f); /* as in vLLM's finished_reason */

/*
 * A bound on the tokens that a request thinks before it answers. Where they are spent, the mark
 * that ends the thinking is all that may come next, token by token; the answer then goes on as if
 * the model had written it. Marks are known by their tokens, as in vLLM (thinking_token_budget): a
 * model that spells one in other tokens has not ended its thinking. Called by constrain.c; pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define THINKING_MARK 16u /* tokens of the longest mark */
#define THINKING_HEAD 32u /* a model that has not begun to think after so many does not */

struct thinking_mark {
    int32_t token[THINKING_MARK];
    uint32_t count; /* 0 = there is none */
};

/* What a request asks for. All zero = no bound. */
struct thinking_limit {
    struct thinking_mark open, close, call; /* call: of a tool, which ends it too */
    uint32_t most;                          /* tokens between the marks */
    bool on;                                /* there is a bound; `close` is there then */
    bool inside;                            /* the prompt has opened it */
    bool again;                             /* it may open at any time, and more than once */
};

/* How far a text is. All zero at its beginning. */
struct thinking {
    uint32_t read, used;                    /* tokens looked at, and those of the thinking */
    uint32_t open_met, close_met, call_met; /* of each mark, so many tokens were the last ones */
    bool inside, over;                      /* over: it does not open any more */
};

/* Whether the bound may matter for one of the next `ahead` tokens after `count` of them. */
bool thinking_binds(const struct thinking *t, const struct thinking_limit *l, uint32_t count,
                    uint32_t ahead);
/* Brings it to the end of `count` tokens; token i lies `stride` bytes behind token i - 1. */
void thinking_follow(struct thinking *t, const struct thinking_limit *l, const int32_t *token,
                     size_t stride, uint32_t count);
/* The only token that may come next, -1 = any; after thinking_follow(). */
int32_t thinking_forced(const struct thinking *t, const struct thinking_limit *l);

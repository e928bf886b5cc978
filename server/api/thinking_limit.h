/*
 * What a bound on the thinking (thinking_token_budget) is for the engine: the marks of the model's
 * style as its tokens, and whether the prompt has opened it. Called by complete.c for each choice.
 */
#pragma once

#include <stdint.h>

#include "server/engine/thinking.h"
#include "server/text/answer/reasoning.h"
#include "server/text/tokenizer.h"

/* `most` tokens, below 0 = any; `r` as it is before the answer's first token. Without thinking in
 * this answer there is no bound. 0 or -ENOMEM. */
int thinking_limit(const struct tokenizer *tok, const struct reasoning *r, int64_t most,
                   struct thinking_limit *ret_limit);

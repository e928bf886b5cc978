/* Appending to a token_vec. Silent on its limit: the caller of encode() set it and learns -E2BIG.
 */
#pragma once

#include <stdint.h>

struct token_vec;

int tokens_push(struct token_vec *v, int32_t id); /* -ENOMEM, -E2BIG */

/* A list of token ids that grows up to a limit. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_work;

struct token_vec {
    int32_t *at;
    size_t count, cap;
    size_t limit;         /* most tokens; 0 = none. Over it encode() returns -E2BIG */
    struct ek_work *work; /* the meter of making them: spent, it is -E2BIG too; NULL = none */
};

/* Silent on its limit: the caller of encode() set it and learns -E2BIG. */
int tokens_push(struct token_vec *v, int32_t id); /* -ENOMEM, -E2BIG */
void token_vec_done(struct token_vec *v);

/*
 * The list that tokenizer.c, bpe.c and unigram.c append tokens to. The limit is tested at each
 * token, so a prompt that is far too long is given up early.
 */
#include "server/text/tokens.h"

#include <errno.h>
#include <stdlib.h>

int tokens_push(struct token_vec *v, int32_t id)
{
    if (v->limit && v->count >= v->limit)
        return -E2BIG;
    if (v->count == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64;
        int32_t *at = realloc(v->at, cap * sizeof(*at));
        if (!at)
            return -ENOMEM;
        v->at = at;
        v->cap = cap;
    }
    v->at[v->count++] = id;
    return 0;
}

void token_vec_done(struct token_vec *v)
{
    free(v->at);
    *v = (struct token_vec){.limit = v->limit};
}

/*
 * What fuzz targets of tokenizers do with one that was built: a text must become tokens that exist.
 */
#pragma once

#include <stdlib.h>

#include "server/text/tokenizer.h"

static inline void tokens_exist(const struct tokenizer *t)
{
    static const char text[] = "the caf\xC3\xA9  \xE2\x96\x81x\n\x01 <s> \xF0\x9F\x99\x82";
    struct token_vec v = {0};

    if (tokenizer_encode_prompt(t, text, sizeof(text) - 1, &v) == 0)
        for (size_t i = 0; i < v.count; i++) {
            size_t n;
            if (!tokenizer_bytes(t, v.at[i], &n))
                abort();
        }
    token_vec_done(&v);
}

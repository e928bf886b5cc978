/* Lists of tokens for a slot of the engine, in the layout of kernels/step.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/work.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/text/tokenizer.h"

static void put_allowed(const json_t *ids, uint32_t *bits)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        bits[id / 32] |= 1u << (id % 32);
    }
}

static void put_biases(json_t *biases, uint32_t *to)
{
    const char *key;
    json_t *v;
    json_object_foreach(biases, key, v)
    {
        float bias = (float)json_number_value(v);
        *to++ = (uint32_t)strtoul(key, NULL, 10);
        memcpy(to++, &bias, sizeof(bias));
    }
}

/* The tokens of a word, its length before them. 0 when there is no room. */
static int put_word(const struct tokenizer *tok, const char *text, size_t len, struct ek_work *work,
                    uint32_t *words, uint32_t *count)
{
    struct token_vec v = {.limit = EK_BAD_WORDS, .work = work};
    int r = tokenizer_encode(tok, text, len, false, 0, &v);
    if (r == 0 && v.count > 0 && *count + 1 + v.count > EK_BAD_WORDS)
        r = -E2BIG;
    if (r == 0 && v.count > 0) {
        words[(*count)++] = (uint32_t)v.count;
        for (size_t i = 0; i < v.count; i++)
            words[(*count)++] = (uint32_t)v.at[i];
    }
    token_vec_done(&v);
    return r;
}

/* Each word as it stands at the beginning of a text and as it stands behind a blank. */
static int put_bad(const struct served *s, const struct openai_ask *a, uint32_t *words,
                   uint32_t *count)
{
    const json_t *list = a->bad_words;
    int r = 0;
    for (size_t i = 0; i < json_array_size(list) && r == 0; i++) {
        const json_t *word = json_array_get(list, i);
        struct ek_buf spaced = {0};
        (void)ek_buf_puts(&spaced, " ");
        r = ek_buf_add(&spaced, json_string_value(word), json_string_length(word));
        if (r == 0)
            r = put_word(s->tok, spaced.data + 1, spaced.len - 1, a->work, words, count);
        if (r == 0 && spaced.data[1] != ' ')
            r = put_word(s->tok, spaced.data, spaced.len, a->work, words, count);
        ek_buf_done(&spaced);
    }
    return r;
}

int words_make(const struct served *s, const struct openai_ask *a, struct req_ask *q,
               uint32_t **ret_words, struct api_error *err)
{
    uint32_t allowed = a->allowed_ids ? (s->vocab + 31) / 32 : 0, bad = 0;
    uint32_t biases = (uint32_t)json_object_size(a->logit_bias);
    size_t room = allowed + 2 * (size_t)biases + (a->bad_words ? EK_BAD_WORDS : 0);
    if (room == 0)
        return 0;
    uint32_t *words = calloc(room, sizeof(*words));
    if (!words)
        return api_no_memory(err);
    put_allowed(a->allowed_ids, words);
    put_biases(a->logit_bias, words + allowed);
    int r = put_bad(s, a, words + allowed + 2 * (size_t)biases, &bad);
    if (r < 0) {
        free(words);
        if (ek_work_stopped(a->work))
            return api_refuse_work(a->work, "bad_words", err);
        if (r == -E2BIG)
            return api_refuse(err, 400, "bad_words",
                              "`bad_words` have more than %u tokens, counted with and without a "
                              "blank before them; send fewer.",
                              EK_BAD_WORDS);
        return api_no_memory(err);
    }
    q->allowed = allowed;
    q->biases = biases;
    q->bad = bad;
    q->words = *ret_words = words;
    return 0;
}

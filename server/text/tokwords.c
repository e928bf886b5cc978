/*
 * What a tokenizer.json of type WordPiece says besides its vocabulary. Runs once at start.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/text/tokparts.h"

#define WORD_CHARS 100 /* of max_input_chars_per_word, when it is missing */
#define WORD_MOST  65536

/* Tokens with the prefix, without it. */
static int read_inner(struct tokenizer *t, const char *prefix, size_t prefix_len)
{
    const struct vocab *keys = &t->bpe.keys;
    int r = vocab_init(&t->words.inner, keys->ids, true);
    for (uint32_t id = 0; r == 0 && id < keys->ids; id++) {
        size_t len;
        const char *s = vocab_at(keys, (int32_t)id, &len);
        if (s && len > prefix_len && memcmp(s, prefix, prefix_len) == 0)
            r = vocab_put(&t->words.inner, id, s + prefix_len, len - prefix_len);
    }
    return r;
}

int tok_read_words(struct tokenizer *t, const json_t *model, struct ek_fault *fault)
{
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    json_int_t chars = most ? json_integer_value(most) : WORD_CHARS;
    const char *prefix = "##";
    size_t len = 2;
    if (most && (!json_is_integer(most) || chars < 1 || chars > WORD_MOST))
        return ek_fault_set(fault, "model.max_input_chars_per_word",
                            TOK_FILE ": model.max_input_chars_per_word must be 1 to %d", WORD_MOST);
    if (json_object_get(model, "continuing_subword_prefix")) {
        int r = tok_string(model, "continuing_subword_prefix", &prefix, &len, fault);
        if (r < 0)
            return r;
    }
    if (t->bpe.unk < 0)
        return ek_fault_set(fault, "model.unk_token",
                            TOK_FILE ": model.unk_token is missing; name the token for words that "
                                     "the vocabulary cannot spell");
    t->words.most = (uint32_t)chars;
    return read_inner(t, prefix, len);
}

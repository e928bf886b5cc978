/*
 * A tokenizer.json of type Unigram as one of type BPE without merges, and the scores beside it.
 * Runs once at start.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/err.h"
#include "server/text/tokparts.h"

void tok_source_done(struct tok_source *s)
{
    json_decref(s->root);
    vocab_done(&s->content);
    free(s->order);
    free(s->score);
    *s = (struct tok_source){0};
}

/* [[piece, score], ...] as {piece: id}. */
static int read_pieces(const json_t *list, json_t *vocab, double *score, struct ek_fault *fault)
{
    size_t i;
    const json_t *pair;
    json_array_foreach(list, i, pair)
    {
        const char *piece = json_string_value(json_array_get(pair, 0));
        const json_t *value = json_array_get(pair, 1);
        if (!piece || !json_is_number(value) || json_object_get(vocab, piece))
            return ek_fault_set(fault, "model.vocab",
                                TOK_FILE ": model.vocab: item %zu must be a token that was not "
                                         "there yet, and its score",
                                i);
        score[i] = json_number_value(value);
        if (json_object_set_new(vocab, piece, json_integer((json_int_t)i)) < 0)
            return -ENOMEM;
    }
    return 0;
}

int tok_from_unigram(const json_t *root, struct tok_source *ret_source, struct ek_fault *fault)
{
    const json_t *model = json_object_get(root, "model"), *list = json_object_get(model, "vocab");
    const json_t *unk = json_object_get(model, "unk_id");
    struct tok_source s = {0};
    json_t *vocab = NULL, *simple = NULL;
    bool bytes = false;
    const size_t count = json_array_size(list);
    int r = tok_bool(model, "byte_fallback", false, &bytes, fault);
    if (r < 0)
        return r;
    if (!json_is_array(list) || count == 0 || count > VOCAB_MOST)
        return ek_fault_set(fault, "model.vocab",
                            TOK_FILE ": model.vocab must be an array of 1 to %u tokens",
                            VOCAB_MOST);
    if (unk && !json_is_null(unk) &&
        (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
         json_integer_value(unk) >= (json_int_t)count))
        return ek_fault_set(fault, "model.unk_id", TOK_FILE ": model.unk_id must be a token's id");
    s.scores = (uint32_t)count;
    s.score = malloc(count * sizeof(*s.score));
    s.root = json_copy((json_t *)(uintptr_t)root); /* only its first level is changed */
    vocab = json_object();
    r = s.score && s.root && vocab ? read_pieces(list, vocab, s.score, fault) : -ENOMEM;
    if (r == 0) {
        simple = json_pack("{s:s, s:b, s:b, s:O}", "type", "BPE", "fuse_unk", true, "byte_fallback",
                           bytes, "vocab", vocab);
        if (simple && json_is_integer(unk)) {
            const json_t *pair = json_array_get(list, (size_t)json_integer_value(unk));
            r = json_object_set(simple, "unk_token", json_array_get(pair, 0));
        }
        if (!simple || r < 0 || json_object_set_new(s.root, "model", simple) < 0)
            r = -ENOMEM;
    }
    json_decref(vocab);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}

/* Tokens that have no score (added ones) are never chosen. */
int tok_take_scores(struct tokenizer *t, const struct tok_source *s)
{
    double least = HUGE_VAL;
    t->unigram.score = malloc((t->bpe.keys.ids ? t->bpe.keys.ids : 1) * sizeof(double));
    if (!t->unigram.score)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->bpe.keys.ids; i++)
        t->unigram.score[i] = i < s->scores ? s->score[i] : -HUGE_VAL;
    for (uint32_t i = 0; i < s->scores; i++)
        least = isfinite(s->score[i]) && s->score[i] < least ? s->score[i] : least;
    t->unigram.unknown = least - 10.0; /* the penalty of SentencePiece */
    return 0;
}

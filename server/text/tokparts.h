/*
 * The inside of a tokenizer, shared by the module that runs it (tokenizer.c) and those that fill it
 * from the files (tokload.c the vocabulary, toksteps.c what surrounds the model, tokparts.c what
 * the readers of other files share, toksource.c what becomes of these in another process).
 */
#pragma once

#include <jansson.h>

#include "server/text/added.h"
#include "server/text/bpe.h"
#include "server/text/decoder.h"
#include "server/text/normalize.h"
#include "server/text/pretok.h"
#include "server/text/unigram.h"
#include "server/text/vocab.h"

struct ek_fault;

#define TOK_FILE     "tokenizer.json"
#define TOK_SPM      "tokenizer.model"
#define TOK_TEKKEN   "tekken.json"
#define TOK_TIKTOKEN "tiktoken.model"
#define TOK_VOCAB    "vocab.json" /* these two together */
#define TOK_MERGES   "merges.txt"
#define TOK_ADDED    "added_tokens.json" /* of old directories, with TOK_MAP */
#define TOK_MAP      "special_tokens_map.json"

/* The keys of tokenizer_config.json that name a special token, and the one that lists more. */
#define TOK_SPECIAL_KEYS  7u
#define TOK_MORE_SPECIALS "additional_special_tokens"
extern const char *const tok_special_keys[TOK_SPECIAL_KEYS];

/* What the post-processor puts around a prompt. */
#define TOK_AROUND 16u

struct tok_around {
    int32_t before[TOK_AROUND], after[TOK_AROUND];
    uint32_t befores, afters;
};

struct tokenizer {
    struct vocab content; /* every token as the file spells it */
    struct vocab bytes;   /* every token as text bytes; not indexed */
    uint8_t *special;     /* [content.ids] */
    int32_t *specials;    /* [special_count] in the order of the file */
    uint32_t special_count;
    struct normalizer normalizer;
    struct pretok pretok;
    struct bpe bpe;
    struct unigram unigram;
    struct added raw;    /* added tokens looked for before normalizing */
    struct added normed; /* and after it, their contents normalized */
    struct tok_around around;
    int32_t eos;
};

/* A tokenizer from the parsed files; config may be NULL. -EBADMSG with a fault, -ENOMEM. */
int tok_build(const json_t *root, const json_t *config, struct tokenizer **ret_tok,
              struct ek_fault *fault);

/* What another kind of file amounts to: a tokenizer.json without merges, for which any two adjacent
 * tokens merge that make one of `order`, first those that come first there. */
struct tok_source {
    json_t *root;         /* owned, as are content, order and score */
    struct vocab content; /* in place of model.vocab, if it has ids: the added tokens' ids too */
    uint32_t *order;
    double *score; /* of a Unigram model, by id */
    uint32_t orders, scores;
};
void tok_source_done(struct tok_source *s);
/* As bytes, and back (toksource.c); it has a content. -ENOMEM; reading -EBADMSG with a fault on
 * `file`. What a reader of other files made comes back the same. */
int tok_source_write(const struct tok_source *s, struct ek_buf *out);
int tok_source_read(const char *file, const char *text, size_t len, struct tok_source *ret_source,
                    struct ek_fault *fault);
/* Takes s->content over. */
int tok_build_from(struct tok_source *s, const json_t *config, struct tokenizer **ret_tok,
                   struct ek_fault *fault);
/* SentencePiece's tokenizer.model (spm.c), Mistral's tekken.json (tekken.c), a tokenizer.json whose
 * model is of type Unigram (tokuni.c). config may be NULL: its add_bos_token and add_eos_token say
 * what a prompt gets, and a tokenizer.model has the tokens that its added_tokens_decoder lists,
 * too, and as special ones those that it names. */
int tok_from_spm(const void *data, size_t len, const json_t *config, struct tok_source *ret_source,
                 struct ek_fault *fault);
int tok_from_unigram(const json_t *root, struct tok_source *ret_source, struct ek_fault *fault);
int tok_take_scores(struct tokenizer *t, const struct tok_source *s); /* -ENOMEM */
int tok_from_tekken(const json_t *root, struct tok_source *ret_source, struct ek_fault *fault);
/* A tiktoken.model, which Kimi's directories have (tiktoken.c). */
int tok_from_tiktoken(const void *data, size_t len, const json_t *config,
                      struct tok_source *ret_source, struct ek_fault *fault);
/* GPT-2's vocab.json and merges.txt (tokmerges.c) as a tokenizer.json, which holds the vocabulary,
 * too. */
int tok_from_merges(const json_t *vocab, const char *merges, size_t len, const json_t *config,
                    json_t **ret_root, struct ek_fault *fault);
/* What tokenizer_config.json would say today, where it lists no added tokens: what the other two
 * files say is put in, the names of special tokens before its own. Each may be NULL; *ret_config is
 * the caller's. -EBADMSG with a fault, -ENOMEM. */
int tok_config_of_old(const json_t *config, const json_t *map, const json_t *added,
                      json_t **ret_config, struct ek_fault *fault);
/* An entry of added_tokens_decoder: its id, and its content, which is the entry's. -EBADMSG. */
int tok_listed(const char *key, const json_t *token, uint32_t *ret_id, const char **ret_content,
               struct ek_fault *fault);
/* The text of a token as the files write it, a string or an object with a content; NULL: neither.
 */
const char *tok_text(const json_t *token);
/* All special tokens that tokenizer_config.json names, by their texts, in `names`. -ENOMEM. */
int tok_named(const json_t *config, json_t *names);
/* Base64 to bytes, appended. -EBADMSG when it is none, -ENOMEM. */
int tok_base64(const char *s, struct ek_buf *out);
/* Bytes in base64 as characters of the byte alphabet, in `out`. -EBADMSG, -ENOMEM. */
int tok_spell(const char *s, struct ek_buf *bytes, struct ek_buf *out);
/* {"id", "content", "special", ...}; NULL without memory. */
json_t *tok_added(uint32_t id, const char *content, bool special);
/* A post_processor that puts a token before and one after the text; NULL names: none. */
json_t *tok_template(const char *bos, uint32_t bos_id, const char *eos, uint32_t eos_id);
/* A byte-level BPE that merges by rank: words by `pattern`, a list of added tokens, the
 * post_processor (taken over; NULL is one that could not be had). NULL without memory. */
json_t *tok_byte_root(const char *pattern, json_t *added, json_t *around);

/* The steps of one tokenizer.json (root). All: -EBADMSG with a fault that names the field. */
int tok_read_normalizer(const json_t *root, struct normalizer *n, struct ek_fault *fault);
int tok_read_pretok(const json_t *root, struct pretok *p, struct ek_fault *fault);
int tok_read_decoder(const json_t *root, struct decoder *d, struct ek_fault *fault);
int tok_read_around(const json_t *root, const struct tokenizer *t, struct tok_around *a,
                    struct ek_fault *fault);

/* Members of a JSON object with a default; a member of another type is a fault. */
int tok_bool(const json_t *o, const char *name, bool def, bool *ret_value, struct ek_fault *fault);
/* Absent and null give "" (and length 0). */
int tok_string(const json_t *o, const char *name, const char **ret_s, size_t *ret_len,
               struct ek_fault *fault);

/*
 * The inside of a tokenizer, shared by the module that runs it (tokenizer.c) and those that fill it
 * from the files (tokload.c the vocabulary, toksteps.c what surrounds the model).
 */
#pragma once

#include <jansson.h>

#include "server/text/added.h"
#include "server/text/bpe.h"
#include "server/text/decoder.h"
#include "server/text/normalize.h"
#include "server/text/pretok.h"
#include "server/text/vocab.h"

struct ek_fault;

#define TOK_FILE "tokenizer.json"

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
    struct added raw;    /* added tokens looked for before normalizing */
    struct added normed; /* and after it, their contents normalized */
    struct tok_around around;
    int32_t eos;
};

/* A tokenizer from the parsed files; config may be NULL. -EBADMSG with a fault, -ENOMEM. */
int tok_build(const json_t *root, const json_t *config, struct tokenizer **ret_tok,
              struct ek_fault *fault);

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

/*
 * A form for the requests of the simulation: behind each token 0 come `run` tokens 1, everything
 * else is free. So the null backend, which knows no masks, draws texts that fit, and it is known
 * which tokens are appended without a step.
 */
#pragma once

#include <stdio.h>
#include <string.h>

#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"

#define SIM_FORM_VOCAB 64

struct sim_form {
    struct lexicon *lexicon;
    struct grammar *grammar;
    uint32_t run;
};

static const char *sim_form_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    static char bytes[SIM_FORM_VOCAB];
    (void)ctx;
    bytes[token] = (char)('0' + token);
    *ret_len = 1;
    return &bytes[token];
}

/* `pattern` over the vocabulary's characters; `run` is what it forces. */
static inline int sim_form_of(struct sim_form *f, uint32_t vocab, uint32_t run, const char *pattern)
{
    f->run = run;
    if (lexicon_new(vocab, sim_form_bytes, NULL, NULL, 0, &f->lexicon) < 0)
        return -1;
    return grammar_compile(GRAMMAR_REGEX, pattern, strlen(pattern), f->lexicon, NULL, &f->grammar,
                           NULL);
}

static inline int sim_form_open(struct sim_form *f, uint32_t vocab, uint32_t run)
{
    char pattern[64];
    (void)snprintf(pattern, sizeof(pattern), "([1-\\x%02x]|01{%u})*", '0' + vocab - 1, run);
    return sim_form_of(f, vocab, run, pattern);
}

/* Behind every token that is sampled, whichever, come `run` tokens 1. */
static inline int sim_form_open_all(struct sim_form *f, uint32_t vocab, uint32_t run)
{
    char pattern[64];
    (void)snprintf(pattern, sizeof(pattern), "([0-\\x%02x]1{%u})*", '0' + vocab - 1, run);
    return sim_form_of(f, vocab, run, pattern);
}

static inline void sim_form_close(struct sim_form *f)
{
    grammar_unref(f->grammar);
    lexicon_free(f->lexicon);
}

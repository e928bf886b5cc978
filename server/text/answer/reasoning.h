/*
 * The thinking of models that write <think>...</think> before their answer, taken out of the text.
 * It comes in pieces cut anywhere, which changes nothing; what may become a mark is held back. The
 * template often opens the thinking already in the prompt: then it begins inside. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

enum thinkstyle {
    THINK_NONE,
    THINK_TAGS,    /* where the prompt or the answer opens it */
    THINK_ALWAYS,  /* the answer begins in it, opened or not, unless the prompt has closed it */
    THINK_HARMONY, /* harmony.h takes it out, not this */
};

/* All zero but style and inside at the beginning. */
struct reasoning {
    enum thinkstyle style;
    bool begun;         /* it is known whether the answer begins with thinking */
    bool inside;        /* of it */
    bool after;         /* the mark that ends it was the last that came: blanks are nobody's */
    struct ek_buf held; /* what may be a mark, and blanks before it: */
    size_t blanks;      /* bytes of it, at its beginning, that are known to be blank */
};

/* deepseek_r1, qwen3 or glm45, openai_gptoss; THINK_NONE if there is none of that name. */
enum thinkstyle thinkstyle_find(const char *name);
/* At the beginning, with the end of the prompt as text. */
void reasoning_begin(struct reasoning *r, enum thinkstyle style, const char *prompt, size_t len);
/* Appends to thought and text what is certain. 0 or -ENOMEM. */
int reasoning_push(struct reasoning *r, const char *bytes, size_t len, struct ek_buf *thought,
                   struct ek_buf *text);
/* The answer is over: what is held goes where it is. */
int reasoning_end(struct reasoning *r, struct ek_buf *thought, struct ek_buf *text);
void reasoning_done(struct reasoning *r);

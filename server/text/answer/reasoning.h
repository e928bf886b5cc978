/*
 * The thinking that a model writes before its answer, taken out of the text. What it stands
 * between:
 *
 *     <think>...</think>                                     deepseek_r1, deepseek_v3, qwen3, glm45
 *     <seed:think>...</seed:think>                           seed_oss
 *     <think:opensource>...</think:opensource>               hy_v3; its preview without :opensource
 *     <think>...</think> <response>answer</response>         ernie45
 *     <think>...</think> <answer>answer</answer>             hunyuan_a13b
 *     <|channel>thought ...<channel|>, anywhere              gemma4
 *     [THINK]...[/THINK]                                     mistral
 *     Here is my thought process: ... Here is my response:   granite
 *     <|START_THINKING|>...<|END_THINKING|><|START_TEXT|>answer<|END_TEXT|>
 *                                                            cohere_command3, cohere_command4
 *
 *     <|open|>think<|sep|>...<|close|>think<|sep|><|open|>response<|sep|>answer
 *     <|close|>response<|sep|><|close|>message<|sep|>        kimi_k3
 *     <mm:think>...</mm:think>                               minimax_m3
 *
 * kimi_k2, minimax_m2, olmo3, step3, step5 and holo2 are as deepseek_r1, nemotron_v3,
 * granite_thinking_parser and minicpmv as qwen3.
 *
 * It comes in pieces cut anywhere, which changes nothing; what may become a mark is held back. The
 * template often opens the thinking already in the prompt: then it begins inside. Where a family
 * calls tools out of its thinking, the mark of a call ends it. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

enum thinkstyle {
    THINK_NONE,
    THINK_TAGS,   /* where the prompt or the answer opens it */
    THINK_ALWAYS, /* the answer begins in it, opened or not, unless the prompt has closed it */
    THINK_QWEN3,  /* as THINK_TAGS; a call ends it */
    THINK_SEED_OSS,
    THINK_ERNIE45, /* as THINK_ALWAYS */
    THINK_HUNYUAN,
    THINK_GEMMA4,
    THINK_MISTRAL,
    THINK_GRANITE,
    THINK_KIMI_K2,    /* as THINK_ALWAYS; calls end it */
    THINK_MINIMAX_M2, /* likewise, with marks of calls of its own */
    THINK_HY_V3,      /* as THINK_QWEN3, its marks with :opensource or without */
    THINK_COHERE,
    THINK_KIMI_K3,
    THINK_MINIMAX_M3,
    THINK_HARMONY, /* harmony.h takes it out, not this */
};

/* All zero but style and inside at the beginning. */
struct reasoning {
    enum thinkstyle style;
    bool always;        /* it begins inside, opened or not */
    bool begun;         /* it is known whether the answer begins with thinking */
    bool inside;        /* of it */
    bool second;        /* it was opened by the second mark that its style has */
    bool label;         /* what follows the opening mark may be its label */
    bool after;         /* a mark was the last that came: blanks are dropped */
    struct ek_buf held; /* what may be a mark, and blanks before it: */
    size_t blanks;      /* bytes of it, at its beginning, that are known to be blank */
};

/* What the model writes around its thinking. */
struct reasoning_marks {
    const char *open, *close, *call; /* call: of a tool, which ends it too, or NULL */
    bool again;                      /* it may open at any time */
};

/* Whether it has a mark at its end, and what it writes then. */
bool reasoning_has_marks(enum thinkstyle style);
struct reasoning_marks reasoning_marks(const struct reasoning *r);
/* Whether the answer begins inside of it, right after reasoning_begin(). */
bool reasoning_is_open(const struct reasoning *r);
/* THINK_NONE if there is none of that name, of vLLM's names. */
enum thinkstyle thinkstyle_find(const char *name);
/* Whether the marks may be special tokens of the model. */
bool thinkstyle_special(enum thinkstyle style);
/* At the beginning, with the end of the prompt as text. */
void reasoning_begin(struct reasoning *r, enum thinkstyle style, const char *prompt, size_t len);
/* Appends to thought and text what is certain. 0 or -ENOMEM. */
int reasoning_push(struct reasoning *r, const char *bytes, size_t len, struct ek_buf *thought,
                   struct ek_buf *text);
/* Only what is opened is thinking. Right after reasoning_begin(). */
void reasoning_opened_only(struct reasoning *r);
/* The answer is over: what is held goes where it is. */
int reasoning_end(struct reasoning *r, struct ek_buf *thought, struct ek_buf *text);
void reasoning_done(struct reasoning *r);

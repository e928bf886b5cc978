/*
 * Answers in the harmony form of gpt-oss: messages with a head that names its recipient and a
 * channel, and a body, between tokens that are no text:
 *
 *     <|channel|>analysis<|message|>...<|end|>                       thinking
 *     <|start|>assistant<|channel|>final<|message|>...<|return|>     the answer
 *     ...<|channel|>commentary<|message|>...<|end|>                  said before a call: answer too
 *     ...<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *                      a call of f; the recipient may stand before the channel as well
 *
 * The marks come as tokens, not as text: a model that writes about `<|end|>` ends nothing. Text
 * comes in pieces cut anywhere, which changes nothing. What is addressed to a tool that was not
 * offered is thinking; text that comes where a head should be, from a model that does not write
 * harmony, is the answer. Further messages of a kind begin on a new line. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "server/text/answer/toolcall.h"

#define HARMONY_HEAD 384u /* bytes of one part of a head that are read */

enum harmony_mark {
    HARMONY_START,
    HARMONY_CHANNEL,
    HARMONY_CONSTRAIN,
    HARMONY_MESSAGE,
    HARMONY_END,
    HARMONY_RETURN,
    HARMONY_CALL,
    HARMONY_MARKS
};

/* Where the text is: in a part of a head, or in a body. */
enum harmony_place {
    HARMONY_ROLE,
    HARMONY_TO, /* behind <|channel|> */
    HARMONY_FORM,
    HARMONY_THOUGHT,
    HARMONY_TEXT,
    HARMONY_ARGS
};

/* All zero is an answer without a head; see harmony_begin(). */
struct harmony {
    bool on;
    bool offered; /* functions may be called */
    enum harmony_place place;
    bool bare;  /* no mark has come and none was in the prompt's last message: it may be no head */
    bool fresh; /* nothing of the body was passed on */
    bool thought, said; /* there was some before */
    char role[HARMONY_HEAD], to[HARMONY_HEAD];
    uint32_t role_len, to_len, given; /* of the role, by the prompt */
};

/* What it writes to; calls begin and grow there. */
struct harmony_out {
    struct ek_buf *thought, *text;
    struct toolcalls *calls;
};

/* "<|start|>" and so on. */
const char *harmony_text(enum harmony_mark mark);
/* The answer begins behind a prompt: its last tokens, from the last <|start|> on, are given first
 * by push and mark as if they were the answer's, then harmony_open() is called. Without any, the
 * answer begins in the body of the final message. */
void harmony_begin(struct harmony *h, bool offered);
void harmony_open(struct harmony *h);
/* A piece of text. 0 or -ENOMEM. */
int harmony_push(struct harmony *h, const char *bytes, size_t len, struct harmony_out *out);
/* A mark. 0 or -ENOMEM. */
int harmony_mark(struct harmony *h, enum harmony_mark mark, struct harmony_out *out);
/* The answer is over. */
int harmony_end(struct harmony *h, struct harmony_out *out);

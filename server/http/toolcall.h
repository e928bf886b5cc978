/*
 * Tool calls in the text of an answer, in the hermes style:
 *
 *     <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *
 * The text comes in pieces cut anywhere; what may still become a marker or is inside a call is held
 * back, the rest is passed on at once. What is not a well-formed call stays text, byte for byte.
 * White space around calls is dropped. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

#define TOOLCALL_MOST 128u /* calls of one answer; further ones stay text */

struct toolcall {
    char *name;
    char *args; /* JSON text of an object, as the model wrote it */
    size_t args_len;
};

/* All zero at the beginning. */
struct toolcalls {
    struct ek_buf held; /* bytes not decided yet */
    size_t looked;      /* of them, without an end marker */
    bool inside;        /* held begins behind "<tool_call>" */
    bool midst;         /* text was passed on since the beginning or the last call */
    struct toolcall *call;
    uint32_t count, cap;
};

/* Takes a piece; appends to `text` what is plain text for certain. 0 or -ENOMEM. */
int toolcalls_push(struct toolcalls *t, const char *bytes, size_t len, struct ek_buf *text);
/* The answer is over: decides about what is held. A call that lacks only its end marker is one. */
int toolcalls_end(struct toolcalls *t, struct ek_buf *text);
void toolcalls_done(struct toolcalls *t);

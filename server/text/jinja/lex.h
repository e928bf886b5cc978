/*
 * Template source to tokens, one at a time, with Jinja's whitespace control (trim_blocks and
 * lstrip_blocks set, keep_trailing_newline not). Comments and raw blocks end here: the parser sees
 * text, tag brackets, and what stands between them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_arena;
struct ek_fault;

enum jlex_kind {
    JLEX_EOF,
    JLEX_TEXT,
    JLEX_BLOCK_BEGIN, /* {% */
    JLEX_BLOCK_END,
    JLEX_PRINT_BEGIN, /* {{ */
    JLEX_PRINT_END,
    JLEX_NAME,
    JLEX_STRING, /* s is the unescaped value */
    JLEX_INT,
    JLEX_FLOAT,
    JLEX_OP, /* op: the character, or the second one shifted by 8 for ** // == != <= >= */
};

#define JLEX_OP2(a, b) ((uint32_t)(a) | (uint32_t)(b) << 8)

struct jlex_token {
    enum jlex_kind kind;
    uint32_t line, col; /* from 1; col counts bytes */
    uint32_t op;
    const char *s; /* text, name, string or the spelling; lives as long as the arena */
    size_t len;
    int64_t i;
    double f;
};

struct jlex {
    struct ek_arena *arena;
    struct ek_fault *fault;
    const char *src;
    size_t len, pos;
    size_t located, line_start; /* `line` and the start of it are known for this offset */
    uint32_t line;
    enum { JLEX_IN_TEXT, JLEX_IN_BLOCK, JLEX_IN_PRINT } mode;
    bool line_starting; /* what was consumed last ended with a newline (or nothing was) */
    uint32_t open;      /* brackets open in this tag */
    char closers[64];
};

/* Copies the source with newlines normalised and without one at its end. -EBADMSG for what is not
 * UTF-8, -ENOMEM. */
int jlex_init(struct jlex *x, struct ek_arena *arena, const char *src, size_t len,
              struct ek_fault *fault);
int jlex_next(struct jlex *x, struct jlex_token *ret_token);

/* Fills the fault with "line L column C: " and the message; returns -EBADMSG. */
int jlex_fail(struct ek_fault *fault, uint32_t line, uint32_t col, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * What a streaming answer says, out of the bytes as they come: server-sent events with completion
 * or chat chunks as OpenAI, vLLM, SGLang and llama.cpp write them. Lines that are longer than the
 * limit or no JSON make the answer a broken one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

#define EVENTS_LINE_MOST (1u << 20)

struct events {
    struct ek_buf line;  /* the unfinished one */
    uint32_t pieces;     /* events that carried tokens */
    uint32_t tokens;     /* as `usage` says, 0 = it did not */
    bool done, finished; /* [DONE] came; a finish_reason came */
    bool broken;
    char error[160]; /* what the server said instead */
};

/* Takes bytes; returns how many events with tokens they completed. */
uint32_t events_feed(struct events *e, const char *bytes, size_t len);
void events_free(struct events *e);

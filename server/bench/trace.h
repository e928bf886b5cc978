/*
 * Workload traces for benchmarks: arrival, prompt length, output length, and what prompts share.
 * Three forms, known by their first line, gzip or plain (tests/fixtures/traces/README.md):
 *
 *   Azure     TIMESTAMP,ContextTokens,GeneratedTokens
 *   Mooncake  one JSON object a line: timestamp (ms), input_length, output_length, hash_ids
 *   Vidur     num_prefill_tokens,num_decode_tokens,...; lengths only
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct trace_request {
    double at_s; /* since the first one; never goes back */
    uint32_t prompt, output;
    uint32_t tenant;          /* whose it is; 0 in files, which do not say */
    uint32_t hash_at, hashes; /* ids of its prompt's pieces: trace->hash[hash_at ...] */
};

struct trace {
    char name[64]; /* the file's, up to its first dot */
    struct trace_request *request;
    uint32_t count;
    uint32_t *hash;
    uint32_t hash_count;
    bool timed;           /* false: arrivals are to be drawn */
    uint32_t hash_tokens; /* tokens of a piece, 0 = prompts share nothing */
};

/* Reads at most `most` requests. 0, -ENOTSUP for a file of another form, -EBADMSG for a broken
 * line, -EIO, -ENOMEM. */
int trace_read(const char *path, uint32_t most, struct trace *ret_trace);
void trace_done(struct trace *t);

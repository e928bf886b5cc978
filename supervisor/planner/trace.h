/*
 * Lengths of the requests of a recorded load: CSV with a header, or JSON lines. Column names of the
 * public traces are known (ContextTokens, GeneratedTokens, num_prefill_tokens, input_length, ...).
 * Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;

struct plan_trace {
    uint32_t requests;
    double prompt_mean, output_mean;
    double longest; /* prompt and output of one request */
    double p95;     /* of prompt + output */
};

/* -EBADMSG with a fault when no column of lengths is there or no row is whole; -ENOMEM. */
int plan_trace_read(const char *text, size_t len, struct plan_trace *ret_trace,
                    struct ek_fault *fault);

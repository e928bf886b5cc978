/*
 * What evenkeel-server itself plans: asks the program with --dry-run, so that the bytes are those
 * that a start would take; for a card also where there is none.
 */
#pragma once

#include <jansson.h>

#include "supervisor/planner/fit.h"

struct plan_server_request {
    const char *model;
    bool card;            /* its CUDA backend, else the CPU of this machine */
    double memory_bytes;  /* of the card */
    uint32_t weight_bits; /* quantize to so many while it loads, 0 = as it is */
    uint32_t kv_bits;     /* 8: a KV cache of E4M3, on the CPU of int8 */
    double share;
    uint32_t max_len, seqs, tokens; /* 0 = its own default */
    uint32_t stages, nodes;         /* 0 or 1 = one */
};

/* Its answer (the caller's), and the same as a fit of one device. -ENOENT: there is no such program
 * beside this one or in $PATH; -E2BIG: it does not fit, -EBADMSG: it refused; `said` holds its
 * sentence. */
int plan_server_ask(const struct plan_server_request *q, json_t **ret_answer,
                    struct plan_fit *ret_fit, char said[400]);

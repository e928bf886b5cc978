/*
 * The policy run over a recording (record.h): what it would have decided, with each change counted
 * as written and confirmed. The same file and constants give the same output, byte for byte.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "supervisor/law/policy.h"

struct dialect;
struct ek_fault;

struct replay_setup {
    const struct dialect *dialect; /* where no head line names another */
    struct policy_params params;   /* the same; in mode act each change counts as confirmed */
    bool fixed;                    /* these params whatever head lines say; bounds that are 0 are
                                      taken from them all the same */
    uint32_t seqs, tokens;         /* limits at the start; 0 = as the pages say */
    const char *server;            /* name in the output, NULL = as the head line says */
};

/* Writes one JSON line per decision that is not NONE. Returns 0; -EBADMSG with fault (at = byte
 * offset); -EIO; -ENOMEM. */
int replay_run(const struct replay_setup *setup, FILE *in, FILE *out, struct ek_fault *fault);

/*
 * Recordings of raw scrapes, and the policy run over them. A recording is a sequence of
 *     @<at_us> <bytes>\n<the raw page>
 * where 0 bytes is a poll without an answer. The same file and constants give the same output, byte
 * for byte.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "supervisor/policy.h"

struct dialect;
struct ek_fault;

struct replay_setup {
    const struct dialect *dialect;
    struct policy_params params; /* in mode act each change counts as written and confirmed */
    uint32_t seqs, tokens;       /* limits at the start; 0 = as the pages say */
    const char *server;          /* name in the output */
};

/* Writes one JSON line per decision that is not NONE. Returns 0; -EBADMSG with fault (at = byte
 * offset); -EIO; -ENOMEM. */
int replay_run(const struct replay_setup *setup, FILE *in, FILE *out, struct ek_fault *fault);
/* Appends one scrape (page NULL = no answer). Returns 0 or -EIO. */
int replay_write(FILE *out, uint64_t at_us, const char *page, size_t len);

/*
 * The load that a postmortem recorded, as evenkeelctl postmortem --json prints it: read, run
 * through the scheduler in virtual time (schedsim.h) under the recorded limits or others, and told
 * beside what was recorded.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "server/bench/schedsim.h"

struct ek_buf;
struct ek_fault;

struct rerun_limits {
    uint32_t seqs, tokens, blocks; /* 0 in a change: as recorded */
};

struct rerun_load {
    struct trace trace;
    struct rerun_limits limits;
    struct schedsim_cost cost;
    float *pace;
    uint32_t block_size, max_len, older, unfinished;
    double lasted_s;
    double steps, preemptions, generated, used_most, waiting_most; /* as recorded */
};

/* doc: an end, or an answer that has one. On success rerun_done() frees it. -EBADMSG with what is
 * wrong in it, -ENOMEM. */
int rerun_read(const json_t *doc, struct rerun_load *ret_load, struct ek_fault *fault);
void rerun_done(struct rerun_load *l);
/* 0; -EINVAL for limits that do not go together. */
int rerun_run(const struct rerun_load *l, const struct rerun_limits *change,
              struct schedsim_result *ret_result);
/* changed: NULL when nothing was. */
void rerun_tell(const struct rerun_load *l, const struct schedsim_result *same,
                const struct schedsim_result *changed, struct ek_buf *out);

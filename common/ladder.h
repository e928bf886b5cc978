/*
 * What is changed after memory ran out, and by how much: the ladder of steps for each kind, and the
 * arithmetic of a step. evenkeeld climbs it at a restart (law/remedy.h), `evenkeelctl diagnose`
 * tells it from a log: one table, so that both say the same. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LADDER_MOST         4u /* steps of one kind */
#define LADDER_WAIT_S       60.0
#define LADDER_TOKENS_PART  0.75
#define LADDER_SEQS_PART    0.8
#define LADDER_TOKENS_ROUND 16u
#define LADDER_SHARE_STEP   0.05
#define LADDER_SHARE_BURST  0.03
#define LADDER_SHARE_LEAST  0.5
#define LADDER_SHARE_MOST   0.95

/* Of the last step of most ladders. */
#define LADDER_LOW_SHARE  0.75
#define LADDER_LOW_SEQS   16u
#define LADDER_LOW_TOKENS 8192u

enum ladder_step {
    STEP_NONE,
    STEP_WAIT,
    STEP_TOKENS,
    STEP_SHARE,
    STEP_BURST,
    STEP_BURST_AGAIN,
    STEP_EXPANDABLE,
    STEP_HALF_SWAP,
    STEP_NO_SWAP,
    STEP_CONSERVATIVE
};

enum ladder_kind { LADDER_AT_START, LADDER_IN_BURST, LADDER_IN_PIECES, LADDER_OF_HOST, LADDERS };

/* STEP_NONE after the last. */
enum ladder_step ladder_at(enum ladder_kind kind, uint32_t i);
const char *ladder_name(enum ladder_step step); /* "token_budget"; NULL of STEP_NONE */

/* The guides' token budget by the size of the card; UINT32_MAX: none, or the size is not known. */
uint32_t ladder_card_tokens(uint64_t capacity_bytes);
/* The next lower one; `most`: a bound besides, `least`: the floor. 0: nothing lower is left. */
uint32_t ladder_tokens(uint32_t now, uint32_t most, uint32_t least, uint64_t capacity_bytes);
uint32_t ladder_seqs(uint32_t now, uint32_t most, uint32_t least);
/* The share of memory after a step; no_kv: it was the share that was too small. 0: no change. */
double ladder_share(double now, enum ladder_step step, bool no_kv);

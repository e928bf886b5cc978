/*
 * The table of steps after memory ran out, and how far each one goes. supervisor/law/remedy.c takes
 * the steps at restarts, supervisor/doctor/advise.c recommends them from a log. Each function that
 * lowers a value gives 0 when nothing lower is allowed, and the caller goes on to the next step.
 */
#include "common/ladder.h"

#include <math.h>
#include <stddef.h>

static const uint8_t ladders[LADDERS][LADDER_MOST + 1] = {
    [LADDER_AT_START] = {STEP_WAIT, STEP_TOKENS, STEP_SHARE, STEP_CONSERVATIVE},
    [LADDER_IN_BURST] = {STEP_BURST, STEP_BURST_AGAIN, STEP_CONSERVATIVE},
    [LADDER_IN_PIECES] = {STEP_EXPANDABLE, STEP_TOKENS, STEP_CONSERVATIVE},
    [LADDER_OF_HOST] = {STEP_HALF_SWAP, STEP_NO_SWAP},
};

enum ladder_step ladder_at(enum ladder_kind kind, uint32_t i)
{
    return (unsigned)kind < LADDERS && i < LADDER_MOST ? (enum ladder_step)ladders[kind][i]
                                                       : STEP_NONE;
}

const char *ladder_name(enum ladder_step step)
{
    switch (step) {
    case STEP_NONE: return NULL;
    case STEP_WAIT: return "wait";
    case STEP_TOKENS: return "token_budget";
    case STEP_SHARE: return "memory_share";
    case STEP_BURST: return "smaller_steps";
    case STEP_BURST_AGAIN: return "smaller_steps_again";
    case STEP_EXPANDABLE: return "expandable_segments";
    case STEP_HALF_SWAP: return "half_swap";
    case STEP_NO_SWAP: return "no_swap";
    case STEP_CONSERVATIVE: return "conservative";
    }
    return NULL;
}

uint32_t ladder_card_tokens(uint64_t capacity_bytes)
{
    const uint64_t gib = 1ull << 30;
    if (capacity_bytes == 0 || capacity_bytes >= 60 * gib)
        return UINT32_MAX;
    return capacity_bytes >= 30 * gib ? 8192 : 4096;
}

static uint32_t ladder_lower(uint32_t now, double to, uint32_t most, uint32_t least, uint32_t round)
{
    uint32_t v = (uint32_t)fmin(most, to) / round * round;
    v = v < least ? least : v;
    return v < now ? v : 0;
}

uint32_t ladder_tokens(uint32_t now, uint32_t most, uint32_t least, uint64_t capacity_bytes)
{
    uint32_t card = ladder_card_tokens(capacity_bytes);
    return ladder_lower(now, now * LADDER_TOKENS_PART, most < card ? most : card, least,
                        LADDER_TOKENS_ROUND);
}

uint32_t ladder_seqs(uint32_t now, uint32_t most, uint32_t least)
{
    return ladder_lower(now, now * LADDER_SEQS_PART, most, least > 1 ? least : 1, 1);
}

double ladder_share(double now, enum ladder_step step, bool no_kv)
{
    double to = now;
    if (step == STEP_SHARE)
        to = now + (no_kv ? LADDER_SHARE_BURST : -LADDER_SHARE_STEP);
    else if (step == STEP_BURST || step == STEP_BURST_AGAIN)
        to = now - LADDER_SHARE_BURST;
    else if (step == STEP_CONSERVATIVE && !no_kv) /* else less cannot be the cure */
        to = fmin(LADDER_LOW_SHARE, now - LADDER_SHARE_STEP);
    to = round(to * 100) / 100;
    return now > 0 && to >= LADDER_SHARE_LEAST && to <= LADDER_SHARE_MOST && fabs(to - now) >= 0.005
               ? to
               : 0;
}

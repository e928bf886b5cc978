/*
 * What judge.c, which waits for evenkeeld's answer about a lost device, decides by: the own rule,
 * and the filter that an answer from outside passes too. It can only lower limits, and not below
 * their floors, so a wrong answer costs speed and never memory. The own rule's change expires;
 * evenkeeld's stays until evenkeeld lifts it.
 */
#include "server/engine/verdict.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "common/err.h"
#include "server/engine/limits.h"

bool verdict_may_be_memory(const struct engine_loss *loss)
{
    const struct ek_device_end *end = &loss->end;

    if (loss->code == -ENOMEM || loss->code == EK_EDEVMEM)
        return true;
    return end->ended && (end->signal == SIGKILL || end->signal == SIGBUS || end->signal == 0);
}

void verdict_own(const struct engine_loss *loss, struct engine_verdict *ret_verdict)
{
    *ret_verdict = (struct engine_verdict){0};
    if (!verdict_may_be_memory(loss))
        return;
    uint32_t least = loss->seqs > VERDICT_TOKENS_LEAST ? loss->seqs : VERDICT_TOKENS_LEAST;
    ret_verdict->tokens = loss->tokens / 2 > least ? loss->tokens / 2 : least;
}

static uint32_t verdict_lower(uint32_t want, const struct limits *l, enum limit_id id)
{
    uint64_t to = want > l->floor[id] ? want : l->floor[id];

    return want != 0 && to < l->value[id] ? (uint32_t)to : 0;
}

bool verdict_change(struct engine_verdict *v, const struct limits *l, bool answered,
                    struct limits_change *ret_change)
{
    struct limits_change c = {.expires_in_us = answered ? 0 : VERDICT_LASTS_US};

    v->seqs = verdict_lower(v->seqs, l, LIMIT_RUNNING_SEQS);
    v->tokens = verdict_lower(v->tokens, l, LIMIT_BATCHED_TOKENS);
    c.value[LIMIT_RUNNING_SEQS] = v->seqs;
    c.value[LIMIT_BATCHED_TOKENS] = v->tokens;
    c.set = (v->seqs ? 1u << LIMIT_RUNNING_SEQS : 0) | (v->tokens ? 1u << LIMIT_BATCHED_TOKENS : 0);
    (void)snprintf(c.origin, sizeof(c.origin), "%s", answered ? "evenkeeld" : "engine lost");
    (void)snprintf(c.reason, sizeof(c.reason), "%s",
                   v->cls[0] ? v->cls : "memory may have been short");
    *ret_change = c;
    return c.set != 0;
}

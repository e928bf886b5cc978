/*
 * The token budget of a step to start with (budget.h). Called at the start of the server and by the
 * planner.
 */
#include "common/budget.h"

#define GIB 1073741824.0

uint32_t ek_budget_card(double memory_bytes)
{
    double gib = memory_bytes / GIB; /* what a driver says is a little less than the name */

    return gib < 30 ? 4096 : gib < 60 ? 8192 : gib < 120 ? 16384 : gib < 150 ? 24576 : 32768;
}

uint32_t ek_budget_cpu(double flops, double token_flops)
{
    double tokens = token_flops > 0 ? EK_BUDGET_STEP_S * flops / token_flops : EK_BUDGET_MOST;
    uint32_t budget = EK_BUDGET_LEAST;

    while (budget < EK_BUDGET_MOST && 2.0 * budget <= tokens * 1.25)
        budget *= 2;
    return budget;
}

uint32_t ek_budget_step(bool cpu, uint32_t prompts, uint32_t seqs)
{
    return cpu ? prompts + seqs : prompts;
}

/*
 * The token budget of a step to start with, where none is given: the server begins with it, and
 * the planner expects it to. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Of a card with so much memory: the values that operations guides for vLLM agree on. 24 GB: 4096,
 * 40: 8192, 80: 16384, 141: 24576, larger: 32768. */
uint32_t ek_budget_card(double memory_bytes);

/* Of a CPU that does so many operations a second in prefill, with a model that does so many for a
 * token: as many tokens as take about EK_BUDGET_STEP_S, a power of two from 128 (fewer do not pay
 * for reading the weights) to 2048 (more gain nothing). */
uint32_t ek_budget_cpu(double flops, double token_flops);
/* All tokens of a step that may have so many of prompts. A CPU computes each for itself: there
 * every answer has its own beside them, so that prompts that fill a step still do while others
 * answer. On a card answers are few beside the prompts. */
uint32_t ek_budget_step(bool cpu, uint32_t prompts, uint32_t seqs);
#define EK_BUDGET_STEP_S 0.25
#define EK_BUDGET_LEAST  128u
#define EK_BUDGET_MOST   2048u

/*
 * The token budget of a step to start with, where none is given: the server begins with it, and
 * the planner expects it to. Pure.
 */
#pragma once

#include <stdint.h>

/* Of a card with so much memory: the values that operations guides for vLLM agree on. 24 GB: 4096,
 * 40: 8192, 80: 16384, 141: 24576, larger: 32768. */
uint32_t ek_budget_card(double memory_bytes);

/* Of a CPU that does so many operations a second in prefill, with a model that does so many for a
 * token: as many tokens as take about EK_BUDGET_STEP_S, a power of two from 128 (fewer do not pay
 * for reading the weights) to 2048 (more gain nothing). */
uint32_t ek_budget_cpu(double flops, double token_flops);
#define EK_BUDGET_STEP_S 0.25
#define EK_BUDGET_LEAST  128u
#define EK_BUDGET_MOST   2048u

/*
 * Which backends there are: found by name, listed, and prepared before a process has threads. Their
 * contract is backend.h; code that has a backend needs nothing of this.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/graph.h"

struct ek_backend;
struct ek_buf;
struct ek_fault;

/* By name: "cpu", "cuda", or "auto" (cuda when there is a usable device, else cpu). NULL with a
 * fault when it is unknown or cannot be loaded. */
const struct ek_backend *ek_backend_find(const char *name, struct ek_fault *fault);
/* "cuda:2,3" is the backend cuda with cards 2 and 3, in that order of ranks; without a list the
 * count is 0. -EBADMSG when a number is none, comes twice, there are too many, or it is not cuda.
 */
struct ek_chosen {
    char backend[16];
    uint32_t cards, card[EK_MOST_RANKS];
};
int ek_backend_choose(const char *device, struct ek_chosen *ret_chosen, struct ek_fault *fault);
/* Before the process has threads: sets what libraries of backends read from the environment, where
 * it is not set yet; `alone`: all ranks will be in this process. */
void ek_backend_prepare(bool alone);
/* Fills text with one line per backend: name, device, tier, or why it cannot be used. */
int ek_backend_list(struct ek_buf *text);

/*
 * A CUDA driver without a card, for tests: a shared library with the driver's symbols. Device
 * memory is host memory, kernels run on the shim (shim.h), work on a stream is done late: when it
 * is waited for, or in pieces when an event is asked. So a buffer that is reused too early, an
 * address that is not mapped or memory that was never written shows up here as it would there.
 * These functions steer it; find them with dlsym() in the same library.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A new card of `bytes` in all, with or without virtual memory management; or, with 0 bytes, the
 * same card. Forgets planted failures and counts of calls. */
void fake_card(size_t bytes, bool vmm);
/* The nth call (1 = next) of this symbol answers `result`; after a sticky result all calls do. */
void fake_fail(const char *symbol, unsigned nth, int result);
/* The number of cards, or the answer of cuInit if it is negative (its absolute value). */
void fake_cards(int count);
unsigned fake_calls(const char *symbol); /* since fake_card() */
size_t fake_used(void);                  /* bytes of device memory taken */
unsigned fake_objects(void);             /* allocations, handles, events ... that are alive */

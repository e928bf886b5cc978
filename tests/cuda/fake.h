/*
 * A CUDA driver without a card, for tests, and an NCCL: a shared library with the symbols of both.
 * Device memory is host memory, kernels run on the shim (shim.h), work on a stream is done late:
 * when it is waited for, or in pieces when an event is asked; what another stream does is done when
 * it is waited for, or (fake_eager) as soon as it may be. So a buffer that is reused too early,
 * an address that is not mapped or memory that was never written shows up here as it would there.
 * There may be several cards, each with its own memory and contexts; collectives add up what the
 * ranks really have, when the streams of all ranks have come to them. These functions steer it;
 * find them with dlsym() in the same library.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A new card of `bytes` in all, with or without virtual memory management; or, with 0 bytes, the
 * same cards. Forgets planted failures and counts of calls. */
void fake_card(size_t bytes, bool vmm);
/* The nth call (1 = next) of this symbol, "name" or "name@card", answers `result`; after a sticky
 * result all calls of that card do. */
void fake_fail(const char *symbol, unsigned nth, int result);
/* The number of cards, all of the size that fake_card() said, or the answer of cuInit if it is
 * negative (its absolute value). */
void fake_cards(int count);
void fake_capability(int capability); /* of all cards, 10 * major + minor; 90 at first */
void fake_card_bytes(int card, size_t bytes);
/* What a context and a recorded step take of a card's memory; nothing after fake_card(). And what
 * other processes have of it. FAKE_CUDA_TAKEN="600,20480" are the first and the last in MiB. */
void fake_costs(size_t context_bytes, size_t graph_bytes);
void fake_others(int card, size_t bytes);
void fake_links(bool peers, bool nvlink); /* whether cards reach each other, and how */
/* From now on collectives of this rank never come; -1 = of none. */
void fake_stall(int rank);
/* Sums of this rank are wrong; -1 = of none. */
void fake_spoil(int rank);
/* A sum of which experts each row of each step was given on a card, and with what shares; how many
 * times a router has chosen there. */
unsigned long long fake_routes(int card, unsigned *ret_times);
/* Kernels with `part` in their names that are found from now on do nothing; "" = none. */
void fake_lame(const char *part);
void fake_nccl_version(int version);     /* 0 = as it was */
void fake_eager(bool eager);             /* streams run ahead of the one that is waited for */
unsigned fake_calls(const char *symbol); /* since fake_card() */
/* A call that breaks a rule of the driver, of NCCL or of cuBLASLt ends the program with a sentence;
 * or, forgiven, gives the documented error, and said() is the last sentence ("" = none since). */
void fake_forgive(bool forgives);
const char *fake_said(void);
/* Which of the algorithms that cuBLASLt offered the last product was made with. */
unsigned fake_lt_algorithm(void);
size_t fake_used(void); /* bytes of device memory taken, of all cards */
size_t fake_card_used(int card);
unsigned fake_objects(void); /* allocations, handles, events, communicators that are alive */

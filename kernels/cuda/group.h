/*
 * The cards of one process that compute a model together, with those of other nodes if there are
 * some: a communicator of NCCL for each rank, one thread per rank that makes its calls (rank.c).
 * What ranks have is summed on their streams, also while these are recorded. Ranks are counted over
 * all nodes. Where there are stages, ranks of one stage sum by a communicator of their own, and
 * that of all hands on what goes from stage to stage.
 *
 * Communicators are non-blocking: a call returns at once, and is asked for until it has begun. A
 * thread that waits longer than the group's deadline, or meets an error, fails the group for good:
 * the first code stays, every call of every rank gives it from then on, and threads of its own
 * abort the communicators, so that kernels which wait for a peer leave the cards.
 *
 * Owner: the thread that opened the ranks; cuda_group_abort() and cuda_group_fail() by any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"
#include "kernels/graph.h"

struct ek_fault;
struct ek_group;
struct ek_open_params;

int cuda_group_new(const struct ek_open_params *p, struct ek_group **ret_group,
                   struct ek_fault *fault);
void cuda_group_abort(struct ek_group *g);
void cuda_group_free(struct ek_group *g); /* after its devices; accepts NULL */

/* 0, or the code of the first failure. Asks NCCL too; does not wait. */
int cuda_group_state(struct ek_group *g, uint32_t rank);
/* `code` is what the group failed with, if nothing came before: whether that is so. */
bool cuda_group_fail(struct ek_group *g, int code);
uint64_t cuda_group_stall_us(const struct ek_group *g); /* 0 = for ever */

/* By each rank's thread, with its context set, all ranks the same calls in the same order. */

/* Meets all others; the group keeps the card's context until it is freed. */
int cuda_group_join(struct ek_group *g, uint32_t rank, const struct cu_driver *cu, int ordinal,
                    struct ek_fault *fault);
/* data = the sum of all ranks' data. Enqueued when it returns. */
int cuda_group_sum(struct ek_group *g, uint32_t rank, cu_ptr data, size_t count,
                   enum ek_dtype dtype, cu_handle stream);
/* to[r * count ..] = from[0 .. count) of rank r; f32. */
int cuda_group_gather(struct ek_group *g, uint32_t rank, cu_ptr from, cu_ptr to, size_t count,
                      cu_handle stream);
/* `count` elements from this rank to another; sender and receiver call it in the same order. */
int cuda_group_send(struct ek_group *g, uint32_t rank, uint32_t to, cu_ptr data, size_t count,
                    enum ek_dtype dtype, cu_handle stream);
int cuda_group_recv(struct ek_group *g, uint32_t rank, uint32_t from, cu_ptr data, size_t count,
                    enum ek_dtype dtype, cu_handle stream);
/* "NCCL 2.27.3": by what ranks reach each other. */
void cuda_group_words(const struct ek_group *g, char *text, size_t size);
/* The host side of all ranks: the least of their codes, for all of them the same. */
int cuda_group_agree(struct ek_group *g, int code);

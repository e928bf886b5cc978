/* Decode steps, recorded once and run again. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Runs a decode step of so many rows, recorded where that can be. */
int cuda_graph_run(struct ek_device *d, uint32_t rows, uint32_t tiles, uint32_t items);
void cuda_graphs_free(struct ek_device *d);
/* Records the steps of all buckets before there is one. Those that cannot be are tried again in
 * their steps; ret_all: all were. Not for one of several ranks, which would wait for one another.
 */
int cuda_graphs_record(struct ek_device *d, bool *ret_all);
uint32_t cuda_bucket_rows(const struct ek_device *d,
                          uint32_t bucket); /* rising; 0 behind the last */

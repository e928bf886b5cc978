/* The commands of evenkeel-bench. Each prints its results and is 0, or a code with a fault. */
#pragma once

struct bench_options;
struct ek_fault;

int bench_kernels(const struct bench_options *o, struct ek_fault *fault);
int bench_engine(const struct bench_options *o, struct ek_fault *fault);
/* *ret_failed: requests that failed. -ECONNREFUSED when the server cannot be reached. */
int bench_serve(const struct bench_options *o, unsigned *ret_failed, struct ek_fault *fault);
/* *ret_worse: cells in which B is worse than A. */
int bench_compare(const struct bench_options *o, unsigned *ret_worse, struct ek_fault *fault);
/* Runs the scheduler over the load that a postmortem recorded. */
int bench_replay(const struct bench_options *o, struct ek_fault *fault);

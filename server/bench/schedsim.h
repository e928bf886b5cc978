/*
 * Runs a workload through the scheduler in virtual time: nothing is computed, a cost model says how
 * long a step would take. Benchmarks add a device that checks every step (tests/bench/checked.h).
 * Host time of planning and applying is the thread's processor time, measured around those calls
 * alone, and so are the allocations that happen in them.
 *
 * The cost model is a roofline of a dense model with 8 billion parameters in 16 bits on a device
 * with 2 TB/s and 200 TFLOP/s: a step takes the longer of reading the weights (8 ms) and computing
 * its rows (80 us each), and the time to read the contexts of its sequences (128 KiB a token). A
 * block crosses to or from the host at 20 GB/s. It ranks choices; it does not predict a machine.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "server/bench/trace.h"

/* Of a step instead of the roofline: all of it, of each row, of each token of context, of each
 * block that crosses to or from the host, of each row of a prompt for each token before it. */
struct schedsim_cost {
    double base_us, row_us, context_us, copy_us, deep_us;
    const float *pace; /* times this in each second; 1 after the last */
    uint32_t paces;
};

struct ek_backend;
struct ek_device;
struct grammar;
struct ek_step_ceiling;

struct schedsim_size {
    const struct ek_step_ceiling *ceiling;
    uint32_t blocks, host_blocks, block_size, vocab;
};

/* A device that looks at each step and makes its result, and a counter of allocations. */
struct schedsim_checker {
    const struct ek_backend *backend;
    int (*open)(const struct schedsim_size *z, struct ek_device **ret_device);
    void (*close)(struct ek_device *d);
    const char *(*violation)(const struct ek_device *d);
    unsigned long (*allocations)(void);
};

struct schedsim_params {
    uint32_t block_size, pool_tokens, host_tokens, offload_tokens, max_seqs, budget, max_model_len,
        depth;
    uint32_t long_prefill; /* most tokens of one prompt in a step, 0 = no limit */
    uint32_t stalled_ppm;  /* as the limit stalled_share, 0 = off */
    uint32_t scale;        /* lengths of the trace are divided by it */
    double load; /* offered work as a share of what the modelled device can do; 0: the arrivals
                    are the trace's own */
    const struct schedsim_cost *cost; /* NULL: the roofline */
    struct grammar *form; /* of all answers: one that any sampled tokens fit; NULL: none */
    uint32_t vocab;       /* the form's; 0: many */
    bool tenants;         /* the scheduler tells the trace's tenants apart */
    uint32_t open_most;   /* requests of tenant 2 at once, the next comes when one ends; 0 = any */
    bool by_tenant; /* a line of `answers` ends with whose it is, and milliseconds until it was
                     * taken, when the step ended that ran, and until its first step began */
    uint64_t seed;
    double lasts_s; /* ends then, whatever still runs; 0: when all is answered */
    const struct schedsim_checker *checker; /* NULL: results are made up */
    FILE *answers; /* gets a line for each: milliseconds to the first token and to the last; or NULL
                    */
};

struct schedsim_spread {
    double p50, p90, p99;
};

struct schedsim_result {
    uint32_t requests, refused;
    uint64_t steps, prompt_tokens, output_tokens;
    double seconds; /* virtual, first arrival to last end */
    double output_rate, total_rate;
    struct schedsim_spread ttft_ms, itl_ms;
    uint64_t preemptions, swapped_in_blocks, offload_in_blocks;
    double recomputed_share;       /* of all computed tokens */
    double waste_share;            /* of the slots in blocks of running requests, mean over steps */
    uint64_t hits;                 /* tokens of prompts found in the prefix cache */
    double hit_rate;               /* their share */
    uint64_t jump_forward;         /* tokens that the form left no choice about */
    double running, table_entries; /* mean of a step */
    uint32_t used_blocks_most, waiting_most; /* after a step */
    struct schedsim_spread host_us;          /* plan and apply, a step */
    uint64_t allocations;                    /* in plan and apply */
    double host_early_us,
        host_late_us; /* medians of the third and the seventh tenth of the steps */
};

/* 0; -EINVAL for sizes that do not go together, -ENOMEM; EK_EDEVICE when the checker found a
 * violation, which is said on stderr. */
int schedsim_run(const struct trace *t, const struct schedsim_params *p,
                 struct schedsim_result *ret_result);

/*
 * A server in virtual time for judging controllers: the real scheduler, answers of any token, the
 * cost model of schedsim.h for how long a step takes, clients that give up, limits that change
 * while it runs, a queue deadline with the server's prediction when a request comes, and kills with
 * a downtime. Once a virtual second the controller sees what a metrics page would say.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/bench/trace.h"

struct ek_buf;
struct plant;

struct plant_params {
    const struct trace *trace;
    double load;          /* offered work as a share of what the modelled device can do */
    double seconds;       /* virtual */
    double prompt_factor; /* lengths of the trace are multiplied */
    double output_factor;
    uint32_t pool_tokens, max_seqs, budget, max_model_len;
    uint32_t depth;   /* steps in flight at most */
    double give_up_s; /* a client without a first token leaves */
    /* what makes an answer good */
    double ttft_s, tpot_s, gap_s;
    uint64_t seed; /* 1: from the trace's beginning; others begin somewhere in it */
};

#define PLANT_RESERVE 0.01 /* the server's own */
struct plant_limits {
    uint32_t seqs, tokens;
    double deadline_s; /* of the queue, 0 = none */
    double reserve;    /* watermark; 0 = the server's own, 0.01 */
};

#define PLANT_BUCKETS 8
struct plant_view {
    double now_s, usage, running, waiting, preemptions, recomputed, prompts, generated, steps;
    double oldest_s, gap_s, finished, step_tokens;
    double itl[PLANT_BUCKETS]; /* cumulative */
    struct plant_limits limits;
    uint32_t lives; /* processes so far */
};

typedef void (*plant_control_fn)(void *ctx, struct plant *p, const struct plant_view *v);

struct plant_result {
    uint32_t requests, good, served, refused, left, killed, restarts, changes, flips;
    double good_per_s, good_tokens_per_s, output_per_s;
    double ttft_p50_s, ttft_p99_s, gap_p99_s;
    double recomputed_share, down_s, seqs_mean;
    uint64_t preemptions;
};

/* 0 or a negative code. */
int plant_run(const struct plant_params *params, const struct plant_limits *first,
              plant_control_fn control, void *ctx, struct plant_result *ret_result);
/* The mean of `count` runs; what is counted is cut. */
struct plant_result plant_mean(const struct plant_result *runs, uint32_t count);
/* For controllers. */
void plant_set(struct plant *p, const struct plant_limits *limits);
void plant_kill(struct plant *p, double down_s);
/* The page of an evenkeel-server that says this. 0 or -ENOMEM. */
int plant_page(const struct plant_view *v, struct ek_buf *out);

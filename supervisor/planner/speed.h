/*
 * How fast, by roofline: the products of a step take what reading the weights and computing take
 * together, attention what its cache and its scores take, then comes what the cards tell each other
 * and the host's own work. What engines reach of a device's figures is struct plan_reach; what it
 * stands on, and how far off that may be, is docs/planning.md. Pure.
 */
#pragma once

#include "supervisor/planner/shape.h"

struct plan_device {
    double read_bytes_s; /* of one card */
    double flops;        /* in 16 bit */
    double flops8;       /* with weights of 8 bits or fewer; 0 = as in 16 */
    double link_bytes_s; /* to a neighbour; 0 = one card only */
    /* The last cache, for weights that fit in half of it; 0 = there is none to count on. */
    double cache_bytes, cache_bytes_s;
    bool
        own; /* evenkeel-server on this machine's CPU, figures as measured; else a card's maker's */
};

/* Shares of a device's figures that a step reaches, and what the host takes for a step. */
struct plan_reach {
    double reads, computes, computes8, scores, step_s;
};

enum plan_bound { BOUND_CAPACITY, BOUND_CEILING, BOUND_BANDWIDTH, BOUND_COMPUTE, BOUND_LINK };

struct plan_load {
    double rate;           /* requests a second, 0 = not given */
    double prompt, output; /* tokens of a request, means */
    double ttft_s, itl_s;  /* promises, 0 = none */
};

struct plan_speed {
    double step_s;    /* of one decode step with `seqs` sequences */
    double prefill_s; /* of one prompt, alone */
    double ttft_s, itl_s;
    double requests_s, output_tokens_s; /* at this number of sequences, kept full */
    enum plan_bound bound;
};

/* Predictions are within these factors of what is measured, up and down. */
#define PLAN_BAND_DECODE  1.4
#define PLAN_BAND_PREFILL 1.6

struct plan_engine {
    const struct plan_shape *shape;
    struct plan_device device;
    uint32_t cards, weight_bits, kv_bits;
    double kv_tokens; /* capacity */
    uint32_t seqs_most;
};

struct plan_reach plan_reach_of(const struct plan_device *d);
double plan_decode_step(const struct plan_engine *e, double seqs, double context,
                        enum plan_bound *ret_bound);
/* One prompt alone, until its first token. */
double plan_prefill(const struct plan_engine *e, double tokens);

/* One replica with `seqs` sequences at once. */
struct plan_speed plan_speed_at(const struct plan_engine *e, const struct plan_load *l,
                                double seqs);
/* The most sequences that capacity and the promises allow, at least 0; and what stops it. */
uint32_t plan_best_seqs(const struct plan_engine *e, const struct plan_load *l,
                        enum plan_bound *ret_bound);
/* Replicas for the rate at 85 % of what one does at its best; 0: the promise cannot be kept. */
uint32_t plan_replicas(const struct plan_engine *e, const struct plan_load *l);
const char *plan_bound_text(enum plan_bound b);

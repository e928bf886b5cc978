/*
 * How fast, by roofline: a step takes what reading weights and KV cache takes, or what computing
 * takes, whichever is longer, plus what the cards tell each other. What engines reach of the
 * makers' figures is a constant below; the band says how far off that may be. Pure.
 */
#pragma once

#include "supervisor/planner/shape.h"

struct plan_device {
    double read_bytes_s; /* of one card */
    double flops;        /* in the type that weights are computed in */
    double link_bytes_s; /* to a neighbour; 0 = one card only */
};

enum plan_bound { BOUND_CAPACITY, BOUND_BANDWIDTH, BOUND_COMPUTE, BOUND_LINK };

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

double plan_decode_step(const struct plan_shape *s, const struct plan_device *d, uint32_t cards,
                        uint32_t weight_bits, uint32_t kv_bits, double seqs, double context,
                        enum plan_bound *ret_bound);
double plan_prefill(const struct plan_shape *s, const struct plan_device *d, uint32_t cards,
                    uint32_t weight_bits, double tokens);

struct plan_engine {
    const struct plan_shape *shape;
    struct plan_device device;
    uint32_t cards, weight_bits, kv_bits;
    double kv_tokens; /* capacity */
    uint32_t seqs_most;
};

/* One replica with `seqs` sequences at once. */
struct plan_speed plan_speed_at(const struct plan_engine *e, const struct plan_load *l,
                                double seqs);
/* The most sequences that capacity and the promises allow, at least 0; and what stops it. */
uint32_t plan_best_seqs(const struct plan_engine *e, const struct plan_load *l,
                        enum plan_bound *ret_bound);
/* Replicas for the rate at 85 % of what one does at its best; 0: the promise cannot be kept. */
uint32_t plan_replicas(const struct plan_engine *e, const struct plan_load *l);
const char *plan_bound_text(enum plan_bound b);

/* The requests of a run: when each comes, how long it is, and its body. Pure, from a seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct bench_options;
struct ek_buf;
struct ek_fault;
struct trace;

struct load_request {
    double at_s; /* since the start; 0 in a closed loop */
    uint32_t prompt, output;
    uint32_t piece_at, pieces; /* of trace->hash: what prompts share */
};

struct load {
    struct load_request *request;
    uint32_t count;
    bool open; /* requests come when they come; else each client sends its next when it has got its
                  last */
    uint64_t seed;
    struct trace *trace; /* NULL = none */
};

/* A number of a fixed sequence: the n-th of `seed`. */
uint64_t load_random(uint64_t seed, uint64_t n);
/* 0, -EBADMSG with fault (the trace), -ENOMEM. */
int load_make(const struct bench_options *o, uint64_t seed, struct load *ret_load,
              struct ek_fault *fault);
void load_free(struct load *l);
/* Appends the JSON body of request `i`. */
void load_body(const struct load *l, const struct bench_options *o, const char *model, uint32_t i,
               struct ek_buf *out);

/* What evenkeel-bench-cuda measures on: the model, its random weights, and where a run stands. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "tests/bench/report.h"

struct shape {
    const char *name;
    uint32_t layers, hidden, q_heads, kv_heads, head_dim, ffn, vocab;
    bool bias;
    uint32_t experts, top; /* instead of one feed-forward of `ffn`, so many of that; 0 = none */
    uint32_t nope, rope; /* latent attention: of a head's query, what turns not and what does; then
                            head_dim is that of the latent, kv_heads 1, and a value as `nope` */
};

struct form {
    const char *name;
    enum ek_dtype dtype; /* of the products' weights */
    uint32_t group;
    bool rounds; /* inputs too */
};

struct bench {
    const struct shape *shape;
    const struct form *form;
    bool kv_f8;    /* the KV cache, */
    bool kv_i8;    /* or in int8 */
    char name[32]; /* of its cells */
    struct ek_graph g;
    struct ek_rope rope;
    struct ek_weight_file file;
    struct ek_weight_files files;
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    uint32_t blocks, context;
    uint32_t per_seq; /* blocks of a sequence at present */
    uint32_t stride;  /* from one block to the next, coprime to what is shared out */
    struct ek_step *step[2];
    struct ek_result *result;
    uint64_t id;
    double bandwidth, tflops; /* GB/s, TFLOP/s */
    double offload;           /* GiB of weights in host memory */
    float top_p;              /* of the sequences, 0 = greedy */
    uint32_t only[4];         /* of the section's batches or lengths, 0 = no more; none = all */
    uint32_t swaps;           /* blocks that each step of decode copies out, and as many in */
    uint32_t chunk;           /* rows of a prompt that each step of decode reads, too */
    bool mixed;               /* contexts from a sixteenth to twice x->context */
    double copies_s;          /* of a step, as measured at load; 0 = none */
    struct report report;
};

/* Of that name, or NULL. */
const struct shape *bench_shape(const char *name);
const struct form *bench_form(const char *name);
/* The graph of x->shape with weights of x->form: 0 or -ENOMEM. Freed by main(). */
int bench_model(struct bench *x);
/* One buffer as large as the largest matrix, which all of them read: 0 or -ENOMEM. */
int bench_weights(struct bench *x);

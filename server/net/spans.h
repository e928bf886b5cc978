/*
 * What is told of one HTTP request in a trace, once it is over: plain numbers and names of our own,
 * nothing that a client wrote but its ids. exchange.c fills it (spans_of()), tracer.c keeps it,
 * otlp.c writes it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/sampling.h"
#include "server/engine/request.h"
#include "server/net/bounds.h"

#define SPAN_ANSWERS  4u   /* of a request that are told one by one; all are in the sums */
#define SPAN_ID_BYTES 176u /* of an answer's id */

struct exchange;

/* One answer; times of the monotonic clock, 0 = it did not come to that. */
struct span_answer {
    uint64_t queued_us, scheduled_us, first_us, done_us;
    uint32_t cached_tokens, preemptions, replays;
    const char *finish;
    struct req_moment moments[REQ_MOMENTS];
    uint32_t moment_count;
};

struct span_request {
    uint8_t trace[16], span[8], parent[8];
    bool has_parent;
    char id[BOUND_REQUEST_ID_BYTES + 1];
    const char *method, *route; /* NULL: a path that there is not */
    int status;
    uint64_t begin_us, end_us;
    /* Of a generation, else NULL: */
    const char *operation, *model, *asked_model; /* the first served name, and the one asked for */
    char answer_id[SPAN_ID_BYTES];
    struct ek_sampling sampling; /* its seed only when `seeded` */
    bool seeded, stream;
    uint32_t n, max_tokens; /* as asked for, max_tokens 0 = as many as fit */
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    uint32_t answers, told; /* of the generation; of these in answer[] */
    struct span_answer answer[SPAN_ANSWERS];
    bool broken;        /* an answer ended with an error, or was cut */
    bool left, stalled; /* the client left; was cut since it did not read */
};

/* Reads the W3C header: version 00, no field of zeros. Hexadecimal digits of the trace's id into
 * ret_trace (empty where there is no good header), the caller's span into ret_parent. Returns
 * whether it is sampled; a request without the header is. */
bool spans_read(const char *traceparent, char ret_trace[33], char ret_parent[17]);
/* What the generation of an exchange has to tell, before it is dropped or freed; once. */
void spans_keep(struct exchange *x);
/* Of an exchange that is being closed; frees what was kept. */
void spans_of(struct exchange *x, struct span_request *ret_span);

/*
 * Sends what otlp.h writes to a collector by HTTP, on a thread of its own: requests that are over
 * wait in a queue of TRACER_QUEUE, are sent by TRACER_BATCH, at the latest after
 * TRACER_WAIT_S; where the queue is full what comes is counted and left out. No request ever waits
 * for it. A collector that says 429, 502, 503 or 504, or cannot be reached, is asked again three
 * times; then the batch is left out.
 */
#pragma once

#include <stdint.h>

#include "server/net/spans.h"

#define TRACER_QUEUE  2048u /* as the batch processor of OpenTelemetry's SDKs has them */
#define TRACER_BATCH  512u
#define TRACER_WAIT_S 5

struct ek_fault;
struct tracer;

struct tracer_stats {
    uint64_t sent, dropped,
        failed; /* spans; requests that found no room; spans that were not taken */
};

/* The address to send to: http or https; without a path /v1/traces is meant. -EBADMSG with a fault
 * when it is none. */
int tracer_check(const char *endpoint, struct ek_fault *fault);
/* Reads OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_TRACES_HEADERS (or OTEL_EXPORTER_OTLP_HEADERS) of
 * the environment. 0, -EBADMSG with a fault, -ENOMEM. */
int tracer_new(const char *endpoint, struct tracer **ret_tracer, struct ek_fault *fault);
/* Sends what waits, at most two seconds, and ends the thread. NULL is fine. */
void tracer_free(struct tracer *t);
/* Any thread. */
void tracer_put(struct tracer *t, const struct span_request *s);
struct tracer_stats tracer_stats(struct tracer *t);

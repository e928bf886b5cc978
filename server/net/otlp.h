/*
 * Requests as OpenTelemetry spans: an ExportTraceServiceRequest in protobuf, as OTLP/HTTP has it
 * (opentelemetry-proto, trace/v1). A request is one span ("llm_request" where text is made, as in
 * vLLM, else its method and route) with the field's gen_ai.* attributes; below it lie queue,
 * prefill and decode of each answer, in the two latter preemptions and replays as events. Pure.
 */
#pragma once

#include <stdint.h>

#include "common/buf.h"
#include "server/net/spans.h"

struct otlp_resource {
    const char *service, *instance, *version;
    int64_t wall_offset_us; /* wall clock minus monotonic clock */
};

/* Into out, behind what is there; what does not fit its limit fails (ek_buf_ok()). Returns the
 * number of spans. */
uint32_t otlp_write(struct ek_buf *out, const struct otlp_resource *r, const struct span_request *s,
                    uint32_t count);

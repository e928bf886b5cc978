/* Times of one request in its answer, for --enable-per-request-metrics; the fields are vLLM's. */
#pragma once

struct ek_buf;
struct generation;

/* Once it is over: ,"metrics":{...} behind the usage, or nothing when they are not asked for. */
void timing_write(struct ek_buf *out, const struct generation *g);

/*
 * Answers as JSON text: the error object, whole completions, chunks of a stream and what they have
 * in common. Pure: bytes are appended to a buffer.
 */
#pragma once

#include <stdint.h>

struct api_error;
struct ek_buf;
struct generation;
struct req_top;
struct req_token;

/* {"error":{"message","type","param","code"}} as OpenAI's clients and vLLM's expect it. */
void reply_error(struct ek_buf *out, const struct api_error *err);
/* The body of a completion that is over. */
void reply_completion(struct ek_buf *out, const struct generation *g);
void reply_usage(struct ek_buf *out, const struct generation *g);
/* "stop", "length", ... in quotes, or null; then stop_reason. */
void reply_finish(struct ek_buf *out, const struct generation *g);
/* "logprobs":{...} or "logprobs":null of what was collected. */
void reply_logprobs(struct ek_buf *out, const struct generation *g);
/* A tool call's "id":...,"type":...,"function":{"name":... with the object left open. */
void reply_call_head(struct ek_buf *out, const struct generation *g, uint32_t index);
/* Collects one token into g->lp. */
void reply_add_logprob(struct generation *g, uint32_t index);
/* "id":...,"object":...,"created":...,"model":... */
void reply_head(struct ek_buf *out, const struct generation *g, const char *object);

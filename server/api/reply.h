/*
 * Answers as JSON text: the error object, whole completions, chunks of a stream and what they have
 * in common. Pure: bytes are appended to a buffer.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct choice;
struct ek_buf;
struct generation;

/* {"error":{"message","type","param","code"}} as OpenAI's clients and vLLM's expect it. */
void reply_error(struct ek_buf *out, const struct api_error *err);
/* What a model wrote as the arguments of a call, as an object; {} when it is none. */
void reply_object(struct ek_buf *out, const char *text, size_t len);
/* Ends the object and the event of a stream. */
void reply_event_end(struct ek_buf *out);
/* A string in quotes. */
void reply_string(struct ek_buf *out, const char *s);
void reply_bytes(struct ek_buf *out, const char *bytes, size_t len);
/* The body of a chat or a completion that is over. */
void reply_completion(struct ek_buf *out, const struct generation *g);
/* `chunk` = of a stream that goes on. */
void reply_usage(struct ek_buf *out, const struct generation *g, bool chunk);
/* Inside a usage: ,"max_output_tokens":N when there was room for fewer than were asked for. */
void reply_room(struct ek_buf *out, const struct generation *g);
/* "system_fingerprint":"...": which program made it. */
void reply_fingerprint(struct ek_buf *out);
/* "stop", "length", ... in quotes, or null; then stop_reason. */
void reply_finish(struct ek_buf *out, const struct choice *c);
/* "logprobs":{...} or "logprobs":null of what was collected. */
void reply_logprobs(struct ek_buf *out, const struct choice *c);
/* "prompt_token_ids":[...], or null when they are not `shown`. */
void reply_prompt_ids(struct ek_buf *out, const struct choice *c, bool shown);
/* "prompt_text":"...", or null when it is not `shown`. */
void reply_prompt_text(struct ek_buf *out, const struct choice *c, bool shown);
/* ,"token_ids":[...] if asked for, else null. */
void reply_ids(struct ek_buf *out, const struct choice *c);
/* How many tool calls the client gets. */
uint32_t reply_calls(const struct choice *c);
/* Inside of quotes: the id that the model gave the call, or one of its own. */
void reply_call_id(struct ek_buf *out, const struct choice *c, uint32_t index);
/* Whether the tool that is called takes one text: then the client gets that. */
bool reply_is_custom(const struct choice *c, uint32_t index);
/* A tool call's "id":...,"type":...,"function":{"name":... with the object left open; of a custom
 * tool "custom". */
void reply_call_head(struct ek_buf *out, const struct choice *c, uint32_t index);
/* Collects one token into c->lp: of the answer, of the prompt. */
void reply_add_logprob(struct choice *c, uint32_t index);
void reply_add_prompt_logprob(struct choice *c, uint32_t index);
/* "id":...,"object":...,"created":...,"model":... */
void reply_head(struct ek_buf *out, const struct generation *g, const char *object);

/*
 * A completion as a stream of server-sent events. First chunk (role), deltas, last chunk with
 * finish_reason, usage if asked for, [DONE]; an error in the middle is an event, then [DONE].
 */
#pragma once

struct api_error;
struct generation;

/* Appends to g->out what generation_pump() has collected since the last call. */
void sse_render(struct generation *g);
/* Content-Type of the stream. */
const char *sse_type(const struct generation *g);
/* A comment, which clients skip: shows them and proxies that the stream is alive. */
void sse_ping(struct generation *g);

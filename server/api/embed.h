/* Answers of /v1/embeddings. */
#pragma once

struct ek_buf;
struct generation;

void embed_reply(struct ek_buf *out, const struct generation *g);

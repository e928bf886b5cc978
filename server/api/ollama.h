/*
 * Ollama's API: /api/chat, /api/generate and /api/embed as other forms of a chat, a completion and
 * embeddings, and what its clients ask for about models. Its streams are lines of JSON, not events,
 * and are what is answered unless `stream` is false.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "server/api/openai.h"

struct api_error;
struct ek_buf;
struct generation;

/* The API whose form is followed, as /api/version says; clients compare it. */
#define OLLAMA_VERSION "0.12.11"

/* Whether a body asks for nothing but that the model be loaded, which it is: no prompt, no
 * messages. */
bool ollama_only_loads(enum openai_api api, const json_t *body);
/* The answer to that; a request with keep_alive 0, to unload it, is told so, and it stays. */
void ollama_loaded(struct ek_buf *out, const struct served *s, enum openai_api api,
                   const json_t *body, uint64_t wall_us);

/* Answers: whole, as lines, and of embeddings. */
void ollama_reply(struct ek_buf *out, struct generation *g);
void ollama_render(struct generation *g);
void ollama_embed_reply(struct ek_buf *out, const struct generation *g);
/* A line that says nothing yet: the stream is alive. */
void ollama_ping(struct generation *g);
void ollama_error(struct ek_buf *out, const struct api_error *err);
void ollama_error_line(struct generation *g, const struct api_error *err);

/* What is served: the lists of /api/tags and, with `running`, of /api/ps; `since_us` = when it
 * was loaded (wall clock). */
void ollama_models(struct ek_buf *out, const struct served *s, bool running, uint64_t since_us);
/* /api/show. */
void ollama_show(struct ek_buf *out, const struct served *s, json_t *body, uint64_t since_us,
                 struct api_error *ret_err);

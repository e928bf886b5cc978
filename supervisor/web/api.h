/*
 * The JSON API as documents and verbs, without HTTP: what status.c answers with. All of it is keyed
 * by server name. Reading is for every client that reaches evenkeeld; the caller of api_write()
 * must have checked the user that asks.
 *
 *   GET   /api/v1/servers
 *   GET   /api/v1/servers/NAME
 *   GET   /api/v1/servers/NAME/decisions?limit=N&since=S   with S those before this evenkeeld, too
 *   GET   /api/v1/servers/NAME/failures?limit=N
 *   GET   /api/v1/servers/NAME/keys   over the Unix socket alone: key_table.h
 *   GET   /api/v1/servers/NAME/history?since=S&every=N
 *   PATCH /api/v1/servers/NAME/limits   {"max_num_running_seqs", "max_num_batched_tokens", "pin",
 *                                        "reason"}
 *   POST  /api/v1/servers/NAME/{drain,resume,restart,engine-restart,engine-release,...}
 *         restart may have {"trial": {...}}, see trial.h; without it a trial ends
 *   POST  /api/v1/reload                 reads the configuration again; 400 says why not
 *   POST  /api/v1/debug   {"for_s"}      every sample in the log for so long; 0 ends it
 *
 * Errors are {"error": {"message", "field"}}.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/servers/server.h"

#define API_DEBUG_MOST_S   86400
#define API_DECISIONS_MOST 4096

struct ek_buf;
struct fleet;

/* The value of a query parameter, NULL if absent. */
typedef const char *(*api_query_fn)(void *ctx, const char *name);

/* Both return the HTTP status with out filled; 0 when the answer comes by cb, from the loop (then
 * cb gets the status and the body, once); or -ENOMEM. */
typedef void (*api_fn)(void *ctx, int status, const char *body, size_t len);
int api_read(const struct fleet *all, const char *path, api_query_fn query, void *query_ctx,
             api_fn cb, void *ctx, struct ek_buf *out);
int api_write(const struct fleet *all, const char *method, const char *path, const char *body,
              size_t len, api_fn cb, void *ctx, struct ek_buf *out);

/* Appends the error object; field may be "". Returns status, or -ENOMEM. */
int api_error(struct ek_buf *out, int status, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* What to do when no server is configured, one line. */
void api_hint(const struct fleet *all, struct ek_buf *out);
/* One server as in the list; for the page too. 0 or -ENOMEM. */
int api_server(const struct server *s, struct ek_buf *out);

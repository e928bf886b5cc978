/*
 * HTTP client inside the event loop: libcurl's multi interface, its sockets and its timer as
 * sd-event sources. Everything evenkeeld asks of a server goes through here: scrapes, limits,
 * drain, canary.
 *
 * Each call has one total deadline and a cap on the body; redirects and proxies are off, only http
 * over TCP or a Unix socket. The callback runs from the loop, exactly once, never inside
 * client_start(), and not at all after client_cancel(). Owner: the loop's only thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#define CLIENT_KEY_MOST 257 /* with its end */

struct client;
struct client_call;

struct client_req {
    const char *unix_path; /* NULL = TCP by the URL */
    const char *method;    /* "GET", "PATCH", "POST" */
    const char *url;
    const char *body; /* JSON, copied; NULL = none */
    const char *key;  /* the server's API key, copied; NULL or "" = none */
    uint32_t timeout_ms;
    size_t most_bytes; /* of the answer's body */
};

struct client_result {
    int error; /* 0 = an HTTP answer came; else -ETIMEDOUT, -ECONNREFUSED, -EFBIG, -ENOMEM, -EIO */
    long status;      /* HTTP status, 0 with an error */
    const char *body; /* NUL-terminated, valid during the callback */
    size_t len;
    double took_s;
};

typedef void (*client_fn)(void *ctx, const struct client_result *res);

int client_new(sd_event *event, struct client **ret_client);
/* Cancels what is under way. */
void client_free(struct client *c);

/* 0 or -ENOMEM; then cb is called once. ret_call (may be NULL) is set before any callback and is
 * valid until the callback. */
int client_start(struct client *c, const struct client_req *req, client_fn cb, void *ctx,
                 struct client_call **ret_call);
/* NULL is accepted. */
void client_cancel(struct client_call *call);

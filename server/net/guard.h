/*
 * Who may ask, before anything is read of a body: the API key of a request, and whether the
 * address is open to people who have none.
 */
#pragma once

#include <stdbool.h>

struct answer;
struct api_error;
struct ek_fault;
struct exchange;
struct http;

/* The head of a request: framing, sizes, Host. 0, or -EBADMSG with err, and the connection must be
 * closed. Fills x->head, x->method, x->trace. */
int guard_head(struct exchange *x, const char *method, const char *version, struct api_error *err);
/* Whether the client has shown the certificate that --ssl-ca-certs asks for. */
bool guard_client(const struct exchange *x);
/* NULL, or why the server does not answer to the name in Host (--allowed-hosts) or, on the loopback
 * without a key, to a page of that Origin: a page whose name was rebound to 127.0.0.1. */
const char *guard_host(const struct exchange *x);
/* The path without --root-path. */
const char *guard_path(const struct exchange *x, const char *path);

/* Whether the request may go on: routes that are open, the control socket, or a good key, which the
 * exchange then holds (x->key). x->route may be NULL: unknown paths need a key too. */
bool guard_key(struct exchange *x);
/* The answer to one without: 401. */
void guard_refuse(const struct exchange *x, struct answer *a);

/* A request of a key begins, has its first token, ends. guard_begin: false with a 429 in `a`. */
bool guard_begin(struct exchange *x, struct answer *a);
void guard_started(struct exchange *x);
void guard_end(struct exchange *x);

/* The address of the API is known: warns (or with --require-api-key is a fault) when anybody who
 * reaches it may use the server. */
int guard_address(struct http *h, int listen_fd, struct ek_fault *fault);

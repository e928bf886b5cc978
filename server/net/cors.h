/*
 * Pages of other origins (CORS): which of them a browser may let read answers. Without
 * --allowed-origins there are none, and no header says anything.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>

struct answer;
struct exchange;
struct http;

/* Adds what the origin of this request may be told. */
void cors_headers(const struct exchange *x, struct MHD_Response *r);
/* Whether --allowed-origins names it. */
bool cors_allows(const struct http *h, const char *origin);
/* True when the request only asks what it would be allowed (a preflight): `a` is the answer. */
bool cors_preflight(const struct exchange *x, struct answer *a);

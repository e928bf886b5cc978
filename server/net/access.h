/* What main.c may set about access to the server: part of struct http_params. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/net/auth.h"
#include "server/net/tls.h"

struct http_list {
    const char *const *at;
    size_t count;
};

struct http_access {
    struct auth_source keys;
    struct tls_source tls;
    bool require_key, protect_metrics;
    bool web;                                   /* the pages for people are there */
    struct http_list hosts;                     /* that a Host header may name, none = any */
    struct http_list origins, methods, headers; /* CORS; no origins = none of it */
    bool credentials;
    const char *root_path;   /* that a proxy leaves in front of paths, NULL = none */
    uint32_t each_peer;      /* most connections of one, 0 = no limit */
    double sse_keep_alive_s; /* a stream says something at least so often, 0 = need not */
};

/*
 * evenkeeld's API over its Unix socket: JSON in, JSON out, each call with a deadline.
 */
#pragma once

#include <jansson.h>

#include "common/buf.h"

struct api {
    void *curl; /* CURL */
    char socket[108];
    struct ek_buf body;
    char error[640]; /* one sentence about the last failure */
};

/* socket NULL: $EVENKEEL_SOCKET, /run/evenkeel/evenkeeld.sock, then the user's own.
 * Returns 0, -ENOMEM, or -ENAMETOOLONG. */
int api_open(struct api *a, const char *socket);
void api_close(struct api *a);

/* One call; `body` may be NULL and stays the caller's. On success *ret_answer is the caller's.
 *   -ECONNREFUSED  evenkeeld cannot be reached, or did not answer in time
 *   -EBADMSG       it refused, or its answer makes no sense; `error` says what it said
 *   -ENOMEM */
int api_call(struct api *a, const char *method, const char *path, const json_t *body,
             json_t **ret_answer);

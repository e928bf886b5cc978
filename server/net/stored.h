/*
 * Stored responses over HTTP (server/api/past.h): what a request goes on from, and the routes that
 * show and delete them. By whichever thread has the exchange.
 */
#pragma once

#include <stdint.h>

#include <jansson.h>

struct answer;
struct exchange;
struct past;

/* Where the body of a response names one that it goes on from, puts that conversation before its
 * input: *ret_count items, and *ret_past with a reference; else 0 and NULL. Returns 0, -EBADMSG
 * with an answer, or HTTP_ELSEWHERE where that is much and the exchange is quick. */
int stored_join(struct exchange *x, json_t *body, struct past **ret_past, uint32_t *ret_count,
                struct answer *a);
/* GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items. */
int stored_get(struct exchange *x, struct answer *a);
int stored_delete(struct exchange *x, struct answer *a);
int stored_items(struct exchange *x, struct answer *a);

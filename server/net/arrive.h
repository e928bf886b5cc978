/*
 * The first half of an exchange: its head, then its body, as they arrive. What can be refused
 * without the body is refused here, but most clients read no answer before they have sent their
 * body, so such an answer may wait for its end (exchange.late).
 */
#pragma once

#include <microhttpd.h>
#include <stddef.h>

struct exchange;

/* Headers are complete. MHD_YES, with an answer queued or to come; MHD_NO closes the connection. */
enum MHD_Result arrive_head(struct exchange *x, const char *url, const char *method,
                            const char *version);
/* A piece of the body, all of which is taken: *size becomes 0. */
enum MHD_Result arrive_body(struct exchange *x, const char *upload, size_t *size);
/* Frees the body, which does not count any more. */
void arrive_done(struct exchange *x);
/* Answers a body above its limit. */
enum MHD_Result arrive_too_large(struct exchange *x);

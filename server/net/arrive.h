/*
 * The first half of an exchange: its head, then its body, as they arrive. What can be refused
 * without the body is refused here, but most clients read no answer before they have sent their
 * body, so such an answer may wait for its end (exchange.late).
 *
 * The head is looked at in this order, and the first thing that is wrong is answered: its form
 * (guard.c), the client's certificate, a preflight of CORS, the host, the key, the route, whether a
 * model is loaded, the type of the body. So where keys are set, a client without one gets 401 for
 * every path that needs one, and cannot tell which of them exist.
 *
 * A refusal closes the connection at once where what follows cannot be told from the next request,
 * where the client asked before sending (Expect: 100-continue), and where the body is so far above
 * its limit (BOUND_BODY_SWALLOW times) that reading it would be an attack. Else the body is read
 * and dropped, and the connection stays open.
 *
 * Memory: a body is charged to the client's key as it comes (exchange.bill): first its bytes,
 * beside them what it is unpacked to, then what its JSON values will take, measured before they are
 * made. Each charge may be refused, with 413 (more than a client may have at all), 429 (more than
 * is left of its share) or 503 (of all). After arrive_read() the JSON alone counts, after
 * arrive_done() nothing.
 */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

struct answer;
struct exchange;

/* Headers are complete. MHD_YES, with an answer queued or to come; MHD_NO closes the connection. */
enum MHD_Result arrive_head(struct exchange *x, const char *url, const char *method,
                            const char *version);
/* A piece of the body, all of which is taken: *size becomes 0. */
enum MHD_Result arrive_body(struct exchange *x, const char *upload, size_t *size);
/* Before the route's handler: unpacks the body where it is gzipped, and tells whether there is room
 * for what its JSON becomes; false with an answer. By whichever thread runs the handler. */
bool arrive_json(struct exchange *x, struct answer *a);
/* The handler has read the body: frees its bytes, its JSON goes on counting. */
void arrive_read(struct exchange *x);
/* Frees the body; nothing of the exchange counts any more. */
void arrive_done(struct exchange *x);
/* Fills an answer for what ek_bill_set() refused with r; `what` begins the sentence. */
void arrive_refuse_room(const struct exchange *x, int r, const char *what, struct answer *a);
/* Answers a body above its limit. */
enum MHD_Result arrive_too_large(struct exchange *x);

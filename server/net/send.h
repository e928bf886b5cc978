/* Sending: the headers that all answers have, and those that are whole. On the exchange's thread.
 */
#pragma once

#include <microhttpd.h>

struct answer;
struct exchange;

/* What all answers have in their head. */
void answer_headers(struct exchange *x, const struct answer *a, struct MHD_Response *r);
/* Sends a whole answer and frees it. */
enum MHD_Result answer_send(struct exchange *x, struct answer *a);

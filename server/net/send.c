/* From an answer to the response that libmicrohttpd sends (send.h). Called by exchange.c. */
#include "server/net/send.h"

#include <stdio.h>

#include "common/clock.h"
#include "server/api/complete.h"
#include "server/net/bounds.h"
#include "server/net/conn.h"
#include "server/net/cors.h"
#include "server/net/request.h"
#include "server/net/state.h"

/* The page may be kept, but is asked for again each time: what an upgrade brought is seen. */
static void page_headers(const struct answer *a, struct MHD_Response *r)
{
    (void)MHD_add_response_header(r, "ETag", a->etag);
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    (void)MHD_add_response_header(r, "Content-Security-Policy", a->policy);
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(r, "X-Frame-Options", "DENY");
    (void)MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
}

void answer_headers(struct exchange *x, const struct answer *a, struct MHD_Response *r)
{
    char number[16];
    /* A header that cannot be added for lack of memory is left out: the answer matters more. */
    (void)MHD_add_response_header(r, "Content-Type", a->type ? a->type : "application/json");
    (void)MHD_add_response_header(r, "X-Request-Id", x->id);
    if (a->retry_after_s) {
        (void)snprintf(number, sizeof(number), "%u", a->retry_after_s);
        (void)MHD_add_response_header(r, "Retry-After", number);
    }
    if (x->gen && x->gen->ask.ignored[0])
        (void)MHD_add_response_header(r, "X-Ignored-Fields", x->gen->ask.ignored);
    if (a->encoding)
        (void)MHD_add_response_header(r, "Content-Encoding", a->encoding);
    if (a->vary)
        (void)MHD_add_response_header(r, "Vary", a->vary);
    if (a->allow)
        (void)MHD_add_response_header(r, "Allow", a->allow);
    if (a->challenge)
        (void)MHD_add_response_header(r, "WWW-Authenticate", a->challenge);
    if (a->etag)
        page_headers(a, r);
    cors_headers(x, r);
    bool drains = !x->conn->local && atomic_load(&x->http->drain);
    if (a->close || drains || http_health_is_busy(x->worker))
        (void)MHD_add_response_header(r, "Connection", "close");
}

enum MHD_Result answer_send(struct exchange *x, struct answer *a)
{
    if (!ek_buf_ok(&a->body)) {
        ek_buf_done(&a->body);
        a->status = 503;
        a->retry_after_s = 1;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(a->body.len, a->body.data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        ek_buf_done(&a->body);
        return MHD_NO;
    }
    answer_headers(x, a, r);
    uint64_t read_us = BOUND_ANSWER_S * EK_US_PER_S + a->body.len * EK_US_PER_S / BOUND_ANSWER_RATE;
    enum MHD_Result done = MHD_queue_response(x->mhd, (unsigned)a->status, r);
    MHD_destroy_response(r);
    x->conn->deadline_us = ek_now_us() + read_us;
    x->replied = done == MHD_YES;
    x->status = a->status;
    return done;
}

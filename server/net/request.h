/*
 * One request, the route that it takes and the answer that it gets: plain data. An exchange belongs
 * to the thread that has its connection, and while it is RUNNING elsewhere to the encoder
 * (encoder.h says which members).
 */
#pragma once

#include <microhttpd.h>
#include <stdatomic.h>

#include "common/account.h"
#include "common/buf.h"
#include "common/work.h"
#include "server/net/bounds.h"
#include "server/net/head.h"

struct conn;
struct exchange;
struct generation;
struct http;
struct worker;

#define HTTP_ID (BOUND_REQUEST_ID_BYTES + 1u)

/* What a handler answers. */
struct answer {
    int status;
    const char *type;            /* Content-Type */
    const char *encoding, *vary; /* headers, NULL = none */
    uint32_t retry_after_s;
    struct ek_buf body;
    const char *allow;         /* for 405 */
    const char *challenge;     /* for 401 */
    const char *etag, *policy; /* of a page: what it is, what it may do; both or neither */
    bool close;
};

#define ANSWER_JSON ((struct answer){.status = 200, .type = "application/json"})

#define HTTP_WAIT      1 /* a handler started a generation; the answer comes later */
#define HTTP_ELSEWHERE 2 /* it would take long, and the exchange is `quick`: nothing was done */

typedef int (*route_fn)(struct exchange *x, struct answer *a);

enum route_flag {
    ROUTE_LOCAL = 1,    /* control socket only */
    ROUTE_EARLY = 2,    /* answered while the model loads */
    ROUTE_HEALTH = 4,   /* served by the reserved thread, not counted in http_requests_total */
    ROUTE_JSON = 8,     /* needs Content-Type: application/json; counts for its key's limits */
    ROUTE_OPEN = 16,    /* no key is asked for */
    ROUTE_PROTECT = 32, /* but with --protect-metrics */
    ROUTE_PAGE = 64,    /* for people: no key is asked for, Host is looked at; not with --no-web */
};

struct route {
    const char *method, *path; /* a '*' at its end matches the rest, elsewhere up to a slash */
    unsigned flags;
    route_fn fn;
};

/* route.c: the table, and how many rows it has with one for unknown paths. */
extern const struct route route_table[];
#define ROUTES_MOST 64u
uint32_t route_count(void);
/* The row, or NULL with *ret_allow = "GET, HEAD, POST" when only the method is wrong. */
const struct route *route_find(const char *method, const char *path, const char **ret_allow);

/* One request and its answer. */
struct exchange {
    struct http *http;
    struct worker *worker;
    struct conn *conn;
    struct MHD_Connection *mhd;
    const struct route *route;
    const char *path; /* borrowed from MHD */
    char method[16];
    struct head head; /* of the request, as checked */
    struct ek_buf body;
    uint64_t body_bytes;  /* arrived, dropped ones included */
    struct ek_bill bill;  /* what it holds, until it closes */
    uint64_t json_bytes;  /* that the body's JSON takes, as the bill has it, with */
    uint64_t fixed_bytes; /* those of its generation that do not depend on the answers */
    int crowded;          /* why its answer found no room, 0 = it did */
    uint64_t length;      /* as Content-Length says, 0 = it does not */
    bool chunked;         /* a body comes, its length does not */
    bool quick;           /* its handler runs on the worker's thread */
    bool renders;         /* what the encoder has of it is its answer, not its body */
    uint64_t chance;      /* what a generation without a seed draws from, once it is known */
    uint64_t arrival_us;
    char id[HTTP_ID];           /* x-request-id */
    int status;                 /* answered, 0 = none yet */
    bool begun;                 /* the first call of the handler is over */
    bool suspended;             /* MHD must not touch it until it is resumed */
    bool replied;               /* a response is queued */
    bool counted;               /* in http->active */
    int key;                    /* slot of its API key (auth.h), AUTH_NOBODY = none */
    bool key_open, key_waiting; /* counted there: as open, as without a token yet */
    bool too_large;
    bool preflight;              /* asks what it may ask (cors.h) */
    char trace[33], parent[17];  /* trace and span id of its traceparent, "" = none */
    struct span_request *span;   /* of its generation, once that is dropped; or NULL */
    bool sampled;                /* it is told of in a trace, where those are sent */
    uint64_t sent_us;            /* when a stream's reader last took bytes */
    uint64_t taken_bytes;        /* that a stream's reader has taken, */
    uint64_t slow_us, slow_from; /* since when, and from where on, too much waits for it; 0 = no */
    bool stalled;                /* it was cut for that */
    uint64_t made_us; /* while the server drains: since when all of its answer is there; 0 = no */
    bool refused;     /* `late` is the answer, once the body has arrived */
    struct answer late;
    bool left; /* the peer is gone, or we stop: end it */
    struct generation *gen;
    bool linked;                  /* in worker->running */
    struct exchange *prev, *next; /* there */
    atomic_int busy;              /* enum busy: its handler runs elsewhere, see encoder.h */
    struct answer early;          /* what it says, and its result */
    int early_rc;
    struct ek_work work;         /* what its handler may take, here or there */
    atomic_bool gone;            /* its result is not wanted any more; any thread */
    uint64_t wait_until_us;      /* under the encoder's lock while it waits */
    struct exchange *next_large; /* the encoder's */
};

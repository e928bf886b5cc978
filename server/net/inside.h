/*
 * What the modules of server/net share.
 *
 * Owners: a conn and its exchange belong to the worker (thread) that has the connection; nobody
 * else touches them. Shared: the atomics, and the inbox of a worker under its lock. `served` is set
 * once (release) by http_serve() and read (acquire) by all.
 */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/account.h"
#include "common/buf.h"
#include "common/work.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/net/bounds.h"
#include "server/net/head.h"
#include "server/net/http.h"

struct auth;
struct door;
struct encoder;
struct pages;
struct peers;
struct exchange;
struct generation;

#define HTTP_CODES 16u /* status codes counted one by one, see metrics.c */
#define HTTP_ID    (BOUND_REQUEST_ID_BYTES + 1u)

enum http_role { HTTP_API, HTTP_HEALTH, HTTP_CONTROL };

/* What an epoll event of a worker is about: the first member of what it points to. */
enum watch { WATCH_EVENT, WATCH_DAEMON, WATCH_LISTENER, WATCH_PEEK, WATCH_CONN };

/* An open connection. */
struct conn {
    enum watch watch;
    int fd;
    bool local;           /* came over the control socket: admin routes are allowed */
    bool checked;         /* its client's certificate is good, or none is asked for */
    bool watched;         /* in the worker's epoll for RDHUP */
    uint64_t deadline_us; /* the request must be complete by then; 0 = it is */
    struct exchange *exchange;
    struct worker *worker;
    struct conn *prev, *next;
};

#define HTTP_INBOX 512u

struct worker {
    struct http *http;
    enum http_role role;
    uint32_t index; /* the engine's number for it */
    pthread_t thread;
    atomic_bool started;
    atomic_ullong rounds; /* of its loop */
    struct MHD_Daemon *daemon;
    enum watch on_event, on_daemon;
    int epoll, event;  /* own epoll; eventfd that the engine and other threads write */
    struct door *door; /* NULL unless it accepts; freed when all threads have ended */
    struct conn *conns;
    struct exchange *running; /* with a generation, linked */
    uint64_t next_scan_us;    /* deadlines are looked at then */
    atomic_uint load;         /* connections, those in the inbox included */
    atomic_bool stop;
    pthread_mutex_t lock;
    int inbox[HTTP_INBOX]; /* under lock: accepted sockets to take over */
    uint32_t inbox_count;
};

struct http {
    struct http_params p;
    char control_path[128];
    struct worker worker[ENGINE_WORKERS_MOST];
    uint32_t workers; /* API first, then health, then control */
    _Atomic(const struct http_served *) served;
    atomic_int phase; /* enum http_phase */
    _Atomic(const char *) loading_what;
    atomic_ullong loading_done, loading_total;
    char why[256];    /* written before phase becomes HTTP_FAILED */
    atomic_int drain; /* 0 = no, else enum http_drain_mode + 1 */
    atomic_uint active;
    struct ek_account memory; /* of bodies, their JSON and answers */
    atomic_uint api_conns, parked;
    atomic_uint peeked; /* accepted, not yet given to an API thread, the parked ones among them */
    atomic_bool taking; /* the public socket is listened to */
    atomic_ullong next_id;
    uint64_t id_base[2];
    uint64_t started_us, started_wall_us;
    atomic_bool reload_failed; /* the last SIGHUP changed nothing */
    _Atomic uint64_t
        reloaded_wall_us; /* when keys and certificates were last read; 0 = at the start */
    int listen_event;     /* eventfd: a listening socket came */
    pthread_mutex_t lock;
    int handed_fd;                       /* under lock; -1 = none */
    int listen_fd;                       /* in use, -1 before http_serve() */
    atomic_ullong (*counts)[HTTP_CODES]; /* [routes] */
    atomic_ullong aborted, timeouts, accepted, unauthorized, slow_readers, peer_refusals;
    struct peers *peers; /* NULL = they are not counted */
    struct pages *pages; /* NULL = --no-web */
    struct auth *auth;
    struct encoder *encoder;
    struct tls *tls;              /* NULL = plain HTTP */
    atomic_bool open_without_key; /* a public address, and no key is asked for */
    atomic_bool confined_files, confined_calls;
    atomic_bool loopback; /* the address is one of this machine alone */
};

enum http_phase { HTTP_LOADING, HTTP_SERVING, HTTP_FAILED, HTTP_STOPPING };

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
    const char *method, *path; /* a path that ends in '*' matches the rest */
    unsigned flags;
    route_fn fn;
};

extern const struct route route_table[];
#define ROUTES_MOST 40u
uint32_t route_count(void); /* those of the table and one for unknown paths */
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
    uint64_t body_bytes; /* arrived, dropped ones included */
    struct ek_bill bill; /* what it holds, until it closes */
    uint64_t json_bytes; /* that the body's JSON takes, as the bill has it */
    int crowded;         /* why its answer found no room, 0 = it did */
    uint64_t length;     /* as Content-Length says, 0 = it does not */
    bool chunked;        /* a body comes, its length does not */
    bool quick;          /* its handler runs on the worker's thread */
    uint64_t chance;     /* what a generation without a seed draws from, once it is known */
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
    char trace[33];              /* trace id of its traceparent, "" = none */
    uint64_t sent_us;            /* when a stream's reader last took bytes */
    uint64_t taken_bytes;        /* that a stream's reader has taken, */
    uint64_t slow_us, slow_from; /* since when, and from where on, too much waits for it; 0 = no */
    bool stalled;                /* it was cut for that */
    bool refused;                /* `late` is the answer, once the body has arrived */
    struct answer late;
    bool left; /* the peer is gone, or we stop: end it */
    struct generation *gen;
    bool linked;                  /* in worker->running */
    struct exchange *prev, *next; /* there */
    atomic_int busy;              /* enum busy: its handler runs elsewhere, see encoder.h */
    struct answer early;          /* what it says, and its result */
    int early_rc;
    struct ek_work work;         /* what its handler may take there */
    atomic_bool gone;            /* nobody waits for it any more; any thread */
    uint64_t wait_until_us;      /* under the encoder's lock while it waits */
    struct exchange *next_large; /* the encoder's */
};

/* What is served, NULL while the model loads. */
static inline const struct http_served *http_served(struct http *h)
{
    return atomic_load_explicit(&h->served, memory_order_acquire);
}
/* Fills the answer with an error object. */
void answer_error(struct answer *a, const struct api_error *err);
/* In the form that the clients of this API expect. */
void generation_answer_error(struct answer *a, enum openai_api api, const struct api_error *err);
void answer_fault(struct answer *a, int status, const char *param, const char *msg);
/* The same for what is refused before, or instead of, a route's handler: in the form that the path
 * has, known or not. */
void answer_refuse(const struct exchange *x, struct answer *a, const struct api_error *err);
void answer_refuse_fault(const struct exchange *x, struct answer *a, int status, const char *msg);
/* What all answers have in their head. */
void answer_headers(struct exchange *x, const struct answer *a, struct MHD_Response *r);
/* Sends a whole answer and frees it. */
enum MHD_Result answer_send(struct exchange *x, struct answer *a);

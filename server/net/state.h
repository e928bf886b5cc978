/*
 * One server's state, which all its threads share: the atomics, and what is under `lock`. `served`
 * is set once (release) by http_serve() and read (acquire) by all.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/account.h"
#include "server/net/bounds.h"
#include "server/net/conn.h"
#include "server/net/keeper.h"
#include "server/net/losses.h"
#include "server/net/params.h"

struct auth;
struct encoder;
struct pages;
struct peers;
struct tls;
struct tracer;

#define HTTP_HEALTH_FEW 16u /* where descriptors are scarce */
#define HTTP_CODES      16u /* status codes counted one by one, see metrics.c */

struct http {
    struct http_params p;
    char control_path[128];
    struct worker worker[ENGINE_WORKERS_MOST];
    uint32_t workers; /* API first, then health, then control */
    _Atomic(const struct served *) served;
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
    struct keeper keeper;                /* under lock */
    struct losses losses;                /* of the engine, and what judges them */
    atomic_ullong (*counts)[HTTP_CODES]; /* [routes] */
    atomic_ullong aborted, timeouts, accepted, unauthorized, slow_readers, peer_refusals;
    struct peers *peers; /* NULL = they are not counted */
    struct pages *pages; /* NULL = --no-web */
    struct auth *auth;
    struct encoder *encoder;
    struct tls *tls;              /* NULL = plain HTTP */
    struct tracer *tracer;        /* NULL = no traces are sent */
    atomic_bool open_without_key; /* a public address, and no key is asked for */
    atomic_bool confined_files, confined_calls, confined_memory;
    atomic_bool loopback; /* the address is one of this machine alone */
};

/* Connections that its health thread may have at once. */
static inline uint32_t http_health_places(const struct http *h)
{
    return h->p.max_sockets ? HTTP_HEALTH_FEW : BOUND_HEALTH_CONNECTIONS;
}

/* Whether that thread has so many that none should stay without need. */
static inline bool http_health_is_busy(const struct worker *w)
{
    return w->role == HTTP_HEALTH && atomic_load(&w->load) > http_health_places(w->http) / 2;
}

enum http_phase { HTTP_LOADING, HTTP_SERVING, HTTP_FAILED, HTTP_STOPPING };

/* What is served, NULL while the model loads. */
static inline const struct served *http_served(struct http *h)
{
    return atomic_load_explicit(&h->served, memory_order_acquire);
}

/* What main.c and the threads of server/net both know: plain data. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/api/served.h"
#include "server/engine/engine.h"
#include "server/net/access.h"

enum http_drain_mode { HTTP_DRAIN_REFUSE, HTTP_DRAIN_HOLD };

/* The control socket asked for it; `leave` = end the process once drained. Control thread; must
 * not block. */
typedef void (*http_drain_fn)(void *ctx, double deadline_s, enum http_drain_mode mode, bool leave);
typedef void (*http_resume_fn)(void *ctx);

struct http_params {
    uint32_t threads; /* of the API, 1 .. ENGINE_WORKERS_MOST - 2 */
    uint32_t max_connections;
    uint32_t max_sockets; /* that descriptors allow for the API's connections; 0 = enough */
    double request_timeout_s, keep_alive_s, shutdown_timeout_s;
    enum http_drain_mode drain_mode;
    const char *control_path; /* NULL = no control socket */
    uid_t control_uid;        /* the user that may use it besides root and the own one, -1 = none */
    bool log_requests;
    const char *traces_endpoint; /* where spans are sent, NULL = nowhere */
    struct http_access access;
    http_drain_fn drain;
    http_resume_fn resume;
    void *ctx;
};

/* A thread that must come round. */
struct http_thread {
    pthread_t thread;
    const char *what;
    uint64_t rounds;        /* times that it did */
    uint64_t cpu_most_us;   /* processor time between two of them */
    uint64_t still_most_us; /* time without any of it, 0 = it may wait for as long as it likes */
};

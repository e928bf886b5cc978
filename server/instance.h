/*
 * The whole process: its options, the model and the HTTP side, and how it is to end. One in a
 * process, on main()'s stack; main.c starts and ends it, listening.c opens its sockets, drain.c
 * takes the orders to drain, resume and stop.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "server/confine.h"
#include "server/engine_cgroup.h"
#include "server/exit_record.h"
#include "server/options.h"
#include "server/stack.h"
#include "server/watch.h"

struct http;

enum start_state { START_RUNNING, START_READY, START_FAILED, START_ENDED };

struct instance {
    struct options o;
    struct exit_record exit_record;
    struct confined confined;
    struct engine_cgroup engine_group; /* as it was made */
    struct stack stack;
    struct http *http;
    pthread_t starter;
    bool starter_runs;
    atomic_int start; /* enum start_state; the next two are written before it changes */
    int start_code;
    struct ek_fault fault;
    int event, signals;
    bool listening, serving;
    unsigned port;
    uint32_t most_sockets; /* of the API, 0 = as many as it likes */
    pthread_mutex_t lock;
    /* under lock: orders from the control socket and the engine */
    bool dead;
    int dead_code;
    char dead_why[480];
    bool leaving; /* end the process once drained */
    bool bound;   /* and that cannot be taken back: a signal, another node, or it is too late */
    int leave_code;
    uint64_t deadline_us; /* of the drain, 0 = none */
    uint64_t cut_before;  /* requests cut by drains that were taken back since */
    bool cut, hold;       /* hold: open connections are served on while it drains */
    uint64_t unkept_us;   /* main thread: how long a drained one waits for a keeper of the socket */
    uint64_t idle_us;     /* main thread: since when it is drained and nothing is asked */
    struct watch watch;   /* main thread */
    uint64_t watched_us;  /* likewise: when it looked last */
};

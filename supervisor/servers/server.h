/*
 * One supervised server: its process, its sockets, its signals, its limits, as a state machine in
 * the loop's only thread.
 *
 *   STOPPED -> ADOPTING -> STARTING -> READY -> DRAINING -> DRAINED
 *                 |           ^  |       |         |
 *                 +-----------+  +-------+---------+-> (ends) -> BACKOFF or BREAKER -> STARTING
 *                                        +-> STOPPING -> (ends) -> STOPPED or STARTING
 *
 * `want` says where it should be: an end that was not wanted is a failure, whatever its status. The
 * listening socket belongs to this struct and stays open through all of it, so clients wait in its
 * backlog while a server restarts.
 *
 * Files: server.c readiness, time; life.c what the next evenkeeld goes on from; launch.c address,
 * start, adoption; launch_unit.c the same by systemd; prestart.c what a start needs; obstacle.c
 * whether what failed one is gone; prove.c whether the next one would start; ended.c end, why, what
 * next; engine_lost.c the end of its engine's process alone; repair.c with what it starts after
 * memory ran out; watch.c samples, hangs, policy; upkeep.c memory that wears out; action.c limits;
 * drain.c stop, drain, resume, restart.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "supervisor/servers/server_parts.h"

struct aside;
struct behind;
struct restart_peers;
struct incidents;
struct server;
struct state;
struct subprocesses;
struct units;

/* What all servers of one evenkeeld share; owned by the loop. */
struct services {
    sd_event *event;
    struct client *client;
    struct units *units;
    struct restart_peers *peers;
    struct figures *figures;
    struct subprocesses *subprocesses; /* that servers' questions run in */
    struct config *config;
    struct state *state;
    struct aside *aside;         /* reads what takes long */
    struct behind *behind;       /* NULL: nothing is kept for the next evenkeeld */
    struct incidents *incidents; /* the same */
    char *who;     /* WHO_BYTES: the user that asked for what is being done: " (root)", "" = none */
    uint64_t boot; /* see boot_id() */
    bool journal;  /* the servers' output goes to the journal unless they name a file */
    void (*stopped)(void *ctx); /* a server that was to stop has stopped */
    bool (*peers_ready)(void *ctx, const struct server *self); /* all that should run, do */
    void (*keep_fd)(void *ctx, const char *server,
                    int fd); /* into systemd's store; -1: out of it */
    int (*reload)(void *ctx, void (*cb)(void *cb_ctx, int error, const char *text), void *cb_ctx,
                  char *text, size_t size); /* see reload.h */
    void (*debug)(void *ctx, double for_s); /* log all that is looked at; 0 ends it */
    void *ctx;
};

/* Called once, from the loop, with 0 or a negative code and a sentence. */
typedef void (*server_fn)(void *ctx, int error, const char *text);
/* What waits for what follows an answer; {0} = nothing. */
struct prove_for {
    server_fn done;
    void *ctx;
};
typedef void (*prove_fn)(struct server *s, const struct prove_for *whom, int error,
                         const char *text);

/* Each part's owner is named in server_parts.h. */
struct server {
    const struct services *with;
    const struct server_config *config;
    struct server_companion companion;
    enum server_state state;
    enum server_want want;
    struct server_process process;
    struct server_unit unit;
    struct server_timer timer;
    struct server_probe probe;
    struct server_address address;
    struct server_socket socket;
    struct server_prestart prestart;
    struct server_prove prove;
    struct server_obstacle obstacle;
    struct server_drain drain;
    struct server_ends ends;
    struct server_repair repair;
    struct server_engine_ends engine;
    struct server_life life;
    struct server_past past;
    struct server_watch watch;
    struct server_record record;
    struct server_memory memory;
    struct server_leaks leaks;
    struct server_law law;
    struct server_upkeep upkeep;
    struct server_act act;
    struct server_ramp ramp;
};

int server_new(const struct services *with, const struct server_config *config,
               struct server **ret_server);
/* Leaves the process running. An operator without an answer of server_answer_operator() hears
 * nothing. */
void server_free(struct server *s);
/* After each turn of the loop: writes what has changed in its life. */
void server_turn(struct server *s);

/* Adopts a running process or starts one. */
void server_begin(struct server *s);
/* Takes a listening socket that systemd kept; owned from here on. */
void server_give_fd(struct server *s, int fd);
/* SIGCHLD said so, or its pidfd did. */
void server_check_exit(struct server *s);
/* The configuration changed: bounds, policy and poll now, the rest at the next start. */
void server_reconfigure(struct server *s, const struct server_config *config);

/* While we alone hold the listening socket of a server that is about to have it, because its
 * process has just been started, or ends and is followed by another: until when it should have it;
 * it is to be asked again then. Else 0. A drain for a restart is waited for if it is over soon
 * after `since_us`: one that takes longer holds its connections for the next evenkeeld. */
uint64_t server_gives_socket_by(const struct server *s, uint64_t since_us, uint64_t now_us);
/* memory_line.c: reads the memory and says it. */
void memory_line(struct server *s, const struct process_list *all, const struct figures *f);
/* Whether a process of it is known: ours, or of one that is attached. */
bool memory_known(const struct server *s);

/* Drains and ends it; services.stopped is called when it is done. Idempotent. */
void server_stop(struct server *s);
/* A configuration that was read again: a running server reads its keys and certificates again. */
void server_reread(struct server *s);

/* The operator's verbs: 0, or -EBUSY, -EINVAL or -ENOMEM with a sentence in text. */
int server_drain(struct server *s, char *text, size_t size);
int server_resume(struct server *s, char *text, size_t size);
/* engine_process.c: what is known of a process of its own. False: it has none, or that is not
 * known. */
struct engine_figures {
    const char *state;             /* "running", "starting", "released" */
    double planned, lost, pause_s; /* times started again on purpose; lost; seconds without one */
};
bool server_engine_figures(const struct server *s, struct engine_figures *ret_figures);
/* engine_process.c: restart, release or acquire; without a drain, where there is such a process.
 * 1 = cb follows with what the server says to it. */
int server_engine(struct server *s, const char *word, server_fn cb, void *ctx, char *text,
                  size_t size);
/* What it needs a restart for: how its next start differs from what runs. False, and "", when that
 * is nothing, or cannot be seen (an engine that renames itself, somebody else's). */
bool server_changes(const struct server *s, char *text, size_t size);
/* The same for all readers, in `needs`. It looks into /proc and at files, so that is not done
 * for each reader: after a reload, and now and then. */
void server_look_changes(struct server *s);
/* Whether its limits can change while it runs; else they are start flags. */
bool server_limits_live(const struct server *s);
/* What it may go up to, by its own word or by its flags; 0: it was not said. */
uint32_t server_ceiling(const struct server *s, enum knob k);
/* With what is to be tried, {0} = nothing. Its successor is proved first: 1 = cb follows. */
int server_restart(struct server *s, const struct trial *trial, server_fn cb, void *ctx, char *text,
                   size_t size);
/* The same in its turn: once the others are ready and the lease is free. */
int server_roll(struct server *s, server_fn cb, void *ctx, char *text, size_t size);

#define REPAIR_TEXT 240
/* What running out of memory taught and is in force at a start: "--max-num-seqs 16 instead of 64".
 * Seconds for which it is kept, 0 = nothing is. */
double repair_learned(const struct server *s, char *text, size_t size);
/* The operator: its own flags at the next start, and each step of a ladder anew. */
int server_forget(struct server *s, char *text, size_t size);

/* Operators that still wait for a word of its process are told that there will be none. Before
 * server_free(), as long as they are there. */
void server_answer_operator(struct server *s);

struct server_change {
    uint32_t value[KNOB_COUNT]; /* 0 = as it is */
    bool named[KNOB_COUNT];
    bool has_pin, pin;
    char reason[96];
    char who[WHO_BYTES]; /* as in services */
};
/* 0: cb follows. -EBADMSG with a sentence in text: nothing was done. */
int server_set_limits(struct server *s, const struct server_change *change, server_fn cb, void *ctx,
                      char *text, size_t size);

/* The policy's constants with the bounds that configuration and ceilings give. */
struct policy_params server_params(const struct server *s);

const char *server_state_name(enum server_state st);
/* Others reach its address and it asks for no API key. */
bool server_is_open(const struct server *s);
const char *restart_cause_name(enum restart_cause c);

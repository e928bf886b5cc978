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
 * memory ran out; watch.c samples, hangs, policy; upkeep.c
 * memory that wears out; action.c limits; drain.c stop, drain, resume, restart. Each field is
 * written by one of them, named there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "common/metrics.h"
#include "common/oom_window.h"
#include "supervisor/config/options.h"
#include "supervisor/io/child.h"
#include "supervisor/io/control.h"
#include "supervisor/io/figures.h"
#include "supervisor/io/key.h"
#include "supervisor/io/logtail.h"
#include "supervisor/io/scrape.h"
#include "supervisor/law/backoff.h"
#include "supervisor/law/changes.h"
#include "supervisor/law/decisions.h"
#include "supervisor/law/failures.h"
#include "supervisor/law/hang.h"
#include "supervisor/law/history.h"
#include "supervisor/law/leak.h"
#include "supervisor/law/life.h"
#include "supervisor/law/remedy.h"
#include "supervisor/law/trial.h"
#include "supervisor/law/view.h"
#include "supervisor/law/waiting.h"

struct aside;
struct loss_line;
struct behind;
struct charts;
struct edge;
struct peers;
struct handoff;
struct incidents;
struct record;
struct shares;
struct shut;
struct server;
struct prove_ask;
struct state;
struct subprocesses;
struct unit;
struct units;

/* What is known of a unit of systemd; see launch_unit.c. */
enum unit_phase { UNIT_LOOKING, UNIT_WAITING, UNIT_ASKED, UNIT_RUNNING, UNIT_ENDING };

/* See obstacle.c. */
enum obstacle { OBSTACLE_NONE, OBSTACLE_PORT, OBSTACLE_MEMORY, OBSTACLE_DEVICES, OBSTACLE_FILES };

enum restart_cause {
    CAUSE_CRASH,
    CAUSE_START,
    CAUSE_HANG,
    CAUSE_OPERATOR,
    CAUSE_PLANNED,
    RESTART_CAUSES
};

#define WHO_BYTES          96
#define ENGINE_LOSSES_KEPT 8u

/* One end of its engine's process, and what followed. */
struct engine_lost {
    uint64_t wall_us;
    enum crash_class cls;
    char said[200];
};

/* Of this process of the server: the last ones, at count % ENGINE_LOSSES_KEPT. */
struct engine_losses {
    unsigned below_pin; /* bit k: a verdict holds this knob below what an operator pinned */
    struct engine_lost at[ENGINE_LOSSES_KEPT];
    uint32_t count;
};

/* What all servers of one evenkeeld share; owned by the loop. */
struct services {
    sd_event *event;
    struct client *client;
    struct units *units;
    struct peers *peers;
    struct figures *figures;
    struct subprocesses *subprocesses; /* that servers' questions run in */
    struct config *config;
    struct state *state;
    struct aside *aside;         /* reads what takes long */
    struct behind *behind;       /* NULL: nothing is kept for the next evenkeeld */
    struct incidents *incidents; /* the same */
    char *who;     /* WHO_BYTES: who asks for what is being done: " (root)", "" = nobody */
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
/* Who waits for what follows an answer; {0} = nobody. */
struct prove_for {
    server_fn done;
    void *ctx;
};
typedef void (*prove_fn)(struct server *s, const struct prove_for *whom, int error,
                         const char *text);

struct server {
    const struct services *with;
    const struct server_config *config;
    struct server_config plain; /* what `config` is after companion_drop(); owns nothing */
    bool companion_gone, companion_blamed;

    /* server.c, launch.c, ended.c */
    enum server_state state;
    enum server_want want;
    struct child child;
    bool adopted, ready;
    bool attached;       /* somebody else's: no process of ours */
    uint32_t misses;     /* readiness probes in a row that failed, when attached */
    bool start_killed;   /* at the deadline of its start */
    uint64_t killed_us;  /* since when it has not ended though it was killed, 0 = it was not */
    bool stuck;          /* it was said */
    bool handed, taking; /* the socket is with the server; it must be asked for */
    enum restart_cause cause;
    uint64_t started_us, ready_us;
    uint64_t armed_us; /* when the state's timer is due, 0 = it is off */
    int listen_fd;
    struct shut *shut; /* answers at the listening socket while nobody else does */
    unsigned port;
    char url[160];          /* http://HOST:PORT */
    char where[200];        /* of the metrics page */
    char control_path[108]; /* "" without a control socket; a reload may free the config's */
    char model[200];        /* as the server names it, "" until known */
    char key[KEY_MOST];     /* that its API asks for, "" = none */
    bool asked_key;         /* it refused a request for want of one: said once */
    bool resuming;          /* an operator asked for it, and it has not said that it goes on */
    bool restart_waits;     /* an operator asked for a restart, which begins when it is ready */
    char refused[280]; /* why one that was to come later does not, until the next; "" = it may */
    bool telling_edge; /* drains, but for now only HAProxy knows */
    struct handoff *handoff;
    struct client_call *probe;
    sd_event_source *exit_io, *timer, *probe_timer;
    struct logtail log;
    struct backoff backoff;
    uint64_t restarts[RESTART_CAUSES], exits[CRASH_COUNT];
    uint64_t remedies[CRASH_COUNT][REMEDY_STEPS + 1]; /* by step; the last: there was none left */
    struct ek_oom_window ooms;                        /* of its cgroup */
    struct trial trial;                               /* until the operator restarts it without */
    struct remedy_settings in_file; /* what the file of --config said at the last start */
    struct remedy_settings running; /* what this process was started with */
    struct remedy_settings said;    /* its own word at its start; engines that do not answer it */
    struct repair *repair;          /* repair.c: NULL = nothing is asked */
    uint64_t ended_us;              /* when the last one ended, 0 = none did */
    bool soon;                      /* that one had begun right after another ended */

    /* engine_lost.c */
    struct loss_line *loss_line; /* NULL = it has no engine's process that it could tell of */
    struct engine_losses losses;
    uint64_t engine_exits[CRASH_COUNT];

    /* life.c */
    struct life was;      /* what the evenkeeld before wrote, until it is known what runs */
    bool begun;           /* its backoff was taken over */
    bool was_taken;       /* from here on what is written is of this evenkeeld */
    bool was_ready;       /* adopted, and ready before: it is not ended for a slow answer */
    bool drain_unsure;    /* it drains, and whether it knows that is to be asked */
    unsigned drain_tries; /* that failed to tell it so */
    bool drain_found;     /* adopted, and drained by somebody of whom nothing is written */

    /* launch_unit.c */
    struct {
        struct unit *unit; /* NULL = a child of our own */
        enum unit_phase phase;
        bool said, oom; /* that systemd cannot be reached; its cgroup ran out of memory */
        int sig;
        pid_t before; /* the last process before the start */
        uint64_t ended_us;
        uint64_t kills;   /* for memory, that its end may be: its cgroup is gone soon after it */
        char cgroup[256]; /* its directory, "" = not known */
    } unit;

    /* prestart.c */
    struct {
        struct gpus_call *asks;
        uint64_t since_us; /* it has waited for memory since; 0 = it does not */
        bool passed;       /* all there: the next launch goes on */
        enum reason said;
        double port_wait_s; /* between the last two looks at a taken port */
        double lack_wait_s; /* between the last two tries that lacked something, until a start */
        char holder[80];    /* of the port, as it was said */
    } prestart;

    struct {
        struct prove_ask *ask; /* prove.c: NULL = nothing is asked */
        struct trial before;   /* drain.c: what it ran with, if the answer is no */
    } prove;
    char needs[CHANGES_TEXT]; /* what it needs a restart for, as of the last look; "" = nothing */

    /* obstacle.c */
    struct {
        enum obstacle kind, last;
        bool seen; /* `sum` is of a look at its files */
        uint64_t sum;
        sd_event_source *timer;
        struct traces_call *traces;
        struct gpus_call *gpus;
    } obstacle;

    /* watch.c */
    struct scrape *scrape;
    struct sample sample;
    struct view view;
    struct window *seen; /* for the view: the policy's stands still while it drains */
    struct history *history;
    struct charts *charts; /* NULL = not on disk */
    struct policy *policy; /* NULL until the limits are known for the first time */
    struct decision waits; /* what the policy waits for; not in `decisions` */
    struct waiting waiting;
    char waiting_why[200]; /* why requests wait now, "" = none do or it is not known */
    struct shares *shares; /* of its keys; NULL until it has two */
    struct record *record; /* NULL = none, or not yet */
    bool record_failed;
    uint32_t record_limit[KNOB_COUNT]; /* what a replay takes the limits to be */
    bool record_write_failed;          /* the next page is the first after this */
    uint64_t record_ready_us;          /* the next page is the first after this; 0 = it is not */
    struct hang hang;
    struct client_call *canary;
    bool hang_killed;
    uint64_t halted_us, probed_us; /* first seen stopped by a signal; last readiness probe */
    uint64_t hangs, scrapes[SCRAPE_RESULTS];
    struct ek_hist scrape_took;

    struct memory_figures memory; /* by memory_line.c */
    struct {
        pid_t pid; /* of an attached server; 0 = not known, or not on this machine */
        unsigned long long start;
    } theirs;

    /* leaks.c */
    struct {
        struct leak host, device[GPUS_MOST];
        struct leak engine; /* host memory of its engine's process */
        bool in_engine;     /* what a restart was asked for grows there */
        double left_s; /* until memory runs out, by the trend that leaves least; NAN = none grows */
        uint64_t asked_us; /* for a restart, last; 0 = not yet */
        bool acted;        /* in a mode that acts */
    } leaks;

    /* upkeep.c */
    struct {
        struct chronic chronic;
        enum reason reason, waits_for; /* of the restart; what it waits for and was said */
        char why[200];
        double measured;
        uint64_t due_us;       /* a planned restart; 0 = none is due */
        bool asked;            /* an operator wants it in its turn */
        bool planned;          /* it is under way */
        uint64_t engine_us;    /* since when the engine's process alone is, 0 = it is not */
        double engine_planned; /* how often it had been started again on purpose */
        bool engine_refused;   /* and the server did not want that */
        bool loosened;         /* it starts with expandable segments by plan, and is not ready */
        bool urgent;           /* the operator's hours do not count */
        pid_t ready_pid;       /* which process was ready last; 0 = none, or not known */
        int lease;             /* -1 = not held */
        struct client_call *canary;
    } upkeep;

    /* action.c */
    struct edge *edge;       /* NULL = none */
    uint32_t edge_seqs;      /* maxconn that the law wants there; 0 = none yet */
    struct control *control; /* NULL without a control socket */
    struct control_limits limits;
    bool limits_known, restored, writing;
    struct decision pending;
    uint32_t write_failures;
    uint64_t limits_us; /* when they were last asked for */

    /* ramp.c; due by action.c */
    struct {
        bool due;        /* this start is the end of a restart by plan */
        uint32_t target; /* 0 = none is under way */
        uint32_t at;     /* what was written last */
        uint32_t kept;   /* the target of one that the evenkeeld before began; 0 = none */
        uint64_t next_us;
        double preemptions;
    } ramp;

    char asked_by[WHO_BYTES];   /* drain.c: who asked for what is under way */
    struct decisions decisions; /* by server_note() and past.c */
    struct failures failures;   /* ended.c, past.c */

    /* past.c: what evenkeelds before this one left */
    struct {
        pid_t pid; /* of a process that may have ended since; 0 = none */
        uint64_t start, restarts, since_us;
        uint64_t unwatched_us; /* since when nobody watched; 0 = not known */
        uint64_t boot;
    } past;
};

int server_new(const struct services *with, const struct server_config *config,
               struct server **ret_server);
/* Leaves the process running. */
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

/* While its process has been started and has no listening socket yet, which we hold for it: how
 * long that may take since then. Else 0. */
uint64_t server_gives_socket_us(const struct server *s);
/* memory_line.c: reads the memory and says it. */
void memory_line(struct server *s, const struct process_list *all, const struct figures *f);
/* Whether a process of it is known: ours, or of one that is attached. */
bool memory_known(const struct server *s);

/* Drains and ends it; services.stopped is called when it is done. Idempotent. */
void server_stop(struct server *s);
/* A configuration that was read again: a running server reads its keys and certificates again. */
void server_reread(struct server *s);

/* The operator's verbs: 0, or -EBUSY/-EINVAL with a sentence in text. */
int server_drain(struct server *s, char *text, size_t size);
int server_resume(struct server *s, char *text, size_t size);
/* engine_process.c: what is known of a process of its own. False: it has none, or nobody knows. */
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
/* The same for all who read it, in `needs`. It looks into /proc and at files, so that is not done
 * for each reader: after a reload, and now and then. */
void server_look_changes(struct server *s);
/* Whether its limits can change while it runs; else they are start flags. */
bool server_limits_live(const struct server *s);
/* What it may go up to, by its own word or by its flags; 0: nobody has said it. */
uint32_t server_ceiling(const struct server *s, enum knob k);
/* With what is to be tried, {0} = nothing. Its successor is proved first: 1 = cb follows. */
int server_restart(struct server *s, const struct trial *trial, server_fn cb, void *ctx, char *text,
                   size_t size);
/* The same in its turn: once the others are ready and nobody holds the lease. */
int server_roll(struct server *s, server_fn cb, void *ctx, char *text, size_t size);

#define REPAIR_TEXT 240
/* What running out of memory taught and is in force at a start: "--max-num-seqs 16 instead of 64".
 * Seconds for which it is kept, 0 = nothing is. */
double repair_learned(const struct server *s, char *text, size_t size);
/* The operator: its own flags at the next start, and each step of a ladder anew. */
int server_forget(struct server *s, char *text, size_t size);

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

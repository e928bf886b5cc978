/*
 * The parts of struct server, each written by the file that is named there and read by all. Each
 * lives as long as the server; the loop's only thread.
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

struct charts;
struct client_call;
struct edge;
struct gpus_call;
struct handoff;
struct loss_line;
struct policy;
struct prove_ask;
struct record;
struct repair;
struct shares;
struct reject_listener;
struct traces_call;
struct unit;
struct window;

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

/* companion.c: a start that its companion ended goes on without it. */
struct server_companion {
    struct server_config plain; /* what `config` is after companion_drop(); owns nothing */
    bool gone, blamed;
};

/* launch.c, launch_unit.c begin it, ended.c takes it away. */
struct server_process {
    struct child child;
    bool adopted;
    bool attached; /* somebody else's: no process of ours */
    enum restart_cause cause;
    uint64_t started_us;
    bool start_killed;  /* at the deadline of its start */
    uint64_t killed_us; /* since when it has not ended though it was killed, 0 = it was not */
    bool stuck;         /* it was said */
    sd_event_source *exit_io;
    struct logtail log;
};

/* server.c: the state's timer. */
struct server_timer {
    sd_event_source *source;
    uint64_t due_us; /* 0 = it is off */
};

/* server.c: whether it answers. */
struct server_probe {
    bool ready;
    uint64_t ready_us, last_us;
    uint32_t misses; /* in a row, when attached */
    struct client_call *call;
    sd_event_source *timer;
};

/* launch.c: where it is reached, and what it says of itself there. */
struct server_address {
    unsigned port;
    char url[160];          /* http://HOST:PORT */
    char where[200];        /* of the metrics page */
    char control_path[108]; /* "" without a control socket; a reload may free the config's */
    char model[200];        /* as the server names it, "" until known */
    char key[KEY_MOST];     /* that its API asks for, "" = none */
    bool asked_key;         /* it refused a request for want of one: said once */
};

/* launch.c binds it, server.c lends it: the listening socket. */
struct server_socket {
    int fd;                          /* -1 = none */
    struct reject_listener *rejects; /* answers there while no server does */
    bool handed, taking;             /* it is with the server; it must be asked for */
    struct handoff *handoff;
};

/* drain.c: what an operator asked for. */
struct server_drain {
    bool resuming;      /* and it has not said that it goes on */
    bool restart_waits; /* a restart, which begins when it is ready */
    char refused[280];  /* why one that was to come later does not, until the next; "" = it may */
    bool telling_edge;  /* drains, but for now only HAProxy knows */
    bool early;         /* it was told before it was ever ready */
    bool unsure;        /* it drains, and whether it knows that is to be asked */
    unsigned tries;     /* that failed to tell it so */
    bool found;         /* adopted, and drained for a reason that is not known */
    char asked_by[WHO_BYTES]; /* for what is under way */
};

/* ended.c: ends and starts so far. */
struct server_ends {
    struct backoff backoff;
    uint64_t restarts[RESTART_CAUSES], exits[CRASH_COUNT];
    uint64_t remedies[CRASH_COUNT][REMEDY_STEPS + 1]; /* by step; the last: there was none left */
    struct ek_oom_window ooms;                        /* of its cgroup */
    uint64_t last_us;                                 /* 0 = none did */
    bool soon;                /* that one had begun right after another ended */
    struct failures failures; /* past.c reads those before */
};

/* repair.c: with what it starts after memory ran out. */
struct server_repair {
    struct trial trial;             /* until the operator restarts it without */
    struct remedy_settings in_file; /* what the file of --config said at the last start */
    struct remedy_settings running; /* what this process was started with */
    struct remedy_settings said;    /* its own word at its start; engines that do not answer it */
    struct repair *ask;             /* NULL = nothing is asked */
};

/* engine_lost.c: the process of its engine. */
struct server_engine_ends {
    struct loss_line *line; /* NULL = it has no engine's process that it could tell of */
    struct engine_losses losses;
    uint64_t exits[CRASH_COUNT];
};

/* life.c: what the evenkeeld before wrote. */
struct server_life {
    struct life was; /* until it is known what runs */
    bool begun;      /* its backoff was taken over */
    bool taken;      /* from here on what is written is of this evenkeeld */
    bool was_ready;  /* adopted, and ready before: it is not ended for a slow answer */
};

/* launch_unit.c */
struct server_unit {
    struct unit *unit; /* NULL = a child of our own */
    enum unit_phase phase;
    bool said, oom; /* that systemd cannot be reached; its cgroup ran out of memory */
    int sig;
    pid_t before; /* the last process before the start */
    uint64_t ended_us;
    uint64_t kills;   /* for memory, that its end may be: its cgroup is gone soon after it */
    char cgroup[256]; /* its directory, "" = not known */
};

/* prestart.c */
struct server_prestart {
    struct gpus_call *asks;
    uint64_t since_us; /* it has waited for memory since; 0 = it does not */
    bool passed;       /* all there: the next launch goes on */
    enum reason said;
    double port_wait_s; /* between the last two looks at a taken port */
    double lack_wait_s; /* between the last two tries that lacked something, until a start */
    char holder[80];    /* of the port, as it was said */
};

/* prove.c */
struct server_prove {
    struct prove_ask *ask;    /* NULL = nothing is asked */
    struct trial before;      /* drain.c: what it ran with, if the answer is no */
    char needs[CHANGES_TEXT]; /* what it needs a restart for, as of the last look; "" = nothing */
};

/* obstacle.c */
struct server_obstacle {
    enum obstacle kind, last;
    bool seen; /* `sum` is of a look at its files */
    uint64_t sum;
    sd_event_source *timer;
    struct traces_call *traces;
    struct gpus_call *gpus;
};

/* record.c's file, by watch.c; action.c opens it anew. */
struct server_record {
    struct record *file; /* NULL = none, or not yet */
    bool failed;
    uint32_t limit[KNOB_COUNT]; /* what a replay takes the limits to be */
    bool write_failed;          /* the next page is the first after this */
    uint64_t ready_us;          /* the next page is the first after this; 0 = it is not */
};

/* watch.c: what is seen of it. */
struct server_watch {
    struct scrape *scrape;
    struct sample sample;
    struct view view;
    struct window *seen; /* for the view: the policy's stands still while it drains */
    struct history *history;
    struct charts *charts; /* NULL = not on disk */
    struct waiting waiting;
    char waiting_why[200]; /* why requests wait now, "" = none do or it is not known */
    struct shares *shares; /* of its keys; NULL until it has two */
    struct hang hang;
    struct client_call *canary;
    bool hang_killed;
    bool reading;       /* the canary has a form, since one is being read for too long */
    uint64_t halted_us; /* first seen stopped by a signal */
    uint64_t hangs, scrapes[SCRAPE_RESULTS];
    struct ek_hist scrape_took;
};

/* watch.c steps the policy, action.c does what it says. */
struct server_law {
    struct policy *policy;      /* NULL until the limits are known for the first time */
    struct decision waits;      /* what the policy waits for; not in `decisions` */
    struct decisions decisions; /* by server_note() and past.c */
};

/* memory_line.c */
struct server_memory {
    struct memory_figures now;
    struct {
        pid_t pid; /* of an attached server; 0 = not known, or not on this machine */
        unsigned long long start;
    } theirs;
};

/* leaks.c */
struct server_leaks {
    struct leak host, device[GPUS_MOST];
    struct leak engine; /* host memory of its engine's process */
    bool in_engine;     /* what a restart was asked for grows there */
    double left_s;     /* until memory runs out, by the trend that leaves least; NAN = none grows */
    uint64_t asked_us; /* for a restart, last; 0 = not yet */
    bool acted;        /* in a mode that acts */
};

/* upkeep.c: memory that wears out. */
struct server_upkeep {
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
};

/* action.c: by what its limits change. */
struct server_act {
    struct edge *edge;       /* NULL = none */
    uint32_t edge_seqs;      /* maxconn that the law wants there; 0 = none yet */
    struct control *control; /* NULL without a control socket */
    struct control_limits limits;
    bool limits_known, restored, writing;
    struct decision pending;
    uint32_t write_failures;
    uint64_t limits_us;           /* when they were last asked for */
    struct operation *operations; /* of operators who wait for the server's word */
};

/* ramp.c; due by action.c */
struct server_ramp {
    bool due;        /* this start is the end of a restart by plan */
    uint32_t target; /* 0 = none is under way */
    uint32_t at;     /* what was written last */
    uint32_t kept;   /* the target of one that the evenkeeld before began; 0 = none */
    uint64_t next_us;
    double preemptions;
};

/* past.c: what evenkeelds before this one left */
struct server_past {
    pid_t pid; /* of a process that may have ended since; 0 = none */
    uint64_t start, restarts, since_us;
    uint64_t unwatched_us; /* since when it was not watched; 0 = not known */
    uint64_t boot;
};

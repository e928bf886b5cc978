/*
 * The states of a server's life, what is written of them, and how another evenkeeld goes on from
 * each: after the one before was killed, was replaced by a newer one, or the machine booted.
 *
 * What is written (struct life) is true at every moment: io/state.h keeps it, and the loop writes
 * it after each turn in which it changed (servers/life.c). Its times are CLOCK_MONOTONIC of the
 * boot that it names, so a wall clock that jumps changes nothing, and a boot makes them worthless.
 * A process is known again by its pid and that boot; it was checked to be the same before (its
 * control socket, its pid file with its start time, its unit). Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum server_state {
    SRV_STOPPED,
    SRV_ADOPTING, /* asking whether one is running already */
    SRV_STARTING,
    SRV_READY,
    SRV_DRAINING,
    SRV_DRAINED,  /* runs, serves nothing */
    SRV_STOPPING, /* signalled */
    SRV_BACKOFF,
    SRV_BREAKER,
    SERVER_STATES
};

enum server_want { WANT_RUN, WANT_DRAINED, WANT_RESTART, WANT_STOP, SERVER_WANTS };

#define LIFE_ANSWER_S 5.0 /* what an adopted process has at least to answer */

struct life {
    uint64_t boot; /* of which machine's start, see boot_id(); 0 = nothing was written */
    enum server_state state;
    enum server_want want;
    int32_t pid;           /* 0 = no process */
    uint64_t until_us;     /* deadline of DRAINING and STOPPING; 0 = none */
    uint32_t ramp;         /* what its sequences rise to after a restart by plan; 0 = no ramp */
    bool planned;          /* the restart under way is by plan */
    bool asked;            /* an operator's restart that waits for its turn */
    bool waits;            /* an operator's restart that waits until it is ready */
    bool found;            /* it drains, and the reason is not known: until resume */
    bool loosened;         /* its next start has expandable segments by plan, and none was ready */
    char planned_name[24]; /* the reason's name, when planned */
};

/* What the next evenkeeld finds. */
struct life_found {
    uint64_t boot, now_us;
    int32_t pid;  /* of the process that runs; 0 = none does */
    double age_s; /* of that process */
    double start_deadline_s, drain_most_s, hang_s;
};

enum life_step {
    LIFE_START,    /* nothing runs: start one */
    LIFE_ASK,      /* STARTING: left_s to become ready, then it is ended */
    LIFE_ASK_LONG, /* it was ready: left_s to answer, then it is watched for a hang, not ended */
    LIFE_DRAIN,    /* DRAINING: tell it again how long it has, left_s; < 0 = until resume */
    LIFE_END,      /* STOPPING: was signalled; left_s until it is signalled again */
    LIFE_REST,     /* STOPPED: an operator drained it, and it has ended since */
    LIFE_STEPS
};

struct life_next {
    enum life_step step;
    enum server_state state;
    enum server_want want;
    double left_s;
    bool known; /* what was written is about this process, or about the one that is gone */
};

struct life_next life_go_on(const struct life *was, const struct life_found *found);

bool life_equal(const struct life *a, const struct life *b);
const char *life_state_name(enum server_state st); /* "breaker_open"; "" when there is none */
const char *life_want_name(enum server_want w);
/* SERVER_STATES or SERVER_WANTS for a text that is none. */
enum server_state life_state_parse(const char *text);
enum server_want life_want_parse(const char *text);

/*
 * What outlives evenkeeld: per server the last limits and pins, what running out of memory taught,
 * the planned restarts of the last days, where in its life it is (life.h) with backoff and breaker;
 * in state_dir/state.json, with a version and a checksum, written whole to a temporary file, synced
 * and renamed. Limits older than a day are not used again: the load that taught them is gone. A
 * file that cannot be read, or is of a newer version, is put aside as state.json.bad and evenkeeld
 * starts from defaults.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/law/backoff.h"
#include "supervisor/law/life.h"
#include "supervisor/law/planned.h"
#include "supervisor/law/policy.h"
#include "supervisor/law/remedy.h"

#define STATE_KEEP_S 86400u

struct state_server {
    char name[33];
    uint32_t value[KNOB_COUNT]; /* 0 = none */
    bool pinned[KNOB_COUNT];
    uint64_t wall_us; /* when it was taken */
    struct remedy_memory remedy;
    struct planned_log planned;
    struct life life;
    struct backoff backoff; /* its times are of life.boot */
};

struct state {
    struct state_server *at;
    uint32_t count;
    uint64_t lost_us; /* what was kept could not be read then (wall); 0 = it could */
    bool unsaved;     /* the last write failed */
};

/* dir need not exist. 0 also when there is no file; -EBADMSG when it was put aside; -ENOMEM. */
int state_load(const char *dir, struct state *ret_state);
/* The same without touching anything: -EBADMSG when it cannot be understood. */
int state_peek(const char *dir, struct state *ret_state);
int state_save(const char *dir, struct state *s);
void state_free(struct state *s);
/* The row of a server, NULL when nothing is known of it. For reading: nothing moves. */
const struct state_server *state_find(const struct state *s, const char *name);
/* The row of a server, made if absent; NULL when out of memory. */
struct state_server *state_of(struct state *s, const char *name);
/* For state.c and its test. */
int state_parse(const char *json, size_t len, struct state *ret_state);

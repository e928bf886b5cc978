/*
 * The verbs of a server's control socket: read and write its live limits, drain, resume. A write
 * says who wants it and why, carries the generation it was based on, and is read back; only what
 * reads back as asked counts as done. Every call has one deadline and one callback.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/law/policy.h"

struct client;
struct control;

#define CONTROL_DEADLINE_MS 2000u
/* A server first looks, for 5 s at most, at what the next engine would begin with. */
#define CONTROL_ENGINE_MS 8000u
#define CONTROL_TEXT      640 /* a server's sentence may name a path */

struct control_limits {
    uint64_t generation;
    struct {
        bool known;
        uint32_t value, ceiling, floor; /* 0 = not said */
    } knob[KNOB_COUNT];
    bool has_deadline;
    double deadline_s, deadline_start_s; /* of the queue; 0 = none */
    double reserve, reserve_start;       /* watermark: share of blocks free after an admission */
};

struct control_change {
    uint32_t value[KNOB_COUNT]; /* 0 = leave as it is */
    bool set_deadline;
    double deadline_s; /* of the queue; 0 = none */
    bool set_reserve;
    double reserve;
    bool set_cached;
    double cached_share; /* most of the pool that unused prefixes may keep */
    uint64_t generation; /* 0 = whatever it is now */
    const char *origin;  /* "evenkeeld", "operator" */
    const char *reason;
};

struct control_result {
    int error; /* 0; EK_ESTALE; -EBADMSG refused, -EBUSY refused for now (text says why); -EIO not
                  read back as asked; else as in client.h */
    struct control_limits limits; /* with error 0 */
    char text[CONTROL_TEXT];
};

typedef void (*control_fn)(void *ctx, const struct control_result *res);

/* path is copied. */
int control_new(struct client *client, const char *path, struct control **ret_control);
/* Cancels what is under way, without callbacks. */
void control_free(struct control *c);

int control_read(struct control *c, control_fn cb, void *ctx);
int control_write(struct control *c, const struct control_change *change, control_fn cb, void *ctx);
/* leave: end the process once nothing runs. hold: new connections wait instead of being refused. */
int control_drain(struct control *c, double deadline_s, bool hold, bool leave, control_fn cb,
                  void *ctx);
/* Gives back memory that is not needed: unused prefixes, then what the allocators hold. */
int control_trim(struct control *c, control_fn cb, void *ctx);
int control_resume(struct control *c, control_fn cb, void *ctx);
/* Of its engine's process: "restart", "release" or "acquire". It answers before that is done. */
int control_engine(struct control *c, const char *word, control_fn cb, void *ctx);

/* Reads the answer of /v1/runtime_config. 0, or -EBADMSG. For control.c and its test. */
int control_parse(const char *json, size_t len, struct control_limits *ret_limits);

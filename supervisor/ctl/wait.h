/*
 * `--wait`: until a drain, resume or restart is done, or an order to the engine's process. What is
 * done is judged from two readings of a server, which is pure; the rest asks and shows.
 */
#pragma once

#include <jansson.h>

#include "supervisor/ctl/args.h"

struct api;

enum wait_state { WAIT_ON, WAIT_DONE, WAIT_FAILED };

struct wait {
    enum ctl_command command;
    json_int_t pid;     /* before; a restart makes another one */
    bool drained;       /* it was seen on its way */
    bool down;          /* it was given up before; that it is to start shows a moment later */
    uint32_t looks;     /* since, while it still was */
    json_int_t planned; /* times that its engine's process was started again, before */
};

/* before: the server as it was when it was asked. */
void wait_begin(struct wait *w, enum ctl_command command, const json_t *before);
/* now: the server. why: a sentence when it failed. */
enum wait_state wait_look(struct wait *w, const json_t *now, const char **ret_why);

/* Asks again and again. An exit code. */
int wait_for(struct api *a, const struct ctl_args *args, const char *name, struct wait *w);

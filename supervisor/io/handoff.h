/*
 * Hands a listening socket to a server over its control socket, or asks for it back, without
 * blocking the loop: the non-blocking side of the protocol in common/fdpass.h. One exchange is one
 * connection. Also tells which process answers (SO_PEERCRED), by which a new evenkeeld finds the
 * process of a server that an earlier one started.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

struct handoff;

enum handoff_verb { HANDOFF_PUT, HANDOFF_GET };

struct handoff_result {
    int error; /* 0, -ECONNREFUSED/-ENOENT no process listens, -ETIMEDOUT, -EPROTO refused, -EIO,
                * -EMFILE we had no descriptor free for it */
    int fd;    /* of a get: owned by the callback; else -1 */
    pid_t
        peer; /* the process that listens there, as the kernel says; 0: of another pid namespace */
    uid_t peer_uid; /* its effective user when it began to listen */
    char text[120]; /* what the server said when it refused */
};

typedef void (*handoff_fn)(void *ctx, const struct handoff_result *res);

struct handoff_ask {
    const char *path; /* of the control socket */
    enum handoff_verb verb;
    const char *name; /* "listen" */
    int fd;           /* of a put; stays the caller's */
    uint32_t timeout_ms;
};

/* 0: cb is called once from the loop, unless cancelled. A negative errno: nothing was begun
 * (-ENOENT and -ECONNREFUSED: no process listens at path). */
int handoff_start(sd_event *event, const struct handoff_ask *ask, handoff_fn cb, void *ctx,
                  struct handoff **ret_handoff);
void handoff_cancel(struct handoff *h);

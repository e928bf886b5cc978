/*
 * A TCP connection between two nodes: frames on it, or on a connection for data plain floats.
 * Sockets do not block; whoever waits gives a deadline and gets -ETIMEDOUT, or -ECONNRESET when the
 * other side has closed. A frame may be sent by any thread, frames are received by one.
 *
 * Time in which this process was stopped as a whole (a debugger, a suspended machine) does not
 * count against the other side.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "kernels/nodes/frame.h"

struct ek_fault;

struct ek_link {
    int fd; /* -1: none */
    uint64_t run;
    pthread_mutex_t lock; /* of sends */
    char peer[96];        /* "node 1 (name)" once it is known, before that the address */
    uint64_t until_us; /* what has not moved by then is too late, however it trickled; 0 = none */
};

/* Takes over a connected socket. */
void ek_link_init(struct ek_link *l, int fd, const char *peer);
void ek_link_done(struct ek_link *l); /* an unused one (zeroed, with fd -1) is fine */
/* Nobody waits on it any more; by any thread. */
void ek_link_cut(struct ek_link *l);

/* 0 timeout: for ever. */
int ek_link_send(struct ek_link *l, enum ek_frame_kind kind, const void *body, size_t bytes,
                 uint64_t timeout_us);
/* The next frame, checked; its body in a buffer that grows as needed. -EBADMSG with a fault when it
 * is none of ours, or larger than `most`. */
struct ek_inbox {
    void *data;
    size_t room, most; /* most: of a body, 0 = EK_FRAME_MOST */
};
int ek_link_recv(struct ek_link *l, struct ek_inbox *in, struct ek_frame *ret_frame,
                 uint64_t timeout_us, struct ek_fault *fault);
int ek_inbox_room(struct ek_inbox *in, size_t bytes); /* -ENOMEM */
void ek_inbox_done(struct ek_inbox *in);

/* Moves all bytes of `out` and `in` at the same time. Both lists are used up on the way. */
struct ek_transfer {
    struct iovec *out, *in;
    uint32_t outs, ins;
    uint32_t spins; /* tries before it sleeps, where an answer is about to come */
};
int ek_link_move(struct ek_link *l, struct ek_transfer *t, uint64_t timeout_us);
/* The same on several connections at once; which of them failed. At most EK_NODES_MOST. */
int ek_links_move(struct ek_link *const *l, struct ek_transfer *t, uint32_t count,
                  uint64_t timeout_us, uint32_t *ret_which);
/* Whether something has come that was not received. */
bool ek_link_waiting(const struct ek_link *l);

/* A connection to host:port, tried once; the descriptor or a negative errno. */
int ek_link_connect(const char *host, uint16_t port, uint64_t timeout_us);
/* The address of the other side as text, its host alone, and that of this side. */
void ek_link_address(int fd, char *ret_text, size_t size);
void ek_link_host(int fd, char *ret_text, size_t size);
void ek_link_own_host(int fd, char *ret_text, size_t size);

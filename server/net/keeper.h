/*
 * Who else keeps the listening socket: the evenkeeld that gave or took it last over the control
 * socket. While one lives, connections that wait in the socket are answered by the next server, so
 * this one may leave; when none does (it was killed, or is being replaced), its end would reset
 * them. Called by the control thread and main's, under the lock of struct http.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct keeper {
    bool known; /* a process has it */
    pid_t pid;  /* 0 = of another pid namespace: it is taken to live */
    int fd;     /* pidfd; -1 where none could be had, then the number has to do */
};

void keeper_init(struct keeper *k);
/* sock: the connection over which it was exchanged. */
void keeper_set(struct keeper *k, int sock);
bool keeper_lives(const struct keeper *k);
void keeper_done(struct keeper *k);

/*
 * Whose evenkeeld it is that started this server, where that is another user: its unit has a user
 * of its own (evenkeel-managed@), and evenkeeld says its own in the environment. That user may then
 * use the control socket, and read the flight recorder. Read by listening.c and start.c.
 */
#pragma once

#include <sys/types.h>

/* As peers of a socket show it here, or (uid_t)-1: none but root and the own user. */
uid_t controller_uid(void);
/* The number by which user `uid` is seen where `map` is the content of /proc/self/uid_map: its own,
 * or `overflow` where the user namespace has none for it (PrivateUsers=). Those then look alike,
 * and it is the closed directory that keeps others from the socket. */
uid_t controller_seen(uid_t uid, const char *map, uid_t overflow);

/* The sockets of a process: HTTP's threads, and the listening socket where it is not handed over.
 */
#pragma once

#include "server/instance.h"

/* Returns how many sockets the API may have, 0 = as many as it likes; before others are opened. */
uint32_t listening_files(const struct options *o);
/* Makes s->http, and listens where the socket is ours or systemd's. Negative with a fault. */
int listening_open(struct instance *s, struct ek_fault *f);
/* Listens on a socket that was handed over. Negative with a fault. */
int listening_with(struct instance *s, int fd, struct ek_fault *f);
/* The address that is listened on, NULL = all. */
const char *listening_host(const struct instance *s);

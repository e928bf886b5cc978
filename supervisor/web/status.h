/*
 * evenkeeld's own HTTP: the status page, the API and /metrics on a TCP address (reading only) and
 * on a Unix socket (writing too, for root and for the user evenkeeld runs as, by peer credentials).
 *
 * libmicrohttpd without threads: its epoll descriptor is a source of the loop. A request that waits
 * for a server's answer is suspended meanwhile.
 */
#pragma once

#include <systemd/sd-event.h>

struct fleet;
struct status;

/* Both descriptors are listening sockets, -1 = none; owned from here on, also on failure. */
int status_new(const struct fleet *all, sd_event *event, int tcp_fd, int unix_fd,
               struct status **ret_status);
void status_free(struct status *st);

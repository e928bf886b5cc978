/*
 * The listening socket while no process has it: as long as a server's breaker is open, or what an
 * operator drained has ended, evenkeeld itself takes what arrives at the kept listening socket and
 * answers 503 with Retry-After, instead of letting clients wait for half an hour. Each connection
 * gets a moment to send its request, so that the answer is not lost to a reset. Owned by the loop's
 * thread.
 */
#pragma once

#include <stdint.h>
#include <systemd/sd-event.h>

struct reject_listener;

/* listen_fd stays the caller's, and is not accepted on any more after reject_listener_free().
 * retry_s and why (a sentence of at most 120 letters, with nothing that JSON would quote) is what
 * clients are told. 0 or a negative code. */
int reject_listener_new(sd_event *event, int listen_fd, uint32_t retry_s, const char *why,
                        struct reject_listener **ret_listener);
void reject_listener_free(struct reject_listener *s); /* NULL is fine; what is open is closed */

/* How evenkeeld ends: with its servers, or for the next evenkeeld. The loop's thread only. */
#pragma once

#include <sys/signalfd.h>
#include <systemd/sd-event.h>

struct fleet;

/* Ends the event loop when no server's process is left. */
void ending_if_stopped(const struct fleet *f);
/* SIGTERM, SIGINT. ctx is the loop; returns a negative errno only where sd-event fails. */
int ending_on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx);
/* SIGUSR1: the next evenkeeld takes over at once, since systemd starts it for this exit code. */
int ending_on_hand_over(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx);

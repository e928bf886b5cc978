/*
 * The two ways in which evenkeeld ends. SIGTERM and SIGINT drain all servers and end when the last
 * has stopped, or at once without them (on_stop, leave_servers); told again, the servers are ended
 * without a drain. SIGUSR1 ends it for the next evenkeeld with the servers running, as soon as each
 * has its listening socket: one that is only just being started could not be adopted. Called by
 * loop.c.
 */
#include "supervisor/ending.h"

#include <signal.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/daemon.h"

#define LEAVE_LOOK_US 10000u
#define LEAVE_MOST_US 150000000u /* an end that takes longer is not waited for */

void ending_if_stopped(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->servers[i]->process.child.pid > 0)
            return;
    }
    (void)sd_event_exit(f->with.event, 0);
}

/* The time by which every server should have its listening socket, 0 = now. One that has just been
 * started, or is about to be, does not have it yet. */
static uint64_t gives_socket_by(const struct fleet *f, uint64_t since, uint64_t now)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t by = server_gives_socket_by(f->servers[i], since, now);
        last = by > last ? by : last;
    }
    return last;
}

static int on_leave(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct loop *l = ctx;
    uint64_t now = ek_now_us();
    (void)usec;
    if (l->ending) /* it was told to end meanwhile, with its servers or without them */
        return 0;
    if (now < gives_socket_by(&l->fleet, l->leave_us, now) && now < l->leave_us + LEAVE_MOST_US) {
        (void)sd_event_source_set_time(source, now + LEAVE_LOOK_US);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    }
    l->ending = true;
    ek_log(EK_LOG_NOTICE, "ending for the next evenkeeld; the servers go on");
    return sd_event_exit(l->fleet.with.event, EK_EXIT_RESTART);
}

int ending_on_hand_over(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx)
{
    struct loop *l = ctx;
    (void)s;
    (void)si;
    if (l->ending || l->leave_us)
        return 0;
    uint64_t now = ek_now_us(), by = gives_socket_by(&l->fleet, now, now);
    l->leave_us = now;
    if (by > now)
        ek_log(EK_LOG_NOTICE,
               "a server is being started that does not have its listening socket yet; ending for "
               "the next evenkeeld when it has, in %.0f s at most",
               (double)LEAVE_MOST_US / 1e6);
    return sd_event_add_time(l->fleet.with.event, NULL, CLOCK_MONOTONIC, now, 1000, on_leave, l);
}

int ending_on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx)
{
    struct loop *l = ctx;
    (void)s;
    bool leave = l->fleet.config->leave_servers || strcmp(l->fleet.config->on_stop, "leave") == 0;
    if (l->ending) {
        ek_log(EK_LOG_WARNING, "told again to end: the servers are ended without a drain");
        for (uint32_t i = 0; i < l->fleet.count; i++)
            (void)child_signal(&l->fleet.servers[i]->process.child, SIGTERM); /* gone is as good */
        return 0;
    }
    l->ending = true;
    (void)sd_notify(0, "STOPPING=1");
    ek_log(EK_LOG_INFO, "signal %u: %s", si->ssi_signo,
           leave ? "ending; the servers go on" : "draining the servers, then ending");
    if (leave)
        return sd_event_exit(l->fleet.with.event, 0);
    for (uint32_t i = 0; i < l->fleet.count; i++)
        server_stop(l->fleet.servers[i]);
    ending_if_stopped(&l->fleet);
    return 0;
}

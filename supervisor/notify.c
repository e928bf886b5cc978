/*
 * What systemd hears of evenkeeld: READY, one line of status, and the listening sockets that it
 * keeps while no evenkeeld runs. Called by loop.c. Without systemd all of it does nothing.
 */
#include "supervisor/notify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/daemon.h"

#define EXTEND_S 60

void notify_keep_fd(void *ctx, const char *server, int fd)
{
    char text[96];
    (void)ctx;
    if (fd < 0) {
        (void)sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=" LOOP_FD_PREFIX "%s", server);
        return;
    }
    (void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=" LOOP_FD_PREFIX "%s", server);
    int r = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "%s: systemd did not keep the listening socket: %s", server,
               ek_strerror(r));
}

void notify_take_kept_fds(const struct fleet *f)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;
        bool ours = strncmp(names[i], LOOP_FD_PREFIX, strlen(LOOP_FD_PREFIX)) == 0;
        struct server *s = ours ? fleet_find(f, names[i] + strlen(LOOP_FD_PREFIX)) : NULL;
        if (s) {
            server_give_fd(s, fd);
            if (s->socket.fd != fd)
                notify_keep_fd(NULL, s->config->name,
                               -1); /* systemd would listen there for ever; */
            if (s->socket.fd >= 0)
                notify_keep_fd(NULL, s->config->name, s->socket.fd); /* all of that name are gone */
        } else {
            ek_log(EK_LOG_INFO, "systemd kept a socket '%s' that no server here wants", names[i]);
            close(fd);
        }
        free(names[i]);
    }
    free(names);
}

static bool tried(const struct server *s)
{
    uint64_t ends = 0;
    for (int i = 0; i < CRASH_COUNT; i++)
        ends += s->ends.exits[i];
    return ends > 0 || (s->state != SRV_ADOPTING && s->state != SRV_STARTING);
}

/* Ready is when each server answers, or was tried and failed: that is for its own state to tell. */
static bool all_tried(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        if (!tried(f->servers[i]))
            return false;
    }
    return true;
}

/* What systemd is told of a server that is not ready: why it ended, if that is among its last four
 * decisions, else the last one. */
static const char *last_word(const struct server *s, uint64_t since_us)
{
    const struct decision *d = NULL;
    for (uint32_t i = 0; i < 4 && (d = decisions_at(&s->law.decisions, i)); i++) {
        if (d->reason == REASON_CRASH && d->wall_us >= since_us)
            return d->why;
    }
    d = decisions_at(&s->law.decisions, 0);
    return d ? d->why : "";
}

void notify_status(struct loop *l)
{
    const struct server *bad = NULL;
    uint32_t ready = 0;
    char text[sizeof(l->said)];
    for (uint32_t i = 0; i < l->fleet.count; i++) {
        ready += l->fleet.servers[i]->probe.ready;
        if (!l->fleet.servers[i]->probe.ready && !bad)
            bad = l->fleet.servers[i];
    }
    const char *why = bad ? last_word(bad, l->fleet.started_wall_us) : "";
    if (l->fleet.count == 0)
        (void)snprintf(text, sizeof(text), "No server is configured; evenkeelctl status says how");
    else if (!bad || l->ending)
        (void)snprintf(text, sizeof(text), "%u of %u servers ready%s", ready, l->fleet.count,
                       l->ending ? ", ending" : "");
    else
        (void)snprintf(text, sizeof(text), "%u of %u servers ready; %s is %s: %.200s", ready,
                       l->fleet.count, bad->config->name, server_state_name(bad->state), why);
    if (strcmp(text, l->said) == 0)
        return;
    memcpy(l->said, text, sizeof(text));
    (void)sd_notifyf(0, "STATUS=%s", text);
}

void notify_ready(struct loop *l)
{
    if (l->said_ready || l->ending)
        return;
    if (all_tried(&l->fleet)) {
        l->said_ready = true;
        (void)sd_notify(0, "READY=1");
    } else {
        (void)sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu", EXTEND_S * (unsigned long long)EK_US_PER_S);
    }
}

/*
 * Before a start: its port is free, and the memory of host and devices that it will take. What the
 * process before held may be given back a moment after its end; a start into that would only run
 * out of memory and be blamed on its settings. So it waits, says for what, and after memory_wait_s
 * counts as failed, which is what backoff and breaker are for.
 *
 * A port that another process has costs nothing to look at and is no fault of the server: it is
 * waited for without an end, backoff or breaker, by looks that are at most PORT_MOST_S apart. So is
 * what evenkeeld itself lacks for a moment to start anything: descriptors, memory, processes.
 *
 * Without NVML devices are not looked at. Whether the plan of an evenkeel-server fits it checks
 * itself before it allocates (exit status 75).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/gpus.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/servers/server_inside.h"

#define LOOK_S       2.0
#define NVML_MS      5000u
#define PORT_FIRST_S 0.5
#define PORT_MOST_S  5.0 /* docs/faults.md: serves within 10 s after it is free */

void prestart_stop(struct server *s)
{
    gpus_cancel(s->prestart.asks);
    s->prestart.asks = NULL;
    s->prestart.passed = false;
    s->prestart.since_us = 0;
    s->prestart.said = REASON_NONE;
    s->prestart.port_wait_s = 0;
    s->prestart.holder[0] = '\0';
}

/* Arms the next look; *wait_s is the time to the last one, 0 before the first, which is counted. */
static bool wait_again(struct server *s, double *wait_s, enum crash_class cls, const char *what)
{
    bool first = *wait_s <= 0;
    double next_s = first ? PORT_FIRST_S : *wait_s * 2;
    *wait_s = next_s < PORT_MOST_S ? next_s : PORT_MOST_S;
    if (first)
        server_start_waits(s, cls, what);
    s->state = SRV_BACKOFF; /* its timer launches */
    server_arm(s, *wait_s);
    return first;
}

void prestart_wait_port(struct server *s, int error)
{
    const struct server_config *c = s->config;
    unsigned port = s->address.port ? s->address.port : (unsigned)c->port;
    char who[sizeof(s->prestart.holder)] = "nobody", what[200];
    if (error == -EADDRNOTAVAIL)
        (void)snprintf(what, sizeof(what), "the address %.60s is none of this machine now",
                       c->host);
    else if (port_owner_is_none(c->host, port, who, sizeof(who)))
        (void)snprintf(what, sizeof(what), "port %u of %.40s was taken a moment ago", port,
                       c->host);
    else if (port_owner_pid(c->host, port) == getpid())
        (void)snprintf(what, sizeof(what),
                       "port %u of %.40s is kept by this evenkeeld for a server that ends", port,
                       c->host);
    else
        (void)snprintf(what, sizeof(what), "port %u of %.40s is taken by %s", port, c->host, who);
    bool first = wait_again(s, &s->prestart.port_wait_s, CRASH_PORT, what);
    if (first || strcmp(who, s->prestart.holder) != 0)
        server_note(s, ACT_NOTE, REASON_PORT_WAIT,
                    "The start waits: %.120s; it is tried again until it is free, at least every "
                    "%.0f s",
                    what, PORT_MOST_S);
    memcpy(s->prestart.holder, who, sizeof(who));
    s->prestart.said = REASON_PORT_WAIT;
}

bool prestart_wait_lack(struct server *s, const char *for_what, int error)
{
    char what[260];
    if (!ek_error_is_shortage(error) && error != -EAGAIN)
        return false;
    (void)snprintf(what, sizeof(what), "evenkeeld %s: %s", for_what, ek_strerror(error));
    if (wait_again(s, &s->prestart.lack_wait_s, CRASH_UNKNOWN, what))
        server_note(s, ACT_NOTE, REASON_HOST_WAIT,
                    "The start waits: %s; it is tried again at least every %.0f s", what,
                    PORT_MOST_S);
    return true;
}

/* Says it once, and looks again; or gives up. */
static void wait_for(struct server *s, enum reason reason, const char *why)
{
    uint64_t now = ek_now_us();
    char what[260];
    if (!s->prestart.since_us)
        s->prestart.since_us = now;
    double waited_s = (double)(now - s->prestart.since_us) / 1e6;
    if (waited_s >= s->config->memory_wait_s) {
        prestart_stop(s);
        (void)snprintf(what, sizeof(what), "%s after %.0f s of waiting: %.180s",
                       reason_name(reason), waited_s, why);
        server_start_failed(s, reason == REASON_GPU_WAIT ? CRASH_DEVICE : CRASH_HOST_OOM, true,
                            what, 0);
        return;
    }
    if (s->prestart.said != reason)
        server_note(s, ACT_NOTE, reason, "The start waits up to %.0f s: %.150s",
                    s->config->memory_wait_s, why);
    s->prestart.said = reason;
    s->state = SRV_BACKOFF; /* its timer launches */
    server_arm(s, LOOK_S);
}

static bool is_host_fit(struct server *s)
{
    char why[120];
    uint64_t need = s->config->host_memory_least, left = need ? port_owner_memory_bytes() : 0;
    if (!need || left == 0 || left >= need)
        return true;
    (void)snprintf(why, sizeof(why), "%.1f GiB of host memory are free, less than the %.1f needed",
                   (double)left / 1073741824.0, (double)need / 1073741824.0);
    wait_for(s, REASON_HOST_WAIT, why);
    return false;
}

static void on_gpus(void *ctx, const struct gpus *g)
{
    struct server *s = ctx;
    char why[200];
    double share =
        s->repair.running.share > 0 ? s->repair.running.share : s->config->dialect->share_default;
    s->prestart.asks = NULL;
    if (g->error == -ENOENT) {
        ek_log(EK_LOG_INFO, "%s: %s: its devices are not looked at", s->config->name, g->text);
    } else if (g->error < 0) {
        wait_for(s, REASON_GPU_WAIT, g->text);
        return;
    } else if (!gpus_are_free(g, s->config->device_set, share, why, sizeof(why))) {
        wait_for(s, REASON_GPU_WAIT, why);
        return;
    }
    s->prestart.passed = true;
    server_launch(s);
}

bool prestart_check(struct server *s)
{
    const struct server_config *c = s->config;
    char who[80];
    if (s->prestart.passed) {
        prestart_stop(s);
        return true;
    }
    if (s->prestart.asks)
        return false; /* the answer launches */
    if (!c->dialect->control_socket &&
        !port_owner_is_none(c->host, s->address.port, who, sizeof(who))) {
        prestart_wait_port(s, -EADDRINUSE);
        return false;
    }
    if (!is_host_fit(s))
        return false;
    if (c->device_set && launch_note_words(s) == 0 &&
        gpus_ask(s->with->event, NVML_MS, on_gpus, s, &s->prestart.asks) == 0) {
        s->state = SRV_BACKOFF;
        server_arm(s, -1);
        return false;
    }
    prestart_stop(s);
    return true;
}

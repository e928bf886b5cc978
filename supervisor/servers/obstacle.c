/*
 * What keeps a server from starting and may vanish without a word to evenkeeld: files of a mount
 * that is missing, memory of the host or of devices that somebody else has, a port that the engine
 * found taken. While a start that failed for one of them waits, in BACKOFF or with the breaker
 * open, this looks whether it is gone, and then starts at once instead of when the wait is over.
 *
 * Of files it is only seen that they changed since the first look: whether that helps the start
 * tells. Each look costs little, and none of them blocks.
 */
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/gpus.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/io/traces.h"
#include "supervisor/servers/server_inside.h"

#define LOOK_S  2.0
#define NVML_MS 5000u

enum obstacle obstacle_of(const struct crash_verdict *v)
{
    switch (v->cls) {
    case CRASH_PORT: return OBSTACLE_PORT;
    case CRASH_CONFIG: return OBSTACLE_FILES;
    case CRASH_HOST_OOM: return v->vanishes ? OBSTACLE_MEMORY : OBSTACLE_NONE;
    case CRASH_DEVICE: return v->vanishes ? OBSTACLE_DEVICES : OBSTACLE_NONE;
    case CRASH_CLEAN_EXIT:
    case CRASH_STARTUP_OOM:
    case CRASH_BURST_OOM:
    case CRASH_FRAG_OOM:
    case CRASH_DISK:
    case CRASH_HANG_KILLED:
    case CRASH_LOOP:
    case CRASH_COMM:
    case CRASH_SIGNAL:
    case CRASH_UNKNOWN:
    case CRASH_COUNT: break;
    }
    return OBSTACLE_NONE;
}

static void obstacle_arm(struct server *s)
{
    (void)sd_event_source_set_time(s->obstacle.timer, ek_now_us() + (uint64_t)(LOOK_S * 1e6));
    (void)sd_event_source_set_enabled(s->obstacle.timer, SD_EVENT_ONESHOT);
}

static void gone(struct server *s, const char *what)
{
    obstacle_stop(s);
    if (s->state != SRV_BACKOFF && s->state != SRV_BREAKER)
        return;
    server_note(s, ACT_RESTART, REASON_BACKOFF, "%s: starting now", what);
    server_launch(s);
}

static void on_traces(void *ctx, uint64_t sum)
{
    struct server *s = ctx;
    s->obstacle.traces = NULL;
    bool changed = s->obstacle.seen && sum != s->obstacle.sum;
    s->obstacle.seen = true;
    s->obstacle.sum = sum;
    if (changed)
        gone(s, "Its files have changed since the last start");
    else
        obstacle_arm(s);
}

static void on_gpus(void *ctx, const struct gpus *g)
{
    struct server *s = ctx;
    char why[200];
    double share =
        s->repair.running.share > 0 ? s->repair.running.share : s->config->dialect->share_default;
    s->obstacle.gpus = NULL;
    if (g->error == 0 && gpus_are_free(g, s->config->device_set, share, why, sizeof(why)))
        gone(s, "The memory of its devices is free");
    else
        obstacle_arm(s);
}

static int obstacle_on_timer(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct server *s = ctx;
    const struct server_config *c = s->config;
    char who[80],
        own[sizeof(s->address.control_path)]; /* where its control socket comes and goes */
    int r = 0;
    memcpy(own, s->address.control_path, sizeof(own));
    own[strrchr(own, '/') ? strrchr(own, '/') - own : 0] = '\0';
    (void)source;
    (void)usec;
    switch (s->obstacle.kind) {
    case OBSTACLE_NONE: return 0;
    case OBSTACLE_PORT:
        if (c->dialect->control_socket ||
            port_owner_is_none(c->host, s->address.port, who, sizeof(who)))
            gone(s, "Its port is free");
        else
            obstacle_arm(s);
        return 0;
    case OBSTACLE_MEMORY:
        if (port_owner_memory_bytes() >= c->host_memory_least)
            gone(s, "There is host memory");
        else
            obstacle_arm(s);
        return 0;
    case OBSTACLE_DEVICES:
        r = gpus_ask(s->with->event, NVML_MS, on_gpus, s, &s->obstacle.gpus);
        break;
    case OBSTACLE_FILES:
        r = traces_ask(s->with->event, c->argv, own, on_traces, s, &s->obstacle.traces);
        break;
    }
    if (r < 0)
        obstacle_arm(s);
    return 0;
}

void obstacle_watch(struct server *s, enum obstacle kind)
{
    bool again = kind == OBSTACLE_FILES && s->obstacle.last == kind;
    obstacle_stop(s);
    s->obstacle.kind = s->obstacle.last = kind;
    s->obstacle.seen = again && s->obstacle.seen; /* what changed while it failed counts too */
    if (kind == OBSTACLE_NONE || s->process.attached || !s->config->argv)
        return;
    if (!s->obstacle.timer && sd_event_add_time(s->with->event, &s->obstacle.timer, CLOCK_MONOTONIC,
                                                0, 100000, obstacle_on_timer, s) < 0)
        return; /* out of memory: the wait alone */
    if (kind == OBSTACLE_FILES && !s->obstacle.seen)
        (void)obstacle_on_timer(NULL, 0, s);
    else
        obstacle_arm(s);
}

void obstacle_stop(struct server *s)
{
    s->obstacle.kind = OBSTACLE_NONE;
    traces_cancel(s->obstacle.traces);
    gpus_cancel(s->obstacle.gpus);
    s->obstacle.traces = NULL;
    s->obstacle.gpus = NULL;
    if (s->obstacle.timer)
        (void)sd_event_source_set_enabled(s->obstacle.timer, SD_EVENT_OFF);
}

/*
 * Starts the work on a postmortem when a server has ended (ended.c), and reads kept ones for the
 * API. A struct keep is a copy of all that the thread needs, since the server may be gone or
 * started again before it is written. When all threads are taken it tries again until half a minute
 * is over; the open descriptor keeps the recording alive meanwhile.
 */
#include "supervisor/servers/postmortem_keep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/recorder_read.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/aside.h"
#include "supervisor/io/ends.h"
#include "supervisor/law/postmortem.h"
#include "supervisor/servers/server_inside.h"

#define AGAIN_US 200000u /* all threads are taken: many servers ended at once */
#define TRIES    150u

/* A copy of all that the thread needs. */
struct keep {
    struct postmortem p;
    char server[64], engine[64], cls[32], why[320], lacks[240], dir[512];
    struct ek_buf samples;
    enum ends_kind kind;
    int fd; /* of the recorder's file, -1 = none */
    int error;
    struct aside *aside;
    uint32_t tries;
};

static void postmortem_drop(void *ctx)
{
    struct keep *k = ctx;
    if (k->fd >= 0)
        close(k->fd);
    ek_buf_done(&k->samples);
    free(k);
}

static void postmortem_keep_work(void *ctx)
{
    struct keep *k = ctx;
    struct ek_recorded rec = {0};
    struct ek_fault fault = {0};
    struct ek_buf out = {0};
    int r = k->fd >= 0 ? ek_recorded_read(k->fd, &rec, &fault) : -ENOENT;
    if (r < 0 && k->fd >= 0)
        (void)snprintf(k->lacks, sizeof(k->lacks), "its file cannot be used: %.160s",
                       fault.msg[0] ? fault.msg : ek_strerror(r));
    k->p.lacks = r < 0 ? k->lacks : NULL;
    const struct ek_recorded *got = r < 0 ? NULL : &rec;
    k->error = postmortem_json(&k->p, got, &out);
    if (k->error == 0)
        k->error = ends_write(k->dir, k->server, postmortem_wall_us(&k->p, got) / 1000, k->kind,
                              k->cls, out.data, out.len);
    ek_buf_done(&out);
    ek_recorded_done(&rec);
}

static void postmortem_done(void *ctx)
{
    struct keep *k = ctx;
    if (k->error < 0)
        ek_log(EK_LOG_WARNING, "%s: what led to its end cannot be kept in %s/ends: %s", k->server,
               k->dir, ek_strerror(k->error));
    postmortem_drop(k);
}

static void lose(struct keep *k, int r)
{
    ek_log(EK_LOG_WARNING, "%s: what led to its end is not kept: %s", k->server, ek_strerror(r));
    postmortem_drop(k);
}

/* The event loop holds the source, and drops k with it if it ends before the turn has come. */
static int on_again(sd_event_source *source, uint64_t at_us, void *ctx)
{
    struct keep *k = ctx;
    (void)at_us;
    int r = aside_run(k->aside, postmortem_keep_work, postmortem_done, postmortem_drop, k);
    if (r == -EBUSY && ++k->tries < TRIES &&
        sd_event_source_set_time_relative(source, AGAIN_US) >= 0)
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    (void)sd_event_source_set_destroy_callback(source, NULL); /* there is one */
    (void)sd_event_source_set_floating(source, 0); /* gives back the loop's reference: its end */
    if (r < 0)
        lose(k, r);
    return 0;
}

/* 0, then k is the loop's. */
static int again(sd_event *event, struct keep *k)
{
    sd_event_source *source = NULL;
    int r = sd_event_add_time_relative(event, &source, CLOCK_MONOTONIC, AGAIN_US, 0, on_again, k);
    if (r >= 0)
        r = sd_event_source_set_floating(source, 1);
    if (r >= 0)
        r = sd_event_source_set_destroy_callback(source, postmortem_drop);
    sd_event_source_unref(source);
    return r < 0 ? r : 0;
}

/* That of this process, or the one that its successor put aside. */
static int open_recording(const struct server *s, char *ret_lacks, size_t size)
{
    static const char *const names[] = {EK_RECORDER_FILE, EK_RECORDER_BEFORE};
    char path[300];
    int fd = -ENOENT;
    const struct dialect *d = s->config->dialect;
    if (!d->control_socket || d->companion || !s->address.control_path[0]) {
        (void)snprintf(ret_lacks, size, "this engine has none");
        return -1;
    }
    for (size_t i = 0; fd < 0 && i < sizeof(names) / sizeof(names[0]); i++) {
        int n = snprintf(path, sizeof(path), "%s%s", s->address.control_path, names[i]);
        int r =
            n < (int)sizeof(path) ? ek_recorded_open(path, s->process.child.pid) : -ENAMETOOLONG;
        fd = r >= 0 || i == 0 ? r : fd; /* the first says what is wrong */
    }
    if (fd < 0)
        (void)snprintf(ret_lacks, size, "%s",
                       fd == -ENOENT    ? "it left no file (it ended before it served, or "
                                          "--no-flight-recorder)"
                       : fd == -ESRCH   ? "the file is of another process"
                       : fd == -EBADMSG ? "the file is none of a flight recorder"
                                        : ek_strerror(fd));
    return fd < 0 ? -1 : fd;
}

static void copy_losses(const struct server *s, struct postmortem *p)
{
    const struct engine_losses *l = &s->engine.losses;
    uint32_t kept = l->count < ENGINE_LOSSES_KEPT ? l->count : ENGINE_LOSSES_KEPT;
    p->losses = l->count;
    for (uint32_t i = l->count - kept; i < l->count && p->loss_count < POSTMORTEM_LOSSES; i++) {
        const struct engine_lost *from = &l->at[i % ENGINE_LOSSES_KEPT];
        struct postmortem_loss *to = &p->loss[p->loss_count++];
        to->wall_us = from->wall_us;
        (void)snprintf(to->cls, sizeof(to->cls), "%s", crash_name(from->cls));
        memcpy(to->said, from->said, sizeof(to->said));
    }
}

void postmortem_keep(struct server *s, const struct crash_verdict *v, bool starting, bool unseen)
{
    struct keep *k = calloc(1, sizeof(*k));
    const char *dir = s->with->config->state_dir;
    if (!k) {
        ek_log(EK_LOG_WARNING, "%s: what led to its end is not kept: out of memory",
               s->config->name);
        return;
    }
    k->fd = -1;
    k->aside = s->with->aside;
    k->kind = v->cls == CRASH_CLEAN_EXIT ? ENDS_ASKED : starting ? ENDS_STARTING : ENDS_SERVING;
    uint64_t wall_us = ek_wall_us(), now_us = ek_now_us();
    (void)snprintf(k->server, sizeof(k->server), "%s", s->config->name);
    (void)snprintf(k->engine, sizeof(k->engine), "%s", s->config->engine);
    (void)snprintf(k->cls, sizeof(k->cls), "%s", crash_name(v->cls));
    (void)snprintf(k->why, sizeof(k->why), "%s", v->why);
    (void)snprintf(k->dir, sizeof(k->dir), "%s", dir);
    k->p = (struct postmortem){
        .server = k->server,
        .engine = k->engine,
        .cls = k->cls,
        .why = k->why,
        .pid = (int)s->process.child.pid,
        .starting = starting,
        .unseen = unseen,
        .wall_us = wall_us,
        .now_us = now_us,
        .uptime_s = s->process.started_us ? (double)(now_us - s->process.started_us) / 1e6 : 0,
        .resident = s->memory.now.resident,
        .cgroup = s->memory.now.cgroup,
        .cgroup_most = s->memory.now.most,
    };
    copy_losses(s, &k->p);
    int r = history_json(s->watch.history, (uint32_t)(wall_us / EK_US_PER_S) - POSTMORTEM_S, 1,
                         &k->samples);
    k->p.samples = k->samples.data;
    if (r == 0) {
        k->fd = open_recording(s, k->lacks, sizeof(k->lacks));
        r = aside_run(k->aside, postmortem_keep_work, postmortem_done, postmortem_drop, k);
    }
    if (r == -EBUSY)
        r = again(s->with->event, k);
    if (r < 0)
        lose(k, r);
}

int postmortem_read(const struct postmortem_ask *q, struct ek_buf *out)
{
    struct ends_entry at[ENDS_MOST];
    int n = ends_list(q->dir, q->server, at, ENDS_MOST);
    if (n < 0)
        return n;
    (void)ek_buf_puts(out, "{\"ends\":[");
    for (int i = 0; i < n; i++)
        (void)ek_buf_printf(out, "%s{\"at_s\":%.3f,\"class\":\"%s\"}", i ? "," : "",
                            (double)at[i].at_ms / 1e3, at[i].cls);
    (void)ek_buf_puts(out, "],\"end\":");
    int r =
        q->end >= 1 && q->end <= (unsigned)n ? ends_read(q->dir, &at[q->end - 1], out) : -ENOENT;
    if (r == -ENOENT)
        r = ek_buf_puts(out, "null");
    (void)ek_buf_puts(out, "}");
    return r < 0 ? r : ek_buf_ok(out) ? 0 : -ENOMEM;
}

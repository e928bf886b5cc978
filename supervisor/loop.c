/*
 * The life of evenkeeld from main.c's call to its exit status: directories and lock, descriptors
 * kept by systemd, state, servers, then sd_event_loop(), and at last the end of each of these. A
 * step that fails at the start undoes those before it. After each turn on_turn() writes what
 * changed, so that a kill between two turns loses nothing that was decided.
 */
#include "supervisor/loop.h"

#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "supervisor/daemon.h"
#include "supervisor/directories.h"
#include "supervisor/ending.h"
#include "supervisor/io/aside.h"
#include "supervisor/io/behind.h"
#include "supervisor/io/boot.h"
#include "supervisor/io/client.h"
#include "supervisor/io/incidents.h"
#include "supervisor/io/peers.h"
#include "supervisor/io/reap.h"
#include "supervisor/io/unit.h"
#include "supervisor/notify.h"
#include "supervisor/reload.h"
#include "supervisor/servers/server_past.h"
#include "supervisor/web/status.h"

#define TICK_S        1
#define LOOK_TICKS    5   /* between two looks at what needs a restart */
#define REAP_AGAIN_MS 50u /* after one whose owner has not looked yet */
#define TICK_SOON_MS  200 /* until systemd has been told that we are ready */
#define LACK_PAUSE_NS (100 * 1000 * 1000)

/* After each turn of the loop: another evenkeeld may have to go on from here. */
static int on_turn(sd_event_source *s, void *ctx)
{
    const struct loop *l = ctx;
    (void)s;
    for (uint32_t i = 0; i < l->fleet.count; i++)
        server_turn(l->fleet.servers[i]);
    return 0;
}

static int on_sweep(sd_event_source *s, void *ctx)
{
    (void)s;
    reload_sweep(ctx);
    return 0;
}

/* Whether a planned restart of one leaves the others serving. */
static bool peers_ready(void *ctx, const struct server *self)
{
    const struct loop *l = ctx;
    for (uint32_t i = 0; i < l->fleet.count; i++) {
        const struct server *s = l->fleet.servers[i];
        if (s != self && s->want == WANT_RUN && !s->probe.ready)
            return false;
    }
    return true;
}

static void on_stopped(void *ctx)
{
    struct loop *l = ctx;
    if (l->ending)
        ending_if_stopped(&l->fleet);
    else /* a server may be inside its own functions now */
        (void)sd_event_source_set_enabled(l->sweep, SD_EVENT_ONESHOT);
}

/* Processes whose end is waited for here, by their pidfd. */
static bool owned(const void *ctx, pid_t pid)
{
    const struct loop *l = ctx;
    for (uint32_t i = 0; i < l->fleet.count; i++) {
        if (l->fleet.servers[i]->process.child.pid == pid)
            return true;
    }
    return subprocess_owns(&l->subprocesses, pid);
}

static void reap(struct loop *l)
{
    if (!reap_orphans(owned, l))
        return;
    (void)sd_event_source_set_time(l->reap, ek_now_us() + REAP_AGAIN_MS * 1000u);
    (void)sd_event_source_set_enabled(l->reap, SD_EVENT_ONESHOT);
}

static int on_reap(sd_event_source *s, uint64_t usec, void *ctx)
{
    (void)s;
    (void)usec;
    reap(ctx);
    return 0;
}

/* Children: the servers', and orphans of theirs that became ours. */
static int on_child(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx)
{
    struct loop *l = ctx;
    (void)s;
    (void)si;
    for (uint32_t i = 0; i < l->fleet.count; i++)
        server_check_exit(l->fleet.servers[i]);
    reap(l);
    return 0;
}

/* Reading the configuration again */

static int loop_reload(void *ctx, void (*cb)(void *cb_ctx, int error, const char *text),
                       void *cb_ctx, char *text, size_t size)
{
    struct loop *l = ctx;
    int r = reload_begin(l, cb, cb_ctx, text, size);
    notify_status(l);
    return r;
}

static int on_reload(sd_event_source *s, const struct signalfd_siginfo *si, void *ctx)
{
    char text[640];
    (void)s;
    (void)si;
    (void)loop_reload(ctx, NULL, NULL, text, sizeof(text)); /* it has logged why */
    return 0;
}

static void debug(void *ctx, double for_s)
{
    struct loop *l = ctx;
    l->debug_until_us = for_s > 0 ? ek_now_us() + (uint64_t)(for_s * 1e6) : 0;
    enum ek_log_level level = EK_LOG_INFO;
    (void)ek_log_parse_level(l->fleet.config->log_level, &level); /* main checked it */
    ek_log_set_most(for_s > 0 ? EK_LOG_DEBUG : level);
    if (for_s > 0)
        ek_log(EK_LOG_NOTICE, "an operator asked for every sample in the log, for %.0f s", for_s);
    else
        ek_log(EK_LOG_NOTICE, "the log is as configured again");
}

/* Beginning */

static int on_tick(sd_event_source *source, uint64_t usec, void *ctx)
{
    struct loop *l = ctx;
    (void)usec;
    notify_ready(l);
    notify_status(l);
    if (l->ticks++ % LOOK_TICKS == 0) {
        for (uint32_t i = 0; i < l->fleet.count; i++)
            server_look_changes(l->fleet.servers[i]);
    }
    if (l->debug_until_us && ek_now_us() >= l->debug_until_us)
        debug(l, 0);
    uint64_t wait_us = l->said_ready ? TICK_S * EK_US_PER_S : TICK_SOON_MS * 1000u;
    (void)sd_event_source_set_time(source, ek_now_us() + wait_us);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};

int loop_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaddset(&set, signals[i]);
    return sigprocmask(how, &set, NULL) < 0 ? -errno : 0;
}

static int add_sources(struct loop *l)
{
    const sd_event_signal_handler_t handlers[] = {ending_on_signal, ending_on_signal, on_reload,
                                                  ending_on_hand_over, on_child};
    int r = loop_signals(SIG_BLOCK); /* sd-event wants it */
    for (size_t i = 0; r >= 0 && i < sizeof(signals) / sizeof(signals[0]); i++)
        r = sd_event_add_signal(l->fleet.with.event, NULL, signals[i], handlers[i], l);
    if (r >= 0)
        r = sd_event_set_watchdog(l->fleet.with.event, true);
    if (r >= 0)
        r = sd_event_add_defer(l->fleet.with.event, &l->sweep, on_sweep, l);
    if (r >= 0)
        r = sd_event_add_time(l->fleet.with.event, &l->reap, CLOCK_MONOTONIC, 0, 1000, on_reap, l);
    if (r >= 0)
        r = sd_event_source_set_enabled(l->reap, SD_EVENT_OFF);
    if (r >= 0)
        r = sd_event_add_post(l->fleet.with.event, NULL, on_turn, l);
    if (r >= 0)
        r = sd_event_source_set_enabled(l->sweep, SD_EVENT_OFF);
    if (r < 0)
        return r;
    return sd_event_add_time(l->fleet.with.event, NULL, CLOCK_MONOTONIC,
                             ek_now_us() + TICK_SOON_MS * 1000u, 50000, on_tick, l);
}

static int open_status(struct loop *l)
{
    const struct config *c = l->fleet.config;
    unsigned port = 0;
    int tcp = -1;
    if (!c->listen_off) {
        tcp = ek_listen_tcp(c->listen_host, c->listen_port, 64, &port);
        if (tcp < 0) {
            ek_log(EK_LOG_ERR,
                   "cannot listen on %s for the status page: %s; choose another "
                   "`listen`, or off",
                   c->listen, ek_strerror(tcp));
            return tcp;
        }
        ek_log(EK_LOG_INFO, "status page at http://%s:%u/", c->listen_host, port);
    }
    int local = ek_listen_unix(c->socket, 0660, 64);
    if (local < 0) {
        ek_log(EK_LOG_ERR, "cannot listen on %s: %s", c->socket, ek_strerror(local));
        if (tcp >= 0)
            close(tcp);
        return local;
    }
    return status_new(&l->fleet, l->fleet.with.event, tcp, local, &l->status);
}

static int make_servers(struct fleet *f)
{
    f->servers = calloc(f->config->count + 1, sizeof(struct server *));
    if (!f->servers)
        return -ENOMEM;
    for (size_t i = 0; i < f->config->count; i++) {
        int r = server_new(&f->with, &f->config->servers[i], &f->servers[f->count]);
        if (r < 0)
            return r;
        f->count++;
    }
    return 0;
}

static void on_figures(void *ctx, const struct figures *f)
{
    struct loop *l = ctx;
    struct process_list all;
    (void)process_list_read(&all); /* out of memory: the main processes alone */
    for (uint32_t i = 0; i < l->fleet.count; i++)
        memory_line(l->fleet.servers[i], &all, f);
    process_list_done(&all);
}

/* Without a history evenkeeld works as ever; only the next one knows less of what was before. */
static void open_history(struct fleet *f)
{
    const char *dir = f->config->state_dir;
    int r = behind_new(dir, &f->with.behind);
    if (r == 0)
        r = incidents_new(f->with.behind, dir, &f->with.incidents);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "the history in %s is not kept: %s", dir, ek_strerror(r));
}

static int loop_begin(struct loop *l)
{
    int r = directories_open(l->fleet.config);
    if (r == 0)
        r = directories_lock(l->fleet.config, &l->lock, &l->state_lock);
    if (r < 0)
        return r;
    r = state_load(l->fleet.config->state_dir, &l->state);
    if (r == -EBADMSG)
        ek_log(EK_LOG_WARNING,
               "the state in %s cannot be read; it was put aside as "
               "state.json.bad, and limits start from the servers' own",
               l->fleet.config->state_dir);
    else if (r < 0)
        ek_log(EK_LOG_WARNING, "the state in %s cannot be read: %s", l->fleet.config->state_dir,
               ek_strerror(r));
    open_history(&l->fleet);
    l->fleet.with.subprocesses = &l->subprocesses;
    l->fleet.with.state = &l->state;
    l->fleet.with.who = l->who;
    l->fleet.with.config = l->fleet.config;
    l->fleet.with.boot = boot_id();
    l->fleet.with.journal = getenv("JOURNAL_STREAM") != NULL;
    l->fleet.with.stopped = on_stopped;
    l->fleet.with.keep_fd = notify_keep_fd;
    l->fleet.with.peers_ready = peers_ready;
    l->fleet.with.reload = loop_reload;
    l->fleet.with.debug = debug;
    l->fleet.with.ctx = l;
    (void)child_subreaper(); /* without it orphans are init's, which is no harm */
    r = add_sources(l);
    if (r >= 0)
        r = aside_new(l->fleet.with.event, &l->fleet.with.aside);
    if (r >= 0)
        r = units_new(l->fleet.with.event, &l->fleet.with.units);
    if (r >= 0)
        r = client_new(l->fleet.with.event, &l->fleet.with.client);
    if (r >= 0)
        r = peers_new(l->fleet.with.event, l->fleet.with.client, l->fleet.config->restart_peers.at,
                      l->fleet.config->restart_peers.count, &l->fleet.with.peers);
    struct figures_setup setup = {.event = l->fleet.with.event,
                                  .every_s = l->fleet.config->memory_every_s,
                                  .kernel_log = strcmp(l->fleet.config->kernel_log, "off") == 0
                                                    ? NULL
                                                    : l->fleet.config->kernel_log,
                                  .each = on_figures,
                                  .ctx = l};
    if (r >= 0)
        r = figures_new(&setup, &l->fleet.with.figures);
    if (r >= 0)
        r = make_servers(&l->fleet);
    return r < 0 ? r : open_status(l);
}

/* Removes the cgroups of servers that have ended, for up to 100 ms each: after the loop nothing
 * else waits for this thread. */
static void loop_sweep(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        for (int n = 0; n < 20 && !child_sweep(&f->servers[i]->process.child); n++)
            (void)usleep(5000);
    }
}

static void loop_done(struct loop *l)
{
    for (uint32_t i = 0; i < l->fleet.count; i++)
        server_turn(l->fleet.servers[i]);
    for (uint32_t i = 0; l->status && i < l->fleet.count; i++)
        server_answer_operator(l->fleet.servers[i]);
    reload_free(l);
    loop_sweep(&l->fleet);
    status_free(l->status);
    for (uint32_t i = 0; i < l->fleet.count; i++)
        server_free(l->fleet.servers[i]);
    free(l->fleet.servers);
    sd_event_source_disable_unref(l->sweep);
    sd_event_source_disable_unref(l->reap);
    aside_free(l->fleet.with.aside);
    peers_free(l->fleet.with.peers);
    figures_free(l->fleet.with.figures);
    client_free(l->fleet.with.client);
    units_free(l->fleet.with.units);
    if (l->fleet.config && l->status)
        (void)unlink(l->fleet.config->socket); /* a stale one is replaced anyway */
    sd_event_unref(l->fleet.with.event);
    if (behind_free(l->fleet.with.behind)) /* else the thread that hangs has it */
        incidents_free(l->fleet.with.incidents);
    state_free(&l->state);
    config_free(l->fleet.config);
    free(l->fleet.config);
    for (size_t i = 0; i < l->retired_count; i++) {
        config_free(l->retired[i]);
        free(l->retired[i]);
    }
    free(l->retired);
    if (l->lock >= 0)
        close(l->lock);
    if (l->state_lock >= 0)
        close(l->state_lock);
    curl_global_cleanup();
}

/* Until it is told to end. Memory that the loop itself lacks for a moment is no reason to. */
static int loop_go(const struct loop *l)
{
    const struct timespec pause = {.tv_nsec = LACK_PAUSE_NS};
    bool told = false;
    int r;
    while ((r = sd_event_loop(l->fleet.with.event)) == -ENOMEM) {
        if (!told)
            ek_log(EK_LOG_WARNING, "the event loop lacks memory; it is tried again");
        told = true;
        (void)nanosleep(&pause, NULL);
    }
    return r;
}

int loop_run(struct config *config, int argc, char **argv)
{
    struct loop l = {.fleet.config = config,
                     .argc = argc,
                     .argv = argv,
                     .lock = -1,
                     .state_lock = -1,
                     .fleet.reload_ok = true,
                     .fleet.started_wall_us = ek_wall_us(),
                     .fleet.reload_wall_us = ek_wall_us()};
    int r = -ENOMEM;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
        r = sd_event_new(&l.fleet.with.event);
    if (r >= 0)
        r = loop_begin(&l);
    if (r >= 0) {
        reload_note_unused(l.fleet.config);
        past_load(&l.fleet.with, l.fleet.servers, l.fleet.count, true);
        past_watch(&l.fleet.with, "begin");
        notify_take_kept_fds(&l.fleet);
        for (uint32_t i = 0; i < l.fleet.count; i++)
            server_begin(l.fleet.servers[i]);
        notify_ready(&l);
        notify_status(&l);
        r = loop_go(&l);
        if (r < 0)
            ek_log(EK_LOG_ERR, "the event loop failed: %s; the servers go on", ek_strerror(r));
        past_watch(&l.fleet.with, r == EK_EXIT_RESTART ? "hand over" : "stop");
    }
    loop_done(&l);
    bool settings =
        r == -EBUSY || r == -EADDRINUSE || r == -EADDRNOTAVAIL || r == -EBADMSG || r == -EACCES;
    return r >= 0 ? r : settings ? EK_EXIT_CONFIG : EK_EXIT_INTERNAL;
}

/* The states of a drain, from its order to the end of the process; called by main.c. */
#include "server/drain.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "server/nodes.h"

#define FLUSH_US (2 * EK_US_PER_S) /* for the last bytes after a deadline or a failure */
/* A proxy may be sending on a connection that was idle: it is answered, and then closed. */
#define LINGER_US 300000u
/* For an evenkeeld that was killed to be back: the rest of the drain's deadline within these. */
#define KEEPER_LEAST_US (10 * EK_US_PER_S)
#define KEEPER_MOST_US  (60 * EK_US_PER_S)

/* The engine's last word, or that of the other nodes, which then has the reason for the engine's;
 * any thread. */
void drain_on_dead(void *ctx, int code, const char *why)
{
    struct instance *s = ctx;
    pthread_mutex_lock(&s->lock);
    if (!s->dead) {
        s->dead = true;
        s->dead_code = code;
        (void)snprintf(s->dead_why, sizeof(s->dead_why), "%s", why);
    }
    pthread_mutex_unlock(&s->lock);
    (void)eventfd_write(s->event, 1);
}

/* Where evenkeeld keeps the listening socket, the next process answers what waits in it. */
enum http_drain_mode drain_mode(const struct options *o)
{
    bool hold = strcmp(o->drain_mode, "auto") == 0 ? o->listen_from_control
                                                   : strcmp(o->drain_mode, "hold") == 0;
    return hold ? HTTP_DRAIN_HOLD : HTTP_DRAIN_REFUSE;
}

/* Of an end that was not ordered over the control socket: without a keeper no next process comes.
 */
enum http_drain_mode drain_kept_mode(struct instance *s)
{
    return s->o.listen_from_control && !http_kept(s->http) ? HTTP_DRAIN_REFUSE : drain_mode(&s->o);
}

static void drain_begin(struct instance *s, double deadline_s, enum http_drain_mode mode)
{
    uint64_t deadline = ek_now_us() + (uint64_t)(deadline_s * 1e6);
    pthread_mutex_lock(&s->lock);
    s->deadline_us = deadline;
    s->hold = mode == HTTP_DRAIN_HOLD;
    pthread_mutex_unlock(&s->lock);
    http_drain(s->http, mode);
    if (atomic_load(&s->start) == START_READY)
        engine_drain(s->stack.engine, deadline, mode == HTTP_DRAIN_REFUSE);
}

/* POST /drain; control thread. */
void drain_on_order(void *ctx, double deadline_s, enum http_drain_mode mode, bool leave)
{
    struct instance *s = ctx;
    ek_log(EK_LOG_NOTICE, "Draining: %s new requests, deadline %.0f s%s",
           mode == HTTP_DRAIN_HOLD ? "holding" : "refusing", deadline_s,
           leave ? ", then exit" : "");
    drain_begin(s, deadline_s, mode);
    pthread_mutex_lock(&s->lock);
    if (leave && !s->leaving) {
        s->leaving = true;
        s->leave_code = EK_EXIT_RESTART;
    }
    pthread_mutex_unlock(&s->lock);
    (void)eventfd_write(s->event, 1);
}

void drain_on_node(struct instance *s)
{
    pthread_mutex_lock(&s->lock);
    s->bound = true;
    pthread_mutex_unlock(&s->lock);
    drain_on_order(s, s->o.shutdown_timeout, drain_mode(&s->o), true);
}

/* POST /resume; control thread. An end that a drain was asked for is taken back, a signal's is not.
 */
void drain_on_resume(void *ctx)
{
    struct instance *s = ctx;
    struct engine_stats st = {0};
    bool ready = atomic_load(&s->start) == START_READY;
    if (ready)
        engine_stats(s->stack.engine, &st);
    pthread_mutex_lock(&s->lock);
    bool leaving = s->leaving && s->bound;
    if (!leaving) {
        s->leaving = false;
        s->deadline_us = 0;
        s->cut_before = st.finished[REQ_FIN_DEADLINE];
    }
    pthread_mutex_unlock(&s->lock);
    if (leaving)
        return;
    if (ready || atomic_load(&s->start) == START_READY) /* it may have been told just now */
        engine_resume(s->stack.engine);
    http_undrain(s->http);
    ek_log(EK_LOG_NOTICE, "Resumed: new requests are taken");
}

/* SIGHUP: keys and certificates. */
static void drain_reload(struct instance *s)
{
    struct ek_fault f = {0};
    int r = http_reload(s->http, &f);
    if (r < 0)
        ek_log(EK_LOG_ERR, "SIGHUP: nothing was changed: %s", f.msg[0] ? f.msg : ek_strerror(r));
    else
        ek_log(EK_LOG_NOTICE, "SIGHUP: keys and certificates were read again");
}

/* SIGTERM, SIGINT on a node that follows: the first asks node 0 to drain, the second ends all. */
static void drain_leave_node(struct instance *s, const char *name)
{
    pthread_mutex_lock(&s->lock);
    bool again = s->leaving;
    s->leaving = true;
    pthread_mutex_unlock(&s->lock);
    (void)sd_notify(0, "STOPPING=1\nSTATUS=Asked node 0 to drain");
    s->cut = again || !nodes_leave(&s->stack);
    ek_log(EK_LOG_NOTICE, "%s%s: %s", name, again ? " again" : "",
           s->cut ? "ending at once" : "asked node 0 to drain; ending with it");
}

/* SIGTERM, SIGINT: the first drains, the second cuts. */
void drain_on_signal(struct instance *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP) {
        drain_reload(s);
        return;
    }
    if (options_follows(&s->o)) {
        drain_leave_node(s, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
        return;
    }
    pthread_mutex_lock(&s->lock);
    bool again = s->leaving && s->leave_code == EK_EXIT_OK;
    s->leaving = s->bound = true;
    s->leave_code = EK_EXIT_OK;
    s->cut = s->cut || again;
    /* A drain that goes on stays what it was asked to be. */
    enum http_drain_mode mode = !s->deadline_us ? drain_kept_mode(s)
                                : s->hold       ? HTTP_DRAIN_HOLD
                                                : HTTP_DRAIN_REFUSE;
    pthread_mutex_unlock(&s->lock);
    const char *name = info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
    (void)sd_notify(0, "STOPPING=1\nSTATUS=Draining");
    if (again) {
        ek_log(EK_LOG_NOTICE, "%s again: cutting what still runs", name);
        drain_begin(s, 0, HTTP_DRAIN_REFUSE);
        return;
    }
    ek_log(EK_LOG_NOTICE, "%s: draining for at most %.0f s", name, s->o.shutdown_timeout);
    drain_begin(s, s->o.shutdown_timeout, mode);
}

/* Its end would reset the connections that it holds: evenkeeld was killed, or is being replaced.
 * The next one takes the socket when it comes; if none does, they are told by a 503. */
static bool drain_await_keeper(struct instance *s, uint64_t now, uint64_t deadline)
{
    if (!s->unkept_us) {
        uint64_t end = deadline < now + KEEPER_MOST_US ? deadline : now + KEEPER_MOST_US;
        s->unkept_us = end > now + KEEPER_LEAST_US ? end : now + KEEPER_LEAST_US;
        ek_log(EK_LOG_NOTICE,
               "Drained, but nobody else keeps the listening socket: waiting for the next "
               "evenkeeld, %.0f s at most",
               (double)(s->unkept_us - now) / 1e6);
    }
    if (now <= s->unkept_us)
        return false;
    drain_begin(s, 0, HTTP_DRAIN_REFUSE);
    s->idle_us = 0;
    return false;
}

void drain_on_serving(struct instance *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t deadline = s->deadline_us;
    bool hold = s->hold;
    pthread_mutex_unlock(&s->lock);
    if (!deadline)
        return;
    engine_drain(s->stack.engine, deadline, !hold);
    pthread_mutex_lock(&s->lock);
    bool resumed = s->deadline_us == 0; /* meanwhile, which came before the drain then */
    pthread_mutex_unlock(&s->lock);
    if (resumed)
        engine_resume(s->stack.engine);
}

/* Before it serves. What an order found in it is answered when it does, where new requests wait for
 * the next process meanwhile; a signal ends it at once. */
static bool drain_leaves_early(struct instance *s, bool waits, uint64_t deadline, uint64_t now)
{
    if (!waits || now > deadline || !s->listening)
        return true;
    if (http_parked(s->http) > 0) { /* it is answered here */
        s->idle_us = 0;
        return false;
    }
    if (s->o.listen_from_control && !http_kept(s->http))
        return drain_await_keeper(s, now, deadline);
    if (s->idle_us == 0)
        s->idle_us = now;
    bool none = http_open(s->http) == 0;
    if (none) /* what was taken while that was counted */
        none = http_open(s->http) == 0;
    if (!none && now < s->idle_us + LINGER_US)
        return false;
    (void)http_settle(s->http, FLUSH_US); /* a thread without a processor may have found one */
    return http_parked(s->http) == 0;
}

/* Whether something had come that a thread without a processor had not seen. Until the drain is
 * over, a thread that has not looked yet may still find something. */
static bool drain_is_asked(struct instance *s, bool linger, bool over)
{
    uint32_t open = http_open(s->http);
    bool looked = http_settle(s->http, FLUSH_US);
    return (!looked && !over) || http_active(s->http) > 0 || (linger && http_open(s->http) > open);
}

/* Of one that serves: drained and sent, or past the deadline. */
static bool drain_leaves_late(struct instance *s, bool hold, uint64_t deadline, uint64_t now)
{
    struct engine_stats st;

    engine_stats(s->stack.engine, &st);
    if (st.drain != ENGINE_DRAINED || http_active(s->http) > 0)
        s->idle_us = 0;
    else if (s->idle_us == 0)
        s->idle_us = now;
    bool linger = hold || s->unkept_us;
    bool calm = s->idle_us && (!linger || http_open(s->http) == 0 || now >= s->idle_us + LINGER_US);
    bool over = now > deadline + FLUSH_US;
    if (!calm && !over)
        return false;
    if (hold && s->o.listen_from_control && !http_kept(s->http))
        return drain_await_keeper(s, now, deadline);
    return !calm || !drain_is_asked(s, linger, over);
}

/* Whether the process may end now. */
bool drain_may_leave(struct instance *s)
{
    pthread_mutex_lock(&s->lock);
    bool leaving = s->leaving;
    bool hold = s->hold, waits = hold && s->leave_code == EK_EXIT_RESTART;
    uint64_t deadline = s->deadline_us, now = ek_now_us();
    pthread_mutex_unlock(&s->lock);
    if (options_follows(&s->o))
        return atomic_load(&s->start) == START_ENDED || (leaving && s->cut);
    if (!leaving) {
        s->unkept_us = s->idle_us = 0;
        return false;
    }
    bool early = atomic_load(&s->start) != START_READY || !s->serving;
    if (early ? !drain_leaves_early(s, waits, deadline, now)
              : !drain_leaves_late(s, hold, deadline, now))
        return false;
    pthread_mutex_lock(&s->lock);
    leaving = s->leaving; /* it may have been taken back just now */
    s->bound = leaving;
    pthread_mutex_unlock(&s->lock);
    return leaving;
}

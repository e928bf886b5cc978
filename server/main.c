/*
 * evenkeel-server: start, serve, end.
 *
 * The main thread waits for signals and events; a starter thread builds the stack (start.h). Order:
 * options, log, control socket, listening socket, then model, plan, weights, engine, and with the
 * engine the API. SIGTERM and SIGINT drain, a second one cuts. However it ends, exit.json says why,
 * and the exit code is one of common/err.h.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "kernels/registry.h"
#include "server/access_options.h"
#include "server/confine.h"
#include "server/exit_record.h"
#include "server/model/model.h"
#include "server/net/http.h"
#include "server/nodes.h"
#include "server/options.h"
#include "server/prefix_file.h"
#include "server/print.h"
#include "server/start.h"
#include "server/watch.h"

#define BACKLOG     4096
#define LOOPBACK    "127.0.0.1"
#define UDS_MODE    0660 /* of --uds: without a key, who may connect may use the server */
#define EXTRA_FILES 1024u
#define OWN_FILES   48u               /* at least: control, health, metrics, the model's files */
#define FLUSH_US    (2 * EK_US_PER_S) /* for the last bytes after a deadline or a failure */
/* A proxy may be sending on a connection that was idle: it is answered, and then closed. */
#define LINGER_US 300000u
/* For an evenkeeld that was killed to be back: the rest of the drain's deadline within these. */
#define KEEPER_LEAST_US (10 * EK_US_PER_S)
#define KEEPER_MOST_US  (60 * EK_US_PER_S)
#define ENDING_S        8u /* from the decision to end to the end, whatever is still going on */
#define TICK_BUSY_MS    20
#define TICK_MS         1000

enum start_state { START_RUNNING, START_READY, START_FAILED, START_ENDED };

/* The whole process: its options, the model and the HTTP side, and how it is to end. */
struct instance {
    struct options o;
    struct exit_record exit_record;
    struct confined confined;
    struct engine_cgroup engine_group; /* as it was made */
    struct stack stack;
    struct http *http;
    pthread_t starter;
    bool starter_runs;
    atomic_int start; /* enum start_state; the next two are written before it changes */
    int start_code;
    struct ek_fault fault;
    int event, signals;
    bool listening, serving;
    unsigned port;
    uint32_t most_sockets; /* of the API, 0 = as many as it likes */
    pthread_mutex_t lock;
    /* under lock: orders from the control socket and the engine */
    bool dead;
    int dead_code;
    char dead_why[480];
    bool leaving; /* end the process once drained */
    bool bound;   /* and nobody may take that back: a signal, another node, or it is too late */
    int leave_code;
    uint64_t deadline_us; /* of the drain, 0 = none */
    uint64_t cut_before;  /* requests cut by drains that were taken back since */
    bool cut, hold;       /* hold: open connections are served on while it drains */
    uint64_t unkept_us;   /* main thread: how long a drained one waits for who keeps the socket */
    uint64_t idle_us;     /* main thread: since when it is drained and nothing is asked */
    struct watch watch;   /* main thread */
    uint64_t watched_us;  /* likewise: when it looked last */
};

static void on_warning(void *ctx, const char *msg)
{
    (void)ctx;
    ek_log(EK_LOG_WARNING, "%s", msg);
}

/* The engine's last word, or that of the other nodes, which then has the reason for the engine's;
 * any thread. */
static void on_dead(void *ctx, int code, const char *why)
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
static enum http_drain_mode drain_mode(const struct options *o)
{
    bool hold = strcmp(o->drain_mode, "auto") == 0 ? o->listen_from_control
                                                   : strcmp(o->drain_mode, "hold") == 0;
    return hold ? HTTP_DRAIN_HOLD : HTTP_DRAIN_REFUSE;
}

/* Of an end that nobody ordered over the control socket: without a keeper no next process comes. */
static enum http_drain_mode kept_mode(struct instance *s)
{
    return s->o.listen_from_control && !http_kept(s->http) ? HTTP_DRAIN_REFUSE : drain_mode(&s->o);
}

static void begin_drain(struct instance *s, double deadline_s, enum http_drain_mode mode)
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
static void on_drain(void *ctx, double deadline_s, enum http_drain_mode mode, bool leave)
{
    struct instance *s = ctx;
    ek_log(EK_LOG_NOTICE, "Draining: %s new requests, deadline %.0f s%s",
           mode == HTTP_DRAIN_HOLD ? "holding" : "refusing", deadline_s,
           leave ? ", then exit" : "");
    begin_drain(s, deadline_s, mode);
    pthread_mutex_lock(&s->lock);
    if (leave && !s->leaving) {
        s->leaving = true;
        s->leave_code = EK_EXIT_RESTART;
    }
    pthread_mutex_unlock(&s->lock);
    (void)eventfd_write(s->event, 1);
}

/* Another node was asked to stop: it cannot leave before we do. */
static void on_leaving(void *ctx)
{
    struct instance *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->bound = true;
    pthread_mutex_unlock(&s->lock);
    on_drain(s, s->o.shutdown_timeout, drain_mode(&s->o), true);
}

/* POST /resume; control thread. An end that a drain was asked for is taken back, a signal's is not.
 */
static void on_resume(void *ctx)
{
    struct instance *s = ctx;
    struct engine_stats st;
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
    engine_resume(s->stack.engine);
    http_undrain(s->http);
    ek_log(EK_LOG_NOTICE, "Resumed: new requests are taken");
}

/* Whom nobody asks for a key, this machine alone is meant; NULL = all addresses. */
static const char *listen_host(const struct instance *s)
{
    return s->o.host ? s->o.host : http_has_keys(s->http) ? NULL : LOOPBACK;
}

/* A listening socket of our own, from systemd, or none yet (it comes over the control socket). */
static int refuse_address(const struct instance *s, int fd, struct ek_fault *f)
{
    const struct options *o = &s->o;
    const char *field = fd == -EADDRINUSE || fd == -EACCES ? "port" : "host";
    const char *remedy = fd == -EADDRINUSE ? "choose another or stop who has it"
                         : fd == -EACCES   ? "ports below 1024 need a right of their own"
                                           : "name an address of this machine";
    return ek_fault_set(f, field, "--%s: cannot listen on %s:%llu: %s; %s", field,
                        listen_host(s) ? listen_host(s) : "*", (unsigned long long)o->port,
                        ek_strerror(fd), remedy);
}

static int open_listener(struct instance *s, struct ek_fault *f)
{
    const struct options *o = &s->o;
    int fd, given = sd_listen_fds(1);
    if (o->listen_from_control || options_follows(o))
        return -EAGAIN;
    if (given > 0 && sd_is_socket(SD_LISTEN_FDS_START, AF_UNSPEC, SOCK_STREAM, 1) > 0) {
        ek_log(EK_LOG_INFO, "Listening on the socket given by systemd");
        return SD_LISTEN_FDS_START;
    }
    if (o->uds) {
        fd = ek_listen_unix(o->uds, UDS_MODE, BACKLOG);
        if (fd < 0)
            return ek_fault_set(f, "uds", "--uds: cannot listen on %s: %s", o->uds,
                                ek_strerror(fd));
        return fd;
    }
    fd = ek_listen_tcp(listen_host(s), (unsigned)o->port, BACKLOG, &s->port);
    if (fd < 0)
        return refuse_address(s, fd, f);
    if (!o->host && listen_host(s))
        ek_log(EK_LOG_NOTICE,
               "Without an API key only this machine is served: listening on " LOOPBACK
               "; --api-key-file FILE or --host ADDRESS opens it to others");
    return fd;
}

static int listen_with(struct instance *s, int fd, struct ek_fault *f)
{
    int r = http_listen(s->http, fd, f);
    s->listening = r == 0;
    return r;
}

/* A node that follows is there until node 0 ends. */
static void run_follower(struct instance *s)
{
    int code = EK_EXIT_INTERNAL;
    int r = start_follower(&s->stack, &code, &s->fault);
    if (r == 0)
        r = nodes_follow(&s->stack, &code, &s->fault);
    s->start_code = code;
    atomic_store(&s->start, r == 0 ? START_ENDED : START_FAILED);
    (void)eventfd_write(s->event, 1);
}

static void *run_starter(void *arg)
{
    struct instance *s = arg;
    struct stack *t = &s->stack;
    int code = EK_EXIT_INTERNAL;
    if (options_follows(&s->o)) {
        run_follower(s);
        return NULL;
    }
    http_progress(s->http, "reading the model", 0, 0);
    int r = start_plan(t, &code, &s->fault);
    if (r == 0) {
        ek_log(EK_LOG_INFO, "Model %s: %s, %.1f M parameters; backend %s: %s%s%s%s", s->o.model,
               t->model->family, (double)t->model->parameters / 1e6, t->backend->name, t->info.name,
               t->info.choice[0] ? " (" : "", t->info.choice, t->info.choice[0] ? ")" : "");
        char note[MODEL_NOTE_BYTES];
        model_weights_note(t->model, true, note);
        if (note[0])
            ek_log(EK_LOG_INFO, "%s", note);
        print_plan_to_log(t);
        r = start_load(t, &code, &s->fault);
    }
    s->start_code = code;
    atomic_store(&s->start, r == 0 ? START_READY : START_FAILED);
    (void)eventfd_write(s->event, 1);
    return NULL;
}

/* Returns how many sockets the API may have, 0 = as many as it likes. */
static uint32_t raise_file_limit(const struct options *o)
{
    struct rlimit l;
    rlim_t want = o->max_connections + EXTRA_FILES;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= want)
        return 0;
    l.rlim_cur = l.rlim_max < want ? l.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur < want)
        ek_log(EK_LOG_WARNING,
               "Only %llu descriptors are allowed; --max-connections %llu needs %llu",
               (unsigned long long)l.rlim_cur, (unsigned long long)o->max_connections,
               (unsigned long long)want);
    if (l.rlim_cur >= want)
        return 0;
    return l.rlim_cur > 2 * OWN_FILES ? (uint32_t)l.rlim_cur - OWN_FILES
                                      : (uint32_t)l.rlim_cur / 4 + 1;
}

static uint32_t http_threads(const struct options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (o->http_threads)
        return (uint32_t)o->http_threads;
    return cores <= 3 ? 1 : cores >= 8 ? 4 : (uint32_t)cores / 2;
}

static int open_http(struct instance *s, struct ek_fault *f)
{
    const struct options *o = &s->o;
    struct http_params p = {.threads = http_threads(o),
                            .max_connections = (uint32_t)o->max_connections,
                            .max_sockets = s->most_sockets,
                            .request_timeout_s = o->request_timeout,
                            .keep_alive_s = o->keep_alive_timeout,
                            .shutdown_timeout_s = o->shutdown_timeout,
                            .drain_mode = drain_mode(o),
                            .control_path = options_follows(o) ? NULL : o->control_socket,
                            .log_requests = o->enable_log_requests,
                            .traces_endpoint = o->otlp_traces_endpoint,
                            .drain = on_drain,
                            .resume = on_resume,
                            .ctx = s};
    access_options_params(o, &p.shell);
    int r = http_new(&p, &s->http, f);
    access_options_forget(&s->o);
    if (r < 0)
        return r;
    s->stack.http = s->http;
    int fd = open_listener(s, f);
    if (fd == -EAGAIN)
        return 0;
    return fd < 0 ? fd : listen_with(s, fd, f);
}

/* SIGHUP: keys and certificates. */
static void on_reload(struct instance *s)
{
    struct ek_fault f = {0};
    int r = http_reload(s->http, &f);
    if (r < 0)
        ek_log(EK_LOG_ERR, "SIGHUP: nothing was changed: %s", f.msg[0] ? f.msg : ek_strerror(r));
    else
        ek_log(EK_LOG_NOTICE, "SIGHUP: keys and certificates were read again");
}

/* SIGTERM, SIGINT on a node that follows: the first asks node 0 to drain, the second ends all. */
static void leave_node(struct instance *s, const char *name)
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
static void on_signal(struct instance *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP) {
        on_reload(s);
        return;
    }
    if (options_follows(&s->o)) {
        leave_node(s, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
        return;
    }
    pthread_mutex_lock(&s->lock);
    bool again = s->leaving && s->leave_code == EK_EXIT_OK;
    s->leaving = s->bound = true;
    s->leave_code = EK_EXIT_OK;
    s->cut = s->cut || again;
    /* A drain that goes on stays what it was asked to be. */
    enum http_drain_mode mode = !s->deadline_us ? kept_mode(s)
                                : s->hold       ? HTTP_DRAIN_HOLD
                                                : HTTP_DRAIN_REFUSE;
    pthread_mutex_unlock(&s->lock);
    const char *name = info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
    (void)sd_notify(0, "STOPPING=1\nSTATUS=Draining");
    if (again) {
        ek_log(EK_LOG_NOTICE, "%s again: cutting what still runs", name);
        begin_drain(s, 0, HTTP_DRAIN_REFUSE);
        return;
    }
    ek_log(EK_LOG_NOTICE, "%s: draining for at most %.0f s", name, s->o.shutdown_timeout);
    begin_drain(s, s->o.shutdown_timeout, mode);
}

static void say_serving(struct instance *s)
{
    const struct served *v = &s->stack.served;
    char where[256];
    if (s->o.listen_from_control)
        (void)snprintf(where, sizeof(where), "the socket that was handed over");
    else if (s->o.uds)
        (void)snprintf(where, sizeof(where), "%s", s->o.uds);
    else
        (void)snprintf(where, sizeof(where), "%s://%s:%u", s->o.ssl_certfile ? "https" : "http",
                       listen_host(s) ? listen_host(s) : "0.0.0.0", s->port);
    ek_log(EK_LOG_NOTICE, "Serving %s on %s: %u sequences, %u tokens a step, length %u, %u blocks",
           v->name[0], where, s->stack.engine_params.max_seqs,
           s->stack.engine_params.max_batched_tokens, v->max_model_len, v->blocks - 1);
    (void)sd_notifyf(0, "READY=1\nSTATUS=Serving %s on %s", v->name[0], where);
}

/* What happened since the last look, but for signals. Negative = the start failed. */
static int on_events(struct instance *s, struct ek_fault *f)
{
    int state = atomic_load(&s->start);
    if (!s->listening) {
        int fd = http_listen_fd(s->http);
        if (fd >= 0 && listen_with(s, fd, f) < 0)
            return -EIO;
    }
    if (state == START_FAILED) {
        *f = s->fault;
        return -EIO;
    }
    if (state == START_READY && s->listening && !s->serving) {
        s->serving = true;
        confine_calls(&s->o, &s->confined);
        confine_say(&s->confined);
        http_confined(s->http, s->confined.files, s->confined.calls, s->confined.memory);
        if (http_serve(s->http, &s->stack.served, f) < 0)
            return -EIO;
        say_serving(s);
    }
    return 0;
}

/* Its end would reset the connections that it holds: evenkeeld was killed, or is being replaced.
 * The next one takes the socket when it comes; if none does, they are told by a 503. */
static bool await_keeper(struct instance *s, uint64_t now, uint64_t deadline)
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
    begin_drain(s, 0, HTTP_DRAIN_REFUSE);
    s->idle_us = 0;
    return false;
}

/* Whether the process may end now: drained and sent, or past the deadline. */
static bool may_leave(struct instance *s)
{
    struct engine_stats st;
    pthread_mutex_lock(&s->lock);
    bool leaving = s->leaving;
    bool hold = s->hold;
    uint64_t deadline = s->deadline_us, now = ek_now_us();
    pthread_mutex_unlock(&s->lock);
    if (options_follows(&s->o))
        return atomic_load(&s->start) == START_ENDED || (leaving && s->cut);
    if (!leaving) {
        s->unkept_us = 0;
        return false;
    }
    if (atomic_load(&s->start) != START_READY || !s->serving)
        return true; /* nothing was ever accepted */
    engine_stats(s->stack.engine, &st);
    if (st.drain != ENGINE_DRAINED || http_active(s->http) > 0)
        s->idle_us = 0;
    else if (s->idle_us == 0)
        s->idle_us = now;
    bool linger = hold || s->unkept_us;
    bool calm = s->idle_us && (!linger || http_open(s->http) == 0 || now >= s->idle_us + LINGER_US);
    if (!calm && now <= deadline + FLUSH_US)
        return false;
    if (hold && s->o.listen_from_control && !http_kept(s->http))
        return await_keeper(s, now, deadline);
    pthread_mutex_lock(&s->lock);
    leaving = s->leaving; /* it may have been taken back just now */
    s->bound = leaving;
    pthread_mutex_unlock(&s->lock);
    return leaving;
}

static int final_code(struct instance *s, char *why, size_t size, struct ek_buf *numbers)
{
    struct engine_stats st = {0};
    int code = s->leave_code;
    if (atomic_load(&s->start) == START_READY)
        engine_stats(s->stack.engine, &st);
    if (options_follows(&s->o)) {
        const bool ended = atomic_load(&s->start) == START_ENDED;
        code = !ended && atomic_load(&s->stack.cluster) ? EK_EXIT_CUT
               : ended && !s->leaving                   ? s->start_code
                                                        : EK_EXIT_OK;
        (void)snprintf(why, size, "%s",
                       !ended                    ? "asked twice to stop"
                       : s->leaving              ? "asked to stop; node 0 drained for it"
                       : code == EK_EXIT_RESTART ? "node 0 drained for a restart"
                                                 : "node 0 ended the group");
        return code;
    }
    uint32_t open = http_active(s->http);
    uint64_t cut = st.finished[REQ_FIN_DEADLINE] - s->cut_before;
    (void)ek_buf_printf(numbers,
                        "\"running\":%u,\"waiting\":%u,\"open\":%u,\"cut\":%llu,\"steps\":%llu,"
                        "\"generation_tokens\":%llu,\"preemptions\":%llu",
                        st.running, st.waiting, open, (unsigned long long)cut,
                        (unsigned long long)st.steps, (unsigned long long)st.generation_tokens,
                        (unsigned long long)st.preemptions);
    if (cut || st.running || st.waiting || open) {
        (void)snprintf(why, size,
                       "asked to stop; the deadline cut %llu requests, %u answers were not read",
                       (unsigned long long)cut, open);
        return EK_EXIT_CUT;
    }
    (void)snprintf(why, size, "%s",
                   code == EK_EXIT_RESTART ? "drained for a restart"
                                           : "asked to stop; all requests done");
    return code;
}

/* The last resort of an end: threads that do not come to theirs are left behind. */
static void *run_ending(void *arg)
{
    const struct instance *s = arg;

    (void)sleep(ENDING_S);
    ek_log(EK_LOG_WARNING, "Ending took longer than %u s: what still ran is left behind", ENDING_S);
    ek_log_flush();
    _exit(s->stack.end_code);
}

static void bound_ending(struct instance *s)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run_ending, s) == 0)
        (void)pthread_detach(thread); /* without it the service manager's own bound is left */
}

/* The engine is dead: clients get their error, then the process ends without touching it again. */
static void end_dead(struct instance *s) __attribute__((noreturn));
static void end_dead(struct instance *s)
{
    http_fail(s->http, s->dead_why);
    ek_log(EK_LOG_ERR, "The engine cannot go on: %s; ending with code %d (%s)", s->dead_why,
           s->dead_code, exit_record_class(s->dead_code));
    (void)sd_notifyf(0, "STOPPING=1\nSTATUS=Failed: %s", s->dead_why);
    uint64_t until = ek_now_us() + EK_US_PER_S;
    while (http_active(s->http) > 0 && ek_now_us() < until)
        (void)usleep(10000);
    exit_record_write(&s->exit_record, s->dead_code, s->dead_why, "");
    s->stack.end_code = s->dead_code;
    bound_ending(s);
    http_stop(s->http);
    ek_log_flush();
    ek_cluster_abort(atomic_load(&s->stack.cluster), s->dead_code);
    _exit(s->dead_code);
}

/* A thread does not come round: nothing else can free it, and others wait for what it holds. */
static void end_looping(struct instance *s, const struct http_thread *t, enum watch_verdict verdict)
    __attribute__((noreturn));
static void end_looping(struct instance *s, const struct http_thread *t, enum watch_verdict verdict)
{
    char stack[1600], why[128];
    struct ek_buf numbers = {0};

    (void)watch_stack(t->thread, stack, sizeof(stack));
    bool loops = verdict == WATCH_LOOPS;
    (void)snprintf(why, sizeof(why), "a thread (%s) %s more than %llu s on one thing", t->what,
                   loops ? "used" : "did nothing for",
                   (unsigned long long)((loops ? t->cpu_most_us : t->still_most_us) / EK_US_PER_S));
    ek_log(EK_LOG_ERR, "Ending with code %d (%s): %s; it is at %s", EK_EXIT_LOOP,
           exit_record_class(EK_EXIT_LOOP), why, stack[0] ? stack : "an unknown place");
    (void)sd_notifyf(0, "STOPPING=1\nSTATUS=Failed: %s", why);
    (void)ek_buf_printf(&numbers, "\"thread\":\"%s\",\"stack\":\"%s\"", t->what, stack);
    exit_record_write(&s->exit_record, EK_EXIT_LOOP, why, ek_buf_ok(&numbers) ? numbers.data : "");
    ek_log_flush();
    _exit(EK_EXIT_LOOP);
}

static void look_for_loops(struct instance *s)
{
    struct http_thread threads[WATCH_THREADS];
    uint64_t now = ek_now_us();

    if (now < s->watched_us + WATCH_EVERY_US)
        return;
    s->watched_us = now;
    const struct http_thread *t = NULL;
    enum watch_verdict v =
        watch_look(&s->watch, threads, http_watched(s->http, threads, WATCH_THREADS), &t);
    if (v != WATCH_WELL)
        end_looping(s, t, v);
}

static void feed_watchdog(struct instance *s)
{
    struct engine_stats st = {0};
    uint64_t now = ek_now_us(), limit = (uint64_t)(s->o.step_deadline * 1e6);
    if (s->serving)
        engine_stats(s->stack.engine, &st);
    if (!limit || !st.step_started_us || now < st.step_started_us + limit)
        (void)sd_notify(0, "WATCHDOG=1");
}

/* Until it is time to end. Negative = the start failed. */
static int serve(struct instance *s, struct ek_fault *f)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool dead = s->dead, leaving = s->leaving;
        pthread_mutex_unlock(&s->lock);
        if (dead)
            end_dead(s);
        if (may_leave(s))
            return 0;
        struct pollfd p[] = {
            {.fd = s->signals, .events = POLLIN},
            {.fd = s->event, .events = POLLIN},
            {.fd = s->listening ? -1 : http_listen_event(s->http), .events = POLLIN}};
        if (poll(p, 3, leaving ? TICK_BUSY_MS : TICK_MS) < 0 && errno != EINTR)
            return -errno;
        eventfd_t count;
        if (p[1].revents)
            (void)eventfd_read(s->event, &count);
        if (p[0].revents)
            on_signal(s);
        int r = on_events(s, f);
        if (r < 0)
            return r;
        feed_watchdog(s);
        look_for_loops(s);
    }
}

/* Who waits for a start that failed is told by a 503, which a proxy sends elsewhere, and not by a
 * reset, after which nobody knows whether the request was run. */
static void refuse_waiting(struct instance *s, const char *why)
{
    uint64_t until = ek_now_us() + EK_US_PER_S;
    if (!s->listening)
        return;
    http_drain(s->http, kept_mode(s));
    http_fail(s->http, why);
    while (http_waiting(s->http) > 0 && ek_now_us() < until)
        (void)usleep(10000);
}

static int end_failed(struct instance *s, int code, const struct ek_fault *f)
{
    ek_log(EK_LOG_ERR, "%s", f->msg[0] ? f->msg : "cannot start");
    (void)sd_notifyf(0, "STATUS=Failed: %.200s", f->msg);
    refuse_waiting(s, f->msg);
    exit_record_write(&s->exit_record, code, f->msg, "");
    return code;
}

/* Held from the first moment on: a SIGHUP before they are read would end the process. */
static int hold_signals(int how, sigset_t *ret_set)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGTERM);
    (void)sigaddset(ret_set, SIGINT);
    (void)sigaddset(ret_set, SIGHUP);
    return pthread_sigmask(how, ret_set, NULL);
}

/* Signals are read from a descriptor, so that no handler and no thread is surprised by one. */
static int open_events(struct instance *s)
{
    sigset_t set;
    if (hold_signals(SIG_BLOCK, &set) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -EINVAL;
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->signals < 0 || s->event < 0 ? -errno : -pthread_mutex_init(&s->lock, NULL);
}

static int main_run(struct instance *s)
{
    struct ek_fault f = {0};
    struct ek_buf numbers = {0};
    char why[160];
    int code = EK_EXIT_CONFIG;
    if (options_follows(&s->o)) /* what evenkeeld and systemd are told is node 0's to tell */
        (void)unsetenv("NOTIFY_SOCKET");
    else
        exit_record_open(&s->exit_record, s->o.state_dir, s->o.control_socket);
    s->exit_record.started_by_mpi = s->o.nnodes > 1;
    watch_open();
    if (open_events(s) < 0)
        return EK_EXIT_INTERNAL;
    s->stack.dead = on_dead;
    s->stack.leaving = on_leaving;
    s->stack.dead_ctx = s;
    s->stack.bar = isatty(STDERR_FILENO);
    int r = open_http(s, &f);
    if (r == 0) {
        r = -pthread_create(&s->starter, NULL, run_starter, s);
        s->starter_runs = r == 0;
        code = EK_EXIT_INTERNAL;
    }
    if (r == 0)
        r = serve(s, &f);
    if (r < 0) {
        if (atomic_load(&s->start) == START_FAILED)
            code = options_follows(&s->o) && s->leaving ? EK_EXIT_CUT : s->start_code;
        code = end_failed(s, code, &f);
    } else {
        code = final_code(s, why, sizeof(why), &numbers);
        ek_log(EK_LOG_NOTICE, "Ending with code %d: %s", code, why);
        exit_record_write(&s->exit_record, code, why, numbers.data ? numbers.data : "");
    }
    ek_buf_done(&numbers);
    s->stack.end_code = code;
    bound_ending(s);
    if (s->starter_runs && atomic_load(&s->start) == START_RUNNING) {
        (void)pthread_detach(s->starter); /* the load cannot be interrupted: do not wait for it */
        http_stop(s->http);
        ek_log_flush();
        ek_cluster_abort(atomic_load(&s->stack.cluster), code);
        _exit(code);
    }
    if (s->starter_runs)
        (void)pthread_join(s->starter, NULL);
    http_stop(s->http);
    if (s->o.uds && s->listening)
        (void)unlink(s->o.uds); /* our own: a stale one is replaced at the next start anyway */
    start_done(&s->stack);
    http_free(s->http);
    return code;
}

/* Where the engine runs, and what that is good for; once. */
static void say_engine_group(const struct engine_cgroup *g)
{
    if (!g->path[0])
        ek_log(EK_LOG_WARNING,
               "The engine's process shares the server's cgroup, and their memory limit: %s",
               g->why);
    else if (g->most_bytes < UINT64_MAX)
        ek_log(EK_LOG_INFO, "The engine's process has the cgroup %s, and at most %.2f GiB in it",
               g->path, (double)g->most_bytes / 0x1p30);
    else
        ek_log(EK_LOG_INFO,
               "The engine's process has the cgroup %s, without a memory limit of its own: %s",
               g->path, g->why);
}

int main(int argc, char **argv)
{
    struct instance s = {0};
    struct ek_fault f = {0};
    enum ek_log_level level = EK_LOG_INFO;
    sigset_t set;
    if (hold_signals(SIG_BLOCK, &set) != 0)
        return EK_EXIT_INTERNAL;
    const int score = launcher_score_open();
    confine_memory(false, &s.confined); /* before there is a key in it */
    ek_log_begin("evenkeel-server", level);
    int code = EK_EXIT_USAGE;
    int r = options_read(&s.o, argc, argv, on_warning, NULL, &f);
    if (r == 0)
        r = access_options_hide(&s.o, argc, argv);
    if (r == 0)
        r = access_options_check(&s.o, &f);
    if (r == 0 && (code = print_and_end(&s.o)) >= 0)
        goto out;
    code = EK_EXIT_USAGE;
    if (r == 0 && !s.o.model)
        r = ek_fault_set(&f, "model",
                         "no model: give its directory as the first argument or with "
                         "--model");
    if (r < 0) {
        ek_log(EK_LOG_ERR, "%s", f.msg[0] ? f.msg : ek_strerror(r));
        goto out;
    }
    if (s.o.dumpable)
        confine_memory(true, &s.confined);
    check_model(&s.stack.check, &s.o); /* this and the next while there is one thread */
    if (!s.o.dry_run)
        prefix_file_folder(&s.o);
    if (s.o.engine_process && !s.o.dry_run)
        engine_cgroup_make(&s.engine_group, (uint64_t)(s.o.engine_memory_max * 0x1p30));
    if (!s.o.dry_run)
        confine_files(&s.o, &s.confined);
    (void)ek_log_parse_level(s.o.log_level, &level);
    ek_log_set_most(level);
    if (!s.o.dry_run)
        s.most_sockets = raise_file_limit(&s.o); /* also of the engines that the launcher starts */
    if (s.o.engine_process && !s.o.dry_run &&
        launcher_begin(&s.stack.launcher, &s.o, &s.engine_group, score) < 0) {
        ek_log(EK_LOG_ERR, "--engine-process: no process can be made for it");
        code = EK_EXIT_INTERNAL;
        goto out;
    }
    if (score >= 0)
        (void)close(score); /* the kernel has taken what was written */
    ek_log_open("evenkeel-server", level);
    if (s.o.engine_process && !s.o.dry_run)
        say_engine_group(&s.engine_group);
    s.stack.o = &s.o;
    if (s.o.dry_run) /* its caller may end it with a signal */
        (void)hold_signals(SIG_UNBLOCK, &set);
    ek_backend_prepare(s.o.nnodes == 1);
    code = !s.o.dry_run ? main_run(&s) : options_follows(&s.o) ? EK_EXIT_OK : print_plan(&s.stack);
out:
    options_done(&s.o);
    return code;
}

/*
 * evenkeel-server: start, serve, end.
 *
 * The main thread waits for signals and events; a starter thread builds the stack (start.h). Order:
 * options, log, control socket, listening socket, then model, plan, weights, engine, and with the
 * engine the API. SIGTERM and SIGINT drain, a second one cuts (drain.h). However it ends, exit.json
 * says why, and the exit code is one of common/err.h.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "kernels/registry.h"
#include "server/access_options.h"
#include "server/drain.h"
#include "server/engine_node.h"
#include "server/instance.h"
#include "server/listening.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/net/http.h"
#include "server/nodes.h"
#include "server/prefix_file.h"
#include "server/print.h"
#include "server/start.h"

#define ENDING_S     8u /* from the decision to end to the end, whatever is still going on */
#define TICK_BUSY_MS 20
#define TICK_NODE_MS 100 /* between two looks whether another node was asked to stop */
#define TICK_MS      1000

static void on_warning(void *ctx, const char *msg)
{
    (void)ctx;
    ek_log(EK_LOG_WARNING, "%s", msg);
}

/* A node that follows is there until node 0 ends. */
static void run_follower(struct instance *s)
{
    int code = EK_EXIT_INTERNAL;
    const bool leads = s->o.node_rank == 0; /* of an engine: its server tells what is done */
    int r = leads ? engine_node_run(&s->stack, &code, &s->fault)
                  : start_follower(&s->stack, &code, &s->fault);
    if (r == 0 && !leads)
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
        if (t->model->index_tokens > 0)
            ek_log(EK_LOG_INFO,
                   "The model's attention chooses %u tokens (index_topk); it is served up to that "
                   "length, where it sees all of them",
                   t->model->index_tokens);
        print_plan_to_log(t);
        r = start_load(t, &code, &s->fault);
    }
    s->start_code = code;
    atomic_store(&s->start, r == 0 ? START_READY : START_FAILED);
    (void)eventfd_write(s->event, 1);
    return NULL;
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
                       listening_host(s) ? listening_host(s) : "0.0.0.0", s->port);
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
        if (fd >= 0 && listening_with(s, fd, f) < 0)
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
        drain_on_serving(s);
        say_serving(s);
    }
    return 0;
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

/* The last resort: when ending takes too long, the threads that still run are left behind. arg is
 * the exit code itself: main() may have returned meanwhile, and with it what its stack held. */
static void *run_ending(void *arg)
{
    (void)sleep(ENDING_S);
    ek_log(EK_LOG_WARNING, "Ending took longer than %u s: what still ran is left behind", ENDING_S);
    ek_log_flush();
    _exit((int)(intptr_t)arg);
}

static void bound_ending(const struct instance *s)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run_ending, (void *)(intptr_t)s->stack.end_code) == 0)
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

/* A thread is stuck with what others wait for, and nothing but the end of the process frees it. */
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
    if (!limit || engine_stuck_us(&st, now) <= limit)
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
        if (drain_may_leave(s))
            return 0;
        struct pollfd p[] = {
            {.fd = s->signals, .events = POLLIN},
            {.fd = s->event, .events = POLLIN},
            {.fd = s->listening ? -1 : http_listen_event(s->http), .events = POLLIN}};
        const bool leads = options_is_node(&s->o) && !options_follows(&s->o);
        const int calm_ms = leads ? TICK_NODE_MS : TICK_MS;
        if (poll(p, 3, leaving ? TICK_BUSY_MS : calm_ms) < 0 && errno != EINTR)
            return -errno;
        eventfd_t count;
        if (p[1].revents)
            (void)eventfd_read(s->event, &count);
        if (p[0].revents)
            drain_on_signal(s);
        if (nodes_asked(&s->stack))
            drain_on_node(s);
        int r = on_events(s, f);
        if (r < 0)
            return r;
        feed_watchdog(s);
        look_for_loops(s);
    }
}

/* The start failed or was stopped. Clients that wait for it get a 503, which a proxy sends
 * elsewhere, and not a reset, after which nothing says whether their request was run. */
static void refuse_waiting(struct instance *s, const char *why)
{
    uint64_t until = ek_now_us() + EK_US_PER_S;
    if (!s->listening)
        return;
    http_drain(s->http, drain_kept_mode(s));
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

/* A node of an engine holds nothing that anybody waits for but its server, which goes on: a signal
 * ends it at once, and so does the end of the process that started it. */
static void end_with_engine(void)
{
    sigset_t set;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)hold_signals(SIG_UNBLOCK, &set);
    (void)signal(SIGHUP, SIG_IGN);
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
    s->exit_record.started_by_mpi = options_is_node(&s->o);
    watch_open();
    if (open_events(s) < 0)
        return EK_EXIT_INTERNAL;
    if (s->o.engine_node)
        end_with_engine();
    s->stack.dead = drain_on_dead;
    s->stack.dead_ctx = s;
    s->stack.bar = isatty(STDERR_FILENO);
    int r = listening_open(s, &f);
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
        if (http_parked(s->http) > 0)
            refuse_waiting(s, "asked to stop while it loaded");
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

/* The launcher has the server's rules for files, or its engines have their own. */
static int confine_and_launch(struct instance *s, int score)
{
    bool first = s->o.engine_process && confine_engine_itself(&s->o);
    int r =
        first ? launcher_begin(&s->stack.launcher, &s->o, &s->engine_group, score, &s->stack.check)
              : 0;

    confine_files(&s->o, &s->confined);
    if (s->o.engine_process && !first)
        r = launcher_begin(&s->stack.launcher, &s->o, &s->engine_group, score, &s->stack.check);
    return r;
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
    (void)signal(SIGXFSZ, SIG_IGN); /* write() says that a file has its most (ulimit -f) */
    const int score = launcher_score_open();
    confine_memory(false, &s.confined); /* before there is a key in it */
    ek_log_begin("evenkeel-server", level);
    int code = EK_EXIT_USAGE;
    int r = options_read(&s.o, argc, argv, on_warning, NULL, &f);
    s.o.argv = argv;
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
    (void)ek_log_parse_level(s.o.log_level, &level);
    ek_log_set_most(level);
    if (!s.o.dry_run)
        s.most_sockets = listening_files(&s.o); /* also of the engines that the launcher starts */
    ek_backend_prepare(!options_is_node(&s.o));
    if (!s.o.dry_run && confine_and_launch(&s, score) < 0) {
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
    (void)sigbus_watch(s.o.model, EK_EXIT_CONFIG); /* until the model's files are closed */
    code = !s.o.dry_run ? main_run(&s) : options_follows(&s.o) ? EK_EXIT_OK : print_plan(&s.stack);
out:
    options_done(&s.o);
    return code;
}

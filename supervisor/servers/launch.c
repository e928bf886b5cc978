/*
 * How a server comes to be: its address, its output, its process, or one that runs already. Called
 * by the loop once for each server (server_begin), then by whatever ends a wait: a backoff, the
 * operator, a remedy, a port that became free (server_launch).
 *
 * server_begin() looks for a process first, since evenkeeld may have been replaced while its
 * servers went on. Where the engine has a control socket, that is asked for the listening socket
 * (handoff.h). Its answer is believed as far as the note of its pid goes, which evenkeeld wrote
 * when it started it: the noted process, or one of its session; without a note, a process of our
 * own user. An engine without such a socket is found by the note alone. A pid may be another
 * process's by now, so the note is read again once the process is watched (adopt()). What is found
 * is adopted: no start, no count of one, and its flags are those that the next start would have,
 * until it tells others. What is not found leaves the decision to life.c, which knows what the
 * server was doing when the last evenkeeld wrote of it.
 *
 * server_launch() starts one, and each step may end it in one of three ways: it waits for what is
 * lacking (prestart.c: a port, memory, a device, a full disk), it counts as a failed start with a
 * class (server_start_failed()), or it goes on:
 *   1. bind the address, unless the socket is there: kept by us, by systemd or by the last process;
 *   2. prestart_check(): is there room on cards and in memory;
 *   3. the API key's file, the run directory and its owner, the output: a file or the journal;
 *   4. the command line: what is configured, what remedies and operators want (command_line.h);
 *   5. the process: a child in a cgroup of its own, or a unit of systemd (launch_unit.c).
 * An evenkeel-server that is run without a shell or another program before it has the socket from
 * its first moment on, so that an evenkeeld that is killed now leaves it to somebody. To others
 * server.c gives it over the control socket as soon as that answers (hand_over()). Connections wait
 * in it through the whole start.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/fnv.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/handoff.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/io/reject_listener.h"
#include "supervisor/io/state.h"
#include "supervisor/law/dry_answer.h"
#include "supervisor/servers/command_line.h"
#include "supervisor/servers/server_inside.h"
#include "supervisor/servers/server_past.h"

#define HANDOFF_MS     2000u
#define LISTEN_BACKLOG 1024
#define OOM_SCORE_ADJ  200 /* rather the server than evenkeeld */

/* Addresses */

void server_set_urls(struct server *s)
{
    const char *host = s->config->host;
    if (!*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        host = "127.0.0.1";
    bool v6 = strchr(host, ':') != NULL;
    (void)snprintf(s->address.url, sizeof(s->address.url), "http://%s%s%s:%u", v6 ? "[" : "", host,
                   v6 ? "]" : "", s->address.port);
    (void)snprintf(s->address.where, sizeof(s->address.where), "%s/metrics",
                   s->address.control_path[0] ? "http://localhost" : s->address.url);
}

static void take_socket(struct server *s, int fd, unsigned port)
{
    s->socket.fd = fd;
    s->address.port = port;
    server_set_urls(s);
}

/* A server that gives us another descriptor (it is not trusted) would have clients sent there, and
 * its successor would be handed it. */
void server_give_fd(struct server *s, int fd)
{
    unsigned port = ek_is_listener(fd) ? ek_tcp_port(fd) : 0, own = (unsigned)s->config->port;
    bool good = port != 0 && (own == 0 || port == own);
    if (s->socket.fd >= 0 || !s->config->dialect->control_socket || !good) {
        if (!good)
            ek_log(EK_LOG_WARNING,
                   "%s: what was given as its listening socket is none of port %u and is not used",
                   s->config->name, own);
        close(fd);
        return;
    }
    take_socket(s, fd, port);
}

int server_bind(struct server *s)
{
    if (s->socket.fd >= 0 || !s->config->dialect->control_socket)
        return 0;
    unsigned port = 0;
    int fd = ek_listen_tcp(*s->config->host ? s->config->host : NULL,
                           s->address.port ? s->address.port : (unsigned)s->config->port,
                           LISTEN_BACKLOG, &port);
    if (fd < 0)
        return fd;
    take_socket(s, fd, port);
    s->with->keep_fd(s->with->ctx, s->config->name, fd);
    return 0;
}

static int on_exit_io(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    (void)source;
    (void)fd;
    (void)revents;
    server_check_exit(ctx);
    return 0;
}

static bool watch_exit(struct server *s)
{
    return sd_event_add_io(s->with->event, &s->process.exit_io, s->process.child.pidfd, EPOLLIN,
                           on_exit_io, s) >= 0;
}

/* Start */

void server_bound_log(struct server *s)
{
    if (s->process.log.path[0] && logtail_bound(&s->process.log) == 1)
        ek_log(EK_LOG_INFO, "%s: rotated %s", s->config->name, s->process.log.path);
}

static int open_output(struct server *s)
{
    const struct server_config *c = s->config;
    s->process.log.most_bytes = c->log_max_bytes;
    s->process.log.path[0] = '\0';
    /* An engine that leaves no exit.json explains itself by its output alone: that goes to a file,
     * where it can be read when the process has ended. */
    if (!c->log_file && s->with->journal && c->dialect->exit_word)
        return sd_journal_stream_fd(c->name, EK_LOG_INFO, 1);
    int n = c->log_file
                ? snprintf(s->process.log.path, sizeof(s->process.log.path), "%s", c->log_file)
                : snprintf(s->process.log.path, sizeof(s->process.log.path), "%s/%s.log",
                           s->with->config->state_dir, c->name);
    if (n < 0 || (size_t)n >= sizeof(s->process.log.path)) {
        s->process.log.path[0] = '\0';
        return -ENAMETOOLONG;
    }
    server_bound_log(s); /* what the one before wrote after the last look */
    int fd = logtail_open(&s->process.log);
    if (fd != -EROFS && fd != -ENOSPC && fd != -EDQUOT && fd != -ENXIO) /* that: nobody reads it */
        return fd;
    ek_log(EK_LOG_WARNING, "%s: %s cannot be written: %s; its output is lost", c->name,
           s->process.log.path, ek_strerror(fd));
    s->process.log.path[0] = '\0';
    fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A unit's output is the unit's; a file that it appends to may be named. */
static int note_output(struct server *s)
{
    s->process.log.path[0] = '\0';
    if (s->config->log_file) {
        (void)snprintf(s->process.log.path, sizeof(s->process.log.path), "%s", s->config->log_file);
        s->process.log.most_bytes = UINT64_MAX; /* its writer bounds it */
        logtail_mark(&s->process.log);
    }
    return -1;
}

/* Two evenkeelds on one machine have different run directories; their cgroups must differ too. */
static void cgroup_name(const struct server *s, char *ret_name, size_t size)
{
    const char *dir = s->with->config->run_dir;
    (void)snprintf(ret_name, size, "evenkeel-%s-%08x", s->config->name,
                   (unsigned)ek_fnv(EK_FNV_BEGIN, dir, strlen(dir)));
}

/* Where no server can write: the process that it names is ended. No server's name begins with a
 * dot. */
static void pid_path(const struct server *s, char *ret_path, size_t size)
{
    (void)snprintf(ret_path, size, "%s/.%s.pid", s->with->config->run_dir, s->config->name);
}

/* Also where earlier versions left it, unless that directory is another user's. */
static int find_pid(const struct server *s, pid_t *ret_pid)
{
    char path[300];
    pid_path(s, path, sizeof(path));
    int r = child_find_pid(path, ret_pid);
    if (r == 0 || s->config->user)
        return r;
    (void)snprintf(path, sizeof(path), "%s/%s/pid", s->with->config->run_dir, s->config->name);
    return child_find_pid(path, ret_pid);
}

void launch_started(struct server *s, const char *how, enum reason reason)
{
    char path[300];
    s->state = SRV_STARTING;
    if (!s->process.adopted)
        s->upkeep.asked = s->drain.restart_waits = false; /* this is the restart that was to wait */
    s->prestart.lack_wait_s = 0;
    s->process.started_us =
        ek_now_us() - (s->process.adopted ? (uint64_t)(child_age_s(&s->process.child) * 1e6) : 0);
    ek_oom_window_begin(&s->ends.ooms, server_oom_kills(s), ek_now_us());
    s->unit.oom = false;
    s->unit.kills = 0;
    s->prove.needs[0] = s->drain.refused[0] = '\0';
    s->memory.now = MEMORY_UNKNOWN;
    s->leaks.left_s = NAN;
    s->address.model[0] = '\0';
    pid_path(s, path, sizeof(path));
    int r = child_note_pid(&s->process.child, path);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "%s: cannot write %s: %s", s->config->name, path, ek_strerror(r));
    if (!watch_exit(s)) {
        server_signal(s, SIGKILL);
        server_start_failed(s, CRASH_UNKNOWN, true, "could not watch the process", -ENOMEM);
        return;
    }
    past_settle(s);
    past_runs(s);
    server_note(s, ACT_NOTE, reason, "%s process %d%s", how, (int)s->process.child.pid,
                s->process.child.cgroup >= 0 ? " in a cgroup of its own" : "");
    server_arm(s, s->config->start_deadline_s);
    server_arm_probe(s, 0);
    if (s->process.adopted)
        life_adopted(s);
}

/* At every start: a cleaner of /tmp or /run may have taken it, and the server needs it. */
static void make_run_dir(const struct server *s)
{
    char path[300];
    int n = snprintf(path, sizeof(path), "%s/%s", s->with->config->run_dir, s->config->name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return; /* the control socket's path was checked to be shorter */
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return;
    if (errno == ENOENT && mkdir(s->with->config->run_dir, 0755) == 0 && mkdir(path, 0700) == 0)
        return;
    ek_log(EK_LOG_WARNING, "%s: cannot make %s: %s", s->config->name, path, ek_strerror(-errno));
}

/* To a user of its own: its run directory, and the folder of its cached prefixes. Without one the
 * run directory is taken back from its owner before the configuration was changed. */
static int give_dirs(const struct server *s)
{
    const struct server_config *c = s->config;
    const struct run_as *user = &c->run_as;
    char path[4200];
    if (!user->set && c->unit)
        return 0; /* its unit alone says whose it is */
    int n = snprintf(path, sizeof(path), "%s/%s", s->with->config->run_dir, c->name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return -ENAMETOOLONG;
    int r = user->set ? run_as_own_dir(user, path) : run_as_take_back(path);
    const char *slash = c->prefix_file ? strrchr(c->prefix_file, '/') : NULL;
    if (r < 0 || !slash || !user->set || c->unit) /* a unit has systemd give it its folder */
        return r;
    n = snprintf(path, sizeof(path), "%.*s", (int)(slash - c->prefix_file), c->prefix_file);
    if (n > 0 && (size_t)n < sizeof(path) && run_as_own_dir(user, path) < 0)
        ek_log(EK_LOG_WARNING, "%s: %s cannot be given to user %s: no cached prefixes are kept",
               c->name, path, user->name);
    return 0;
}

int launch_words(const struct server *s, struct command_line *w)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    struct remedy_settings caps = {0};
    char limits[128] = "";
    if (row && s->config->policy.mode == MODE_ACT)
        caps = row->remedy.caps;
    int r = command_line_make(s->config, &s->repair.trial, &caps, w);
    if (r < 0)
        return r;
    if (s->config->dialect->key_env && s->address.key[0] && !key_in_flags(s->config->api_key_file))
        command_line_add_key(w, s->config->dialect->key_env, s->address.key);
    action_start_limits(s, limits, sizeof(limits));
    command_line_add_limits(w, limits);
    return 0;
}

/* Fills *w; on failure it is empty. Notes what the process has. */
static int make_words(struct server *s, struct command_line *w)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    if (row && remedy_expire(&row->remedy, ek_wall_us()))
        ek_log(EK_LOG_INFO,
               "%s: what running out of memory taught is a day old: its own flags again",
               s->config->name);
    int r = launch_words(s, w);
    if (r < 0)
        return r;
    bool taught = row && s->config->policy.mode == MODE_ACT && row->remedy.caps.expandable;
    s->repair.in_file = w->file;
    s->repair.running = w->running;
    s->repair.said = (struct remedy_settings){0};
    s->repair.running.expandable = taught || command_line_segments_settled(s->config);
    return 0;
}

int launch_note_words(struct server *s)
{
    struct command_line words;
    int r = make_words(s, &words);
    if (r == 0)
        command_line_done(&words);
    return r;
}

/* As a child of our own. */
static void spawn(struct server *s, const struct command_line *words, int out)
{
    char name[64], what[280];
    /* Of what stands between, as a shell, it is not known to which process it would leave the
     * socket. */
    bool given = s->socket.fd > STDERR_FILENO && s->config->dialect->exit_word &&
                 dry_answer_can(words->argv);
    cgroup_name(s, name, sizeof(name));
    struct child_spec spec = {.argv = words->argv,
                              .env = words->env,
                              .out_fd = out,
                              .cgroup_name = name,
                              .level_prefix = !s->process.log.path[0],
                              .listen_fd = given ? s->socket.fd : 0,
                              .user = &s->config->run_as,
                              .isolated = s->config->isolated,
                              .oom_score_adj = OOM_SCORE_ADJ};
    int r = child_spawn(&s->process.child, &spec);
    if (r < 0) {
        command_line_cannot_run(s->config, words->argv[0], r, what, sizeof(what));
        if (!prestart_wait_lack(s, what, r))
            server_start_failed(s, CRASH_CONFIG, false, what, r);
        return;
    }
    bool first = s->process.cause == RESTART_CAUSES;
    if (!first) {
        s->ends.restarts[s->process.cause]++;
        past_restarted(s);
    }
    s->process.cause = CAUSE_CRASH;
    s->socket.taking = given; /* it is asked whether it took it: an older one does not */
    launch_started(s, "Started", REASON_STARTED);
    if (first)
        repair_say(s);
}

/* What can no longer be read stays as it was. */
static void launch_read_key(struct server *s)
{
    char fresh[KEY_MOST];
    int r = key_read(s->config->api_key_file, fresh, sizeof(fresh));
    if (r == 0)
        memcpy(s->address.key, fresh, sizeof(fresh));
    else
        ek_log(EK_LOG_WARNING, "%s: cannot read its API key from %s: %s", s->config->name,
               s->config->api_key_file, ek_strerror(r));
    explicit_bzero(fresh, sizeof(fresh));
    s->address.asked_key = false;
}

void server_launch(struct server *s)
{
    const struct server_config *c = s->config;
    char what[160];
    repair_stop(s, "started again before a remedy was found");
    reject_listener_free(s->socket.rejects);
    s->socket.rejects = NULL;
    obstacle_stop(s);
    int r = server_bind(s);
    if (r == -EADDRINUSE || r == -EADDRNOTAVAIL) {
        prestart_wait_port(s, r);
        return;
    }
    if (r < 0) {
        (void)snprintf(what, sizeof(what), "cannot listen on %s port %u", c->host,
                       s->address.port ? s->address.port : (unsigned)c->port);
        if (!prestart_wait_lack(s, what, r))
            server_start_failed(s, CRASH_CONFIG, false, what, r);
        return;
    }
    server_set_urls(s);
    if (!prestart_check(s))
        return;
    launch_read_key(s);
    make_run_dir(s);
    r = give_dirs(s);
    if (r < 0) {
        (void)snprintf(what, sizeof(what), "cannot give its run directory to %.60s",
                       c->run_as.set ? c->run_as.name : "evenkeeld's user");
        server_start_failed(s, CRASH_DISK, true, what, r);
        return;
    }
    int out = s->unit.unit ? note_output(s) : open_output(s);
    if (out < 0 && !s->unit.unit) {
        (void)snprintf(what, sizeof(what), "cannot open its output %.100s", s->process.log.path);
        bool wrong = out == -ENOENT || out == -ENOTDIR || out == -EISDIR || out == -EACCES;
        if (!prestart_wait_lack(s, what, out))
            server_start_failed(s, wrong ? CRASH_CONFIG : CRASH_DISK, !wrong, what, out);
        return;
    }
    struct command_line words;
    r = make_words(s, &words);
    if (r < 0) {
        server_start_failed(s, CRASH_UNKNOWN, true, "its command line", r);
    } else {
        if (s->unit.unit)
            launch_unit(s, &words);
        else
            spawn(s, &words, out);
        command_line_done(&words);
    }
    if (out >= 0)
        close(out);
}

/* Adoption */

/* `noted`: its number is from our note, and must still be that process's once it is watched. */
static void adopt(struct server *s, pid_t pid, bool noted)
{
    char name[64];
    pid_t again;
    cgroup_name(s, name, sizeof(name));
    int r = child_adopt(&s->process.child, pid, name);
    if (noted && r == 0 && (find_pid(s, &again) != 0 || again != pid)) {
        child_done(&s->process.child);
        r = -ESRCH;
    }
    if (r == -ESRCH) { /* it ended just now */
        life_none_runs(s);
        return;
    }
    if (r < 0) {
        ek_log(EK_LOG_ERR, "%s: process %d answers but cannot be watched: %s", s->config->name,
               (int)pid, ek_strerror(r));
        s->state = SRV_BACKOFF;
        s->process.cause = RESTART_CAUSES;
        server_arm(s, 1.0);
        return;
    }
    s->process.adopted = true;
    s->process.cause = CAUSE_CRASH;
    (void)launch_note_words(s); /* what it most likely was started with */
    server_set_urls(s);
    int out = open_output(s);
    if (out >= 0)
        close(out); /* the server has its own */
    if (s->process.log.path[0])
        logtail_mark(&s->process.log);
    launch_started(s, "Adopted", REASON_ADOPTED);
    repair_say(s);
}

/* The process that answers on the control socket is believed only as far as our note goes: it is
 * the noted process or one of its session. Without a living one it may be a server that somebody
 * else started as our own user; never where servers are another user's. */
static void on_found(void *ctx, const struct handoff_result *res)
{
    struct server *s = ctx;
    pid_t pid = res->peer;
    s->socket.handoff = NULL;
    bool noted = find_pid(s, &pid) == 0;
    bool own = noted ? res->peer == pid || (res->peer > 0 && getsid(res->peer) == pid)
                     : res->peer > 0 && res->peer_uid == geteuid() && !s->config->run_as.set;
    if (!own)
        ek_log(EK_LOG_WARNING, "%s: process %d of user %u answers on %s and is not believed: %s",
               s->config->name, (int)res->peer, (unsigned)res->peer_uid, s->address.control_path,
               noted ? "evenkeeld started another one" : "evenkeeld started none");
    if (own && res->error == 0) {
        server_give_fd(s, res->fd);
        s->socket.handed = true;
    } else if (res->error == 0) {
        close(res->fd);
    }
    s->socket.taking = own && res->error < 0 && res->error != -EPROTO;
    if (own || noted)
        adopt(s, pid, noted);
    else
        life_none_runs(s);
}

/* Out of the noted process, without its help: it may be stopped, or end before it has answered, and
 * then clients would be refused until another one listens. Where that is not allowed (it takes the
 * right to trace it) the process alone has the socket until it answers. */
static void take_from_noted(struct server *s, pid_t pid)
{
    pid_t again;
    unsigned port = (unsigned)s->config->port;
    int fd = port ? port_owner_take(pid, port) : -ENOENT;
    if (fd >= 0 && (find_pid(s, &again) != 0 || again != pid)) {
        close(fd);
        return;
    }
    if (fd < 0)
        return;
    server_give_fd(s, fd);
    if (s->socket.fd >= 0)
        s->with->keep_fd(s->with->ctx, s->config->name, s->socket.fd);
}

static void attach(struct server *s, const char *how)
{
    s->state = SRV_STARTING; /* without a deadline: it is not ours */
    s->process.started_us = ek_now_us();
    s->address.model[0] = '\0';
    server_set_urls(s);
    server_note(s, ACT_NOTE, REASON_ATTACHED, "%s %s", how, s->address.url);
    life_attached(s);
    server_arm_probe(s, 0);
}

void server_detached(struct server *s)
{
    watch_stop(s);
    action_stop(s);
    s->probe.ready = false;
    attach(s, "Waiting for");
}

void server_begin(struct server *s)
{
    pid_t pid;
    life_read(s); /* with an open breaker there is one try now; the next ones wait as before */
    s->want = WANT_RUN;
    launch_read_key(s);
    if (s->process.attached) {
        attach(s, "Attached to");
        return;
    }
    s->state = SRV_ADOPTING;
    s->process.cause = RESTART_CAUSES; /* the first start is no restart */
    make_run_dir(s);
    if (s->unit.unit) {
        launch_unit_begin(s);
        return;
    }
    if (!s->config->dialect->control_socket) {
        if (find_pid(s, &pid) == 0)
            adopt(s, pid, true);
        else
            life_none_runs(s);
        return;
    }
    if (s->socket.fd < 0 && find_pid(s, &pid) == 0)
        take_from_noted(s, pid);
    struct handoff_ask ask = {.path = s->address.control_path,
                              .verb = HANDOFF_GET,
                              .name = "listen",
                              .fd = -1,
                              .timeout_ms = HANDOFF_MS};
    int r = handoff_start(s->with->event, &ask, on_found, s, &s->socket.handoff);
    if (r == 0)
        return;
    if (find_pid(s, &pid) == 0) { /* it has just begun, and is asked when it listens */
        s->socket.taking = true;
        adopt(s, pid, true);
    } else {
        life_none_runs(s);
    }
}

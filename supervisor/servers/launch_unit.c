/*
 * Servers that systemd starts: a unit instead of a child. evenkeeld writes its arguments and
 * environment to a file that the unit reads, asks for the start, finds the process and watches its
 * pidfd like that of any other; how it ended systemd knows. The unit has Restart=no: two that
 * restart make a storm.
 *
 *   LOOKING  evenkeeld has just begun: adopt what runs, else start
 *   WAITING  a start is due; the last run may still be on its way out
 *   ASKED    StartUnit is under way, or was accepted and no process is seen yet
 *   RUNNING  there is a process
 *   ENDING   its pidfd said so; systemd is asked how
 *
 * When systemd cannot be asked nothing is started and nothing is ended: it is said once, and tried
 * again. A process that runs goes on being watched by its pidfd.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cgroup.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "common/file.h"
#include "common/log.h"
#include "supervisor/config/options_user.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/run_as.h"
#include "supervisor/io/unit.h"
#include "supervisor/servers/command_line.h"
#include "supervisor/servers/server_inside.h"
#include "supervisor/servers/server_past.h"

#define LOOK_S     0.2 /* between two questions while something is expected */
#define AGAIN_S    5.0 /* after systemd could not be reached */
#define USER_MOST  31  /* letters of a user's name: ek-NAME of a long NAME is none */
#define END_MOST_S 3.0 /* systemd may see the end a little later than we do */

static void launch_look(struct server *s);

/* Hold: neither a failure of the server nor a reason to end anything. */
static void unreachable(struct server *s, const char *text)
{
    if (!s->unit.said)
        server_note(s, ACT_NOTE, REASON_NO_SYSTEMD, "%.150s; trying again every %.0f s", text,
                    AGAIN_S);
    s->unit.said = true;
    s->state = SRV_BACKOFF;
    server_arm(s, AGAIN_S);
}

static void launch_refused(struct server *s, const char *text)
{
    char what[240];
    (void)snprintf(what, sizeof(what), "%s: %.160s", s->config->unit, text);
    server_start_failed(s, CRASH_CONFIG, false, what, 0);
}

/* Start */

static int write_file(const char *path, const struct ek_buf *text)
{
    return ek_file_replace(path, text->data, text->len, 0600, EK_FILE_PLAIN);
}

/* Into the directory of files that PID 1 reads, where no server can write (the units see only their
 * own run directory as writable): a symlink there would have PID 1 read a file of root's, and a
 * line more would be LD_PRELOAD. And where units of earlier versions look for it, NAME/unit.env. */
static int write_env(const struct server *s, const struct ek_buf *text)
{
    const char *run = s->with->config->run_dir, *name = s->config->name;
    char dir[300], path[400], old[300];
    int n = snprintf(dir, sizeof(dir), "%s/" RUN_AS_CLOSED, run);
    int m = snprintf(old, sizeof(old), "%s/%s/unit.env", run, name);
    if (n < 0 || (size_t)n >= sizeof(dir) || m < 0 || (size_t)m >= sizeof(old))
        return -ENAMETOOLONG;
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return -errno;
    (void)snprintf(path, sizeof(path), "%s/%s.env", dir, name);
    int r = write_file(path, text);
    return r < 0 ? r : write_file(old, text);
}

/* Its run directory, for whichever user systemd gives it; one that evenkeeld can name has its own.
 * A socket of the user before could not be tried by the next one. */
static int make_dir(const struct server *s)
{
    if (s->config->run_as.set)
        return 0;
    int r = run_as_closed_dir(s->with->config->run_dir, s->config->name);
    const char *path = s->address.control_path;
    int alive = r == 0 && path[0] ? ek_connect_unix(path, 1) : -ENOENT;
    if (alive >= 0)
        (void)close(alive);
    if (alive == -ECONNREFUSED)
        (void)unlink(path);
    return r;
}

/* EVENKEEL_ARGS and the environment, for the unit's EnvironmentFile=. */
static int write_words(const struct server *s, const struct command_line *w)
{
    struct ek_buf args = {0}, file = {0};
    char uid[16];
    int r = make_dir(s);
    for (size_t i = 1; w->argv[i] && r == 0; i++)
        r = unit_put_word(&args, w->argv[i]);
    if (r == 0)
        r = unit_put_line(&file, "EVENKEEL_ARGS", args.data ? args.data : "");
    for (size_t i = 0; w->env[i] && r == 0; i++) {
        char name[128];
        size_t len = strcspn(w->env[i], "=");
        (void)snprintf(name, sizeof(name), "%.*s", (int)len, w->env[i]);
        r = len < sizeof(name) && w->env[i][len] ? unit_put_line(&file, name, w->env[i] + len + 1)
                                                 : -EBADMSG;
    }
    (void)snprintf(uid, sizeof(uid), "%u", (unsigned)geteuid());
    if (r == 0 && s->config->dialect->control_socket)
        r = unit_put_line(&file, EK_CONTROL_UID, uid);
    if (r == 0)
        r = write_env(s, &file);
    ek_buf_done(&args);
    ek_buf_done(&file);
    return r;
}

static void on_started(void *ctx, int error, const struct unit_facts *facts, const char *text)
{
    struct server *s = ctx;
    (void)facts;
    if (s->state != SRV_STARTING)
        return;
    if (error == -EPERM)
        launch_refused(s, text);
    else if (error < 0)
        unreachable(s, text);
    else
        launch_look(s);
}

static void take_process(struct server *s, const struct unit_facts *f)
{
    bool found = s->unit.phase == UNIT_LOOKING;
    s->unit.said = false;
    int r = child_adopt(&s->process.child, f->main_pid, NULL);
    if (r == -ESRCH) { /* it ended just now: the next look tells how */
        server_arm_probe(s, LOOK_S);
        return;
    }
    if (r < 0) {
        server_start_failed(s, CRASH_UNKNOWN, true, "cannot watch the unit's process", r);
        return;
    }
    if (child_cgroup(&s->process.child, s->unit.cgroup, sizeof(s->unit.cgroup)) < 0)
        s->unit.cgroup[0] = '\0';
    bool asked = s->unit.phase == UNIT_ASKED;
    s->unit.phase = UNIT_RUNNING;
    s->process.adopted = !asked;
    if (asked && s->process.cause != RESTART_CAUSES) {
        s->ends.restarts[s->process.cause]++;
        past_restarted(s);
    }
    s->process.cause = CAUSE_CRASH;
    s->socket.taking = !asked && s->config->dialect->control_socket;
    if (found)
        (void)launch_note_words(s); /* what it most likely was started with */
    launch_started(s, asked ? "Started" : "Adopted", asked ? REASON_STARTED : REASON_ADOPTED);
}

static bool is_idle(const struct unit_facts *f)
{
    return strcmp(f->active, "inactive") == 0 || strcmp(f->active, "failed") == 0;
}

static struct child_exit exit_of(const struct unit_facts *f)
{
    return (struct child_exit){.known = f->code != 0,
                               .signaled = f->code != CLD_EXITED,
                               .core = f->code == CLD_DUMPED,
                               .code = f->status};
}

static void end_with(struct server *s, const struct unit_facts *f)
{
    struct child_exit e = {.known = false};
    if (f) {
        e = exit_of(f);
        s->unit.oom = strcmp(f->result, "oom-kill") == 0;
    }
    s->unit.phase = UNIT_WAITING;
    server_ended(s, e);
}

/* False when it runs as the user that the configuration wants; else says what to change. */
static bool has_wrong_user(const struct server *s, const struct unit_facts *f, char *text,
                           size_t size)
{
    const char *user = s->config->user;
    bool dynamic = user && strcmp(user, USER_DYNAMIC) == 0;
    if (strlen(f->user) > USER_MOST) { /* systemd fails then, and says little */
        (void)snprintf(text, size, "it has User=%.40s, more than %d letters: systemctl edit it",
                       f->user, USER_MOST);
        return true;
    }
    if (!user || (dynamic ? f->dynamic_user : !f->dynamic_user && strcmp(f->user, user) == 0))
        return false;
    if (dynamic)
        (void)snprintf(text, size,
                       "user: dynamic, and it has no DynamicUser=yes: systemctl edit it "
                       "(docs/security.md has the lines), or change user");
    else
        (void)snprintf(text, size,
                       "user: %.40s, and it has User=%.40s%s: systemctl edit it, or change user",
                       user, f->user, f->dynamic_user ? " and DynamicUser=yes" : "");
    return true;
}

/* It has to be there, leave restarts to us, and run as the user that we were told. */
static bool is_fit(struct server *s, const struct unit_facts *f)
{
    char text[160];
    bool wrong = f->loaded && has_wrong_user(s, f, text, sizeof(text));
    if (f->loaded && !wrong && strcmp(f->restart, "no") == 0)
        return true;
    if (wrong) {
        launch_refused(s, text);
        return false;
    }
    if (!f->loaded)
        (void)snprintf(text, sizeof(text), "systemd has no such unit; add it, or name another one");
    else
        (void)snprintf(text, sizeof(text),
                       "it has Restart=%s; evenkeeld decides that: set Restart=no", f->restart);
    launch_refused(s, text);
    return false;
}

static void take_facts(struct server *s, const struct unit_facts *f)
{
    switch (s->unit.phase) {
    case UNIT_LOOKING:
        if (!is_fit(s, f))
            return;
        if (f->main_pid > 0) {
            take_process(s, f);
        } else {
            s->unit.phase = UNIT_WAITING;
            life_none_runs(s);
        }
        return;
    case UNIT_WAITING:
        if (!is_fit(s, f))
            return;
        if (is_idle(f)) {
            s->unit.phase = UNIT_ASKED;
            s->unit.before = f->last_pid;
            unit_start(s->unit.unit, on_started, s);
        } else if (f->main_pid > 0 && strcmp(f->active, "deactivating") != 0) {
            take_process(s, f); /* it was started from outside */
        } else {
            server_arm_probe(s, LOOK_S);
        }
        return;
    case UNIT_ASKED:
        if (f->main_pid > 0)
            take_process(s, f);
        else if (is_idle(f) && f->last_pid > 0 && f->last_pid != s->unit.before)
            end_with(s, f); /* it ended before it was seen */
        else
            server_arm_probe(s, LOOK_S);
        return;
    case UNIT_ENDING:
        if (f->last_pid == s->process.child.pid && f->main_pid == 0 && f->code != 0)
            end_with(s, f);
        else if ((double)(ek_now_us() - s->unit.ended_us) / 1e6 > END_MOST_S)
            end_with(s, NULL);
        else
            server_arm_probe(s, LOOK_S / 4);
        return;
    case UNIT_RUNNING: return;
    }
}

static void on_look(void *ctx, int error, const struct unit_facts *facts, const char *text)
{
    struct server *s = ctx;
    bool ending = s->unit.phase == UNIT_ENDING;
    if (s->state != SRV_STARTING && s->state != SRV_ADOPTING && !ending)
        return; /* it is to stop */
    if (error < 0 && ending)
        end_with(s, NULL);
    else if (error == -EPERM)
        launch_refused(s, text);
    else if (error < 0)
        unreachable(s, text);
    else
        take_facts(s, facts);
}

static void launch_look(struct server *s)
{
    unit_ask(s->unit.unit, on_look, s);
}

void launch_unit_look(struct server *s)
{
    if (s->unit.phase != UNIT_RUNNING && !unit_is_busy(s->unit.unit))
        launch_look(s);
}

static void on_changed(void *ctx)
{
    struct server *s = ctx;
    bool waits = s->state == SRV_STARTING || s->state == SRV_ADOPTING;
    if (s->unit.phase == UNIT_ENDING || (waits && s->process.child.pid == 0))
        launch_unit_look(s);
}

int launch_unit_open(struct server *s)
{
    return unit_new(s->with->units, s->config->unit, on_changed, s, &s->unit.unit);
}

void launch_unit_begin(struct server *s)
{
    s->unit.phase = UNIT_LOOKING;
    launch_look(s);
}

void launch_unit(struct server *s, const struct command_line *words)
{
    int r = write_words(s, words);
    if (r < 0) {
        server_start_failed(s, r == -EBADMSG ? CRASH_CONFIG : CRASH_DISK, r != -EBADMSG,
                            "cannot make its directory and its file for systemd below run_dir", r);
        return;
    }
    s->state = SRV_STARTING;
    s->process.started_us = ek_now_us();
    s->unit.phase = UNIT_WAITING;
    server_arm(s, s->config->start_deadline_s);
    launch_look(s);
}

/* End */

/* With OOMPolicy=continue systemd counts them no longer as the reason of an end. */
static uint64_t unit_oom_kills(const struct server *s)
{
    struct ek_cgroup_memory m;
    ek_cgroup_memory(s->unit.cgroup, &m);
    return m.oom_kills == UINT64_MAX ? 0 : m.oom_kills;
}

uint64_t server_oom_kills(const struct server *s)
{
    return s->unit.unit ? unit_oom_kills(s) : child_oom_kills(&s->process.child);
}

void launch_unit_ended(struct server *s)
{
    if (s->unit.phase == UNIT_ENDING)
        return;
    s->process.exit_io = sd_event_source_disable_unref(s->process.exit_io); /* it stays readable */
    s->unit.kills = ek_oom_window_kills(&s->ends.ooms, server_oom_kills(s));
    s->unit.phase = UNIT_ENDING;
    s->unit.ended_us = ek_now_us();
    launch_look(s);
}

static void on_killed(void *ctx, int error, const struct unit_facts *facts, const char *text)
{
    struct server *s = ctx;
    (void)facts;
    if (error == 0 || s->process.child.pid == 0)
        return;
    int r = child_signal(&s->process.child, s->unit.sig); /* allowed when it is of our own user */
    if (r < 0 && r != -ESRCH)
        ek_log(EK_LOG_ERR, "%s: could not send signal %d to %s: %s", s->config->name, s->unit.sig,
               s->config->unit, text);
}

void launch_unit_signal(struct server *s, int sig)
{
    s->unit.sig = sig;
    unit_kill(s->unit.unit, sig == SIGKILL, sig, on_killed, s);
}

void launch_unit_stop(struct server *s)
{
    if (s->unit.phase == UNIT_ASKED)
        unit_stop(s->unit.unit);
}

/*
 * Waits for `evenkeelctl drain --wait` and its like, called by main.c after the command was taken.
 * It polls the list of servers, and wait_look() compares each reading with the one before the
 * command. The comparison needs care since evenkeeld reads a server once a second: a figure that
 * has not changed may be older than the command.
 */
#include "supervisor/ctl/wait.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/show.h"

#define LOOK_NS    300000000L
#define LOOKS_DOWN 10 /* three seconds */

static bool is(const json_t *server, const char *state)
{
    return strcmp(show_word(server, "state"), state) == 0;
}

static json_int_t engine_planned(const json_t *server)
{
    return json_integer_value(
        json_object_get(json_object_get(server, "engine_process"), "planned"));
}

void wait_begin(struct wait *w, enum ctl_command command, const json_t *before)
{
    *w = (struct wait){.command = command,
                       .pid = json_integer_value(json_object_get(before, "pid")),
                       .planned = engine_planned(before),
                       .down = is(before, "breaker_open")};
}

static enum wait_state failed(const char *why, const char **ret_why)
{
    *ret_why = why;
    return WAIT_FAILED;
}

static bool of_engine(enum ctl_command c)
{
    return c == CMD_ENGINE_RESTART || c == CMD_ENGINE_RELEASE || c == CMD_ENGINE_ACQUIRE;
}

/* Its figures are those that evenkeeld has read last, so what has not changed may be old. */
static enum wait_state look_at_engine(struct wait *w, const json_t *now, const char **ret_why)
{
    const char *state = show_word(json_object_get(now, "engine_process"), "state");
    bool running = strcmp(state, "running") == 0;
    if (json_integer_value(json_object_get(now, "pid")) != w->pid)
        return failed("The server has ended; evenkeelctl explain says why.", ret_why);
    if (w->command == CMD_ENGINE_RELEASE)
        return strcmp(state, "released") == 0 ? WAIT_DONE : WAIT_ON;
    if (running && engine_planned(now) > w->planned)
        return WAIT_DONE;
    if (w->command == CMD_ENGINE_ACQUIRE && running && w->looks++ >= LOOKS_DOWN)
        return WAIT_DONE; /* it was there */
    return WAIT_ON;
}

enum wait_state wait_look(struct wait *w, const json_t *now, const char **ret_why)
{
    if (of_engine(w->command))
        return look_at_engine(w, now, ret_why);
    bool serves = is(now, "ready") && json_is_true(json_object_get(now, "ready"));
    bool same = json_integer_value(json_object_get(now, "pid")) == w->pid;
    w->drained |= is(now, "draining") || is(now, "drained") || is(now, "stopping");
    if (w->command == CMD_DRAIN) {
        if (is(now, "drained") || is(now, "stopped"))
            return WAIT_DONE;
        if (serves)
            return failed("It serves again: somebody resumed it.", ret_why);
        return is(now, "breaker_open") ? failed("It has failed and is down.", ret_why) : WAIT_ON;
    }
    if (!is(now, "breaker_open"))
        w->down = false;
    else if (w->down && w->looks++ < LOOKS_DOWN)
        return WAIT_ON;
    else
        return failed("It failed to start; evenkeelctl explain says why.", ret_why);
    if (w->command == CMD_RESUME)
        return serves ? WAIT_DONE : WAIT_ON;
    if (serves && !same)
        return WAIT_DONE;
    const char *refused = json_string_value(json_object_get(now, "restart_refused"));
    if (refused)
        return failed(refused, ret_why);
    if (serves && w->drained)
        return failed("It serves again without a restart: somebody cancelled it.", ret_why);
    return WAIT_ON;
}

static const char *done_word(enum ctl_command command)
{
    return command == CMD_DRAIN ? "Drained" : command == CMD_ENGINE_RELEASE ? "Released" : "Ready";
}

/* "main: draining, 5 run, 3 wait, 12 s" */
static void put_progress(struct ek_buf *out, const char *name, const json_t *now, double seconds)
{
    const json_t *g = json_object_get(now, "signals");
    show_text(out, name);
    (void)ek_buf_puts(out, ": ");
    show_text(out, show_word(now, "state"));
    (void)ek_buf_puts(out, ", ");
    show_value(out, g, "running", " run", 0);
    (void)ek_buf_puts(out, ", ");
    show_value(out, g, "waiting", " wait", 0);
    (void)ek_buf_printf(out, ", %.0f s", seconds);
}

static void show_progress(const char *name, const json_t *now, double seconds)
{
    struct ek_buf line = {0};
    if (!isatty(STDERR_FILENO))
        return;
    put_progress(&line, name, now, seconds);
    if (ek_buf_ok(&line))
        (void)fprintf(stderr, "\r\033[K%s", line.data);
    ek_buf_done(&line);
}

static void end_progress(void)
{
    if (isatty(STDERR_FILENO))
        (void)fputs("\r\033[K", stderr);
}

static int say_late(const struct ctl_args *args, const char *name, const json_t *now,
                    enum ctl_command command)
{
    struct ek_buf line = {0};
    put_progress(&line, name, now, args->timeout_s);
    (void)fprintf(stderr, "evenkeelctl: Not %s within %u s (%s); it goes on.\n",
                  command == CMD_DRAIN            ? "drained"
                  : command == CMD_ENGINE_RELEASE ? "released"
                                                  : "ready",
                  args->timeout_s, ek_buf_ok(&line) ? line.data : name);
    ek_buf_done(&line);
    return CTL_LATE;
}

static int say_done(const struct ctl_args *args, const struct wait *w, const json_t *now,
                    double seconds)
{
    int r;
    if (args->json) {
        r = json_dumpf(now, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
        r = r == 0 && putchar('\n') != EOF ? 0 : -1;
    } else {
        r = printf("%s after %.1f s.\n", done_word(w->command), seconds);
    }
    return r < 0 || fflush(stdout) != 0 ? CTL_REFUSED : CTL_OK;
}

int wait_for(struct api *a, const struct ctl_args *args, const char *name, struct wait *w)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    uint64_t begun = ek_now_us();
    char path[400], *escaped = curl_easy_escape(a->curl, name, 0);
    (void)snprintf(path, sizeof(path), "/api/v1/servers/%s", escaped ? escaped : "");
    curl_free(escaped);
    json_t *now = NULL;
    int code = -1;
    for (bool reached = false; code < 0;) {
        json_t *next = NULL;
        const char *why = "";
        double seconds = (double)(ek_now_us() - begun) / 1e6;
        int r = api_call(a, "GET", path, NULL, &next);
        if (r == 0) {
            json_decref(now);
            now = next;
        }
        reached |= r == 0; /* an evenkeeld that is upgraded meanwhile answers again */
        enum wait_state state = r == 0 ? wait_look(w, now, &why) : WAIT_ON;
        if (r == -EBADMSG || (r < 0 && !reached) || state != WAIT_ON || seconds >= args->timeout_s)
            end_progress();
        if (r == -EBADMSG || (r < 0 && !reached)) {
            (void)fprintf(stderr, "evenkeelctl: %s\n", a->error);
            code = r == -EBADMSG ? CTL_REFUSED : CTL_UNREACHED;
        } else if (state == WAIT_DONE) {
            code = say_done(args, w, now, seconds);
        } else if (state == WAIT_FAILED) {
            (void)fprintf(stderr, "evenkeelctl: %s\n", why);
            code = CTL_REFUSED;
        } else if (seconds >= args->timeout_s) {
            code = say_late(args, name, now, w->command);
        } else {
            show_progress(name, now, seconds);
            (void)nanosleep(&pause, NULL);
        }
    }
    json_decref(now);
    return code;
}

/*
 * The live picture. The terminal is put back as it was on every way out; its size is asked anew for
 * each picture, so that a resize needs nothing more than the next one.
 */
#include "supervisor/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/show.h"

#define PERIOD_MS 1000

static volatile sig_atomic_t g_signal; /* a signal that ends it has come; or SIGWINCH: redraw */

static void on_signal(int number)
{
    if (number != SIGWINCH)
        g_signal = number;
}

struct terminal {
    struct termios before;
    bool raw;
};

static void terminal_enter(struct terminal *t)
{
    struct sigaction act = {.sa_handler = on_signal};
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        (void)sigaction(numbers[i], &act, NULL); /* valid numbers: cannot fail */
    t->raw = tcgetattr(STDIN_FILENO, &t->before) == 0;
    if (t->raw) {
        struct termios now = t->before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        now.c_cc[VMIN] = 0;
        now.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &now); /* then keys need Enter */
    }
    (void)fputs("\033[?1049h\033[?25l\033[2J", stdout);
    (void)fflush(stdout);
}

static void terminal_leave(const struct terminal *t)
{
    (void)fputs("\033[?25h\033[?1049l", stdout);
    (void)fflush(stdout);
    if (t->raw)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &t->before); /* nothing left to try */
}

static void size_of_terminal(struct show_frame *f)
{
    struct winsize w = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row == 0 || w.ws_col == 0)
        w = (struct winsize){.ws_row = 24, .ws_col = 80};
    f->rows = w.ws_row;
    f->cols = w.ws_col;
}

/* The last decisions of each server, in the order of the servers. A server whose list cannot be had
 * gets an empty one. */
static json_t *ask_decisions(struct api *a, const json_t *answer)
{
    const json_t *list = json_object_get(answer, "servers");
    json_t *all = json_array();
    for (size_t i = 0; all && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, i), "name"));
        char path[256];
        json_t *one = NULL;
        int n =
            snprintf(path, sizeof(path), "/api/v1/servers/%s/decisions?limit=12", name ? name : "");
        if (n < 0 || (size_t)n >= sizeof(path) || api_call(a, "GET", path, NULL, &one) < 0)
            one = json_object();
        (void)json_array_append_new(all, one); /* a missing row shows no decisions */
    }
    return all;
}

/* Waits for the next picture. Returns false when it is time to leave. */
static bool wait_key(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int n = poll(&in, 1, PERIOD_MS);
    if (g_signal)
        return false;
    if (n <= 0)
        return true; /* time is up, or the window changed */
    char keys[32];
    ssize_t got = read(STDIN_FILENO, keys, sizeof(keys));
    if (got <= 0)
        return false;
    for (ssize_t i = 0; i < got; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 4)
            return false;
    }
    return true;
}

/* Asks; on failure the old answers stay and frame->error says why. */
static int refresh(struct api *a, json_t **servers, json_t **decisions, struct show_frame *f)
{
    json_t *now = NULL;
    int r = api_call(a, "GET", "/api/v1/servers", NULL, &now);
    f->error = r < 0 ? a->error : NULL;
    f->now_s = (double)ek_wall_us() * 1e-6;
    if (r < 0)
        return r;
    json_decref(*servers);
    json_decref(*decisions);
    *servers = now;
    *decisions = ask_decisions(a, now);
    return 0;
}

static int draw(const json_t *servers, const json_t *decisions, const char *only,
                const struct show_frame *f)
{
    struct ek_buf out = {0};
    if (f->rows)
        (void)ek_buf_puts(&out, "\033[H");
    show_top(servers, decisions, only, f, &out);
    if (f->rows)
        (void)ek_buf_puts(&out, "\033[J");
    bool ok =
        ek_buf_ok(&out) && fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
    ek_buf_done(&out);
    return ok ? 0 : -EIO;
}

int top_run(struct api *a, const char *server, bool once)
{
    struct show_frame f = {.cols = 120};
    json_t *servers = NULL, *decisions = NULL;
    int r = refresh(a, &servers, &decisions, &f);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeelctl: %s\n", a->error);
        return r == -ECONNREFUSED ? CTL_UNREACHED : CTL_REFUSED;
    }
    if (once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
        r = draw(servers, decisions, server, &f);
        goto out;
    }
    struct terminal t;
    f.colour = true;
    terminal_enter(&t);
    do {
        size_of_terminal(&f);
        r = draw(servers, decisions, server, &f);
        if (r < 0 || !wait_key())
            break;
        (void)refresh(a, &servers, &decisions, &f); /* the picture says when it fails */
    } while (!g_signal);
    terminal_leave(&t);
out:
    json_decref(servers);
    json_decref(decisions);
    return r < 0 ? CTL_REFUSED : CTL_OK;
}

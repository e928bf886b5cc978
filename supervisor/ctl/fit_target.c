/*
 * The doing side of `evenkeelctl bench-fit`: verb_bench_fit.c asks planner/limit_search.c for the
 * next limit and this file sets it, keeps evenkeel-bench running as the load, and measures. The
 * load is a program of its own that is started again when it has sent all its requests, and that
 * ends the measurement with its own sentence when they fail. fit_close() is called on every way
 * out; it puts the limit back, or keeps the one that was found.
 */
#include "supervisor/ctl/fit_target.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/fetch.h"
#include "supervisor/ctl/spawn.h"
#include "supervisor/doctor/live.h"

#define SAMPLE_MS    250
#define SAMPLES_MOST 4096
#define LOAD_MOST    "100000" /* requests of one run of the load; it is begun again */
#define CLIENTS_MOST 4000
#define SAID_MOST    65536
#define TRY_S        600.0 /* for one request */
#define SEQS         "max_num_running_seqs"

static int fit_fail(struct fit_target *t, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int fit_fail(struct fit_target *t, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(t->error, sizeof(t->error), fmt, args); /* a sentence may be cut */
    va_end(args);
    return code;
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL); /* shorter by a signal: then it looks sooner */
}

/* ---- which server ---- */

static int read_limits(struct fit_target *t, double value, double ceiling)
{
    if (!(ceiling >= 1) && !t->live && t->o->ceiling)
        ceiling = (double)t->o->ceiling; /* it did not say its own */
    if (!t->live && !(value >= 1))
        value = ceiling;
    if (!(value >= 1 && ceiling >= 1 && ceiling <= 65536))
        return fit_fail(t, -EBADMSG,
                        t->live
                            ? "The server's limit of running sequences is not known yet; try again "
                              "in a moment"
                            : "How many sequences the server allows is not known: say how far to "
                              "search with --max-num-seqs");
    t->before = (uint32_t)value;
    t->ceiling = (uint32_t)ceiling;
    if (t->o->ceiling && t->o->ceiling < t->ceiling)
        t->ceiling = (uint32_t)t->o->ceiling;
    return 0;
}

/* By restarts alone, and only where the operator allows restarts. */
static int check_restarts(struct fit_target *t)
{
    if (t->live || (t->o->restart && !t->o->apply))
        return 0;
    return fit_fail(
        t, -EBADMSG,
        t->o->restart ? "%s has no live limit that --apply could leave: write the best into its "
                        "configuration"
                      : "%s cannot change its limits while it runs: with --restart it is restarted "
                        "for each step, with the companion it need not be",
        t->name);
}

static int open_direct(struct fit_target *t)
{
    json_t *limits = NULL;
    t->direct = t->live = true;
    if (!t->o->url)
        return fit_fail(t, -EBADMSG, "--control needs --url: where the server answers");
    (void)snprintf(t->url, sizeof(t->url), "%.290s", t->o->url);
    if (api_call(&t->api, "GET", "/v1/runtime_config", NULL, &limits) < 0)
        return fit_fail(t, -ECONNREFUSED, "%s does not answer as a control socket: %s",
                        t->o->control, t->api.error);
    double ceiling = json_number_value(json_object_get(json_object_get(limits, "ceiling"), SEQS));
    int r = read_limits(t, json_number_value(json_object_get(limits, SEQS)), ceiling);
    json_decref(limits);
    return r;
}

static const json_t *find_row(struct fit_target *t, const json_t *list, const char *name)
{
    const json_t *rows = json_object_get(list, "servers");
    if (!name && json_array_size(rows) == 1)
        return json_array_get(rows, 0);
    const json_t *found = name ? calls_find(list, name) : NULL;
    if (!found && name)
        (void)fit_fail(t, 0, "There is no server '%.60s'; evenkeelctl status lists them", name);
    else if (!found)
        (void)fit_fail(t, 0, "evenkeeld has %zu servers; name one", json_array_size(rows));
    return found;
}

static int open_supervised(struct fit_target *t, const char *name)
{
    json_t *list = NULL;
    int r = api_call(&t->api, "GET", "/api/v1/servers", NULL, &list);
    if (r < 0)
        return fit_fail(t, r, "%s", t->api.error);
    const json_t *s = find_row(t, list, name);
    const json_t *limit = json_object_get(json_object_get(s, "limits"), SEQS);
    const char *is = json_string_value(json_object_get(s, "name"));
    const char *url = t->o->url ? t->o->url : json_string_value(json_object_get(s, "url"));
    if (!s) {
        r = -EBADMSG;
    } else if (!json_is_true(json_object_get(s, "ready"))) {
        r = fit_fail(t, -EBADMSG, "%s is not ready; evenkeelctl status says why", is ? is : "it");
    } else {
        (void)snprintf(t->name, sizeof(t->name), "%.63s", is ? is : "");
        (void)snprintf(t->url, sizeof(t->url), "%.290s", url ? url : "");
        t->pinned = json_is_true(json_object_get(limit, "pinned"));
        t->live = !json_is_false(json_object_get(s, "live_limits"));
        r = check_restarts(t);
        if (r == 0)
            r = read_limits(t, json_number_value(json_object_get(limit, "value")),
                            json_number_value(json_object_get(limit, "ceiling")));
    }
    json_decref(list);
    return r;
}

int fit_open(struct fit_target *t, const struct fit_options *o, const char *name)
{
    *t = (struct fit_target){.o = o, .load_says = -1};
    if (o->control && (name || o->restart))
        return fit_fail(t, -EBADMSG, "--control is for a server without evenkeeld: %s",
                        name ? "leave the name out" : "--restart needs evenkeeld");
    if (api_open(&t->api, o->control ? o->control : o->socket) < 0)
        return fit_fail(t, -ENOMEM, "%s", t->api.error);
    return o->control ? open_direct(t) : open_supervised(t, name);
}

/* ---- limits ---- */

/* Right after a restart evenkeeld may still have to read them: then a few times. */
static int set_supervised(struct fit_target *t, const json_t *body, json_t **ret_answer)
{
    int r = -EBADMSG;
    for (int i = 0; i < (t->o->restart ? 10 : 1) && r == -EBADMSG; i++) {
        if (i)
            pause_ms(500);
        r = calls_server(&t->api, "PATCH", t->name, "limits", body, ret_answer);
    }
    return r;
}

static int set_limit(struct fit_target *t, uint32_t limit, bool pin)
{
    json_t *answer = NULL;
    json_t *body = json_pack("{s:i, s:s}", SEQS, (int)limit, "reason", "bench-fit");
    int r = body ? 0 : -ENOMEM;
    if (r == 0 && t->direct)
        r = api_call(&t->api, "PATCH", "/v1/runtime_config", body, &answer);
    else if (r == 0 && json_object_set_new(body, "pin", json_boolean(pin)) == 0)
        r = set_supervised(t, body, &answer);
    json_decref(body);
    json_decref(answer);
    if (r < 0)
        return fit_fail(t, r, "The limit %u could not be set: %s", limit, t->api.error);
    t->changed = true;
    return 0;
}

int fit_restart(struct fit_target *t, const json_t *trial)
{
    json_t *list, *body = trial ? json_pack("{s:O}", "trial", trial) : NULL;
    const json_t *s = calls_row(&t->api, t->name, &list);
    json_int_t pid = json_integer_value(json_object_get(s, "pid"));
    json_decref(list);
    int r = calls_server(&t->api, "POST", t->name, "restart", body, NULL);
    json_decref(body);
    if (r < 0)
        return fit_fail(t, r, "%s", t->api.error);
    if (!calls_wait_ready(&t->api, t->name, pid, t->o->wait_s))
        return fit_fail(t, -ETIMEDOUT, "%s was not ready within %.0f s", t->name, t->o->wait_s);
    return 0;
}

/* ---- the load ---- */

#define WORDS 20
struct load_words {
    char program[PATH_MAX], clients[16], prompt[24], output[24], speed[24];
    char *argv[WORDS];
};

static int make_words(struct fit_target *t, const char *requests, struct load_words *w)
{
    if (!spawn_find("evenkeel-bench", w->program, sizeof(w->program)))
        return fit_fail(
            t, -ENOENT,
            "evenkeel-bench, which makes the load, is neither beside this program nor in "
            "$PATH");
    uint64_t count = t->o->clients ? t->o->clients : t->ceiling + t->ceiling / 4 + 4;
    (void)snprintf(w->clients, sizeof(w->clients), "%llu",
                   (unsigned long long)(count < CLIENTS_MOST ? count : CLIENTS_MOST));
    (void)snprintf(w->prompt, sizeof(w->prompt), "%llu", (unsigned long long)t->o->prompt);
    (void)snprintf(w->output, sizeof(w->output), "%llu", (unsigned long long)t->o->output);
    (void)snprintf(w->speed, sizeof(w->speed), "%.6f", t->o->speed);
    const char *words[WORDS] = {w->program, "serve",    "--url", t->url,      "--requests",
                                requests,   "--warmup", "0",     "--clients", w->clients};
    const char *lengths[] = {"--prompt", w->prompt, "--output", w->output};
    const char *traced[] = {"--trace", t->o->trace, "--speed", w->speed};
    memcpy(&words[10], t->o->trace ? traced : lengths, sizeof(lengths));
    memcpy(w->argv, words, sizeof(w->argv)); /* execv takes them so; nothing writes to them */
    return 0;
}

static int start_load(struct fit_target *t)
{
    struct load_words w;
    int r = make_words(t, LOAD_MOST, &w);
    if (r == 0 && (r = spawn_beside(w.argv, t->load_says, &t->load)) < 0)
        r = fit_fail(t, r, "evenkeel-bench cannot be started: %s", strerror(-r));
    return r;
}

/* One request first: a load of nothing but failures would look like an idle server. */
static int try_load(struct fit_target *t)
{
    static const char mark[] = "first failure: ";
    struct load_words w;
    struct ek_buf out = {.limit = SAID_MOST}, err = {.limit = SAID_MOST};
    int status = 0, r = make_words(t, "1", &w);
    if (r == 0)
        r = spawn_read(w.argv, TRY_S, &out, &err, &status);
    if (r == 0 && status != 0) {
        char *why = err.data && err.data[0] ? err.data : NULL;
        if (!why && out.data && (why = strstr(out.data, mark)))
            why += strlen(mark);
        if (why)
            why[strcspn(why, "\n")] = '\0';
        r = fit_fail(t, -EBADMSG, "The load's first request failed: %.300s",
                     why ? why : "no answer");
    }
    ek_buf_done(&out);
    ek_buf_done(&err);
    return r;
}

int fit_load(struct fit_target *t)
{
    t->load_says = memfd_create("evenkeel-bench", MFD_CLOEXEC);
    if (t->load_says < 0)
        return fit_fail(t, -errno, "out of memory");
    int r = try_load(t);
    return r < 0 ? r : start_load(t);
}

void fit_unload(struct fit_target *t)
{
    spawn_end(&t->load);
    if (t->load_says >= 0)
        (void)close(t->load_says);
    t->load_says = -1;
}

/* It may have sent all its requests: then again. One that failed says why. */
static int keep_load(struct fit_target *t)
{
    int status = 0;
    char said[300] = "";
    if (!spawn_ended(&t->load, &status))
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return start_load(t);
    ssize_t n = pread(t->load_says, said, sizeof(said) - 1, 0);
    said[n > 0 ? (size_t)n : 0] = '\0';
    said[strcspn(said, "\n")] = '\0';
    return fit_fail(t, -EBADMSG, "The load ended: %s", said[0] ? said : "requests failed");
}

void fit_close(struct fit_target *t, uint32_t keep)
{
    fit_unload(t);
    if (t->changed && keep)
        (void)set_limit(t, keep, t->pinned);
    else if (t->changed && set_limit(t, t->before, t->pinned) < 0)
        (void)fprintf(stderr, "evenkeelctl bench-fit: %s; it was %u\n", t->error, t->before);
    api_close(&t->api);
}

/* ---- measuring ---- */

static int read_page(struct fit_target *t, struct ek_buf *page, struct live_page *ret_page)
{
    char said[200];
    if (fetch_page(t->url, "/metrics", page, said) < 0)
        return fit_fail(t, -ECONNREFUSED, "%s", said);
    live_read(page->data ? page->data : "", page->len, ret_page);
    if (ret_page->usage < 0 || ret_page->running < 0)
        return fit_fail(t, -EBADMSG, "%s/metrics does not say how full the KV cache is", t->url);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Waits, while the load goes on. */
static int let_pass(struct fit_target *t, double seconds, const volatile int *stop)
{
    uint64_t until = ek_now_us() + (uint64_t)(seconds * 1e6);
    int r = 0;
    while (r == 0 && ek_now_us() < until) {
        pause_ms(100);
        r = *stop ? -EINTR : keep_load(t);
    }
    return r;
}

/* Without live limits: the load stops, and the server starts with the limit as its flag. */
static int start_with(struct fit_target *t, uint32_t limit)
{
    json_t *trial = t->settings ? json_deep_copy(t->settings) : json_object();
    int r =
        trial && json_object_set_new(trial, "max_num_seqs", json_integer(limit)) == 0 ? 0 : -ENOMEM;
    fit_unload(t);
    if (r == 0)
        r = fit_restart(t, trial);
    json_decref(trial);
    return r < 0 ? r : fit_load(t);
}

int fit_measure(struct fit_target *t, uint32_t limit, const volatile int *stop,
                struct limit_search_step *ret_step)
{
    static double usage[SAMPLES_MOST];
    struct ek_buf page = {0};
    struct live_page first = {0}, now = {0};
    double running = 0, waiting = 0;
    uint32_t n = 0;
    int r = t->live ? set_limit(t, limit, true) : start_with(t, limit);
    if (r == 0)
        r = let_pass(t, t->o->settle_s, stop);
    if (r == 0)
        r = read_page(t, &page, &first);
    uint64_t from = ek_now_us(), at = from;
    while (r == 0 && n < SAMPLES_MOST && (at - from < (uint64_t)(t->o->measure_s * 1e6) || !n)) {
        r = let_pass(t, SAMPLE_MS / 1e3, stop);
        if (r == 0)
            r = read_page(t, &page, &now);
        at = ek_now_us();
        if (r < 0)
            break;
        usage[n++] = now.usage;
        running += now.running;
        waiting += now.waiting > 0 ? now.waiting : 0;
    }
    ek_buf_done(&page);
    if (r < 0)
        return r;
    qsort(usage, n, sizeof(*usage), by_value);
    double s = (double)(at - from) / 1e6;
    *ret_step = (struct limit_search_step){
        .limit = limit,
        .usage = usage[n * 3 / 4],
        .running = running / n,
        .waiting = waiting / n,
        .tokens_s = (now.output_tokens - first.output_tokens) / s,
        .preemptions_s =
            now.preemptions > first.preemptions ? (now.preemptions - first.preemptions) / s : 0,
        .gap_s = live_quantile(&now.hist[HIST_ITL], &first.hist[HIST_ITL], 0.95),
        .ttft_s = live_quantile(&now.hist[HIST_TTFT], &first.hist[HIST_TTFT], 0.5)};
    return 0;
}

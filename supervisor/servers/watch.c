/*
 * What is done with each reading of a server's metrics. scrape.c reads the page every poll_s and
 * calls on_sample(), also when it could not be read; server.c, drain.c, ended.c and launch.c
 * call watch_ready(), watch_drain() and watch_stop() as the server's state changes.
 *
 * Of each reading, in this order: the law decides and what it decided is done (policy.h, action.c);
 * notes of what the engine decides by itself (waiting.h) and of keys; history for the charts; then
 * whether the process still works; and last what goes by time alone (ramp, restarts by plan).
 *
 * Whether it hangs takes two proofs, since a slow server must not be killed:
 *
 *   1. hang_step() (hang.h): work is there and nothing has moved for hang_s, or the page does not
 *      answer, or a thread has been reading one body or form for too long.
 *   2. The canary: a request of one token over the control socket. Served: slow, not hung, and the
 *      clock starts again. Refused with a 4xx other than 429: no proof either way. No answer
 *      within half of hang_s, or an error of the server's own: it is killed, if it is ours, and
 *      otherwise said.
 *
 * A form that is being read for too long holds an encoder thread, which a plain canary would not
 * meet: that one brings a form of its own, in a body long enough to be read there.
 *
 * A process that was stopped by a signal or a debugger makes no progress and is not hung: it is
 * seen by its state in /proc (look_for_halt()), and gets halt_s. While a server drains it may close
 * its page before its last process is gone; the drain's deadline is for that.
 *
 * Writes struct server_watch (server_parts.h).
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/engines/keys.h"
#include "supervisor/io/charts.h"
#include "supervisor/io/client.h"
#include "supervisor/law/shares.h"
#include "supervisor/law/window.h"
#include "supervisor/servers/record.h"
#include "supervisor/servers/server_inside.h"

#define PROBE_EVERY_US 5000000u
#define SEEN_SLOTS     512u
#define CANARY_BLANKS  70000 /* longer than what an HTTP thread reads itself (--print-limits) */

static const double took_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                     0.1,   0.25,   0.5,   1.0,  2.0};

/* The canary: a request of one token, the second proof of a hang */

/* What was read last says nothing of one that cannot be read. */
static void hang_words(const struct server *s, uint64_t now, double quiet_s, char *ret_text,
                       size_t size)
{
    const double *v = s->watch.sample.value;
    if (!s->watch.sample.good)
        (void)snprintf(ret_text, size, "Its metrics could not be read for %.0f s",
                       (double)(now - s->watch.hang.read_us) / 1e6);
    else if (s->watch.reading)
        (void)snprintf(ret_text, size,
                       "A thread that reads a body or compiles a form has not come back for %.0f s",
                       v[SIG_READING_AGE_S]);
    else if (sample_has(&s->watch.sample, SIG_ANSWERING))
        (void)snprintf(ret_text, size,
                       "No progress for %.0f s with %.0f running, %.0f waiting and %.0f being "
                       "answered",
                       quiet_s, v[SIG_RUNNING], v[SIG_WAITING], v[SIG_ANSWERING]);
    else
        (void)snprintf(ret_text, size, "No progress for %.0f s with %.0f running and %.0f waiting",
                       quiet_s, v[SIG_RUNNING], v[SIG_WAITING]);
}

/* Says why it hangs, and kills it if it is ours. */
static void end_hung(struct server *s, const char *why)
{
    s->watch.hangs++;
    if (s->process.attached)
        hang_start(&s->watch.hang, ek_now_us()); /* said again if it goes on */
    else
        s->watch.hang_killed = true;
    server_note(s, ACT_NOTE, REASON_HANG_NOPROGRESS, "%s%s", why,
                s->process.attached ? "; it is not ours to kill" : "; killing it");
    if (!s->process.attached)
        server_signal(s, SIGKILL);
}

static void on_canary(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    uint64_t now = ek_now_us();
    double quiet_s = (double)(now - s->watch.hang.moved_us) / 1e6;
    char what[160], why[320];
    s->watch.canary = NULL;
    hang_words(s, now, quiet_s, what, sizeof(what));
    if (s->watch.reading && s->watch.sample.good && hang_lost(&s->watch.sample)) {
        (void)snprintf(why, sizeof(why), "%s, whatever else is served", what);
        end_hung(s, why);
        return;
    }
    if (res->error == 0 && res->status == 200) {
        hang_start(&s->watch.hang, now);
        ek_log(EK_LOG_WARNING,
               "%s: %s for %.0f s, but a request of one token%s was served in %.1f s: slow, not "
               "hung",
               s->config->name, s->watch.reading ? "a body or form is being read" : "no progress",
               s->watch.reading ? s->watch.sample.value[SIG_READING_AGE_S] : quiet_s,
               s->watch.reading ? " with a new form" : "", res->took_s);
        return;
    }
    if (res->error == 0 && res->status / 100 == 4 && res->status != 429) {
        hang_start(&s->watch.hang, now); /* it judged the request, not the engine: no proof */
        ek_log(EK_LOG_WARNING,
               "%s: no progress for %.0f s; the request of one token was refused "
               "with status %ld, which proves nothing",
               s->config->name, quiet_s, res->status);
        return;
    }
    if (s->watch.sample.good && hang_away(&s->watch.sample)) {
        hang_start(&s->watch.hang, now); /* its engine has been taken away meanwhile */
        return;
    }
    (void)snprintf(why, sizeof(why), "%s, and a request of one token%s failed too (%s)", what,
                   s->watch.reading ? " with a new form" : "",
                   res->error == -ETIMEDOUT ? "no answer"
                   : res->error             ? "no connection"
                                            : "an error");
    end_hung(s, why);
}

/* The control socket, where there is one: it asks for no API key. */
static const char *own_path(const struct server *s)
{
    return s->address.control_path[0] ? s->address.control_path : NULL;
}

/* A form that is not kept, in a body so long that its encoder reads it (whose turns are by the time
 * that a key has had, and the control socket has none). */
static void add_form(struct ek_buf *body)
{
    (void)ek_buf_printf(body,
                        ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
                        "\"canary\",\"schema\":{\"const\":\"%llu\"}}}%*s",
                        (unsigned long long)ek_now_us(), CANARY_BLANKS, "");
}

static int ask_token(struct server *s, uint32_t timeout_ms, client_fn cb, bool form,
                     struct client_call **ret_call)
{
    struct ek_buf body = {0};
    char url[240];
    (void)snprintf(url, sizeof(url), "%s/v1/completions", s->address.url);
    (void)ek_buf_puts(&body, "{\"prompt\":\"a\",\"max_tokens\":1");
    if (s->address.model[0]) {
        (void)ek_buf_puts(&body, ",\"model\":\"");
        (void)ek_buf_json(&body, s->address.model, strlen(s->address.model));
        (void)ek_buf_puts(&body, "\"");
    }
    if (form)
        add_form(&body);
    (void)ek_buf_puts(&body, "}");
    struct client_req req = {.unix_path = own_path(s),
                             .method = "POST",
                             .url = url,
                             .body = body.data,
                             .key = s->address.key,
                             .timeout_ms = timeout_ms,
                             .most_bytes = 65536};
    int r = ek_buf_ok(&body) ? client_start(s->with->client, &req, cb, s, ret_call) : -ENOMEM;
    ek_buf_done(&body);
    return r;
}

int watch_one_token(struct server *s, uint32_t timeout_ms, client_fn cb,
                    struct client_call **ret_call)
{
    return ask_token(s, timeout_ms, cb, false, ret_call);
}

/* A process that a signal or a debugger stopped answers no request, with work or without: that is
 * told at once. One that answers was not stopped for long enough to matter. */
static void look_for_halt(struct server *s, uint64_t now)
{
    uint64_t since = s->watch.halted_us;
    char letter = child_run_state(&s->process.child);
    if (!since && s->watch.sample.good)
        return;
    switch (halt_step(&s->watch.halted_us, letter, now, s->config->halt_s)) {
    case HALT_BEGINS:
        s->probe.ready = false;
        server_note(s, ACT_NOTE, REASON_SIGNAL_DEGRADED,
                    "Process %d is stopped by a signal or a debugger (kill -CONT %d lets it go "
                    "on); it is given %.0f s (halt_s)",
                    (int)s->process.child.pid, (int)s->process.child.pid, s->config->halt_s);
        break;
    case HALT_NO:
        if (!since ||
            s->watch.hang_killed) /* what was killed is not stopped any more, and does not go on */
            break;
        hang_start(&s->watch.hang, now); /* it could make no progress meanwhile */
        server_note(s, ACT_NOTE, REASON_SIGNAL_DEGRADED, "Process %d goes on after %.0f s",
                    (int)s->process.child.pid, (double)(now - since) / 1e6);
        server_probe(s);
        break;
    case HALT_WAITS:
    case HALT_TOO_LONG: s->probe.ready = false; break;
    }
}

static void look_for_hang(struct server *s, uint64_t now)
{
    double for_s;
    enum hang_kind kind =
        hang_step(&s->watch.hang, &s->watch.sample, now, s->config->hang_s, &for_s);
    bool waits = s->watch.halted_us && (double)(now - s->watch.halted_us) / 1e6 < s->config->halt_s;
    /* One that was told to end closes its page before its last process is gone, a vLLM for 10 s and
     * more: the drain has a deadline for that. */
    bool ends = s->state == SRV_DRAINING && (s->want == WANT_RESTART || s->want == WANT_STOP);
    if (kind == HANG_NO || (ends && kind == HANG_NO_ANSWER) || waits || s->watch.canary ||
        s->watch.hang_killed)
        return;
    s->watch.reading = kind == HANG_READING;
    (void)ask_token(s, (uint32_t)(s->config->hang_s * 500), on_canary, s->watch.reading,
                    &s->watch.canary); /* or next time */
}

/* Names */

static void on_models(void *ctx, const struct client_result *res)
{
    struct server *s = ctx;
    s->watch.canary = NULL;
    if (res->error || res->status != 200)
        return;
    json_t *root = json_loadb(res->body, res->len, 0, NULL);
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    if (id)
        (void)snprintf(s->address.model, sizeof(s->address.model), "%s", id);
    ek_text_clean(s->address.model);
    json_decref(root);
}

static void ask_model(struct server *s)
{
    char url[240];
    (void)snprintf(url, sizeof(url), "%s/v1/models", s->address.url);
    struct client_req req = {.unix_path = own_path(s),
                             .method = "GET",
                             .url = url,
                             .key = s->address.key,
                             .timeout_ms = 2000,
                             .most_bytes = 1u << 20};
    if (!s->watch.canary) /* never both at once: one is for the start, the other for much later */
        (void)client_start(s->with->client, &req, on_models, s, &s->watch.canary);
}

/* Readings */

static void keep_history(struct server *s)
{
    const double *v = s->watch.view.value;
    bool policy = s->law.policy != NULL;
    double blocks = v[VIEW_BLOCKS_TOTAL];
    float row[HISTORY_COLUMNS] = {
        [HIST_KV_USAGE] = (float)v[VIEW_KV_USAGE],
        [HIST_RUNNING] = (float)v[VIEW_RUNNING],
        [HIST_WAITING] = (float)v[VIEW_WAITING],
        [HIST_LIMIT_SEQS] = policy ? (float)policy_limit(s->law.policy, KNOB_SEQS) : NAN,
        [HIST_LIMIT_TOKENS] = policy ? (float)policy_limit(s->law.policy, KNOB_TOKENS) : NAN,
        [HIST_PREEMPTION_RATE] = (float)v[VIEW_PREEMPTION_RATE],
        [HIST_GEN_TPS] = (float)v[VIEW_GEN_TPS],
        [HIST_PROMPT_TPS] = (float)v[VIEW_PROMPT_TPS],
        [HIST_TTFT_P99] = (float)v[VIEW_TTFT_P99],
        [HIST_ITL_P99] = (float)v[VIEW_ITL_P99],
        [HIST_QUEUE_OLDEST] = (float)v[VIEW_QUEUE_OLDEST],
        [HIST_CACHED] = blocks > 0 ? (float)(v[VIEW_BLOCKS_CACHED] / blocks) : NAN,
    };
    history_push(s->watch.history, ek_wall_us(), row);
    charts_put(s->watch.charts, s->watch.history);
}

/* Whether they are not what the decisions before have made of them: read back, restored, or set by
 * somebody else. */
static bool limits_moved(const struct server *s)
{
    for (int k = 0; k < KNOB_COUNT; k++)
        if (policy_limit(s->law.policy, (enum knob)k) != s->record.limit[k])
            return true;
    return false;
}

/* Opens the recording that the configuration asks for, and ends one that failed. */
static void watch_record(struct server *s, const struct scrape_reading *reading)
{
    const struct server_config *c = s->config;
    int r = 0;
    if (!c->record || s->record.failed)
        return;
    if (!s->record.file)
        r = record_open(c->record, c->record_max_bytes, &s->record.file);
    if (r == 0) {
        struct record_head head = {
            .engine = c->dialect->name, .server = c->name, .params = server_params(s)};
        for (int k = 0; k < KNOB_COUNT; k++)
            head.pinned[k] = policy_pinned(s->law.policy, (enum knob)k);
        if (!c->dialect->live_limits || limits_moved(s)) { /* else a replay knows them */
            for (int k = 0; k < KNOB_COUNT; k++)
                head.limit[k] = s->record.limit[k] = policy_limit(s->law.policy, (enum knob)k);
        }
        head.write_failed = s->record.write_failed;
        s->record.write_failed = false;
        if (s->record.ready_us)
            record_ready(s->record.file, s->record.ready_us);
        s->record.ready_us = 0;
        r = record_poll(s->record.file, &head, reading->sample.at_us, reading->page, reading->len);
    }
    if (r == 0)
        return;
    ek_log(EK_LOG_WARNING, "%s: recording to %s ended: %s", c->name, c->record,
           r == -EFBIG ? "it reached record_max_bytes" : ek_strerror(r));
    s->record.failed = true;
    record_close(s->record.file);
    s->record.file = NULL;
}

static void step_policy(struct server *s, const struct scrape_reading *reading)
{
    uint64_t now = reading->sample.at_us; /* the recording's clock */
    if (!s->law.policy || s->state != SRV_READY)
        return;
    watch_record(s, reading);
    struct decision d = policy_step(s->law.policy, &s->watch.sample, now);
    if (d.act && d.knob < KNOB_COUNT)
        s->record.limit[d.knob] = d.to; /* unless it turns out not to be written */
    ek_log(EK_LOG_DEBUG,
           "%s: %s, usage %.3f, running %.0f of %u, waiting %.0f, preemptions %.0f: %s %s %s",
           s->config->name, policy_state_name(policy_state(s->law.policy)),
           s->watch.sample.value[SIG_KV_USAGE], s->watch.sample.value[SIG_RUNNING],
           policy_limit(s->law.policy, KNOB_SEQS), s->watch.sample.value[SIG_WAITING],
           s->watch.sample.value[SIG_PREEMPTIONS], action_name(d.kind), reason_name(d.reason),
           d.why);
    switch (d.kind) {
    case ACT_NONE:
        d.wall_us = ek_wall_us();
        ek_text_unknown(d.why);
        s->law.waits = d;
        break;
    case ACT_LOWER:
    case ACT_RAISE:
    case ACT_REVERT:
    case ACT_SHED:
    case ACT_RESERVE:
        if (d.act)
            action_apply(s, &d);
        else {
            server_record(s, &d);
            action_for_next_start(s, &d);
        }
        break;
    case ACT_NOTE:
    case ACT_RESTART:
    case ACT_DRAIN:
        d.applied = true; /* it was said, which is all there is to do */
        server_record(s, &d);
        break;
    }
}

/* What the engine decides by itself. */
static void note_engine(struct server *s)
{
    struct decision d;
    uint32_t limit = s->law.policy ? policy_limit(s->law.policy, KNOB_SEQS) : 0;
    (void)waiting_why(&s->watch.sample, limit, s->watch.waiting_why, sizeof(s->watch.waiting_why));
    ek_text_unknown(s->watch.waiting_why);
    if (s->state == SRV_READY && s->law.policy &&
        waiting_step(&s->watch.waiting, &s->watch.sample, policy_window(s->law.policy), limit,
                     s->watch.sample.at_us, &d)) {
        d.applied = true; /* it was said, which is all there is to do */
        server_record(s, &d);
    }
}

/* Without memory for them, keys are not shown. */
static void note_keys(struct server *s, const struct scrape_reading *reading)
{
    struct keys_reading keys = {0};
    if (reading->result != SCRAPE_OK)
        return;
    keys_parse(reading->page, reading->len, &keys);
    if (!s->watch.shares && keys.count > 0)
        s->watch.shares = calloc(1, sizeof(*s->watch.shares));
    for (uint32_t n = 0; s->watch.shares && (n = shares_poison(s->watch.shares, &keys, n)) != 0;
         n++)
        server_note(s, ACT_NOTE, REASON_POISON_KEY,
                    "Key %u has brought %.0f requests with which the engine's process ends: each "
                    "was ended with an error (evenkeelctl explain on this machine names the key)",
                    n, keys.at[n - 1].poisons);
    if (s->watch.shares)
        shares_take(s->watch.shares, &keys, reading->sample.at_us);
}

static void look_for_drained(struct server *s)
{
    if (s->state != SRV_DRAINING || (s->want != WANT_DRAINED && !s->drain.found) ||
        !sample_has(&s->watch.sample, SIG_RUNNING) || !sample_has(&s->watch.sample, SIG_WAITING) ||
        s->watch.sample.value[SIG_RUNNING] > 0 || s->watch.sample.value[SIG_WAITING] > 0)
        return;
    s->state = SRV_DRAINED;
    server_arm(s, -1);
    server_note(s, ACT_DRAIN, REASON_DRAIN_DONE, "Nothing runs or waits any more");
}

static void on_sample(void *ctx, const struct scrape_reading *reading)
{
    struct server *s = ctx;
    uint64_t now = ek_now_us();
    s->watch.scrapes[reading->result]++;
    ek_hist_observe(&s->watch.scrape_took, reading->took_s);
    s->watch.sample = reading->sample;
    step_policy(s, reading);
    note_engine(s);
    note_keys(s, reading);
    window_push(s->watch.seen, &s->watch.sample);
    view_take(&s->watch.view, &s->watch.sample, s->watch.seen);
    keep_history(s);
    backoff_tick(&s->ends.backoff, now);
    if (s->state == SRV_READY || s->state == SRV_DRAINING) {
        look_for_halt(s, now);
        look_for_hang(s, now);
    }
    if (ek_oom_window_due(&s->ends.ooms, now))
        ek_oom_window_sample(&s->ends.ooms, server_oom_kills(s), now);
    look_for_drained(s);
    server_bound_log(s);
    if (s->state == SRV_READY && now - s->probe.last_us >= PROBE_EVERY_US)
        server_probe(s);
    action_refresh(s, now);
    ramp_step(s, now);
    upkeep_step(s, now);
}

static struct scrape_setup setup_of(const struct server *s)
{
    return (struct scrape_setup){
        .dialect = s->config->dialect,
        .unix_path = s->address.control_path[0] ? s->address.control_path : NULL,
        .url = s->address.where,
        .key = s->address.key,
        .poll_us = (uint64_t)(s->config->poll_s * 1e6),
    };
}

void watch_point(struct server *s)
{
    struct scrape_setup setup = setup_of(s);
    scrape_point(s->watch.scrape, &setup);
}

int watch_open(struct server *s)
{
    struct scrape_setup setup = setup_of(s);
    ek_hist_init(&s->watch.scrape_took, took_bounds, sizeof(took_bounds) / sizeof(took_bounds[0]));
    view_unknown(&s->watch.view);
    s->watch.history = calloc(1, sizeof(*s->watch.history));
    if (!s->watch.history)
        return -ENOMEM;
    int r = window_new(s->config->policy.window_s, SEEN_SLOTS, &s->watch.seen);
    if (r < 0)
        return r;
    return scrape_new(s->with->event, s->with->client, &setup, on_sample, s, &s->watch.scrape);
}

void watch_ready(struct server *s)
{
    uint64_t now = ek_now_us();
    hang_start(&s->watch.hang, now);
    s->watch.halted_us = 0;
    waiting_start(&s->watch.waiting);
    ask_model(s);
    engine_lost_listen(s);
    action_ready(s);
    upkeep_ready(s);
    scrape_start(s->watch.scrape);
}

void watch_drain(struct server *s)
{
    hang_start(&s->watch.hang, ek_now_us());
    s->watch.halted_us = 0;
    ask_model(s);
    scrape_start(s->watch.scrape);
}

void watch_stop(struct server *s)
{
    scrape_stop(s->watch.scrape);
    engine_lost_stop(s);
    upkeep_stop(s);
    client_cancel(s->watch.canary);
    s->watch.canary = NULL;
    sample_missing(ek_now_us(), &s->watch.sample);
    view_unknown(&s->watch.view);
    s->watch.waiting_why[0] = '\0';
    if (s->watch.shares)
        shares_start(s->watch.shares);
    s->law.waits = (struct decision){0};
    s->watch.halted_us = 0;
    window_clear(s->watch.seen);
}

bool server_is_open(const struct server *s)
{
    return sample_has(&s->watch.sample, SIG_OPEN) && s->watch.sample.value[SIG_OPEN] > 0;
}
